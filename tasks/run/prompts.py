"""The questions of a run: its rows, and the prompts behind references to them.

PromptRef "3/17" ─▶ row 17 of the dataset ─▶ chat template, tokenizer ─▶ Prompt

Where the domain of a row has an environment the row is a seed, and the prompt is what every episode
of that environment begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from artifacts.datasets.registry import TaskConfig, load_dataset
from artifacts.datasets.rows import Dataset, Row
from artifacts.records import Prompt
from tasks.engines.model_files import read_tokenizer, read_vocabulary_size
from tasks.environments.episodes.episode_replica import bridge_of
from tasks.environments.episodes.prompts import episode_prompt, render
from tasks.run.run_context import RunContext
from tasks.scheduling.events import PromptRef

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HELDOUT = "heldout"  # the epoch's place in the id of a held-out prompt: "heldout/<row>"


@lru_cache(maxsize=4)
def _dataset(task_json: str, seed: int) -> Dataset:
    return load_dataset(TypeAdapter[TaskConfig](TaskConfig).validate_json(task_json), seed)


def dataset_of(run: RunContext) -> Dataset:
    """The run's dataset; made once per process, the same in all of them."""
    return task_dataset(run.task, run.seed)


def task_dataset(task: TaskConfig, seed: int) -> Dataset:
    """A task's rows; made once per process. ValueError names a malformed one."""
    return _dataset(task.model_dump_json(), seed)


@lru_cache(maxsize=4)
def tokenizer_of(model_path: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer; loaded once per process."""
    tokenizer: PreTrainedTokenizerBase = read_tokenizer(model_path)
    return tokenizer


@lru_cache(maxsize=4)
def vocabulary_size_of(model_path: str) -> int | None:
    """How many tokens the model embeds, if its directory says so; read once per process."""
    return read_vocabulary_size(model_path)


def prompts_of(run: RunContext, refs: Sequence[PromptRef]) -> dict[str, Prompt]:
    """The prompts behind these references, rendered and tokenised, by id."""
    dataset = dataset_of(run)
    prompts: dict[str, Prompt] = {}
    for ref in refs:
        epoch, _, row = ref.prompt_id.partition("/")
        rows = dataset.heldout if epoch == HELDOUT else dataset.rows
        prompts[ref.prompt_id] = prompt_of_row(run, rows[int(row)], ref.prompt_id)
    return prompts


def prompt_of_row(run: RunContext, row: Row, prompt_id: str) -> Prompt:
    """The row as a prompt. ValueError for one that cannot be asked."""
    prompt = _rendered(run, row, prompt_id)
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


def _rendered(run: RunContext, row: Row, prompt_id: str) -> Prompt:
    settings = run.environments.get(row.domain)
    if settings is not None:
        bridge = bridge_of(run.model_path, settings.head())
        return episode_prompt(row, bridge, prompt_id, run.max_prompt_tokens)
    if not row.messages:
        raise ValueError(
            f"a row that asks nothing must be of a domain with an environment, row {prompt_id} is"
            f" of {row.domain!r}; add environments.{row.domain}"
        )
    return render(row, tokenizer_of(run.model_path), prompt_id, run.max_prompt_tokens)


def beginning_of(run: RunContext, prompt: Prompt) -> tuple[int, ...]:
    """What a response to this prompt comes after, as far as it is known before anybody is asked.
    The first observation of an episode is not: its row's text stands in for it, so that prompts
    differ."""
    if prompt.episode_seed is None:
        return prompt.token_ids
    bridge = bridge_of(run.model_path, run.environments[prompt.domain].head())
    return (*prompt.token_ids, *bridge.first(prompt.text))


def heldout_refs(run: RunContext, num_prompts: int) -> tuple[PromptRef, ...]:
    """The first held-out prompts that can be asked."""
    rows = (
        (number, row)
        for number, row in enumerate(dataset_of(run).heldout)
        if number not in run.unfit_heldout
    )
    return tuple(
        PromptRef(prompt_id=f"{HELDOUT}/{number}", domain=row.domain)
        for number, row in islice(rows, num_prompts)
    )


def is_heldout(prompt_id: str) -> bool:
    """Whether evaluations ask this prompt."""
    return prompt_id.startswith(f"{HELDOUT}/")
