"""The variants of the ablations, as what they change of one preset, and the runs that compare them.

    repeat 1: every variant, as a user starts it ─▶ repeat 2: the same, rotated by one ─▶ ...

Runs of a repeat have one seed, so they are asked the same questions, and follow each other, so that
a machine that gets slower does so for all of them. Pure. Leaves out the running (`ablation`).

    VARIANTS     each part of RollPacker on top of those before it
    ASYNCHRONY   async ratios; all score per response, with the preset's own limits of running
                 times. The records of `sync`, where both devices generate and then train, tell
                 what the others could be at best (`ideal_steps`)
    VALIDATED    what a user compares: the presets as they are, with rounds that are plain or
                 RollPacker's
    SERVED       the same with verdicts of a service, none of which waits for another
                 (`verdict_service`)
    OPEN         what a run pays for being open to elastic workers while none comes
    ETA          eta on prompts alone, on responses alone, and on both (RollPacker's Figure 11);
                 all but `sync` score per response, which acceptance needs
    ADAPTED      an adapter beside all weights, by learning rate
    LEVELS       rounds of more than two levels beside tail batching. `multilevel` trains every
                 response that it asks for, so that it compares with `unbiased` and `scoring`;
                 `stream` is RollPacker as published, which trains the first of each group to finish
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel

from flows.commands.command_line import assemble
from flows.config.run_config import RunConfig
from research.ablations.verdict_service import PORT
from tasks.scheduling.policies.multilevel import LEVEL_ETA
from tasks.scheduling.policies.registry import POLICIES

CODE_REWARD = "rewards.code."  # settings below it are for tasks with programs only
FIXED = ("rewards.code.timeout.floor_s=30",)  # which is the longest, too
FEWEST_ASKED = 2  # held-out prompts of a run that is not asked for more: they say nothing
SYNC = ("scheduling.kind=sync",)
COMPARABLE = (  # with synchronous variants
    "scheduling.drain=false",  # the drain trains groups that they do not
    "scheduling.dynamic_sampling=0",  # nor have they a second wave
)
TAIL = ("scheduling.kind=tail_batching", *COMPARABLE)
PLANNER = ("planner.enabled=true",)
STREAM = (
    "stream_trainer.enabled=true",
    "stream_trainer.last_milestone=0.9",
    "stream_trainer.max_running_per_engine=8",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationVariant:
    """A line of the table."""

    label: str  # what a reader sees
    over: str  # the variant that it adds something to; empty for the first
    settings: tuple[str, ...]  # FIELD=VALUE over the preset


VARIANTS: Mapping[str, AblationVariant] = {
    "sync": AblationVariant(
        label="sync: rewards after the rollout, 30 s a test case",
        over="",
        settings=(*SYNC, "scheduling.reward_timing=after_rollout", *FIXED),
    ),
    "tail": AblationVariant(
        label="+ tail batching, rewards per response",
        over="sync",
        settings=(*TAIL, *FIXED),
    ),
    "reward": AblationVariant(
        label="+ reward scheduler: adaptive time limits", over="tail", settings=TAIL
    ),
    "planner": AblationVariant(
        label="+ parallelism planner", over="reward", settings=(*TAIL, *PLANNER)
    ),
    "stream": AblationVariant(
        label="+ stream trainer: all of RollPacker",
        over="planner",
        settings=(*TAIL, *PLANNER, *STREAM),
    ),
    "scoring": AblationVariant(
        label="sync with rewards per response, 30 s a test case",
        over="sync",
        settings=(*SYNC, *FIXED),
    ),
    "overlap": AblationVariant(
        label="overlap: this with the stream trainer (RLHFuse)",
        over="scoring",
        settings=(*SYNC, *FIXED, *STREAM),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One variant in one repeat."""

    variant: str
    repeat: int  # from 1
    assignments: tuple[str, ...]  # FIELD=VALUE over the preset, all of them
    config: RunConfig  # what they come to

    @property
    def run_name(self) -> str:
        return f"{self.variant}-r{self.repeat}"


