"""The candidates of `rollflow recommend`: the settings that each changes of a configuration. Pure.

engine sizes, plain ─▶ best size ─▶ learner on devices of its own
                                 └▶ tail batching, rounds of more levels, stream trainer, both;
                                    if asked asynchronous, apart and in turn"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flows.config.presets import Values
from tasks.scheduling.policies.multilevel import LEVEL_ETA

# over-provisioning of prompts and of responses; the last pair gives up no response of a group
ETAS = ((1.125, 1.125), (1.25, 1.25), (1.5, 1.5), (1.25, 1.0))
LEVEL_ETAS = (LEVEL_ETA, 2.0)  # over-provisioning of prompts in all levels but the last
LEARNER_SHARES = (0.25, 0.5)  # of the devices, if the learner has its own
ASYNC_RATIO = 1.0  # steps that generation may be ahead
EXTRA_LAGS = (0, 4)  # extra steps for long responses, if devices generate and train in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Policy and placement to try; the defaults are plain synchronous steps, colocated."""

    size: int  # devices of an engine
    num_learners: int = 0  # devices that train alone, the last ones; 0: all generate and train
    prompt_eta: float = 1.0
    response_eta: float = 1.0
    num_levels: int = 0  # of rounds, if more than the two of tail batching
    streams: bool = False  # the stream trainer frees devices
    async_ratio: float = 0.0
    extra_lag: int = 0
    pauses: bool = False  # devices of an asynchronous policy generate and train in turn

    @property
    def is_plain(self) -> bool:
        """True for plain synchronous steps, whatever the size of the engines."""
        return self == Candidate(size=self.size)

    @property
    def scheduling(self) -> Values:
        if self.async_ratio:
            return {
                "kind": "asynchronous",
                "async_ratio": self.async_ratio,
                "extra_lag": self.extra_lag,
                "at_update": "pause" if self.pauses else "interrupt",
            }
        if self.prompt_eta == self.response_eta == 1:
            return {"kind": "sync"}
        if self.num_levels:
            return {
                "kind": "multilevel_batching",
                "prompt_overprovision": self.prompt_eta,
                "num_levels": self.num_levels,
            }
        return {
            "kind": "tail_batching",
            "prompt_overprovision": self.prompt_eta,
            "response_overprovision": self.response_eta,
        }

    def values(self, num_devices: int) -> Values:
        return {
            "scheduling": self.scheduling,
            "engine": {"tensor_parallel_size": self.size},
            "stream_trainer": {"enabled": self.streams},
            "cluster": {"num_devices": num_devices, "roles": self.roles(num_devices)},
        }

    def roles(self, num_devices: int) -> str:
        first = num_devices - self.num_learners
        learner = _span(first, num_devices) if self.num_learners else _span(0, num_devices)
        return f"rollout: {_span(0, first)}, learner: {learner}"

    @property
    def policy(self) -> str:
        if self.async_ratio:
            late = f", {self.extra_lag} steps more for what takes long" if self.extra_lag else ""
            how = "partial rollouts" if self.pauses else "asynchronous"
            return f"{how}, ratio {self.async_ratio:g}{late}"
        if self.prompt_eta == self.response_eta == 1:
            return "synchronous"
        if self.num_levels:
            return f"{self.num_levels} levels of rounds, eta {self.prompt_eta:g} on prompts"
        where = "" if self.prompt_eta == self.response_eta else " on prompts"
        return f"tail batching, eta {self.prompt_eta:g}{where}"

    @property
    def label(self) -> str:
        """Describe policy, stream trainer, engine size and placement."""
        streams = ", stream trainer" if self.streams else ""
        apart = f", {self.num_learners} devices train alone" if self.num_learners else ""
        return f"{self.policy}{streams}, engines of {self.size}{apart}"

    def placement(self, num_devices: int) -> str:
        if not self.num_learners:
            return f"{num_devices} do both"
        return f"{num_devices - self.num_learners} generate, {self.num_learners} train"


def plain(sizes: Sequence[int]) -> Iterator[Candidate]:
    """Synchronous steps with engines of every size."""
    return (Candidate(size=size) for size in sizes)


def others(
    best: Candidate, num_devices: int, group_size: int, num_levels: int, *, is_off_policy: bool
) -> Iterator[Candidate]:
    """Every policy and placement, with the engine size of the best plain candidate. group_size:
    devices of a learner that work together; num_levels: levels of rounds beside two."""
    apart = [*_apart(best.size, num_devices, group_size)]
    for num_learners in apart:
        yield replace(best, num_learners=num_learners)
    yield replace(best, streams=True)
    two = (replace(best, prompt_eta=prompts, response_eta=responses) for prompts, responses in ETAS)
    more = (replace(best, prompt_eta=prompts, num_levels=num_levels) for prompts in LEVEL_ETAS)
    for batched in (*two, *more):
        yield batched
        yield replace(batched, streams=True)
    if is_off_policy:
        for num_learners in apart:
            yield replace(best, num_learners=num_learners, async_ratio=ASYNC_RATIO)
        in_turn = replace(best, async_ratio=ASYNC_RATIO, pauses=True)
        for extra_lag in EXTRA_LAGS:
            yield replace(in_turn, extra_lag=extra_lag)
            yield replace(in_turn, extra_lag=extra_lag, streams=True)


def _apart(size: int, num_devices: int, group_size: int) -> Iterator[int]:
    """Possible numbers of devices that only train; groups and engines stay whole."""
    wanted = (group_size * round(share * num_devices / group_size) for share in LEARNER_SHARES)
    for num_learners in dict.fromkeys(wanted):
        num_rollout = num_devices - num_learners
        if 0 < num_learners < num_devices and num_rollout % size == 0:
            yield num_learners


def _span(first: int, end: int) -> str:
    return f"{first}-{end - 1}" if end - first > 1 else f"{first}"
