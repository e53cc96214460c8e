"""The turns of episodes that are being played, on disk: what an episode goes on from when its
engine or the whole run is killed.

    engine's process: write(episode, turns written before) ─▶ turns/<attempt>/<engine>-<id>.jsonl
    coordinator:      read_turns(folder, which attempts) ─▶ each episode as far as it had come

A line (`attempt_log`) has the turns since the line before, with their tokens, and what there is to
say of the whole episode; the line of the first turn begins it, also when it begins again. Leaves
out responses of a single turn (`token_log`), and everything that is finished and judged
(`journal`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path

from artifacts.attempt_log import AttemptLog, Line, read_attempts
from artifacts.episodes import Ending, Episode, Snapshot, Turn
from artifacts.records import Generated, VersionSpan

TURN = tuple(field.name for field in fields(Turn))
EPISODE = tuple(field.name for field in fields(Episode) if field.name not in ("turns", "snapshot"))
RESPONSE = tuple(
    field.name
    for field in fields(Generated)
    if field.name not in ("token_ids", "logprobs", "versions", "episode")
)


class TurnLog:
    """One engine's, for its process. Belongs to one event loop."""

    def __init__(self, folder: Path, engine: str) -> None:
        self._log = AttemptLog(folder, engine, "turns of episodes")

    def write(self, generated: Generated, num_written: int) -> None:
        """Keep an episode as it is now, of which so many turns have been written."""
        self._log.write(generated.attempt, [_line(generated, num_written)])

    def close(self) -> None:
        self._log.close()


def read_turns(folder: Path, is_meant: Callable[[int], bool]) -> dict[str, Generated]:
    """Every episode of these attempts that has a finished turn or came to its end, by response id,
    as far as it had come; of several records of one the furthest. Those without an ending are
    "aborted"."""
    found: dict[str, Generated] = {}
    for lines in read_attempts(folder, is_meant):
        for name, generated in _episodes(lines).items():
            if name not in found or _reach(generated) > _reach(found[name]):
                found[name] = generated
    return found


def _reach(generated: Generated) -> tuple[bool, int]:
    return generated.finish_reason != "aborted", generated.num_sampled


def _line(generated: Generated, num_written: int) -> Line:
    episode = generated.episode
    assert episode is not None, "responses of a single turn are not written"
    num_tokens = sum(turn.num_tokens for turn in episode.turns[:num_written])
    taken = episode.snapshot
    return {
        "response": {name: getattr(generated, name) for name in RESPONSE},
        "episode": {name: getattr(episode, name) for name in EPISODE},
        "turns": [
            {name: getattr(turn, name) for name in TURN} for turn in episode.turns[num_written:]
        ],
        "first": num_written,
        "token_ids": generated.token_ids[num_tokens:],
        "logprobs": generated.logprobs[num_tokens:],
        "versions": [(span.version, span.num_tokens) for span in generated.versions],
        "observation": taken.observation if taken else None,
        "state": base64.b64encode(taken.state).decode() if taken else None,
    }


def _episodes(lines: Iterable[Line]) -> dict[str, Generated]:
    found: dict[str, Generated] = {}
    for line in lines:
        generated = _continued(line, found)
        if generated is not None:
            found[generated.response_id] = generated
    return found


def _continued(line: Line, before: dict[str, Generated]) -> Generated | None:
    """The episode with what a line adds to it; None for a line that does not follow on."""
    added = _read(line)
    if line["first"] == 0:
        return added
    known = before.get(added.response_id)
    if known is None or known.episode is None or len(known.episode.turns) != line["first"]:
        return None
    assert added.episode is not None, "a line is of an episode"
    return replace(
        added,
        token_ids=known.token_ids + added.token_ids,
        logprobs=known.logprobs + added.logprobs,
        episode=replace(added.episode, turns=known.episode.turns + added.episode.turns),
    )


def _read(line: Line) -> Generated:
    told, ending = line["episode"], line["episode"]["ending"]
    state = line["state"]
    taken = (
        Snapshot(state=base64.b64decode(state), observation=line["observation"]) if state else None
    )
    return Generated(
        **line["response"],
        token_ids=tuple(line["token_ids"]),
        logprobs=tuple(line["logprobs"]),
        versions=tuple(
            VersionSpan(version=version, num_tokens=num_tokens)
            for version, num_tokens in line["versions"]
        ),
        episode=Episode(
            **told | {"ending": None if ending is None else Ending(ending)},
            turns=tuple(_turn(turn) for turn in line["turns"]),
            snapshot=taken,
        ),
    )


def _turn(told: Line) -> Turn:
    return Turn(**told | {"info": tuple((name, said) for name, said in told["info"])})
