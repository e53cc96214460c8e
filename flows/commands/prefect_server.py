"""Prefect's server, with SQLite transactions that take the write lock when they begin.

Prefect begins them without it and takes it at the first write. By then another may have written:
SQLite gives up at once, however long it may wait ("database is locked"), the server answers 503,
and the client that asked sleeps for two seconds. Of short steps nearly every one met this. A
transaction that takes the lock first waits its turn instead, for milliseconds.

    python -m flows.commands.prefect_server server start ...    # as python -m prefect

Relied on, in Prefect 3.7, and guarded by `tests/unit/test_prefect_server.py`: every transaction of
the server begins by `AioSqliteConfiguration.begin_transaction`, which knows both ways to begin, and
`server start` in the foreground serves in its own process.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from prefect.cli import app
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


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


if __name__ == "__main__":
    lock_at_begin()
    app()
