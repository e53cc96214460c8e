"""The parts of a simulated run: machine, workload, policy, and the role of each device. `steps`
plays it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from artifacts.records import Generated, Prompt, Score, response_id
from tasks.engines.base import SamplingConfig
from tasks.rounds.records import RoundInputs, ScoreFeed
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.layout_planner import LayoutPlanner
from tasks.scheduling.parallelism import PlannerConfig
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.queue_state import QueueState
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.cluster import Cluster, Placement
from tasks.simulation.protocols import MachineCosts, RunWork

NUM_ROWS = 16_384  # of a data set, so many that no run here reaches its end
DEADLINE_S = 1e6  # of a round, virtual seconds


class RoundFeed:
    """A `ScoreFeed` around that of a whole run: each round gets the verdicts on its own responses
    only. Verdicts on responses of one name come in the order in which the responses were published.
    """

    def __init__(self, feed: ScoreFeed) -> None:
        self._feed = feed
        self._awaited: Counter[str] = Counter()  # published by this round, verdict outstanding
        self._stale: Counter[str] = Counter()  # published by earlier rounds, verdict outstanding
        self._attempt = 0  # of this round, whoever asked for what it publishes

    def open_round(self) -> None:
        """Begin a round: from now on drop verdicts on responses that earlier rounds published."""
        self._stale.update(self._awaited)
        self._awaited.clear()
        self._attempt += 1

    async def publish(self, generated: Sequence[Generated]) -> None:
        self._awaited.update(response.response_id for response in generated)
        own = [replace(response, attempt=self._attempt) for response in generated]
        await self._feed.publish(own)

    async def scored(self, wait_s: float) -> list[Score]:
        clock = asyncio.get_running_loop().time
        until_s = clock() + wait_s
        while told := await self._feed.scored(until_s - clock()):
            if own := [score for score in told if self._is_own(score)]:
                return own
        return []

    def _is_own(self, score: Score) -> bool:
        name = response_id(score.prompt_id, score.index)
        if self._stale[name]:
            self._stale[name] -= 1
            return False
        self._awaited[name] -= 1
        return True


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """Machine, workload and policy of a simulated run."""

    machine: MachineCosts
    work: RunWork
    policy: Policy
    batch: BatchConfig
    num_steps: int  # planned ones; the policy may train what is left in some more
    tensor_parallel_size: int = 1  # of the engines, unless the planner chooses
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    # whether the planner knows the machine's profile; else it follows the paper's rule alone
    knows_profile: bool = True
    stream_trainer: StreamTrainerConfig = field(default_factory=StreamTrainerConfig)
    # how running responses are shared out, where a round moves them
    balancing: BalancingConfig = field(default_factory=BalancingConfig)
    learner_devices: int = 0  # that train alone; 0: all devices generate and train (colocated)
    reserved_devices: int = 0  # that neither generate nor train: a judge's own
    devices_per_rank: int = 1  # that train together, as tensor-parallel learners do
    seed: int = 0
    num_rows: int = NUM_ROWS  # of the data set, unless a round asks for more
    # may wrap a scheduler to observe its events and decisions
    watch: Callable[[RoundPlan, RoundScheduler], RoundScheduler] = lambda plan, scheduler: scheduler

    @property
    def overlaps(self) -> bool:
        """True if a round begins while the step of the round before it trains."""
        return self.policy.algebra(self.batch).overlaps

    @cached_property
    def domains(self) -> Sequence[str]:
        """The domain of every row of the data set."""
        rounds = self.policy.algebra(self.batch).rounds
        most = 2 * max(shape.launch_prompts for shape in rounds)
        return self.work.domains(max(self.num_rows, most))

    @property
    def placement(self) -> Placement:
        """The devices of each role."""
        return Placement(
            num_devices=self.machine.num_devices,
            num_learner=self.learner_devices,
            num_reserved=self.reserved_devices,
            devices_per_rank=self.devices_per_rank,
        )

    @property
    def layouts(self) -> LayoutPlanner:
        """A new planner of the engines' tensor-parallel sizes."""
        num_devices = len(self.placement.rollout)
        sizes = self.machine.sizes(num_devices, self.planner.max_tensor_parallel_size)
        return LayoutPlanner(
            sizes=sizes,
            num_devices=num_devices,
            first_size=self.tensor_parallel_size,
            profile=self.machine.profile(sizes) if self.knows_profile else None,
            by_lengths=self.planner.rule == "lengths",
        )

    def planned(
        self, state: QueueState, step: int, published: int | None = None
    ) -> RoundPlan | None:
        """Returns the round of a step as the policy plans it; None when the run is over. published:
        the newest version in all engines, None for that of the step before."""
        turn = PlanningInputs(
            state=state,
            batch=self.batch,
            step=step,
            num_steps=self.num_steps,
            domains=self.domains,
            seed=None,
            published=published,
        )
        return self.policy.plan_round(turn)

    def prompts(self, refs: Iterable[PromptRef]) -> dict[str, Prompt]:
        """Returns the workload's prompts for these references, by prompt id."""
        return {
            ref.prompt_id: Prompt(
                prompt_id=ref.prompt_id,
                domain=ref.domain,
                token_ids=self.work.question(ref.prompt_id),
                gold="",
                text="",
            )
            for ref in refs
        }

    def round_inputs(
        self,
        cluster: Cluster,
        feed: RoundFeed,
        plan: RoundPlan,
        prompts: Mapping[str, Prompt],
        **others: Any,  # Any: fields of RoundInputs
    ) -> RoundInputs:
        """Returns the inputs of a round on this cluster, and opens the round of the feed. others:
        the remaining fields of `RoundInputs`."""
        feed.open_round()
        return RoundInputs(
            plan=plan,
            versions=plan.versions,
            prompts=prompts,
            scheduler=self.watch(plan, self.policy.scheduler(plan)),
            engines=cluster.engines,
            feed=feed,
            sampling=SamplingConfig(max_response_tokens=self.work.longest_tokens),
            deadline_s=DEADLINE_S,
            attempt=plan.step,
            balancing=self.balancing,
            on_finished=lambda responses: None,  # nothing reads single responses here
            **others,
        )
