"""What the processes in which environments step share, see and reach, by their settings."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from environment_pools import ISOLATIONS, PATIENT, SCRIPT, failure, hosts
from scripted_environments import Connected, Sharing, Threading

from tasks.environments.pools.pool import EnvironmentPool
from tasks.environments.processes import walls as origin_walls
from tasks.environments.processes.walls import closed_to_nobody
from tasks.isolation.interpreter import own

OUTSIDE = "/etc/passwd"


async def test_slow_imports_happen_once_for_all_processes() -> None:
    async with hosts(PATIENT, Sharing()) as pool:
        await pool.reset("one", Sharing(), 1)
        assert (await pool.step("one", "imported colorsys")).observation == "True"
        assert (await pool.step("one", "imported scripted_environments")).observation == "True"
    async with hosts(PATIENT, SCRIPT) as pool:
        await pool.reset("one", SCRIPT, 1)
        assert (await pool.step("one", "imported colorsys")).observation == "False"


@pytest.mark.parametrize(
    "module",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()",
        "raise LookupError('not today')",
        "import os\nos._exit(7)",
    ],
    ids=["starts a thread", "raises", "exits"],
)
async def test_what_cannot_be_imported_for_all_is_left_to_each(
    module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "module_with_a_thread.py").write_text(module)
    tmp_path.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    async with hosts(PATIENT, Threading()) as pool:
        await pool.reset("one", Threading(), 1)
        assert (await pool.step("one", "imported colorsys")).observation == "False"
    assert "environment processes import for themselves" in caplog.text


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_the_network_is_for_those_that_need_it(isolation: str) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = PATIENT.model_copy(update={"isolation": isolation})
    async with server, hosts(config, SCRIPT, Connected()) as pool:
        await pool.reset("one", Connected(), 1)
        await pool.reset("two", SCRIPT, 1)
        transition = await pool.step("one", f"socket 127.0.0.1:{port}")
        assert transition.observation == "welcome"
        _, detail = await failure(pool.step("two", f"socket 127.0.0.1:{port}"))
        assert "PermissionError" in detail


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_further_paths_can_be_made_readable(isolation: str) -> None:
    config = PATIENT.model_copy(update={"isolation": isolation, "readable": (OUTSIDE,)})
    async with hosts(config) as pool:
        await pool.reset("one", SCRIPT, 1)
        observation = (await pool.step("one", f"read {OUTSIDE}")).observation
        assert observation == Path(OUTSIDE).read_text()


@pytest.mark.parametrize("path", ["relative", "/no/such/path", "/tmp/anything"])
async def test_readable_paths_exist_and_are_absolute(path: str, tmp_path: Path) -> None:
    pool = EnvironmentPool(PATIENT.model_copy(update={"readable": (path,)}))
    with pytest.raises(ValueError, match=r"hosts\.readable must name absolute paths"):
        await pool.reset("one", SCRIPT, 1)
    pool.close()


async def test_environments_see_no_secrets_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    async with hosts() as pool:
        await pool.reset("one", SCRIPT, 1)
        names = (await pool.step("one", "environ")).observation.split()
        assert "HF_TOKEN" not in names
        assert "HOME" in names


async def test_a_machine_without_the_isolation_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    pool = EnvironmentPool(PATIENT)
    cure = r"Creating new namespace failed; allow unprivileged .* isolation 'landlock'"
    with pytest.raises(ValueError, match=cure):
        await pool.reset("one", SCRIPT, 1)
    pool.close()


async def test_landlock_is_refused_where_nobody_can_read_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tasks.environments.processes.fork_servers.closed_to_nobody", lambda _: "/root"
    )
    pool = EnvironmentPool(PATIENT.model_copy(update={"isolation": "landlock"}))
    with pytest.raises(
        ValueError, match=r"could not read Python, /root is closed .*; use a kernel"
    ):
        await pool.reset("one", SCRIPT, 1)
    pool.close()


def test_a_directory_that_is_closed_to_others_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "closed" / "lib" / "os.py"
    library.parent.mkdir(parents=True)
    library.touch()
    library.parent.parent.chmod(0o700)
    monkeypatch.setattr(os, "__file__", str(library))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert str(library.parent.parent).startswith(closed_to_nobody(own()))
    assert closed_to_nobody(own())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert closed_to_nobody(own()) == ""


async def test_settings_that_no_other_process_can_have_are_refused() -> None:
    class Local(type(SCRIPT)):  # type: ignore[misc]
        """Not at the top of a module."""

    class Main(type(SCRIPT)):  # type: ignore[misc]
        """As a script's own."""

    Main.__module__ = "__main__"
    async with hosts(PATIENT.model_copy(update={"num_hosts": 1})) as pool:
        for settings in (Local(), Main()):
            with pytest.raises(ValueError, match="settings of environments must pickle"):
                await pool.reset("one", settings, 1)
        assert await pool.reset("one", SCRIPT, 5) == "5:0"


async def test_a_clone_below_tmp_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(origin_walls, "ROOT", Path("/tmp/clone"))
    with pytest.raises(ValueError, match=r"outside of /tmp.*/tmp/clone is below /tmp; move it"):
        async with hosts(PATIENT, SCRIPT):
            pass
