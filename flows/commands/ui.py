"""rollflow ui: serve one page of all runs, and with it the pages of Prefect and MLflow."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

from artifacts.private_files import private_files
from artifacts.proxies import open_directly
from artifacts.run_ids import find_run
from artifacts.store import Store
from flows.commands.local_stack import SERVERS, add_ports, stop_on_signals, wish_of
from flows.commands.options import command, folder
from flows.commands.page_servers import PageServers, local_url
from flows.commands.runs import logger as runs_logger
from flows.commands.runs_page import ROOT_HEADER, RunsPage, RunsServer
from tasks.cluster.ports import held_port

ANSWER_S = 1.0  # a page that is served already answers within this time


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow ui",
        description="Serve one page of all runs, with links to reports, Prefect and MLflow.",
    )
    which = "the run to show first: its name, a beginning of it, or last (default: all)"
    made.add_argument("run", nargs="?", default="", metavar="RUN", help=which)
    made.add_argument(
        "--root",
        type=folder,
        default=Path("runs"),
        help="artifact root of the runs (default: %(default)s)",
    )
    add_ports(made, SERVERS)
    return made


@command(parser, RuntimeError)
@private_files()
def main(options: Namespace) -> int:
    stop_on_signals()
    root = options.root.resolve()
    if not root.is_dir() or not any(root.iterdir()):
        raise ValueError(
            f"there must be a run to look at, {root} has none; 'rollflow demo --preset tiny' makes"
            " one, or name another folder with --root"
        )
    run_id = find_run(Store.open(str(root)), options.run) if options.run else ""
    page = f"{quote(run_id, safe='')}/" if run_id else ""
    usual = local_url(SERVERS["reports"][1])
    if options.reports_port is None and served_root(usual) == str(root):
        print(f"runs      {usual}/{page}  served already by another 'rollflow ui'")
        return 0
    tell = partial(print, flush=True)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        ports = {}
        for name in SERVERS:
            wish = wish_of(name, getattr(options, f"{name}_port"))
            ports[name] = stack.enter_context(held_port(wish, tell))
        servers = PageServers(root, ports["prefect"], ports["mlflow"], tell)
        site = stack.enter_context(RunsServer(ports["reports"], RunsPage(root, servers)))
        tell(f"runs      {local_url(ports['reports'])}/{page}")
        tell("Prefect and MLflow follow; Ctrl-C ends all three.")
        site.page.draw()  # logs the folders that cannot be read, once
        runs_logger.disabled = True
        stack.enter_context(servers.running())
        stack.callback(tell, "\nending the servers")
        site.serve_forever()
    return 0


def served_root(url: str) -> str | None:
    """The artifact root that a page of runs at this address serves; None if there is no such."""
    with suppress(OSError, ValueError), open_directly(f"{url}/", ANSWER_S) as answer:
        kept = answer.headers.get(ROOT_HEADER)
        return None if kept is None else unquote(kept)
    return None
