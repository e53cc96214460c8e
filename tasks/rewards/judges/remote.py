"""A judge in a Dask worker: the actor that holds it, and the Judge that callers see.

desk -> RemoteJudge -> bytes over Dask -> JudgeActor -> JudgeEngine (its own stepping thread)
"""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.judgements import Judgement, JudgeQuestion
from artifacts.records import pack, unpack
from tasks.cluster.actors import Remote
from tasks.cluster.dask_cluster import pin_process
from tasks.rewards.judges.engine import Judge, JudgeEngine, JudgeEngineConfig


class JudgeActor:
    """Holds one judge. Its methods are coroutines on the worker's event loop."""

    def __init__(
        self,
        config: JudgeEngineConfig,
        model_path: str,
        name: str,
        core_ids: tuple[int, ...],
        has_tokenizer: bool,
        start_s: float,
    ) -> None:
        cores = pin_process(core_ids)
        self._engine = JudgeEngine(config, model_path, name, cores, has_tokenizer=has_tokenizer)
        self._engine.start(start_s)

    async def ping(self) -> None:
        """Answers as long as the engine does; raises EngineLost when its stepping thread has died
        in a living worker."""
        self._engine.check_alive()

    async def decide(self, payload: bytes) -> bytes:
        return pack(await self._engine.decide(unpack(payload)))

    async def rest(self) -> None:
        await self._engine.rest()

    async def close(self) -> None:
        self._engine.close()


class RemoteJudge(Judge):
    """The Judge protocol over an actor."""

    def __init__(self, remote: Remote, deadline_s: float) -> None:
        """deadline_s: how long a batch may take."""
        self.name = remote.name
        self._remote = remote
        self._deadline_s = deadline_s

    @classmethod
    def connect(cls, run_id: str, name: str, deadline_s: float) -> RemoteJudge:
        """The current generation of a run's judge. Raises ActorLost if it is gone."""
        return cls(Remote.connect(run_id, name), deadline_s)

    async def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        judged: tuple[Judgement, ...] = unpack(
            await self._remote.call("decide", pack(tuple(questions)), deadline_s=self._deadline_s)
        )
        return judged

    async def rest(self) -> None:
        await self._remote.call("rest", deadline_s=self._deadline_s)
