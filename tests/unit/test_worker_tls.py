"""Elastic workers over Dask's own TLS: who has the run's certificate joins, others are refused in a
sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

from distributed import Security
from listeners import listeners
from worker_processes import a_trainer, an_elastic_worker, ended

from tasks.cluster.certificate import make_certificate
from tasks.cluster.dask_cluster import worker_addresses
from tasks.elastic.worker_card import end_worker, read_card

NEEDED = "give address and certificate as the run named them at its start"


def security_of(pem: str) -> Security:
    return Security(
        tls_ca_file=pem,
        tls_client_cert=pem,
        tls_client_key=pem,
        tls_scheduler_cert=pem,
        tls_scheduler_key=pem,
        require_encryption=True,
    )


def test_an_elastic_worker_with_the_runs_certificate_joins_and_a_stranger_is_refused(
    tmp_path: Path,
) -> None:
    pem, other = (str(make_certificate(tmp_path / name)) for name in ("run.pem", "other.pem"))
    with a_trainer(security_of(pem)) as trainer:
        with an_elastic_worker(
            trainer.address, "--name", "invited", "--certificate", pem
        ) as process:
            address = trainer.address_of("invited")
            assert address.startswith("tls://")
            assert {host for host, _ in listeners(process.pid)} == {"127.0.0.1"}
            card = trainer.client.run(read_card, workers=[address])[address]
            assert card["name"] == "invited"
            trainer.client.run(end_worker, "dismiss", "the run is over", workers=[address])
            assert ended(process)[0] == 0
        words = ("--name", "stranger", "--certificate", other)
        with an_elastic_worker(trainer.address, *words) as process:
            assert_refused(process, f"{trainer.address} lets in who has the run's certificate")
        plain = trainer.address.replace("tls://", "tcp://")
        with an_elastic_worker(plain, "--name", "stranger", "--grace-s", "4") as process:
            assert_refused(process, f"{plain} takes nothing but TLS")
        assert "stranger" not in worker_addresses(trainer.client)


def assert_refused(process: subprocess.Popen[str], why: str) -> None:
    code, said = ended(process)
    assert (code, said.splitlines()[-1]) == (
        2,
        f"elastic worker stranger is refused: {why}; {NEEDED}",
    )
