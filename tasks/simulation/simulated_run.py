"""The parts of a simulated run: machine, workload, policy, and the role of each device. `steps`
plays it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from artifacts.records import Prompt
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.layout_planner import LayoutPlanner
from tasks.scheduling.parallelism import PlannerConfig
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.cluster import Placement
from tasks.simulation.protocols import MachineCosts, RunWork

NUM_ROWS = 16_384  # of a data set, so many that no run here reaches its end

Prompts = Mapping[str, Prompt]
Watch = Callable[[RoundPlan, RoundScheduler], RoundScheduler]


def _unwatched(plan: RoundPlan, scheduler: RoundScheduler) -> RoundScheduler:
    return scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
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
    watch: Watch = _unwatched  # may wrap a scheduler to observe its events and decisions

    @property
    def overlaps(self) -> bool:
        """True if a round begins while the step of the round before it trains."""
        return self.policy.algebra(self.batch).overlaps

    @property
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


def prompts_of(work: RunWork, refs: Iterable[PromptRef]) -> dict[str, Prompt]:
    """Returns the workload's prompts for these references, by prompt id."""
    return {
        ref.prompt_id: Prompt(
            prompt_id=ref.prompt_id,
            domain=ref.domain,
            token_ids=work.question(ref.prompt_id),
            gold="",
            text="",
        )
        for ref in refs
    }
