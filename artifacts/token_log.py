"""What engines have told of running responses, on disk: what a response goes on from when the
coordinator of its round or the whole run is killed.

    coordinator:   write(new tokens of an engine) ─▶ tokens/<attempt>/coordinator-<id>.jsonl
    next attempt:  read_tokens(folder, which attempts) ─▶ each response as far as it was told

A line (`attempt_log`) has the new tokens of one response; what an engine tells at a time is one
write. The first line of a response in a file has all its tokens, also those that it had kept. A
response that is over has its lines still: what is recorded of it (`journal`) counts. Leaves out
episodes (`turn_log`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path

from artifacts.attempt_log import AttemptLog, Line, read_attempts
from artifacts.new_tokens import NewTokens, Reported
from artifacts.records import Generated, VersionSpan

FIELDS = tuple(field.name for field in fields(NewTokens) if field.name != "versions")


class TokenLog:
    """One coordinator's. Belongs to one event loop."""

    def __init__(self, folder: Path) -> None:
        self._log = AttemptLog(folder, "coordinator", "tokens of running responses")

    def write(self, told: Sequence[NewTokens]) -> None:
        """Keep these, one write for each attempt."""
        for attempt, together in groupby(told, lambda new: new.attempt):
            self._log.write(attempt, map(_line, together))

    def close(self) -> None:
        self._log.close()


def read_tokens(folder: Path, is_meant: Callable[[int], bool]) -> dict[str, Generated]:
    """Every response of which something was told in these attempts, by response id; of several
    records of one the furthest."""
    found: dict[str, Generated] = {}
    for lines in read_attempts(folder, is_meant):
        for name, reported in _responses(lines).items():
            generated = reported.generated()
            if name not in found or generated.num_sampled > found[name].num_sampled:
                found[name] = generated
    return found


def _line(new: NewTokens) -> Line:
    return {
        **{name: getattr(new, name) for name in FIELDS},
        "versions": [(span.version, span.num_tokens) for span in new.versions],
    }


def _responses(lines: Iterable[Line]) -> dict[str, Reported]:
    """A line that does not follow on adds nothing."""
    found: dict[str, Reported] = {}
    for new in map(_read, lines):
        if new.num_before == 0:
            found[new.response_id] = Reported(new)
        elif new.response_id in found:
            found[new.response_id].extend(new)
    return found


def _read(line: Line) -> NewTokens:
    told = {
        "token_ids": tuple(line["token_ids"]),
        "logprobs": tuple(line["logprobs"]),
        "versions": tuple(
            VersionSpan(version=version, num_tokens=num_tokens)
            for version, num_tokens in line["versions"]
        ),
    }
    return NewTokens(**{**line, **told})
