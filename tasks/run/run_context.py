"""The records that every task of a run receives: the run's configuration and actors (`RunContext`),
and one step (`StepPlan`) with the place of its records.

Small and picklable: references and records, never rows or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pydantic import Field

from artifacts import layout
from artifacts.config_parts import FrozenConfig
from artifacts.datasets.registry import TaskConfig
from artifacts.prices import PriceConfig
from artifacts.records import Span, WeightsRef
from artifacts.store import Store
from tasks.elastic.config import ElasticConfig, ElasticWeightsConfig
from tasks.engines.base import SamplingConfig
from tasks.engines.registry import EngineConfig
from tasks.engines.transports.base import TransferPlan, TransportKind
from tasks.environments.config import EpisodeConfig
from tasks.environments.registry import EnvironmentConfig
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.weight_check import WeightCheckConfig
from tasks.rewards.registry import RewardConfig
from tasks.rounds.records import InFlight
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.policies.registry import SchedulingConfig
from tasks.scheduling.seeding import PlannedWindow
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.scheduling.wait_for_all import WaitForAll

if TYPE_CHECKING:
    from artifacts.journal import Journal


class DeadlineConfig(FrozenConfig):
    """The time limits from which all others of a run derive (`flows.config.limits`)."""

    start_s: float = Field(
        600.0,
        gt=0,
        description=(
            "Seconds for an engine, a learner, a judge or an own reward function to start, the"
            " loading of its model included; a fifth of that for the workers of the cluster."
        ),
    )
    call_s: float = Field(
        300.0,
        gt=0,
        description=(
            "Seconds for a call to an engine or a judge; three times that for a learner rank: an"
            " accumulation, or all updates of a step."
        ),
    )
    progress_s: float = Field(
        300.0,
        gt=0,
        description="Seconds without a token, a response or a verdict, after which a round ends.",
    )
    weights_s: float = Field(
        300.0,
        gt=0,
        description=(
            "Seconds for an engine to load and attest a weight version; twice that for an elastic"
            " worker to pull one, or the model."
        ),
    )
    reward_s: float = Field(
        60.0,
        gt=0,
        description=(
            "Seconds for a verdict of a judge, a service or an own function; half of that for a"
            " test case of a program."
        ),
    )
    environment_s: float = Field(
        30.0,
        gt=0,
        description=(
            "Seconds for a step of an environment; twice that to build and reset one, sixty times"
            " that for an episode to get a process."
        ),
    )

    @property
    def learner_call_s(self) -> float:
        """Seconds for a call to a learner rank."""
        return 3 * self.call_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The settings and actor names of a run that all its tasks share."""

    run_id: str  # its folder under the artifact root
    artifact_root: str  # fsspec URL
    # where weight versions are handed over; memory-backed if the machine has such a place
    weights_dir: str
    seed: int  # every random choice derives from it
    task: TaskConfig  # where the prompts come from
    model_path: str  # Hugging Face directory: tokenizer, and version 0 of the weights
    judge_model_path: str = ""  # Hugging Face directory of the judges' model
    rewards: Mapping[str, RewardConfig]  # by domain, "*" for the rest
    environments: Mapping[str, EnvironmentConfig] = field(default_factory=dict)  # by domain
    episodes: EpisodeConfig = field(default_factory=EpisodeConfig)  # bounds of episodes
    reward_workers: int  # responses scored side by side
    max_infra_fraction: float  # share of responses without a verdict above which the run stops
    engine: EngineConfig  # the rollout engines; their size is that of the layout
    sampling: SamplingConfig  # how responses are drawn
    learner: LearnerConfig  # the training of the policy
    scheduling: SchedulingConfig  # the policy that plans rounds
    stream_trainer: StreamTrainerConfig  # when devices stop generating in mid-round
    # how engines share the responses of rounds that elastic workers have joined
    balancing: BalancingConfig = field(default_factory=BalancingConfig)
    gate: WeightCheckConfig  # the comparison after every publication
    deadlines: DeadlineConfig  # bounds on every wait
    elastic: ElasticConfig = field(default_factory=ElasticConfig)  # engines that come and go
    prices: PriceConfig = field(default_factory=PriceConfig)  # of device-hours, by class
    # where elastic workers pull weights; None where they read the run's own paths
    weight_server: ElasticWeightsConfig | None = None
    # fixed token sequences of the weight check; empty switches the check off
    probes: tuple[tuple[int, ...], ...] = ()
    engines: tuple[str, ...]  # actor names of the rollout replicas
    learners: tuple[str, ...]  # actor names of the learner ranks, by rank
    learners_per_machine: int = 0  # consecutive ranks on each; 0 for all on one
    judges: tuple[str, ...] = ()  # actor names of the judges; none without a judge reward
    transport: TransportKind = "file"  # how weights get to the engines
    # actor names of the workers of environments; without any, each engine has their processes
    environment_workers: tuple[str, ...] = ()
    devices: Mapping[str, str]  # device of every actor, for the timeline
    # workers whose devices an engine holds, if not just its own
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # rows that are never asked: too long, or not to be rendered
    unfit: frozenset[int] = frozenset()
    unfit_heldout: frozenset[int] = frozenset()  # held-out rows of the same kind
    # BLAKE3 of the manifest that this attempt at the run wrote; empty before it did
    manifest_digest: str = ""
    has_digests: bool = False  # whether artifacts must have digests, as the manifest says

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt that the engines' context leaves room for."""
        return self.engine.max_model_len - self.sampling.max_response_tokens

    @property
    def environment_pools(self) -> tuple[str, ...]:
        """Names of the actors that hold environment processes: the environment workers if there are
        any, else the engines; empty without environments."""
        return (self.environment_workers or self.engines) if self.environments else ()

    def open_store(self) -> Store:
        """Open the run's own folder below the artifact root."""
        store = Store.open(self.artifact_root).child(self.run_id)
        store = store.requiring_digests() if self.has_digests else store
        return store.of_begun_run() if self.manifest_digest else store

    @property
    def own_devices(self) -> list[str]:
        """The names of all devices that actors of the run work on, sorted."""
        return sorted({device for device in self.devices.values() if device != "host"})

    def devices_of(self, actor: str) -> tuple[str, ...]:
        """The devices that an actor works on."""
        return tuple(self.devices[worker] for worker in self.members.get(actor, (actor,)))

    def spans(
        self, kind: str, busy: Mapping[str, Sequence[tuple[float, float]]]
    ) -> tuple[Span, ...]:
        """Timeline spans of these actors' work. busy: by actor, the (start, end) of each piece of
        work, Unix seconds by the actor's own clock."""
        return tuple(
            Span(device=device, actor=actor, kind=kind, start_s=start_s, end_s=end_s)
            for actor, times in busy.items()
            for start_s, end_s in times
            for device in self.devices_of(actor)
        )

    @property
    def transfer(self) -> TransferPlan:
        """How weights get to the workers of the engines as they are now."""
        members = tuple(
            f"{name}/{rank}"
            for name in self.engines
            for rank in range(len(self.members.get(name, (name,))))
        )
        deadline_s = self.deadlines.weights_s / 2  # so that it passes within that of the load
        return TransferPlan(kind=self.transport, members=members, deadline_s=deadline_s)

    def with_engines(self, members: Mapping[str, tuple[str, ...]]) -> RunContext:
        """This context with other engines; members as in the field of that name."""
        return replace(self, engines=tuple(members), members=members)


