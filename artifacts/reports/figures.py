"""The figures of a run that the lists of runs in the terminal, the browser and MLflow show, and the
metrics that every tracker shows first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from artifacts import layout
from artifacts.commit import StepCommit, seconds_added
from artifacts.store import Store

LAST_STEPS = 5  # the training reward of one step alone says little
COLUMNS = ("reward_before", "reward_after", "reward_training", "step_s", "trained_tokens_per_s")
REWARD, TRAINED, DOLLARS = "reward/mean", "ledger/trained_tokens", "cost/dollars"
# the metrics to look at first, under names that other trainers use, too; those of the right side
# are what is kept of a step or an evaluation
HEADLINES = {
    "reward/mean": "reward/mean",
    "reward/heldout": "heldout/reward_mean",
    "response_length/mean": "rollout/response_tokens_mean",
    "response_length/max": "rollout/response_tokens_max",
    "response_length/clip_ratio": "reward/truncated_fraction",
    "loss/policy": "train/loss",
    "kl/reference": "train/reference_kl",
    "kl/engine": "train/mismatch_k3",
    "entropy": "train/entropy_nats",
    "grad_norm": "train/grad_norm",
    "clip_fraction": "train/clip_fraction",
    "learning_rate": "train/learning_rate",
    "time/step_s": "time/step_s",
    "throughput/trained_tokens_per_s": "cost/throughput_all_devices",
    "throughput/sampled_tokens_per_s": "rollout/tokens_per_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Progress and rewards of a run so far; None for a figure that does not exist yet."""

    num_steps: int  # configured steps; draining may add a few
    steps: int  # committed steps
    reward_before: float | None  # held-out reward of the first model
    reward_after: float | None  # held-out reward of the last weights that were evaluated
    reward_training: float | None  # mean training reward of the last LAST_STEPS steps
    step_s: float | None  # mean seconds that a step adds to the run
    trained_tokens_per_s: float | None  # response tokens trained in a second of its steps
    # interval of the paired held-out difference; None in figures of earlier versions
    gain_low: float | None = None
    gain_high: float | None = None
    dollars: float | None = None  # cost of its steps; None without prices

    @property
    def columns(self) -> dict[str, float]:
        """The figures that are not None, by the name of their column in MLflow."""
        figures = asdict(self)
        return {name: figures[name] for name in COLUMNS if figures[name] is not None}


FIGURES_OF = TypeAdapter(RunFigures)


def with_headlines(metrics: Mapping[str, float]) -> dict[str, float]:
    """Add the headline metrics that these metrics have under another name; headlines come first."""
    found = {name: metrics[kept] for name, kept in HEADLINES.items() if kept in metrics}
    return found | dict(metrics)


def figures_of(
    num_steps: int,
    commits: Sequence[StepCommit],
    heldout: Mapping[int, float],
    gain: tuple[float, float] | None = None,
) -> RunFigures:
    """Compute a run's figures from its commits. `heldout`: mean held-out reward by the step after
    which it was measured. gain: interval of the paired held-out difference."""
    seconds = sum(seconds_added(commits))
    trained = sum(commit.metrics.get(TRAINED, 0.0) for commit in commits)
    rewards = [commit.metrics.get(REWARD, 0.0) for commit in commits[-LAST_STEPS:]]
    dollars = [commit.metrics[DOLLARS] for commit in commits if DOLLARS in commit.metrics]
    low, high = gain or (None, None)
    return RunFigures(
        num_steps=num_steps,
        steps=len(commits),
        reward_before=heldout.get(0),
        reward_after=heldout[max(heldout)] if any(heldout) else None,
        reward_training=sum(rewards) / len(rewards) if rewards else None,
        step_s=seconds / len(commits) if commits else None,
        trained_tokens_per_s=trained / seconds if seconds else None,
        gain_low=low,
        gain_high=high,
        dollars=sum(dollars) if dollars else None,
    )


def progress_text(steps: int, num_steps: int, of: str = "/") -> str:
    """The progress of a run as text, such as "12/64". Steps that drain the long-prompt queue after
    the configured steps are counted apart: "64/64 +1"."""
    beyond = steps - num_steps
    return f"{min(steps, num_steps)}{of}{num_steps}" + (f" +{beyond}" if beyond > 0 else "")


def write_figures(store: Store, figures: RunFigures) -> None:
    store.write(layout.report_file(layout.FIGURES), json.dumps(asdict(figures), indent=1).encode())


def read_figures(store: Store) -> RunFigures | None:
    """Read the figures that the run last wrote; None if it wrote none. Raises ValueError for a file
    that is damaged or of another version."""
    kept = store.read_if_there(layout.report_file(layout.FIGURES))
    return None if kept is None else FIGURES_OF.validate_json(kept)
