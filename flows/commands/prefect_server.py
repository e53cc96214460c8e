"""Prefect's server with two changes: SQLite transactions take the write lock when they begin, and
servers that share a home create or upgrade its tables one after the other.

    python -m flows.commands.prefect_server server start ...    # as python -m prefect

Prefect itself takes the lock at the first write of a transaction. If another transaction has
written by then, SQLite gives up at once ("database is locked"), the server answers 503 and the
client sleeps for two seconds; this hit nearly every short step. Two servers that start without
tables would both create them, and one would end with "duplicate column".

Relied on of Prefect 3.7, and guarded by `tests/unit/test_prefect_server.py`: every transaction
begins by `AioSqliteConfiguration.begin_transaction`, which knows both ways to begin, tables are
made by `PrefectDBInterface.create_db`, and `server start` serves in its own process."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from filelock import FileLock
from prefect.cli import app
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.interface import PrefectDBInterface
from prefect.settings import PREFECT_HOME
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

UPGRADE_LOCK = "upgrade.lock"  # in Prefect's home
UPGRADE_S = 120.0  # longest wait for the tables of another server


def lock_at_begin() -> None:
    """Make every later transaction of this process take SQLite's write lock when it begins."""
    begin = AioSqliteConfiguration.begin_transaction

    def begin_with_lock(
        self: AioSqliteConfiguration,
        session: AsyncSession,
        with_for_update: bool = True,  # Prefect's name, and what it asks for where it knows
    ) -> AbstractAsyncContextManager[AsyncSessionTransaction]:
        return begin(self, session, with_for_update=True)

    setattr(AioSqliteConfiguration, begin.__name__, begin_with_lock)


def upgrade_in_turn() -> None:
    """Make this process create or upgrade tables while no other one with its home does."""
    create = PrefectDBInterface.create_db

    async def create_in_turn(self: PrefectDBInterface) -> None:
        with FileLock(PREFECT_HOME.value() / UPGRADE_LOCK, timeout=UPGRADE_S):
            await create(self)

    setattr(PrefectDBInterface, create.__name__, create_in_turn)


if __name__ == "__main__":
    upgrade_in_turn()
    lock_at_begin()
    app()
