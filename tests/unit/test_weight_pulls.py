"""An elastic worker pulls what its run serves, and passes it on; only who has the token gets
anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from record_factories import make_request
from weight_servers import CONFIG, TOKEN, written

from artifacts.pictures import PictureFolder
from artifacts.records import Request, ShownPicture, WeightsRef, pack
from artifacts.store import Store
from artifacts.weights import reuse
from tasks.cluster.ports import free_port
from tasks.elastic.config import ElasticConfig
from tasks.elastic.engines import ElasticEngineActor, ElasticEngines
from tasks.elastic.weights.pulls import FOLDER, PICTURES, WeightOrigin, WeightPulls
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.weights.transfer import WeightsRefused
from tasks.elastic.worker_card import EXTENSION
from tasks.engines.base import EngineLost, PicturedProbe
from tasks.engines.remote import EngineClient, ResponseMux

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


@asynccontextmanager
async def showing(folder: Path) -> AsyncIterator[tuple[WeightServer, PictureFolder]]:
    """A run with pictures."""
    kept = PictureFolder(Store.open(str(folder)))
    origin = WeightServer(CONFIG, TOKEN, kept)
    await origin.start()
    try:
        yield origin, kept
    finally:
        await origin.close()


async def test_pictures_come_once_and_are_those_that_were_asked_for(tmp_path: Path) -> None:
    async with (
        showing(tmp_path / "run") as (origin, kept),
        elastic_worker(told(origin), tmp_path / "spot") as pulls,
    ):
        contents = [kept.keep(data) for data in (b"one", b"two")]
        await pulls.pull_pictures([*contents, contents[0]])
        here = PictureFolder(Store.open(str(tmp_path / "spot" / PICTURES)))
        assert [here.read(content) for content in contents] == [b"one", b"two"]
        await origin.close()
        await pulls.pull_pictures(contents)  # without asking again


async def test_a_server_that_gives_another_picture_is_refused(tmp_path: Path) -> None:
    class Liar(PictureFolder):
        def read(self, content: str) -> bytes:
            return b"another"

    origin = WeightServer(CONFIG, TOKEN, Liar(Store.open(str(tmp_path))))
    await origin.start()
    async with elastic_worker(told(origin), tmp_path / "spot") as pulls:
        with pytest.raises(WeightsRefused, match=r"must give the picture 00.*, it gave 7 bytes of"):
            await pulls.pull_pictures(["0" * 64])
        assert not list((tmp_path / "spot" / PICTURES).glob("*"))
    await origin.close()


async def test_pictures_are_waited_for_within_the_limit_of_pulls(tmp_path: Path) -> None:
    async with showing(tmp_path / "run") as (origin, kept):
        content = kept.keep(b"one")
        silent = f"http://127.0.0.1:{free_port()}"
        two = WeightOrigin(urls=(silent, *origin.urls), config=ELASTIC)
        async with elastic_worker(two, tmp_path / "spot") as pulls:
            await pulls.pull_pictures([content])
        short = ELASTIC.model_copy(update={"pull_s": 0.1})
        alone = WeightOrigin(urls=(silent,), config=short)
        async with elastic_worker(alone, tmp_path / "other") as pulls:
            with pytest.raises(TimeoutError, match=r"the picture .* did not come: "):
                await pulls.pull_pictures([content])


class Waits:
    """An engine that says in which order it is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def submit(self, requests: Sequence[Request]) -> None:
        self.calls += [f"submit {request.response_id}" for request in requests]

    async def abort(self, response_ids: Sequence[str]) -> None:
        self.calls += [f"abort {name}" for name in response_ids]

    async def load_weights(self, *args: object) -> None:
        self.calls.append("load")


def pictured_actor(engine: Waits, pull: Callable[[list[str]], Awaitable[None]]) -> Any:
    """An actor in a process of its own, but for the process."""
    actor = ElasticEngineActor.__new__(ElasticEngineActor)
    actor._pulls_pictures, actor._arriving = True, asyncio.Lock()
    actor._pulls = SimpleNamespace(pull_pictures=pull)  # type: ignore[assignment]
    actor._engine = engine  # type: ignore[assignment]
    actor._askers = ResponseMux(engine)  # type: ignore[arg-type]
    return actor


async def test_requests_wait_for_their_pictures_and_no_call_overtakes_them() -> None:
    came, asked = asyncio.Event(), list[list[str]]()

    async def pull(contents: list[str]) -> None:
        asked.append(contents)
        await came.wait()

    shown = ShownPicture(content="a", begin=0, rows=1, columns=1)
    request = replace(make_request(prompt_id="0/1"), pictures=(shown,))
    probe = PicturedProbe.of((1, 2), (replace(shown, content="b"),))
    engine = Waits()
    actor = pictured_actor(engine, pull)
    calls = [
        actor.submit(EngineClient.ROUND, pack((request,))),
        actor.abort(pack((request.response_id,))),
        actor.load_weights(pack((WeightsRef(version=1, path="", digest=""), (probe,), None))),
    ]
    running = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0.05)
    assert not engine.calls
    came.set()
    await asyncio.gather(*running)
    assert engine.calls == ["submit 0/1:0", "abort 0/1:0", "load"]
    assert asked == [["a"], ["b"]]


async def test_an_engine_whose_pictures_do_not_come_is_lost_to_its_requests() -> None:
    async def pull(contents: list[str]) -> None:
        raise WeightsRefused("404: gone")

    actor = pictured_actor(Waits(), pull)
    with pytest.raises(EngineLost, match="404: gone"):
        await actor.submit(EngineClient.ROUND, pack((make_request(),)))
