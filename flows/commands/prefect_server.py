"""Prefect's server, with SQLite transactions that take the write lock when they begin, and one
server of a home at a time that makes the tables or brings them up to date.

Prefect begins them without it and takes it at the first write. By then another may have written:
SQLite gives up at once, however long it may wait ("database is locked"), the server answers 503,
and the client that asked sleeps for two seconds. Of short steps nearly every one met this. A
transaction that takes the lock first waits its turn instead, for milliseconds.

    python -m flows.commands.prefect_server server start ...    # as python -m prefect

Two servers that find no tables, as of two first demos at once, both make them, and one ends with
"duplicate column". So one waits for the other.

Relied on, in Prefect 3.7, and guarded by `tests/unit/test_prefect_server.py`: every transaction of
the server begins by `AioSqliteConfiguration.begin_transaction`, which knows both ways to begin, the
tables are made by `PrefectDBInterface.create_db`, and `server start` in the foreground serves in
its own process.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from filelock import FileLock
from prefect.cli import app
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.interface import PrefectDBInterface
from prefect.settings import PREFECT_HOME
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

UPGRADE_LOCK = "upgrade.lock"  # in Prefect's home
UPGRADE_S = 120.0  # within which another server has made the tables


def lock_at_begin() -> None:
    """From now on every transaction of this process takes SQLite's write lock when it begins."""
    begin = AioSqliteConfiguration.begin_transaction

    def begin_with_lock(
        self: AioSqliteConfiguration,
        session: AsyncSession,
        with_for_update: bool = True,  # Prefect's name, and what it asks for where it knows
    ) -> AbstractAsyncContextManager[AsyncSessionTransaction]:
        return begin(self, session, with_for_update=True)

    setattr(AioSqliteConfiguration, begin.__name__, begin_with_lock)


def upgrade_in_turn() -> None:
    """From now on this process makes tables, or brings them up to date, while no other process with
    the same home does."""
    create = PrefectDBInterface.create_db

    async def create_in_turn(self: PrefectDBInterface) -> None:
        with FileLock(PREFECT_HOME.value() / UPGRADE_LOCK, timeout=UPGRADE_S):
            await create(self)

    setattr(PrefectDBInterface, create.__name__, create_in_turn)


if __name__ == "__main__":
    upgrade_in_turn()
    lock_at_begin()
    app()
