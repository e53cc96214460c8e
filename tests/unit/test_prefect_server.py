"""Two transactions of Prefect's server that read before they write wait for each other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Thread

import pytest
import sqlalchemy as sa
from prefect.server.database import provide_database_interface
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.interface import PrefectDBInterface
from sqlalchemy.exc import OperationalError

from flows.commands.prefect_server import lock_at_begin, upgrade_in_turn


async def count_twice_at_once(database: Path) -> int:
    """What a counter says after two transactions that each read it, give way, and write one more.

    Raises what SQLite raises where the second of them cannot write.
    """
    configuration = AioSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{database}")
    engine = await configuration.engine()

    async def add_one() -> None:
        session = await configuration.session(engine)
        async with session, configuration.begin_transaction(session):
            (found,) = (await session.execute(sa.text("select n from counter"))).one()
            await asyncio.sleep(0.1)
            await session.execute(sa.text("update counter set n = :n"), {"n": found + 1})

    async with engine.begin() as connection:
        await connection.execute(sa.text("create table counter (n integer)"))
        await connection.execute(sa.text("insert into counter values (0)"))
    await asyncio.gather(add_one(), add_one())
    async with engine.connect() as connection:
        (number,) = (await connection.execute(sa.text("select n from counter"))).one()
    await engine.dispose()
    return int(number)


def test_prefects_own_transactions_meet(tmp_path: Path) -> None:
    """What the server is for; once this fails, Prefect needs it no more."""
    with pytest.raises(OperationalError, match="database is locked"):
        asyncio.run(count_twice_at_once(tmp_path / "prefect.db"))


def test_transactions_that_lock_at_their_begin_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = AioSqliteConfiguration.begin_transaction
    monkeypatch.setattr(AioSqliteConfiguration, "begin_transaction", begin)  # put back at the end
    lock_at_begin()
    assert asyncio.run(count_twice_at_once(tmp_path / "prefect.db")) == 2


def test_two_servers_make_their_tables_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    making, most = [0], [0]

    async def create(_: PrefectDBInterface) -> None:
        making[0] += 1
        most[0] = max(most[0], making[0])
        await asyncio.sleep(0.05)
        making[0] -= 1

    create.__name__ = "create_db"
    monkeypatch.setattr(PrefectDBInterface, "create_db", create)
    upgrade_in_turn()
    servers = [
        Thread(target=lambda: asyncio.run(provide_database_interface().create_db()))
        for _ in range(3)
    ]
    for server in servers:
        server.start()
    for server in servers:
        server.join()
    assert most == [1]
