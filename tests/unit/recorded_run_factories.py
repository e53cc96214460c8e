"""A run in a folder, as one that is over leaves it, for what reads recorded runs."""

from __future__ import annotations

from pathlib import Path

from record_factories import make_generated

from artifacts.commit import RunManifest, StepCommit, commit_step, write_manifest
from artifacts.journal import Journal
from artifacts.records import Fate, Outcome, Prompt, Response, Score, WeightsRef
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows.config.run_config import RunConfig

PROMPTS, RESPONSES, STEPS = 4, 4, 3
CONFIG = RunConfig.model_validate(
    {
        "preset": "tiny-sync",
        "run_name": "recorded",
        "num_steps": STEPS,
        "batch": {"prompts_per_step": PROMPTS, "responses_per_prompt": RESPONSES},
    }
)
PROMPT_TOKENS = 12
TOKEN_S = 0.01  # of a decode step, whatever the batch
STEP_S = 4.0  # what each of its steps is said to have taken


def keep_run(folder: Path, has_tail: bool = True) -> Path:
    """Three synchronous steps of two engines; lengths differ by prompt and by response, or not at
    all."""
    store = Store.open(str(folder))
    write_manifest(
        store,
        RunManifest(
            run_id=folder.name,
            created="",
            config=CONFIG.model_dump(mode="json"),
            packages={},
            git_sha=None,
            mlflow_run_id=None,
        ),
    )
    for step in range(1, STEPS + 1):
        places = [(row, index) for row in range(PROMPTS) for index in range(RESPONSES)]
        lengths = [_tokens(row, index) if has_tail else 60 for row, index in places]
        rows = [
            _row(step, (step - 1) * PROMPTS + row, index, num_tokens)
            for (row, index), num_tokens in zip(places, lengths, strict=True)
        ]
        Journal(store).finalise(step, rows, [], [])
        # the last token of a response predicts nothing
        computed = PROMPTS * PROMPT_TOKENS + sum(lengths) - len(lengths)
        commit_step(store, _commit(step, computed))
    return folder


def _tokens(row: int, index: int) -> int:
    """One of a step's responses is several times as long as others."""
    return 110 if (row, index) == (2, 3) else 5 + 7 * row + (11 * index * (row + 3)) % 20


def _row(step: int, row: int, index: int, num_tokens: int) -> ResponseRow:
    name, ends_s = f"0/{row}", 0.1 + TOKEN_S * num_tokens
    generated = make_generated(
        token_ids=(2 + index, *(1,) * (num_tokens - 1)),
        prompt_id=name,
        index=index,
        engine=f"engine-{index % 2}",  # siblings are shared out, as by the router
        submitted_s=0.0,
        first_token_s=0.1,
        finished_s=ends_s,
        finish_reason="stop",
    )
    score = Score(
        prompt_id=name,
        index=index,
        reward=float(index % 2),
        outcome=Outcome.OK if index % 2 else Outcome.WRONG,
        detail="",
        scorer="math",
        started_s=ends_s,
        finished_s=ends_s + 0.01,
    )
    return ResponseRow(
        step=step,
        kind="sync",
        prompt=Prompt(prompt_id=name, domain="sum", token_ids=_question(row), gold="", text=""),
        response=Response(generated=generated, score=score),
        fate=Fate.TRAINED,
    )


def _question(row: int) -> tuple[int, ...]:
    """No two begin alike."""
    return (2 + row, *(1,) * (PROMPT_TOKENS - 1))


def _commit(step: int, computed: int) -> StepCommit:
    return StepCommit(
        step=step,
        kind="sync",
        weights=WeightsRef(version=step, path="", digest=""),
        queue={},
        seeds={},
        counters={},
        metrics={
            "time/update_s": 0.3,
            "time/orchestration_s": 0.2,
            "time/publish_s": 0.1,
            "time/train_s": 2.0,
            "train/busy_s": 4.0,
            "train/tokens_computed": float(computed),
        },
        timings={"started_s": STEP_S * step, "finished_s": STEP_S * (step + 1)},
        checkpoint=None,
    )
