"""A run's prompts: the rows of its dataset, rows rendered as prompts, and a check for rows that are
unfit to be asked.

    PromptRef "3/17" ─▶ row 17 of the dataset ─▶ chat template, tokenizer ─▶ Prompt

If a row's domain has an environment, the row is the seed of an episode, and its prompt has the
tokens that every episode of that environment begins with.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

from artifacts.datasets.registry import TaskConfig, load_dataset
from artifacts.datasets.rows import Dataset, Row
from artifacts.layout import PICTURES
from artifacts.pictures import PictureFolder
from artifacts.records import Prompt
from tasks.engines.base import PicturedProbe
from tasks.engines.model_files import read_tokenizer, read_vocabulary_size, unembedded_tokens
from tasks.engines.picture_prompts import bytes_of, check_seeing, with_pictures
from tasks.environments.episodes.bridge import bridge_of
from tasks.environments.episodes.prompts import episode_prompt, render
from tasks.rewards.judges.question import QuestionEncoder
from tasks.rewards.judges.reward import JudgeConfig, question_about
from tasks.rewards.registry import Rewards, config_of
from tasks.run.run_context import RunContext
from tasks.scheduling.events import PromptRef
from tasks.scheduling.prompt_stream import NO_SWEEP, Answering, row_at
from tasks.scheduling.queue_state import QueueState

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

UnfitPrompts = Literal["refuse", "skip"]
REPORT_EVERY_S = 10.0
HELDOUT = "heldout"  # the epoch's place in the id of a held-out prompt: "heldout/<row>"


@lru_cache(maxsize=4)
def _dataset(task_json: str, seed: int) -> Dataset:
    return load_dataset(TypeAdapter[TaskConfig](TaskConfig).validate_json(task_json), seed)


def dataset_of(run: RunContext) -> Dataset:
    """The run's dataset: loaded once per process, with the same rows in all processes."""
    return task_dataset(run.task, run.seed)


def task_dataset(task: TaskConfig, seed: int) -> Dataset:
    """A task's dataset: loaded once per process. Raises ValueError that names a malformed row."""
    return _dataset(task.model_dump_json(), seed)


