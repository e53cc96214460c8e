"""Scores answers to reasoning-gym's data sets whose scorers withstood hostile answers.

    Prompt.gold: {"dataset", "seed", "index", "config"} as JSON
    ─▶ the entry, generated again ─▶ score_answer in a worker

Nine of reasoning-gym's scorers evaluate the answer as code, and others hang, raise or pay for junk,
so only data sets on an allow-list are scored. If an allow-listed scorer gives full marks for other
text than the answer, a rule in this module decides on full marks.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field, ValidationError

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.reasoning_gym_rows import ALLOWED_DATASETS
from artifacts.records import Generated, Outcome, Prompt
from tasks.rewards.base import ProcessReward, Reward, Verdict, infra, wrong
from tasks.rewards.maths.final_answer import answer_tail, find_answer
from tasks.rewards.verify_worker import VerifyWorker, without_value

Entry = dict[str, Any]  # Any: reasoning-gym is untyped

TIMEOUT_S = 5.0  # processor time of a scorer
ENTRY_S = 60.0  # processor time to generate an entry, whatever the response: a sokoban takes 4 s


class ReasoningGymRewardConfig(FrozenConfig):
    """Score with the data set's own scorer."""

    kind: Literal["reasoning_gym"] = Field(
        default="reasoning_gym", description="Chooses reasoning-gym's scorers."
    )
    binary: bool = Field(
        default=True,
        description="Pay 1 for a full score and 0 for anything less; off, partial credit is kept.",
    )

    def build_reward(self) -> Reward:
        """The reward of this configuration."""
        return ReasoningGymReward(self)


class ReasoningGymGold(FrozenConfig):
    """Identifies the data set entry behind a prompt; its JSON is `Prompt.gold`."""

    dataset: str = Field(description="Name of the data set in reasoning-gym.")
    seed: int = Field(description="The data set's seed.")
    index: int = Field(
        ge=0,
        description=(
            "The entry's position; an entry is a function of data set, seed, position and config."
        ),
    )
    config: dict[str, Any] = Field(  # Any: the data set's own keyword arguments
        default_factory=dict, description="Further arguments the data set was created with."
    )


class ReasoningGymReward(ProcessReward):
    """Scores entries of allow-listed data sets."""

    name = "reasoning_gym"

    def __init__(self, config: ReasoningGymRewardConfig) -> None:
        self._binary = config.binary
        self._worker = VerifyWorker(
            "tasks.rewards.reasoning_gym_score:score_entry",
            timeout_s=TIMEOUT_S,
            rehearsals=[("chain_sum", 0, 0, "{}", "1")],
        )
        super().__init__(self._worker)

    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """OK for a full score, else WRONG. Raises ValueError for a data set off the allow-list."""
        gold = read_gold(prompt.gold)
        found = find_answer(answer_tail(generated.text))
        if found is None:
            return wrong("no_answer")
        answer = found.text.strip(" *$").removesuffix(".")
        entry = (gold.dataset, gold.seed, gold.index, json.dumps(gold.config, sort_keys=True))
        reply = self._worker.call(*entry, None, limit_s=ENTRY_S)
        if reply.kind != "value":
            return infra(
                f"reasoning_gym generated no entry of {gold.dataset}: {reply.kind} {reply.detail}"
            )
        reply = self._worker.call(*entry, answer)
        if reply.kind == "raised":
            return infra(f"reasoning_gym failed on {gold.dataset}: {reply.detail}")
        if reply.kind != "value":
            return without_value(reply)
        value = reply.value
        if not isinstance(value, int | float) or not (math.isfinite(value) and 0.0 <= value <= 1.0):
            return wrong("score_out_of_range")
        full = value >= 1.0
        reward = float(full) if self._binary else float(value)
        return Verdict(
            reward=reward,
            outcome=Outcome.OK if full else Outcome.WRONG,
            detail="full" if full else "not_full",
        )

    def check_gold(self, gold: str) -> None:
        """Check a gold when a data set is read; ValueError if it cannot be scored."""
        read_gold(gold)


