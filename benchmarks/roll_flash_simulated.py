"""What ROLL-Flash publishes of asynchronous training, beside what the simulated system does under
stated assumptions.

    python -m benchmarks.roll_flash_simulated --plot docs/images/roll_flash.png

Published (arXiv 2510.11345 and the talk's slides): asynchronous training of Qwen3-8B on 128 GPUs
makes 2.24 times the steps of synchronous training in the same time; and the async ratio from which
on more gains nothing, by model, length and prompts a step (`BEST_RATIOS`).

What is assumed, because it is not published or was not readable to us, is in
`flows.experiments.paper.flash_setting`; `python -m flows.experiments.paper --only flash` has the
same figures as these tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from artifacts.reports.canvas import DOTS_PER_INCH, legend, plain, png
from flows.experiments.paper.flash import CLOSE, RATIOS
from flows.experiments.paper.flash_setting import SCALE, Setting, step_s
from flows.experiments.paper.published import PUBLISHED
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig

HEADLINE = PUBLISHED["flash/rlvr/speedup"].value
# the published best ratio by what is varied, and each of its values
BEST_RATIOS: Mapping[str, tuple[tuple[str, Setting, int], ...]] = {
    "model": tuple(
        (f"{billions:g}B", Setting(billions=billions), 2) for billions in (0.6, 1.7, 4.0, 8.0)
    ),
    "length": tuple(
        (f"{tokens // 1024}k", Setting(most_tokens=tokens), best)
        for tokens, best in ((4096, 1), (8192, 1), (16_384, 1), (32_768, 2))
    ),
    "prompts a step": tuple(
        (str(prompts), Setting(prompts=prompts), best)
        for prompts, best in ((32, 4), (64, 2), (128, 2), (256, 2))
    ),
}


class Simulated:
    """Step times, each simulated once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._seconds: dict[tuple[Setting, float], float] = {}
        self._tell = tell

    def seconds(self, setting: Setting, ratio: float) -> float:
        """Of a step with this async ratio; 0 is synchronous."""
        key = setting, ratio
        if key not in self._seconds:
            policy: Policy = AsynchronousConfig(async_ratio=ratio) if ratio else SyncConfig()
            self._seconds[key] = step_s(setting, policy)
            self._tell(f"{setting} ratio={ratio:g} step_s={self._seconds[key]:.1f}")
        return self._seconds[key]

    def speedup(self, setting: Setting, ratio: float) -> float:
        return self.seconds(setting, 0.0) / self.seconds(setting, ratio)

    def best_ratio(self, setting: Setting) -> float:
        fastest = min(self.seconds(setting, ratio) for ratio in RATIOS)
        return next(ratio for ratio in RATIOS if self.seconds(setting, ratio) <= CLOSE * fastest)


def headline(simulated: Simulated) -> str:
    """The published speed-up and ours, in words."""
    setting = Setting()
    gains = ", ".join(f"{simulated.speedup(setting, ratio):.2f} at {ratio:g}" for ratio in RATIOS)
    shared = f"{setting.num_training * SCALE} of {setting.devices} devices train"
    seconds = f"{simulated.seconds(setting, 0.0):.0f} s a synchronous step"
    return f"published {HEADLINE}; ours by ratio: {gains} ({shared}; {seconds})"


def rows_of_ratios(simulated: Simulated) -> Iterator[tuple[str, ...]]:
    for varied, settings in BEST_RATIOS.items():
        for value, setting, published in settings:
            gains = (f"{simulated.speedup(setting, ratio):.2f}" for ratio in RATIOS)
            best = f"{simulated.best_ratio(setting):g}"
            yield varied, value, *gains, str(published), best


def picture(simulated: Simulated) -> bytes:
    """Speed-up over synchronous steps by what is varied, a line for each ratio; the published best
    ratio of each value in words."""
    figure = Figure(figsize=(10.0, 3.4), dpi=DOTS_PER_INCH, layout="constrained")
    panels = figure.subplots(1, len(BEST_RATIOS), sharey=True)
    for axes, (varied, settings) in zip(panels, BEST_RATIOS.items(), strict=True):
        for ratio, colour in zip(RATIOS, ("#88bb88", "#4477aa", "#882255"), strict=True):
            gains = [simulated.speedup(setting, ratio) for _, setting, _ in settings]
            axes.plot(gains, color=colour, marker="o", label=f"async ratio {ratio:g}")
        labels = [f"{value}\npublished: {best}" for value, _, best in settings]
        axes.set_xticks(range(len(labels)), labels)
        axes.set(xlabel=varied, ylim=(0, None))
        plain(axes)
        axes.tick_params(labelsize=7)
    panels[0].set_ylabel("steps, times those of sync")
    legend(panels[0])
    return png(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="where to draw the speed-ups")
    arguments = parser.parse_args()
    console = Console(width=120)
    simulated = Simulated(lambda told: console.print(told, style="dim"))
    console.print(headline(simulated))
    gains = [f"speedup at {ratio:g}" for ratio in RATIOS]
    ratios = Table("varied", "value", *gains, "published best", "ours")
    for row in rows_of_ratios(simulated):
        ratios.add_row(*row)
    console.print(ratios)
    if arguments.plot:
        arguments.plot.write_bytes(picture(simulated))


if __name__ == "__main__":
    main()
