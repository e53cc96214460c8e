"""What ROLL-Flash trains on what, as far as it is known, and the seconds of a step of it.

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

import asyncio
import math
from dataclasses import dataclass

import numpy as np

from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.base import Policy
from tasks.simulation.overlapped_rounds import OverlappedRun, SimulatedLearner, play_overlapped

SCALE, TOKENS_AS_ONE, RESPONSES = 16, 32, 16
NUM_STEPS, FIRST_MEASURED, LAST_MEASURED = 20, 6, 15


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


def step_s(setting: FlashSetting, policy: Policy, seed: int = 0) -> float:
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
            seed=seed,
        )
        clock = asyncio.get_running_loop()
        return [clock.time() async for _ in play_overlapped(run)]

    closed_s = run_virtual(simulate())
    measured_s = closed_s[LAST_MEASURED - 1] - closed_s[FIRST_MEASURED - 1]
    return measured_s / (LAST_MEASURED - FIRST_MEASURED)