@lru_cache(maxsize=4096)
def read_gold(text: str) -> ReasoningGymGold:
    """Read a prompt's gold; ValueError if it is malformed or its data set is not allow-listed."""
    try:
        gold = ReasoningGymGold.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(
            f"a reasoning-gym gold must be JSON with dataset, seed, index and config, got {text!r};"
            " write a ReasoningGymGold"
        ) from error
    if gold.dataset not in ALLOWED_DATASETS:
        raise ValueError(
            "a reasoning-gym data set must be one whose scorer is safe on model text, got"
            f" {gold.dataset!r}; choose one of {', '.join(sorted(ALLOWED_DATASETS))}"
        )
    return gold


# From here on: inside the worker.


def score_entry(dataset: str, seed: int, index: int, config: str, answer: str | None) -> float:
    """Score an answer with its data set's scorer: 0 to 1, and 0 if the scorer raises.

    If `answer` is None, the entry is only generated; that raises if the gold is faulty.
    """
    entry = _entry(dataset, seed, index, config)
    if answer is None:
        return 0.0
    try:
        score = float(_create(dataset, seed, index, config).score_answer(answer, entry))
        rule = _is_right(dataset, answer, entry)
        is_full = score >= 1.0 if rule is None else rule
    except MemoryError:
        raise
    # the boundary to third-party scorers: an answer they choke on is a wrong answer
    except Exception:
        return 0.0
    if is_full:
        return 1.0
    return score if score < 1.0 else 0.0


@lru_cache(maxsize=1024)  # the responses of a group ask for the same one, and it may take seconds
def _entry(dataset: str, seed: int, index: int, config: str) -> Entry:
    entry: Entry = _create(dataset, seed, index, config)[index]
    return entry


@lru_cache(maxsize=64)
def _create(dataset: str, seed: int, index: int, config: str) -> Any:  # Any: Entry says why
    import reasoning_gym

    return reasoning_gym.create_dataset(dataset, size=index + 1, seed=seed, **json.loads(config))


_DIGITS = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)"
_NUMBER = re.compile(rf"{_DIGITS}(?:\.\d*)?(?:[eE][-+]?\d{{1,2}})?", re.ASCII)
_STATED = re.compile(rf"(?<![\w.]){_DIGITS}(?:\.\d+)?(?!_|\d|[eE][-+]?\d)", re.ASCII)


def _number(text: str) -> Decimal | None:
    """A whole text as a finite number, with commas between thousands allowed; None for others."""
    text = text.strip()
    return Decimal(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def _is_right(dataset: str, answer: str, entry: Entry) -> bool | None:
    """The rule for full marks in data sets whose scorers give them for other texts than the answer;
    None for other data sets."""
    wanted = entry["answer"]
    match dataset:
        case "calendar_arithmetic" | "chain_sum" | "products":
            # the scorer ignores commas and underscores anywhere
            number = _number(wanted)
            is_same = answer.strip().casefold() == str(wanted).casefold()
            return is_same if number is None else _number(answer) == number
        case "gsm_symbolic":
            # the scorer takes the first of several numbers, without its sign, to its first comma
            return {_number(found) for found in _STATED.findall(answer)} == {_number(wanted)}
        case "number_sorting":
            # the scorer accepts any sorted list within 1 of the right one, and NaN anywhere
            given, right = (json.loads(text.replace("'", '"')) for text in (answer, wanted))
            numbers = [_number(str(number)) for number in given] if isinstance(given, list) else []
            return numbers == [_number(number) for number in right]
        case "spell_backward":
            # the scorer adds up shares of right letters, which can reach 1 for a longer text
            return answer.lower() == str(wanted).lower()
        case "word_sorting":
            # the scorer accepts a list with more words after the right ones
            words: list[str] = entry["metadata"]["sorted_words"]
            return [word.strip() for word in answer.split(",")] == words
        case _:
            return None
