"""New processes for workers: only under a nanny, and whose actors are forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from dask.utils import parse_timedelta
from distributed import KilledWorker

from tasks.cluster.actors import ActorLost
from tasks.cluster.dask_cluster import SETTINGS, ClusterTooSmall
from tasks.cluster.deaths import Death
from tasks.cluster.ownership import renew_workers
from tasks.cluster.registry import ActorRegistry


class Workers:
    """As much of a Dask client as actors and new processes take; a restart gives a new address."""

    status = "running"

    def __init__(self, *names: str, nannies: bool = True) -> None:
        self.addresses = {name: f"tcp://{name}/0" for name in names}
        self.doomed = "nobody"  # the actor whose worker dies of its building
        self._nannies = nannies
        self.deaths: dict[str, list[Death]] = {name: [] for name in names}
        workers = {name: SimpleNamespace(deaths=self.deaths[name]) for name in names}
        self.cluster: Any = SimpleNamespace(workers=workers)
        self.scheduler = self

    def sync(self, ask: Callable[..., Any], **options: Any) -> Any:  # Any: the scheduler's own
        return ask(**options)

    def identity(self, n_workers: int) -> dict[str, Any]:
        nanny = "tcp://nanny" if self._nannies else None
        workers = ((address, name) for name, address in self.addresses.items())
        return {"workers": {address: {"name": name, "nanny": nanny} for address, name in workers}}

    def restart_workers(
        self,
        workers: Sequence[str],
        timeout: float,
        wait_for_workers: bool,
        on_error: str,
        stimulus_id: str,
    ) -> None:
        assert not wait_for_workers, "the one that is missed may never come"
        for name, address in self.addresses.items():
            if address in workers:
                self.die(name, exit_code=-15)

    def die(self, name: str, exit_code: int) -> None:
        """Its nanny takes note and starts another process."""
        self.deaths[name].append(Death(exit_code=exit_code, lines=(), log="", at_s=float("inf")))
        self.addresses[name] += "1"

    def submit(self, factory: Callable[..., object], *args: object, key: str, **_: object) -> Any:
        def result(timeout: float) -> object:
            if key.startswith(f"run-{self.doomed}-"):
                raise KilledWorker(key, SimpleNamespace(address=""), 0)
            return factory(*args)

        return SimpleNamespace(done=lambda: True, result=result)

    def publish_dataset(self, future: object, name: str, override: bool) -> None: ...

    def list_datasets(self) -> Sequence[str]:
        return ()

    def cancel(self, futures: Sequence[object], force: bool) -> None: ...


NAMES = ("engine-0", "learner-0", "learner-1")


def registry_of(workers: Workers) -> ActorRegistry:
    registry = ActorRegistry(workers, "run")
    recipes: Mapping[str, Any] = dict.fromkeys(NAMES, (dict, ()))
    registry.create_all({name: name for name in NAMES}, recipes, deadline_s=1.0)
    return registry


def test_workers_without_a_nanny_are_named_before_any_is_ended() -> None:
    workers = Workers("control", nannies=False)
    with pytest.raises(ClusterTooSmall, match=r"must be under a nanny.*control are not; start"):
        renew_workers(workers, ("control",), 0.0)
    assert workers.addresses == {"control": "tcp://control/0"}


def test_a_worker_that_does_not_come_back_is_named() -> None:
    with pytest.raises(ClusterTooSmall, match="learner-9 did not within 0 s"):
        renew_workers(Workers("control"), ("control", "learner-9"), 0.0)


def test_a_process_that_has_ended_is_not_ended_again_and_alone_accounted_for() -> None:
    workers = Workers(*NAMES)
    registry = registry_of(workers)
    workers.die("learner-1", exit_code=-9)
    after = workers.addresses["learner-1"]
    registry.restart_living(("learner-0", "learner-1"), 1.0)
    assert workers.addresses["learner-0"] == "tcp://learner-0/01"
    assert workers.addresses["learner-1"] == after
    (said,) = registry.accounts()
    assert said.startswith("learner-1 is lost: its process was killed by SIGKILL")


def test_the_others_are_built_when_one_worker_dies_of_it() -> None:
    workers = Workers(*NAMES)
    workers.doomed, workers.cluster = "engine-0", None
    registry = ActorRegistry(workers, "run")
    recipes: Mapping[str, Any] = dict.fromkeys(NAMES, (dict, ()))
    with pytest.raises(ActorLost, match="engine-0 died while it was built"):
        registry.create_all({name: name for name in NAMES}, recipes, deadline_s=1.0)
    assert registry.names == {"learner-0", "learner-1"}


def test_a_scheduler_that_does_not_answer_for_a_moment_is_no_death_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(*NAMES)

    def not_done(*_: object) -> None:
        monkeypatch.setattr(workers, "identity", unanswered)
        raise TimeoutError

    def unanswered(n_workers: int) -> None:
        monkeypatch.undo()  # and by then the actor is built
        raise OSError("connection broken")

    monkeypatch.setattr("tasks.cluster.registry.result_of", not_done)
    registry = registry_of(workers)
    assert registry._generation == dict.fromkeys(NAMES, 1)


def test_workers_of_others_may_have_numbers_for_names() -> None:
    workers = Workers("engine-0")
    workers.addresses |= {1: "tcp://1/0"}  # type: ignore[dict-item]  # as a LocalCluster names them
    with pytest.raises(TimeoutError, match=r"worker engine-1 did not come back.*: 1, engine-0"):
        ActorRegistry(workers, "run").create_all({"a": "engine-1"}, {"a": (dict, ())}, -1.0)


def test_an_actor_that_was_forgotten_is_lost() -> None:
    registry = registry_of(Workers(*NAMES))
    registry.restart(("engine-0",), 1.0)
    assert registry.names == {"learner-0", "learner-1"}
    with pytest.raises(ActorLost, match="engine-0 is not there"):
        registry.remote("engine-0")


def test_after_the_end_of_the_run_no_actor_is_made() -> None:
    registry = registry_of(Workers(*NAMES))
    registry.close()
    with pytest.raises(ActorLost, match="the run ends"):
        registry.create_all({"engine-0": "engine-0"}, {"engine-0": (dict, ())}, deadline_s=1.0)


def test_dask_never_takes_a_nanny_for_useless() -> None:
    """It ends the nanny of a worker that is away at one look, 15 s after it went; a second new
    process may be on its way then."""
    patience_s = parse_timedelta(SETTINGS["distributed.deploy.lost-worker-timeout"])
    assert patience_s > 24 * 3600
