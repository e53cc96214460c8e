"""rollflow import FILE: convert a configuration of ROLL, RollPacker, veRL or PolyRL into settings
of a run, and say of every key what becomes of it (`flows.config.conversions`).

    FILE ─▶ keys and values ─▶ settings over a preset ─▶ checked as `rollflow explain` does ─▶ file
"""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from flows.commands.options import command

if TYPE_CHECKING:
    from flows.config.conversions import ConvertedKey

SHOWN, WIDTH = 60, 100  # characters of a value, of a line of keys
WRAPPED: Final[Mapping[str, Any]] = {  # Any: options of textwrap
    "subsequent_indent": "      ", "break_long_words": False, "break_on_hyphens": False,
}  # fmt: skip
UNNEEDED = "unneeded"
TITLES = {
    "taken": "taken",
    UNNEEDED: "nothing to set",
    "contradicts": "contradicting: the preset's value stays, or that of another key",
}


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow import",
        description="Convert a configuration of ROLL or RollPacker (YAML), a script that calls"
        " veRL or PolyRL, or config.toml of PolyRL's manager into settings of a run. Every key is"
        " told: taken, without a counterpart, or contradicting. Nothing of the file is executed.",
        epilog="example: rollflow import rlvr_config.yaml --write run.json",
    )
    made.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the configuration")
    made.add_argument("--write", type=Path, metavar="FILE", help="write the settings as JSON")
    made.add_argument(
        "--without", action="append", default=[], metavar="KEY", help="leave a key out, unread"
    )
    made.add_argument("--keys", action="store_true", help="list all known keys, as Markdown")
    return made


@command(parser)
def main(options: Namespace) -> int:
    """Convert the file. Exit status 1 if the settings do not pass the checks of `explain`."""
    from flows.config.conversions import convert
    from flows.config.foreign_files import read_foreign
    from flows.config.misfits import misfits_of_places, misfits_of_settings
    from flows.config.other_systems import keys_page
    from flows.config.settings_file import write_settings

    if options.keys:
        print(keys_page(), end="")
        return 0
    if options.file is None:
        raise ValueError("FILE must be given; for example rollflow import rlvr_config.yaml")
    family, flat = read_foreign(options.file)
    done = convert(family, {key: flat[key] for key in flat if key not in options.without})
    if done.unknown:
        raise ValueError(_unknown(family, done.unknown))
    print(*_lines(done.told, done.by_default), sep="\n")
    settings = misfits_of_settings(done.values)
    found = settings.misfits
    if settings.config is not None:
        found = [*found, *misfits_of_places(settings.config, (), settings.replaced)]
    if options.write is not None:
        write_settings(options.write, done.values)
        print(f"\nrollflow train --settings {shlex.quote(str(options.write))}")
    else:
        print(f"\n{json.dumps(done.values, indent=2)}")
    if found:
        from artifacts.config_parts import Misfits
        from flows.config.sentence import listed

        print(f"\nNot ready to start: {listed(Misfits(found))}", file=sys.stderr)
    return 1 if found else 0


def _unknown(family: str, keys: list[str]) -> str:
    """A sentence on unknown keys, with the nearest known one of each."""
    from flows.config.other_systems import rules_of

    known = [key for rule in rules_of(family) for key in rule.keys]
    near = {key: get_close_matches(key, known, n=1) for key in keys}
    told = ", ".join(f"{key} (did you mean {near[key][0]}?)" if near[key] else key for key in keys)
    without = " ".join(f"--without {key}" for key in keys)
    return f"every key of {family} must be a known one, got {told}; correct it, or {without}"


def _lines(told: Sequence[ConvertedKey], by_default: Sequence[ConvertedKey]) -> Iterator[str]:
    """Every key under what became of it, then the defaults, then the counts."""
    of_fate = {fate: [each for each in told if each.fate == fate] for fate in TITLES}
    for fate, title in TITLES.items():
        if of_fate[fate]:
            yield f"{title} ({len(of_fate[fate])})"
            yield from _unneeded(of_fate[fate]) if fate == UNNEEDED else map(_line, of_fate[fate])
            yield ""
    if by_default:
        yield f"left out, and taken from its system's defaults ({len(by_default)})"
        yield from map(_line, by_default)
        yield ""
    counts = (f"{len(each)} {fate}" for fate, each in of_fate.items())
    yield f"{', '.join(counts)}, of {len(told)} keys"


def _unneeded(told: Iterable[ConvertedKey]) -> Iterator[str]:
    """Keys by the reason for which they need no setting. Values may be secrets."""
    keys: dict[str, list[str]] = defaultdict(list)
    for each in told:
        keys[each.note].append(each.key)
    for note, named in keys.items():
        yield fill(f"{note}: {', '.join(named)}", WIDTH, initial_indent="  ", **WRAPPED)


def _line(told: ConvertedKey) -> str:
    """A key with its value, and the settings that came of it or the reason for none."""
    settings = (f"{path}={json.dumps(value)}" for path, value in told.settings.items())
    return f"  {told.key} = {told.value!r:.{SHOWN}}: {', '.join(settings) or told.note}"


if __name__ == "__main__":
    sys.exit(main())
