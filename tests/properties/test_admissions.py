"""Whatever workers do in whatever order, the states of elastic workers are right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tasks.elastic.admission import WorkerAdmission
from tasks.elastic.worker_events import (
    AdmissionDecision,
    Admit,
    CardUnread,
    Drain,
    Emptied,
    EndProcess,
    Failed,
    Forget,
    Join,
    Leaves,
    Loaded,
    Polled,
    Renewed,
    WorkerEvent,
)
from tests.unit.worker_factories import RULES, shown_with

NAMES = ("one", "two", "three")
ADDRESSES = tuple("abcdef")
ELASTIC_WORKERS = tuple(f"{name}.g{number}" for name in NAMES for number in (1, 2, 3))
CARDS = st.builds(
    shown_with,
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(NAMES),
            "knows_token": st.sampled_from((True, True, True, False)),
            "has_served": st.sampled_from((False, False, False, True)),
        }
    ),
    address=st.sampled_from(ADDRESSES),
)
EVENTS = st.one_of(
    st.builds(Polled, at_s=st.just(0.0), addresses=st.frozensets(st.sampled_from(ADDRESSES))),
    CARDS,
    st.builds(
        CardUnread,
        address=st.sampled_from(ADDRESSES),
        reason=st.just("no module"),
        may_try_again=st.booleans(),
    ),
    st.builds(Renewed, at_s=st.just(0.0), dask_name=st.sampled_from(NAMES)),
    st.builds(Leaves, dask_name=st.sampled_from(NAMES), reason=st.just("SIGTERM")),
    st.builds(
        Loaded,
        at_s=st.just(0.0),
        name=st.sampled_from(ELASTIC_WORKERS),
        version=st.integers(0, 3),
    ),
    st.builds(Failed, name=st.sampled_from(ELASTIC_WORKERS), reason=st.just("no memory")),
    st.builds(Emptied, name=st.sampled_from(ELASTIC_WORKERS)),
)
HISTORIES = st.lists(st.tuples(EVENTS, st.floats(0.0, 8.0)), max_size=60)


def at(event: WorkerEvent, now_s: float) -> WorkerEvent:
    """The event, on a clock that goes forward."""
    return replace(event, at_s=now_s) if hasattr(event, "at_s") else event


def decisions_of(admission: WorkerAdmission, event: WorkerEvent) -> list[AdmissionDecision]:
    """What follows; the keeper only speaks of elastic workers that were admitted."""
    about = getattr(event, "name", None)
    known = {worker.name for worker in admission.workers}
    return [] if about is not None and about not in known else admission.handle(event)


@given(HISTORIES)
def test_elastic_workers_come_once_and_go_once(history: list[tuple[WorkerEvent, float]]) -> None:
    admission, now_s = WorkerAdmission(RULES), 0.0
    admitted, gone, drained = Counter[str](), Counter[str](), set[str]()
    for event, later_s in history:
        now_s += later_s
        for decision in decisions_of(admission, at(event, now_s)):
            match decision:
                case Admit(worker=worker):
                    admitted[worker.name] += 1
                case Join(worker=worker):
                    assert worker.name not in gone
                    assert worker.name not in drained
                case Drain(worker=worker):
                    assert worker.name not in gone
                    drained.add(worker.name)
                case Forget(worker=worker):
                    gone[worker.name] += 1
                    assert worker.reason
                case EndProcess(reason=reason):
                    assert reason
        assert len(admission.here) <= RULES.max_workers
        workers = [worker.dask_name for worker in admission.here]
        assert len(workers) == len(set(workers)), "a name is in use once"
    assert set(admitted.values()) <= {1}, "no name is used twice"
    assert set(gone.values()) <= {1}
    assert gone.keys() == {worker.name for worker in admission.workers if worker.state == "gone"}
    assert admitted.keys() == {worker.name for worker in admission.workers}


@given(HISTORIES)
def test_after_a_poll_everybody_is_there_and_has_a_lease(
    history: list[tuple[WorkerEvent, float]],
) -> None:
    admission, now_s = WorkerAdmission(RULES), 0.0
    for event, later_s in history:
        now_s += later_s
        decisions_of(admission, at(event, now_s))
        if not isinstance(event, Polled):
            continue
        for worker in admission.here:
            assert worker.address in event.addresses
            waits_from_s = worker.since_s if worker.state == "building" else worker.renewed_s
            bound_s = RULES.ready_s if worker.state == "building" else RULES.lease_s
            assert now_s - waits_from_s <= bound_s
