"""ROLL-Flash: what bounded asynchrony is worth, and from which ratio on more gains nothing.

The published best ratio is the smallest that gains all there is; ours is the smallest of those
played whose steps take at most 5 % longer than the fastest ones. The headline is at a ratio of 2,
which the slides name for its model and length.

Assumed, because it is not published or was not readable to us: a step has 256 prompts of 16
responses of at most 32k tokens for 8B parameters on 128 devices, where nothing else is said;
lengths are log-normal (median 9k, sigma 0.8, 70 % of the variance the prompt's) and cut at the
bound; a device decodes a token of all its sequences in 5 ms, the time to read the weights at 3.35
TB/s, and 0.06 ms for each sequence of 8B, in proportion to the square root of the size; training
takes 10 operations a parameter and token (forward, backward, recomputation, the pass for the old
log-probabilities) at 250 TFLOP/s, and the new weights go to the engines at the rate of
`hardware.Device.refit_bytes_per_s`. What runs at an update is interrupted and prefilled again, its
tokens included, as ROLL does after it has reset the prefix cache; a prompt has 200 tokens.
Synchronous steps have all devices generate and then all train. Asynchronous ones share the devices
out in the way that makes the slower side fastest, with as many responses under way as a ratio of
two admits.

Played at a sixteenth of the size (devices and prompts), 32 tokens as one, for 20 steps, of which
7 to 15 are measured: the first fill the buffer, the last have nothing to generate ahead.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from research.ablations.policies import policy_of
from research.paper.experiment import Experiment, FigurePart, Observed, Played, Scale, mean
from research.spot.simulated_rounds import (
    PROMPT_TOKENS,
    OverlappedRun,
    SimulatedLearner,
    blank_prompts,
    make_engines,
    play_overlapped,
)
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.base import Policy
from tasks.simulation.hardware import DEVICES
from tasks.simulation.shapes import BF16_BYTES

SCALE, TOKENS_AS_ONE, RESPONSES = 16, 32, 16
NUM_STEPS, FIRST_MEASURED, LAST_MEASURED = 20, 6, 15
RATIOS = (1.0, 2.0, 4.0)
HEADLINE_RATIO = 2.0
CLOSE = 1.05  # times as long as the fastest counts as no slower


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashSetting:
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
        prefill_s = 2e9 * self.billions / DEVICES["h100"].matrix_flops
        return SimulatedEngineConfig(
            max_batch=1024,
            step_s=(0.005 + weights_s) * TOKENS_AS_ONE,
            step_s_per_sequence=sequence_s * TOKENS_AS_ONE,
            prefill_s_per_token=prefill_s * TOKENS_AS_ONE,
            shares_prompts=True,
            kv_capacity_tokens=1_000_000_000,
            max_model_len=1_000_000,
            lengths=self.lengths,
        )

    @property
    def refit_s(self) -> float:
        """Seconds from new weights until the engines have them."""
        return BF16_BYTES * self.billions * 1e9 / DEVICES["h100"].refit_bytes_per_s

    @property
    def mean_tokens(self) -> float:
        """Of a response, real ones."""
        draws = np.random.default_rng(0).normal(size=100_000)
        lengths = self.median_tokens * np.exp(self.sigma * draws)
        return float(np.minimum(self.most_tokens, lengths).mean())

    def train_s(self, num_devices: int) -> float:
        """Seconds to train a step on so many simulated devices."""
        tokens = self.prompts / SCALE * RESPONSES * self.mean_tokens
        return tokens * 10 * self.billions * 1e9 / (self.train_flops * num_devices)

    def generation_s(self, num_devices: int) -> float:
        """Seconds to generate a step's tokens with three steps' responses under way."""
        responses = self.prompts / SCALE * RESPONSES
        beside = min(1024.0, 3 * responses / num_devices)
        step_s = self.engine.step_s + beside * self.engine.step_s_per_sequence
        return responses * self.mean_tokens / TOKENS_AS_ONE * step_s / (beside * num_devices)

    @property
    def num_training(self) -> int:
        """Devices that train in asynchronous runs."""
        return min(
            range(1, self.num_devices),
            key=lambda num: max(self.train_s(num), self.generation_s(self.num_devices - num)),
        )


def step_s(setting: FlashSetting, policy: Policy, seed: int = 0) -> float:
    """Virtual seconds of a step."""
    overlaps = policy.algebra(setting.batch).overlaps
    num_training = setting.num_training if overlaps else setting.num_devices
    num_engines = setting.num_devices - num_training if overlaps else setting.num_devices

    async def simulate() -> list[float]:
        engines = make_engines(num_engines, setting.engine)
        run = OverlappedRun(
            policy=policy,
            batch=setting.batch,
            num_steps=NUM_STEPS,
            domains=("any",) * 100_000,
            engines=engines,
            learner=SimulatedLearner(engines, setting.train_s(num_training) + setting.refit_s),
            feed=lambda: SimulatedFeed(SimulatedRewardConfig(median_s=0.0)),
            max_response_tokens=setting.most_tokens // TOKENS_AS_ONE,
            ask=partial(blank_prompts, num_tokens=PROMPT_TOKENS // TOKENS_AS_ONE),
            seed=seed,
        )
        clock = asyncio.get_running_loop()
        return [clock.time() async for _ in play_overlapped(run)]

    closed_s = run_virtual(simulate())
    measured_s = closed_s[LAST_MEASURED - 1] - closed_s[FIRST_MEASURED - 1]
    return measured_s / (LAST_MEASURED - FIRST_MEASURED)


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
        about="ROLL-Flash: synchronous steps over asynchronous ones; the best async ratio",
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
