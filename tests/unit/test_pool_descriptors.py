"""A pool may open a stream to each of its processes, whatever limit its shell has left it."""

from __future__ import annotations

import resource

import pytest

from tasks.environments.pools.pool import SPARE, raise_descriptor_limit

UNBOUNDED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "set_to"),
    [
        ((1024, 524_288), (1000 + SPARE, 524_288)),
        ((1024, UNBOUNDED), (1000 + SPARE, UNBOUNDED)),
        ((1000 + SPARE, 4096), None),
        ((UNBOUNDED, UNBOUNDED), None),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], set_to: tuple[int, int] | None
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: told.append(both))
    raise_descriptor_limit(1000)
    assert told == ([] if set_to is None else [set_to])


def test_a_hard_limit_that_is_too_low_is_named_with_its_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 1024))
    with pytest.raises(ValueError, match=r"its limit is 1024; lower episodes.hosts.num_hosts"):
        raise_descriptor_limit(1000)
