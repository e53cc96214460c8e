"""What a configuration must have whose devices leave the rest of a round to elastic workers."""

from __future__ import annotations

import pytest

from flows.config.overlay import overlay
from flows.config.run_config import RunConfig

SEEDS: dict[str, object] = {"elastic": {"enabled": True}, "seeding": {"enabled": True}}


def config_of(preset: str, **given: object) -> RunConfig:
    return RunConfig.model_validate(overlay({"preset": preset, **SEEDS}, given))


@pytest.mark.parametrize("preset", ["elastic", "tiny-elastic", "tiny", "tiny-sync", "smollm2"])
def test_seeding_goes_with_every_policy_whose_steps_train_their_own_round(preset: str) -> None:
    assert config_of(preset).seeding.enabled


def test_the_elastic_presets_seed_and_others_do_not() -> None:
    asked = {
        name: RunConfig.model_validate({"preset": name})
        for name in ("elastic", "tiny-elastic", "tiny")
    }
    seeding = {name: config.seeding.enabled for name, config in asked.items()}
    assert seeding == {"elastic": True, "tiny-elastic": True, "tiny": False}


@pytest.mark.parametrize(
    ("preset", "given", "told"),
    [
        (
            "tiny",
            {"elastic": {"enabled": False}},
            "needs elastic.enabled: only elastic workers go on",
        ),
        ("tiny-async", {}, "needs rounds that carry nothing into the next one, scheduling.kind"),
        (
            "tiny-sync",
            {"scheduling": {"reward_timing": "after_rollout"}},
            "needs scheduling.reward_timing 'per_response'",
        ),
        ("tiny", {"learner": {"passes": 2}}, "needs steps of one update"),
        ("tiny", {"learner": {"parameters": "sharded"}}, "parameters=replicated, got 'sharded'"),
        (
            "tiny-sync",
            {"cluster": {"roles": "rollout: 0, learner: 1"}},
            "needs a device that generates and trains, got roles 'rollout: 0, learner: 1'",
        ),
        (
            "tiny-sync",
            {"learner": {"advantage": {"kind": "reinforce_plus_plus"}}},
            "needs advantages that a group has by itself",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    preset: str, given: dict[str, object], told: str
) -> None:
    with pytest.raises(ValueError, match=r"seeding\.enabled") as refused:
        config_of(preset, **given)
    assert told in str(refused.value)
