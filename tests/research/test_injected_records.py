"""Records of a run that was killed again and again: what is lost, doubled or mixed in them is
found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from report_factories import make_commit, make_row
from transcript_factories import make_episode_row

from artifacts.commit import RunManifest, commit_step, write_manifest
from artifacts.episodes import Ending
from artifacts.journal import Journal
from artifacts.records import Fate, Group, Outcome, VersionSpan
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows.config.run_config import RunConfig
from flows.recovery import PartialRound, keep_round
from research.kills.injected_records import Findings, examine
from tasks.rounds.report import RolloutReport, close_round
from tasks.scheduling.events import PromptRef, RoundPlan
from tasks.scheduling.queue_state import QueueState

NUM_STEPS, NUM_PROMPTS, NUM_RESPONSES = 2, 2, 2
Rows = list[ResponseRow]
Change = Callable[[int, Rows], Rows]


def unchanged(step: int, rows: Rows) -> Rows:
    return rows


def prompts_of(step: int) -> list[str]:
    return [f"0/{step * NUM_PROMPTS + place}" for place in range(NUM_PROMPTS)]


def rows_of(step: int) -> Rows:
    """What a step trains: responses of three tokens, all of the version before."""
    return [
        trained(make_row(prompt_id, "", 1.0, index=index), step)
        for prompt_id in prompts_of(step)
        for index in range(NUM_RESPONSES)
    ]


def trained(row: ResponseRow, step: int, version: int | None = None) -> ResponseRow:
    version = step - 1 if version is None else version
    versions = (VersionSpan(version=version, num_tokens=3),)
    generated = replace(row.response.generated, versions=versions)
    response = replace(row.response, generated=generated)
    return replace(row, step=step, fate=Fate.TRAINED, response=response)


def groups_of(rows: Rows) -> list[Group]:
    names = dict.fromkeys(row.prompt.prompt_id for row in rows if row.fate is Fate.TRAINED)
    return [
        Group(
            prompt=next(row.prompt for row in rows if row.prompt.prompt_id == name),
            responses=tuple(
                row.response
                for row in rows
                if row.prompt.prompt_id == name and row.fate is Fate.TRAINED
            ),
        )
        for name in names
    ]


def keep_run(
    store: Store,
    change: Change = unchanged,
    *,
    groups: Callable[[Rows], list[Group]] = groups_of,
    drawn: int = NUM_STEPS * NUM_PROMPTS,
    booked: float = 3.0 * NUM_PROMPTS * NUM_RESPONSES,
    num_committed: int = NUM_STEPS,
) -> Findings:
    """Write a run whose rows are changed, and look through it."""
    batch = {"prompts_per_step": NUM_PROMPTS, "responses_per_prompt": NUM_RESPONSES}
    config = RunConfig.model_validate({"preset": "tiny", "num_steps": NUM_STEPS, "batch": batch})
    manifest = RunManifest(
        run_id="run",
        created="2026-01-02T03:04:05+00:00",
        config=config.model_dump(mode="json", exclude={"resume"}),
        packages={},
        git_sha=None,
        mlflow_run_id=None,
        prefect_flow_run_ids=("first", "second"),
    )
    write_manifest(store, manifest)
    for step in range(1, num_committed + 1):
        rows = change(step, rows_of(step))
        keep_step(store, step, rows, groups(rows), drawn, booked)
    return examine(store)


def keep_step(
    store: Store, step: int, rows: Rows, groups: list[Group], drawn: int, booked: float
) -> None:
    refs = tuple(PromptRef(prompt_id=name, domain="add") for name in prompts_of(step))
    plan = RoundPlan(
        step=step,
        kind="sync",
        prompts=refs,
        launch_per_prompt=NUM_RESPONSES,
        accept_prompts=NUM_PROMPTS,
        accept_per_prompt=NUM_RESPONSES,
    )
    keep_round(store, PartialRound(before=QueueState(), plan=plan))
    Journal(store).finalise(step, rows, groups, ())
    report = RolloutReport(
        accepted=tuple(group.prompt.prompt_id for group in groups),
        deferred=(),
        dropped=(),
        filtered=(),
        tokens={},
        lengths=(),
        acceptance={},
        num_preemptions=0,
        spans=(),
        started_s=0.0,
        finished_s=1.0,
    )
    close_round(store, step, report)
    metrics = {f"ledger/{fate}_tokens": 0.0 for fate in Fate}
    metrics |= {"ledger/trained_tokens": booked, "round/attempts": 3.0}
    queue = QueueState(num_drawn=drawn, num_trained=step * NUM_PROMPTS).to_json()
    commit_step(store, replace(make_commit(step), metrics=metrics, queue=queue))


@pytest.fixture
def store(tmp_path: object) -> Store:
    return Store.open(str(tmp_path))


def test_sound_records_have_nothing_wrong_and_say_how_often_steps_were_tried(store: Store) -> None:
    findings = keep_run(store)
    assert findings.wrong == []
    assert findings.counts["trained prompts"] == NUM_STEPS * NUM_PROMPTS
    assert findings.counts["steps tried again"] == NUM_STEPS * 2
    assert findings.counts["attempts at the run"] == 2


def test_a_step_that_is_missing_is_lost(store: Store) -> None:
    findings = keep_run(store, num_committed=1)
    assert findings.lost == ["1 of 2 steps are not committed"]
    assert findings.unbooked == ["4 prompts were drawn, 2 are done and 0 wait"]


def test_a_run_or_a_commit_that_is_not_there_is_lost(store: Store) -> None:
    assert "has no manifest.json" in examine(store).lost[0]
    keep_run(store)
    store.delete("steps/00001.json")
    assert "missing step 1" in examine(store).lost[0]


def test_a_prompt_that_is_not_trained_is_lost(store: Store) -> None:
    findings = keep_run(store, groups=lambda rows: groups_of(rows)[1:])
    assert "prompt 0/2 of step 1 is neither trained nor given up" in findings.lost
    assert findings.unbooked == ["4 prompts are booked as trained, 2 are in groups"]


def test_a_response_without_record_is_lost(store: Store) -> None:
    findings = keep_run(store, lambda step, rows: rows[1:] if step == 1 else rows, booked=12.0)
    assert findings.lost == [
        "prompt 0/2 of step 1 has 1 of 2 responses",
        "prompt 0/2 of step 1 has no record of responses [0]",
    ]
    assert findings.unbooked == ["step 1 has 9 tokens in ledger/trained_tokens, booked 12"]


def test_a_response_without_fate_is_lost(store: Store) -> None:
    def change(step: int, rows: Rows) -> Rows:
        return [*rows, replace(rows[0], fate=None)] if step == 2 else rows

    assert "response 0/4:0 of step 2 has no fate" in keep_run(store, change).lost


def test_two_records_of_a_response_are_one_too_many(store: Store) -> None:
    findings = keep_run(store, lambda step, rows: [*rows, rows[0]] if step == 1 else rows)
    assert "response 0/2:0 of step 1 has two records" in findings.doubled
    assert "step 1 has 15 tokens in ledger/trained_tokens, booked 12" in findings.unbooked


def test_a_group_that_is_trained_twice_is_found(store: Store) -> None:
    findings = keep_run(store, groups=lambda rows: [*groups_of(rows), groups_of(rows)[0]])
    assert "prompt 0/2 of step 1 is trained twice" in findings.doubled
    assert "response 0/2:1 of step 1 is trained twice" in findings.doubled


def test_fates_and_groups_must_agree(store: Store) -> None:
    def change(step: int, rows: Rows) -> Rows:
        return [replace(rows[0], fate=Fate.DISCARDED), *rows[1:]]

    findings = keep_run(store, change, groups=lambda rows: groups_of(as_trained(rows)))
    assert "response 0/2:0 of step 1 is trained by its fate or in a group, not by both" in (
        findings.doubled
    )


def as_trained(rows: Rows) -> Rows:
    return [replace(row, fate=Fate.TRAINED) for row in rows]


def test_a_response_of_other_weights_is_mixed(store: Store) -> None:
    def change(step: int, rows: Rows) -> Rows:
        return [trained(rows[0], step, version=0), *rows[1:]]

    assert keep_run(store, change).mixed_versions == ["response 0/4:0 of step 2 is of versions [0]"]


def test_episodes_whose_environment_failed_are_counted(store: Store) -> None:
    def change(step: int, rows: Rows) -> Rows:
        name = rows[0].prompt.prompt_id
        crashed = make_episode_row(
            name, outcome=Outcome.INFRA, ending=Ending.CRASHED, index=NUM_RESPONSES, step=step
        )
        return [*rows, trained_not(crashed, step)]

    findings = keep_run(store, change)
    assert findings.counts["episodes crashed"] == NUM_STEPS
    assert findings.lost == findings.doubled == []


def trained_not(row: ResponseRow, step: int) -> ResponseRow:
    return replace(trained(row, step), fate=Fate.DISCARDED)
