"""Accepted responses against everything that was launched, from the records of runs.

    python -m research.benchmarks.acceptance_bias runs/smollm2-20260101-120000
    runs/smollm2-sync-20260101-130000 --plot bias.png

RUN is a run's folder or its fsspec URL. Per kind of round: how long the accepted, the discarded,
the filtered and the aborted responses are and what they earn; then, within the accepted prompts,
what was taken against all of its siblings. Intervals are of a bootstrap over prompts. Aborted
responses count with the tokens they had when they were stopped and have no reward: where a row
holds aborted ones, lengths are bounds from below, and differences to them as well.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from artifacts import layout
from artifacts.journal import Journal
from artifacts.records import Fate
from artifacts.reports.canvas import DOTS_PER_INCH, FAINT, INK, plain, png
from artifacts.reports.plots import RUN_COLOURS
from artifacts.reports.summary import Estimate, mean_interval
from artifacts.store import Store
from artifacts.tables import ResponseRow
from tasks.scheduling.ledger import Launched, mean_reward, mean_tokens

EVERY_ROUND = "every"
PARTS: Mapping[str, tuple[Fate, ...]] = {
    "accepted": (Fate.TRAINED,),
    "discarded": (Fate.DISCARDED,),
    "filtered": (Fate.FILTERED,),
    "aborted": (Fate.ABORTED,),
    "launched": tuple(Fate),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPart:
    """A part of the responses of one kind of round."""

    kind: str  # kind of round, or EVERY_ROUND
    name: str  # which part
    num_responses: int  # responses in it
    tokens: Estimate  # mean length
    reward: Estimate | None  # mean reward of those with a verdict, if there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was taken within the accepted prompts, minus all their siblings; means of differences
    per prompt."""

    kind: str  # kind of round, or EVERY_ROUND
    siblings_tokens: float  # mean length of the siblings, the accepted ones among them
    tokens: Estimate  # difference of mean length
    reward: Estimate  # difference of mean reward, over siblings with a verdict


def read_rounds(store: Store) -> dict[str, list[Launched]]:
    """Every response of a run's closed rounds by kind of round. ValueError if there is no such
    round.

    A prompt that was asked in two rounds has two names, so that each is a group of its own.
    """
    rounds: dict[str, list[Launched]] = defaultdict(list)
    journal = Journal(store)
    for step in filter(None, layout.steps_of(store.list(layout.ROUNDS))):
        for row in journal.read(step):
            rounds[row.kind].append(_launched(row))
    if not rounds:
        raise ValueError(
            f"RUN must be the folder of a run with a closed round, got {store.url}; give"
            " runs/<run id>"
        )
    return dict(rounds)


def _launched(row: ResponseRow) -> Launched:
    generated, score = row.response.generated, row.response.score
    assert row.fate is not None, "the responses of a closed round have a fate"
    return Launched(
        prompt_id=f"{row.step}:{generated.prompt_id}",
        num_tokens=generated.num_sampled,
        reward=None if score is None else score.reward,
        fate=row.fate,
    )


def by_kind(rounds: Mapping[str, Sequence[Launched]]) -> Iterator[tuple[str, list[Launched]]]:
    """Every kind in the order of its first round, then all of them together if they are several."""
    for kind, launched in rounds.items():
        yield kind, list(launched)
    if len(rounds) > 1:
        yield EVERY_ROUND, [response for launched in rounds.values() for response in launched]


def parts(rounds: Mapping[str, Sequence[Launched]], seed: int) -> list[RoundPart]:
    """Length and reward of every part that has a response."""
    found = []
    for kind, launched in by_kind(rounds):
        for name, fates in PARTS.items():
            own = [response for response in launched if response.fate in fates]
            tokens = clustered_mean(
                [(response.prompt_id, float(response.num_tokens)) for response in own], seed
            )
            reward = clustered_mean(
                [
                    (response.prompt_id, response.reward)
                    for response in own
                    if response.reward is not None
                ],
                seed,
            )
            if tokens is not None:
                found.append(
                    RoundPart(
                        kind=kind, name=name, num_responses=len(own), tokens=tokens, reward=reward
                    )
                )
    return found


def clustered_mean(values: Sequence[tuple[str, float]], seed: int) -> Estimate | None:
    """Mean over values with an interval over the prompts they are named after; None without a
    value."""
    prompts = {str(place): name for place, (name, _) in enumerate(values)}
    return (
        mean_interval(
            {str(place): value for place, (_, value) in enumerate(values)},
            seed,
            question_of=prompts,
        )
        if values
        else None
    )


