"""A curriculum asks its stages in order, evaluates the task itself, and never trains what the task
holds out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.registry import CurriculumConfig, StageConfig, load_dataset
from artifacts.datasets.tiny_mix import FamilyConfig, TinyMixConfig
from tasks.scheduling.prompt_stream import draw_prompts

TASK = TinyMixConfig(num_prompts=60, heldout_prompts=40)
SHORT = TinyMixConfig(
    add=FamilyConfig(weight=1, max_size=2, alpha=1.0),
    letters=FamilyConfig(weight=0, max_size=1, alpha=1.0),
    story=FamilyConfig(weight=0, max_size=1, alpha=1.0),
    num_prompts=30,
)
CURRICULUM = CurriculumConfig(
    stages=(StageConfig(task=SHORT, num_prompts=20), StageConfig(task=SHORT, num_prompts=10)),
    task=TASK,
)


def test_stages_come_first_and_the_task_is_what_is_evaluated() -> None:
    dataset = load_dataset(CURRICULUM, 3)
    assert dataset == load_dataset(CURRICULUM, 3)
    assert all(row.text.count("+") == 1 for row in dataset.rows[:30])
    assert dataset.rows[30:] == load_dataset(TASK, 3).rows
    assert dataset.heldout == load_dataset(TASK, 3).heldout


def test_stages_of_one_task_ask_different_questions() -> None:
    rows = [row.text for row in load_dataset(CURRICULUM, 3).rows]
    assert rows[:10] != rows[20:30]


def test_rows_are_asked_as_they_stand_whatever_the_seed() -> None:
    dataset = load_dataset(CURRICULUM, 3)
    order = dataset.order_seed(3)
    asked = draw_prompts(dataset.domains, order, 0, 95, unfit={1})
    assert [ref.prompt_id for ref in asked[:3]] == ["0/0", "0/2", "0/3"]
    assert [ref.prompt_id for ref in asked[-6:]] == [*(f"1/{row}" for row in (0, 2, 3, 4, 5, 6))]
    assert draw_prompts(dataset.domains, order, 90, 3) == draw_prompts(dataset.domains, None, 90, 3)


def test_other_tasks_are_shuffled_by_the_seed() -> None:
    dataset = load_dataset(TASK, 3)
    assert dataset.order_seed(3) == 3


def test_a_stage_with_too_few_questions_is_refused() -> None:
    stages = (StageConfig(task=SHORT, num_prompts=31),)
    with pytest.raises(ValueError, match=r"stages\[0\].num_prompts must be <= .* \(30\), got 31"):
        load_dataset(CurriculumConfig(stages=stages, task=TASK), 0)
    with pytest.raises(ValidationError, match="at least 1"):
        CurriculumConfig(stages=(), task=TASK)


def test_a_stage_that_trains_what_is_held_out_is_refused(tmp_path: Path) -> None:
    heldout = load_dataset(TASK, 0).heldout[0]
    path = tmp_path / "leak.jsonl"
    rows = [{"prompt": heldout.text, "answer": heldout.gold}] * 2
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    leak = FilesConfig(path=str(path), heldout_fraction=0)
    stages = (StageConfig(task=leak, num_prompts=1),)
    with pytest.raises(ValueError, match=r"stages\[0\] must not train what the task holds out"):
        load_dataset(CurriculumConfig(stages=stages, task=TASK), 0)
