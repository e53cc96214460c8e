"""The report of a round, and the file by which the round is closed.

    RoundResult, SeedingWindow ─▶ round_report ─▶ close_round: rounds/00007.json ─▶ read_round

The closing is one atomic write, after the round's responses and groups are on disk and before
anything is trained on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar

from artifacts import layout
from artifacts.journal import PLAY_AGAIN
from artifacts.records import Span, response_id
from artifacts.reports.timeline import Interval
from artifacts.store import Store
from tasks.engines.base import EngineStats
from tasks.rounds.figures import (
    filtered_ids,
    ledger_of,
    lengths_of_decided,
    reward_waits,
    rollout_spans,
    trained_ids,
    unclaimed,
)
from tasks.rounds.records import InFlight, PlayedRound, RoundResult
from tasks.scheduling.events import Carry
from tasks.scheduling.ledger import Launched, acceptance_figures, fate_of
from tasks.scheduling.seeding import SeedingWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """The seeding window of one round, as its report keeps it. All times but `began_s` are seconds
    of the round."""

    began_s: float  # when the round began, Unix seconds
    window_s: float | None  # planned length of the window; None without a length
    closed_s: float | None  # when the window closed; None if it was open to the end
    is_early: bool  # whether it closed because nothing was left to generate
    freed_s: tuple[float, ...]  # when each learner that the round freed was free
    took_s: float  # seconds of the round, until none of its responses ran

    @property
    def own_s(self) -> float:
        """Seconds in which the run's own engines generated: the mean over the freed learners, or
        the whole round if none was freed."""
        return sum(self.freed_s) / len(self.freed_s) if self.freed_s else self.took_s

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:  # Any: JSON values
        return cls(**{**kept, "freed_s": tuple(kept["freed_s"])})


def window_record(window: SeedingWindow, result: RoundResult, began_s: float) -> WindowRecord:
    """The record of a round's window; the round began at began_s, Unix seconds."""
    return WindowRecord(
        began_s=began_s,
        window_s=window.window_s,
        closed_s=window.closed_s,
        is_early=window.is_early,
        freed_s=result.freed_s,
        took_s=result.took_s,
    )


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport(PlayedRound):
    """The report of a round; kept as JSON when the round closes."""

    tokens: Mapping[str, int]  # sampled tokens by fate
    lengths: tuple[int, ...]  # sampled tokens of every response that ended by itself or at a bound
    acceptance: Mapping[str, float]  # accepted against launched responses, by name of the metric
    num_preemptions: int  # of all engines in this round, those of aborted responses included
    spans: tuple[Span, ...]  # when each engine had a response to generate
    started_s: float  # first submission, Unix seconds
    finished_s: float  # last response
    kv_usage_max: float = 0.0  # the fullest that an engine's KV cache was in this round, 0..1
    num_migrated: int = 0  # responses that went on in another engine
    reward_waits: tuple[Interval, ...] = ()  # intervals in which the round waited only for verdicts
    # responses to the prompts that it trained, filtered or dropped, and their tokens
    num_decided_responses: int = 0
    num_decided_tokens: int = 0
    num_unclaimed: int = 0  # responses that run on though no round adopts them
    # tokens after the prompt that each of `lengths` held in a KV cache, given ones included
    held_tokens: tuple[int, ...] = ()
    window: WindowRecord | None = None  # of a round that seeds


def round_report(
    result: RoundResult,
    readings: Sequence[EngineStats],
    devices: Mapping[str, Sequence[str]],
    *,
    is_evaluation: bool,
) -> RolloutReport:
    """The report of a played round. readings: of the run's engines after the round; devices: by
    engine name."""
    ended = [response for response in result.generated if response.finish_reason != "aborted"]
    rewards = {response_id(score.prompt_id, score.index): score.reward for score in result.scores}
    trained, filtered = trained_ids(result), filtered_ids(result)
    launched = [
        Launched(
            prompt_id=response.prompt_id,
            num_tokens=response.num_sampled,
            reward=rewards.get(response.response_id),
            fate=fate_of(response, trained, filtered),
        )
        for response in result.generated
    ]
    ledger = ledger_of(result, is_evaluation=is_evaluation)
    decided = lengths_of_decided(result)
    return RolloutReport(
        **{each.name: getattr(result, each.name) for each in fields(PlayedRound)},
        tokens={str(fate): count for fate, count in ledger.items()},
        lengths=tuple(response.num_sampled for response in ended),
        held_tokens=tuple(len(response.token_ids) for response in ended),
        acceptance=acceptance_figures(launched),
        num_preemptions=sum(reading.num_preemptions for reading in readings),
        kv_usage_max=max((reading.kv_usage_max for reading in readings), default=0.0),
        spans=rollout_spans(result, {**devices, **result.joined}),
        num_migrated=len(result.migrated),
        reward_waits=reward_waits(result),
        num_decided_responses=len(decided),
        num_decided_tokens=sum(decided),
        num_unclaimed=len(unclaimed(result, readings)),
        started_s=min((response.submitted_s for response in result.generated), default=0.0),
        finished_s=max((response.finished_s for response in result.generated), default=0.0),
    )


def close_round(store: Store, step: int, report: RolloutReport) -> None:
    """Write the round's report, which closes the round: it is never played again."""
    store.keep(layout.step_file(layout.ROUNDS, step), json.dumps(asdict(report), indent=1).encode())


def read_round(store: Store, step: int) -> RolloutReport | None:
    """The report of a closed round; None if the round is not closed."""
    return _read(store, step, _report)


def left_by_round(store: Store, step: int) -> tuple[InFlight, ...]:
    """The responses that a closed round left running on engines, which may be lost by now."""

    def left(raw: Mapping[str, Any]) -> tuple[InFlight, ...]:  # Any: JSON values
        return tuple(InFlight(**each) for each in raw.get("in_flight", ()))

    return _read(store, step, left) or ()


def held_tokens_before(store: Store, step: int, num_rounds: int) -> tuple[int, ...]:
    """Tokens after the prompt, given ones included, that each response of the last num_rounds
    rounds before this step held in a KV cache. Rounds that are not closed are left out."""

    def held(raw: Mapping[str, Any]) -> list[int]:  # Any: JSON values
        return [*raw.get("held_tokens", raw.get("lengths", ()))]  # earlier runs have lengths alone

    steps = range(max(1, step - num_rounds), step)
    return tuple(tokens for before in steps for tokens in _read(store, before, held) or ())


def _read(store: Store, step: int, parse: Callable[[dict[str, Any]], T]) -> T | None:
    """The kept report of a closed round, parsed; None if there is none. Any: JSON values."""
    name = layout.step_file(layout.ROUNDS, step)
    if not store.exists(name):
        return None
    return store.parsed(name, lambda data: parse({**json.loads(data)}), PLAY_AGAIN)


def _report(raw: dict[str, Any]) -> RolloutReport:  # Any: JSON values
    lists = {name: tuple(value) for name, value in raw.items() if isinstance(value, list)}
    window = raw.get("window")
    read = {
        "spans": tuple(Span(**span) for span in raw["spans"]),
        "reward_waits": tuple((start_s, end_s) for start_s, end_s in raw.get("reward_waits", ())),
        "carried": tuple(
            Carry(**(carry | {"indices": tuple(carry["indices"])}))
            for carry in raw.get("carried", ())
        ),
        "in_flight": (),
        "joined": {name: tuple(devices) for name, devices in raw.get("joined", {}).items()},
        "window": None if window is None else WindowRecord.from_json(window),
    }
    return RolloutReport(**(raw | lists | read))
