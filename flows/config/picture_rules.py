"""What a run with a model that takes pictures must leave out, because nobody has tried it yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flows.config.parts import Parts
from tasks.engines.model_files import takes_pictures
from tasks.rewards.judges.reward import judge_engine_of

PREFIX = "a model with a vision tower needs"


def check_pictures(config: Parts, model: Path) -> None:
    """Raises ValueError with the first setting that does not go with the model in this directory:
    pictures go through some parts of a run only."""
    if not takes_pictures(str(model)):
        if config.learner.vision == "trained":
            raise ValueError(
                f"learner.vision=trained needs a model with a vision tower, that in {model} has"
                " none; leave it out, or take another model"
            )
        return
    for broken in _not_yet(config):
        raise ValueError(broken)


def check_judge(model: Path) -> None:
    """Raises ValueError for a judge with a vision tower."""
    if takes_pictures(str(model)):
        raise ValueError(
            f"a judge must be a model of text alone, that in {model} has a vision tower; take"
            " another for the judge's engine.model"
        )


def _not_yet(config: Parts) -> Iterator[str]:
    learner, engine = config.learner, config.engine
    if engine.kind != "vllm":
        yield f"{PREFIX} engine.kind=vllm, got {engine.kind!r}; set it"
    if config.cluster.device_kind != "cpu":
        yield (
            f"{PREFIX} cluster.device_kind=cpu, where alone pictures were tried, got"
            f" {config.cluster.device_kind!r}; set it, or take a model of text"
        )
    if engine.tensor_parallel_size > 1:
        yield (
            f"{PREFIX} engine.tensor_parallel_size=1, got {engine.tensor_parallel_size}: the tower"
            " is not spread over devices; set it"
        )
    if learner.lora.rank and learner.vision == "trained":
        yield (
            f"{PREFIX} learner.vision=frozen beside an adapter, which is of the decoder alone, got"
            " learner.vision=trained; leave it or learner.lora out"
        )
    if learner.lora.rank and learner.parameters == "sharded":
        yield (
            f"{PREFIX} learner.parameters=replicated beside an adapter, got 'sharded': the tower"
            " is whole on every rank; set it"
        )
    if learner.has_critic:
        yield (
            f"{PREFIX} an advantage without a critic, got learner.advantage.kind=gae: a critic has"
            " no eyes; take another"
        )
    if judge_engine_of(config.rewards) is not None:
        yield f"{PREFIX} a reward without a judge, which has no eyes; take another reward"
