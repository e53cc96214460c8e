"""The rows of `rollflow explain`: one training step in numbers.

prompts -> responses -> micro-batches -> optimizer updates -> largest staleness
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from artifacts.custom_part import CustomPart
from artifacts.models.size import ModelSize
from artifacts.records import BECOMES_OF_RUNNING
from flows.config.gpu_memory import cures, fullest_card, with_sleep
from flows.config.run_config import RunConfig
from tasks.cluster.devices import (
    device_map,
    engine_members,
    learners_per_machine,
    worker_specs,
)
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.lora_config import NO_ADAPTER
from tasks.learner.memory import (
    adapter_parameters,
    bytes_per_parameter,
    learner_memory,
    model_size,
    whole_bytes,
)
from tasks.rewards.judges.reward import JudgeConfig, judge_engine_of
from tasks.scheduling.batch import BatchAlgebra, times
from tasks.tiny_models.models import present_model

PAUSED = (
    "none: a round stops what is undecided when it closes, the devices train, and the next one goes"
    " on from the tokens that there are"
)


def algebra_rows(config: RunConfig, card: int | None = None) -> Iterator[tuple[str, str]]:
    """The batch algebra as (quantity, value with unit). card: bytes of each GPU, if known."""
    algebra = config.scheduling.algebra(config.batch)
    policy = config.scheduling
    own = f": {policy.name}" if isinstance(policy, CustomPart) else ""
    yield "scheduling policy", f"{policy.kind}{own}"
    for domain, reward in config.rewards.items():
        yield f"reward of {'other domains' if domain == '*' else domain}", reward.kind
    yield from _launch_rows(config, algebra)
    yield from _episode_rows(config)
    yield from _group_rows(algebra)
    yield from _load_rows(config, algebra)
    if config.trains:
        yield from _memory_rows(config, card)
    yield (
        "rewards",
        "when nothing generates any more"
        if algebra.scores_last
        else f"as each response finishes, up to {config.reward_workers} side by side",
    )
    yield from _judge_rows(config)
    yield from _update_rows(config) if config.trains else (("training", "none: no updates"),)
    yield "steps", f"{config.num_steps}{_pace(algebra)}"
    yield "prompts trained", f"about {config.num_steps * algebra.ordinary.accept_prompts}"
    evaluation = config.evaluation
    every = f"; x 1 every {evaluation.every_steps} steps" if evaluation.every_steps else ""
    if not config.trains:
        return
    times = config.learner.lora.answering.times
    each = f" x {times} adapters" if times > 1 else ""
    yield (
        "evaluation",
        f"{evaluation.num_prompts} held-out prompts{each} x {evaluation.responses_per_prompt}"
        f" responses, before and after{every}",
    )


def _launch_rows(config: RunConfig, algebra: BatchAlgebra) -> Iterator[tuple[str, str]]:
    rounds = algebra.rounds
    yield (
        "prompts launched per step",
        _launched([(shape.kind, shape.launch_prompts, shape.accept_prompts) for shape in rounds]),
    )
    yield (
        "responses launched per prompt",
        _launched(
            [(shape.kind, shape.launch_per_prompt, shape.accept_per_prompt) for shape in rounds]
        ),
    )
    yield (
        "responses launched per step",
        f"{algebra.ordinary.launch_responses}, at most {config.sampling.max_response_tokens}"
        " tokens each",
    )


def _episode_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    for domain, settings in config.environments.items():
        yield (
            f"an episode of {domain}",
            f"at most {settings.max_turns} turns of {config.episodes.max_turn_tokens} sampled"
            f" tokens, {config.sampling.max_response_tokens} tokens with what is given between",
        )
    if config.environments:
        hosts = config.episodes.hosts
        yield (
            "environments",
            f"up to {hosts.num_hosts} processes beside each engine, {hosts.memory_mb} MiB each",
        )


def _group_rows(algebra: BatchAlgebra) -> Iterator[tuple[str, str]]:
    ordinary = algebra.ordinary
    kept, launched = ordinary.accept_per_prompt, ordinary.launch_per_prompt
    yield (
        "groups trained per step",
        f"{ordinary.accept_prompts} of {kept} responses"
        f" = {ordinary.accept_prompts * kept} responses",
    )
    if launched > kept:
        bias = "short answers are favoured, not so where none is launched in vain"
        yield "acceptance within a prompt", f"the first {kept} verdicts of {launched}: {bias}"
    if algebra.dropped_prompts:
        yield (
            "prompts lost per step",
            f"{algebra.dropped_prompts} of {ordinary.launch_prompts}, those that finish last: short"
            " answers are favoured",
        )
    if algebra.reserve_prompts:
        yield (
            "groups whose rewards agree",
            f"replaced by up to {algebra.reserve_prompts} further prompts a step, of the same"
            " domains",
        )


def _load_rows(config: RunConfig, algebra: BatchAlgebra) -> Iterator[tuple[str, str]]:
    engines = len(engine_members(config.cluster, config.engine.tensor_parallel_size))
    ranks = sum(spec.role == "learner" for spec in worker_specs(config.cluster))
    share = algebra.under_way * (1 + algebra.mean_lag)
    under_way = times(share, algebra.ordinary.launch_responses)
    carried = ", with those that earlier rounds left" if algebra.is_off_policy else ""
    carried += ", the others wait for their turn" if algebra.under_way < 1 else ""
    yield (
        "requests per engine",
        f"{math.ceil(under_way / engines)} on each of {engines}{carried}",
    )
    if steps := config.engine.explain_steps(config.cluster.device_kind != "cuda"):
        yield "decode steps", steps
    if not config.trains:
        return
    yield (
        "micro-batches",
        f"packed to at most {config.learner.max_tokens_per_microbatch} tokens, shared prompts"
        f" once, on each of {ranks} ranks",
    )


def _update_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    yield "training in mid-round", _streams(config)
    yield "optimizer updates per step", _updates(config)
    yield "learning rate", _learning_rate(config)
    if config.learner.has_critic:
        whole = "; of the critic all weights are trained" if config.learner.lora.rank else ""
        yield "critic", config.learner.critic.explain() + whole
    loss = config.learner.loss
    yield "policy loss", f"{loss.kind}: {loss.explain()}"
    yield (
        "tokens of older weights",
        "corrected by the loss, with the engine's log-probabilities"
        if loss.corrects_staleness
        else "not corrected: the loss treats them as the learner's own",
    )
    yield "sequence mask", config.learner.sequence_mask.explain()
    algebra = config.scheduling.algebra(config.batch)
    yield "largest staleness", _staleness(algebra)
    if algebra.is_off_policy:
        becomes = PAUSED if algebra.pauses else BECOMES_OF_RUNNING[algebra.at_update]
        yield "responses that newer weights find running", becomes


def _updates(config: RunConfig) -> str:
    learner = config.learner
    updates = "1 (gradients summed over micro-batches and ranks, divided once)"
    if learner.num_updates > 1:
        algebra = config.scheduling.algebra(config.batch)
        groups = algebra.ordinary.accept_prompts / learner.mini_batches
        updates = (
            f"{learner.num_updates}: {learner.mini_batches} mini-batches of about {groups:.3g}"
            f" groups, gone over {learner.passes} times"
        )
    if learner.scores_first:
        return f"{updates}; every response is scored once more before the first"
    return updates


def _learning_rate(config: RunConfig) -> str:
    optimizer, last = config.learner.optimizer, config.num_steps
    schedule = optimizer.explain()
    if optimizer.warmup_steps > last:
        return f"{schedule}; the run ends before, at {optimizer.rate(last):g}"
    return schedule


def _judge_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    engine = judge_engine_of(config.rewards)
    if engine is not None:
        domains = ", ".join(
            domain for domain, reward in config.rewards.items() if isinstance(reward, JudgeConfig)
        )
        judges = sum(spec.role == "judge" for spec in worker_specs(config.cluster))
        yield (
            "judges",
            f"{judges} of model {engine.model.kind}, placement {engine.placement}, for the"
            f" responses of {domains}",
        )


def _streams(config: RunConfig) -> str:
    trainer = config.stream_trainer
    if not trainer.enabled:
        return "no: all ranks begin when the round is closed"
    if config.scheduling.algebra(config.batch).overlaps:
        return (
            "group by group as they are accepted, once the step before it is committed; no engine"
            " makes room"
        )
    bounded = "each engine" if trainer.rule == "milestones" else "each device of an engine"
    return (
        f"on devices freed when {trainer.first_milestone:.0%} to {trainer.last_milestone:.0%} of"
        f" the groups are accepted and at most {trainer.max_running_per_engine} responses run on"
        f" {bounded} that stays"
    )


def _launched(counts: Sequence[tuple[str, int, int]]) -> str:
    if len({number for _, *numbers in counts for number in numbers}) == 1:
        return f"{counts[0][1]}"
    return ", ".join(
        f"{launched} in {'an' if kind[0] in 'aeiou' else 'a'} {kind} {'one' if index else 'round'}"
        + (f" ({kept} kept)" if kept != launched else "")
        for index, (kind, launched, kept) in enumerate(counts)
    )


def _staleness(algebra: BatchAlgebra) -> str:
    """Largest and mean age of the weights that sampled a trained token."""
    if not algebra.is_off_policy:
        return "0 steps: every trained token was sampled by the weights that the update starts from"
    bound = "without a bound" if algebra.max_lag is None else f"{algebra.max_lag} steps"
    if algebra.pauses:
        return f"{bound}; {algebra.mean_lag:g} on average"
    mean = f"{algebra.mean_lag:g} on average while training is what generation waits for"
    return f"{bound}; {mean}, fewer where training waits for generation"


def _pace(algebra: BatchAlgebra) -> str:
    rarest = min(algebra.rounds, key=lambda shape: shape.frequency)
    others = [
        f"{shape.frequency:g} {shape.kind} rounds"
        for shape in algebra.rounds
        if shape is not rarest
    ]
    pace = f", {' and '.join(others)} for each {rarest.kind} one" if others else ""
    if not algebra.max_drain_steps:
        return pace
    return f"{pace}, and up to {algebra.max_drain_steps} more to drain the long-prompt queue"


def _memory_rows(config: RunConfig, card: int | None) -> Iterator[tuple[str, str]]:
    """Memory of a rank, sharded and replicated; in bytes too if the model is on this machine, and
    then the sum of the fullest GPU."""
    found = present_model(config.model, Path(config.keep.model_cache))
    size = None if found is None else model_size(found)
    learner, num_ranks = config.learner, len(device_map(config.cluster)["learner"])
    per_machine = learners_per_machine(config.cluster)
    if learner.lora.rank:
        yield "what is trained", _adapter(learner, num_ranks, size)
    yield "learner memory", _memory(learner, num_ranks, size, per_machine)
    if num_ranks > 1 and not learner.has_critic:
        other = "replicated" if learner.parameters == "sharded" else "sharded"
        changed = learner.model_copy(update={"parameters": other})
        yield f"if it were {other}", _memory(changed, num_ranks, size, per_machine)
    if size is not None and (card or config.cluster.device_kind != "cpu"):
        rested = with_sleep(config, size, card)
        fullest = fullest_card(rested, size, card)
        told = fullest.explain()
        if card and not fullest.fits:
            told += (
                f"; does not fit: {', or '.join(cures(rested, size, card)) or 'no setting helps'}"
            )
        yield f"memory of GPU {fullest.device}", told


def _adapter(learner: LearnerConfig, num_ranks: int, size: ModelSize | None) -> str:
    """What an adapter is, and the memory that it saves beside training all weights."""
    told = learner.lora.explain()
    if size is None:
        return told
    number = adapter_parameters(learner.lora, size)
    all_weights = learner.model_copy(update={"lora": NO_ADAPTER})
    few, many = (_trained_bytes(each, num_ranks, size) for each in (learner, all_weights))
    return (
        f"{told}: {number / 1e6:.3g} million parameters of {size.num_parameters / 1e6:.4g};"
        f" gradients, masters and moments take {few / 1e9:.2g} GB on a rank, of all weights"
        f" {many / 1e9:.3g} GB"
    )


def _trained_bytes(learner: LearnerConfig, num_ranks: int, size: ModelSize) -> int:
    held = learner_memory(learner, size, num_ranks, 1).held
    return sum(held[name] for name in ("gradients", "masters", "moments"))


def _memory(
    learner: LearnerConfig, num_ranks: int, size: ModelSize | None, per_machine: int
) -> str:
    each = bytes_per_parameter(learner, num_ranks, per_machine)
    room = f"10 GB hold {10 / each:.2g} billion"
    over = f"{num_ranks}"
    if learner.parameters == "sharded" and per_machine < num_ranks:
        over = f"the {per_machine} of each machine"
    rate = f"{learner.parameters} over {over}: {each:.3g} bytes a parameter on each, {room}"
    if size is None:
        return f"{rate}; activations come on top"
    whole = whole_bytes(learner, size, num_ranks, per_machine)
    moment = f" and {whole / 1e9:.2g} GB for a moment" if whole else ""
    held = each * size.num_parameters / 1e9
    return f"{rate}; here {held:.2g} GB{moment}; activations come on top"
