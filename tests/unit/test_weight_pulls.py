"""An elastic worker pulls what its run serves, and passes it on; only who has the token gets
anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from weight_servers import CONFIG, TOKEN, written

from artifacts.weights import reuse
from tasks.elastic.config import ElasticConfig
from tasks.elastic.engines import ElasticEngines
from tasks.elastic.weights.pulls import FOLDER, WeightOrigin, WeightPulls
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.weights.transfer import WeightsRefused
from tasks.elastic.worker_card import EXTENSION

ELASTIC = ElasticConfig(weights=CONFIG, pull_s=20.0, build_s=20.0, load_s=20.0)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[WeightServer]:
    """A run with a model of one file."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    origin = WeightServer(CONFIG, TOKEN)
    await origin.start()
    await origin.start()  # harmless
    await origin.publish_model(model)
    await origin.publish_model(model)  # for another elastic worker
    try:
        yield origin
    finally:
        await origin.close()


def told(origin: WeightServer) -> WeightOrigin:
    return WeightOrigin(urls=origin.urls, config=ELASTIC)


@asynccontextmanager
async def elastic_worker(
    origin: WeightOrigin, folder: Path, token: str = TOKEN, host: str | None = "127.0.0.1"
) -> AsyncIterator[WeightPulls]:
    """In a worker that was started with this token and this --host."""
    folder.mkdir()
    worker = SimpleNamespace(
        name=folder.name,
        address="tcp://127.0.0.1:4000",
        local_directory=str(folder),
        loop=SimpleNamespace(asyncio_loop=asyncio.get_running_loop()),
        extensions={EXTENSION: SimpleNamespace(token=token)},
        _start_host=host,
    )
    pulls = WeightPulls(origin, f"{folder.name}.g1", worker)
    try:
        yield pulls
    finally:
        await pulls._weights.close()


async def test_an_elastic_worker_pulls_the_model_and_every_version(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as origin,
        elastic_worker(told(origin), tmp_path / "spot", host=None) as pulls,
    ):
        model = await asyncio.to_thread(pulls.model)
        assert Path(model) == tmp_path / "spot" / FOLDER / "model"
        assert (Path(model) / "config.json").read_text() == "{}"
        for version in (1, 2, 3):
            weights = written(tmp_path / "run", version)
            await origin.publish(weights)
            await origin.publish(weights)  # for another elastic worker
            here = await pulls.pull(str(version))
            assert (here.version, here.digest) == (version, weights.digest)
            assert Path(here.path).read_bytes() == Path(weights.path).read_bytes()
        left = {path.name for path in (tmp_path / "spot" / FOLDER).iterdir()}
        assert left == {"model", "2", "3"}
        assert pulls._weights._server is None, "nobody knows where to reach it"
        assert not origin.denied_requests()


async def test_a_run_that_goes_back_has_its_versions_pulled_again(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as origin,
        elastic_worker(told(origin), tmp_path / "spot") as pulls,
    ):
        for version in (2, 3, 1):
            await origin.publish(written(tmp_path / "run", version))
            here = await pulls.pull(str(version))
            assert Path(here.path).is_file()
        with pytest.raises(WeightsRefused, match="version 3 has not been published"):
            await pulls.pull("3")


async def test_an_elastic_worker_that_others_reach_passes_versions_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own files are away while the second elastic worker pulls."""
    async with serving(tmp_path) as origin:
        weights = written(tmp_path / "run")
        await origin.publish(weights)
        async with (
            elastic_worker(told(origin), tmp_path / "near") as near,
            elastic_worker(told(origin), tmp_path / "far") as far,
        ):
            await near.pull("7")
            monkeypatch.setattr("tasks.elastic.weights.held_version.MAX_FROM_ORIGIN", 0)
            sent = Path(weights.path).read_bytes()
            Path(weights.path).unlink()
            here = await far.pull("7")
            assert Path(here.path).read_bytes() == sent


async def test_a_version_that_is_written_over_is_refused(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as origin,
        elastic_worker(told(origin), tmp_path / "spot") as pulls,
    ):
        weights = written(tmp_path / "run")
        await origin.publish(weights)
        reuse(weights.path, tmp_path / "run" / "00009.safetensors")  # as the learner does
        with pytest.raises(WeightsRefused, match="version 7 is gone"):
            await pulls.pull("7")


async def test_a_wrong_token_gets_nothing_and_is_remembered(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as origin,
        elastic_worker(told(origin), tmp_path / "spot", token="another") as pulls,
    ):
        with pytest.raises(WeightsRefused, match="answered 401"):
            await asyncio.to_thread(pulls.model)
        assert not list((tmp_path / "spot" / FOLDER).iterdir())
        (knock,) = origin.denied_requests()
    assert (knock.address, knock.count) == ("127.0.0.1", 1)
    assert knock.reason == "its proof is not of this request and the run's token"


async def test_an_address_that_is_taken_is_said(tmp_path: Path) -> None:
    async with serving(tmp_path) as origin:
        config = CONFIG.model_copy(update={"port": origin.port})
        run: Any = SimpleNamespace(run_id="r", elastic=ElasticConfig())
        second = ElasticEngines(SimpleNamespace(), run, WeightServer(config, TOKEN))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"elastic\.weights\.host and port must be free"):
            await second.open()
