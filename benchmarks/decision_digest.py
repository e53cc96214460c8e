"""Everything that simulated rounds decide, as a digest: equal before and after a change that is to
change nothing.

    python -m benchmarks.decision_digest --seeds 10 > before.txt      # then the change
    python -m benchmarks.decision_digest --seeds 10 | diff before.txt -

A digest is of every event that a scheduler heard and every answer to it, in order, and of every
response: engine, attempt, length, end, and the virtual times of its begin and end in milliseconds.
Short runs with little room, so that everything occurs: preemption, infrastructure failures, groups
that agree, engines that are lost in mid-round, devices that are freed.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from artifacts.records import Generated
from benchmarks.simulator_speed import Simulation, play
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import (
    Decision,
    Event,
    OverlappedScheduler,
    Published,
    RoundPlan,
    RoundScheduler,
)
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.stream_training import StreamTrainerConfig

LOSES, FREES = "loses engines", "frees devices"
ENGINE = SimulatedEngineConfig(
    max_batch=16, kv_capacity_tokens=20_000, lengths=LengthModel(median_tokens=300)
)
REWARD = SimulatedRewardConfig(ok_share=0.4, prompt_share=0.5, infra_share=0.04)
BATCH = BatchConfig(prompts_per_step=16, responses_per_prompt=4)
STREAM = StreamTrainerConfig(enabled=True, last_milestone=0.9)
VARIANTS = ("all well", LOSES, FREES)  # no round that overlaps training frees devices
POLICIES: dict[str, Policy] = {
    "sync": SyncConfig(),
    "sync, scored last": SyncConfig(reward_timing="after_rollout"),
    "sync, dynamic sampling": SyncConfig(dynamic_sampling=1.0),
    "tail batching": TailBatchingConfig(response_overprovision=1.25),
    "tail batching, scored last": TailBatchingConfig(
        response_overprovision=1.25, reward_timing="after_rollout"
    ),
    "tail batching, prompts alone": TailBatchingConfig(prompt_overprovision=1.5),
    "tail batching, dynamic sampling": TailBatchingConfig(
        response_overprovision=1.125, dynamic_sampling=1.0
    ),
    "asynchronous": AsynchronousConfig(async_ratio=1.5),
    "asynchronous, parks": AsynchronousConfig(
        async_ratio=1.0, at_deadline="park", extra_lag=1, response_overprovision=1.25
    ),
    "asynchronous, drains": AsynchronousConfig(
        async_ratio=2.0, at_update="drain", dynamic_sampling=0.5
    ),
}


@dataclass(slots=True)
class Transcript:
    """What was said and decided, so far."""

    digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=12))
    num_events: int = 0

    def note(self, *told: object) -> None:
        self.digest.update(repr(told).encode())
        self.num_events += 1

    def note_response(self, response: Generated) -> None:
        self.digest.update(
            repr(
                (
                    response.response_id,
                    response.engine,
                    response.attempt,
                    len(response.token_ids),
                    response.finish_reason,
                    round(response.submitted_s, 3),
                    round(response.finished_s, 3),
                    response.versions,
                )
            ).encode()
        )


@dataclass(frozen=True, slots=True)
class Watched:
    """A scheduler that decides as it would."""

    scheduler: RoundScheduler
    transcript: Transcript

    def start(self) -> list[Decision]:
        return self._note("start", self.scheduler.start())

    def handle(self, event: Event) -> list[Decision]:
        return self._note(event, self.scheduler.handle(event))

    def publish(self, event: Published) -> list[Decision]:
        assert isinstance(self.scheduler, OverlappedScheduler), "the round overlaps"
        return self._note(event, self.scheduler.publish(event))

    def waiting_for(self) -> str:
        return self.scheduler.waiting_for()

    def _note(self, heard: object, answer: list[Decision]) -> list[Decision]:
        self.transcript.note(heard, answer)
        return answer


def transcribed(simulation: Simulation) -> Transcript:
    """The run with all that it says."""
    transcript = Transcript()

    def watch(plan: RoundPlan, scheduler: RoundScheduler) -> RoundScheduler:
        transcript.note(plan)
        return Watched(scheduler, transcript)

    async def listen() -> None:
        async for played in play(replace(simulation, watch=watch)):
            result = played.result
            for response in (*result.generated, *result.migrated):
                transcript.note_response(response)
            transcript.note(result.accepted, result.deferred, result.dropped, result.filtered)
            transcript.note(result.freed, result.carried, result.in_flight, played.state)

    run_virtual(listen())
    return transcript


def simulation_of(policy: Policy, seed: int, variant: str) -> Simulation:
    """Every third seed has a domain less, every other one more devices."""
    return Simulation(
        policy=policy,
        num_devices=6 + 5 * (seed % 2),
        batch=BATCH,
        num_steps=6,
        seed=seed,
        stream_trainer=STREAM if variant == FREES else StreamTrainerConfig(),
        engine=ENGINE,
        reward=REWARD.model_copy(update={"seed": seed}),
        domains=("math", "code", "qa")[: 3 - (seed % 3 == 0)],
        losses_s=(20.3, 55.7) if variant == LOSES else (),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    for name, policy in POLICIES.items():
        overlaps = policy.algebra(BATCH).overlaps
        for variant in (
            ["", "loses engines"] if overlaps else ["", "loses engines", "frees devices"]
        ):
            for seed in range(options.seeds):
                transcript = transcribed(simulation_of(policy, seed, variant))
                said = f"{transcript.num_events} said, {transcript.digest.hexdigest()}"
                print(f"{name}; {variant}; seed {seed}: {said}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
