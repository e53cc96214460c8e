"""The figures of a simulated run: parts, tokens and bubbles of each step, and means over the
run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifacts.records import Fate, Span
from artifacts.reports.timeline import attributed_s, bubble_shares, device_times, length, union
from tasks.rounds.records import RoundResult
from tasks.rounds.report import RolloutReport, round_report
from tasks.scheduling.events import RoundPlan
from tasks.simulation.cluster import Cluster
from tasks.simulation.trained_round import SimulatedTraining

# parts of a step, and the kind of work that each is; a moment of two parts belongs to the earlier
PARTS: Mapping[str, str] = {
    "relayout": "wake",
    "rollout": "rollout",
    "reward": "reward",
    "free": "sleep",
    "train": "train",
    "update": "update",
    "publish": "publish",
}
IDLE = "idle"  # the part in which nothing works


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedGroup:
    """Token counts of a trained prompt and of its trained responses."""

    prompt_tokens: int
    response_tokens: tuple[int, ...]  # sampled tokens of each


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """The figures of one step."""

    step: int  # from 1
    kind: str  # of its round, as its policy names it
    is_drain: bool  # whether it came after the planned ones
    tensor_parallel_size: int  # of its engines
    start_s: float
    end_s: float
    parts_s: Mapping[str, float]  # seconds by part; they sum to the step
    reward_wait_s: float  # in which its round waited for verdicts alone
    train_device_s: float  # device seconds of training
    bubbles: Mapping[str, float]  # share of all device seconds by cause
    tokens: Mapping[str, int]  # sampled tokens by fate
    num_generated: int  # tokens that its engines generated, as they counted them
    groups: tuple[TrainedGroup, ...]  # in acceptance order
    longest_tokens: int  # of its responses that ended by themselves or at their bound
    num_preemptions: int
    kv_usage_max: float  # the fullest KV cache, 0..1
    num_migrated: int  # responses that changed engines
    num_freed: int  # learner ranks that were freed before the round was over
    num_streamed: int  # groups of which something was trained before it was over
    left_share: float  # of its rollout, when devices first went over to training; 0 if none did
    trained: Sequence[str]  # ids of the prompts that ranks trained, in acceptance order
    num_trained_responses: int
    deferred: Sequence[str]  # prompt ids for the long-prompt queue

    @property
    def step_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def rollout_s(self) -> float:
        """Seconds in which some engine generated."""
        return self.parts_s["rollout"]

    @property
    def reward_s(self) -> float:
        """Seconds of scoring that no rollout hides."""
        return self.parts_s["reward"]

    @property
    def train_s(self) -> float:
        """Seconds of training that neither rollout nor reward hides."""
        return self.parts_s["train"]

    @property
    def relayout_s(self) -> float:
        return self.parts_s["relayout"]

    @property
    def tokens_trained(self) -> int:
        """Sampled tokens in trained groups."""
        return self.tokens[Fate.TRAINED]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRun:
    """The figures of a run, step by step."""

    steps: tuple[PlayedStep, ...]

    @property
    def planned(self) -> PlayedRun:
        """The run without its drain steps, which train the groups that the planned steps left."""
        return PlayedRun(steps=tuple(step for step in self.steps if not step.is_drain))

    def after(self, num_steps: int) -> PlayedRun:
        """Returns the run without its first num_steps steps."""
        return PlayedRun(steps=self.steps[num_steps:])

    def mean(self, figure: str) -> float:
        """The mean of an attribute of the steps, by its name. ValueError without steps."""
        if not self.steps:
            raise ValueError(f"a mean of {figure} needs at least one step, got none; play more")
        return sum(float(getattr(step, figure)) for step in self.steps) / len(self.steps)

    def total(self, figure: str) -> float:
        """The sum of an attribute of the steps, by its name."""
        return sum(float(getattr(step, figure)) for step in self.steps)

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens of trained groups per second."""
        return self.total("tokens_trained") / self.total("step_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """Plan, report and token counts of a played round, without its responses."""

    plan: RoundPlan
    report: RolloutReport
    groups: tuple[TrainedGroup, ...]  # in acceptance order
    spans: tuple[Span, ...]  # of generation and of scoring
    tensor_parallel_size: int
    num_generated: int  # tokens that the engines counted


async def record_of(plan: RoundPlan, result: RoundResult, cluster: Cluster) -> RoundRecord:
    """Returns the record of a round that the engines of this cluster have just played."""
    readings = await cluster.readings()
    report = round_report(result, readings, cluster.devices, is_evaluation=False)
    scoring = union((score.started_s, score.finished_s) for score in result.scores)
    scored = (
        Span(device="host", actor="rewards", kind="reward", start_s=start_s, end_s=end_s)
        for start_s, end_s in scoring
    )
    groups = (
        TrainedGroup(
            prompt_tokens=len(group.prompt.token_ids),
            response_tokens=tuple(response.generated.num_sampled for response in group.responses),
        )
        for group in result.groups
    )
    return RoundRecord(
        plan=plan,
        report=report,
        groups=tuple(groups),
        spans=(*report.spans, *scored),
        tensor_parallel_size=cluster.size,
        num_generated=await cluster.take_generated(),
    )


def played_step(
    record: RoundRecord,
    training: SimulatedTraining,
    spans: Sequence[Span],
    devices: Sequence[str],
    start_s: float,
    end_s: float,
) -> PlayedStep:
    """Compute the figures of a step. spans: the work of all devices between its start and its end;
    devices: those that generate or train."""
    plan, report = record.plan, record.report
    parts = {part for share in training.split for part, _ in share.parts}
    assert parts == set(report.accepted), "what is accepted is trained, and nothing else"
    times = device_times(spans, devices, start_s, end_s)
    shares, idle_s = attributed_s(spans, [*PARTS.values()], start_s, end_s)
    return PlayedStep(
        step=plan.step,
        kind=plan.kind,
        is_drain=plan.is_drain,
        tensor_parallel_size=record.tensor_parallel_size,
        start_s=start_s,
        end_s=end_s,
        parts_s={part: shares[kind] for part, kind in PARTS.items()} | {IDLE: idle_s},
        reward_wait_s=length(report.reward_waits),
        train_device_s=sum(
            span.end_s - span.start_s for span in training.spans if span.kind == "train"
        ),
        bubbles=bubble_shares(times),
        tokens=report.tokens,
        num_generated=record.num_generated,
        groups=record.groups,
        longest_tokens=max(report.lengths, default=0),
        num_preemptions=report.num_preemptions,
        kv_usage_max=report.kv_usage_max,
        num_migrated=report.num_migrated,
        num_freed=len(report.freed),
        num_streamed=training.num_streamed,
        left_share=left_share(spans),
        trained=report.accepted,
        num_trained_responses=sum(
            len(places) for share in training.split for _, places in share.parts
        ),
        deferred=report.deferred,
    )


def left_share(spans: Sequence[Span]) -> float:
    """Returns the share of the rollout's duration that is left when the first device switches to
    training; 0 without a rollout, or if no device switches."""
    rollout = [span for span in spans if span.kind == "rollout"]
    if not rollout:
        return 0.0
    began_s = min(span.start_s for span in rollout)
    ended_s = max(span.end_s for span in rollout)
    freed = (span.start_s for span in spans if span.kind in ("sleep", "train"))
    freed_s = max(began_s, min(freed, default=ended_s))
    return max(0.0, ended_s - freed_s) / (ended_s - began_s)