def plan(
    preset: str,
    names: Sequence[str],
    num_steps: int,
    repeats: int,
    settings: Sequence[str] = (),
    variants: Mapping[str, AblationVariant] = VARIANTS,
) -> Iterator[Job]:
    """Every run of these variants in order; each repeat begins one later than the one before."""
    for repeat in range(1, repeats + 1):
        turn = (repeat - 1) % len(names)
        for name in (*names[turn:], *names[:turn]):
            yield job_of(preset, name, num_steps, repeat, settings, variants)


def job_of(
    preset: str,
    variant: str,
    num_steps: int,
    repeat: int,
    settings: Sequence[str] = (),
    variants: Mapping[str, AblationVariant] = VARIANTS,
) -> Job:
    """A variant's run; a setting of the user's outweighs the variant's. ValueError for what
    RunConfig refuses.

    What a variant says of programs is left out where the preset has none, and a setting that only
    other policies have than the variant's own.
    """
    own = variants[variant].settings
    named = [setting for setting in own if setting.startswith("scheduling.")]
    policy = RunConfig.model_validate(assemble(preset, "", named)).scheduling
    settings = [setting for setting in settings if not _is_foreign(setting, type(policy))]
    unprogrammed = [setting for setting in own if not setting.startswith(CODE_REWARD)]
    rewards = RunConfig.model_validate(assemble(preset, "", [*unprogrammed, *settings])).rewards
    assignments = (
        f"run_name={variant}-r{repeat}",
        f"seed={repeat}",
        f"num_steps={num_steps}",
        f"evaluation.num_prompts={FEWEST_ASKED}",
        "evaluation.responses_per_prompt=1",
        "cluster.dashboard_port=0",
        f"keep.checkpoint_every_steps={num_steps + 1}",
        *(own if "code" in rewards else unprogrammed),
        *settings,
    )
    config = RunConfig.model_validate(assemble(preset, "", assignments))
    return Job(variant=variant, repeat=repeat, assignments=assignments, config=config)


def _is_foreign(setting: str, policy: type[BaseModel]) -> bool:
    """Whether only other policies than this one have the field that is set."""
    section, _, name = setting.partition("=")[0].rpartition(".")
    is_known = any(name in other.model_fields for other in POLICIES)
    return section == "scheduling" and is_known and name not in policy.model_fields


A_DEVICE_EACH = ("cluster.roles=rollout: 0, learner: 1",)
ASYNCHRONOUS = ("scheduling.kind=asynchronous",)
IN_TURN = (*ASYNCHRONOUS, "scheduling.at_update=pause")
SPECULATIVE = ("scheduling.response_overprovision=1.125",)  # as the presets' tail batching has it

ASYNCHRONY: Mapping[str, AblationVariant] = {
    "sync": AblationVariant(
        label="sync: both devices generate, then train", over="", settings=SYNC
    ),
    "tail": AblationVariant(label="tail batching", over="sync", settings=(*TAIL, *SPECULATIVE)),
    "apart": AblationVariant(
        label="sync, a device each for rollout and learner",
        over="sync",
        settings=(*SYNC, *A_DEVICE_EACH),
    ),
    "async-half": AblationVariant(
        label="asynchronous, α ½, a device each",
        over="apart",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=0.5", *A_DEVICE_EACH),
    ),
    "async-one": AblationVariant(
        label="asynchronous, α 1, a device each",
        over="apart",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=1", *A_DEVICE_EACH),
    ),
    "async-two": AblationVariant(
        label="asynchronous, α 2, a device each",
        over="apart",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=2", *A_DEVICE_EACH),
    ),
    "async-colocated": AblationVariant(
        label="asynchronous, α 1, both devices do both",
        over="sync",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=1"),
    ),
    "in-turn": AblationVariant(
        label="asynchronous, α 1, both devices generate and train in turn",
        over="sync",
        settings=(*IN_TURN, "scheduling.async_ratio=1"),
    ),
    "in-turn-late": AblationVariant(
        label="asynchronous, α 1, in turn, what takes long up to two steps later",
        over="sync",
        settings=(*IN_TURN, "scheduling.async_ratio=1", "scheduling.extra_lag=2"),
    ),
    "tail-async": AblationVariant(
        label="asynchronous, α 1, nine responses for eight",
        over="async-one",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=1", *SPECULATIVE, *A_DEVICE_EACH),
    ),
}


