"""A made-up run as it lies in its folder: manifest, commits, responses, evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plan_factories import CONTEXT, span

from artifacts.commit import RunManifest, StepCommit, commit_step, write_manifest
from artifacts.journal import Journal
from artifacts.records import (
    Generated,
    Outcome,
    Prompt,
    Response,
    Score,
    VersionSpan,
    WeightsRef,
)
from artifacts.reports.tracking import RunTracker
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows.config.run_config import RunConfig
from flows.evaluate import EvaluationReport
from flows.run import OpenRun
from tasks.run.run_context import EVALUATION

STAGES_S = {
    "rollout": 6.0,
    "reward": 0.0,
    "train": 3.0,
    "update": 0.5,
    "publish": 0.25,
    "orchestration": 0.25,
}


def make_commit(step: int, reward: float = 0.5, kind: str = "short") -> StepCommit:
    """A step of ten seconds that generated 120 tokens and trained 100 of them."""
    metrics = {
        "reward/mean": reward,
        "rollout/tokens": 120.0,
        "rollout/response_tokens_max": 20.0,
        "time/step_s": 10.0,
        "time/rollout_s": 6.0,
        "time/train_s": 3.0,
        "ledger/trained_tokens": 100.0,
        "ledger/aborted_tokens": 20.0,
        "bubble/tail_fraction": 0.25,
    }
    return StepCommit(
        step=step,
        kind=kind,
        weights=WeightsRef(version=step, path="w", digest=f"digest-{step}"),
        queue={},
        seeds={},
        counters={},
        metrics=metrics,
        timings=STAGES_S | {"started_s": 100.0 + 10 * step, "finished_s": 110.0 + 10 * step},
        checkpoint=None,
    )


def make_row(
    prompt_id: str, text: str, reward: float | None, question: str = "1 + 2?", index: int = 0
) -> ResponseRow:
    """A scored response of three tokens."""
    generated = Generated(
        prompt_id=prompt_id,
        index=index,
        token_ids=(5, 6, 7),
        logprobs=(-0.1, -0.2, -0.3),
        versions=(VersionSpan(version=0, num_tokens=3),),
        finish_reason="stop",
        text=text,
        engine="engine-0",
        submitted_s=1.0,
        first_token_s=2.0,
        finished_s=3.0,
    )
    score = Score(
        prompt_id=prompt_id,
        index=index,
        reward=reward,
        outcome=Outcome.INFRA if reward is None else Outcome.OK if reward else Outcome.WRONG,
        detail="exact",
        scorer="math",
        started_s=3.0,
        finished_s=4.0,
    )
    prompt = Prompt(prompt_id=prompt_id, domain="add", token_ids=(1,), gold="3", text=question)
    response = Response(generated=generated, score=score)
    return ResponseRow(step=1, kind="short", prompt=prompt, response=response)


def make_evaluation(scores: Mapping[str, float], version: int = 0) -> EvaluationReport:
    """Scores of held-out prompts that all ask something else."""
    return EvaluationReport(
        version=version,
        scores=scores,
        questions={name: name for name in scores},
        num_infra=0,
        tokens=30,
        judged_tokens=0,
        seconds=1.0,
    )


def make_run(root: Store, *commits: StepCommit, **values: object) -> OpenRun:
    """A run of the tiny preset with these values, its manifest and commits in the folder "run"."""
    config = RunConfig.model_validate({"preset": "tiny"} | values)
    store = root.child("run")
    manifest = RunManifest(
        run_id="run",
        created="2026-01-02T03:04:05+00:00",
        config=config.model_dump(mode="json", exclude={"resume"}),
        packages={},
        git_sha="abc",
        mlflow_run_id=None,
        changes=({"after_step": 1, "field": "num_steps", "before": "1", "after": "2"},),
    )
    write_manifest(store, manifest)
    for commit in commits:
        commit_step(store, commit)
        spans = [span("rollout", 0, 6), span("train", 6, 9)]
        Journal(store).finalise(
            commit.step, _of_step(commit.step, make_row("0/1", "3", 1.0)), (), spans
        )
    tracked = f"sqlite:///{root.local_path('mlflow.db')}" if root.is_local else ""
    return OpenRun(
        config=config,
        context=CONTEXT,
        store=store,
        tracker=RunTracker(tracked),
        commits=commits,
        links={"prefect.flow_run_url": "http://localhost:4200/f1"},
    )


def keep_answers(run: OpenRun, step: int, *rows: ResponseRow) -> None:
    """The responses of the evaluation after this step, as they are recorded."""
    Journal(run.store.child(EVALUATION)).finalise(step, _of_step(step, *rows), (), ())


def _of_step(step: int, *rows: ResponseRow) -> list[ResponseRow]:
    return [replace(row, step=step) for row in rows]