EVALUATION = layout.EVALUATION


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step: its round, and the weights that the engines hold when it begins."""

    run: RunContext
    round: RoundPlan
    weights: WeightsRef
    attempt: int  # 1, and one more after each recovery
    adopted: tuple[InFlight, ...] = ()  # responses that the round before left running
    leaves_running: bool = False  # whether carried responses may run on after the round
    # the seeding window, in which the run's own engines generate; None: they do to the end
    window: PlannedWindow | None = None

    @property
    def step(self) -> int:
        return self.round.step

    @property
    def versions(self) -> range:
        """Weight versions whose tokens the round may train: the one that the engines hold; in an
        asynchronous round all within the bound on lag."""
        if self.round.admission is not None:
            return self.round.versions
        return range(self.weights.version, self.weights.version + 1)

    @property
    def is_evaluation(self) -> bool:
        return self.round.is_evaluation

    @property
    def trains(self) -> bool:
        """True if the round's groups are trained: not those of an evaluation, and of no run without
        learners."""
        return bool(self.run.learners) and not self.is_evaluation

    @property
    def overlaps(self) -> bool:
        """True if the engines generate while other steps train."""
        return self.round.overlaps

    def scheduler(self) -> RoundScheduler:
        """The scheduler of the round: the policy's, or an evaluation's, which waits for all."""
        if self.is_evaluation:
            return WaitForAll(self.round)
        return self.run.scheduling.scheduler(self.round)


def store_of(plan: StepPlan) -> Store:
    """The store of this step's records; evaluations have a store of their own."""
    store = plan.run.open_store()
    return store.child(EVALUATION) if plan.is_evaluation else store


def journal_of(plan: StepPlan) -> Journal:
    """The journal of this step's responses."""
    from artifacts.journal import Journal  # pyarrow with it, which settings need not

    return Journal(store_of(plan))
