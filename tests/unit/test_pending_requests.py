"""What waits until an engine has room."""

from __future__ import annotations

from record_factories import make_request

from artifacts.records import Request
from tasks.rounds.engine_pool import PendingRequests

FIRST, SECOND, THIRD = (make_request(prompt_id=f"p{place}") for place in range(3))


def anywhere(request: Request, wanted: str) -> str | None:
    return wanted or "a"


def nowhere(request: Request, wanted: str) -> str | None:
    return None


def test_the_first_that_came_goes_first() -> None:
    line = PendingRequests()
    line.add([FIRST, SECOND])
    line.add([THIRD])
    assert line.response_ids == ("p0:0", "p1:0", "p2:0")
    assert [line.next(anywhere) for _ in range(4)] == [
        ("a", FIRST),
        ("a", SECOND),
        ("a", THIRD),
        None,
    ]


def test_nobody_overtakes_while_there_is_no_room() -> None:
    line = PendingRequests()
    line.add([FIRST, SECOND])
    assert line.next(nowhere) is None
    assert line.next(anywhere) == ("a", FIRST)
    assert len(line) == 1


def test_a_response_is_wanted_somewhere_until_it_went_once() -> None:
    line = PendingRequests()
    line.aim("p1:0", "b")
    line.add([FIRST, SECOND])
    line.next(nowhere)
    assert [line.next(anywhere), line.next(anywhere)] == [("a", FIRST), ("b", SECOND)]
    line.add([SECOND])
    assert line.next(anywhere) == ("a", SECOND)


def test_what_nobody_wants_any_more_waits_no_more() -> None:
    line = PendingRequests()
    line.add([FIRST, SECOND, THIRD])
    line.forget(["p1:0", "p9:0"])
    assert line.response_ids == ("p0:0", "p2:0")
