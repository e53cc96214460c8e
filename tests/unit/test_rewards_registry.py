"""Choosing a reward by domain, and the scorers of reasoning-gym."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError
from record_factories import make_generated

from artifacts.records import Generated, Outcome, Prompt
from tasks.rewards.custom import CustomConfig
from tasks.rewards.maths.math_answer import MathAnswerConfig
from tasks.rewards.reasoning_gym_score import (
    ALLOWED_DATASETS,
    ReasoningGymReward,
    ReasoningGymRewardConfig,
    score_entry,
)
from tasks.rewards.registry import RewardConfig, build_rewards, score_with

ADAPTER: TypeAdapter[RewardConfig] = TypeAdapter(RewardConfig)


def prompt(domain: str, gold: str) -> Prompt:
    return Prompt(prompt_id="0/1", domain=domain, token_ids=(1,), gold=gold, text="q")


def response(text: str, finish_reason: str = "stop") -> Generated:
    return make_generated(finish_reason=finish_reason, text=text)


def gym_gold(dataset: str, index: int = 0, **config: object) -> str:
    return json.dumps({"dataset": dataset, "seed": 7, "index": index, "config": config})


@pytest.fixture(scope="module")
def gym() -> Iterator[ReasoningGymReward]:
    pytest.importorskip("reasoning_gym")
    reward = ReasoningGymReward(ReasoningGymRewardConfig())
    yield reward
    reward.close()


def gym_entry(dataset: str, index: int) -> str:
    reasoning_gym = pytest.importorskip("reasoning_gym")
    return str(reasoning_gym.create_dataset(dataset, size=index + 1, seed=7)[index]["answer"])


def test_reward_is_chosen_by_domain_with_a_fallback(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def always_half(prompt, response, gold): return 0.5\n")
    rewards = build_rewards(
        {"add": MathAnswerConfig(), "*": CustomConfig(path=f"{path}:always_half")}
    )
    adding, poem = (rewards.reward_of(domain) for domain in ("add", "poem"))
    assert adding.score(prompt("add", "8"), response("Answer: 8")).scorer == "math_answer"
    assert poem.score(prompt("poem", ""), response("roses")).reward == 0.5
    rewards.close()


def test_unknown_domain_is_an_error_that_names_the_known_ones() -> None:
    rewards = build_rewards({"add": MathAnswerConfig(), "story": MathAnswerConfig()})
    with pytest.raises(
        ValueError, match=r"'letters' with rewards for add, story; add it or a reward for '\*'"
    ):
        rewards.reward_of("letters")


def test_equal_configurations_share_one_reward() -> None:
    rewards = build_rewards(
        {
            "add": MathAnswerConfig(),
            "story": MathAnswerConfig(),
            "long": MathAnswerConfig(timeout_s=2),
        }
    )
    assert rewards.reward_of("add") is rewards.reward_of("story")
    assert rewards.reward_of("add") is not rewards.reward_of("long")


def test_aborted_response_gets_no_verdict() -> None:
    reward = build_rewards({"*": MathAnswerConfig()}).reward_of("add")
    score = score_with(reward, prompt("add", "8"), response("Answer: 8", "aborted"))
    assert (score.reward, score.outcome) == (None, Outcome.ABORTED)


def test_run_without_rewards_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one reward"):
        build_rewards({})


def test_unusable_gold_is_found_when_the_data_set_is_read() -> None:
    rewards = build_rewards({"add": MathAnswerConfig(), "gym": ReasoningGymRewardConfig()})
    rewards.check(prompt("add", "8"))
    for bad in (prompt("add", ""), prompt("gym", "not json"), prompt("gym", gym_gold("countdown"))):
        with pytest.raises(ValueError, match=r"repair|write|choose"):
            rewards.check(bad)


def test_configuration_is_chosen_by_kind_and_refuses_unknown_keys() -> None:
    assert ADAPTER.validate_python({"kind": "math_answer", "timeout_s": 2}) == MathAnswerConfig(
        timeout_s=2
    )
    for bad in (
        {"kind": "maths"},
        {"kind": "math_answer", "timeout": 2},
        {"kind": "custom"},
        {"kind": "math_answer", "timeout_s": 0},
    ):
        with pytest.raises(ValidationError):
            ADAPTER.validate_python(bad)


@pytest.mark.parametrize("dataset", sorted(ALLOWED_DATASETS))
def test_allowed_data_set_pays_its_own_answer_and_no_junk(
    gym: ReasoningGymReward, dataset: str
) -> None:
    answer = gym_entry(dataset, 3)
    assert (
        gym.score(
            prompt("gym", gym_gold(dataset, 3)), response(f"Work.\n<answer>{answer}</answer>")
        ).outcome
        is Outcome.OK
    )
    for junk in (
        "nan",
        "inf",
        "True",
        "[]",
        "9**9**9**9",
        "1e999999999",
        "0" * 500,
        "\udc80\0",
        "None",
    ):
        score = gym.score(prompt("gym", gym_gold(dataset, 3)), response(f"<answer>{junk}</answer>"))
        assert (score.reward, score.outcome) == (0.0, Outcome.WRONG), junk


@pytest.mark.parametrize(
    "dataset", ["countdown", "puzzle24", "n_queens", "complex_arithmetic", "no_such_data_set"]
)
def test_data_set_off_the_allow_list_is_refused_and_runs_no_code(
    gym: ReasoningGymReward, tmp_path: Path, dataset: str
) -> None:
    canary = tmp_path / "canary"
    with pytest.raises(ValueError, match=r"choose one of aiw, basic_arithmetic"):
        gym.score(
            prompt("gym", gym_gold(dataset)),
            response(f"Answer: __import__('os').system('touch {canary}')"),
        )
    assert not canary.exists()


def test_reasoning_gym_answer_is_found_in_a_box_or_on_an_answer_line(
    gym: ReasoningGymReward,
) -> None:
    answer = gym_entry("chain_sum", 5)
    for text in (f"\\boxed{{{answer}}}", f"So.\nAnswer: {answer}.", f"Answer: **{answer}**"):
        assert (
            gym.score(prompt("gym", gym_gold("chain_sum", 5)), response(text)).outcome is Outcome.OK
        )
    assert (
        gym.score(prompt("gym", gym_gold("chain_sum", 5)), response("who knows")).detail
        == "no_answer"
    )


def test_reasoning_gym_partial_credit_is_kept_only_when_asked(gym: ReasoningGymReward) -> None:
    answer = gym_entry("gcd", 0)
    text = f"<answer>{answer} it is</answer>"
    assert gym.score(prompt("gym", gym_gold("gcd")), response(text)).reward == 0.0
    partial = ReasoningGymReward(ReasoningGymRewardConfig(binary=False))
    score = partial.score(prompt("gym", gym_gold("gcd")), response(text))
    partial.close()
    assert score.reward is not None
    assert 0.0 < score.reward < 1.0
    assert score.outcome is Outcome.WRONG


def test_reasoning_gym_entry_depends_on_its_configuration(gym: ReasoningGymReward) -> None:
    answer = gym_entry("chain_sum", 2)
    assert score_entry("chain_sum", 7, 2, json.dumps({"min_digits": 1}), answer) == 1.0
    score = gym.score(
        prompt("gym", gym_gold("chain_sum", 2, min_terms=9, max_terms=9)),
        response(f"Answer: {answer}"),
    )
    assert score.outcome is Outcome.WRONG


def test_gold_that_cannot_be_generated_is_infra(gym: ReasoningGymReward) -> None:
    score = gym.score(prompt("gym", gym_gold("chain_sum", no_such_option=1)), response("Answer: 1"))
    assert (score.reward, score.outcome) == (None, Outcome.INFRA)
    assert "no_such_option" in score.detail
