"""A slow service gives the verdicts of a run whose rounds overlap training: over all of its rounds,
every response is asked about exactly once, those included whose verdict was under way when their
round closed."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread

import pytest

from artifacts.records import response_id
from tasks.run.prompts import is_heldout
from tests.flows.asynchronous_records import check, rows
from tests.flows.conftest import SIMULATED, Launcher

pytestmark = pytest.mark.flow

NUM_STEPS, DELAY_S = 5, 1.5


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that the service answered."""

    name: str  # the response's id
    asked_s: float  # Unix seconds
    answered_s: float  # Unix seconds


@contextmanager
def slow_service() -> Iterator[tuple[str, list[Asked]]]:
    """Whether a response has the gold answer, after a delay; its address, and what it answered."""
    answered: list[Asked] = []
    lock = Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked_s = time.time()
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(DELAY_S)
            is_right = question["response"].strip().endswith(question["gold"])
            content = json.dumps({"reward": float(is_right)}).encode()
            with lock:
                name = question["response_id"]
                answered.append(Asked(name=name, asked_s=asked_s, answered_s=time.time()))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None: ...

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/", answered
        finally:
            server.shutdown()
            thread.join()


def test_every_response_is_asked_about_once_over_all_rounds(
    launcher: Launcher, tmp_path: Path
) -> None:
    run = tmp_path / "service"
    with slow_service() as (url, answered):
        finished = launcher.run(
            tmp_path,
            *SIMULATED,
            f'run_name="{run.name}"',
            f"num_steps={NUM_STEPS}",
            "engine.profile.step_s=0.05",
            "reward_workers=32",
            "rewards.*.kind=service",
            f'rewards.*.url="{url}"',
            preset="tiny-async",
        )
    assert finished.code == 0, finished.err
    check(run, async_ratio=1.0, num_steps=NUM_STEPS)
    times_asked = Counter(asked.name for asked in answered)
    of_rounds = {name: n for name, n in times_asked.items() if not is_heldout(name)}
    of_evaluations = {name: n for name, n in times_asked.items() if is_heldout(name)}
    recorded = [
        response_id(prompt, index)
        for step in range(1, NUM_STEPS + 1)
        for prompt, index, fate, outcome in rows(run, step, "prompt_id, index, fate, outcome")
        if fate == "trained" and outcome in ("ok", "wrong")
    ]
    assert set(of_rounds.values()) == {1}, "none is asked about twice"
    assert set(recorded) <= set(of_rounds), "nothing is trained without a verdict of its own"
    assert set(of_evaluations.values()) == {2}, "held-out ones once before and once after the run"
    assert _are_under_way_at_a_close(run, answered), "else carrying verdicts on was not tried"


def _are_under_way_at_a_close(run: Path, answered: list[Asked]) -> bool:
    """Whether some verdict on a later round's response was asked for before a round was closed and
    came after it."""
    for step in range(1, NUM_STEPS):
        closed_s = (run / "rounds" / f"{step:05d}.json").stat().st_mtime
        later = {
            response_id(prompt, index)
            for after in range(step + 1, NUM_STEPS + 1)
            for prompt, index in rows(run, after, "prompt_id, index")
        }
        carried = [asked for asked in answered if asked.name in later]
        if any(asked.asked_s < closed_s < asked.answered_s for asked in carried):
            return True
    return False
