"""Whatever bytes a program writes as its reply: a plain value or "forged", by bounded work."""

from __future__ import annotations

import json
import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from artifacts.datasets.plain_values import MAX_DEPTH, check, from_json, same, to_json
from tasks.rewards.programs.sandbox.case_runner import ENDINGS
from tasks.rewards.programs.sandbox.messages import MAX_REPLY_BYTES, CommandReply, read_reply

Json = Any  # Any: JSON, forged or not

numbers = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 2**61 - 1, 1e308])
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5)
tags = st.sampled_from(
    ["dict", "set", "frozenset", "tuple", "bytes", "bytearray", "complex", "odd"],
)
contents = st.recursive(
    scalars | st.sampled_from(["00", "0", "zz", "0 0", "AB"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tags, inner, max_size=2),
    max_leaves=12,
)
names = st.sampled_from(
    ["value", "raised", "message", "ask", "arguments", "named", "memory", "exited", "unconfined"],
)
messages = st.dictionaries(
    names,
    contents | st.dictionaries(names, contents, max_size=2),
    max_size=3,
)
bodies = st.binary(max_size=60) | (messages | contents).map(
    lambda message: json.dumps(message).encode(),
)


def forged_message(content: str) -> bytes:
    return f'{{"value": {content}}}'.encode()


@given(bodies)
@example(b"")
@example(b'{"unconfined": "x"}')
@example(b'{"value": 1, "value": 2}')
@example(b'{"value": 1, "verdict": "pass"}')
@example(b'{"memory": 1}')
@example(b'{"value": "\\ud800"}')
@example(b"\xff\xfe{\x00")
@example(forged_message("9" * 5000))
@example(forged_message(f'{{"complex": [{10**400}, 0.0]}}'))
@example(forged_message('{"set": [[1]]}'))
@example(forged_message('{"dict": [[{"set": []}, 1]]}'))
@example(forged_message('{"tuple": {"set": []}}'))
@settings(max_examples=500)
def test_any_bytes_are_a_plain_value_or_forged(body: bytes) -> None:
    reply = read_reply(body)
    assert reply.kind in ENDINGS or reply.kind == "value"
    if reply.kind == "value":
        value = from_json(reply.value)  # which may not fail
        assert same(to_json(value), reply.value) or len(str(reply.value)) > len(str(to_json(value)))
    if reply.kind == "ask":
        assert isinstance(reply.value, dict)
        from_json(reply.value["named"])


@given(contents, contents)
def test_comparing_a_forged_value_never_fails(expected: Json, given_value: Json) -> None:
    try:
        expected = to_json(from_json(expected))
        check(given_value)
    except ValueError:
        return
    for tolerance in (0.0, 0.5):
        assert same(expected, given_value, tolerance) in (True, False)
    assert same(expected, expected)


COLLIDING = [number * (2**61 - 1) for number in range(1, 7000)]  # every hash of these is 0
HOSTILE = {
    "keys that collide": json.dumps({"value": {"dict": [[number, 0] for number in COLLIDING]}}),
    "elements that collide": json.dumps({"value": {"set": COLLIDING}}),
    "elements that collide below": json.dumps({"value": {"set": [{"frozenset": COLLIDING}]}}),
    "tuples that collide": json.dumps(
        {"value": {"set": [{"tuple": [number]} for number in COLLIDING]}},
    ),
    "nesting": '{"value": ' + "[" * (MAX_REPLY_BYTES - 100),
    "nested objects": '{"value": ' + '{"set":' * (MAX_REPLY_BYTES // 8),
    "closed nesting": '{"value": ' + "[" * 5000 + "]" * 5000 + "}",
    "many names": json.dumps({str(number): 0 for number in range(20_000)}),
    "many values": '{"value": [' + "[]," * 80_000 + "[]]}",
    "many objects": '{"value": [' + '{"set":[]},' * 20_000 + '{"set":[]}]}',
    "long numbers": '{"value": [' + ("9" * 4300 + ",") * 59 + "0]}",
    "long float": '{"value": 0.' + "1" * (MAX_REPLY_BYTES - 100) + "}",
    "escapes": '{"value": "' + "\\u0000" * 40_000 + '"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reading_and_comparing_takes_work_and_memory_in_proportion_to_the_bytes(name: str) -> None:
    body = HOSTILE[name].encode()
    assert len(body) <= MAX_REPLY_BYTES
    tracemalloc.start()
    num_steps = steps_of(body)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_steps < 10 * len(body) + 1000
    assert peak_bytes < 200 * len(body) + (1 << 20)


def steps_of(body: bytes) -> int:
    """Calls, of Python and of C, that reading a reply and comparing it with itself takes."""
    num_steps = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num_steps
        num_steps += 1

    sys.setprofile(count)
    try:
        reply = read_reply(body)
        if reply.kind == "value":
            assert same(reply.value, reply.value)
    finally:
        sys.setprofile(None)
    return num_steps


@pytest.mark.parametrize(
    "name",
    ["keys that collide", "elements that collide", "tuples that collide"],
)
def test_what_collides_stays_a_list_until_it_is_in_a_sandbox(name: str) -> None:
    reply = read_reply(HOSTILE[name].encode())
    assert isinstance(reply.value, dict)
    (content,) = reply.value.values()
    assert isinstance(content, list)
    assert len(content) == len(COLLIDING)


def test_a_value_may_be_as_deep_as_one_that_is_written_and_no_deeper() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_reply(forged_message(deepest)) == CommandReply(
        kind="value", value=json.loads(deepest)
    )
    assert read_reply(forged_message(f"[{deepest}]")).kind == "forged"
