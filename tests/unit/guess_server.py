"""The game of guessing on loopback, in the shapes that OpenEnv and ROCK (GEM) speak."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tasks.environments.games.guess import GuessConfig


class GuessServer(ThreadingHTTPServer):
    """Serves the game of guessing in both shapes; keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), GuessHandler)
        self.games: dict[str, Any] = {}
        self.asked: list[str] = []
        self.answer: Any = None  # instead of the game's

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/env/"


class GuessHandler(BaseHTTPRequestHandler):
    server: GuessServer

    def do_POST(self) -> None:
        call = self.path.removeprefix("/env/")
        self.server.asked.append(call)
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.answer is not None:
            self._say(200, self.server.answer)
        elif call == "close" and asked["sandbox_id"] not in self.server.games:
            self._say(404, {"detail": "it has been closed"})
        elif call in ("reset", "step", "make", "close"):
            self._say(200, getattr(self, call)(asked))
        else:
            self._say(404, {"detail": f"there is no {call}"})

    def make(self, asked: Any) -> Any:
        assert asked == {"env_id": "game:Guess"}
        self.server.games[f"box-{len(self.server.games)}"] = GuessConfig().build()
        return {"sandbox_id": f"box-{len(self.server.games) - 1}"}

    def close(self, asked: Any) -> Any:
        del self.server.games[asked["sandbox_id"]]
        return asked

    def reset(self, asked: Any) -> Any:
        if "sandbox_id" in asked:
            said = self.server.games[asked["sandbox_id"]].reset(asked["seed"])
            return {"observation": said, "info": {}}
        game = self.server.games[asked["episode_id"]] = GuessConfig().build()
        return {"observation": {"text": game.reset(asked["seed"])}, "reward": None, "done": False}

    def step(self, asked: Any) -> Any:
        if "sandbox_id" in asked:
            turn = self.server.games[asked["sandbox_id"]].step(asked["action"])
            return {**turn._asdict(), "info": dict(turn.info)}
        turn = self.server.games[asked["episode_id"]].step(asked["action"]["message"])
        return {
            "observation": {"text": turn.observation},
            "reward": turn.reward,
            "done": turn.terminated,
            "metadata": dict(turn.info),
        }

    def _say(self, status: int, body: Any) -> None:
        said = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def guess_server() -> Iterator[GuessServer]:
    with GuessServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
