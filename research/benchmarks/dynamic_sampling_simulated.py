"""Rounds that replace groups whose rewards agree, with further prompts asked as late as can be and
as early as they are.

    python -m research.benchmarks.dynamic_sampling_simulated --machine cores --steps 30
    python -m research.benchmarks.dynamic_sampling_simulated --machine gpus --steps 5

The real rounds, router and policies over simulated replicas on a virtual clock. `cores` are two
engines of a core each, for which every sequence of a batch costs its own time; `gpus` are 128
replicas with room. Prompts differ in how many of their responses are right, so that many groups
agree. `late` asks a further prompt when a group was found to agree, as a round does whose responses
are scored last. Leaves out training, and the time of publications.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from artifacts.records import Fate
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.driver import drive_round
from tasks.rounds.figures import ledger_of, rollout_spans
from tasks.rounds.records import RoundResult
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.policies.queue_rounds import SHORT
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState
from tasks.scheduling.wait_for_all import WaitForAll
from tasks.simulation.simulated_round import (
    SimulatedRound,
    load_version,
    make_engines,
    play_rounds,
    round_inputs,
)

DOMAINS = ("addition", "letters", "stories")
RESERVE = 0.5  # further prompts per prompt that is trained


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMachine:
    """Replicas, and what a step asks of them."""

    num_replicas: int  # simulated engines
    batch: BatchConfig  # what a step trains
    engine: SimulatedEngineConfig  # speed, room and lengths
    reward: SimulatedRewardConfig  # how fast verdicts are, and how they differ
    max_response_tokens: int  # bound on a response


MACHINES = {
    "cores": ReplicaMachine(
        num_replicas=2,
        batch=BatchConfig(prompts_per_step=8, responses_per_prompt=8),
        engine=SimulatedEngineConfig(
            step_s=0.04,
            step_s_per_sequence=0.00215,
            prefill_s_per_token=0.001,
            lengths=LengthModel(median_tokens=22, sigma=0.9, prompt_share=0.5),
        ),
        reward=SimulatedRewardConfig(median_s=0.001, ok_share=0.35, prompt_share=0.5),
        max_response_tokens=256,
    ),
    "gpus": ReplicaMachine(
        num_replicas=128,
        batch=BatchConfig(prompts_per_step=128, responses_per_prompt=8),
        engine=SimulatedEngineConfig(),
        reward=SimulatedRewardConfig(ok_share=0.35, prompt_share=0.5),
        max_response_tokens=16_384,
    ),
}
POLICIES: dict[str, Policy] = {
    "sync": SyncConfig(dynamic_sampling=RESERVE),
    "tail_batching": TailBatchingConfig(
        prompt_overprovision=1.25, response_overprovision=1.125, dynamic_sampling=RESERVE
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the rounds of a run did."""

    rollout_s: float  # virtual seconds of all rounds
    idle_share: float  # of the replicas' time: with nothing to generate, in a round
    num_filtered: int  # groups that were replaced
    tokens: int  # generated tokens
    wasted_tokens: int  # of them those that were aborted, or came too late


def measure(
    machine: ReplicaMachine, policy: Policy, num_steps: int, seed: int, *, early: bool
) -> Measured:
    """Play a whole run."""
    rounds = run_virtual(_play_run(machine, policy, num_steps, seed, early=early))
    devices = {f"engine-{place}": (f"{place}",) for place in range(machine.num_replicas)}
    busy_s = sum(
        span.end_s - span.start_s
        for played in rounds
        for span in rollout_spans(played.result, devices)
    )
    rollout_s = sum(played.rollout_s for played in rounds)
    ledgers = [ledger_of(played.result, is_evaluation=False) for played in rounds]
    return Measured(
        rollout_s=rollout_s,
        idle_share=1 - busy_s / (rollout_s * machine.num_replicas),
        num_filtered=sum(len(played.result.filtered) for played in rounds),
        tokens=sum(sum(ledger.values()) for ledger in ledgers),
        wasted_tokens=sum(ledger[Fate.ABORTED] + ledger[Fate.DISCARDED] for ledger in ledgers),
    )


async def _play_run(
    machine: ReplicaMachine, policy: Policy, num_steps: int, seed: int, *, early: bool
) -> list[SimulatedRound]:
    lengths = machine.engine.lengths.model_copy(update={"seed": seed})
    engines = make_engines(
        machine.num_replicas, machine.engine.model_copy(update={"lengths": lengths})
    )
    domains = DOMAINS * (4 * machine.batch.prompts_per_step * num_steps)

    def next_plan(state: QueueState, step: int) -> RoundPlan | None:
        turn = PlanningInputs(
            state=state,
            batch=machine.batch,
            step=step,
            num_steps=num_steps,
            domains=domains,
            seed=seed,
        )
        return policy.plan_round(turn)

    async def play(plan: RoundPlan) -> RoundResult:
        scheduler = policy.scheduler(plan)
        # short rounds ask nothing early as it is, the others none where verdicts come last
        if not early and plan.kind != SHORT:
            scheduler = WaitForAll(replace(plan, scores_last=True))
        feed = SimulatedFeed(machine.reward.model_copy(update={"seed": seed}))
        inputs = round_inputs(
            plan, scheduler, engines, machine.max_response_tokens, seed=seed, feed=feed
        )
        return await drive_round(inputs)

    rounds: list[SimulatedRound] = []
    async for played in play_rounds(next_plan, play):
        rounds.append(played)
        await load_version(engines, played.plan.step)
    return rounds


def show(rows: Sequence[tuple[str, str, Measured, Measured]], console: Console) -> None:
    """The table; each row has its measurement and that of the late variant of its policy."""
    table = Table(
        "policy", "asked", "rollout s", "ratio", "idle", "filtered", "tokens", "in vain", box=None
    )
    for policy, asked, figures, late in rows:
        table.add_row(
            policy,
            asked,
            f"{figures.rollout_s:.1f}",
            f"{late.rollout_s / figures.rollout_s:.3f}",
            f"{figures.idle_share:.1%}",
            f"{figures.num_filtered}",
            f"{figures.tokens / late.tokens:.3f}",
            f"{figures.wasted_tokens / figures.tokens:.1%}",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--machine", choices=MACHINES, default="cores")
    parser.add_argument(
        "--steps", type=int, default=20, help="planned steps; the drain comes on top"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    machine = MACHINES[options.machine]
    rows = []
    for name, policy in POLICIES.items():
        late = measure(machine, policy, options.steps, options.seed, early=False)
        early = measure(machine, policy, options.steps, options.seed, early=True)
        rows += [(name, "late", late, late), (name, "early", early, late)]
    show(rows, Console())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
