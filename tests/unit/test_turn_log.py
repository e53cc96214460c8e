"""Turns on disk: what is written line by line is read back as the episode it was, also where a
writer was killed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.attempt_log import MAX_OPEN, TurnLog, drop_attempts, read_turns
from artifacts.episodes import Ending, Episode, KeptObservation, Snapshot, Turn
from artifacts.records import Generated, ShownPicture, VersionSpan

TEXTS = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=False)
COUNTS = st.integers(0, 4)
SHOWN = ShownPicture(content="ab", begin=0, rows=1, columns=2)
FOLDERS = (f"log-{number}" for number in itertools.count())


def everything(attempt: int) -> bool:
    return True


@st.composite
def whole_episodes(draw: st.DrawFn, index: int = 0) -> Generated:
    """An episode that has been played to its end."""
    turns = tuple(
        draw(
            st.lists(
                st.builds(
                    Turn,
                    num_given=COUNTS,
                    num_sampled=COUNTS,
                    observation=TEXTS,
                    action=TEXTS,
                    reward=NUMBERS,
                    asked_s=NUMBERS,
                    acted_s=NUMBERS,
                    answered_s=NUMBERS,
                    pictures=st.sampled_from([(), (SHOWN, SHOWN.moved(3))]),
                    info=st.dictionaries(TEXTS, TEXTS, max_size=2).map(
                        lambda info: tuple(info.items())
                    ),
                ),
                min_size=1,
                max_size=5,
            )
        )
    )
    num_tokens = sum(turn.num_tokens for turn in turns)
    return Generated(
        prompt_id="0/7",
        index=index,
        token_ids=tuple(draw(st.integers(0, 99)) for _ in range(num_tokens)),
        logprobs=tuple(draw(NUMBERS) for _ in range(num_tokens)),
        versions=tuple(VersionSpan(version=3, num_tokens=1) for _ in range(num_tokens)),
        finish_reason="stop",
        text=draw(TEXTS),
        engine="engine-0",
        submitted_s=draw(NUMBERS),
        first_token_s=draw(NUMBERS),
        finished_s=draw(NUMBERS),
        attempt=7001,
        episode=Episode(
            turns=turns,
            ending=Ending.TERMINATED,
            last_observation=draw(TEXTS),
            num_resumed=draw(COUNTS),
            num_forgotten=draw(COUNTS),
        ),
    )


def until(whole: Generated, num_turns: int) -> Generated:
    """The episode when it had so many turns."""
    assert whole.episode is not None
    turns = whole.episode.turns[:num_turns]
    num_tokens = sum(turn.num_tokens for turn in turns)
    observation = KeptObservation(text=f"after {num_turns}", pictures=(SHOWN,))
    snapshot = Snapshot(state=bytes([0, 10, 255, num_turns]), observation=observation)
    return replace(
        whole,
        token_ids=whole.token_ids[:num_tokens],
        logprobs=whole.logprobs[:num_tokens],
        versions=whole.versions[:num_tokens],
        finish_reason="aborted",
        text="",
        episode=replace(
            whole.episode, turns=turns, ending=None, last_observation="", snapshot=snapshot
        ),
    )


def write(log: TurnLog, whole: Generated, num_turns: int) -> list[Generated]:
    """Its first turns, one after the other, and all of it where these are its turns; what there was
    after each line."""
    assert whole.episode is not None
    states = [until(whole, number) for number in range(1, num_turns + 1)]
    if num_turns == len(whole.episode.turns):
        states[-1] = whole
    for num_written, state in enumerate(states):
        log.write(state, num_written)
    return states


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    one=whole_episodes(),
    other=whole_episodes(index=1),
    cut=st.floats(0, 1),
)
def test_what_was_written_before_a_kill_is_read_back(
    one: Generated, other: Generated, cut: float, tmp_path: Path
) -> None:
    """Whatever byte the last write came to."""
    folder = tmp_path / next(FOLDERS)
    log = TurnLog(folder, "engine-0")
    assert one.episode is not None
    written = write(log, one, len(one.episode.turns)) + write(log, other, 1)
    log.close()
    (file,) = folder.rglob("*.jsonl")
    data = file.read_bytes()
    file.write_bytes(data[: round(cut * len(data))])
    whole_lines = data[: round(cut * len(data))].count(b"\n")
    expected = {state.response_id: state for state in written[:whole_lines]}
    assert read_turns(folder, everything) == expected


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(whole=whole_episodes())
def test_of_several_records_of_an_episode_the_furthest_counts(
    whole: Generated, tmp_path: Path
) -> None:
    """One engine began it, another went on with it from the start of its own file, and a third
    began it again."""
    folder = tmp_path / next(FOLDERS)
    assert whole.episode is not None
    num_turns = len(whole.episode.turns)
    first, second, third = (TurnLog(folder, f"engine-{number}") for number in range(3))
    write(first, whole, 1)
    second.write(whole, 0)
    again = replace(whole, attempt=7002)
    write(third, again, num_turns)
    third.write(until(again, 1), 0)
    for log in (first, second, third):
        log.close()
    assert read_turns(folder, everything) == {"0/7:0": whole}
    assert read_turns(folder, lambda attempt: attempt == 7002) == {"0/7:0": until(again, 1)}


@given(whole=whole_episodes())
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_line_that_does_not_follow_on_adds_nothing(whole: Generated, tmp_path: Path) -> None:
    folder = tmp_path / next(FOLDERS)
    log = TurnLog(folder, "engine-0")
    log.write(until(whole, 1), 0)
    log.write(whole, 3)
    log.close()
    assert read_turns(folder, everything) == {"0/7:0": until(whole, 1)}


@given(whole=whole_episodes())
@settings(max_examples=1, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_attempts_are_apart_and_go_by_themselves(whole: Generated, tmp_path: Path) -> None:
    folder = tmp_path / next(FOLDERS)
    log = TurnLog(folder, "engine-0")
    attempts = range(7001, 7002 + MAX_OPEN)
    for _ in range(2):  # more than are open at a time
        for attempt in attempts:
            log.write(replace(whole, index=attempt, attempt=attempt), 0)
    log.close()
    assert len(read_turns(folder, everything)) == len(attempts)
    drop_attempts(folder, lambda attempt: attempt < 7003)
    assert {found.attempt for found in read_turns(folder, everything).values()} == {*attempts[2:]}
    assert read_turns(tmp_path / "nothing", everything) == {}


@given(whole=whole_episodes())
@settings(max_examples=1, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_disk_that_takes_nothing_ends_the_log_and_is_told_once(
    whole: Generated, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    log = TurnLog(blocked, "engine-0")
    log.write(whole, 0)
    log.write(whole, 0)
    (told,) = caplog.messages
    assert "turns of episodes are kept no more" in told
