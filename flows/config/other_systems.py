"""The settings of ROLL, RollPacker, veRL and PolyRL by the settings here: a table, from which the
page docs/from-other-systems.md, `rollflow explain --fields` and `rollflow import` are made.

The table is `other_systems.txt`, whose head says how it is read. `batch_conversions` and
`part_conversions` have its functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

TABLE: Final = Path(__file__).with_name("other_systems.txt")
# systems whose files are alike, by the one whose keys come first
FAMILIES: Final = {
    "ROLL": ("ROLL", "RollPacker"),
    "veRL": ("PolyRL", "veRL"),
    "PolyRL manager": ("PolyRL manager",),
}
SHORT_NAME_PARTS = 2  # of a dotted key, as `explain` shows it
HEAD = """\
# From other systems

`rollflow import FILE` reads a configuration of ROLL or RollPacker (YAML), a script that calls veRL
or PolyRL, or the `config.toml` of PolyRL's manager, and says of every key what becomes of it.
Nothing of the file is executed. An unknown key is refused by its name; `--without KEY` leaves it
out.

```
rollflow import rlvr_config.yaml                 # what is taken, needs nothing, contradicts
rollflow import run_grpo.sh --write run.json     # and the settings file
rollflow explain --settings run.json
```

The settings are laid over the preset `one-gpu`. Where a file leaves a key out, the default of its
system is taken for those keys of which the tables name one, and the preset's for the rest. What
keeps the result from starting is listed as `rollflow explain` lists it.

* Interpolations of OmegaConf (`${response_length}`, `${oc.env:NAME,default}`), files of Hydra's
  `defaults` beside the file, and in scripts variables, their defaults, arrays and sums are
  followed. What only a shell or Hydra knows (`$(date)`, `${now:...}`) is told, and not taken.
* One learner trains whole sequences on each device: tensor, pipeline, context and expert parallel
  sizes of its trainer have no counterpart; `learner.parameters=sharded` spreads the weights.
* Rows of ROLL are read with the fields `messages`, `ground_truth` and `tag`, those of veRL with
  `prompt`, `reward_model.ground_truth` and `data_source`.

A key without a setting needs none, or contradicts where its value is not the one that is named.

Tried on eleven public examples (five of ROLL, two of RollPacker, three of veRL, one of PolyRL; 928
keys): 41 % of the keys are taken, 53 % need nothing, 5 % contradict. Of three files that the table
was not made with, two of 182 keys were unknown at first.
"""


class Rule(NamedTuple):
    """What becomes of some keys of another system."""

    system: str
    keys: tuple[str, ...]  # dotted, alike
    setting: str  # dotted; empty without a counterpart
    how: str  # empty, "only ...", "map ...", "with KEY", or the name of a function
    default: str  # of the first key, as YAML; empty for none
    note: str


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order in which keys are looked for."""
    found, system = [], ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            system = line.strip("[]")
        elif line and not line.startswith("#"):
            keys, setting, how, default, note = (part.strip() for part in line.split("|"))
            found.append(Rule(system, tuple(keys.split()), setting, how, default, note))
    return tuple(found)


def rules_of(family: str) -> list[Rule]:
    """The rules of systems whose files are alike; those of the later systems come first."""
    systems = FAMILIES[family]
    return [rule for system in systems for rule in rules() if rule.system == system]


def rule_for(key: str, known: Sequence[Rule]) -> Rule | None:
    """The first rule for a dotted key; one without wildcards precedes those with them."""
    exact = next((rule for rule in known if key in rule.keys), None)
    return exact or next(
        (rule for rule in known if any(_pattern(each).fullmatch(key) for each in rule.keys)), None
    )


@cache
def _pattern(key: str) -> re.Pattern[str]:
    """The keys that are meant: a * is one part within a path, and anything at its end."""
    inner, end = key.removesuffix("*"), r".*" if key.endswith("*") else ""
    return re.compile(re.escape(inner).replace(r"\*", r"[^.]+") + end)


def names_elsewhere(setting: str) -> str:
    """The names of a setting in other systems, as "ROLL: rollout_batch_size; veRL: n"; empty for
    none."""
    names = {
        rule.system: ".".join(rule.keys[0].split(".")[-SHORT_NAME_PARTS:])
        for rule in reversed(rules())
        if rule.setting == setting and not rule.how.startswith("with ")
    }
    return "; ".join(f"{system}: {name}" for system, name in reversed(names.items()))


def keys_page() -> str:
    """All keys as a page in Markdown, a table for each system."""
    lines = [HEAD]
    for system in dict.fromkeys(rule.system for rule in rules()):
        lines += [f"## {system}", "", "| Keys | Setting | Note |", "|---|---|---|"]
        lines += [_row(rule) for rule in rules() if rule.system == system]
        lines.append("")
    return "\n".join(lines)


def _row(rule: Rule) -> str:
    keys = ", ".join(f"`{key}`" for key in rule.keys)
    setting = f"`{rule.setting}`" if rule.setting else ""
    return f"| {keys} | {setting} | {'; '.join(_remarks(rule))} |".replace("|  |", "| |")


def _remarks(rule: Rule) -> Iterator[str]:
    verb, _, rest = rule.how.partition(" ")
    if verb == "only":
        yield f"{rest.replace(', ', ' or ')} only"
    elif verb == "map":
        yield ", ".join(f"{' is '.join(pair.split('='))}" for pair in rest.split(", "))
    elif verb == "with":
        yield f"read with `{rest}`"
    if rule.note:
        yield rule.note
    if rule.default:
        yield f"default {rule.default}"
