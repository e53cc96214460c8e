"""What the tasks of a step are told: references and small records, never rows or tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from artifacts.datasets.choice import Dataset, TaskConfig, load_dataset
from artifacts.journal import Journal
from artifacts.records import Prompt, WeightsRef
from artifacts.store import Store
from tasks.engines.sampling import SamplingConfig
from tasks.environments.single_turn import render
from tasks.learner.advantage import AdvantageConfig
from tasks.learner.overlong import OverlongConfig
from tasks.rewards.registry import RewardConfig
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.policies.registry import SchedulingConfig
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.scheduling.wait_for_all import WaitForAll

HELDOUT = "heldout"  # the epoch's place in the id of a held-out prompt: "heldout/<row>"
BUFFER = "sample-buffer"  # name of the sample buffer's actor
EVALUATION = "evaluation"  # folder of a run in which the responses of evaluations are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long a wait may last before it ends with an error that says what it waited for,
    seconds."""

    progress_s: float  # a round without a token, a response or a verdict
    engine_call_s: float  # one call to an engine
    learner_call_s: float  # one call to a learner rank, a whole accumulation included


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What stays the same through a run."""

    run_id: str
    artifact_root: str  # fsspec URL
    seed: int
    task: TaskConfig
    rewards: Mapping[str, RewardConfig]  # by domain, "*" for the rest
    model_path: str  # Hugging Face directory: tokenizer, and version 0 of the weights
    max_prompt_tokens: int  # what the engines' context leaves for the prompt
    sampling: SamplingConfig
    engines: tuple[str, ...]  # actor names of the rollout replicas
    learners: tuple[str, ...]  # actor names of the learner ranks, by rank
    devices: Mapping[str, str]  # device of every actor, for the timeline
    reward_workers: int  # responses scored side by side
    max_infra_fraction: float  # share of responses without a verdict above which the run stops
    weights_dir: (
        str  # where weight versions are handed over; memory-backed if the machine has such a place
    )
    probes: tuple[
        tuple[int, ...], ...
    ]  # fixed token sequences of the sync gate; empty switches the gate off
    gate_tolerance_nats: (
        float  # mean absolute difference of log-probability that the gate still accepts
    )
    # whether groups of equal rewards cost the learner something (LearnerConfig.flat_groups_cost)
    flat_groups_cost: bool
    advantage: AdvantageConfig  # what a reward is worth within its group
    overlong: OverlongConfig  # what training makes of responses that are too long
    row_tokens: (
        int  # computed tokens of a full learner row: the most that a freed rank is given at once
    )
    scheduling: SchedulingConfig  # what the rounds of the steps are
    stream_trainer: StreamTrainerConfig  # when devices stop generating in mid-round
    deadlines: Deadlines
    engines_rest: bool = (
        False  # whether engines give their GPUs back for the training (EngineConfig.sleep_mode)
    )
    judges: tuple[str, ...] = ()  # actor names of the judges; none without a judge reward
    judge_model_path: str = ""  # Hugging Face directory of their model
    unfit: frozenset[int] = (
        frozenset()
    )  # rows that are never asked: too long, or not to be rendered
    unfit_heldout: frozenset[int] = frozenset()  # held-out rows of the same kind
    members: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # workers whose devices an engine holds, if not just its own

    def devices_of(self, actor: str) -> tuple[str, ...]:
        """The devices that an actor works on."""
        return tuple(self.devices[worker] for worker in self.members.get(actor, (actor,)))

    def with_engines(self, members: Mapping[str, tuple[str, ...]]) -> RunContext:
        """The same run with these engines."""
        return replace(self, engines=tuple(members), members=members)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step: its round, and the weights that the engines hold when it begins."""

    run: RunContext
    round: RoundPlan
    weights: WeightsRef
    attempt: int  # 1, and one more after each recovery

    @property
    def step(self) -> int:
        return self.round.step

    @property
    def versions(self) -> range:
        """Weight versions whose tokens the round may train: the one that the engines hold."""
        return range(self.weights.version, self.weights.version + 1)

    @property
    def is_evaluation(self) -> bool:
        return self.round.is_evaluation

    def scheduler(self) -> RoundScheduler:
        """Who decides within the round; an evaluation waits for all that it asks."""
        if self.is_evaluation:
            return WaitForAll(self.round)
        return self.run.scheduling.scheduler(self.round)


@lru_cache(maxsize=4)
def _dataset(task_json: str, seed: int) -> Dataset:
    from pydantic import TypeAdapter

    return load_dataset(TypeAdapter[TaskConfig](TaskConfig).validate_json(task_json), seed)


def dataset_of(run: RunContext) -> Dataset:
    """The run's dataset; made once per process, the same in all of them."""
    return task_dataset(run.task, run.seed)


def task_dataset(task: TaskConfig, seed: int) -> Dataset:
    """A task's rows; made once per process. ValueError names a malformed one."""
    return _dataset(task.model_dump_json(), seed)


@lru_cache(maxsize=4)
def tokenizer_of(model_path: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer; loaded once per process."""
    return AutoTokenizer.from_pretrained(model_path)


def prompts_of(run: RunContext, refs: Sequence[PromptRef]) -> dict[str, Prompt]:
    """The prompts behind these references, rendered and tokenised, by id."""
    dataset, tokenizer = dataset_of(run), tokenizer_of(run.model_path)
    prompts: dict[str, Prompt] = {}
    for ref in refs:
        epoch, _, row = ref.prompt_id.partition("/")
        rows = dataset.heldout if epoch == HELDOUT else dataset.rows
        prompts[ref.prompt_id] = render(
            rows[int(row)], tokenizer, ref.prompt_id, run.max_prompt_tokens
        )
    return prompts


def heldout_refs(run: RunContext, num_prompts: int) -> tuple[PromptRef, ...]:
    """The first held-out prompts that can be asked."""
    rows = (
        (number, row)
        for number, row in enumerate(dataset_of(run).heldout)
        if number not in run.unfit_heldout
    )
    return tuple(
        PromptRef(prompt_id=f"{HELDOUT}/{number}", domain=row.domain)
        for number, row in islice(rows, num_prompts)
    )


def store_of(plan: StepPlan) -> Store:
    """Where this step's records lie; those of evaluations lie apart."""
    store = Store.open(plan.run.artifact_root).child(plan.run.run_id)
    return store.child(EVALUATION) if plan.is_evaluation else store


def journal_of(plan: StepPlan) -> Journal:
    """Where the responses of this step are recorded."""
    return Journal(store_of(plan))
