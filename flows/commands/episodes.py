"""rollflow episodes: show the messages of a run's episodes, turn by turn, from the run's tables and
from the journal of a step that still runs.

    RUN                     the first few of the last step with recorded responses
    RUN --step 3 --longest  those of a step, the longest first
    RUN --heldout --best    those of the last evaluation; with --step 0 of the one before training
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from artifacts import layout
from artifacts.commit import read_manifest
from artifacts.episodes import Ending
from artifacts.journal import Journal
from artifacts.records import Outcome
from artifacts.reports.episode_figures import PlayedResponse, played
from artifacts.reports.transcript import (
    STOPPED,
    UNSCORED,
    Transcript,
    Voice,
    ending_of,
    outcome_of,
    transcript_of,
)
from artifacts.tables import ResponseRow
from flows.commands.options import add_run, command, run_store

OUTCOMES = (*map(str, Outcome), UNSCORED)
ENDINGS = (*map(str, Ending), STOPPED)
STYLES = {Voice.ENVIRONMENT: "", Voice.MODEL: "cyan", Voice.NOTE: "dim"}


def show(options: argparse.Namespace, console: Console) -> None:
    if options.count < 1:
        raise ValueError(f"--count must be >= 1, got {options.count}; leave it out for 3")
    store = run_store(options.run, options.root)
    run_id = read_manifest(store).run_id
    journal = Journal(store.child(layout.EVALUATION) if options.heldout else store)
    step = step_of(journal, options, run_id)
    rows = recorded(journal, step)
    where = f"the evaluation after step {step}" if options.heldout else f"step {step}"
    found = matching(rows, options, f"{where} of {run_id}")
    for row in found[: options.count]:
        transcript = transcript_of(row)
        assert transcript is not None, "only episodes are chosen"
        for line in printed(transcript):
            console.print(line)
    shown = f"{min(options.count, len(found))} of {len(found)} that match"
    console.print(f"{shown}, of {len(played(rows))} episodes in {where}", style="dim")


def step_of(journal: Journal, options: argparse.Namespace, run_id: str) -> int:
    """The step of --step, or the last recorded one. ValueError if nothing is recorded of it."""
    steps = journal.steps()
    what = "evaluation" if options.heldout else "step"
    if not steps:
        raise ValueError(
            f"a run must have a recorded {what} to show episodes of, {run_id} has none yet; wait"
            f" for its first, or leave out {'--heldout' if options.heldout else '--step'}"
        )
    if options.step is None:
        return steps[-1]
    if options.step not in steps:
        known = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
        raise ValueError(
            f"--step must be a step with recorded responses, {run_id} has {len(steps)} of them"
            f" ({known}), got {options.step}; leave it out for the last"
        )
    return int(options.step)


def recorded(journal: Journal, step: int) -> list[ResponseRow]:
    """Read a step's responses; if it closes meanwhile, parts vanish and its table is read."""
    try:
        return journal.read(step)
    except FileNotFoundError:
        return journal.read(step)


def matching(
    rows: Sequence[ResponseRow], options: argparse.Namespace, where: str
) -> list[ResponseRow]:
    """The chosen episodes in order. ValueError, with counts of those that exist, for none."""
    episodes = played(rows)
    if not episodes:
        raise ValueError(
            f"the responses must be episodes to be shown, those in {where} are not"
            f" ({len(rows)} of one turn); choose a run whose domain has an environment"
        )
    found = [episode for episode in episodes if is_chosen(episode, options)]
    if not found:
        outcomes = _counts(Counter(outcome_of(each.row) for each in episodes))
        endings = _counts(Counter(ending_of(each.episode) for each in episodes))
        raise ValueError(
            f"an episode must match, none in {where} does; there are {outcomes}; ended {endings}:"
            " ask for less"
        )
    order = next((name for name in SORT_KEYS if vars(options)[name]), None)
    key = SORT_KEYS[order] if order else lambda _: ()
    return [episode.row for episode in sorted(found, key=key)]


def is_chosen(found: PlayedResponse, options: argparse.Namespace) -> bool:
    """True for an episode of the wanted outcome, ending and reward; no verdict is no reward."""
    reward = reward_of(found)
    return (
        options.outcome in ("", outcome_of(found.row))
        and options.ending in ("", ending_of(found.episode))
        and (
            options.least_reward is None or (reward is not None and reward >= options.least_reward)
        )
    )


def reward_of(found: PlayedResponse) -> float | None:
    score = found.row.response.score
    return None if score is None else score.reward


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counted.most_common())


def _length(found: PlayedResponse) -> tuple[int, int]:
    return found.num_turns, found.row.response.generated.num_sampled


def _by_reward(sign: int) -> Callable[[PlayedResponse], tuple[bool, float]]:
    """Sort key: the reward times `sign`; episodes without a verdict come last."""

    def sort_key(found: PlayedResponse) -> tuple[bool, float]:
        reward = reward_of(found)
        return reward is None, sign * (reward or 0.0)

    return sort_key


# the episode with the smallest key comes first
SORT_KEYS: dict[str, Callable[[PlayedResponse], tuple[float, ...]]] = {
    "longest": lambda found: tuple(-length for length in _length(found)),
    "shortest": _length,
    "best": _by_reward(-1),
    "worst": _by_reward(1),
}


def printed(transcript: Transcript) -> Iterator[Text]:
    yield Text(f"{transcript.response_id}  {transcript.about}", style="bold")
    yield Text(transcript.headline)
    for line in transcript.lines:
        yield Text(str(line), style=STYLES[line.voice])
    yield Text()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="rollflow episodes",
        description="Show what was said in a run's episodes, turn by turn.",
        epilog="example: rollflow episodes RUN --heldout --outcome wrong --longest --count 2",
    )
    add_run(made)
    made.add_argument(
        "--step", type=int, metavar="N", help="show episodes of this step (default: the last)"
    )
    made.add_argument(
        "--heldout",
        action="store_true",
        help="show episodes of the last evaluation, or with --step of the one after that step (0:"
        " before training)",
    )
    made.add_argument(
        "--outcome",
        default="",
        choices=OUTCOMES,
        metavar="NAME",
        help=f"only episodes with this outcome: {', '.join(OUTCOMES)}",
    )
    made.add_argument(
        "--ending",
        default="",
        choices=ENDINGS,
        metavar="NAME",
        help=f"only episodes with this ending: {', '.join(ENDINGS)}",
    )
    made.add_argument(
        "--least-reward", type=float, metavar="X", help="only episodes with at least this reward"
    )
    first = made.add_mutually_exclusive_group()
    first.add_argument("--longest", action="store_true", help="episodes with the most turns first")
    first.add_argument(
        "--shortest", action="store_true", help="episodes with the fewest turns first"
    )
    first.add_argument("--best", action="store_true", help="episodes with the highest reward first")
    first.add_argument("--worst", action="store_true", help="episodes with the lowest reward first")
    made.add_argument(
        "--count",
        type=int,
        default=3,
        metavar="N",
        help="number of episodes (default: %(default)s)",
    )
    return made


@command(parser)
def main(options: argparse.Namespace) -> int:
    show(options, Console(soft_wrap=True, highlight=False, markup=False, emoji=False))
    return 0
