"""Kill -9 in the middle of responses, of the flow and of an engine: they go on from what engines
had told of them, an interval behind at most, and the run's records are whole.

Engines are simulated, and slow, so that a response takes seconds. What was told is read from where
the coordinator of the round writes it down.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from artifacts import layout
from artifacts.attempt_log import read_tokens
from artifacts.commit import read_commits
from artifacts.journal import Journal
from artifacts.records import Fate, Generated
from artifacts.store import Store
from tests.flows.conftest import (
    ENDS_WITHIN_S,
    SIMULATED,
    Launcher,
    Settings,
    booked_as_trained,
    of_both_kinds,
    worker_of,
)
from tests.flows.train_origin import Train

pytestmark = [pytest.mark.flow, pytest.mark.timeout(1800), of_both_kinds]

INTERVAL = 4
STEP_S = 0.25
SLOW = (
    *SIMULATED,
    f"engine.report_tokens={INTERVAL}",
    f"engine.profile.step_s={STEP_S}",
    "engine.profile.step_s_per_sequence=0",
    "num_steps=1",
    "stream_trainer.enabled=false",
)
NUM_RESPONSES = 16
HALF = NUM_RESPONSES // 2
SLACK_S = 1.5  # of a busy machine
FIRST_ATTEMPT = 1001  # at step 1


def start(launcher: Launcher, run: Path, trained: Settings = (), resume: str = "") -> Train:
    settings = () if resume else (f'run_name="{run.name}"', *SLOW, *trained)
    return launcher.start(run.parent, *settings, resume=resume)


def told(run: Path) -> dict[str, Generated]:
    """What was written down of the responses of step 1."""
    return read_tokens(run / layout.TOKENS, lambda attempt: attempt == FIRST_ATTEMPT)


def in_the_middle(run: Path, process: Train) -> None:
    """Until half of the responses of step 1 were told of twice."""
    ends = time.monotonic() + ENDS_WITHIN_S
    while sum(len(known.token_ids) >= 2 * INTERVAL for known in told(run).values()) < HALF:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < ends, "no response has got on"
        time.sleep(0.05)


def check_whole(run: Path, before: dict[str, Generated]) -> dict[str, float]:
    """Every response of step 1 is trained once, and begins with what was told of it; the step's
    figures."""
    store = Store.open(str(run))
    rows = Journal(store).read(1)
    whole = {row.response.generated.response_id: row.response.generated for row in rows}
    assert len(rows) == len(whole) == NUM_RESPONSES
    assert {row.fate for row in rows} == {Fate.TRAINED}
    for name, known in before.items():
        assert whole[name].token_ids[: len(known.token_ids)] == known.token_ids
        assert whole[name].logprobs[: len(known.logprobs)] == known.logprobs
        assert len(whole[name].versions) == 1
    first = read_commits(store)[0].metrics
    assert booked_as_trained(first) == sum(each.num_sampled for each in whole.values())
    assert first["ledger/stale_tokens"] == first["ledger/aborted_tokens"] == 0
    assert not list((run / layout.TOKENS).glob("*"))
    return dict(first)


def test_responses_of_a_killed_engine_go_on_in_another(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    run = tmp_path / "killed-engine"
    process = start(launcher, run, trained)
    in_the_middle(run, process)
    worker_of(process, "engine-0").send_signal(signal.SIGKILL)
    before, killed_s = told(run), time.time()
    _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    first = check_whole(run, before)
    lost = [known for known in before.values() if known.engine == "engine-0"]
    assert first["rollout/interrupted_responses"] >= len(lost) > 0
    assert first["rollout/lost_tokens_bound_of_one"] <= INTERVAL
    assert first["rollout/lost_tokens_bound"] <= INTERVAL * first["rollout/interrupted_responses"]
    told_s = max(known.finished_s for known in lost)
    assert killed_s - told_s <= STEP_S * INTERVAL + SLACK_S, "its last report was an interval ago"


def test_responses_of_a_killed_flow_go_on_in_the_resumed_run(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    run = tmp_path / "killed-flow"
    process = start(launcher, run, trained)
    in_the_middle(run, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = told(run)
    again = start(launcher, run, resume=run.name)
    _, err = again.communicate(timeout=ENDS_WITHIN_S)
    assert again.returncode == 0, err
    check_whole(run, before)
