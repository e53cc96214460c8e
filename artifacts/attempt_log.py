"""Logs of unfinished responses, on disk while an attempt at a round goes on. When an engine, the
round's coordinator or the whole run is killed, its responses continue from these logs.

    TurnLog   an engine's process writes episodes ────┐
    TokenLog  a coordinator writes reported tokens ───┴▶ <folder>/<attempt>/<writer>-<id>.jsonl
    read_turns, read_tokens ─▶ each response with all its logged tokens;  drop_attempts ─▶ deleted

All lines of a call are one write, which outlives its process but not a crash of the machine. Each
line is JSON and carries its own digest: reading ends at the first damaged or broken-off line.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import uuid
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.digests import with_digest, without_digest
from artifacts.episodes import Ending, Episode, KeptObservation, Snapshot, Turn
from artifacts.new_tokens import NewTokens, PartialResponse
from artifacts.records import Generated, ShownPicture, VersionSpan

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = logging.getLogger(__name__)

MAX_OPEN = 4  # files of attempts that a process has open; a round and an evaluation write at a time
BY_TOKEN = frozenset({"token_ids", "logprobs", "versions"})  # fields with a value per token or span
TOKENS, LOGPROBS = "i", "d"  # the types of the arrays that lines have in base64
ENCODER = json.JSONEncoder(separators=(",", ":"), default=asdict)
Line = dict[str, Any]  # Any: JSON values


def _line(record: DataclassInstance, without: Collection[str] = ()) -> Line:
    """The fields of a record that a line has as they are."""
    return {
        field.name: getattr(record, field.name)
        for field in fields(record)
        if field.name not in without
    }


class AttemptLog:
    """The log files that one writer appends to in its process. Use it from one event loop only."""

    def __init__(self, folder: Path, writer: str, subject: str) -> None:
        """subject: names the content of the lines in the warning about a failed write."""
        self._folder = folder
        self._name = f"{writer}-{uuid.uuid4().hex}.jsonl"
        self._subject = subject
        self._files: dict[int, int] = {}  # descriptors by attempt, the one opened last at the end
        self._is_broken = False

    def write(self, attempt: int, lines: Iterable[Line]) -> None:
        """Append lines in one write. After a failed write the log warns once and writes no more;
        the run goes on."""
        if self._is_broken:
            return
        encoded = (ENCODER.encode(line).encode() for line in lines)
        data = b"".join(with_digest(str(attempt), line) + b"\n" for line in encoded)
        try:
            os.write(self._file(attempt), data)
        except OSError as error:
            self._is_broken = True
            logger.warning(
                "%s are kept no more, those of a killed run begin again: %s", self._subject, error
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


def read_attempts(folder: Path, is_meant: Callable[[int], bool]) -> Iterator[Iterator[Line]]:
    """Yield the lines of each log file of the attempts for which `is_meant` is true."""
    for attempt, directory in _directories(folder):
        if is_meant(attempt):
            for file in sorted(directory.glob("*.jsonl")):
                yield _lines(attempt, file)


def drop_attempts(folder: Path, is_over: Callable[[int], bool]) -> None:
    """Delete the log files of the attempts for which `is_over` is true."""
    for attempt, directory in _directories(folder):
        if is_over(attempt):
            shutil.rmtree(directory, ignore_errors=True)


def _directories(folder: Path) -> Iterator[tuple[int, Path]]:
    if folder.is_dir():
        for directory in sorted(folder.iterdir()):
            if directory.name.isdigit():
                yield int(directory.name), directory


def _lines(attempt: int, file: Path) -> Iterator[Line]:
    # what follows the last line end is empty, or a broken-off line
    *lines, _ = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            parsed: Line = json.loads(without_digest(str(attempt), line, is_needed=True))
        except ValueError as error:
            logger.warning(
                "line %d of %s is not as it was written (%s): what it and those after it say "
                " begins again",
                number,
                file,
                error,
            )
            return
        yield parsed


def _packed(kind: str, values: Sequence[float]) -> str:
    """The numbers of an array of this type in base64: the very same ones, at a tenth of the time
    that their digits take."""
    return base64.b64encode(array(kind, values).tobytes()).decode()


def _unpacked(kind: str, packed: str | list[float]) -> tuple[Any, ...]:  # Any: int or float
    """The numbers again. In lines of earlier versions they stand as they are."""
    return tuple(packed if isinstance(packed, list) else array(kind, base64.b64decode(packed)))


def _by_token(record: Generated | NewTokens, begin: int = 0) -> Line:
    """A line's fields about the tokens of a record from `begin` on."""
    return {
        "token_ids": _packed(TOKENS, record.token_ids[begin:]),
        "logprobs": _packed(LOGPROBS, record.logprobs[begin:]),
        "versions": [(span.version, span.num_tokens) for span in record.versions],
    }


def _token_fields(line: Line) -> dict[str, Any]:  # Any: values of the fields
    """Convert a line's per-token fields to the types that records have."""
    return {
        "token_ids": _unpacked(TOKENS, line["token_ids"]),
        "logprobs": _unpacked(LOGPROBS, line["logprobs"]),
        "versions": tuple(
            VersionSpan(version=version, num_tokens=num_tokens)
            for version, num_tokens in line["versions"]
        ),
    }


