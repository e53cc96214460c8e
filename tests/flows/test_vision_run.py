"""Whole runs of a model that sees pictures, on the real engine: undisturbed, and through a kill."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from artifacts.adapter_files import read_adapter
from artifacts.journal import Journal
from artifacts.models.picture_processor import processor_of
from artifacts.pictures import PictureFolder, content_of
from artifacts.records import Fate
from artifacts.store import Store
from artifacts.weight_files import MODEL_WEIGHTS
from artifacts.weights import read_weights
from research.benchmarks.naive_model import sequence_logp
from tests.flows.conftest import (
    BRIEFLY,
    DRAWN,
    WARMED_UP,
    Finished,
    Launcher,
    Settings,
    moment,
    wait_for,
)

pytestmark = [pytest.mark.flow, pytest.mark.engine]

SETTINGS = ("num_steps=3", "sampling.max_response_tokens=8", "learner.vision=trained", BRIEFLY)
QWEN3 = f"model.profile={json.dumps({**WARMED_UP, 'architecture': 'qwen3_vl'})}"
SHARDED = "learner.parameters=sharded"
KINDS: dict[str, Settings] = {"qwen2_5_vl": (), "qwen3_vl": (QWEN3,), "sharded": (SHARDED,)}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def settings(request: pytest.FixtureRequest) -> Settings:
    return (*SETTINGS, *request.param)


@pytest.fixture(scope="module")
def whole(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory, settings: Settings
) -> tuple[Finished, Path]:
    root = tmp_path_factory.mktemp("runs")
    made = launcher.run(root, *settings, DRAWN, 'run_name="whole"', preset="tiny-vision")
    return made, root / "whole"


def commits(run: Path) -> list[dict[str, Any]]:  # Any: JSON
    return [json.loads(path.read_text()) for path in sorted((run / "steps").glob("*.json"))]


def test_a_run_sees_its_pictures(whole: tuple[Finished, Path]) -> None:
    """Engine and learner agree, every picture is kept once by content, and the page shows some."""
    finished, run = whole
    assert finished.code == 0, finished.err
    for commit in commits(run):
        assert 0 < commit["metrics"]["publish/probe_difference_nats"] < 0.1
    mismatches = [commit["metrics"]["train/mismatch_abs"] for commit in commits(run)]
    assert 0 < max(mismatches) < 0.02, "0 of a step whose rewards agree"
    kept = {path.name: path.read_bytes() for path in (run / "pictures").iterdir()}
    assert kept == {content_of(data): data for data in kept.values()}
    table = f"read_parquet('{run}/responses/*/*.parquet', union_by_name=true)"
    rows = duckdb.sql(f"select pictures from {table} where fate = 'trained'").fetchall()
    assert len(rows) == 3 * 4 * 4, "of three steps of four prompts, four responses each"
    assert {picture["content"] for (pictures,) in rows for picture in pictures} <= set(kept)
    assert all(pictures for (pictures,) in rows)
    assert "data:image/png;base64," in (run / "report" / "index.html").read_text()


def test_a_run_leaves_a_model_that_transformers_loads(whole: tuple[Finished, Path]) -> None:
    """Whole, and it computes what the engine did in the last evaluation, but for bf16."""
    run = whole[1]
    model, told = AutoModelForImageTextToText.from_pretrained(
        run / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not any(told.values()), told
    processor, kept = processor_of(str(run / "model")), PictureFolder(Store.open(f"{run}/pictures"))
    rows = Journal(Store.open(f"{run}/evaluation")).read(3)
    assert len(rows) == 4
    for row in rows:
        prompt, answer = row.prompt, row.response.generated
        tokens = np.array([*prompt.token_ids, *answer.token_ids])
        with torch.inference_mode():
            found, _ = sequence_logp(
                model,
                tokens,
                range(len(prompt.token_ids), len(tokens)),
                1.0,
                prompt.pictures,
                lambda content: processor.patches(kept.read(content)),
            )
        torch.testing.assert_close(found, torch.tensor(answer.logprobs), atol=0.1, rtol=0)


def test_a_run_that_sees_resumes_after_a_kill(
    launcher: Launcher, whole: tuple[Finished, Path], tmp_path: Path, settings: Settings
) -> None:
    """The tower, too, is trained to the weights of the undisturbed run, to the bit."""
    run = tmp_path / "killed"
    process = launcher.start(tmp_path, *settings, 'run_name="killed"', preset="tiny-vision")
    wait_for(moment(run, "steps/00002.json"), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    finished = launcher.run(tmp_path, *settings, resume="killed", preset="tiny-vision")
    assert finished.code == 0, finished.err
    digests = [[each["weights"]["digest"] for each in commits(one)] for one in (whole[1], run)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) > 1, "of three steps; where all rewards agree nothing is trained"


def test_two_ranks_shard_the_decoder_beside_a_frozen_tower(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Engines load what they publish, the tower included, and compute the same. Of a Qwen3-VL,
    whose tower adds to the states of the decoder's first layers."""
    frozen = (QWEN3, SHARDED, "learner.vision=frozen", "num_steps=2", 'run_name="frozen"')
    finished = launcher.run(tmp_path, *SETTINGS, *frozen, preset="tiny-vision")
    assert finished.code == 0, finished.err
    made = commits(tmp_path / "frozen")
    assert len(made) == 2
    for commit in made:
        assert 0 < commit["metrics"]["publish/probe_difference_nats"] < 0.1


