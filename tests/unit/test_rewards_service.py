"""Verdicts over HTTP: what is asked, what is taken for a verdict, and who hangs up; the service
that the experiment asks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread

import pytest
from pydantic import ValidationError
from record_factories import make_generated

from artifacts.records import Generated, Outcome, Prompt, Score
from research.ablations.verdict_service import Verdicts, verdict_service, wait_s
from tasks.rewards.pool import RewardPool
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes
from tasks.rewards.service import ServiceConfig

WAIT_S = 120.0
PROMPT = Prompt(prompt_id="0/1", domain="add", token_ids=(1,), gold="8", text="3 + 5?")


def response(text: str = "Answer: 8", index: int = 0) -> Generated:
    return make_generated(index=index, text=text)


@contextmanager
def serving(content: bytes, status: int = 200) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A service that says always the same; its address, and what it was asked."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/verdict?by=rule", asked
        finally:
            server.shutdown()
            thread.join()


def scored(url: str, generated: Generated) -> Score:
    return ServiceConfig(url=url, timeout_s=WAIT_S).build_reward().score(PROMPT, generated)


def test_a_service_is_asked_about_one_response_and_its_number_is_the_reward() -> None:
    with serving(b'{"reward": 0.5}') as (url, asked):
        score = scored(url, response(index=3))
    assert (score.reward, score.outcome) == (0.5, Outcome.OK)
    assert asked == [
        {
            "response_id": "0/1:3",
            "domain": "add",
            "prompt": "3 + 5?",
            "response": "Answer: 8",
            "gold": "8",
        }
    ]


def test_a_reward_of_nothing_is_wrong() -> None:
    with serving(b'{"reward": 0}') as (url, _):
        assert scored(url, response()).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b'{"reward": null}', 200, "a reward must be a finite number"),
        (b'{"reward": NaN}', 200, "a reward must be a finite number"),
        (b'{"reward": 1%s}' % (b"0" * 400), 200, "a reward must be a finite number"),
        (b'{"reward": 1e200}', 200, "from -1,000,000 to 1,000,000, got 1e+200; scale it"),
        (b'{"reward": true}', 200, "a reward must be a finite number"),
        (b'{"reward": "1"}', 200, "a reward must be a finite number"),
        (b"[1]", 200, "must reply with an object that has a 'reward', got [1]"),
        (b"nonsense", 200, "gave no verdict: JSONDecodeError"),
        (b'{"reward": 1}', 503, "gave no verdict: HTTPException: status 503"),
    ],
)
def test_whatever_is_no_number_is_no_verdict(content: bytes, status: int, said: str) -> None:
    with serving(content, status) as (url, _):
        score = scored(url, response())
    assert (score.reward, score.outcome) == (None, Outcome.INFRA)
    assert said in score.detail


def test_a_service_that_is_not_there_or_takes_too_long_gives_no_verdict() -> None:
    with verdict_service(0) as port:
        slow = ServiceConfig(url=f"http://127.0.0.1:{port}/?median_s=600", timeout_s=0.2)
        score = slow.build_reward().score(PROMPT, response())
    assert score.outcome is Outcome.INFRA
    assert "no reply after 0.2 s" in score.detail
    assert scored(f"http://127.0.0.1:{port}", response()).outcome is Outcome.INFRA


def test_a_wait_that_nobody_needs_ends_at_once_and_frees_its_worker() -> None:
    with verdict_service(0) as port:
        config = ServiceConfig(url=f"http://127.0.0.1:{port}/?median_s=600", timeout_s=3600)
        pool = RewardPool({"*": config}, 1, MeasuredTimes())
        begun, freed = pool.submit(PROMPT, response()), Event()
        begun.add_done_callback(lambda _: freed.set())
        while not begun.running():
            time.sleep(0.001)
        begun.cancel()
        assert freed.wait(WAIT_S)
        pool.close()


def test_an_address_must_be_one_of_http() -> None:
    with pytest.raises(ValidationError, match="url"):
        ServiceConfig(url="judge.example:80")


def test_the_experiments_service_gives_the_mathematics_rewards_verdicts() -> None:
    with verdict_service(0) as port:
        url = f"http://127.0.0.1:{port}/?median_s=0.001"
        assert scored(url, response("Answer: 8")).reward == 1.0
        assert scored(url, response("Answer: 9")).reward == 0.0


def test_a_wait_is_the_responses_own_and_lognormal() -> None:
    waits = sorted(wait_s(f"0/{number}:0", 10.0) for number in range(2001))
    assert waits[1000] == pytest.approx(10.0, rel=0.05)
    assert waits[1683] / waits[1000] == pytest.approx(1.65, rel=0.05)  # e^σ at one deviation
    assert wait_s("0/7:0", 10.0) == wait_s("0/7:0", 10.0) != wait_s("0/7:1", 10.0)


def test_a_question_that_is_asked_again_waits_for_the_rest_only() -> None:
    verdicts = Verdicts()
    question = {"response_id": "0/1:0", "response": "Answer: 8"}
    due_s = verdicts.due_s(question, 10.0, now_s=100.0)
    assert due_s == 100.0 + wait_s("0/1:0", 10.0)
    assert verdicts.due_s(question, 10.0, now_s=105.0) == due_s
    again = {**question, "response": "Answer: 9"}  # drawn anew, with other weights
    assert verdicts.due_s(again, 10.0, now_s=105.0) == due_s + 5.0
    verdicts.close()
