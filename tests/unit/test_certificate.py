"""A run's certificate: its file, and who asks for which."""

from __future__ import annotations

from pathlib import Path

import dask
import pytest
from distributed import Security
from pydantic import ValidationError

from tasks.cluster.certificate import TlsFiles, make_certificate, speaks_tls, tls_settings
from tasks.cluster.devices import ClusterConfig

THREE = {"tls_ca_file": "ca.pem", "tls_cert": "run.pem", "tls_key": "run.key"}


def test_only_its_owner_reads_it_and_a_second_start_goes_on_with_it(tmp_path: Path) -> None:
    file = make_certificate(tmp_path / "new" / "run.pem")
    made = file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert make_certificate(file).read_bytes() == made
    assert list(file.parent.iterdir()) == [file]


def test_one_that_others_could_read_is_made_anew(tmp_path: Path) -> None:
    file = make_certificate(tmp_path / "run.pem")
    read = file.read_bytes()
    file.chmod(0o644)
    assert make_certificate(file).read_bytes() != read
    assert file.stat().st_mode & 0o777 == 0o600


def test_one_that_is_a_link_to_anothers_is_made_anew(tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other.pem")
    (tmp_path / "run.pem").symlink_to(other)
    assert make_certificate(tmp_path / "run.pem").read_bytes() != other.read_bytes()


def test_with_its_settings_every_side_of_dask_wants_tls(tmp_path: Path) -> None:
    files = TlsFiles.in_one(make_certificate(tmp_path / "run.pem"))
    with dask.config.set(tls_settings(files)):
        security = Security()
    assert security.require_encryption
    for role in ("client", "scheduler", "worker"):
        assert security.get_listen_args(role)["ssl_context"] is not None


def test_nobody_speaks_tls_where_nobody_listens() -> None:
    assert not speaks_tls("tcp://127.0.0.1:9")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (THREE | {"tls_key": ""}, "go together, got 'ca.pem', 'run.pem' and ''"),
        (THREE | {"scheduler_address": "tcp://host:8786"}, "must begin with tls://"),
    ],
)
def test_certificates_that_cannot_be_used_are_one_sentence(
    fields: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        ClusterConfig.model_validate(fields)


def test_a_run_makes_one_for_its_own_cluster_unless_it_is_given_one() -> None:
    assert ClusterConfig().makes_certificate
    assert not ClusterConfig.model_validate(THREE).makes_certificate
    assert not ClusterConfig(scheduler_address="tcp://host:8786").makes_certificate
    joined = THREE | {"scheduler_address": "tls://host:8786"}
    assert not ClusterConfig.model_validate(joined).makes_certificate
