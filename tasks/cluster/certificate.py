"""Makes a run's TLS certificate: only processes with its file can talk to the run's Dask cluster.

    make_certificate ─▶ run.pem, 0600 ─▶ tls_settings ─▶ scheduler, nannies, workers, clients
                           └─ handed over: rollflow worker tls://HOST:8786 --certificate run.pem

The file holds a self-signed certificate and its key: it is authority, certificate and key at once.
Leaves out clusters that a run joins, whose owner provides the certificates.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

HOLDS = timedelta(days=3650)  # a run that is resumed goes on with its certificate
CLOCKS_DIFFER = timedelta(days=1)  # largest difference between clocks of a run's machines
NAME = "rollflow-run"
SILENT_S = 2.0  # a server that sends nothing for so long waits for the client's greeting


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of the PEM files that one side of a TLS connection needs."""

    authority: str  # the certificate that must have signed the other side's
    certificate: str
    key: str

    @classmethod
    def in_one(cls, file: str | Path) -> Self:
        """Use one file that holds authority, certificate and key."""
        return cls(authority=str(file), certificate=str(file), key=str(file))

    def check(self, names: str) -> None:
        """Load the files once. Raises ValueError with these names of settings if that fails."""
        try:
            context = ssl.create_default_context(cafile=self.authority)
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # ssl's errors are OSErrors
            raise ValueError(
                f"{names} must be PEM files that can be read, the key that of the certificate"
                f" ({error}); correct them"
            ) from None


def tls_settings(files: TlsFiles) -> dict[str, str | bool]:
    """Dask's settings by which clients, schedulers and workers that are created under them accept
    no connection but over TLS with these files."""
    tls = "distributed.comm.tls"
    settings: dict[str, str | bool] = {
        "distributed.comm.require-encryption": True,
        f"{tls}.ca-file": files.authority,
    }
    for side in ("client", "scheduler", "worker"):
        settings[f"{tls}.{side}.cert"] = files.certificate
        settings[f"{tls}.{side}.key"] = files.key
    return settings


def speaks_tls(url: str) -> bool:
    """True if the server at this address completes a TLS handshake; no certificate is needed. A
    Dask server without TLS sends the first message, and nothing is sent to it."""
    where = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    place = (where.hostname, where.port)
    with (
        suppress(OSError),
        socket.create_connection(place, timeout=SILENT_S) as plain,
    ):
        with suppress(TimeoutError):
            plain.recv(1, socket.MSG_PEEK)
            return False
        with context.wrap_socket(plain):
            return True
    return False


def make_certificate(file: Path) -> Path:
    """Returns the absolute path of the certificate file. The file is made if it is missing, or
    replaced if other users may read it."""
    path = file.absolute()
    if not _is_ours_alone(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "wb") as made:
            made.write(_pem())
        aside.replace(path)
    return path


def _is_ours_alone(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    is_private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
    return is_private and found.st_uid == os.getuid()


def _pem() -> bytes:
    """A new key and a certificate signed by it."""
    # 45 ms of a core, which processes that make no certificate save
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + HOLDS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, form, plain)
    return private + made.public_bytes(serialization.Encoding.PEM)
