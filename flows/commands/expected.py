"""What a candidate of `rollflow recommend` takes: its very configuration, played in virtual time.

    situation + candidate ─▶ RunConfig ─▶ a period of steps for each draw ─▶ Expected

Every candidate is played with the same draws, so that two differ in nothing but themselves, and
differences are taken draw by draw. What is played is what is written: policy, batch, stream trainer
and placement come from the configuration. Leaves out the limits of its engines (batch, memory),
which are the machine's, and a judge's share of a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, stdev

from flows.commands.candidates import Candidate, others, plain
from flows.commands.draws import Drawn, draw_all, players
from flows.commands.situation import Situation
from flows.config.overlay import overlay
from flows.config.run_config import RunConfig
from flows.config.sentence import sentence
from tasks.cluster.devices import num_environment_workers, parse_role_map
from tasks.scheduling.policies.multilevel import levels_within


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a configuration takes, over the draws."""

    candidate: Candidate | None  # None: the recorded run itself
    config: RunConfig
    step_s: tuple[float, ...]  # mean step of each draw
    rollout_share: float
    tokens_per_s: float

    @property
    def mean_s(self) -> float:
        return fmean(self.step_s)

    @property
    def spread_s(self) -> float:
        """Standard deviation over the draws; 0 of a single one."""
        return _spread(self.step_s)

    def lost_s(self, best: Expected) -> tuple[float, float]:
        """Seconds of a step that it takes longer than the best, with their standard deviation over
        the draws, which both share."""
        lost = [own - other for own, other in zip(self.step_s, best.step_s, strict=True)]
        return fmean(lost), _spread(lost)


def compared(place: Situation, num_draws: int, is_off_policy: bool = False) -> tuple[Expected, ...]:
    """All that were played, the shortest step first. ValueError where none can be."""
    with players(place) as pool:
        sizes = _played(pool, "sizes of engines", _accepted(plain(place.sizes), place), num_draws)
        best = min(sizes, key=lambda each: each.mean_s)
        assert best.candidate is not None, "it was played as a candidate"
        more = others(
            best.candidate,
            place.machine.num_devices,
            place.group_size,
            levels_within(best.config.sampling.max_response_tokens),
            is_off_policy=is_off_policy,
        )
        accepted = _accepted(more, place, known=(best.config,))
        found = _played(pool, "policies and placements", accepted, num_draws)
    return tuple(sorted((*sizes, *found), key=lambda each: each.mean_s))


def expect(config: RunConfig, place: Situation, num_draws: int) -> Expected:
    """What a configuration takes in so many draws."""
    with players(place) as pool:
        return _played(pool, "the recorded run", [(None, config)], num_draws)[0]


def _accepted(
    candidates: Iterable[Candidate], place: Situation, known: Sequence[RunConfig] = ()
) -> list[tuple[Candidate, RunConfig]]:
    """Those that a configuration accepts, each kind of steps once; what it says of others goes to
    standard error."""
    seen = [_steps_of(config) for config in known]
    found: list[tuple[Candidate, RunConfig]] = []
    for candidate in candidates:
        try:
            config = config_of(candidate, place)
        except ValueError as error:
            if candidate.is_plain:
                raise
            print(f"not tried: {candidate.label}: {sentence(error)}", file=sys.stderr)
            continue
        if _steps_of(config) not in seen:
            seen.append(_steps_of(config))
            found.append((candidate, config))
    return found


def _played(
    pool: ProcessPoolExecutor,
    what: str,
    configs: Sequence[tuple[Candidate | None, RunConfig]],
    num_draws: int,
) -> list[Expected]:
    """What each of these takes in the same draws."""
    draws = range(num_draws)
    played = iter(draw_all(pool, what, [(config, draw) for _, config in configs for draw in draws]))
    return [
        _expected(candidate, config, list(islice(played, num_draws)))
        for candidate, config in configs
    ]


def _expected(candidate: Candidate | None, config: RunConfig, draws: Sequence[Drawn]) -> Expected:
    return Expected(
        candidate=candidate,
        config=config,
        step_s=tuple(drawn.step_s for drawn in draws),
        rollout_share=sum(drawn.rollout_s for drawn in draws)
        / sum(drawn.total_s for drawn in draws),
        tokens_per_s=fmean(drawn.tokens_per_s for drawn in draws),
    )


def config_of(candidate: Candidate, place: Situation) -> RunConfig:
    """The configuration that a candidate makes. ValueError for what RunConfig refuses."""
    values = candidate.values(place.machine.num_devices)
    roles = place.base.get("cluster", {}).get("roles", "")
    values["cluster"]["roles"] += _other_roles(roles)
    sampling = place.base.get("scheduling", {}).get("dynamic_sampling")
    if sampling is not None:
        values["scheduling"]["dynamic_sampling"] = sampling
    return RunConfig.model_validate(overlay(place.base, values))


def _steps_of(config: RunConfig) -> tuple[object, ...]:
    """What its steps consist of: of a small batch, neighbouring etas launch the same."""
    algebra = config.scheduling.algebra(config.batch)
    size, roles = config.engine.tensor_parallel_size, config.cluster.roles
    return algebra, size, roles, config.stream_trainer.enabled


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _other_roles(roles: str) -> str:
    """What a role map has beside rollout and learner, to be appended to another one."""
    if not roles:
        return ""
    judges = parse_role_map(roles).get("judge", ())
    judge = f", judge: {','.join(map(str, judges))}" if judges else ""
    workers = num_environment_workers(roles)
    return f"{judge}, environment: {workers}" if workers else judge
