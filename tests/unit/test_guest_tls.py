"""Guests over Dask's own TLS: who has a certificate of the run's authority joins, others do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from card_factories import a_guest, a_trainer, ended
from distributed import Security

from tasks.cluster.dask_cluster import worker_addresses
from tasks.elastic.guest_card import dismiss, read_card

x509 = pytest.importorskip("cryptography.x509")


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """A certificate that vouches for itself, and its key: files in PEM."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(files[0]), str(files[1])


def security_of(pem: str, key: str) -> Security:
    return Security(
        tls_ca_file=pem,
        tls_client_cert=pem,
        tls_client_key=key,
        tls_scheduler_cert=pem,
        tls_scheduler_key=key,
        require_encryption=True,
    )


def tls_words(pem: str, key: str) -> tuple[str, ...]:
    return ("--tls-ca-file", pem, "--tls-cert", pem, "--tls-key", key)


def test_over_tls_a_guest_of_the_authority_joins_and_a_stranger_does_not(tmp_path: Path) -> None:
    pem, key = certificate(tmp_path, "run")
    stranger = tls_words(*certificate(tmp_path, "stranger"))
    with a_trainer(security_of(pem, key)) as trainer:
        with a_guest(trainer.address, "--name", "invited", *tls_words(pem, key)) as process:
            address = trainer.address_of("invited")
            assert address.startswith("tls://")
            card = trainer.client.run(read_card, workers=[address])[address]
            assert card["name"] == "invited"
            trainer.client.run(dismiss, "the run is over", workers=[address])
            assert ended(process)[0] == 0
        words = ("--name", "stranger", "--grace-s", "2", *stranger)
        with a_guest(trainer.address, *words) as process:
            code, said = ended(process)
        assert code == 3
        assert "guest stranger ends: the scheduler at tls://" in said
        assert "stranger" not in worker_addresses(trainer.client)
