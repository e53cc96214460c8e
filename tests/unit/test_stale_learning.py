"""Runs at a constant lag: which version is due, which files are kept, and what the table says."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from artifacts.records import WeightsRef
from benchmarks.stale_learning import VARIANTS, config_of, main
from benchmarks.stale_learning_figures import (
    DRIFT,
    EFFECTIVE,
    REWARD,
    Recorded,
    paired,
    picture,
    read_runs,
    table,
)
from benchmarks.stale_learning_versions import KeptVersions, due_version
from flows.experiments.ablation_figures import student
from tasks.alarm import AlarmConfig
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.loss import LossConfig
from tasks.learner.losses.ppo_clip import PpoClipLoss


@pytest.mark.parametrize(
    ("lag", "versions"), [(0, [0, 1, 2, 3, 4]), (2, [0, 0, 0, 1, 2]), (8, [0, 0, 0, 0, 0])]
)
def test_a_step_is_sampled_by_the_oldest_version_within_the_bound(
    lag: int, versions: list[int]
) -> None:
    assert [due_version(step, lag) for step in range(1, 6)] == versions


class Writer:
    """A learner as far as its weights are concerned."""

    version = 0

    async def export_weights(self, directory: str) -> WeightsRef:
        path = Path(directory) / "weights"
        path.parent.mkdir(parents=True)
        path.write_text(str(self.version))
        return WeightsRef(version=self.version, path=str(path), digest="")


async def test_a_version_lies_there_until_no_step_can_ask_for_it(tmp_path: Path) -> None:
    learner, lag = Writer(), 2
    versions = KeptVersions(learner, tmp_path, lag)  # type: ignore[arg-type]
    for version in range(6):
        learner.version = version
        await versions.keep(version)
        due = due_version(version + 1, lag)
        assert Path(versions[due].path).read_text() == str(due)
        assert sorted(int(path.name) for path in tmp_path.iterdir()) == [*range(due, version + 1)]


def learners() -> list[LearnerConfig]:
    return [config_of(name, "tiny", 0, None).learner for name in VARIANTS]


def test_every_loss_of_the_configuration_has_a_variant() -> None:
    union, _ = get_args(LossConfig)
    kinds = {kind.model_fields["kind"].default for kind in get_args(union)}
    assert {learner.loss.kind for learner in learners()} == kinds


def test_every_ratio_of_ppo_and_every_level_of_a_weight_has_a_variant() -> None:
    losses = [learner.loss for learner in learners()]
    ratios = {loss.old_policy for loss in losses if isinstance(loss, PpoClipLoss)}
    assert ratios == {"learner", "engine"}
    levels = {loss.level for loss in losses if loss.kind == "reinforce"}
    assert levels == {"token", "sequence", "geometric"}


def test_every_variant_plays_synchronous_rounds_of_the_seed() -> None:
    for name in VARIANTS:
        config = config_of(name, "tiny", 3, 7)
        assert (config.scheduling.kind, config.seed, config.num_steps) == ("sync", 3, 7)


def write_run(
    directory: Path,
    variant: str,
    seed: int,
    heldout: float | None,
    steps: Sequence[dict[str, float]] = ({REWARD: 0.25}, {REWARD: 0.75}),
    **changes: object,
) -> None:
    settings: dict[str, Any] = {
        "variant": variant,
        "preset": "tiny",
        "seed": seed,
        "lag": VARIANTS[variant].lag if VARIANTS[variant].lag is not None else 2,
        "num_steps": 20,
        "learner": VARIANTS[variant].learner,
        "alarm": AlarmConfig().model_dump(),
    }
    lines: list[dict[str, Any]] = [settings | changes]
    lines += [{"step": step, "figures": figures} for step, figures in enumerate(steps, 1)]
    if heldout is not None:
        lines.append({"heldout": heldout, "cpu_s": 40.0})
    (directory / f"{variant}-{seed}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


def test_the_interval_is_students() -> None:
    """Of 1, 2, 3: mean 2, deviation 1, 4.303 times 1 / sqrt(3) either way."""
    found = student([1.0, 2.0, 3.0])
    half = 4.303 / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0 - half, 2.0 + half))
    assert student([1.0]).high == math.inf


def test_differences_are_of_the_seeds_that_both_have(tmp_path: Path) -> None:
    for seed, heldout in ((0, 0.5), (1, 0.7), (2, 0.1)):
        write_run(tmp_path, "sync", seed, heldout)
    for seed, heldout in ((0, 0.4), (1, 0.6), (3, 0.9)):
        write_run(tmp_path, "ppo", seed, heldout)
    runs = read_runs(tmp_path, ["sync", "ppo"])
    gain = paired(runs["sync"], runs["ppo"])
    assert gain is not None
    assert (gain.mean, gain.num_samples) == (pytest.approx(-0.1), 2)
    assert gain.high - gain.low == pytest.approx(0.0)


def test_a_run_that_is_not_finished_is_in_no_table(tmp_path: Path) -> None:
    write_run(tmp_path, "ppo", 0, None)
    write_run(tmp_path, "sync", 0, 0.5)
    unfinished = Recorded.read(tmp_path / "ppo-0.jsonl")
    assert unfinished is not None
    assert (unfinished.is_finished, len(unfinished.steps)) == (False, 2)
    assert list(read_runs(tmp_path, list(VARIANTS))) == ["sync"]


def test_a_variants_runs_are_not_those_of_one_whose_name_begins_with_its_own(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "ppo", 0, 0.5)
    write_run(tmp_path, "ppo-lag-8", 0, 0.1)
    assert [run.name for run in read_runs(tmp_path, ["ppo"])["ppo"]] == ["ppo-0.jsonl"]


def collapsing() -> list[dict[str, float]]:
    """Six steps: k3 beyond its limit from the second on, the effective sample from the fourth."""
    effective = (1.0, 0.9, 0.8, 0.4, 0.3, 0.2)
    drift = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    return [
        {REWARD: 0.5, EFFECTIVE: share, DRIFT: k3, "train/tokens_scored": 10.0}
        for share, k3 in zip(effective, drift, strict=True)
    ]


def test_a_line_tells_the_steps_at_which_the_alarm_warns(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "sync", seed, 0.5)
        write_run(tmp_path, "wrong", seed, 0.25, collapsing())
    lines = table(read_runs(tmp_path, list(VARIANTS)), "sync").splitlines()
    cells = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in lines}
    assert cells["wrong"][1:4] == [
        "8",
        "0.250 [0.250, 0.250]",
        "-0.250 [-0.250, -0.250]",
    ]
    assert (
        "mismatch_k3 from 4 (2 of 2), effective_sample_fraction from 6 (2 of 2)" in cells["wrong"]
    )
    assert cells["sync"][3:5] == ["", "0.500"]


def test_a_step_that_scored_no_token_has_no_figures_of_the_learner(tmp_path: Path) -> None:
    silent = {REWARD: 0.0, EFFECTIVE: 0.0, DRIFT: 0.0, "train/tokens_scored": 0.0}
    write_run(tmp_path, "wrong", 0, 0.25, [*collapsing()[:3], silent])
    (run,) = read_runs(tmp_path, ["wrong"])["wrong"]
    assert run.told(EFFECTIVE) == {1: 1.0, 2: 0.9, 3: 0.8}
    assert run.told(REWARD)[4] == 0.0


def test_the_picture_has_a_panel_for_each_variant_and_each_figure(tmp_path: Path) -> None:
    for variant in ("sync", "ppo", "wrong"):
        write_run(tmp_path, variant, 0, 0.5, collapsing())
    drawn = picture(read_runs(tmp_path, list(VARIANTS)), "sync")
    titles = [axes.get_title() for axes in drawn.axes if axes.get_visible()]
    assert titles[:2] == ["ppo, lag 2", "wrong, lag 8"]
    assert len(titles) == 2 + 4


def test_a_finished_run_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.stale_learning.pin", lambda core: None)
    monkeypatch.setattr("benchmarks.stale_learning.Machine", None)  # nothing can be started
    write_run(tmp_path, "sync", 0, 0.5)
    main(["--out", str(tmp_path), "--variants", "sync", "--seeds", "0"])
    assert "| sync | 0 | 0.500 |" in capsys.readouterr().out


def test_the_run_of_other_settings_is_no_substitute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.stale_learning.pin", lambda core: None)
    write_run(tmp_path, "sync", 0, 0.5, num_steps=5)
    with pytest.raises(ValueError, match=r"sync-0.jsonl differs in num_steps; take another --out"):
        main(["--out", str(tmp_path), "--variants", "sync", "--seeds", "0"])
