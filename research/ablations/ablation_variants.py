"""The variants of the ablation, as what they change of one preset, and the runs that compare them.

    repeat 1: every variant, as a user starts it ─▶ repeat 2: the same, rotated by one ─▶ ...

Runs of a repeat have one seed, so they are asked the same questions, and follow each other, so that
a machine that gets slower does so for all of them. Pure. Leaves out the running (`ablation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from flows.commands.command_line import assemble
from flows.config.run_config import RunConfig
from tasks.scheduling.policies.registry import POLICIES

CODE_REWARD = "rewards.code."  # settings below it are for tasks with programs only
FIXED = ("rewards.code.timeout.floor_s=30", "rewards.code.timeout.ceiling_s=30")
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
