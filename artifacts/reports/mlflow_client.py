"""A client of MLflow: opened without telemetry, and impatient with a dead server."""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from artifacts.proxies import ask_directly

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SQLITE = "sqlite:///"
# MLflow's own defaults let one call to a dead server take minutes; a step must not wait for that.
PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # a busy server may ask for an hour
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def open_client(uri: str) -> MlflowClient:
    """A client for a tracking URI, telemetry off; a SQLite file and its directory are made. Imports
    MLflow (1.5 s) only here."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    ask_directly()
    from mlflow.tracking import MlflowClient

    for chatty in ("alembic", "mlflow.store.db.utils", "mlflow.tracking"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # or each try is told
    database = sqlite_file(uri)
    if database is not None and not database.exists():
        _make_tables(database)
    return MlflowClient(tracking_uri=uri)


def _make_tables(database: Path) -> None:
    """Have MLflow make its tables aside: it takes seconds, and a file in which it was killed or met
    another process that makes them is refused for ever."""
    from mlflow.tracking import MlflowClient

    database.parent.mkdir(parents=True, exist_ok=True)
    aside = database.with_name(f".{database.name}.{uuid.uuid4().hex}")
    try:
        MlflowClient(tracking_uri=sqlite_uri(aside))
        with suppress(FileExistsError):  # another run was faster
            os.link(aside, database)
    finally:
        aside.unlink(missing_ok=True)


def sqlite_uri(database: Path, scheme: str = "sqlite") -> str:
    """The URI of a database. SQLAlchemy takes %41 in it for an A, and ? for its end."""
    return f"{scheme}:///" + str(database).replace("%", "%25").replace("?", "%3F")


def sqlite_file(uri: str) -> Path | None:
    """The database of a `sqlite:///` URI, else None."""
    return Path(unquote(uri.removeprefix(SQLITE))).resolve() if uri.startswith(SQLITE) else None
