"""The papers' experiments on real devices: which runs of real engines come closest to each.

    experiments + devices ─▶ Order: a comparison of `comparisons`, its variants, a preset
                          ├▶ CourseOrder: elastic workers that come and go, on cores
                          └▶ those without a counterpart there, which stay simulated

The real runs compare the same variants with the same figures' meaning, at the size of the machine:
its models and caps are the preset's, not the paper's. Pure but for counting GPUs. **On GPUs none of
it has been tried.** Leaves out who runs an order (`real`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flows.config.run_config import RunConfig
from research.ablations.ablation import period_steps
from research.ablations.ablation_variants import job_of
from research.ablations.asynchrony_variants import ASYNCHRONY
from research.ablations.comparisons import COMPARISONS
from research.ablations.eta_variants import ETA

Devices = Literal["auto", "gpus", "cores", "simulated"]
Real = Literal["gpus", "cores"]
ROLLPACKER, SWEEP, OVERLAP = "rollpacker", "eta", "asynchrony"
MANY_GPUS = 8  # from which on the preset for as many is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterpart:
    """Real runs that compare what an experiment compares."""

    comparison: str
    variants: tuple[str, ...]


POLYRL = "polyrl"  # on cores: a run whose elastic workers come and go, beside the same run alone
# fig13 has its time limits here, its judge nowhere; fig6 and fig14 compare machines
COUNTERPARTS: Mapping[str, Counterpart] = {
    "table1": Counterpart(comparison=ROLLPACKER, variants=("sync",)),
    "table2": Counterpart(
        comparison=ROLLPACKER, variants=("sync", "tail", "reward", "planner", "stream")
    ),
    "rlhfuse": Counterpart(comparison=ROLLPACKER, variants=("overlap", "stream")),
    "fig4": Counterpart(comparison=ROLLPACKER, variants=("tail",)),
    "fig10": Counterpart(comparison=ROLLPACKER, variants=("sync", "reward")),
    "fig11": Counterpart(comparison=SWEEP, variants=tuple(ETA)),
    "fig13": Counterpart(comparison=ROLLPACKER, variants=("tail", "reward")),
    "table3": Counterpart(comparison=ROLLPACKER, variants=("scoring", "overlap")),
    "table4": Counterpart(comparison=ROLLPACKER, variants=("stream",)),
    "flash": Counterpart(comparison=OVERLAP, variants=tuple(ASYNCHRONY)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Runs of real engines that are compared."""

    comparison: str
    preset: str
    variants: tuple[str, ...]
    left_out: Mapping[str, str]  # variants that this preset cannot have, with the reason
    periods: int
    repeats: int
    settings: tuple[str, ...]  # FIELD=VALUE over the preset of every run
    out: Path

    @property
    def period(self) -> int:
        """Steps after which every variant has trained what it launched."""
        variants = COMPARISONS[self.comparison].variants
        return period_steps(self.preset, variants, self.settings, self.variants)

    @property
    def command(self) -> list[str]:
        """That runs them; what is in its folder is not run again."""
        words = [sys.executable, "-m", "research.ablations.ablation"]
        words += ["--comparison", self.comparison, "--preset", self.preset]
        words += ["--steps", str(self.periods * self.period), "--repeats", str(self.repeats)]
        words += ["--variants", *self.variants, "--out", str(self.out), "--plot"]
        return [*words, *(word for setting in self.settings for word in ("--set", setting))]


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseOrder:
    """A run with elastic workers and one without, by the script of `elastic_course`."""

    preset: str
    settings: tuple[str, ...]
    out: Path  # gets their figures

    @property
    def figures(self) -> Path:
        return self.out / "course.json"

    @property
    def command(self) -> list[str]:
        """That runs both, each time anew."""
        words = [sys.executable, "-m", "research.ablations.elastic_course"]
        words += ["--preset", self.preset, "--json", str(self.figures)]
        return [*words, *(word for setting in self.settings for word in ("--set", setting))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How real runs are to be made."""

    preset: str  # empty: the comparison's own on cores, one for GPUs on them
    settings: tuple[str, ...]
    periods: int
    repeats: int
    root: Path  # below which runs are kept


def chosen_devices(devices: Devices, num_gpus: int) -> Real | None:
    """What to run on; None for simulated machines. ValueError where it is not there."""
    if devices == "gpus" and not num_gpus:
        raise ValueError(
            "devices=gpus needs a GPU that torch sees, got none; take cores, simulated or auto"
        )
    if devices in ("gpus", "cores"):
        return "gpus" if devices == "gpus" else "cores"
    return "gpus" if devices == "auto" and num_gpus else None


def has_counterpart(name: str, devices: Real) -> bool:
    """Whether there are real runs that compare what this experiment compares."""
    return name in COUNTERPARTS or (name == POLYRL and devices == "cores")


def course_order(wanted: Wanted) -> CourseOrder:
    """PolyRL's step script and its baseline, on this machine's cores."""
    return CourseOrder(
        preset=wanted.preset or "elastic", settings=wanted.settings, out=wanted.root / POLYRL
    )


def orders(names: Sequence[str], devices: Real, num_gpus: int, wanted: Wanted) -> list[Order]:
    """One for each comparison that these experiments have, with the variants of all of them.
    ValueError where the preset lacks something, or none of its variants is possible."""
    asked: dict[str, list[str]] = {}
    for name in names:
        counterpart = COUNTERPARTS.get(name)
        if counterpart is not None:
            asked.setdefault(counterpart.comparison, []).extend(counterpart.variants)
    return [
        _order(comparison, set(variants), _preset(comparison, devices, num_gpus, wanted), wanted)
        for comparison, variants in asked.items()
    ]


def count_gpus() -> int:
    """That torch sees."""
    import torch  # seconds, and simulated experiments need none of it

    return torch.cuda.device_count()


def _preset(comparison: str, devices: Real, num_gpus: int, wanted: Wanted) -> str:
    if wanted.preset:
        return wanted.preset
    if devices == "cores":
        return COMPARISONS[comparison].preset
    return "eight-gpu" if num_gpus >= MANY_GPUS else "one-gpu"


def _order(comparison: str, asked: set[str], preset: str, wanted: Wanted) -> Order:
    every = COMPARISONS[comparison].variants
    possible: list[str] = []
    refused: dict[str, str] = {}
    for name in (name for name in every if name in asked):
        try:
            config = job_of(preset, name, 1, 1, wanted.settings, every).config
        except ValueError as error:
            refused[name] = " ".join(str(error).split())
            continue
        _check_given(config)
        possible.append(name)
    if not possible:
        raise ValueError(
            f"{preset} must be possible with a variant of {comparison}, it is with none:"
            f" {next(iter(refused.values()))}; choose another preset or other settings"
        )
    return Order(
        comparison=comparison,
        preset=preset,
        variants=tuple(possible),
        left_out=refused,
        periods=wanted.periods,
        repeats=wanted.repeats,
        settings=wanted.settings,
        out=wanted.root / f"{comparison}-{preset}",
    )


def _check_given(config: RunConfig) -> None:
    """The presets for GPUs name no model and no questions of ours."""
    for field, part in (("model.path", config.model), ("task.path", config.task)):
        path = getattr(part, "path", None)
        if path and "://" not in path and not Path(path).exists():
            raise ValueError(
                f"settings must name {field} with preset {config.preset}, {path!r} is not there;"
                f' add "{field}=..." to settings, or take devices=simulated'
            )
