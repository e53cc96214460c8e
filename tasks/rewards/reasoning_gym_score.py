"""Rewards of reasoning-gym's data sets, for the ones whose scorers were tried against hostile answers and held.

    Prompt.gold = {"dataset", "seed", "index", "config"} as JSON -> the entry, generated again -> score_answer in a worker

Nine of its scorers evaluate the answer as code and others hang, raise or pay for junk: only names on the allow-list are scored.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from artifacts.records import Generated, Outcome, Prompt
from tasks.rewards.base import ProcessReward, Verdict, infra, wrong
from tasks.rewards.final_answer import answer_tail, find_expression
from tasks.rewards.verify_worker import VerifyWorker, text_at_fault

ALLOWED_DATASETS = frozenset(
    {
        "aiw", "basic_arithmetic", "calendar_arithmetic", "chain_sum", "count_bits", "count_primes", "family_relationships",
        "gcd", "gsm_symbolic", "lcm", "leg_counting", "letter_counting", "maze", "number_sequence", "number_sorting",
        "products", "simple_equations", "sokoban", "spell_backward", "word_sorting",
    }
)  # fmt: skip
TIMEOUT_S = 5.0  # the first call of a data set builds it, beside engines that keep every core busy


class ReasoningGymConfig(BaseModel):
    """Score with the data set's own scorer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["reasoning_gym"] = Field(default="reasoning_gym", description="Chooses reasoning-gym's scorers.")
    binary: bool = Field(default=True, description="Pay 1 for a full score and 0 for anything less; off, partial credit is kept.")


class ReasoningGymGold(BaseModel):
    """Which entry of which data set a prompt is; the JSON of it is `Prompt.gold`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str = Field(description="Name of the data set in reasoning-gym.")
    seed: int = Field(description="The data set's seed.")
    index: int = Field(ge=0, description="The entry's position; an entry is a function of data set, seed, position and config.")
    config: dict[str, Any] = Field(  # Any: the data set's own keyword arguments
        default_factory=dict, description="Further arguments the data set was created with."
    )


class ReasoningGymReward(ProcessReward):
    """Scores entries of allow-listed data sets."""

    name = "reasoning_gym"

    def __init__(self, config: ReasoningGymConfig) -> None:
        self._binary = config.binary
        self._worker = VerifyWorker(
            "tasks.rewards.reasoning_gym_score:score_entry", timeout_s=TIMEOUT_S, rehearsals=[("chain_sum", 0, 0, "{}", "1")]
        )
        super().__init__(self._worker)

    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """OK for a full score, else WRONG. ValueError if the prompt's data set is not on the allow-list."""
        return self._judge(read_gold(prompt.gold), generated.text)

    def check_gold(self, gold: str) -> None:
        """ValueError for a gold that cannot be scored: to be called when a data set is read."""
        read_gold(gold)

    def _judge(self, gold: ReasoningGymGold, text: str) -> Verdict:
        found = find_expression(answer_tail(text))
        if found is None:
            return wrong("no_answer")
        answer = found.text.strip(" *$").removesuffix(".")
        reply = self._worker.call(gold.dataset, gold.seed, gold.index, json.dumps(gold.config, sort_keys=True), answer)
        if reply.kind == "raised":
            return infra(f"reasoning_gym failed on {gold.dataset}: {reply.detail}")
        if reply.kind != "value":
            return text_at_fault(reply) or wrong("verify_crash")
        return self._grade(reply.value)

    def _grade(self, value: object) -> Verdict:
        if not isinstance(value, int | float) or not (math.isfinite(value) and 0.0 <= value <= 1.0):
            return wrong("score_out_of_range")
        full = value >= 1.0
        reward = float(full) if self._binary else float(value)
        return Verdict(reward=reward, outcome=Outcome.OK if full else Outcome.WRONG, detail="full" if full else "not_full")


@lru_cache(maxsize=4096)
def read_gold(text: str) -> ReasoningGymGold:
    """A prompt's gold; ValueError if it is malformed or its data set is not on the allow-list."""
    try:
        gold = ReasoningGymGold.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(
            f"a reasoning-gym gold must be JSON with dataset, seed, index and config, got {text!r}; write a ReasoningGymGold"
        ) from error
    if gold.dataset not in ALLOWED_DATASETS:
        raise ValueError(
            f"a reasoning-gym data set must be one whose scorer is safe on model text, got {gold.dataset!r}; "
            f"choose one of {', '.join(sorted(ALLOWED_DATASETS))}"
        )
    return gold


# --- inside the worker ----------------------------------------------------------------------------------------------------


def score_entry(dataset: str, seed: int, index: int, config: str, answer: str) -> float:
    """The data set's score of an answer, 0 if its scorer raises on it. Generating the entry may raise: the gold's fault."""
    source = _create(dataset, seed, index, config)
    entry = source[index]
    try:
        return float(source.score_answer(answer, entry))
    except MemoryError:
        raise
    except Exception:  # the boundary to third-party scorers: an answer they choke on is a wrong answer
        return 0.0


@lru_cache(maxsize=64)
def _create(dataset: str, seed: int, index: int, config: str) -> Any:  # Any: reasoning-gym is untyped
    import reasoning_gym

    return reasoning_gym.create_dataset(dataset, size=index + 1, seed=seed, **json.loads(config))
