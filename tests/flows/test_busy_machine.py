"""A run beside what other people have on a machine: a proxy, a dashboard."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from tasks.cluster.devices import ClusterConfig
from tasks.cluster.ports import LOOPBACK
from tests.flows.conftest import ENDS_WITHIN_S, SIMULATED, Launcher, train_words

NAMED = "cluster.dashboard_port=0"  # what other tests name


def test_a_proxy_that_never_answers_and_a_dashboard_that_is_there_stop_no_run(
    launcher: Launcher, tmp_path: Path
) -> None:
    usual = ClusterConfig().dashboard_port
    words = train_words(tmp_path, *SIMULATED, "num_steps=1")
    place = words.index(NAMED)
    del words[place - 1 : place + 1]
    with ExitStack() as stack:
        proxy = stack.enter_context(socket.create_server((LOOPBACK, 0)))
        with suppress(OSError):  # somebody's dashboard is there
            stack.enter_context(socket.create_server((LOOPBACK, usual)))
        url = f"http://{LOOPBACK}:{proxy.getsockname()[1]}"
        kinds = ("http_proxy", "https_proxy", "all_proxy")
        proxies = {spelling: url for kind in kinds for spelling in (kind, kind.upper())}
        environment = {**proxies, "no_proxy": "", "NO_PROXY": ""}
        process = launcher.origin.start(words, tmp_path, environment)
        try:
            out, err = process.communicate(ENDS_WITHIN_S)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert f"port {usual} is taken: the Dask dashboard has port " in out
    assert len(list(tmp_path.glob("*/steps/*.json"))) == 1
