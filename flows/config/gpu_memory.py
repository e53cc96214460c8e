"""Predicts the memory of every GPU of a run, has engines sleep where that sum asks for it, and
refuses a configuration that cannot fit, with the settings that make it fit.

    publication  engine's share + judge's share + what the learner holds + buffers ┐ the larger
    training     engine's share, unless it sleeps + judge's likewise + learner     ┘ of both
    always       a CUDA context for each process

An engine takes its share (engine.gpu_memory_utilization) at its start, CUDA graphs included, and
makes a KV cache of what weights and passes leave of it. Leaves out what torch's allocator loses
between its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from artifacts.models.size import ModelSize
from flows.config.consistency import transport_for
from flows.config.parts import Parts
from tasks.cluster.cards import GB
from tasks.cluster.devices import device_map, learners_per_machine
from tasks.learner.memory import (
    LearnerMemory,
    learner_memory,
    transfer_bytes,
)
from tasks.rewards.judges.reward import judge_engine_of

CONTEXT = 600 * 2**20  # bytes of a process with a GPU besides its tensors: assumed, not measured
ROW_STEP = 256  # tokens by which proposed rows differ
SLEEP_SHARE = 0.75  # of a GPU of unknown size, beyond which an engine sleeps beside a learner


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMemory:
    """The predicted memory of a GPU, in bytes."""

    device: int  # its number in cluster.roles
    card: int | None  # memory of the GPU; None if it is not known
    engine: int  # the engine's share, or the least that it needs where the GPU is not known
    engine_needs: int  # weights, passes, and the KV cache of one response
    engine_sleeps: bool
    judge: int  # the judge's share; 0 where the GPU is not known
    judge_sleeps: bool
    learner: LearnerMemory | None
    transfer: int  # besides, while weights get from the learner to the engine
    contexts: int
    row_tokens: int  # of the learner's largest row

    @property
    def total(self) -> int:
        """The most bytes at any time."""
        held = sum(self.learner.held.values()) if self.learner else 0
        peak = self.learner.peak if self.learner else 0
        engine = 0 if self.engine_sleeps else self.engine
        judge = 0 if self.judge_sleeps else self.judge
        published = self.engine + self.judge + held + self.transfer
        return max(published, engine + judge + peak) + self.contexts

    @property
    def fits(self) -> bool:
        """True if the GPU holds all, and the engine's share what it needs."""
        return self.card is None or (
            self.total <= self.card and (not self.engine or self.engine >= self.engine_needs)
        )

    def explain(self) -> str:
        """The sum in words, in GB."""
        told = []
        if self.engine:
            least = f"at least {_gb(self.engine_needs)} for weights, a pass and one response"
            told.append(f"engine {_gb(self.engine)} ({least})")
        if self.judge:
            told.append(f"judge {_gb(self.judge)}")
        if self.learner:
            held = ", ".join(f"{name} {_gb(size)}" for name, size in self.learner.held.items())
            row = ", ".join(f"{name} {_gb(size)}" for name, size in self.learner.row.items())
            told.append(
                f"learner {_gb(self.learner.peak)} ({held}; in a row of {self.row_tokens} tokens"
                f" {row})"
            )
        if self.transfer:
            told.append(f"weights on their way {_gb(self.transfer)} (not while rows train)")
        told.append(f"CUDA contexts {_gb(self.contexts)}")
        sleeps = ", the engine asleep while the learner trains" if self.engine_sleeps else ""
        of = "" if self.card is None else f" of {_gb(self.card)}"
        return f"{' + '.join(told)}{sleeps}: {_gb(self.total)}{of} GB"


def _gb(size: int) -> str:
    return f"{size / GB:.3g}"


def cards_of(config: Parts, size: ModelSize, card: int | None) -> list[CardMemory]:
    """The memory of every GPU of the run. card: bytes of each GPU, if they are known."""
    placed = device_map(config.cluster)
    needs = config.engine.least_gpu_bytes(size)
    judge = judge_engine_of(config.rewards)
    row_tokens = max(config.learner.max_tokens_per_microbatch, config.engine.max_model_len)
    num_ranks, per_machine = max(1, len(placed["learner"])), learners_per_machine(config.cluster)
    learner = learner_memory(config.learner, size, num_ranks, row_tokens, per_machine)
    share = needs if card is None else int(config.engine.gpu_share * card)
    judge_share = int(judge.gpu_memory_utilization * card) if judge and card else 0
    kind = transport_for(config)
    offered, received = transfer_bytes(config.learner, size, kind, num_ranks, per_machine)
    senders = placed["learner"][:1] if kind == "broadcast" else placed["learner"]
    return [
        CardMemory(
            device=device,
            card=card,
            engine=share if device in placed["rollout"] else 0,
            engine_needs=needs,
            engine_sleeps=config.engine.sleeps,
            judge=judge_share if device in placed.get("judge", ()) else 0,
            judge_sleeps=judge is not None and judge.placement == "sleep",
            learner=learner if device in placed["learner"] else None,
            transfer=offered * (device in senders) + received * (device in placed["rollout"]),
            contexts=CONTEXT * sum(device in devices for devices in placed.values()),
            row_tokens=row_tokens,
        )
        for device in sorted({device for devices in placed.values() for device in devices})
    ]