VALIDATED: Mapping[str, AblationVariant] = {
    "sync": AblationVariant(
        label="sync: rewards per response", over="", settings=("scheduling.kind=sync",)
    ),
    "stream": AblationVariant(
        label="all of RollPacker",
        over="sync",
        settings=("scheduling.kind=tail_batching", "scheduling.drain=false", *STREAM),
    ),
}


ASKED = (
    "rewards.*.kind=service",
    f"rewards.*.url=http://127.0.0.1:{PORT}/?median_s=10",
    "deadlines.reward_s=600",
    "reward_workers=256",  # more than there are responses under way: none waits for another
)
SERVED: Mapping[str, AblationVariant] = {
    name: replace(ASYNCHRONY[name], settings=(*ASYNCHRONY[name].settings, *ASKED))
    for name in ("sync", "apart", "async-one", "async-two", "in-turn-late")
}


def _adapted(rank: int, times: int) -> AblationVariant:
    """An adapter at so many times the learning rate of the tiny preset, 2e-4."""
    return AblationVariant(
        label=f"adapter of rank {rank}, learning rate x {times}",
        over="weights",
        settings=(f"learner.lora.rank={rank}", f"learner.optimizer.learning_rate={2e-4 * times:g}"),
    )


ADAPTED: Mapping[str, AblationVariant] = {
    "weights": AblationVariant(label="all weights", over="", settings=()),
    **{f"rate-{times}": _adapted(8, times) for times in (1, 5, 10, 20)},
}


CLOSED = ("elastic.enabled=false", "seeding.enabled=false", "cluster.scheduler_port=0")

OPEN: Mapping[str, AblationVariant] = {
    "colocated": AblationVariant(
        label="colocated: no elastic workers, no token reports",
        over="",
        settings=(*CLOSED, "engine.report_tokens=0"),
    ),
    "reports": AblationVariant(
        label="+ token reports",
        over="colocated",
        settings=(*CLOSED, "engine.report_tokens=32"),
    ),
    "open": AblationVariant(
        label="+ open to elastic workers, with seeding; none comes",
        over="reports",
        settings=(
            "elastic.enabled=true",
            "seeding.enabled=true",
            "cluster.scheduler_port=0",
            "engine.report_tokens=32",
        ),
    ),
}


SWEPT = (1.125, 1.25, 1.5)
BOTH = 1.25


def _batched(prompts: float, responses: float, what: str) -> AblationVariant:
    return AblationVariant(
        label=f"tail batching, eta {max(prompts, responses):g} on {what}",
        over="sync",
        settings=(
            *TAIL,
            f"scheduling.prompt_overprovision={prompts:g}",
            f"scheduling.response_overprovision={responses:g}",
        ),
    )


def _swept() -> Iterator[tuple[str, AblationVariant]]:
    for eta in SWEPT:
        yield f"prompts-{eta:g}", _batched(eta, 1, "prompts")
        yield f"responses-{eta:g}", _batched(1, eta, "responses")
    yield f"both-{BOTH:g}", _batched(BOTH, BOTH, "prompts and responses")


ETA: Mapping[str, AblationVariant] = {
    "sync": AblationVariant(
        label="sync: rewards after the rollout",
        over="",
        settings=(*SYNC, "scheduling.reward_timing=after_rollout"),
    ),
    **dict(_swept()),
}


LEVELS: Mapping[str, AblationVariant] = {
    "scoring": AblationVariant(label="sync with rewards per response", over="", settings=SYNC),
    "stream": AblationVariant(
        label="all of RollPacker: nine responses for eight", over="scoring", settings=TAIL + STREAM
    ),
    "unbiased": AblationVariant(
        label="the same with eight for eight",
        over="scoring",
        settings=(*TAIL, *STREAM, "scheduling.response_overprovision=1"),
    ),
    "multilevel": AblationVariant(
        label="three levels of rounds, half more prompts, eight for eight",
        over="scoring",
        settings=(
            "scheduling.kind=multilevel_batching",
            f"scheduling.prompt_overprovision={LEVEL_ETA}",
            *COMPARABLE,
            *STREAM,
            "stream_trainer.rule=devices",
        ),
    ),
}
