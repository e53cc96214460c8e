"""Over-provisioning variants on simulated replicas: time of the rollouts, tokens spent, and how far
the trained lengths are off.

    python -m research.benchmarks.acceptance_simulated --replicas 128 --prompts 128 --steps 10

Every variant trains the same number of prompts over the same replicas on a virtual clock, drain
included. `bias` compares the trained responses of every prompt with the law that its responses are
drawn from, in the mean over prompts: 0 is fair. With `seeds` a deferred prompt draws the same
responses again, as on engines that take a seed per request; without, it draws anew. Leaves out what
the bias does to learning: responses have lengths here, but no content.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from rich.console import Console
from rich.table import Table

from artifacts.records import Group
from artifacts.reports.summary import Estimate, mean_interval
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundResult
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState
from tasks.simulation.simulated_round import load_version, make_engines, play_rounds, round_inputs

DOMAINS = ("math", "code", "qa")
NUM_LAW_DRAWS = 200  # fresh responses per prompt that stand for its law


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The cluster and the work of all variants."""

    num_replicas: int  # simulated engines
    batch: BatchConfig  # what a step trains
    num_steps: int  # planned steps; the drain comes on top
    engine: SimulatedEngineConfig  # speed, room and lengths
    max_response_tokens: int  # bound on a response
    seed: int  # of the prompt stream and of the requests


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceVariant:
    """What is compared."""

    prompt_overprovision: float  # eta_P
    response_overprovision: float  # eta_R; with both 1 the steps are synchronous
    takes_seeds: bool = True  # whether a deferred prompt draws the same responses again

    @property
    def policy(self) -> Policy:
        if self.prompt_overprovision == self.response_overprovision == 1:
            return SyncConfig()
        return TailBatchingConfig(
            prompt_overprovision=self.prompt_overprovision,
            response_overprovision=self.response_overprovision,
        )