def choices(rounds: Mapping[str, Sequence[Launched]], seed: int) -> list[Choice]:
    """The choice within accepted prompts, for every kind of round that accepted one."""
    found = []
    for kind, launched in by_kind(rounds):
        groups: dict[str, list[Launched]] = defaultdict(list)
        for response in launched:
            groups[response.prompt_id].append(response)
        pairs = {
            name: (taken, group)
            for name, group in groups.items()
            if (taken := [response for response in group if response.is_accepted])
        }
        if pairs:
            found.append(
                Choice(
                    kind=kind,
                    siblings_tokens=mean_tokens(
                        [response for _, group in pairs.values() for response in group]
                    ),
                    tokens=mean_interval(
                        {
                            name: mean_tokens(taken) - mean_tokens(group)
                            for name, (taken, group) in pairs.items()
                        },
                        seed,
                    ),
                    reward=mean_interval(
                        {
                            name: mean_reward(taken) - mean_reward(group)
                            for name, (taken, group) in pairs.items()
                        },
                        seed,
                    ),
                )
            )
    return found


def show(
    run: str, rounds: Mapping[str, Sequence[Launched]], console: Console, seed: int
) -> list[RoundPart]:
    """Print both tables of a run; answers with the parts, for the picture."""
    table = Table(
        "round",
        "responses",
        "number",
        "tokens",
        "reward",
        title=f"{run}: what became of the launched responses",
        box=None,
    )
    found = parts(rounds, seed)
    for part in found:
        table.add_row(
            part.kind,
            part.name,
            str(part.num_responses),
            _cell(part.tokens, 1),
            _cell(part.reward, 3),
        )
    chosen = Table(
        "round",
        "sibling tokens",
        "tokens",
        "reward",
        title=f"{run}: accepted minus all siblings, per prompt",
        box=None,
    )
    for choice in choices(rounds, seed):
        chosen.add_row(
            choice.kind,
            f"{choice.siblings_tokens:.1f}",
            _cell(choice.tokens, 1),
            _cell(choice.reward, 3),
        )
    console.print(table, "", chosen, "")
    return found


def _cell(estimate: Estimate | None, digits: int) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.mean:.{digits}f} ({estimate.low:.{digits}f} to {estimate.high:.{digits}f})"


def picture(found: Mapping[str, Sequence[RoundPart]]) -> bytes:
    """Length and reward of every part of every run, with intervals, as PNG."""
    labelled = [
        (f"{run}\n{part.kind}, {part.name}", part)
        for run, run_parts in found.items()
        for part in run_parts
    ]
    figure = estimates(
        "Accepted against launched responses",
        {
            "tokens per response": {label: part.tokens for label, part in labelled},
            "reward": {label: part.reward for label, part in labelled if part.reward is not None},
        },
    )
    return png(figure)


def estimates(title: str, panels: Mapping[str, Mapping[str, Estimate]]) -> Figure:
    """Estimates with their intervals, a panel per quantity and a row per label; the first panel's
    labels are the rows of all."""
    rows = list(next(iter(panels.values()), {}))
    figure = Figure(
        figsize=(4.0 + 3.5 * len(panels), 1.2 + 0.42 * max(1, len(rows))),
        dpi=DOTS_PER_INCH,
        layout="constrained",
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    columns = figure.subplots(1, max(1, len(panels)), sharey=True, squeeze=False)[0]
    for axes, (quantity, found) in zip(columns, panels.items(), strict=False):
        for place, label in enumerate(rows):
            if label in found:
                axes.plot(
                    [found[label].low, found[label].high], [place, place], color=FAINT, linewidth=2
                )
                axes.plot(
                    [found[label].mean], [place], color=RUN_COLOURS[0], marker="o", markersize=5
                )
        axes.set(xlabel=quantity, ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), rows)
        plain(axes)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder or URL")
    parser.add_argument("--plot", type=Path, help="write the picture to this PNG file")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap")
    options = parser.parse_args(arguments)
    console, found = Console(), {}
    for run in options.runs:
        name = run.rstrip("/").rpartition("/")[2]
        try:
            found[name] = show(name, read_rounds(Store.open(run)), console, options.seed)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    if options.plot is not None:
        options.plot.write_bytes(picture(found))
        console.print(f"wrote {options.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
