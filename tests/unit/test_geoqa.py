"""GEOQA_R1V_Train_8K by its name: from a command's settings over Parquet on a hub to rows, prompts
and verdicts. The rows are made here, in the shape that public readers of the data set expect."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import Hub, Repository, serve_hub, use_hub
from picture_factories import make_seeing_prompts
from plan_factories import CONTEXT

from artifacts.datasets.picture_sources import read_picture
from artifacts.datasets.published_rows import GeoqaConfig
from artifacts.datasets.registry import load_dataset
from artifacts.datasets.rows import Dataset, Row
from artifacts.datasets.shapes import drawn
from artifacts.pictures import content_of, opened
from artifacts.records import Outcome
from flows.commands.command_line import assemble
from flows.config.run_config import RunConfig, pinned
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig
from tasks.run.prompts import prompt_of_row
from tasks.run.run_context import RunContext

NAME = "leonardPKU/GEOQA_R1V_Train_8K"
COMMAND = ["task.kind=geoqa", "model.kind=smollm2"]
SOLUTIONS = ("<answer> 145° </answer>", "<answer>2√{3}</answer>", "<answer> C </answer>",
             "<answer> 4cm </answer>")  # fmt: skip
BARS = [drawn(f'shapes:{{"bars":[{n + 1},5,9],"ink":"black"}}') for n in range(len(SOLUTIONS))]


def parquet(pictures: list[bytes | None], solutions: tuple[str, ...]) -> bytes:
    """A file of rows with these pictures, each asked in the same words."""
    rows = [
        {
            "image": None if data is None else {"bytes": data, "path": f"{number}.png"},
            "problem": "how long is a{b}?",
            "solution": solution,
        }
        for number, (data, solution) in enumerate(zip(pictures, solutions, strict=True))
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serve_hub() as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path / "hub")
        yield hub


def publish(hub: Hub, pictures: list[bytes | None], solutions: tuple[str, ...]) -> Repository:
    files = {"data/train-00000-of-00001.parquet": parquet(pictures, solutions)}
    return hub.repositories.setdefault(f"datasets/{NAME}", Repository(files))


def commanded() -> RunConfig:
    return pinned(RunConfig.model_validate(assemble("one-gpu", "", COMMAND)))


def by_gold(dataset: Dataset) -> dict[str, Row]:
    """The rows of both sides."""
    return {row.gold: row for row in (*dataset.rows, *dataset.heldout)}


def context(path: Path) -> RunContext:
    engine = VllmEngineConfig(max_model_len=256 + CONTEXT.sampling.max_response_tokens)
    (path / "model").mkdir()
    model = make_seeing_prompts(path / "model")
    return replace(CONTEXT, model_path=model, engine=engine, artifact_root=str(path))


def test_a_command_asks_the_published_rows_with_their_pictures(hub: Hub, tmp_path: Path) -> None:
    repository = publish(hub, [*BARS, BARS[0]], (*SOLUTIONS, "the answer is 145°"))
    config = commanded()
    assert isinstance(config.task, GeoqaConfig)
    assert config.task.revision == repository.commit
    dataset = load_dataset(config.task, config.seed)
    assert dataset.left_out == {"unusable": 1}, "an answer without tags"
    assert (len(dataset.rows), len(dataset.heldout)) == (3, 1)
    rows = by_gold(dataset)
    assert len({row.identity for row in rows.values()}) == 4, "equal words about other pictures"
    assert {row.domain for row in rows.values()} == {"math"}
    shown_by = {gold: read_picture(row.pictures[0]) for gold, row in rows.items()}
    assert shown_by == dict(zip(("145°", "2√{3}", "C", "4cm"), BARS, strict=True))
    row = rows["145°"]
    assert row.text.startswith("how long is a{b}? Output the thinking process in <think> </think>")
    assert row.text.endswith("final answer (number) in <answer> </answer> tags.")
    (shown,) = prompt_of_row(context(tmp_path), row, "0/0").pictures
    assert (shown.content, shown.rows, shown.columns) == (content_of(BARS[0]), 3, 3)


def test_broken_and_large_pictures_make_rows_unfit(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, [BARS[0][:90], BARS[1]], SOLUTIONS[:2])
    run, rows = context(tmp_path), by_gold(load_dataset(commanded().task, 0))
    with pytest.raises(ValueError, match="must be a whole file of PNG"):
        prompt_of_row(run, rows["145°"], "0/0")
    width, height = opened(BARS[1]).size
    monkeypatch.setattr("artifacts.pictures.MAX_PIXELS", width * height - 1)
    with pytest.raises(ValueError, match=f"pixels, got {width} x {height}"):
        prompt_of_row(run, rows["2√{3}"], "0/1")


@pytest.fixture(scope="module")
def reward() -> Iterator[MathAnswer]:
    reward = MathAnswer(MathAnswerConfig(timeout_s=10.0))
    yield reward
    reward.close()


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("145°", "<think> 180 - 35 </think><answer> 145 </answer>", "<answer> 35° </answer>"),
        ("145°", r"So \boxed{145^\circ}.", r"\boxed{144^\circ}"),
        ("2√{3}", r"<answer> 2\sqrt{3} </answer>", r"<answer> 3\sqrt{2} </answer>"),
        ("4cm", "<answer> 4 </answer>", "<answer> 5cm </answer>"),
        ("C", "<answer>C</answer>", "<answer>B</answer>"),
        (r"\frac{√{5}}{5}", r"\boxed{\frac{\sqrt{5}}{5}}", r"\boxed{\sqrt{5}}"),
        ("20cm^{2}", "<answer> 20 </answer>", "<answer> 20√{2} </answer>"),
        # known limits: units that the reward does not leave out
        ("100m", "<answer> 100m </answer>", "<answer> 100 </answer>"),
        ("25πcm", "<answer> 25πcm </answer>", r"<answer> 25\pi </answer>"),
    ],
)
def test_answers_are_compared_by_the_mathematics_reward(
    reward: MathAnswer, gold: str, right: str, wrong: str
) -> None:
    reward.check_gold(gold)
    assert reward.judge(gold, right).outcome is Outcome.OK
    assert reward.judge(gold, wrong).outcome is Outcome.WRONG
