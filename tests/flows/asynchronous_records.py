"""What the records of an asynchronous run must say, however often it was killed: nothing lost,
nothing twice, nothing admitted or trained beyond the bound."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import duckdb

Json = dict[str, Any]  # Any: JSON values
PROMPTS, RESPONSES = 4, 4  # of a step and of a prompt, as in `conftest.SMALL`


def commits(run: Path) -> list[Json]:
    """The commits of a run, in order."""
    return _documents(run / "steps")


def rows(run: Path, step: int, columns: str) -> list[tuple[Any, ...]]:  # Any: values of a table
    """The responses of a step, sorted."""
    table = f"read_parquet('{run}/responses/step={step:05d}/*.parquet')"
    return duckdb.sql(f"select {columns} from {table} order by prompt_id, index").fetchall()


def check(run: Path, async_ratio: float, num_steps: int, extra_lag: int = 0) -> None:
    """Every step trained its groups, every prompt that was drawn is trained once, and no token is
    older than the bound. Raises AssertionError."""
    done = commits(run)
    assert [commit["kind"] for commit in done] == ["asynchronous"] * num_steps
    assert [commit["weights"]["version"] for commit in done] == list(range(1, num_steps + 1))
    places = dispatch_places(run)
    whole: list[tuple[str, int]] = []
    for step in range(1, num_steps + 1):
        oldest = step - 1 - math.ceil(async_ratio) - extra_lag
        trained = []
        for prompt, index, fate, versions in rows(run, step, "prompt_id, index, fate, versions"):
            if fate == "trained":
                trained.append(prompt)
                assert all(oldest <= span["version"] < step for span in versions)
            if fate != "aborted":
                whole.append((prompt, index))
                admitted = math.floor((async_ratio + versions[0]["version"] + 1) * PROMPTS)
                assert places[prompt] < admitted, "it began before its prompt was admitted"
        assert len(trained) == PROMPTS * RESPONSES
        assert len(set(trained)) == PROMPTS
    assert len(whole) == len(set(whole)) == num_steps * PROMPTS * RESPONSES
    prompts = done[-1]["queue"]
    assert (prompts["carried"], prompts["queue"], prompts["skipped"]) == ([], [], [])
    assert prompts["num_drawn"] == prompts["num_trained"] == num_steps * PROMPTS


def check_evaluation(run: Path, step: int, num_prompts: int) -> tuple[float, float]:
    """Every held-out prompt was answered once, by the weights of this step alone; when the
    responses were generated, Unix seconds. Raises AssertionError."""
    asked = rows(run / "evaluation", step, "prompt_id, versions, submitted_s, finished_s")
    assert len(asked) == len({prompt for prompt, *_ in asked}) == num_prompts
    for _, versions, _, _ in asked:
        assert [span["version"] for span in versions] == [step]
    return min(row[2] for row in asked), max(row[3] for row in asked)


def dispatch_places(run: Path) -> dict[str, int]:
    """The place of every prompt among those that were dispatched, from 0."""
    plans = [document["plan"] for document in _documents(run / "plans")]
    asked = [ref["prompt_id"] for plan in plans for ref in (*plan["prompts"], *plan["upcoming"])]
    return {prompt: place for place, prompt in enumerate(dict.fromkeys(asked))}


def num_mixed(run: Path, num_steps: int) -> int:
    """Responses during which newer weights were loaded."""
    steps = range(1, num_steps + 1)
    return sum(len(versions) > 1 for step in steps for (versions,) in rows(run, step, "versions"))


def _documents(directory: Path) -> list[Json]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
