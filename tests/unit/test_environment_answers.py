"""What an environment may answer, whatever its process says."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.environments.base import MOST_PICTURE_BYTES, Crashed, PicturedText, Transition
from tasks.environments.processes.answers import max_answer_bytes, read_observation, read_transition

GOOD = {
    "observation": "Higher.",
    "reward": 1,
    "terminated": False,
    "truncated": True,
    "info": {"secret": "7"},
}


def test_what_is_right_is_a_transition() -> None:
    transition = read_transition(json.dumps(GOOD).encode(), 100)
    assert transition == Transition("Higher.", 1.0, False, True, {"secret": "7"})
    assert isinstance(transition.reward, float)
    assert read_observation(b'{"observation": ""}', 100) == ""


def test_lone_surrogates_become_question_marks() -> None:
    said = {**GOOD, "observation": "a\ud800é", "info": {"\udfff": "\ud800 \U0001f600"}}
    transition = read_transition(json.dumps(said).encode(), 3)
    assert transition.observation == "a?é"
    assert transition.info == {"?": "? \U0001f600"}
    assert read_observation(b'{"observation": "\\udc80"}', 1) == "?"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"observation": None}, "must be text, got NoneType"),
        ({"observation": ["x"]}, "must be text, got list"),
        ({"observation": "x" * 101}, "at most 100 characters, got 101"),
        ({"reward": "1"}, "must be a finite number .* got '1'"),
        ({"reward": True}, "must be a finite number .* got True"),
        ({"reward": float("nan")}, "must be a finite number .* got nan"),
        ({"reward": float("-inf")}, "must be a finite number .* got -inf"),
        ({"reward": 10**400}, "must be a finite number .* got 10000"),
        ({"reward": -1e200}, "from -1,000,000 to 1,000,000, got -1e.200; scale it"),
        ({"terminated": 1}, "terminated must be a truth value, got int"),
        ({"truncated": None}, "truncated must be a truth value, got NoneType"),
        ({"info": []}, "info must be texts by name"),
        ({"info": {"a": 1}}, "info must be texts by name"),
        ({"raised": "ValueError: no\nsuch game"}, "^ValueError: no such game$"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(Crashed, match=reason):
        read_transition(json.dumps({**GOOD, **changed}).encode(), 100)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Crashed, match="broke the protocol"):
        read_observation(body, 100)


@given(st.text())
def test_the_longest_observation_fits_the_longest_answer(text: str) -> None:
    answer = json.dumps({**GOOD, "observation": text})
    assert len(answer) <= max_answer_bytes(len(text))


def test_pictures_come_with_the_text_they_stand_before() -> None:
    said = {**GOOD, "pictures": [base64.b64encode(data).decode() for data in (b"one", b"two")]}
    observation = read_transition(json.dumps(said).encode(), 100).observation
    assert observation == PicturedText.of("Higher.", [b"one", b"two"])
    assert observation not in ("Higher.", PicturedText.of("Higher.", [b"two", b"one"]))
    first = json.dumps({"observation": "", "pictures": said["pictures"][:1]}).encode()
    assert read_observation(first, 100) == PicturedText.of("", [b"one"])


@pytest.mark.parametrize(
    ("pictures", "reason"),
    [
        (["no base64"], "pictures that are no base64"),
        ([7], "pictures that are no base64"),
        (3, "pictures that are no base64"),
        ([""] * 9, "at most 8 pictures of 4194304 bytes together, got 9 of 0; show fewer"),
        (["A" * 4 * (1 + MOST_PICTURE_BYTES // 3)], "at most 8 pictures .* got 1 of 4194306"),
    ],
)
def test_pictures_are_bounded(pictures: object, reason: str) -> None:
    body = json.dumps({**GOOD, "pictures": pictures}).encode()
    assert len(body) <= max_answer_bytes(100)
    with pytest.raises(Crashed, match=reason):
        read_transition(body, 100)
