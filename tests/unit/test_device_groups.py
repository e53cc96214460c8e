"""What can go over from generating to training by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.scheduling.stream_training import DeviceGroup, separable_groups


def test_device_groups_join_what_shares_a_device_an_engine_or_a_communication_group() -> None:
    engines = {
        "engine-0": frozenset({"cuda:0", "cuda:1"}),
        "engine-1": frozenset({"cuda:2"}),
        "engine-2": frozenset({"cuda:3"}),
    }
    learners = {f"learner-{place}": frozenset({f"cuda:{place}"}) for place in range(5)}
    alone = [(name,) for name in learners]
    assert separable_groups(engines, learners, alone) == (
        DeviceGroup(engines=("engine-0",), learners=("learner-0", "learner-1")),
        DeviceGroup(engines=("engine-1",), learners=("learner-2",)),
        DeviceGroup(engines=("engine-2",), learners=("learner-3",)),
        DeviceGroup(engines=(), learners=("learner-4",)),
    )
    tensor_parallel = [("learner-0", "learner-1"), ("learner-2", "learner-3"), ("learner-4",)]
    assert separable_groups(engines, learners, tensor_parallel)[1] == DeviceGroup(
        engines=("engine-1", "engine-2"), learners=("learner-2", "learner-3")
    )


@given(
    st.lists(
        st.frozensets(st.integers(0, 7).map("cuda:{}".format), min_size=1, max_size=3), max_size=4
    ),
    st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True), max_size=4),
)
def test_no_device_group_cuts_an_engine_or_a_communication_group(
    engines: list[frozenset[str]], together: list[list[int]]
) -> None:
    learners = {f"learner-{place}": frozenset({f"cuda:{place}"}) for place in range(8)}
    named = {f"engine-{place}": devices for place, devices in enumerate(engines)}
    communication = [[f"learner-{place}" for place in places] for places in together]
    groups = separable_groups(named, learners, communication)
    assert sorted(name for group in groups for name in group.learners) == sorted(learners)
    assert sorted(name for group in groups for name in group.engines) == sorted(named)
    for names in communication:
        assert sum(bool(set(names) & set(group.learners)) for group in groups) == 1
    for group in groups:
        devices = frozenset[str]().union(*(learners[name] for name in group.learners))
        assert all(named[name] <= devices for name in group.engines)
