"""Whatever workers do in whatever order, the books on elastic workers are right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tasks.elastic.admission import WorkerAdmission
from tasks.elastic.worker_events import (
    Admit,
    CardRead,
    CardUnread,
    Dismiss,
    Drain,
    Emptied,
    Failed,
    Forget,
    Join,
    Leaves,
    Loaded,
    Looked,
    MemberDecision,
    Refuse,
    Renew,
    Renewed,
    WorkerEvent,
)
from tests.unit.member_factories import APPLICANT, RULES

NAMES = ("one", "two", "three")
ADDRESSES = tuple("abcdef")
ELASTIC_WORKERS = tuple(f"{name}.g{number}" for name in NAMES for number in (1, 2, 3))
CARDS = st.builds(
    replace,
    st.just(APPLICANT),
    name=st.sampled_from(NAMES),
    knows_token=st.sampled_from((True, True, True, False)),
    has_served=st.sampled_from((False, False, False, True)),
)
EVENTS = st.one_of(
    st.builds(Looked, at_s=st.just(0.0), workers=st.frozensets(st.sampled_from(ADDRESSES))),
    st.builds(CardRead, at_s=st.just(0.0), address=st.sampled_from(ADDRESSES), applicant=CARDS),
    st.builds(
        CardUnread,
        address=st.sampled_from(ADDRESSES),
        reason=st.just("no module"),
        may_try_again=st.booleans(),
    ),
    st.builds(Renewed, at_s=st.just(0.0), worker=st.sampled_from(NAMES)),
    st.builds(Leaves, worker=st.sampled_from(NAMES), reason=st.just("SIGTERM")),
    st.builds(
        Loaded,
        at_s=st.just(0.0),
        elastic_worker=st.sampled_from(ELASTIC_WORKERS),
        version=st.integers(0, 3),
    ),
    st.builds(Failed, elastic_worker=st.sampled_from(ELASTIC_WORKERS), reason=st.just("no memory")),
    st.builds(Emptied, elastic_worker=st.sampled_from(ELASTIC_WORKERS)),
)
HISTORIES = st.lists(st.tuples(EVENTS, st.floats(0.0, 8.0)), max_size=60)


def at(event: WorkerEvent, now_s: float) -> WorkerEvent:
    """The event, on a clock that goes forward."""
    return replace(event, at_s=now_s) if hasattr(event, "at_s") else event


def told(members: WorkerAdmission, event: WorkerEvent) -> list[MemberDecision]:
    """What follows; the keeper only speaks of elastic workers that were admitted."""
    about = getattr(event, "elastic_worker", None)
    known = {elastic_worker.name for elastic_worker in members.elastic_workers}
    return [] if about is not None and about not in known else members.handle(event)


@given(HISTORIES)
def test_elastic_workers_come_once_and_go_once(history: list[tuple[WorkerEvent, float]]) -> None:
    members, now_s = WorkerAdmission(RULES), 0.0
    admitted, gone, drained = Counter[str](), Counter[str](), set[str]()
    for event, later_s in history:
        now_s += later_s
        for decision in told(members, at(event, now_s)):
            match decision:
                case Admit(elastic_worker=elastic_worker):
                    admitted[elastic_worker.name] += 1
                case Join(elastic_worker=elastic_worker):
                    assert elastic_worker.name not in gone
                    assert elastic_worker.name not in drained
                case Drain(elastic_worker=elastic_worker):
                    assert elastic_worker.name not in gone
                    drained.add(elastic_worker.name)
                case Forget(elastic_worker=elastic_worker):
                    gone[elastic_worker.name] += 1
                    assert elastic_worker.reason
                case Refuse(reason=reason) | Dismiss(reason=reason) | Renew(reason=reason):
                    assert reason
        assert len(members.here) <= RULES.max_workers
        workers = [elastic_worker.worker for elastic_worker in members.here]
        assert len(workers) == len(set(workers)), "a name is in use once"
    assert set(admitted.values()) <= {1}, "no name is used twice"
    assert set(gone.values()) <= {1}
    assert gone.keys() == {
        elastic_worker.name
        for elastic_worker in members.elastic_workers
        if elastic_worker.state == "gone"
    }
    assert admitted.keys() == {elastic_worker.name for elastic_worker in members.elastic_workers}


@given(HISTORIES)
def test_after_a_look_everybody_is_there_and_has_a_lease(
    history: list[tuple[WorkerEvent, float]],
) -> None:
    members, now_s = WorkerAdmission(RULES), 0.0
    for event, later_s in history:
        now_s += later_s
        told(members, at(event, now_s))
        if not isinstance(event, Looked):
            continue
        for elastic_worker in members.here:
            assert elastic_worker.address in event.workers
            waits_from_s = (
                elastic_worker.since_s
                if elastic_worker.state == "building"
                else elastic_worker.renewed_s
            )
            bound_s = RULES.ready_s if elastic_worker.state == "building" else RULES.lease_s
            assert now_s - waits_from_s <= bound_s
