"""What came of a run whose elastic workers came and went, beside the same run without elastic
workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from artifacts.commit import StepCommit, read_commits, seconds_added
from artifacts.journal import Journal
from artifacts.reports.elastic_workers import read_elastic_workers
from artifacts.store import Store
from research.kills.injected_records import examine
from research.kills.injection_figures import WIDTH, Figures

REWARD = "reward/mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCourse:
    """A run that is over."""

    folder: Path
    acts: tuple[Mapping[str, Any], ...]  # of the script, as they came about; Any: JSON values
    is_whole: bool  # whether all of the script was played

    @property
    def store(self) -> Store:
        """Its records."""
        return Store.open(str(self.folder))


def figures_of(moved: FinishedCourse, static: FinishedCourse) -> Figures:
    """Both runs step by step, what is wrong with either, and how their rewards differ."""
    stores = {"with elastic workers": moved.store, "static": static.store}
    steps = {name: read_commits(store) for name, store in stores.items()}
    rewards = {name: [float(step.metrics[REWARD]) for step in steps[name]] for name in stores}
    pairs = zip(rewards["with elastic workers"], rewards["static"], strict=False)
    differences = [reward - other for reward, other in pairs]
    return {
        "is_whole": moved.is_whole,
        "arrivals": _arrivals(moved.store, steps["with elastic workers"]),
        "acts": list(moved.acts),
        "rewards": rewards,
        "reward_difference": mean(differences),
        "reward_difference_error": stdev(differences) / len(differences) ** 0.5,
        "step_s": {name: median(seconds_added(steps[name])) for name in stores},
        "tokens_by_elastic_workers": _elastic_worker_tokens(
            moved.store, steps["with elastic workers"]
        ),
        "wrong": [words for store in stores.values() for words in examine(store).wrong],
    }


def what_is_wrong(figures: Figures) -> list[str]:
    """Sentences; none where all is well."""
    unplayed = "the script was not played to its end; raise --steps"
    return [*figures["wrong"], *([] if figures["is_whole"] else [unplayed])]


def tell(figures: Figures) -> None:
    """Print it."""
    script = Table("step", "stage", "after s", "what came about")
    for act in figures["acts"]:
        script.add_row(str(act["step"]), act["stage"], f"{act['at_s']:.0f}", act["what"])
    arrivals = Table("elastic", "admitted to ready, s", "first token, s after that", "step")
    for arrival in figures["arrivals"]:
        ready_s, first_s = (f"{arrival[name]:.1f}" for name in ("ready_s", "first_token_s"))
        arrivals.add_row(arrival["elastic"], ready_s, first_s, str(arrival["step"]))
    steps = Table("step", "tokens by elastic workers", "reward with elastic workers", "static")
    rewards = figures["rewards"]
    for place, pair in enumerate(zip(*rewards.values(), strict=False), start=1):
        tokens = figures["tokens_by_elastic_workers"].get(str(place), 0)
        steps.add_row(str(place), f"{tokens:.0%}", *(f"{reward:.3f}" for reward in pair))
    console = Console(width=WIDTH)
    console.print(script, arrivals, steps)
    difference, error = figures["reward_difference"], figures["reward_difference_error"]
    console.print(
        f"reward with elastic workers less static: {difference:+.3f} +- {error:.3f} a step"
    )
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in figures["step_s"].items())
    console.print(f"median step: {seconds}")
    for words in what_is_wrong(figures):
        console.print(f"wrong: {words}", markup=False)


def _arrivals(store: Store, steps: Iterable[StepCommit]) -> list[dict[str, Any]]:
    """Of each elastic worker that joined in the middle of a round and sampled in it: how long it
    took to be ready, with its engine built and the weights in it, and from then on to its first
    token."""
    members = {member.name: member for member in read_elastic_workers(store)}
    journal, arrivals = Journal(store), list[dict[str, Any]]()
    for step in steps:
        first_s: dict[str, float] = {}  # token, by engine
        generated = [row.response.generated for row in journal.read(step.step)]
        for response in generated:
            known_s = first_s.get(response.engine, math.inf)
            first_s[response.engine] = min(known_s, response.first_token_s)
        began_s = min((response.submitted_s for response in generated), default=0.0)
        for name in first_s.keys() & members.keys():
            since_s, ready_s = members[name].since_s, members[name].joined_s or 0.0
            if ready_s > began_s:
                arrivals.append(
                    {
                        "elastic": name,
                        "step": step.step,
                        "ready_s": ready_s - since_s,
                        "first_token_s": first_s[name] - ready_s,
                    }
                )
    return arrivals


def _elastic_worker_tokens(store: Store, steps: Iterable[StepCommit]) -> dict[str, float]:
    """Share of a step's tokens that elastic workers sampled, by step, where there are any."""
    elastic_workers = {member.name for member in read_elastic_workers(store)}
    journal, shares = Journal(store), {}
    for step in steps:
        tokens: Counter[bool] = Counter()
        for row in journal.read(step.step):
            generated = row.response.generated
            tokens[generated.engine in elastic_workers] += generated.num_sampled
        if tokens[True]:
            shares[str(step.step)] = tokens[True] / tokens.total()
    return shares
