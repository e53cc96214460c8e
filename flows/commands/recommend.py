"""rollflow recommend: choose policy, eta, engine size and placement for a model on some devices, by
simulating the steps of all candidates.

    situation ─▶ engine sizes, plain ─▶ best size ─▶ policies and placements ─▶ table, settings

Leaves out a judge's devices, the learner's own settings and, unless --off-policy is given,
off-policy candidates: the seconds of a step do not show the cost of staleness."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Column, Table

from artifacts.commit import seconds_added
from flows.commands.expected import Expected, compare_candidates, expect
from flows.commands.options import command
from flows.commands.situation import Situation, build_situation
from flows.config.overlay import overlay
from flows.config.presets import Values
from flows.config.run_config import RunConfig
from flows.config.settings_file import settings_of, write_settings
from tasks.simulation.calibration import counted
from tasks.simulation.workloads import WORKLOADS

DESCRIPTION = """\
Play a model on simulated devices with policies and placements that keep it on
policy, and say which one makes the shortest steps, what each other loses by,
and how sure that is. --write keeps the answer for rollflow train --settings.
Nothing is started.
"""
WIDTH = 130  # characters of the table
SHORT_S = 10.0  # shorter times are shown with two digits
COLUMNS = ("step s", "loses s", "rollout", "tokens/s")


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow recommend",
        description=DESCRIPTION,
        epilog="example: rollflow recommend --run RUN --write best.json",
    )
    made.add_argument(
        "--run",
        default="",
        metavar="RUN",
        help="a recorded run, by name, path or URL: source of the lengths and of options that"
        " are not given",
    )
    made.add_argument(
        "--root", default="runs", help="artifact root of --run (default: %(default)s)"
    )
    made.add_argument("--model", help="model by name, or a config.json (default: qwen2.5-7b)")
    made.add_argument(
        "--device",
        help="kind of device (default: h800; with --run the machine that recorded it, whose speed"
        " is measured from the run)",
    )
    made.add_argument("--devices", type=int, help="number of devices (default: 16)")
    made.add_argument("--prompts", type=int, help="prompts of a step, P0 (default: 128)")
    made.add_argument("--responses", type=int, help="responses of a prompt, R0 (default: 8)")
    made.add_argument("--cap", type=int, help="maximum tokens of a response (default: 8192)")
    made.add_argument(
        "--workload",
        default="mixed",
        choices=list(WORKLOADS),
        help="kind of prompts, with the published lengths; only without --run (default:"
        " %(default)s)",
    )
    made.add_argument(
        "--preset",
        help="preset that the settings change; only without --run (default: one for such devices)",
    )
    made.add_argument(
        "--seeds",
        type=int,
        default=3,
        help="draws of lengths for every candidate (default: %(default)s)",
    )
    made.add_argument(
        "--off-policy", action="store_true", help="also try overlapping steps (async ratio 1)"
    )
    made.add_argument(
        "--write", type=Path, metavar="FILE", help="write the best candidate as a settings file"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all candidates as JSON")
    return made


@command(parser)
def main(options: Namespace) -> int:
    situation = build_situation(options)
    found = compare_candidates(situation, options.seeds, options.off_policy)
    show(found, situation)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([row(each) for each in found], indent=1))
    write_best(found[0], options.write)
    return 0


def settings(expected: Expected) -> Values:
    """Settings for a run with this candidate: what differs from the preset, and what is chosen."""
    config, candidate = expected.config, expected.candidate
    assert candidate is not None, "only candidates are recommended"
    chosen = candidate.values(config.cluster.num_devices)
    chosen["cluster"]["roles"] = config.cluster.roles
    return overlay(settings_of(config), chosen)


def row(expected: Expected) -> dict[str, object]:
    return {
        "settings": settings(expected),
        "step_s": list(expected.step_s),
        "rollout_share": expected.rollout_share,
        "tokens_per_s": expected.tokens_per_s,
    }


def show(found: tuple[Expected, ...], situation: Situation) -> None:
    """Print the table of all candidates, the best one, and how reliable the answer is."""
    best = found[0]
    table = Table(Column("policy", no_wrap=True), "streams", "devices", "engine", *COLUMNS)
    for each in found:
        assert each.candidate is not None, "only candidates are shown"
        table.add_row(
            each.candidate.policy,
            "on" if each.candidate.streams else "",
            each.candidate.placement(situation.machine.num_devices),
            f"of {each.candidate.size}",
            _with_spread(each.mean_s, each.spread_s),
            "" if each is best else _with_spread(*each.lost_s(best)),
            f"{each.rollout_share:.0%}",
            f"{each.tokens_per_s:,.0f}",
        )
    console = Console(width=WIDTH, highlight=False)
    console.print(table)
    for words in (
        situation.about,
        *explanation(found),
        *calibration_check(situation, len(best.step_s)),
    ):
        console.print(words, markup=False)


def explanation(found: tuple[Expected, ...]) -> Iterator[str]:
    """Sentences on the lead of the best candidate and on the doubts about it."""
    best, *rest = found
    assert best.candidate is not None
    plain = next(each for each in found if each.candidate and each.candidate.is_plain)
    yield (
        f"{best.candidate.label}:"
        f" {_with_spread(best.mean_s, best.spread_s)} s a step,"
        f" {plain.mean_s / best.mean_s:.2f} times as fast as plain synchronous steps, of which"
        f" {plain.rollout_share:.0%} is rollout"
    )
    draws = range(len(best.step_s))
    wins = sum(all(best.step_s[draw] <= each.step_s[draw] for each in rest) for draw in draws)
    yield f"it is the shortest in {wins} of {len(draws)} draws; +- is a standard deviation of them"
    close = []
    for each in rest:
        lost_s, spread_s = each.lost_s(best)
        if each.candidate and lost_s <= spread_s:  # of equal ones both are 0
            close.append(each.candidate.label)
    if close:
        yield f"not to be told from it: {'; '.join(close)}"
    if best.candidate.response_eta > 1:
        yield (
            "eta on responses keeps those that finish first: trained answers are shorter than"
            " launched ones (python -m research.benchmarks.acceptance_bias tells by how much)"
        )
    if best.candidate.async_ratio:
        yield "it is off-policy: what its staleness costs in reward is not in these seconds"


def calibration_check(situation: Situation, num_draws: int) -> Iterator[str]:
    """Compare the recorded run's simulated step time with the measured one, if there is one."""
    if situation.recorder is None:
        return
    seconds = seconds_added([step.commit for step in situation.recorder.steps])
    measured = seconds[-len(counted(situation.recorder)) :]
    try:
        itself = expect(RunConfig.model_validate(situation.recorder.config), situation, num_draws)
    except ValueError as error:
        yield f"the recorded run itself cannot be played: {error}"
        return
    yield (
        f"the recorded run itself plays as {_with_spread(itself.mean_s, itself.spread_s)} s a"
        f" step; it took {_with_spread(fmean(measured), 0.0)} s, the first step left out"
    )


def write_best(best: Expected, path: Path | None) -> None:
    """Print the command that trains with the best candidate; its settings go to `path` if given."""
    values = settings(best)
    if path is not None:
        write_settings(path, values)
        print(f"rollflow train --settings {shlex.quote(str(path))}")
        return
    preset = values.pop("preset")
    words = (
        f"--set {shlex.quote(f'{name}={json.dumps(value)}')}" for name, value in values.items()
    )
    print(f"rollflow train --preset {preset} {' '.join(words)}")


def _with_spread(value: float, spread: float) -> str:
    digits = 2 if max(value, spread) < SHORT_S else 1
    return f"{value:.{digits}f}" + (f" +- {spread:.{digits}f}" if spread else "")
