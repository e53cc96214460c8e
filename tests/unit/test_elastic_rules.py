"""What a configuration with elastic workers must have, and what workers say that offer
themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from flows.config.elastic_rules import weight_server_of
from flows.config.overlay import overlay
from flows.config.run_config import RunConfig
from tasks.elastic.admission import WorkerAdmission
from tasks.elastic.config import ElasticConfig, ElasticWeightsConfig
from tasks.elastic.engines import recipe
from tasks.elastic.worker_card import TOKEN_VARIABLE, Terms, make_card
from tasks.elastic.worker_events import Admit, Leaves, Renewed
from tasks.elastic.workers import event_of
from tasks.run.elastic_setup import check_token, run_for_workers, worker_line
from tests.unit.plan_factories import CONTEXT
from tests.unit.worker_factories import RULES, make_elastic_worker, shown

FAR: dict[str, object] = {
    "cluster.scheduler_host": "10.1.0.1",
    "elastic.weights.allowed_senders": ["10.1.0.0/16"],
}
TERMS = Terms(price_class="spot", token="secret", drain_s=30.0, lease_s=20.0, grace_s=60.0)


def test_elastic_workers_need_the_gate() -> None:
    with pytest.raises(ValueError, match=r"elastic\.enabled needs weight_check\.enabled"):
        RunConfig.model_validate(
            {"preset": "tiny", "elastic": {"enabled": True}, "weight_check": {"enabled": False}}
        )


def test_elastic_workers_answer_in_a_single_turn() -> None:
    with pytest.raises(ValueError, match="got environments for"):
        RunConfig.model_validate({"preset": "tiny-agent", "elastic": {"enabled": True}})


def config_of(settings: Mapping[str, object]) -> RunConfig:
    """A run with elastic workers, and these fields."""
    cores = {"device_kind": "cpu"}
    given: dict[str, object] = {"preset": "tiny", "elastic": {"enabled": True}, "cluster": cores}
    for field, value in settings.items():
        for part in reversed(field.split(".")):
            value = {part: value}
        given = overlay(given, value)  # type: ignore[arg-type]  # a mapping by now
    return RunConfig.model_validate(given)


def test_weights_are_pulled_where_the_scheduler_is_reached_by_others() -> None:
    for settings, host in (
        ({}, None),
        ({"elastic.weights.enabled": True}, "127.0.0.1"),
        (FAR, "10.1.0.1"),
        (FAR | {"elastic.weights.enabled": False}, None),
        (FAR | {"elastic.weights.host": "10.1.0.2"}, "10.1.0.2"),
        ({"cluster.scheduler_address": "tcp://127.0.0.1:8786"}, None),
        ({"cluster.scheduler_address": "tcp://localhost:8786"}, None),
        (
            {
                "cluster.scheduler_address": "tls://10.1.0.9:8786",
                "elastic.weights.host": "10.1.0.2",
                "elastic.weights.allowed_senders": ["10.1.0.0/16"],
            },
            "10.1.0.2",
        ),
    ):
        config = config_of(settings)
        server = weight_server_of(config.elastic, config.cluster)
        assert (server and server.host) == host


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (FAR | {"elastic.weights.allowed_senders": ["::1/128"]}, "nobody could pull"),
        (FAR | {"elastic.weights.allowed_senders": ["10.1.0.1/16"]}, "must be networks such as"),
        (FAR | {"cluster.scheduler_host": "0.0.0.0"}, r"host must be an IP address.*'0\.0\.0\.0'"),
        (FAR | {"cluster.scheduler_host": "trainer"}, "host must be an IP address.*'trainer'"),
        ({"cluster.scheduler_address": "tcp://10.1.0.9:8786"}, "host must be an IP address.*''"),
        (
            {"elastic.weights.enabled": True, "elastic.weights.interface": ["ib0", "eth0"]},
            "allowed_senders must have the networks .* beside ib0, eth0: nobody could pull",
        ),
    ],
)
def test_weights_that_nobody_could_pull_are_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        config_of(settings)


def test_weights_need_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(ValueError, match=r"elastic\.token_file must name a file with a secret"):
        check_token(ElasticConfig(enabled=True), ElasticWeightsConfig())
    check_token(ElasticConfig(), None)
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    check_token(ElasticConfig(enabled=True), ElasticWeightsConfig())


def test_no_preset_takes_elastic_workers_unasked() -> None:
    assert not RunConfig.model_validate({"preset": "tiny"}).elastic.enabled


def test_the_start_of_a_run_says_how_a_worker_joins() -> None:
    line = worker_line("tcp://10.0.0.1:8786", ElasticConfig(token_file="secret"))
    assert line == "rollflow worker tcp://10.0.0.1:8786 --token-file FILE"
    line = worker_line("tls://10.0.0.1:8786", ElasticConfig(), Path("/runs/one run/run.pem"))
    assert line == "rollflow worker tls://10.0.0.1:8786 --certificate '/runs/one run/run.pem'"
    line = worker_line("tls://10.0.0.1:8786", ElasticConfig())
    assert line.endswith("--tls-ca-file FILE --tls-cert FILE --tls-key FILE")


def test_leases_and_farewells_are_heard_and_nothing_else() -> None:
    lease = {"kind": "lease", "name": "spot"}
    assert event_of(lease, 5.0) == Renewed(at_s=5.0, dask_name="spot")
    farewell = {"kind": "leaving", "name": "spot", "reason": "SIGTERM"}
    assert event_of(farewell, 5.0) == Leaves(dask_name="spot", reason="SIGTERM")
    for other in ({"kind": "lease"}, {"kind": "dance", "name": "spot"}, "lease", None):
        assert event_of(other, 5.0) is None


def test_a_card_is_read_as_the_rules_have_it() -> None:
    card = make_card("spot", "tcp://there", TERMS, ("cuda:0", "cuda:1"))
    rules = replace(RULES, versions={"rollflow": card["rollflow"]}, lease_s=20.0)
    (admitted,) = WorkerAdmission(rules).handle(shown(card, "tcp://there"))
    assert isinstance(admitted, Admit)
    assert admitted.worker.devices == ("cuda:0", "cuda:1")
    assert admitted.worker.lease_s == 20.0


def test_an_engine_holds_all_gpus_of_its_elastic_worker_or_all_cores() -> None:
    for devices, size, cores in (
        (("cuda:2", "cuda:3"), 2, ()),
        (("cpu:4", "cpu:5", "cpu:6"), 1, (0, 1, 2)),
    ):
        _, (config, _, name, core_ids, _) = recipe(run_for_workers(CONTEXT), "spot.g1", devices)
        assert config.tensor_parallel_size == size  # type: ignore[attr-defined]
        assert (name, core_ids) == ("spot.g1", cores)
    worker = make_elastic_worker("spot", since_s=0.0, until_s=None)
    two_gpus = replace(worker, devices=("cuda:2", "cuda:3"))
    assert two_gpus.timeline_devices == ("spot/cuda:2", "spot/cuda:3")
    assert replace(worker, devices=("cpu:4", "cpu:5")).timeline_devices == ("spot/cpu",)
