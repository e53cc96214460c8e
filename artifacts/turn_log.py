"""The turns of episodes that are being played, on disk: what an episode goes on from when its
engine or the whole run is killed.

    engine's process: write(episode, turns written before) ─▶ turns/<attempt>/<engine>-<id>.jsonl
    coordinator:      read_turns(folder, which attempts) ─▶ each episode as far as it had come

A line has the turns since the line before, with their tokens, and what there is to say of the whole
episode; the line of the first turn begins it, also when it begins again. A line is one write, which
outlives its process but not a crash of the machine; one that was broken off ends its file. The
files say in JSON what they have, so that reading them runs nothing. Leaves out responses of a
single turn, and everything that is finished and judged (`journal`).
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from artifacts.episodes import Ending, Episode, Snapshot, Turn
from artifacts.records import Generated, VersionSpan

logger = logging.getLogger(__name__)

MAX_OPEN = 4  # files of attempts that a process has open; a round and an evaluation write at a time
TURN = tuple(field.name for field in fields(Turn))
EPISODE = tuple(field.name for field in fields(Episode) if field.name not in ("turns", "snapshot"))
RESPONSE = tuple(
    field.name
    for field in fields(Generated)
    if field.name not in ("token_ids", "logprobs", "versions", "episode")
)
Line = dict[str, Any]  # Any: JSON values


class TurnLog:
    """One engine's, for its process. Belongs to one event loop."""

    def __init__(self, folder: Path, engine: str) -> None:
        self._folder = folder
        self._name = f"{engine}-{uuid.uuid4().hex}.jsonl"
        self._files: dict[int, int] = {}  # descriptors by attempt, the one opened last at the end
        self._is_broken = False

    def write(self, generated: Generated, num_written: int) -> None:
        """Keep an episode as it is now, of which so many turns have been written. A disk that does
        not take it ends the log, and nothing else."""
        if self._is_broken:
            return
        line = json.dumps(_line(generated, num_written), separators=(",", ":")) + "\n"
        try:
            os.write(self._file(generated.attempt), line.encode())
        except OSError as error:
            self._is_broken = True
            logger.warning(
                "turns are kept no more, episodes of a killed run begin again: %s", error
            )

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _file(self, attempt: int) -> int:
        if attempt not in self._files:
            while len(self._files) >= MAX_OPEN:
                os.close(self._files.pop(next(iter(self._files))))
            path = self._folder / str(attempt) / self._name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[attempt] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self._files[attempt]


def read_turns(folder: Path, is_meant: Callable[[int], bool]) -> dict[str, Generated]:
    """Every episode of these attempts that has a finished turn or came to its end, by response id,
    as far as it had come; of several records of one the furthest. Those without an ending are
    "aborted"."""
    found: dict[str, Generated] = {}
    for attempt, directory in _directories(folder):
        if not is_meant(attempt):
            continue
        for file in sorted(directory.glob("*.jsonl")):
            for name, generated in _episodes(file.read_bytes()).items():
                if name not in found or _reach(generated) > _reach(found[name]):
                    found[name] = generated
    return found


def drop_turns(folder: Path, is_over: Callable[[int], bool]) -> None:
    """Delete what was written in attempts that are over."""
    for attempt, directory in _directories(folder):
        if is_over(attempt):
            shutil.rmtree(directory, ignore_errors=True)


def _directories(folder: Path) -> Iterator[tuple[int, Path]]:
    if folder.is_dir():
        for directory in sorted(folder.iterdir()):
            if directory.name.isdigit():
                yield int(directory.name), directory


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


def _episodes(data: bytes) -> dict[str, Generated]:
    found: dict[str, Generated] = {}
    *lines, _ = data.split(b"\n")  # after the last line comes nothing, or one that was broken off
    for line in lines:
        try:
            generated = _continued(json.loads(line), found)
        except ValueError:
            break
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
