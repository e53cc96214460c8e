"""What ROLL-Flash publishes of asynchronous training, beside what the simulated system does under
stated assumptions.

    python -m benchmarks.roll_flash_simulated --plot docs/images/roll_flash.png

Published (arXiv 2510.11345 and the talk's slides): asynchronous training of Qwen3-8B on 128 GPUs
makes 2.24 times the steps of synchronous training in the same time; and the async ratio from which
on more gains nothing, by model, length and prompts a step (`BEST_RATIOS`).

Assumed, because it is not published or was not readable to us: a step has 256 prompts of 16
responses of at most 32k tokens for 8B parameters on 128 devices, where nothing else is said;
lengths are log-normal (median 9k, sigma 0.8, 70 % of the variance the prompt's) and cut at the
bound; a device decodes a token of all its sequences in 5 ms, the time to read the weights at 3.35
TB/s, and 0.06 ms for each sequence of 8B, in proportion to the square root of the size; training
takes 10 operations a parameter and token (forward, backward, recomputation, the pass for the old
log-probabilities) at 250 TFLOP/s; weights load at once. Synchronous steps have all devices generate
and then all train. Asynchronous ones share the devices out in the way that makes the slower side
fastest, with as many responses under way as a ratio of two admits.

Played at a sixteenth of the size (devices and prompts), 32 tokens as one, for 20 steps, of which
7 to 15 are measured: the first fill the buffer, the last have nothing to generate ahead. The best
ratio is the smallest whose steps take at most 5 % longer than the fastest ones.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from artifacts.reports.canvas import DOTS_PER_INCH, legend, plain, png
from benchmarks.overlapped_rounds import OverlappedRun, SimulatedLearner, play_overlapped
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig

SCALE, TOKENS_AS_ONE, RESPONSES = 16, 32, 16
NUM_STEPS, FIRST_MEASURED, LAST_MEASURED = 20, 6, 15
RATIOS = (1.0, 2.0, 4.0)
CLOSE = 1.05  # times as long as the fastest counts as no slower
HEADLINE = 2.24


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained on what."""

    devices: int = 128
    prompts: int = 256
    most_tokens: int = 32_768
    billions: float = 8.0  # parameters
    median_tokens: float = 9000.0
    sigma: float = 0.8  # of the logarithm of the length
    prompt_share: float = 0.7  # of that variance
    sequence_s: float = 0.06e-3  # that a sequence of 8B adds to a decode step
    train_flops: float = 250e12  # a device, a second
    update_s: float = 0.0  # to bring the weights to the engines, added to training
    training_devices: int = 0  # of asynchronous runs; 0 chooses

    @property
    def num_devices(self) -> int:
        """Simulated ones."""
        return self.devices // SCALE

    @property
    def batch(self) -> BatchConfig:
        return BatchConfig(prompts_per_step=self.prompts // SCALE, responses_per_prompt=RESPONSES)

    @property
    def lengths(self) -> LengthModel:
        """Of tokens that stand for many."""
        return LengthModel(
            median_tokens=self.median_tokens / TOKENS_AS_ONE,
            sigma=self.sigma,
            prompt_share=self.prompt_share,
        )

    @property
    def engine(self) -> SimulatedEngineConfig:
        weights_s = self.billions * 2e9 / 3.35e12
        sequence_s = self.sequence_s * math.sqrt(self.billions / 8)
        return SimulatedEngineConfig(
            max_batch=1024,
            step_s=(0.005 + weights_s) * TOKENS_AS_ONE,
            step_s_per_sequence=sequence_s * TOKENS_AS_ONE,
            prefill_s_per_token=0.0,
            kv_capacity_tokens=1_000_000_000,
            max_model_len=1_000_000,
            lengths=self.lengths,
        )

    @property
    def mean_tokens(self) -> float:
        """Of a response, real ones."""
        draws = np.random.default_rng(0).normal(size=100_000)
        lengths = self.median_tokens * np.exp(self.sigma * draws)
        return float(np.minimum(self.most_tokens, lengths).mean())

    def train_s(self, num_devices: int) -> float:
        """Seconds to train a step on so many simulated devices, and to bring its weights to the
        engines."""
        tokens = self.prompts / SCALE * RESPONSES * self.mean_tokens
        training_s = tokens * 10 * self.billions * 1e9 / (self.train_flops * num_devices)
        return training_s + self.update_s

    def generation_s(self, num_devices: int) -> float:
        """Seconds to generate a step's tokens with three steps' responses under way."""
        responses = self.prompts / SCALE * RESPONSES
        beside = min(1024.0, 3 * responses / num_devices)
        step_s = self.engine.step_s + beside * self.engine.step_s_per_sequence
        return responses * self.mean_tokens / TOKENS_AS_ONE * step_s / (beside * num_devices)

    @property
    def num_training(self) -> int:
        """Devices that train in asynchronous runs."""
        if self.training_devices:
            return self.training_devices // SCALE
        return min(
            range(1, self.num_devices),
            key=lambda num: max(self.train_s(num), self.generation_s(self.num_devices - num)),
        )


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


def step_s(setting: Setting, policy: Policy) -> float:
    """Virtual seconds of a step."""
    overlaps = policy.algebra(setting.batch).overlaps
    num_training = setting.num_training if overlaps else setting.num_devices
    num_engines = setting.num_devices - num_training if overlaps else setting.num_devices

    async def simulate() -> list[float]:
        engines = [
            SimulatedEngine(f"engine-{place}", setting.engine) for place in range(num_engines)
        ]
        run = OverlappedRun(
            policy=policy,
            batch=setting.batch,
            num_steps=NUM_STEPS,
            domains=("any",) * 100_000,
            engines=engines,
            learner=SimulatedLearner(engines, setting.train_s(num_training)),
            feed=lambda: SimulatedFeed(SimulatedRewardConfig(median_s=0.0)),
            max_response_tokens=setting.most_tokens // TOKENS_AS_ONE,
        )
        clock = asyncio.get_running_loop()
        return [clock.time() async for _ in play_overlapped(run)]

    closed_s = run_virtual(simulate())
    measured_s = closed_s[LAST_MEASURED - 1] - closed_s[FIRST_MEASURED - 1]
    return measured_s / (LAST_MEASURED - FIRST_MEASURED)


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
