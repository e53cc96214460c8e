"""`python -m research.gpu`: a table whatever happens to its parts, and settings that runs take."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import research.gpu.__main__ as command
from artifacts.models.size import ModelSize
from flows.commands.command_line import assemble
from flows.config.gpu_memory import check_gpu_memory
from flows.config.run_config import RunConfig
from flows.run import check_rows
from research.benchmarks import several_cards
from research.gpu.figures import Figure, figures_in, not_measured, skipped_in
from research.gpu.long_tail import SHAPES
from research.gpu.parts import PARTS, Part
from research.gpu.runs import device_settings
from research.gpu.schedules import ON_TWO_DEVICES, SCHEDULES, SIZES, _settings
from research.gpu.suites import ROOT, suites
from research.gpu.tracked_memory import model_of
from tasks.cluster.cards import GB
from tasks.learner.memory import size_of
from tasks.learner.tree_attention import register_attention

STUB = """
import sys, time
from research.gpu.figures import Figure, not_measured
way = sys.argv[-1]
Figure(name=f"figure of {way}", value=2.0, unit="s", at_most=1.0 if way == "slow" else None).print()
if way == "lacks":
    not_measured("broadcast", "it takes two GPUs")
if way == "crashes":
    sys.exit(3)
if way == "hangs":
    time.sleep(600)
"""


@pytest.fixture
def stubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The command with parts that end in different ways."""
    (tmp_path / "stub_part.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    ways = ("works", "lacks", "slow", "crashes", "hangs")
    parts = tuple(
        Part(name=way, about=way, module="stub_part", weight=0.2 if way == "hangs" else 1.0,
             arguments=(way,)) for way in ways
    )  # fmt: skip
    monkeypatch.setattr(command, "PARTS", parts)
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path / "figures.json"
    signal.signal(signal.SIGTERM, handler)


def test_the_table_names_every_part_however_it_ended(
    stubbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--device", "cpu", "--minutes", "2", "--json", str(stubbed)]
    assert command.main([*words, "--only", "works", "lacks"]) == 0
    assert command.main([*words, "--skip", "hangs"]) == 1
    table = capsys.readouterr().out.rpartition("┏")[2]
    for word in ("figure of works", "broadcast: it takes two GPUs", "at most 1", "exit status 3"):
        assert word in table
    assert [part["ended"] for part in json.loads(stubbed.read_text())["parts"]] == [
        *["done"] * 3,
        "exit status 3",
    ]


def test_a_part_is_cut_off_at_its_limit_and_keeps_its_figures(
    stubbed: Path, tmp_path: Path
) -> None:
    hanging = command.PARTS[-1]
    outcome = command.play(hanging, "cpu", tmp_path, limit_s=20.0)
    assert outcome.ended == "cut off after 20 s"
    assert [figure.name for figure in outcome.figures] == ["figure of hangs"]


def test_a_part_may_take_its_weight_of_what_is_left(
    stubbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def play(part: Part, device: str, out: Path, limit_s: float) -> command.PartOutcome:
        limits.append(limit_s)
        if part.name == "slow":
            raise KeyboardInterrupt
        return command.PartOutcome(part=part.name, ended="done", seconds=0.0, figures=())

    monkeypatch.setattr(command, "play", play)
    assert command.main(["--device", "cpu", "--minutes", "7"]) == 1  # interrupted: with its table
    assert limits == pytest.approx([420 / 4.2, 420 / 3.2, 420 / 2.2], rel=0.02)


def test_what_a_part_prints_is_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    figure = Figure(name="publication", value=0.2, unit="s", at_most=0.3)
    figure.print()
    not_measured("broadcast", "it takes two GPUs")
    lines = ["a library's line", *capsys.readouterr().out.splitlines()]
    assert [*figures_in(lines)] == [figure]
    assert [*skipped_in(lines)] == ["broadcast: it takes two GPUs"]


def test_every_part_has_its_module_and_every_file_of_tests_its_turn() -> None:
    for part in PARTS:
        assert (ROOT / f"{part.module.replace('.', '/')}.py").is_file()
    listed = suites("cuda")
    assert len(listed) == len({*listed})
    assert {*listed} == {"tests/gpu"} | {
        f"tests/engine/{path.name}" for path in (ROOT / "tests/engine").glob("test_*.py")
    }


def test_one_card_says_what_takes_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(sys, "argv", ["several_cards", "--device", "cuda", "--out", str(tmp_path)])
    assert several_cards.main() == 0
    assert len([*skipped_in(capsys.readouterr().out.splitlines())]) == 3


@pytest.mark.parametrize("num_gpus", [1, 2, 8])
@pytest.mark.parametrize("name", SCHEDULES)
def test_runs_take_the_settings_of_every_schedule_on_gpus(
    name: str, num_gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if num_gpus == 1 and name in ON_TWO_DEVICES:
        pytest.skip("the part leaves it out")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    size = SIZES["cuda"]
    words = (
        *device_settings("cuda", size.gpu_share),
        *_settings(size, tmp_path),
        *SCHEDULES[name],
    )
    config = RunConfig.model_validate(assemble(size.preset, "", words))
    check_rows(config)  # the questions that the part writes
    check_gpu_memory(config, _size_of(size.shape), 80 * GB)


def _size_of(shape: str) -> ModelSize:
    register_attention()
    with torch.device("meta"):
        return size_of(model_of(SHAPES[shape]))


def test_cheap_parts_give_their_figures_on_cores(tmp_path: Path) -> None:
    """The others start runs, and are for `make gpu-test DEVICES=cpu`."""
    figures = tmp_path / "figures.json"
    words = ["--device", "cpu", "--minutes", "6", "--only", "learner", "sleep", "publication"]
    done = subprocess.run(
        [sys.executable, "-m", "research.gpu", *words, "--json", str(figures)],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=420,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    for part in json.loads(figures.read_text())["parts"]:
        assert part["ended"] == "done"
        assert len(part["figures"]) >= 3, part
