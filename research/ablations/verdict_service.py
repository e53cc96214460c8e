"""A judge elsewhere, as far as a run can tell: right verdicts of the mathematics reward by HTTP,
each after a wait that costs no processor.

    POST http://127.0.0.1:8977/?median_s=10 ──▶ asked first? its wait begins ──▶ slept ──▶ verdict

How long a response waits is drawn from a lognormal law by its response_id alone, so that every
schedule meets the same waits; the address says the median. A question goes on when its caller hangs
up: asked again, it waits for the rest only. As many questions as come are answered side by side.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig

PORT = 8977
SIGMA = 0.5  # of the logarithm of a wait: one in twenty takes 2.3 times the median


def wait_s(response_id: str, median_s: float) -> float:
    """The wait of a response, seconds."""
    return median_s * math.exp(random.Random(response_id).gauss(0.0, SIGMA))


class Verdicts:
    """What the service has been asked, and what it says. Called from many threads."""

    def __init__(self) -> None:
        self._due_s: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()
        self._judge = MathAnswer(MathAnswerConfig())

    def close(self) -> None:
        self._judge.close()

    def due_s(self, question: Mapping[str, str], median_s: float, now_s: float) -> float:
        """When the verdict is there, by the clock of `now_s`: a wait after it was first asked."""
        name, response = question["response_id"], question["response"]
        with self._lock:
            return self._due_s.setdefault((name, response), now_s + wait_s(name, median_s))

    def reward(self, question: Mapping[str, str]) -> float | None:
        """What the response is worth; None if the rule fails."""
        with self._lock:
            return self._judge.judge(question["gold"], question["response"]).reward


class _Handler(BaseHTTPRequestHandler):
    """One question."""

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        median_s = float(parse_qs(urlsplit(self.path).query)["median_s"][0])
        now_s = time.monotonic()
        time.sleep(max(0.0, server.verdicts.due_s(question, median_s, now_s) - now_s))
        reply = json.dumps({"reward": server.verdicts.reward(question)}).encode()
        with suppress(ConnectionError):  # the caller has hung up
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a line for each question says nothing."""


class _Server(ThreadingHTTPServer):
    """Threads end with the process: the questions that wait when it stops are nobody's."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256  # a whole step may ask at once

    def __init__(self, port: int, verdicts: Verdicts) -> None:
        self.verdicts = verdicts
        super().__init__(("127.0.0.1", port), _Handler)


@contextmanager
def verdict_service(port: int = PORT) -> Iterator[int]:
    """The service, in threads of this process; its port (0 takes a free one). What it was asked is
    forgotten with the block."""
    with closing(Verdicts()) as verdicts, _Server(port, verdicts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
