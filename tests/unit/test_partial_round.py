"""A step that was begun is played as it was planned then, whatever a resume changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from plan_factories import CONTEXT, make_report, make_step_plan

from artifacts import layout
from artifacts.store import Store
from flows import step_controller as course
from flows.config.run_config import RunConfig
from flows.recovery import PartialRound
from flows.run import OpenRun
from tasks.scheduling.events import PromptRef
from tasks.scheduling.queue_state import QueueState
from tests.unit.test_open_run import opened

QUEUE = (PromptRef(prompt_id="0/1", domain="add"),)
BEFORE = QueueState(queue=QUEUE, num_drawn=40, num_trained=39)


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = SimpleNamespace(domains=("add",) * 100, order_seed=int)
    monkeypatch.setattr(course, "dataset_of", lambda run: dataset)


def open_run(root: Path, num_steps: int, unfit: tuple[int, ...] = ()) -> OpenRun:
    """A run of so many steps, resumed or not."""
    scheduling = {"kind": "tail_batching"}
    values = {"preset": "tiny", "num_steps": num_steps, "scheduling": scheduling}
    context = replace(CONTEXT, unfit=frozenset(unfit))
    return replace(opened(root, 0), config=RunConfig.model_validate(values), context=context)


def begin(run: OpenRun, step: int = 5) -> PartialRound:
    begun = course.next_round(run, BEFORE, step, published=step - 1)
    assert begun is not None
    return begun


def close(root: Path, step: int = 5) -> None:
    Store.open(str(root)).child("run").write(layout.step_file(layout.ROUNDS, step), b"{}")


def test_a_drain_that_was_begun_is_played_in_a_run_that_is_made_longer(tmp_path: Path) -> None:
    begun = begin(open_run(tmp_path, num_steps=4))
    assert (begun.plan.kind, begun.plan.prompts) == ("drain", QUEUE)
    assert begin(open_run(tmp_path, num_steps=8)) == begun
    assert begin(open_run(tmp_path, num_steps=8), step=6).plan.kind == "short"


def test_a_round_that_was_begun_keeps_its_prompts_though_others_do_not_fit(tmp_path: Path) -> None:
    begun = begin(open_run(tmp_path, num_steps=8))
    asked = {int(ref.prompt_id.partition("/")[2]) for ref in begun.plan.candidates}
    others = tuple(set(range(100)) - asked)[:5]
    assert begin(open_run(tmp_path, 8, unfit=others)) == begun


def test_a_round_with_a_prompt_that_does_not_fit_is_planned_anew_unless_closed(
    tmp_path: Path,
) -> None:
    begun = begin(open_run(tmp_path, num_steps=8))
    row = int(begun.plan.prompts[0].prompt_id.partition("/")[2])
    close(tmp_path)
    assert begin(open_run(tmp_path, 8, unfit=(row,))) == begun
    Store.open(str(tmp_path)).child("run").delete(layout.step_file(layout.ROUNDS, 5))
    again = begin(open_run(tmp_path, 8, unfit=(row,)))
    assert begun.plan.prompts[0] not in again.plan.candidates
    assert begin(open_run(tmp_path, 8, unfit=(row,))) == again


def test_a_run_that_is_made_shorter_begins_nothing_new_but_trains_what_is_closed(
    tmp_path: Path,
) -> None:
    begun = begin(open_run(tmp_path, num_steps=8))
    assert begin(open_run(tmp_path, num_steps=4)).plan.kind == "drain"
    assert begin(open_run(tmp_path / "closed", num_steps=8)) == begun
    close(tmp_path / "closed")
    assert begin(open_run(tmp_path / "closed", num_steps=4)) == begun


def test_what_a_round_with_more_room_leaves_waiting_goes_when_it_does_not_fit() -> None:
    plan = make_step_plan()
    deferred = (PromptRef(prompt_id="0/3", domain="test"),)
    round_plan = replace(plan.round, prompts=(*plan.round.prompts, *deferred))
    narrow = replace(plan, round=round_plan, run=replace(CONTEXT, unfit=frozenset({3})))
    report = make_report((), plan=narrow)
    rollout = replace(report.rollout, deferred=("0/3",), filtered=())
    after = course.state_after(QueueState(), report.plan, rollout)
    assert (after.queue, after.num_unfit) == ((), 1)


def test_a_round_that_other_code_began_is_refused(tmp_path: Path) -> None:
    """It may say otherwise where its prompts come from, so that some would be trained twice."""
    run = open_run(tmp_path, num_steps=8)
    begin(run)
    kept = json.loads(run.store.checked(layout.step_file(layout.PLANS, 5)))
    del kept["schema_version"]
    run.store.write(layout.step_file(layout.PLANS, 5), json.dumps(kept).encode())
    with pytest.raises(ValueError, match="schema version 1, got None; resume it with the code"):
        begin(run)
