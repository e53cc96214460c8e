"""A run listens where it was told, on the loopback address by itself, and answers nobody without
its certificate."""

from __future__ import annotations

from pathlib import Path

import pytest
from listeners import let_in, listeners

from tasks.cluster.certificate import make_certificate
from tests.flows.conftest import SIMULATED, Launcher, wait_for

pytestmark = pytest.mark.flow

SLOW = "engine.profile.step_s=0.3"  # of a token: a round lasts until it has been looked at
WORKERS = 5  # of the preset: control, two engines, two learners
INVITED = "127.0.0.2"  # as good as an interface of its own


@pytest.mark.parametrize(
    ("name", "host", "settings"),
    [
        ("alone", "127.0.0.1", ()),
        ("serves-weights", INVITED, ("elastic.enabled=true", "elastic.weights.enabled=true")),
    ],
)
def test_a_run_listens_where_it_was_told_and_answers_no_stranger(
    name: str, host: str, settings: tuple[str, ...], launcher: Launcher, tmp_path: Path
) -> None:
    run, stranger = tmp_path / name, make_certificate(tmp_path / "stranger.pem")
    (token := tmp_path / "token").write_text("of-the-run")
    process = launcher.start(
        tmp_path,
        *(*SIMULATED, SLOW, f'run_name="{name}"', f'cluster.scheduler_host="{host}"'),
        *(f'elastic.token_file="{token}"', *settings),
    )
    try:
        wait_for(run / "plans/00001.json", process)
        places = listeners(process.pid)
        assert {address for address, _ in places} == {"127.0.0.1", host}
        assert not let_in(places, "tcp")
        assert not let_in(places, "tls", stranger)
        if settings:
            # the scheduler, a nanny for each worker, and the workers
            assert len(let_in(places, "tls", run / "run.pem")) == 1 + 2 * WORKERS
            assert (run / "run.pem").stat().st_mode & 0o777 == 0o600
    finally:
        process.kill()