def test_an_episode_shows_its_pictures_turn_by_turn(launcher: Launcher, tmp_path: Path) -> None:
    """Environments draw; engine and learner see the same at the places of the observations."""
    shown = {"kind": "custom", "path": "tests.flows.shown_shapes:ShownShapes", "max_turns": 2}
    settings = (
        'run_name="shown"',
        "num_steps=2",
        "learner.vision=trained",
        "engine.max_model_len=96",
        "sampling.max_response_tokens=72",
        "episodes.max_turn_tokens=6",
        'task={"kind": "seeds", "domain": "shapes"}',
        f"environments={json.dumps({'shapes': shown})}",
        'rewards={"*": {"kind": "episode"}}',
        f"model.profile={json.dumps({'warm_up_steps': 60})}",
        DRAWN,
    )
    finished = launcher.run(tmp_path, *settings, preset="tiny-vision")
    assert finished.code == 0, finished.err
    run = tmp_path / "shown"
    kept = {path.name: path.read_bytes() for path in (run / "pictures").iterdir()}
    assert kept == {content_of(data): data for data in kept.values()}
    rows = [row for step in (1, 2) for row in Journal(Store.open(str(run))).read(step)]
    assert [row.fate for row in rows] == [Fate.TRAINED] * 2 * 4 * 4
    for row in rows:
        episode = row.response.generated.episode
        assert episode is not None
        assert [len(turn.pictures) for turn in episode.turns] == [1, 1]
        assert {each.content for turn in episode.turns for each in turn.pictures} <= set(kept)
    for commit in commits(run):
        # what the learner computes is what the engine drew by, but for bf16
        assert 0 < commit["metrics"]["train/mismatch_abs"] < 0.02
    assert len({commit["weights"]["digest"] for commit in commits(run)}) > 1
    assert "data:image/png;base64," in (run / "report" / "index.html").read_text()


@pytest.mark.parametrize("publish", ["adapter", "merged"])
def test_an_adapter_of_the_decoder_is_trained_beside_a_frozen_tower(
    launcher: Launcher, tmp_path: Path, publish: str
) -> None:
    """Engines get the adapter beside the model, or merged; the run leaves a whole model."""
    settings = (
        f'run_name="{publish}"',
        "num_steps=2",
        "sampling.max_response_tokens=8",
        "learner.lora.rank=4",
        f"learner.lora.publish={publish}",
    )
    finished = launcher.run(tmp_path, *settings, preset="tiny-vision")
    assert finished.code == 0, finished.err
    run = tmp_path / publish
    for commit in commits(run):
        assert 0 < commit["metrics"]["publish/probe_difference_nats"] < 0.1
        assert 0 < commit["metrics"]["train/mismatch_abs"] < 0.02
    assert len({commit["weights"]["digest"] for commit in commits(run)}) > 1
    model = dict(read_weights(run / "model" / MODEL_WEIGHTS))
    assert any(name.startswith("model.visual.") for name in model)
    if publish == "adapter":
        adapted = read_adapter(str(run / "adapter")).tensors
        assert adapted
        assert all(name.startswith("model.language_model.layers.") for name in adapted)
