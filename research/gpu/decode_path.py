"""One engine as a run uses it, for the kinds `path` and `path_reports` of `decode_throughput`.

    this process (Dask scheduler) ─▶ worker control: drive_round ─▶ worker engine-0: EngineActor

Every response is a prompt of its own, whose verdict comes at once: what is left is the way of
requests, reports and responses. Leaves out prompts, rewards, records and Prefect.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from artifacts.attempt_log import TokenLog
from artifacts.records import Generated, Group, Outcome, Prompt, Request, Score
from tasks.cluster.actors import Remote
from tasks.cluster.dask_cluster import open_cluster
from tasks.cluster.devices import ClusterConfig
from tasks.cluster.registry import ActorRegistry
from tasks.engines.base import SamplingConfig
from tasks.engines.mailbox import Mailbox
from tasks.engines.remote import EngineActor, RemoteEngine
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.engines.vllm.llm_engine import on_cpu
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundInputs
from tasks.scheduling.events import PromptRef, RoundPlan
from tasks.scheduling.wait_for_all import WaitForAll

RUN, ENGINE, CONTROL = "decode", "engine-0", "control"
START_S, ANSWER_S = 300.0, 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The responses that are generated together."""

    prompts: Sequence[tuple[int, ...]]  # token ids, one response each
    lengths: Sequence[int]  # tokens of each response
    report_tokens: int  # as the engine has it
    folder: str  # for logs of reported tokens


@contextmanager
def opened_path(
    config: VllmEngineConfig, model: str, seed: int
) -> Iterator[Callable[[Sequence[tuple[int, ...]], Sequence[int]], int]]:
    """Start the cluster and its engine; yields a function of prompts and the lengths of their
    responses, which generates these and returns their number of tokens."""
    kind = "cpu" if on_cpu() else "cuda"
    cluster = ClusterConfig(
        device_kind=kind, num_devices=1, roles="rollout: 0, learner: 0", dashboard_port=0
    )
    with tempfile.TemporaryDirectory(prefix="rollflow-path-") as folder:
        scratch, logs = Path(folder, "scratch"), Path(folder, "log")
        with open_cluster(cluster, scratch, logs, imports=config.imports) as client:
            registry = ActorRegistry(client, RUN)
            recipe = (EngineActor, (config, model, ENGINE, (), (), seed))
            registry.create_all({ENGINE: ENGINE}, {ENGINE: recipe}, START_S)

            def generate(prompts: Sequence[tuple[int, ...]], lengths: Sequence[int]) -> int:
                batch = Batch(
                    prompts=prompts,
                    lengths=lengths,
                    report_tokens=config.report_tokens,
                    folder=folder,
                )
                num_tokens: int = client.submit(play, batch, workers=[CONTROL], pure=False).result()
                return num_tokens

            yield generate
            registry.close()


def play(batch: Batch) -> int:
    """Generate the batch in one round, in the worker control; returns its number of tokens."""
    engine = _Bounded(Remote.connect(RUN, ENGINE), ANSWER_S)
    engine.lengths = {f"0/{place}": length for place, length in enumerate(batch.lengths)}
    log = TokenLog(Path(batch.folder, "tokens"))
    try:
        result = asyncio.run(drive_round_of(batch, engine, log))
    finally:
        log.close()
    return result


async def drive_round_of(batch: Batch, engine: RemoteEngine, log: TokenLog) -> int:
    """Play a round that waits for every response of the batch; returns its number of tokens."""
    prompts = {
        f"0/{place}": Prompt(prompt_id=f"0/{place}", domain="a", token_ids=tokens, gold="", text="")
        for place, tokens in enumerate(batch.prompts)
    }
    plan = RoundPlan(
        step=1,
        kind="sync",
        prompts=tuple(PromptRef(prompt_id=name, domain="a") for name in prompts),
        launch_per_prompt=1,
        accept_prompts=len(prompts),
        accept_per_prompt=1,
    )
    inputs = RoundInputs(
        plan=plan,
        versions=range(1),
        prompts=prompts,
        scheduler=WaitForAll(plan),
        engines=[engine],
        feed=_Verdicts(),
        sampling=SamplingConfig(max_response_tokens=max(batch.lengths)),
        recorded=(),
        seed=0,
        deadline_s=ANSWER_S,
        on_finished=lambda whole: None,
        on_accept=_train,
        report_tokens=batch.report_tokens,
        on_new_tokens=log.write,
    )
    result = await drive_round(inputs)
    return sum(generated.num_sampled for generated in result.generated)


class _Bounded(RemoteEngine):
    """An engine whose responses have a given length each."""

    lengths: Mapping[str, int]  # by prompt id

    async def submit(self, requests: Sequence[Request]) -> None:
        lengths = self.lengths
        await super().submit(
            [replace(each, max_new_tokens=lengths[each.prompt_id]) for each in requests]
        )


async def _train(group: Group) -> None:
    """Training takes no time."""


class _Verdicts:
    """A feed that scores every response at once."""

    def __init__(self) -> None:
        self._scores = Mailbox[Score]()

    async def publish(self, generated: Sequence[Generated]) -> None:
        for each in generated:
            score = Score(
                prompt_id=each.prompt_id, index=each.index, reward=1.0, outcome=Outcome.OK,
                detail="", scorer="none", started_s=0.0, finished_s=0.0,
            )  # fmt: skip
            self._scores.put(score)

    async def scored(self, wait_s: float) -> list[Score]:
        return await self._scores.take(wait_s)
