"""Who may generate for a run that it did not start: admitted, refused with a sentence, gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tasks.elastic.admission import MAX_FAILURES, WorkerAdmission
from tasks.elastic.worker_events import (
    Admit,
    CardUnread,
    Drain,
    Emptied,
    EndProcess,
    Failed,
    Forget,
    GivenUp,
    Join,
    Leaves,
    Loaded,
    Polled,
    ReadCard,
    Renewed,
)
from tests.unit.worker_factories import RULES, comes, present, shown_with


def polled(at_s: float, *workers: str) -> Polled:
    return Polled(at_s=at_s, addresses=frozenset(workers))


def test_a_worker_is_asked_once_who_it_is() -> None:
    admission = WorkerAdmission(RULES)
    asked = [ReadCard(address="a"), ReadCard(address="b")]
    assert admission.handle(polled(0, "b", "a")) == asked
    assert admission.handle(polled(1, "a", "b")) == []
    assert admission.handle(polled(2, "b")) == []
    assert admission.handle(polled(3, "a", "b")) == [ReadCard(address="a")]


def test_an_admitted_worker_joins_when_it_has_the_weights() -> None:
    admission = WorkerAdmission(RULES)
    (admitted,) = comes(admission, "a", at_s=5.0)
    assert isinstance(admitted, Admit)
    worker = admitted.worker
    assert (worker.name, worker.state, worker.since_s) == (
        "spot.g1",
        "building",
        5.0,
    )
    joined = replace(worker, state="present", version=3, renewed_s=7.0, joined_s=7.0)
    assert admission.handle(Loaded(at_s=7.0, name="spot.g1", version=3)) == [Join(worker=joined)]


def test_later_weights_are_told_again() -> None:
    admission = WorkerAdmission(RULES)
    worker = present(admission, "a")
    (told,) = admission.handle(Loaded(at_s=2.0, name=worker.name, version=2))
    assert isinstance(told, Join)
    assert told.worker.version == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"knows_token": False}, "the token must be the run's"),
        ({"rollflow": "0"}, "rollflow must be 1 as in the run, got 0"),
        ({"vllm": ""}, "vllm must be 2 as in the run, got none"),
        ({"name": "here"}, "the name must be free, here is here"),
        ({"lease_s": 11.0}, "at most the run's 10 s, got 11 s; give the worker"),
        ({"price_class": "gold"}, "one of reserved, spot, got 'gold'"),
    ],
)
def test_who_may_not_come_is_told_why(changes: dict[str, object], sentence: str) -> None:
    admission = WorkerAdmission(replace(RULES, price_classes=frozenset({"spot", "reserved"})))
    comes(admission, "h", "here")
    (refused,) = admission.handle(shown_with(changes))
    assert isinstance(refused, EndProcess)
    assert refused.how == "refuse"
    assert sentence in refused.reason
    assert len(admission.workers) == 1


def test_an_elastic_worker_that_leaves_while_it_is_built_is_let_go() -> None:
    """Its loop would start it again if it ended as a failure does."""
    admission = WorkerAdmission(RULES)
    comes(admission, "a")
    gone, dismissed = admission.handle(Leaves(dask_name="spot", reason="SIGTERM"))
    assert isinstance(gone, Forget)
    assert dismissed == EndProcess(how="dismiss", address="a", reason="SIGTERM")
    assert admission.here == ()


def test_a_price_class_becomes_part_of_a_metric_s_name() -> None:
    admission = WorkerAdmission(RULES)
    (refused,) = admission.handle(shown_with({"price_class": "p4d@eu"}))
    assert isinstance(refused, EndProcess)
    assert refused.how == "refuse"
    assert "lower-case letters, digits and dashes, got 'p4d@eu'" in refused.reason


def test_there_are_no_more_elastic_workers_than_allowed() -> None:
    admission = WorkerAdmission(RULES)
    comes(admission, "a", "one")
    comes(admission, "b", "two")
    (refused,) = comes(admission, "c", "three")
    assert isinstance(refused, EndProcess)
    assert refused.how == "refuse"
    assert "2 are here; raise elastic.max_workers" in refused.reason


def test_a_worker_that_cannot_say_who_it_is_is_refused() -> None:
    unread = CardUnread(address="a", reason="no such module", may_try_again=False)
    (refused,) = WorkerAdmission(RULES).handle(unread)
    assert refused == EndProcess(
        how="refuse", address="a", reason="its card must be readable: no such module"
    )


def test_a_worker_that_did_not_answer_may_come_again() -> None:
    unread = CardUnread(address="a", reason="TimeoutError", may_try_again=True)
    (renewed,) = WorkerAdmission(RULES).handle(unread)
    assert isinstance(renewed, EndProcess)
    assert renewed.how == "renew"


def test_a_process_that_has_held_an_engine_is_ended_and_not_refused() -> None:
    """Its loop starts another, which is admitted."""
    admission = WorkerAdmission(RULES)
    (renewed,) = admission.handle(shown_with({"has_served": True}))
    assert isinstance(renewed, EndProcess)
    assert renewed.how == "renew"
    assert isinstance(comes(admission, "b")[0], Admit)


def test_a_worker_that_comes_back_is_another_elastic_worker() -> None:
    admission = WorkerAdmission(RULES)
    present(admission, "a")
    (gone, asked) = admission.handle(polled(1, "b"))
    assert isinstance(gone, Forget)
    assert gone.worker.reason == "its worker is away"
    assert asked == ReadCard(address="b")
    (admitted,) = comes(admission, "b")
    assert isinstance(admitted, Admit)
    assert admitted.worker.name == "spot.g2"


def test_names_of_earlier_attempts_are_not_used_again() -> None:
    admission = WorkerAdmission(RULES, {"spot": 4})
    (admitted,) = comes(admission, "a")
    assert isinstance(admitted, Admit)
    assert admitted.worker.name == "spot.g5"


def test_a_silent_elastic_worker_is_gone_when_its_lease_is_over() -> None:
    admission = WorkerAdmission(RULES)
    worker = present(admission, "a")
    admission.handle(Renewed(at_s=9.0, dask_name="spot"))
    assert admission.handle(polled(10.0, "a")) == admission.handle(polled(19.0, "a")) == []
    gone, renewed = admission.handle(polled(19.5, "a"))
    assert isinstance(gone, Forget)
    assert (gone.worker.name, gone.worker.until_s) == (worker.name, 19.5)
    assert "lease of 10 s was not renewed" in gone.worker.reason
    assert renewed == EndProcess(how="renew", address="a", reason=gone.worker.reason)
    assert admission.handle(polled(21.0, "a")) == [], "it is not asked again before it ends"


@pytest.mark.parametrize("set_to_s", [5_000.0, -5_000.0])
def test_no_lease_is_over_because_a_clock_was_set_or_nobody_polled(set_to_s: float) -> None:
    admission = WorkerAdmission(RULES)
    present(admission, "a")
    assert admission.handle(polled(set_to_s, "a")) == []
    admission.handle(Renewed(at_s=set_to_s + 1.0, dask_name="spot"))
    assert admission.handle(polled(set_to_s + 10.0, "a")) == []
    gone, _ = admission.handle(polled(set_to_s + 11.5, "a"))
    assert isinstance(gone, Forget)


def test_an_engine_that_is_being_built_has_longer_than_the_lease() -> None:
    admission = WorkerAdmission(RULES)
    admission.handle(polled(0.0, "a"))
    comes(admission, "a")
    assert admission.handle(polled(59.0, "a")) == []
    gone, _ = admission.handle(polled(61.0, "a"))
    assert isinstance(gone, Forget)
    assert gone.worker.reason == "it held no weights within 60 s, all its limits together"


def test_an_elastic_worker_that_leaves_is_drained_then_dismissed() -> None:
    admission = WorkerAdmission(RULES)
    present(admission, "a")
    (drained,) = admission.handle(Leaves(dask_name="spot", reason="SIGTERM"))
    assert isinstance(drained, Drain)
    assert admission.handle(Leaves(dask_name="spot", reason="SIGTERM")) == []
    assert admission.handle(Loaded(at_s=1.0, name="spot.g1", version=2)) == []
    gone, dismissed = admission.handle(Emptied(name="spot.g1"))
    assert isinstance(gone, Forget)
    assert gone.worker.reason == "SIGTERM"
    assert dismissed == EndProcess(how="dismiss", address="a", reason="SIGTERM")
    assert admission.handle(polled(2.0)) == []


def test_an_elastic_worker_that_leaves_and_is_away_is_gone_for_the_reason_it_gave() -> None:
    admission = WorkerAdmission(RULES)
    present(admission, "a")
    admission.handle(Leaves(dask_name="spot", reason="spot notice"))
    (gone,) = admission.handle(polled(1.0))
    assert isinstance(gone, Forget)
    assert gone.worker.reason == "spot notice"


def test_a_worker_whose_engines_fail_is_refused_in_the_end() -> None:
    admission = WorkerAdmission(RULES)
    for number in range(MAX_FAILURES):
        admission.handle(polled(number, f"a{number}"))
        (admitted,) = comes(admission, f"a{number}")
        assert isinstance(admitted, Admit)
        gone, renewed = admission.handle(Failed(name=admitted.worker.name, reason="no memory"))
        assert isinstance(gone, Forget)
        assert renewed == EndProcess(how="renew", address=f"a{number}", reason="no memory")
    (refused,) = comes(admission, "b")
    assert isinstance(refused, EndProcess)
    assert refused.how == "refuse"
    assert "failed 3 times in a row" in refused.reason


def test_what_is_away_has_not_failed() -> None:
    admission = WorkerAdmission(RULES)
    for number in range(2 * MAX_FAILURES):
        present(admission, f"a{number}")
        admission.handle(polled(number + 0.5))
        assert admission.handle(Failed(name=f"spot.g{number + 1}", reason="it is gone")) == []
    assert isinstance(comes(admission, "b")[0], Admit)


def test_an_elastic_worker_that_a_round_gave_up_begins_anew_and_comes_back_under_another_name() -> (
    None
):
    admission = WorkerAdmission(RULES)
    worker = present(admission, "a")
    given_up = GivenUp(name=worker.name, reason="no answer for 60 s")
    gone, renewed = admission.handle(given_up)
    assert isinstance(gone, Forget)
    assert renewed == EndProcess(how="renew", address="a", reason="no answer for 60 s")
    assert admission.handle(given_up) == [], "it is said twice"
    assert present(admission, "b").name == "spot.g2"


def test_an_elastic_worker_that_leaves_and_is_given_up_is_dismissed() -> None:
    admission = WorkerAdmission(RULES)
    worker = present(admission, "a")
    admission.handle(Leaves(dask_name="spot", reason="spot notice"))
    _, dismissed = admission.handle(GivenUp(name=worker.name, reason="no answer for 60 s"))
    assert dismissed == EndProcess(how="dismiss", address="a", reason="spot notice")
    assert admission.handle(GivenUp(name="nobody", reason="no answer for 60 s")) == []