class TokenLog:
    """Log of the tokens of running single-turn responses, as engines report them to a coordinator.
    A line has the new tokens of one response; its first in a file has all tokens so far, those that
    its request brought along included (`Request.kept_tokens`)."""

    def __init__(self, folder: Path) -> None:
        self._log = AttemptLog(folder, "coordinator", "tokens of running responses")
        self.close = self._log.close

    def write(self, reports: Sequence[NewTokens]) -> None:
        """Append these reports to the log, in one write for each attempt."""
        for attempt, together in groupby(reports, lambda new: new.attempt):
            self._log.write(attempt, (_line(new, BY_TOKEN) | _by_token(new) for new in together))


def read_tokens(folder: Path, is_meant: Callable[[int], bool]) -> dict[str, Generated]:
    """Read every response with logged tokens in the chosen attempts, by response id. If several
    files have a response, the record with the most tokens counts. A line that does not continue the
    tokens before it is ignored."""
    furthest: dict[str, Generated] = {}
    for lines in read_attempts(folder, is_meant):
        of_file: dict[str, PartialResponse] = {}
        for line in lines:
            if "told_s" in line:  # its name in earlier versions
                line["reported_s"] = line.pop("told_s")
            new = NewTokens(**line | _token_fields(line))
            if new.num_before == 0:
                of_file[new.response_id] = PartialResponse(new)
            elif new.response_id in of_file:
                of_file[new.response_id].extend(new)
        _keep_furthest(furthest, (partial.generated() for partial in of_file.values()))
    return furthest


def _keep_furthest(kept: dict[str, Generated], found: Iterable[Generated]) -> None:
    """Of two records of a response, keep the one that finished or else has more tokens."""

    def progress(generated: Generated) -> tuple[bool, int]:
        return generated.finish_reason != "aborted", generated.num_sampled

    for generated in found:
        name = generated.response_id
        if name not in kept or progress(generated) > progress(kept[name]):
            kept[name] = generated


class TurnLog:
    """Log of the turns of the episodes that one engine's process plays. A line has an episode's
    turns since its line before, with their tokens, and the fields of the whole episode. A line with
    the first turn begins the episode, also when it is played again."""

    def __init__(self, folder: Path, engine: str) -> None:
        self._log = AttemptLog(folder, engine, "turns of episodes")
        self.close = self._log.close

    def write(self, generated: Generated, num_written: int) -> None:
        """Append an episode's new turns: all but the first `num_written`, which are logged."""
        episode = generated.episode
        assert episode is not None, "responses of a single turn are not written"
        num_tokens = sum(turn.num_tokens for turn in episode.turns[:num_written])
        snapshot = episode.snapshot
        line = {
            "response": _line(generated, BY_TOKEN | {"episode", "routes"}),
            "episode": _line(episode, ("turns", "snapshot")),
            "turns": [_line(turn) for turn in episode.turns[num_written:]],
            "first": num_written,
            **_by_token(generated, num_tokens),
            "observation": snapshot.observation.text if snapshot else None,
            "pictures": snapshot.observation.pictures if snapshot else (),
            "state": base64.b64encode(snapshot.state).decode() if snapshot else None,
        }
        self._log.write(generated.attempt, [line])


def read_turns(folder: Path, is_meant: Callable[[int], bool]) -> dict[str, Generated]:
    """Read every logged episode of the chosen attempts, by response id, with all its logged turns.
    If several files have an episode, a finished one counts before an aborted one, then the one with
    the most sampled tokens. An episode without an ending has the finish reason "aborted"."""
    furthest: dict[str, Generated] = {}
    for lines in read_attempts(folder, is_meant):
        of_file: dict[str, Generated] = {}
        for line in lines:
            if (generated := _continued(line, of_file)) is not None:
                of_file[generated.response_id] = generated
        _keep_furthest(furthest, of_file.values())
    return furthest


def _continued(line: Line, before: dict[str, Generated]) -> Generated | None:
    """Add a line's turns to its episode in `before`; None if the line does not continue it."""
    added = _read_turns_line(line)
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


def _pictures_of(line: Line) -> tuple[ShownPicture, ...]:
    """The pictures of a line or of a turn in it; lines of earlier versions have none."""
    return tuple(ShownPicture(**picture) for picture in line.get("pictures", ()))


def _read_turns_line(line: Line) -> Generated:
    ending, state = line["episode"]["ending"], line["state"]
    episode = Episode(
        **line["episode"] | {"ending": None if ending is None else Ending(ending)},
        turns=tuple(
            Turn(**turn | {"info": tuple(map(tuple, turn["info"])), "pictures": _pictures_of(turn)})
            for turn in line["turns"]
        ),
        snapshot=Snapshot(
            state=base64.b64decode(state),
            observation=KeptObservation(text=line["observation"], pictures=_pictures_of(line)),
        )
        if state
        else None,
    )
    return Generated(**line["response"], **_token_fields(line), episode=episode)
