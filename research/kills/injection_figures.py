"""What came of injections, as JSON and for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from research.kills.injector import Told

Figures = Mapping[str, Any]  # Any: JSON values
WIDTH = 110  # characters of the tables


def all_kills(told: Iterable[Told]) -> Counter[tuple[str, str]]:
    """How often which victim was killed in which stage."""
    return sum((each.kills for each in told), Counter())


def wrong_in(told: Sequence[Told]) -> dict[str, list[str]]:
    """What must not be, a sentence each, by kind; none where all is well."""
    return {
        "lost": [words for each in told for words in each.findings.lost],
        "doubled": [words for each in told for words in each.findings.doubled],
        "mixed_versions": [words for each in told for words in each.findings.mixed_versions],
        "unbooked": [words for each in told for words in each.findings.unbooked],
        "hung": [words for each in told for words in each.hangs],
        "unhealed": [words for each in told for words in each.unhealed],
        "zombies": [words for each in told for words in sorted(each.zombies)],
        "leftovers": [words for each in told for words in sorted(each.leftovers)],
    }


def figures_of(seed: int, told: Sequence[Told]) -> Figures:
    """All of it: numbers of what is wrong, how often what happened, and the sentences."""
    kills, wrong = all_kills(told), wrong_in(told)
    counts: Counter[str] = Counter()
    for (victim, _), times in kills.items():
        counts[victim] += times
    for each in told:
        counts.update(each.findings.counts)
    stops = [words for each in told for words in each.stops]
    sentences = wrong | {"ended by itself": stops}
    return {
        "seed": seed,
        "runs": len(told),
        "injections": kills.total(),
        **{name: len(words) for name, words in wrong.items()},
        "counts": {**counts, "ended by itself": len(stops)},
        "told": {name: words for name, words in sentences.items() if words},
    }


def tell(figures: Figures, told: Sequence[Told]) -> None:
    """Print it."""
    kills = all_kills(told)
    stages = sorted({stage for _, stage in kills})
    met = Table("injection", *stages, "all", title="what they met", title_justify="left")
    for victim in sorted({victim for victim, _ in kills}):
        times = [kills[victim, stage] for stage in stages]
        met.add_row(victim, *map(str, times), str(sum(times)))
    title = f"{figures['injections']} injections, {figures['runs']} runs"
    came = Table("what came of them", "", title=title, title_justify="left")
    for name in wrong_in(told):
        came.add_row(name.replace("_", " "), str(figures[name]))
    came.add_section()
    for name, times in figures["counts"].items():
        came.add_row(name, str(times))
    console = Console(width=WIDTH)
    console.print(met, came)
    for name, sentences in figures["told"].items():
        for words in sentences:
            console.print(f"{name}: {words}", markup=False)
