"""The choice of a replica."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from record_factories import make_request

from artifacts.records import Request
from tasks.rounds.engine_pool import PendingRequests
from tasks.rounds.router import Router


def request(
    prompt: int, index: int = 0, num_prompt_tokens: int = 10, max_new_tokens: int = 100
) -> Request:
    return make_request(
        prompt_id=f"p{prompt}",
        index=index,
        prompt_tokens=(1,) * num_prompt_tokens,
        max_new_tokens=max_new_tokens,
    )


def test_requests_spread_evenly_and_the_same_calls_give_the_same_choices() -> None:
    first, second = Router(["a", "b", "c"]), Router(["a", "b", "c"])
    requests = [request(prompt, index) for prompt in range(9) for index in range(8)]
    chosen = [first.assign(one) for one in requests]
    assert chosen == [second.assign(one) for one in requests]
    assert set(Counter(chosen).values()) == {24}


def test_a_long_prompt_keeps_its_short_answers_together() -> None:
    router = Router(["a", "b"])
    chosen = [
        router.assign(request(0, index, num_prompt_tokens=5000, max_new_tokens=50))
        for index in range(4)
    ]
    assert chosen == ["a"] * 4
    assert router.assign(request(1)) == "b"


def test_a_finished_response_makes_room_on_its_replica() -> None:
    router = Router(["a", "b"])
    assert [router.assign(request(prompt)) for prompt in range(2)] == ["a", "b"]
    router.finish("p1:0")
    assert router.assign(request(2)) == "b"
    assert (router.num_running("a"), router.num_running("b")) == (1, 1)


def test_the_cost_of_a_replica_that_has_nothing_to_do_is_nothing() -> None:
    router = Router(["a"])
    requests = [request(place % 3, place, num_prompt_tokens=7 + place) for place in range(12)]
    kept = replace(request(3), kept_tokens=(1,) * 33)
    for one in (*requests, kept):
        router.assign(one)
    assert router.cost("a") == 13 * 1000 - 330 + 33 + 10 + (7 + 8 + 9)  # each prompt's prefill once
    for one in (kept, *reversed(requests)):
        router.finish(one.response_id)
    assert router.cost("a") == 0


def test_a_long_prompt_that_is_answered_counts_no_more() -> None:
    router = Router(["a", "b"])
    assert router.assign(request(0, num_prompt_tokens=5000)) == "a"
    assert router.assign(request(1)) == "b"
    router.finish("p0:0")
    assert router.assign(request(2)) == "a"


def test_a_replica_has_no_more_than_its_limit_and_the_next_request_waits() -> None:
    router = Router(["a"], max_running=2)
    router.add("b", max_running=1)
    assert [router.assign(request(prompt)) for prompt in range(4)] == ["a", "b", "a", None]
    assert (router.room("a"), router.room("b")) == (0, 0)
    router.finish("p1:0")
    assert router.assign(request(3)) == "b"
    router.add("c")
    assert router.room("c") is None
    assert [router.assign(request(prompt)) for prompt in range(4, 9)] == ["c"] * 5


def test_a_wanted_replica_is_taken_if_it_can_be_had() -> None:
    router = Router(["a"])
    router.add("b", max_running=1)
    assert router.assign(request(0), wanted="b") == "b"
    assert router.assign(request(1), wanted="b") == "a"
    assert router.assign(request(2), wanted="gone") == "a"


def test_a_replica_that_leaves_never_comes_back_and_one_that_is_retired_does() -> None:
    router = Router(["a", "b"])
    router.retire("a")
    router.leave("b")
    assert router.in_service == ("a",)
    router.leave("a")
    assert router.in_service == ()
    assert router.assign(request(0)) is None
    assert router.alive == ("a", "b") == router.leaving


def test_a_removed_replica_gives_back_what_it_owed_in_order() -> None:
    router = Router(["a", "b"])
    requests = [request(prompt) for prompt in range(4)]
    for one in requests:
        router.assign(one)
    assert router.remove("a") == (requests[0], requests[2])
    assert router.remove("a") == ()
    assert (router.alive, router.where("p0:0"), router.where("p1:0")) == (("b",), None, "b")
    assert router.running() == ("p1:0", "p3:0")


def test_a_retired_replica_takes_nothing_more_and_ends_what_it_has() -> None:
    router = Router(["a", "b"])
    first = request(0, 0)
    name = router.assign(first)
    router.retire(name)
    assert router.num_running(name) == 1
    assert router.requests(name) == (first,)
    (other,) = router.in_service
    assert {router.assign(request(0, index)) for index in range(1, 6)} == {other}
    assert set(router.alive) == {"a", "b"}


def test_a_retired_replica_comes_back_when_no_other_is_left() -> None:
    router = Router(["a", "b"])
    router.retire("a")
    router.remove("b")
    assert router.in_service == ("a",)
    assert router.assign(request(0, 0)) == "a"


def test_a_request_goes_to_no_replica_whose_weights_are_too_old_for_it() -> None:
    router = Router(["own"], max_running=1)
    router.add("elastic", version=3)
    new = [replace(request(place), oldest_version=4) for place in range(2)]
    assert router.assign(new[0], "elastic") == "own"
    assert router.assign(new[1]) is None, "the elastic worker lags, and the other has no room"
    assert router.assign(replace(request(9), oldest_version=3)) == "elastic"
    router.renew("elastic", 2)  # told late
    assert not router.may_run("elastic", new[1])
    router.renew("elastic", 4)
    assert router.assign(new[1]) == "elastic"


def test_what_waits_for_newer_weights_holds_up_nothing_else() -> None:
    line, asked = PendingRequests(), [replace(request(v), oldest_version=v) for v in (4, 2, 5, 3)]
    line.add(asked)
    taken: list[Request] = []

    def assign(asking: Request, wanted: str) -> str | None:
        return "elastic" if asking.oldest_version <= 3 else None

    while (given := line.next(assign)) is not None:
        taken.append(given[1])
    assert [each.oldest_version for each in taken] == [2, 3]
    assert [each.oldest_version for each in line._requests] == [4, 5]
