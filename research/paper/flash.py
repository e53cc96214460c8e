"""ROLL-Flash: what bounded asynchrony is worth, and from which ratio on more gains nothing.

The published best ratio is the smallest that gains all there is; ours is the smallest of those
played whose steps take at most 5 % longer than the fastest ones. The headline is at a ratio of 2,
which the slides name for its model and length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from research.ablations.policies import policy_of
from research.paper.experiment import (
    Experiment,
    FigurePart,
    Observed,
    Played,
    Scale,
    mean,
)
from research.paper.flash_setting import FlashSetting, step_s

RATIOS = (1.0, 2.0, 4.0)
HEADLINE_RATIO = 2.0
CLOSE = 1.05  # times as long as the fastest counts as no slower


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashCase:
    """Steps at an async ratio; 0 is synchronous."""

    setting: FlashSetting
    ratio: float
    seed: int

    @property
    def label(self) -> str:
        setting = self.setting
        return (
            f"ROLL-Flash {setting.billions:g}B, {setting.most_tokens} tokens,"
            f" {setting.prompts} prompts, ratio {self.ratio:g}"
        )

    @property
    def weight(self) -> float:
        return self.setting.prompts / 50

    def play(self) -> tuple[Observed, ...]:
        scheduling: dict[str, object] = {"kind": "sync"}
        if self.ratio:
            scheduling = {"kind": "asynchronous", "async_ratio": self.ratio}
        seconds = step_s(self.setting, policy_of(scheduling), self.seed)
        return (Observed(kind="run", figures={"step_s": seconds}),)


def roll_flash(scale: Scale) -> Experiment:
    """Steps on 128 devices at a sixteenth of the size."""
    headline = FigurePart(
        name="flash/rlvr",
        cases=_by_ratio(FlashSetting(), scale, (0.0, HEADLINE_RATIO)),
        figures=_headline,
    )
    ratios = (
        FigurePart(
            name=f"flash/best_ratio/{name}",
            cases=_by_ratio(setting, scale, RATIOS),
            figures=partial(_best, f"flash/best_ratio/{name}"),
        )
        for name, setting in _varied()
    )
    return Experiment(
        name="flash",
        about="ROLL-Flash: steps of asynchronous training, times those of synchronous",
        unit="times",
        parts=(headline, *ratios),
    )


def _varied() -> Iterator[tuple[str, FlashSetting]]:
    """The slides' table, one thing varied at a time."""
    for billions in (0.6, 1.7, 4.0, 8.0):
        yield f"model/{billions:g}B", FlashSetting(billions=billions)
    for thousands in (4, 8, 16, 32):
        yield f"length/{thousands}k", FlashSetting(most_tokens=1024 * thousands)
    for prompts in (32, 64, 128, 256):
        yield f"prompts/{prompts}", FlashSetting(prompts=prompts)


def _by_ratio(
    setting: FlashSetting, scale: Scale, ratios: tuple[float, ...]
) -> dict[str, FlashCase]:
    return {
        f"{ratio:g}": FlashCase(setting=setting, ratio=ratio, seed=scale.seed) for ratio in ratios
    }


def _headline(played: Played) -> dict[str, float]:
    plain_s, overlapped_s = (mean(steps, "step_s") for steps in played.values())
    return {"flash/rlvr/speedup": plain_s / overlapped_s}


def _best(name: str, played: Played) -> dict[str, float]:
    seconds = {float(ratio): mean(steps, "step_s") for ratio, steps in played.items()}
    fastest_s = min(seconds.values())
    return {name: min(ratio for ratio, took_s in seconds.items() if took_s <= CLOSE * fastest_s)}
