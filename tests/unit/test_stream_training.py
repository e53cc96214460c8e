"""The stream trainer's policy: milestones, and device groups that are freed whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.scheduling.stream_training import (
    DeviceGroup,
    Moment,
    Reading,
    RemainingRoom,
    RunningRequest,
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
)

ON = StreamTrainerConfig(enabled=True, max_freed_share=1)
PAIRS = tuple(
    DeviceGroup(engines=(f"engine-{place}",), learners=(f"learner-{place}",)) for place in range(4)
)


def request(
    engine: str = "engine-0", prompt: int = 10, tokens: int = 5, bound: int = 100
) -> RunningRequest:
    return RunningRequest(
        engine=engine, prompt_tokens=prompt, num_tokens=tokens, max_new_tokens=bound
    )


def reading(
    num_accepted: int,
    running: Sequence[RunningRequest] = (),
    engines: int = 4,
    capacity: int = 1000,
) -> Reading:
    return Reading(
        num_accepted=num_accepted,
        capacity_tokens={f"engine-{place}": capacity for place in range(engines)},
        running=tuple(running),
    )


def freed_engines(decisions: Sequence[ScaleDown]) -> list[str]:
    return [engine for decision in decisions for engine in decision.engines]


def test_the_paper_s_milestones_are_the_default() -> None:
    assert ON.milestones == pytest.approx((0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5))
    assert StreamTrainerConfig().milestones == ()


def test_milestones_that_run_backwards_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"last_milestone must be >= first_milestone \(0.6\), got 0.5"
    ):
        StreamTrainerConfig(first_milestone=0.6)


def test_only_a_milestone_asks_for_a_reading() -> None:
    trainer = StreamTrainer(ON, PAIRS, accept_prompts=20)
    due = []
    for accepted in range(21):
        due.append(trainer.is_due(Moment(num_accepted=accepted)))
        trainer.handle(reading(accepted, [request(bound=10_000)] * 40))  # never fits
    assert [accepted for accepted, is_due in enumerate(due) if is_due] == [4, 5, 6, 7, 8, 9, 10]


def test_what_fits_one_engine_frees_all_others_at_once() -> None:
    trainer = StreamTrainer(ON, PAIRS, accept_prompts=10)
    decisions = trainer.handle(reading(2, [request("engine-2")]))
    assert decisions == [
        ScaleDown(engines=(f"engine-{place}",), learners=(f"learner-{place}",))
        for place in (0, 1, 3)
    ]


def test_half_of_the_engines_stay_unless_told_otherwise() -> None:
    trainer = StreamTrainer(StreamTrainerConfig(enabled=True), PAIRS, accept_prompts=10)
    assert freed_engines(trainer.handle(reading(2))) == ["engine-0", "engine-1"]
    assert trainer.handle(reading(4, engines=2)) == []


def test_a_disabled_trainer_frees_nothing() -> None:
    trainer = StreamTrainer(
        StreamTrainerConfig(),
        (*PAIRS, DeviceGroup(engines=(), learners=("learner-9",))),
        accept_prompts=10,
    )
    assert trainer.start() == []
    assert not trainer.is_due(Moment(num_accepted=10))
    assert trainer.handle(reading(10)) == []


def test_learners_without_an_engine_are_free_from_the_start() -> None:
    apart = DeviceGroup(engines=(), learners=("learner-4", "learner-5"))
    assert StreamTrainer(ON, (*PAIRS, apart), accept_prompts=10).start() == [
        ScaleDown(engines=(), learners=("learner-4", "learner-5"))
    ]


def test_an_engine_without_a_learner_is_not_freed() -> None:
    groups = (DeviceGroup(engines=("engine-0",), learners=()), *PAIRS[1:2])
    trainer = StreamTrainer(ON, groups, accept_prompts=10)
    assert freed_engines(trainer.handle(reading(5, engines=2))) == ["engine-1"]


def test_too_many_responses_for_the_remaining_batch_wait_for_a_later_milestone() -> None:
    config = StreamTrainerConfig(enabled=True, max_running_per_engine=3, max_freed_share=1)
    trainer = StreamTrainer(config, PAIRS[:2], accept_prompts=10)
    assert trainer.handle(reading(2, [request()] * 4, engines=2)) == []
    assert freed_engines(trainer.handle(reading(3, [request()] * 3, engines=2))) == ["engine-1"]


def test_by_devices_a_larger_engine_may_decode_more() -> None:
    limits = {"enabled": True, "max_running_per_engine": 3, "max_freed_share": 1}
    running = [request()] * 6
    for rule, freed in (("milestones", []), ("devices", ["engine-1"])):
        config = StreamTrainerConfig.model_validate({**limits, "rule": rule})
        trainer = StreamTrainer(config, PAIRS[:2], accept_prompts=10, devices_per_engine=2)
        assert freed_engines(trainer.handle(reading(2, running, engines=2))) == freed


def test_by_devices_all_but_one_are_freed_once_nothing_is_left_to_generate() -> None:
    config = StreamTrainerConfig(enabled=True, rule="devices")
    trainer = StreamTrainer(config, PAIRS, accept_prompts=10)
    busy = replace(reading(9, [request("engine-2")]), num_running=1)
    assert freed_engines(trainer.handle(busy)) == ["engine-0", "engine-1"]
    assert not trainer.is_due(Moment(num_accepted=9, num_running=1))
    idle = replace(reading(9), capacity_tokens={"engine-2": 1000, "engine-3": 1000})
    assert trainer.is_due(idle)
    assert freed_engines(trainer.handle(idle)) == ["engine-2"]
    assert not trainer.is_due(Moment(num_accepted=10))


def test_idle_engines_stay_for_elastic_workers_that_may_leave() -> None:
    trainer = StreamTrainer(
        StreamTrainerConfig(enabled=True, rule="devices"), PAIRS, accept_prompts=100
    )
    assert not trainer.is_due(Moment(num_accepted=1, num_elastic_workers=1))
    assert trainer.is_due(Moment(num_accepted=1))


def test_by_the_paper_s_rule_idle_engines_wait_for_a_milestone() -> None:
    assert not StreamTrainer(ON, PAIRS, accept_prompts=100).is_due(Moment(num_accepted=1))


def test_a_lost_engine_s_group_is_left_alone() -> None:
    trainer = StreamTrainer(ON, PAIRS[:3], accept_prompts=10)
    assert freed_engines(trainer.handle(reading(5, [request("engine-1")], engines=2))) == [
        "engine-0"
    ]


requests = st.builds(
    request,
    st.sampled_from([f"engine-{place}" for place in range(4)]),
    st.integers(1, 200),
    st.integers(0, 99),
    st.just(100),
)


@given(
    st.lists(st.lists(requests, max_size=30), min_size=1, max_size=8),
    st.integers(10, 3000),
    st.lists(st.integers(1, 150), max_size=10),
    st.integers(1, 20),
    st.floats(0, 1),
)
def test_whatever_is_freed_the_rest_has_room_and_no_group_is_split_or_freed_twice(
    rounds: list[list[RunningRequest]],
    capacity: int,
    lengths: list[int],
    max_running: int,
    max_freed: float,
) -> None:
    config = StreamTrainerConfig(
        enabled=True, max_running_per_engine=max_running, max_freed_share=max_freed
    )
    joined = DeviceGroup(engines=("engine-2", "engine-3"), learners=("learner-2", "learner-3"))
    groups = (*PAIRS[:2], joined)
    trainer = StreamTrainer(config, groups, accept_prompts=20, lengths=lengths)
    in_service = [f"engine-{place}" for place in range(4)]
    for accepted, running in enumerate(rounds, start=4):
        here = tuple(one for one in running if one.engine in in_service)
        decisions = trainer.handle(
            Reading(
                num_accepted=accepted,
                capacity_tokens=dict.fromkeys(in_service, capacity),
                running=here,
            )
        )
        for decision in decisions:
            assert DeviceGroup(engines=decision.engines, learners=decision.learners) in groups
            in_service = [engine for engine in in_service if engine not in decision.engines]
        assert len(in_service) >= max(1, (1 - max_freed) * 4)
        if decisions:
            room = RemainingRoom(max_running, config.kv_share, lengths)
            assert room.fits(here, [capacity] * len(in_service))


@given(st.lists(requests, max_size=30), st.integers(10, 3000), st.integers(0, 3000))
def test_more_room_never_frees_fewer_devices(
    running: list[RunningRequest], capacity: int, more: int
) -> None:
    less, greater = (
        StreamTrainer(ON, PAIRS, accept_prompts=20).handle(reading(10, running, capacity=room))
        for room in (capacity, capacity + more)
    )
    assert len(less) <= len(greater)