def fullest_card(config: Parts, size: ModelSize, card: int | None) -> CardMemory:
    """The GPU that needs the most memory, or one that does not fit."""
    return max(cards_of(config, size, card), key=lambda each: (not each.fits, each.total))


def with_sleep(config: Parts, size: ModelSize, card: int | None) -> Parts:
    """The configuration with "auto" of engine.sleep_mode decided: engines sleep where they can and
    the run does not fit GPUs of `card` bytes with them awake; where the size of the GPUs is not
    known, if they take most of one that a learner has, too."""
    asleep = next((changed for _, changed in _sleeping(config)), None)
    if asleep is None or getattr(config.engine, "sleep_mode", None) != "auto":
        return config
    awake = (
        fullest_card(config, size, card).fits if card else config.engine.gpu_share <= SLEEP_SHARE
    )
    return config if awake else asleep


def check_gpu_memory(config: Parts, size: ModelSize, card: int | None) -> None:
    """Raise ValueError for a configuration that GPUs of `card` bytes cannot hold, with the settings
    that make it fit. Checks nothing if the size of the GPUs is not known."""
    worst = fullest_card(config, size, card)
    if card is None or worst.fits:
        return
    found = cures(config, size, card)
    cure = f"set {', or '.join(found)}" if found else "no setting helps: take a smaller model, or"
    cure += "" if found else " more GPUs with learner.parameters=sharded"
    raise ValueError(f"GPU {worst.device} must hold what runs there, got {worst.explain()}; {cure}")


def cures(config: Parts, size: ModelSize, card: int) -> list[str]:
    """The fewest settings with which the run fits, alternatives side by side; empty if none do."""
    steps: tuple[Callable[[Parts], Iterator[tuple[str, Parts]]], ...] = (
        _recomputing,
        _after_the_round,
        _sharded,
        _sleeping,
        lambda changed: _smaller_share(changed, size, card),
        lambda changed: _shorter_rows(changed, size, card),
    )
    for number in range(1, len(steps) + 1):
        found = []
        for chosen in combinations(steps, number):
            changed, told = config, list[str]()
            for step in chosen:
                for name, following in step(changed):
                    told.append(name)
                    changed = following
            if len(told) == number and fullest_card(changed, size, card).fits:
                found.append(" and ".join(told))
        if found:
            return found
    return []


def _with(config: Parts, part: str, **values: Any) -> Parts:  # Any: values of fields
    changed = getattr(config, part).model_copy(update=values)
    return config.model_copy(update={part: changed})


def _recomputing(config: Parts) -> Iterator[tuple[str, Parts]]:
    if not config.learner.recompute_layers:
        yield "learner.recompute_layers=true", _with(config, "learner", recompute_layers=True)


def _after_the_round(config: Parts) -> Iterator[tuple[str, Parts]]:
    """Train when the round is over: only then can parameters be sharded."""
    enabled = [part for part in ("stream_trainer", "seeding") if getattr(config, part).enabled]
    changed = config
    for part in enabled:
        changed = _with(changed, part, enabled=False)
    if enabled:
        yield " and ".join(f"{part}.enabled=false" for part in enabled), changed


def _sharded(config: Parts) -> Iterator[tuple[str, Parts]]:
    is_alone = len(device_map(config.cluster)["learner"]) < 2
    in_mid_round = config.stream_trainer.enabled or config.seeding.enabled
    if not (is_alone or in_mid_round or config.learner.has_critic or config.learner.ranks_in_step):
        yield "learner.parameters=sharded", _with(config, "learner", parameters="sharded")


def _sleeping(config: Parts) -> Iterator[tuple[str, Parts]]:
    placed = device_map(config.cluster)
    is_shared = bool(set(placed["rollout"]) & set(placed["learner"]))
    overlaps = config.scheduling.algebra(config.batch).overlaps
    on_gpu = config.cluster.device_kind == "cuda" and config.engine.gpu_share > 0
    if (
        is_shared
        and on_gpu
        and not config.stream_trainer.enabled
        and not overlaps
        and not config.engine.sleeps
    ):
        yield "engine.sleep_mode=true", _with(config, "engine", sleep_mode=True)


def _smaller_share(config: Parts, size: ModelSize, card: int) -> Iterator[tuple[str, Parts]]:
    """The largest share with which all fits, or the least that the engine starts with."""
    if not config.engine.gpu_share:
        return
    least = max(1, -(-100 * config.engine.least_gpu_bytes(size) // card))
    for percent in range(round(100 * config.engine.gpu_share) - 1, least - 1, -1):
        changed = _with(config, "engine", gpu_memory_utilization=percent / 100)
        if percent == least or fullest_card(changed, size, card).fits:
            yield f"engine.gpu_memory_utilization={percent / 100:g}", changed
            return


def _shorter_rows(config: Parts, size: ModelSize, card: int) -> Iterator[tuple[str, Parts]]:
    """The longest rows with which all fits; none is shorter than the longest response."""
    longest, shortest = config.learner.max_tokens_per_microbatch, config.engine.max_model_len
    first = -(-shortest // ROW_STEP) * ROW_STEP
    for tokens in range((longest - 1) // ROW_STEP * ROW_STEP, first - 1, -ROW_STEP):
        changed = _with(config, "learner", max_tokens_per_microbatch=tokens)
        if tokens == first or fullest_card(changed, size, card).fits:
            yield f"learner.max_tokens_per_microbatch={tokens}", changed
            return
