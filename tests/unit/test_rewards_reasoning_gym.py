"""reasoning-gym's scorers: in every allowed data set the answer has full marks, nothing else."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import pytest
from record_factories import make_generated

from artifacts.records import Outcome, Prompt
from tasks.rewards import reasoning_gym_score
from tasks.rewards.reasoning_gym_score import (
    ALLOWED_DATASETS,
    ReasoningGymReward,
    ReasoningGymRewardConfig,
    score_entry,
)

reasoning_gym = pytest.importorskip("reasoning_gym")
NUM_ENTRIES = 6
SMALL: dict[str, dict[str, int]] = {
    "sokoban": {"max_w": 6, "max_h": 6, "max_boxes": 4},  # which are generated in a moment
}


@lru_cache(maxsize=64)
def entries(dataset: str) -> list[dict[str, Any]]:
    source = reasoning_gym.create_dataset(
        dataset,
        size=NUM_ENTRIES,
        seed=7,
        **SMALL.get(dataset, {}),
    )
    return [source[index] for index in range(NUM_ENTRIES)]


def score(dataset: str, index: int, answer: str) -> float:
    return score_entry(dataset, 7, index, json.dumps(SMALL.get(dataset, {})), answer)


JUNK = [
    "", " ", "-", "[]", "{}", "()", ",", ", , ,", "''", "None", "null", "nan", "NaN", "-nan", "inf",
    "-Infinity", "[NaN]", "True", "1e999", "9" * 5000, "-0", "0x10", "\u0665", "\u00b2", "\ud800",
    "[[]]", "[true]", "nan nan", "%s", "__import__('os')",
]  # fmt: skip


@pytest.mark.parametrize("dataset", sorted(ALLOWED_DATASETS))
def test_the_answer_has_full_marks_and_junk_has_none(dataset: str) -> None:
    for index, entry in enumerate(entries(dataset)):
        assert score(dataset, index, entry["answer"]) == 1.0
        for junk in JUNK:
            assert 0.0 <= score(dataset, index, junk) < 1.0 or entry["answer"] == "0", (index, junk)


@pytest.mark.parametrize("dataset", sorted(ALLOWED_DATASETS - {"sokoban"}))
def test_the_answer_among_others_has_no_full_marks(dataset: str) -> None:
    for index, entry in enumerate(entries(dataset)):
        answer = entry["answer"]
        for rest in (f", {answer}", " or 1", f" {answer}", ",", ", 77"):
            more = answer + rest
            allowed = dataset == "gsm_symbolic" and set(re.findall(r"[\d.]+", more)) == {answer}
            assert score(dataset, index, more) < 1.0 or allowed, (index, more)
        if re.fullmatch(r"[1-9]\d+", answer):
            first, rest = answer[0], answer[1:]
            for odd in (f"-{answer}", f"{first},{rest}", f"{first}_{rest}", f"{answer}e1"):
                grouped = odd.replace(",", "") == answer and len(odd.partition(",")[2]) == 3
                assert score(dataset, index, odd) < 1.0 or grouped, (index, odd)


def test_sorted_numbers_are_those_that_were_given() -> None:
    for index, entry in enumerate(entries("number_sorting")):
        numbers = json.loads(entry["answer"].replace("'", '"'))
        for place in range(len(numbers)):
            near = f"{float(numbers[place]) + 0.4}"
            for odd in ("NaN", '"nan"', "Infinity", "1e400", "null", "true", near):
                changed = [*numbers[:place], odd, *numbers[place + 1 :]]
                assert (
                    score(
                        "number_sorting",
                        index,
                        f"[{', '.join(changed)}]",
                    )
                    == 0.0
                ), (index, odd)
        assert score("number_sorting", index, f"[{', '.join(['NaN'] * len(numbers))}]") == 0.0
        assert score("number_sorting", index, json.dumps([*numbers, numbers[-1]])) == 0.0
        assert score("number_sorting", index, f"[{', '.join(numbers)}]") == 1.0


def test_right_answers_may_be_written_in_more_than_one_way() -> None:
    for dataset in ("chain_sum", "products", "gsm_symbolic"):
        for index, entry in enumerate(entries(dataset)):
            whole, _, part = entry["answer"].partition(".")
            grouped = f"{int(whole):,}{'.' if part else ''}{part}"
            decimal = entry["answer"] if part else f"{whole}.00"
            for text in (grouped, decimal, f" {entry['answer']} "):
                assert score(dataset, index, text) == 1.0, (index, text)
    for index, entry in enumerate(entries("gsm_symbolic")):
        assert score("gsm_symbolic", index, f"${entry['answer']} in all") == 1.0


def test_an_entry_is_generated_once_and_no_score_changes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for dataset in sorted(ALLOWED_DATASETS):
        before = json.dumps(
            reasoning_gym_score._entry(dataset, 7, 0, json.dumps(SMALL.get(dataset, {}))),
            default=str,
        )
        assert score(dataset, 0, entries(dataset)[0]["answer"]) == 1.0
        after = json.dumps(
            reasoning_gym_score._entry(dataset, 7, 0, json.dumps(SMALL.get(dataset, {}))),
            default=str,
        )
        assert before == after
    monkeypatch.setattr(
        type(reasoning_gym_score._create("sokoban", 7, 0, json.dumps(SMALL["sokoban"]))),
        "__getitem__",
        None,
    )
    assert score("sokoban", 0, "LRUD") == 0.0
    assert score("sokoban", 0, entries("sokoban")[0]["answer"]) == 1.0


def test_an_entry_that_takes_longer_than_a_scorer_may_costs_no_response_its_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reward = ReasoningGymReward(ReasoningGymRewardConfig())
    limits: list[float | None] = []
    call = reward._worker.call
    monkeypatch.setattr(
        reward._worker,
        "call",
        lambda *given, limit_s=None: limits.append(limit_s) or call(*given, limit_s=limit_s),
    )
    gold = json.dumps({"dataset": "sokoban", "seed": 7, "index": 0, "config": SMALL["sokoban"]})
    prompt = Prompt(prompt_id="0/1", domain="gym", token_ids=(1,), gold=gold, text="q")
    response = make_generated(text=f"Answer: {entries('sokoban')[0]['answer']}")
    assert reward.score(prompt, response).outcome is Outcome.OK
    assert limits == [reasoning_gym_score.ENTRY_S, None]
    reward.close()