VARIANTS = (
    AcceptanceVariant(prompt_overprovision=1, response_overprovision=1),
    AcceptanceVariant(prompt_overprovision=1.25, response_overprovision=1.25),
    AcceptanceVariant(prompt_overprovision=1.25, response_overprovision=1.25, takes_seeds=False),
    AcceptanceVariant(prompt_overprovision=1.25, response_overprovision=1.125),
    AcceptanceVariant(prompt_overprovision=1.125, response_overprovision=1),
    AcceptanceVariant(prompt_overprovision=1.25, response_overprovision=1),
    AcceptanceVariant(prompt_overprovision=1.25, response_overprovision=1, takes_seeds=False),
    AcceptanceVariant(prompt_overprovision=1.5, response_overprovision=1),
    AcceptanceVariant(prompt_overprovision=1.5, response_overprovision=1, takes_seeds=False),
    AcceptanceVariant(prompt_overprovision=2, response_overprovision=1),
    AcceptanceVariant(prompt_overprovision=1, response_overprovision=1.25),
    AcceptanceVariant(prompt_overprovision=1, response_overprovision=1.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigures:
    """What a variant did."""

    num_prompts: int  # trained prompts
    rollout_s: float  # all rollouts, virtual seconds
    num_tokens: int  # generated tokens, whatever became of them
    bias: Estimate  # (mean trained length - mean of the law) / mean of all laws, per prompt


def measure(simulation: Simulation, variant: AcceptanceVariant) -> VariantFigures:
    """Play a whole run of this variant."""
    rounds, rollout_s = run_virtual(_play_run(simulation, variant))
    groups = [group for result in rounds for group in result.groups]
    return VariantFigures(
        num_prompts=len(groups),
        rollout_s=rollout_s,
        num_tokens=sum(response.num_sampled for result in rounds for response in result.generated),
        bias=length_bias(groups, simulation),
    )


def length_bias(groups: Sequence[Group], simulation: Simulation) -> Estimate:
    """Trained lengths against each prompt's own law, relative to the mean length."""
    lengths, longest = simulation.engine.lengths, simulation.max_response_tokens
    laws = np.array([_law_mean(group.prompt.prompt_id, lengths, longest) for group in groups])
    trained = np.array(
        [
            np.mean([response.generated.num_sampled for response in group.responses])
            for group in groups
        ]
    )
    names = [group.prompt.prompt_id for group in groups]
    return mean_interval(
        dict(zip(names, ((trained - laws) / laws.mean()).tolist(), strict=True)), simulation.seed
    )


@lru_cache(maxsize=100_000)
def _law_mean(prompt_id: str, lengths: LengthModel, longest: int) -> float:
    """The mean length of a prompt's responses under the bound."""
    return float(
        np.mean(
            [
                min(lengths.tokens(prompt_id, index, noise=-1), longest)
                for index in range(NUM_LAW_DRAWS)
            ]
        )
    )


async def _play_run(
    simulation: Simulation, variant: AcceptanceVariant
) -> tuple[list[RoundResult], float]:
    config = simulation.engine.model_copy(update={"takes_seeds": variant.takes_seeds})
    engines = make_engines(simulation.num_replicas, config)
    domains = DOMAINS * (4 * simulation.batch.prompts_per_step * simulation.num_steps)

    def next_plan(state: QueueState, step: int) -> RoundPlan | None:
        turn = PlanningInputs(
            state=state,
            batch=simulation.batch,
            step=step,
            num_steps=simulation.num_steps,
            domains=domains,
            seed=simulation.seed,
        )
        return variant.policy.plan_round(turn)

    async def play(plan: RoundPlan) -> RoundResult:
        longest, seed = simulation.max_response_tokens, simulation.seed
        scheduler = variant.policy.scheduler(plan)
        return await drive_round(round_inputs(plan, scheduler, engines, longest, seed=seed))

    results: list[RoundResult] = []
    rollout_s = 0.0
    async for played in play_rounds(next_plan, play):
        results.append(played.result)
        rollout_s += played.rollout_s
        await load_version(engines, played.plan.step)
    return results, rollout_s


def show(measured: Sequence[tuple[AcceptanceVariant, VariantFigures]], console: Console) -> None:
    """The table; ratios are to the first variant."""
    table = Table(
        "eta_P", "eta_R", "seeds", "rollout s", "ratio", "tokens", "length bias", box=None
    )
    baseline = measured[0][1]
    for variant, figures in measured:
        bias = figures.bias
        table.add_row(
            f"{variant.prompt_overprovision:g}",
            f"{variant.response_overprovision:g}",
            "yes" if variant.takes_seeds else "no",
            f"{figures.rollout_s:.1f}",
            f"{baseline.rollout_s / figures.rollout_s:.2f}",
            f"{figures.num_tokens / baseline.num_tokens:.2f}",
            f"{bias.mean:+.1%} ({bias.low:+.1%} to {bias.high:+.1%})",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, default=128, help="simulated replicas")
    parser.add_argument("--prompts", type=int, default=128, help="prompts per step, P0")
    parser.add_argument("--responses", type=int, default=8, help="responses per prompt, R0")
    parser.add_argument(
        "--steps", type=int, default=10, help="planned steps; the drain comes on top"
    )
    parser.add_argument(
        "--sigma", type=float, default=1.0, help="standard deviation of the logarithm of the length"
    )
    parser.add_argument(
        "--prompt-share",
        type=float,
        default=0.7,
        help="share of that variance which a prompt's responses have in common",
    )
    parser.add_argument("--max-tokens", type=int, default=16_384, help="bound on a response")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    simulation = Simulation(
        num_replicas=options.replicas,
        batch=BatchConfig(prompts_per_step=options.prompts, responses_per_prompt=options.responses),
        num_steps=options.steps,
        engine=SimulatedEngineConfig(
            lengths=LengthModel(sigma=options.sigma, prompt_share=options.prompt_share)
        ),
        max_response_tokens=options.max_tokens,
        seed=options.seed,
    )
    show([(variant, measure(simulation, variant)) for variant in VARIANTS], Console())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
