"""Who may generate for a run that it did not start: admitted, refused with a sentence, gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tasks.elastic.admission import MAX_FAILURES, WorkerAdmission
from tasks.elastic.worker_events import (
    Admit,
    Applicant,
    AskCard,
    CardRead,
    CardUnread,
    Dismiss,
    Drain,
    Emptied,
    Failed,
    Forget,
    GivenUp,
    Join,
    Leaves,
    Loaded,
    Looked,
    Refuse,
    Renew,
    Renewed,
)
from tests.unit.member_factories import APPLICANT, RULES, comes, present


def looked(at_s: float, *workers: str) -> Looked:
    return Looked(at_s=at_s, workers=frozenset(workers))


def test_a_worker_is_asked_once_who_it_is() -> None:
    members = WorkerAdmission(RULES)
    asked = [AskCard(address="a"), AskCard(address="b")]
    assert members.handle(looked(0, "b", "a")) == asked
    assert members.handle(looked(1, "a", "b")) == []
    assert members.handle(looked(2, "b")) == []
    assert members.handle(looked(3, "a", "b")) == [AskCard(address="a")]


def test_an_admitted_worker_joins_when_it_has_the_weights() -> None:
    members = WorkerAdmission(RULES)
    (admitted,) = comes(members, "a", at_s=5.0)
    assert isinstance(admitted, Admit)
    elastic_worker = admitted.elastic_worker
    assert (elastic_worker.name, elastic_worker.state, elastic_worker.since_s) == (
        "spot.g1",
        "building",
        5.0,
    )
    joined = replace(elastic_worker, state="present", version=3, renewed_s=7.0, joined_s=7.0)
    assert members.handle(Loaded(at_s=7.0, elastic_worker="spot.g1", version=3)) == [
        Join(elastic_worker=joined)
    ]


def test_later_weights_are_told_again() -> None:
    members = WorkerAdmission(RULES)
    elastic_worker = present(members, "a")
    (told,) = members.handle(Loaded(at_s=2.0, elastic_worker=elastic_worker.name, version=2))
    assert isinstance(told, Join)
    assert told.elastic_worker.version == 2


@pytest.mark.parametrize(
    ("applicant", "sentence"),
    [
        (replace(APPLICANT, knows_token=False), "the token must be the run's"),
        (replace(APPLICANT, versions={"rollflow": "0"}), "rollflow must be 1 as in the run, got 0"),
        (replace(APPLICANT, versions={"rollflow": "1"}), "vllm must be 2 as in the run, got none"),
        (replace(APPLICANT, name="here"), "the name must be free, here is here"),
        (replace(APPLICANT, lease_s=11.0), "at most the run's 10 s, got 11 s; give the worker"),
        (replace(APPLICANT, price_class="gold"), "one of reserved, spot, got 'gold'"),
    ],
)
def test_who_may_not_come_is_told_why(applicant: Applicant, sentence: str) -> None:
    members = WorkerAdmission(replace(RULES, price_classes=frozenset({"spot", "reserved"})))
    comes(members, "h", "here")
    (refused,) = members.handle(CardRead(at_s=0.0, address="a", applicant=applicant))
    assert isinstance(refused, Refuse)
    assert sentence in refused.reason
    assert len(members.elastic_workers) == 1


def test_an_elastic_worker_that_leaves_while_it_is_built_is_let_go() -> None:
    """Its loop would start it again if it ended as a failure does."""
    members = WorkerAdmission(RULES)
    comes(members, "a")
    gone, dismissed = members.handle(Leaves(worker="spot", reason="SIGTERM"))
    assert isinstance(gone, Forget)
    assert dismissed == Dismiss(address="a", reason="SIGTERM")
    assert members.here == ()


def test_a_price_class_becomes_part_of_a_metric_s_name() -> None:
    members = WorkerAdmission(RULES)
    applicant = replace(APPLICANT, price_class="p4d@eu")
    (refused,) = members.handle(CardRead(at_s=0.0, address="a", applicant=applicant))
    assert isinstance(refused, Refuse)
    assert "lower-case letters, digits and dashes, got 'p4d@eu'" in refused.reason


def test_there_are_no_more_elastic_workers_than_allowed() -> None:
    members = WorkerAdmission(RULES)
    comes(members, "a", "one")
    comes(members, "b", "two")
    (refused,) = comes(members, "c", "three")
    assert isinstance(refused, Refuse)
    assert "2 are here; raise elastic.max_workers" in refused.reason


def test_a_worker_that_cannot_say_who_it_is_is_refused() -> None:
    unread = CardUnread(address="a", reason="no such module", may_try_again=False)
    (refused,) = WorkerAdmission(RULES).handle(unread)
    assert refused == Refuse(address="a", reason="its card must be readable: no such module")


def test_a_worker_that_did_not_answer_may_come_again() -> None:
    unread = CardUnread(address="a", reason="TimeoutError", may_try_again=True)
    (renewed,) = WorkerAdmission(RULES).handle(unread)
    assert isinstance(renewed, Renew)


def test_a_process_that_has_held_an_engine_is_ended_and_not_refused() -> None:
    """Its loop starts another, which is admitted."""
    members = WorkerAdmission(RULES)
    used = replace(APPLICANT, has_served=True)
    (renewed,) = members.handle(CardRead(at_s=0.0, address="a", applicant=used))
    assert isinstance(renewed, Renew)
    assert isinstance(comes(members, "b")[0], Admit)


def test_a_worker_that_comes_back_is_another_elastic_worker() -> None:
    members = WorkerAdmission(RULES)
    present(members, "a")
    (gone, asked) = members.handle(looked(1, "b"))
    assert isinstance(gone, Forget)
    assert gone.elastic_worker.reason == "its worker is away"
    assert asked == AskCard(address="b")
    (admitted,) = comes(members, "b")
    assert isinstance(admitted, Admit)
    assert admitted.elastic_worker.name == "spot.g2"


def test_names_of_earlier_attempts_are_not_used_again() -> None:
    members = WorkerAdmission(RULES, {"spot": 4})
    (admitted,) = comes(members, "a")
    assert isinstance(admitted, Admit)
    assert admitted.elastic_worker.name == "spot.g5"


def test_a_silent_elastic_worker_is_gone_when_its_lease_is_over() -> None:
    members = WorkerAdmission(RULES)
    elastic_worker = present(members, "a")
    members.handle(Renewed(at_s=9.0, worker="spot"))
    assert members.handle(looked(10.0, "a")) == members.handle(looked(19.0, "a")) == []
    gone, renewed = members.handle(looked(19.5, "a"))
    assert isinstance(gone, Forget)
    assert (gone.elastic_worker.name, gone.elastic_worker.until_s) == (elastic_worker.name, 19.5)
    assert "lease of 10 s was not renewed" in gone.elastic_worker.reason
    assert renewed == Renew(address="a", reason=gone.elastic_worker.reason)
    assert members.handle(looked(21.0, "a")) == [], "it is not asked again before it ends"


@pytest.mark.parametrize("set_to_s", [5_000.0, -5_000.0])
def test_no_lease_is_over_because_a_clock_was_set_or_nobody_looked(set_to_s: float) -> None:
    members = WorkerAdmission(RULES)
    present(members, "a")
    assert members.handle(looked(set_to_s, "a")) == []
    members.handle(Renewed(at_s=set_to_s + 1.0, worker="spot"))
    assert members.handle(looked(set_to_s + 10.0, "a")) == []
    gone, _ = members.handle(looked(set_to_s + 11.5, "a"))
    assert isinstance(gone, Forget)


def test_an_engine_that_is_being_built_has_longer_than_the_lease() -> None:
    members = WorkerAdmission(RULES)
    members.handle(looked(0.0, "a"))
    comes(members, "a")
    assert members.handle(looked(59.0, "a")) == []
    gone, _ = members.handle(looked(61.0, "a"))
    assert isinstance(gone, Forget)
    assert gone.elastic_worker.reason == "it held no weights within 60 s, all its limits together"


def test_an_elastic_worker_that_leaves_is_drained_then_dismissed() -> None:
    members = WorkerAdmission(RULES)
    present(members, "a")
    (drained,) = members.handle(Leaves(worker="spot", reason="SIGTERM"))
    assert isinstance(drained, Drain)
    assert members.handle(Leaves(worker="spot", reason="SIGTERM")) == []
    assert members.handle(Loaded(at_s=1.0, elastic_worker="spot.g1", version=2)) == []
    gone, dismissed = members.handle(Emptied(elastic_worker="spot.g1"))
    assert isinstance(gone, Forget)
    assert gone.elastic_worker.reason == "SIGTERM"
    assert dismissed == Dismiss(address="a", reason="SIGTERM")
    assert members.handle(looked(2.0)) == []


def test_an_elastic_worker_that_leaves_and_is_away_is_gone_for_the_reason_it_gave() -> None:
    members = WorkerAdmission(RULES)
    present(members, "a")
    members.handle(Leaves(worker="spot", reason="spot notice"))
    (gone,) = members.handle(looked(1.0))
    assert isinstance(gone, Forget)
    assert gone.elastic_worker.reason == "spot notice"


def test_a_worker_whose_engines_fail_is_refused_in_the_end() -> None:
    members = WorkerAdmission(RULES)
    for number in range(MAX_FAILURES):
        members.handle(looked(number, f"a{number}"))
        (admitted,) = comes(members, f"a{number}")
        assert isinstance(admitted, Admit)
        gone, renewed = members.handle(
            Failed(elastic_worker=admitted.elastic_worker.name, reason="no memory")
        )
        assert isinstance(gone, Forget)
        assert renewed == Renew(address=f"a{number}", reason="no memory")
    (refused,) = comes(members, "b")
    assert isinstance(refused, Refuse)
    assert "failed 3 times in a row" in refused.reason


def test_what_is_away_has_not_failed() -> None:
    members = WorkerAdmission(RULES)
    for number in range(2 * MAX_FAILURES):
        present(members, f"a{number}")
        members.handle(looked(number + 0.5))
        assert (
            members.handle(Failed(elastic_worker=f"spot.g{number + 1}", reason="it is gone")) == []
        )
    assert isinstance(comes(members, "b")[0], Admit)


def test_an_elastic_worker_that_a_round_gave_up_begins_anew_and_comes_back_under_another_name() -> (
    None
):
    members = WorkerAdmission(RULES)
    elastic_worker = present(members, "a")
    given_up = GivenUp(elastic_worker=elastic_worker.name, reason="no answer for 60 s")
    gone, renewed = members.handle(given_up)
    assert isinstance(gone, Forget)
    assert renewed == Renew(address="a", reason="no answer for 60 s")
    assert members.handle(given_up) == [], "it is said twice"
    assert present(members, "b").name == "spot.g2"


def test_an_elastic_worker_that_leaves_and_is_given_up_is_dismissed() -> None:
    members = WorkerAdmission(RULES)
    elastic_worker = present(members, "a")
    members.handle(Leaves(worker="spot", reason="spot notice"))
    _, dismissed = members.handle(
        GivenUp(elastic_worker=elastic_worker.name, reason="no answer for 60 s")
    )
    assert dismissed == Dismiss(address="a", reason="spot notice")
    assert members.handle(GivenUp(elastic_worker="nobody", reason="no answer for 60 s")) == []
