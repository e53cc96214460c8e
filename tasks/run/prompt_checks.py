"""Which prompts a run can ask: all that it may come to are rendered before anything is started.

    rows that num_steps can reach, queue, what is carried, held-out rows
        ── render ──▶ reasons why some are unfit ──▶ refuse, or skip

A row is unfit when its prompt leaves no room for the longest response, when the model's template or
tokenizer refuses it, when it has a token that the model does not embed, when its reward can pay no
response for its gold answer, or when the question about it leaves no room for an answer in its
judge's context. The work is bounded by what the run would render anyway.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Literal

from artifacts.datasets.rows import Row
from artifacts.records import Prompt
from tasks.engines.model_files import unembedded_tokens
from tasks.rewards.judges.question import QuestionEncoder
from tasks.rewards.judges.reward import JudgeConfig, judge_of, question_about
from tasks.rewards.registry import Rewards, config_of
from tasks.run.prompts import (
    HELDOUT,
    dataset_of,
    prompt_of_row,
    tokenizer_of,
    vocabulary_size_of,
)
from tasks.run.run_context import RunContext
from tasks.scheduling.prompt_stream import row_at
from tasks.scheduling.queue_state import QueueState

logger = logging.getLogger(__name__)

UnfitPrompts = Literal["refuse", "skip"]
TELL_EVERY_S = 10.0


def check_prompts(policy: UnfitPrompts, reasons: Mapping[str, str], num_examined: int) -> None:
    """ValueError that names the first unfit prompt, or a line in the log for each if they are to be
    passed over."""
    if policy == "refuse" and reasons:
        raise ValueError(
            f"every prompt that the run can ask must fit, {len(reasons)} of {num_examined} do "
            "not; the first: "
            f"{next(iter(reasons.values()))}. Or set unfit_prompts=skip to pass them over"
        )
    for name, reason in reasons.items():
        logger.warning("unfit_prompt=%s reason=%s", name, reason)


def check_embeddings(policy: UnfitPrompts, run: RunContext) -> None:
    """ValueError for a tokenizer that knows tokens which its model does not embed, or a line in the
    log where the prompts that hold one are passed over."""
    for model_path in filter(None, (run.model_path, run.judge_model_path)):
        size = vocabulary_size_of(model_path)
        tokens = [] if size is None else unembedded_tokens(tokenizer_of(model_path), size)
        if not tokens:
            continue
        told = (
            f"a tokenizer must know no more tokens than its model embeds ({size}), that of"
            f" {model_path} has {len(tokens)} more, such as {tokens[0]!r}; resize the embedding"
            " (model.resize_token_embeddings(len(tokenizer)), then save_pretrained)"
        )
        if policy == "refuse":
            raise ValueError(f"{told}, or set unfit_prompts=skip to pass over prompts with them")
        logger.warning("unembedded_tokens=%d reason=%s", len(tokens), told)


class Examination:
    """Renders rows, each once, and keeps the reasons of those that are unfit."""

    def __init__(self, run: RunContext, rewards: Rewards) -> None:
        self._run, self._rewards = run, rewards
        self._dataset = dataset_of(run)
        self._encoders: dict[int, QuestionEncoder] = {}
        self._examined: set[str] = set()
        self._told_s = time.monotonic()
        self.reasons: dict[str, str] = {}  # by row, "17" or "heldout/3", why it is unfit

    @property
    def num_examined(self) -> int:
        return len(self._examined)

    def rows(self) -> frozenset[int]:
        """The unfit rows among those that are trained on."""
        return frozenset(int(name) for name in self.reasons if not name.startswith(HELDOUT))

    def heldout(self) -> frozenset[int]:
        """The unfit held-out rows."""
        return frozenset(
            int(name.partition("/")[2]) for name in self.reasons if name.startswith(HELDOUT)
        )

    def examine_stream(self, state: QueueState, num_prompts: int) -> None:
        """The next num_prompts prompts that fit, and what waits to be asked; the whole dataset
        where they go round it."""
        num_rows, seed = len(self._dataset.rows), self._dataset.order_seed(self._run.seed)
        carried = (prompt.ref for prompt in state.carried)
        self._examine(ref.row for ref in (*state.queue, *state.skipped, *carried))
        num_fit = 0
        for place in range(state.num_drawn, state.num_drawn + num_rows):
            if num_fit == num_prompts:
                return
            row = row_at(num_rows, seed, place)
            num_fit += self._fits(str(row), self._dataset.rows[row])
        self._examine(range(num_rows))

    def examine_heldout(self, num_prompts: int) -> int:
        """The first num_prompts held-out prompts that fit; how many were found."""
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
            self._tell()
            judge = judge_of(config_of(self._run.rewards, row.domain))
            try:
                prompt = prompt_of_row(self._run, row, name)
                self._rewards.check(prompt)
                if judge is not None:
                    self._check_judged(prompt, judge)
            except ValueError as error:
                self.reasons[name] = str(error)
        return name not in self.reasons

    def _check_judged(self, prompt: Prompt, config: JudgeConfig) -> None:
        """ValueError when the prompt's judge would have no room for an answer that is too long for
        its context."""
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

    def _tell(self) -> None:
        if time.monotonic() - self._told_s > TELL_EVERY_S:
            self._told_s = time.monotonic()
            logger.info("examined=%d prompts, unfit=%d", self.num_examined, len(self.reasons))
