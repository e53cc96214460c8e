"""The stream trainer (RollPacker, section 4.4, Algorithm 1): which devices stop generating in
mid-round, and when.

    milestone of accepted groups reached
      -> lengths of earlier rounds -> projected lengths -> peak of the KV caches (`RemainingRoom`)
      -> do the requests that still run fit fewer engines?
      -> ScaleDown: the others hand over what they run, their learners begin to accumulate gradients

A device group is freed whole or not at all (`separable_groups`). Pure: readings in, decisions out.
Leaves out how requests move (`rounds.migration`) and what the learners get (`learner.streaming`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import Fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Engines and learners that share no device with the others; a group is freed whole."""

    engines: tuple[str, ...]  # rollout replicas on its devices
    learners: tuple[str, ...]  # learner ranks on its devices, whole communication groups


def separable_groups(
    engines: Mapping[str, frozenset[str]],
    learners: Mapping[str, frozenset[str]],
    communication_groups: Iterable[Sequence[str]],
) -> tuple[DeviceGroup, ...]:
    """The smallest parts of the cluster that share no device, no engine and no learner
    communication group with another.

    `engines` and `learners`: devices by actor name. `communication_groups`: learners that cannot
    compute without each other (tensor- or pipeline-parallel ranks; purely data-parallel ranks are
    alone).
    """
    joined = [*engines.values(), *learners.values()]
    joined += [
        frozenset[str]().union(*(learners[name] for name in names))
        for names in communication_groups
    ]
    parts: list[frozenset[str]] = []
    for devices in joined:
        touching = [part for part in parts if part & devices]
        parts = [part for part in parts if not part & devices] + [devices.union(*touching)]
    return tuple(
        DeviceGroup(
            engines=tuple(name for name, devices in engines.items() if devices <= part),
            learners=tuple(name for name, devices in learners.items() if devices <= part),
        )
        for part in sorted(parts, key=sorted)
    )


CAUTION = 0.9  # a response's projected length: this quantile of the lengths beyond its own


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRequest:
    """A response that an engine has not finished."""

    engine: str  # where it runs or waits
    prompt_tokens: int  # tokens of its prompt
    num_tokens: int  # tokens after it that the engine holds, given ones included
    max_new_tokens: int  # bound on the tokens after the prompt

    @property
    def held_tokens(self) -> int:
        """Tokens that the response holds in a KV cache; another engine would compute them again."""
        return self.prompt_tokens + self.num_tokens


class RemainingRoom:
    """Projects whether the engines that stay have room for the responses that still run."""

    def __init__(self, max_running: int, kv_share: float, lengths: Iterable[int] = ()) -> None:
        """max_running: responses that an engine may decode at once. kv_share: share of the KV
        caches that may be filled. lengths: tokens that earlier responses held at their end, given
        ones included; without any, every response is projected to reach its bound."""
        self._max_running = max_running
        self._kv_share = kv_share
        self._lengths = sorted(lengths)

    def fits(self, running: Sequence[RunningRequest], capacity_tokens: Collection[int]) -> bool:
        """True if engines with KV caches of these sizes can take all running responses."""
        if len(running) > self._max_running * len(capacity_tokens):
            return False
        return self.projected_peak_tokens(running) <= self._kv_share * sum(capacity_tokens)

    def projected_peak_tokens(self, running: Sequence[RunningRequest]) -> int:
        """Largest KV-cache use to come, in tokens, if all these responses decode side by side, one
        token per step, until they reach their projected lengths."""
        left = sorted(
            (self.projected_length(response) - response.num_tokens, response.held_tokens)
            for response in running
        )
        held_tokens = sum(tokens for _, tokens in left)
        num_running = len(left)
        peak = 0
        for steps, tokens in left:
            peak = max(peak, held_tokens + steps * num_running)
            held_tokens -= tokens
            num_running -= 1
        return peak

    def projected_length(self, response: RunningRequest) -> int:
        """Tokens that a response is projected to reach: a high quantile (`CAUTION`) of the earlier
        lengths beyond its present one, at most its bound."""
        beyond = self._lengths[bisect_right(self._lengths, response.num_tokens) :]
        if not beyond:
            return response.max_new_tokens
        quantile = beyond[min(len(beyond) - 1, int(CAUTION * len(beyond)))]
        return min(response.max_new_tokens, quantile)


