"""Pull, build and load of an elastic worker have a limit each, and who misses one is told which."""

from __future__ import annotations

import pickle
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from weight_servers import written

from artifacts.records import Running, WeightsRef
from tasks.elastic.config import LIMITS, ElasticConfig, Limit, LimitMissed
from tasks.elastic.engines import ElasticEngines
from tasks.engines.base import EngineLost
from tasks.learner.reports import PublishReport
from tests.unit.test_weight_pulls import elastic_worker, serving, told
from tests.unit.worker_factories import make_elastic_worker

GIVEN = ElasticConfig(enabled=True, pull_s=7.0, build_s=8.0, load_s=9.0)
WEIGHTS = WeightsRef(version=3, path="", digest="")
PUBLISHED = PublishReport(weights=WEIGHTS, probe_difference_nats=None, check_s=0.0, spans=())


class Late:
    """An actor, and where actors are made: nobody answers in time."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.waited_s: list[float] = []

    def create_all(self, workers: object, actors: object, deadline_s: float) -> None:
        self.waited_s.append(deadline_s)
        raise self._error

    def remote(self, name: str) -> Any:  # Any: stands in for an actor
        return SimpleNamespace(name=name, call=self._call)

    async def _call(self, method: str, *args: object, deadline_s: float) -> Any:
        self.waited_s.append(deadline_s)
        raise self._error


def engines(error: Exception, *, pulls: bool) -> tuple[ElasticEngines, Late]:
    """Of a run with the limits that are given; pulls: whether elastic workers pull over the
    network."""

    async def offered(*args: object) -> Any:
        return SimpleNamespace()

    run: Any = SimpleNamespace(
        run_id="r", elastic=GIVEN, engine=ElasticConfig(), model_path="", seed=0, probes=()
    )
    server = SimpleNamespace(publish=offered, publish_model=offered, urls=("",))
    origin: Any = server if pulls else None
    made, late = ElasticEngines(SimpleNamespace(), run, origin), Late(error)  # type: ignore[arg-type]
    made._registry = late  # type: ignore[assignment]
    return made, late


async def missed(made: ElasticEngines, limit: Limit) -> LimitMissed:
    one = make_elastic_worker("spot", since_s=0.0, until_s=None)
    call: Coroutine[Any, Any, object]  # Any: as it is written
    match limit:
        case "pull_s":
            call = made.pull(one.name, WEIGHTS)
        case "build_s":
            call = made.build(one)
        case "load_s":
            call = made.load(one.name, PUBLISHED, Running.DROP)
    with pytest.raises(LimitMissed) as caught:
        await call
    return caught.value


@pytest.mark.parametrize(
    ("limit", "what", "waits_s"),
    [
        ("pull_s", "the pull of version 3 must take 7 s (twice deadlines.weights_s)", 17.0),
        ("build_s", "the engine's build must take 8 s (deadlines.start_s)", 25.0),
        ("load_s", "the load of version 3 must take 9 s (deadlines.weights_s)", 9.0),
    ],
)
async def test_what_takes_too_long_is_told_by_its_limit(
    limit: Limit, what: str, waits_s: float
) -> None:
    made, late = engines(TimeoutError("no answer"), pulls=True)
    found = await missed(made, limit)
    assert found.limit == limit
    assert f"spot.g1: {what}" in str(found)
    assert late.waited_s == [waits_s]


async def test_a_build_without_a_pull_has_its_own_time_alone() -> None:
    made, late = engines(TimeoutError("no answer"), pulls=False)
    await missed(made, "build_s")
    assert late.waited_s == [8.0]


async def test_an_elastic_worker_that_dies_meanwhile_has_missed_no_limit() -> None:
    made, _ = engines(EngineLost("killed"), pulls=True)
    with pytest.raises(EngineLost, match="killed"):
        await made.load("spot.g1", PUBLISHED, Running.DROP)


async def test_the_model_s_pull_within_a_build_is_told_as_a_pull() -> None:
    """As the elastic worker's process says it, which another process reads."""
    sent = pickle.loads(pickle.dumps(LimitMissed("pull_s", "the pull of version model ...")))
    made, _ = engines(sent, pulls=True)
    assert (await missed(made, "build_s")).limit == "pull_s"
    assert str(sent) == "the pull of version model ..."


async def test_a_pull_that_does_not_come_says_its_limit_in_the_elastic_worker(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as origin:
        await origin.publish(written(tmp_path / "run"))
        hurried = replace(told(origin), config=ElasticConfig(pull_s=1e-9))
        async with elastic_worker(hurried, tmp_path / "spot", host=None) as pulls:
            with pytest.raises(LimitMissed, match=r"twice deadlines\.weights_s") as caught:
                await pulls.pull("7")
            assert caught.value.limit == "pull_s"


def test_every_limit_is_a_field_of_its_own_with_a_default() -> None:
    config = ElasticConfig()
    assert [getattr(config, limit) for limit in LIMITS] == [600.0, 600.0, 300.0]
    assert config.ready_s > config.pull_s + config.build_s + config.pull_s + config.load_s
