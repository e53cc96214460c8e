"""Who pulls a version from whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.elastic.weights.held_version import FanOut

NAMES = "abcdef"


def url(name: str) -> str:
    return f"http://{name}:1"


def asked_by(fan_out: FanOut, names: str) -> list[str | None]:
    return [fan_out.source(name, url(name)) for name in names]


def test_those_who_ask_at_once_form_a_chain() -> None:
    assert asked_by(FanOut(), "abcd") == [None, url("a"), url("b"), url("c")]


def test_the_origin_serves_again_when_its_link_is_free() -> None:
    fan_out = FanOut()
    asked_by(fan_out, "ab")
    fan_out.complete("a")
    assert asked_by(fan_out, "c") == [None]


def test_who_is_complete_serves_before_who_is_not() -> None:
    fan_out = FanOut()
    asked_by(fan_out, "ab")
    fan_out.complete("b")
    fan_out.complete("a")
    assert asked_by(fan_out, "cdef") == [None, url("a"), url("b"), url("c")]


def test_a_peer_that_failed_serves_nobody_until_it_asks_again() -> None:
    fan_out = FanOut()
    asked_by(fan_out, "abc")
    assert fan_out.source("b", url("b"), [url("a")]) is None  # nobody is behind the dead one
    assert fan_out.source("a", url("a")) == url("c")


def test_a_receiver_that_left_is_no_source() -> None:
    fan_out = FanOut()
    asked_by(fan_out, "ab")
    fan_out.forget("a")
    assert asked_by(fan_out, "cd") == [None, url("b")]


def test_a_receiver_that_serves_nobody_on_is_no_source() -> None:
    fan_out = FanOut()
    assert fan_out.source("a", None) is None
    assert fan_out.source("b", None) is None
    assert fan_out.source("c", url("c")) is None


def test_who_is_behind_a_receiver_is_never_its_source() -> None:
    fan_out = FanOut()
    asked_by(fan_out, "abc")
    assert fan_out.source("a", url("a")) is None
    asked_by(fan_out, "d")
    assert fan_out.source("b", url("b"), [url("a")]) is None  # c and d are behind b


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from(["ask", "complete", "forget"]),
            st.lists(st.sampled_from(NAMES), max_size=2),
        ),
        max_size=40,
    )
)
def test_nobody_ever_waits_for_itself(
    happenings: list[tuple[str, str, list[str]]],
) -> None:
    fan_out = FanOut()
    sources: dict[str, str | None] = {}
    for name, what, failed in happenings:
        if what == "ask":
            sources[name] = fan_out.source(name, url(name), [url(other) for other in failed])
        elif what == "complete":
            fan_out.complete(name)
            sources.pop(name, None)
        else:
            fan_out.forget(name)
            sources.pop(name, None)
        for start in sources:
            seen, at = [start], sources[start]
            while at is not None and (peer := at[len("http://")]) in sources:
                assert peer not in seen
                seen.append(peer)
                at = sources[peer]