HISTORY_ROUNDS = 8  # rounds whose responses project the lengths of the next round's
ROUNDING = 1e-9  # error of a sum of milestone steps


class StreamTrainerConfig(FrozenConfig):
    """When devices switch from generating to training while the round still runs."""

    enabled: bool = Field(
        False, description="Free devices in mid-round and train the accepted groups there."
    )
    rule: Literal["milestones", "devices"] = Field(
        "milestones",
        description=(
            "When devices are freed: 'milestones', the paper's rule, at milestones alone and"
            " whatever the size of an engine; 'devices' lets an engine of n devices decode n times"
            " max_running_per_engine responses, and frees all engines but one as soon as nothing"
            " runs and only verdicts are awaited."
        ),
    )
    first_milestone: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Share of the round's groups whose acceptance first asks for devices.",
    )
    last_milestone: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of the round's groups after which no device is freed any more.",
    )
    # distance between two milestones, as a share of the round's groups
    milestone_step: Fixed[float] = 0.05
    max_freed_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description=(
            "Share of the engines that may be freed in a round; a freed device idles once it has"
            " caught up."
        ),
    )
    # share of the remaining engines' KV caches that the projected peak of what still runs may
    # fill
    kv_share: Fixed[float] = 0.9
    max_running_per_engine: int = Field(
        64,
        ge=1,
        description=(
            "Responses that a remaining engine may have to decode at once; a device is freed only"
            " when so few are left. By rule 'devices': for each device of the engine."
        ),
    )

    @model_validator(mode="after")
    def _milestones_follow(self) -> Self:
        if self.last_milestone < self.first_milestone:
            raise ValueError(
                "stream_trainer.last_milestone must be >= first_milestone"
                f" ({self.first_milestone:g}), got {self.last_milestone:g}; raise it or lower"
                " first_milestone"
            )
        return self

    @property
    def changed_limits(self) -> dict[str, object]:
        """The fields other than `enabled` whose values are not the defaults, by name."""
        defaults = StreamTrainerConfig().model_dump(exclude={"enabled"})
        given = self.model_dump(exclude={"enabled"})
        return {name: value for name, value in given.items() if value != defaults[name]}

    @property
    def milestones(self) -> tuple[float, ...]:
        """Shares of the round's groups at which devices may be freed, ascending; none when
        disabled."""
        if not self.enabled:
            return ()
        num_steps = (self.last_milestone - self.first_milestone) / self.milestone_step
        places = range(int(num_steps + ROUNDING) + 1)
        return tuple(self.first_milestone + place * self.milestone_step for place in places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of a round as far as it is known without a call to its engines."""

    num_accepted: int  # groups accepted so far
    elapsed_s: float = 0.0  # since it began
    num_running: int = 0  # requests on the engines that it began with
    num_elastic_workers: int = 0  # engines that joined it and take requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Moment):
    """The state of a round at a milestone, with the caches and responses of its engines."""

    capacity_tokens: Mapping[str, int]  # KV cache of every engine in service, in tokens
    running: tuple[RunningRequest, ...]  # every response that runs on them


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDown:
    """Decision: these engines hand over their responses and stop; these learners may begin."""

    engines: tuple[str, ...]
    learners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllAccepted:
    """Notice: no group of the round follows; its tables are still to be written."""


class FreesDevices(Protocol):
    """Decides which devices of one round stop generating, and when. Call `start` once, then
    `handle` whenever `is_due`."""

    @property
    def next_due_s(self) -> float | None:
        """Seconds of the round after which `is_due` must be asked even if nothing happened; None
        for never."""
        ...

    def start(self) -> list[ScaleDown]:
        """Device groups that are free from the beginning."""
        ...

    def is_due(self, moment: Moment) -> bool:
        """True if a reading of the engines is worth taking."""
        ...

    def handle(self, reading: Reading) -> list[ScaleDown]:
        """Device groups to free now."""
        ...


class StreamTrainer:
    """Decides which devices can stop generating: the running requests must fit the KV caches of the
    remaining engines (`FreesDevices`)."""

    next_due_s: float | None = None

    def __init__(
        self,
        config: StreamTrainerConfig,
        groups: Sequence[DeviceGroup],
        accept_prompts: int,
        lengths: Iterable[int] = (),
        devices_per_engine: int = 1,
    ) -> None:
        """lengths: tokens that responses of earlier rounds held, see `RemainingRoom`.
        devices_per_engine: used by rule 'devices'."""
        self._config = config
        self._groups = tuple(groups)
        self._least_engines = max(
            1.0, (1 - config.max_freed_share) * sum(len(group.engines) for group in groups)
        )
        by_devices = config.rule == "devices"
        max_running = config.max_running_per_engine * (devices_per_engine if by_devices else 1)
        self._room = RemainingRoom(max_running, config.kv_share, lengths)
        self._looks_at_idle = config.enabled and by_devices  # until idle engines were freed
        self._due = [milestone * accept_prompts for milestone in config.milestones]

    @property
    def is_enabled(self) -> bool:
        """True if groups may be trained before the round closes."""
        return self._config.enabled

    def start(self) -> list[ScaleDown]:
        """Free the learners whose devices generate nothing."""
        if not self.is_enabled:
            return []
        return [
            ScaleDown(engines=(), learners=group.learners)
            for group in self._groups
            if group.learners and not group.engines
        ]

    def is_due(self, moment: Moment) -> bool:
        """True if a milestone was reached since the last reading, or, by rule 'devices', if nothing
        runs any more."""
        is_begun = moment.num_accepted > 0  # a milestone of 0 is the first group
        is_reached = bool(self._due) and moment.num_accepted >= self._due[0] - ROUNDING
        return is_begun and (is_reached or self._is_idle(moment))

    def handle(self, reading: Reading) -> list[ScaleDown]:
        """The device groups to free now. Groups with the fewest tokens to compute again come
        first."""
        if not self.is_due(reading):
            return []
        if self._is_idle(reading):
            self._looks_at_idle = False
            self._least_engines = 1.0  # for a response that a verdict may still launch
        self._due = [count for count in self._due if count - ROUNDING > reading.num_accepted]
        freed: list[ScaleDown] = []
        staying = dict(reading.capacity_tokens)
        for group in self._candidates(reading):
            rest = {name: tokens for name, tokens in staying.items() if name not in group.engines}
            if len(rest) < self._least_engines - ROUNDING:
                break
            if not self._room.fits(reading.running, rest.values()):
                break
            staying = rest
            freed.append(ScaleDown(engines=group.engines, learners=group.learners))
        return freed

    def _is_idle(self, moment: Moment) -> bool:
        """Whether the engines have nothing left to generate, for the first time."""
        return self._looks_at_idle and not (moment.num_running or moment.num_elastic_workers)

    def _candidates(self, reading: Reading) -> list[DeviceGroup]:
        """Groups whose engines all generate and whose learners could train."""
        in_service = set(reading.capacity_tokens)
        whole = (group for group in self._groups if group.learners and group.engines)
        free = [group for group in whole if set(group.engines) <= in_service]

        def recomputed(group: DeviceGroup) -> int:
            own = (each for each in reading.running if each.engine in group.engines)
            return sum(request.held_tokens for request in own)

        return sorted(free, key=lambda group: (recomputed(group), group.engines))