@lru_cache(maxsize=4)
def tokenizer_of(model_path: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer; loaded once per process."""
    tokenizer: PreTrainedTokenizerBase = read_tokenizer(model_path)
    return tokenizer


@lru_cache(maxsize=4)
def vocabulary_size_of(model_path: str) -> int | None:
    """Tokens that the model embeds, if its directory says so; read once per process."""
    return read_vocabulary_size(model_path)


def prompts_of(run: RunContext, refs: Sequence[PromptRef]) -> dict[str, Prompt]:
    """The prompts behind these references, rendered and tokenised, by id."""
    dataset = dataset_of(run)
    prompts: dict[str, Prompt] = {}
    for ref in refs:
        rows = dataset.heldout if is_heldout(ref.prompt_id) else dataset.rows
        prompts[ref.prompt_id] = prompt_of_row(run, rows[ref.row], ref.prompt_id)
        _keep_pictures(run, rows[ref.row])
    return prompts


def _keep_pictures(run: RunContext, row: Row) -> None:
    """Keep the pictures of a row, which engines and learner read by their contents."""
    if row.pictures:
        folder = PictureFolder(run.open_store().child(PICTURES))
        for source in row.pictures:
            folder.keep(bytes_of(source))


def prompt_of_row(run: RunContext, row: Row, prompt_id: str) -> Prompt:
    """Render and tokenise a row. Raises ValueError if the row cannot be asked."""
    settings = run.environments.get(row.domain)
    if settings is not None:
        bridge = bridge_of(run.model_path, settings.head())
        prompt = episode_prompt(row, bridge, prompt_id, run.max_prompt_tokens)
    elif row.messages:
        prompt = _question(run, row, prompt_id)
    else:
        raise ValueError(
            f"a row that asks nothing must be of a domain with an environment, row {prompt_id} is"
            f" of {row.domain!r}; add environments.{row.domain}"
        )
    size = vocabulary_size_of(run.model_path)
    if size is not None and max(prompt.token_ids) >= size:
        largest = max(prompt.token_ids)
        token = tokenizer_of(run.model_path).convert_ids_to_tokens(largest)
        raise ValueError(
            f"a prompt must consist of tokens that the model embeds ({size}), row {prompt_id} has"
            f" {token!r}, token {largest}; resize the model's embedding"
            " (model.resize_token_embeddings) and save it, or drop the row"
        )
    return prompt


def _question(run: RunContext, row: Row, prompt_id: str) -> Prompt:
    tokenizer, room = tokenizer_of(run.model_path), run.max_prompt_tokens
    if not row.pictures:
        return render(row, tokenizer, prompt_id, room)
    check_seeing(run.model_path)
    show = partial(with_pictures, run.model_path)
    return render(row, tokenizer, prompt_id, room, show)


def beginning_of(run: RunContext, prompt: Prompt) -> tuple[int, ...]:
    """The tokens that precede a response to this prompt. The first observation of an episode is not
    known yet: the text of the prompt's row stands in for it, so that prompts differ."""
    if prompt.episode_seed is None:
        return prompt.token_ids
    bridge = bridge_of(run.model_path, run.environments[prompt.domain].head())
    return (*prompt.token_ids, *bridge.first(prompt.text))


def probe_of(run: RunContext, prompt: Prompt, num_tokens: int) -> tuple[int, ...]:
    """The tokens of a held-out prompt on which engines and learner are compared: its last
    num_tokens or, if it shows pictures, so many behind them and all before."""
    tokens = beginning_of(run, prompt)
    if not prompt.pictures:
        return tokens[-num_tokens:]
    last = prompt.pictures[-1]
    end = last.begin + last.num_tokens + num_tokens
    return PicturedProbe.of(tokens[:end], prompt.pictures)


def heldout_refs(
    run: RunContext, num_prompts: int, answering: Answering = NO_SWEEP
) -> tuple[PromptRef, ...]:
    """References to the first num_prompts held-out prompts, unfit ones passed over, for each
    adapter that answers them."""
    rows = (
        (number, row)
        for number, row in enumerate(dataset_of(run).heldout)
        if number not in run.unfit_heldout
    )
    return tuple(
        answering.ref(f"{HELDOUT}/{number}", row.domain, place)
        for number, row in islice(rows, num_prompts)
        for place in range(answering.times)
    )


def is_heldout(prompt_id: str) -> bool:
    """True if this is the id of a held-out prompt; only evaluations ask these."""
    return prompt_id.startswith(f"{HELDOUT}/")


def check_prompts(policy: UnfitPrompts, reasons: Mapping[str, str], num_examined: int) -> None:
    """Raise ValueError with the first unfit prompt if the policy is 'refuse'; log each of them if
    it is 'skip'. reasons: why a row is unfit, by its name."""
    if policy == "refuse" and reasons:
        raise ValueError(
            f"every prompt that the run can ask must fit, {len(reasons)} of {num_examined} do "
            "not; the first: "
            f"{next(iter(reasons.values()))}. Or set unfit_prompts=skip to pass them over"
        )
    for name, reason in reasons.items():
        logger.warning("unfit_prompt=%s reason=%s", name, reason)


def check_embeddings(policy: UnfitPrompts, run: RunContext) -> None:
    """Refuse or log tokenizers of the run with tokens that their model does not embed."""
    for model_path in filter(None, (run.model_path, run.judge_model_path)):
        size = vocabulary_size_of(model_path)
        tokens = [] if size is None else unembedded_tokens(tokenizer_of(model_path), size)
        if not tokens:
            continue
        reason = (
            f"a tokenizer must know no more tokens than its model embeds ({size}), that of"
            f" {model_path} has {len(tokens)} more, such as {tokens[0]!r}; resize the embedding"
            " (model.resize_token_embeddings(len(tokenizer)), then save_pretrained)"
        )
        if policy == "refuse":
            raise ValueError(f"{reason}, or set unfit_prompts=skip to pass over prompts with them")
        logger.warning("unembedded_tokens=%d reason=%s", len(tokens), reason)


class Examination:
    """Renders rows, each once, and keeps the reasons of those that are unfit.

    A row is unfit when its prompt leaves no room for the longest response, when the model's
    template or tokenizer refuses it, when it has a token that the model does not embed, when its
    gold answer is unusable for its reward, or when the question about it leaves no room for an
    answer in its judge's context. The work is bounded by what the run would render anyway.
    """

    def __init__(self, run: RunContext, rewards: Rewards) -> None:
        self._run, self._rewards = run, rewards
        self._dataset = dataset_of(run)
        self._encoders: dict[int, QuestionEncoder] = {}
        self._examined: set[str] = set()
        self._reported_s = time.monotonic()
        self.reasons: dict[str, str] = {}  # by row, "17" or "heldout/3", why it is unfit

    @property
    def num_examined(self) -> int:
        return len(self._examined)

    def rows(self) -> frozenset[int]:
        """Numbers of the unfit rows of the training set."""
        return frozenset(int(name) for name in self.reasons if not name.startswith(HELDOUT))

    def heldout(self) -> frozenset[int]:
        """Numbers of the unfit held-out rows."""
        return frozenset(
            int(name.partition("/")[2]) for name in self.reasons if name.startswith(HELDOUT)
        )

    def examine_stream(self, state: QueueState, num_prompts: int) -> None:
        """Examine the waiting prompts, then rows in the order of the stream until num_prompts of
        them fit. If the dataset has fewer, all its rows are examined."""
        num_rows, seed = len(self._dataset.rows), self._dataset.order_seed(self._run.seed)
        times = self._run.learner.lora.answering.times
        carried = (prompt.ref for prompt in state.carried)
        self._examine(ref.row for ref in (*state.queue, *state.skipped, *carried))
        num_fit = 0
        for place in range(state.num_drawn, state.num_drawn + num_rows * times):
            if num_fit == num_prompts:
                return
            row = row_at(num_rows, seed, place, times)
            num_fit += self._fits(str(row), self._dataset.rows[row])
        self._examine(range(num_rows))

    def examine_heldout(self, num_prompts: int) -> int:
        """Examine held-out prompts until num_prompts fit; returns the number that fit."""
        num_fit = 0
        for number, row in enumerate(self._dataset.heldout):
            if num_fit == num_prompts:
                break
            num_fit += self._fits(f"{HELDOUT}/{number}", row)
        return num_fit

    def _examine(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._fits(str(number), self._dataset.rows[number])

    def _fits(self, name: str, row: Row) -> bool:
        if name not in self._examined:
            self._examined.add(name)
            if time.monotonic() - self._reported_s > REPORT_EVERY_S:
                self._reported_s = time.monotonic()
                logger.info("examined=%d prompts, unfit=%d", self.num_examined, len(self.reasons))
            judge = config_of(self._run.rewards, row.domain)
            try:
                prompt = prompt_of_row(self._run, row, name)
                self._rewards.check(prompt)
                if isinstance(judge, JudgeConfig):
                    self._check_judged(prompt, judge)
            except ValueError as error:
                self.reasons[name] = str(error)
        return name not in self.reasons

    def _check_judged(self, prompt: Prompt, config: JudgeConfig) -> None:
        """Raise ValueError when the question about the prompt leaves no room for any answer."""
        limit = config.engine.max_model_len
        encoder = self._encoders.setdefault(
            limit, QuestionEncoder(tokenizer_of(self._run.judge_model_path), limit)
        )
        if encoder.encode(question_about(config, prompt, answer="x " * limit)) is None:
            raise ValueError(
                "the question about a prompt must leave room for an answer in the judge's "
                f"context of {limit} tokens, "
                f"row {prompt.prompt_id} ({prompt.text[:60]!r}) leaves none; drop the row or "
                "raise the judge's engine.max_model_len"
            )
