"""The papers' experiments: which figures there are, what is played for them, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from artifacts.store import Store
from research.paper import command
from research.paper.command import EXPERIMENTS, by_default, chosen
from research.paper.compared import (
    BEGIN,
    END,
    errors_in_words,
    lines_of,
    markdown_of,
    unit_of,
    with_figures,
)
from research.paper.experiment import (
    Experiment,
    FigurePart,
    Observed,
    Scale,
    is_chosen,
    play_cases,
)
from research.paper.published import PUBLISHED
from research.paper.rollpacker_case import case_of
from research.paper.setups import BY_MODEL
from research.paper.variants import STREAM, SYNC, TAIL, PaperVariant

MODELS, CAPS, KINDS = ("7B", "14B", "32B"), ("8k", "16k", "32k"), ("short", "long")
SCALE = Scale(periods=1)
SMALL = replace(BY_MODEL["7B"], prompts=8, responses=2, num_devices=8, cap_tokens=512)


def named(*words: Sequence[object]) -> set[str]:
    return {"/".join(map(str, name)) for name in product(*words)}


# figures that are asked for by name
WANTED = (
    named(["table2"], MODELS, ["tail", "reward", "planner", "stream"])
    | named(["rlhfuse", "table4"], MODELS)
    | named(["fig4"], KINDS, ["rollout_share", "reward_share", "train_share"])
    | named(["fig6"], KINDS, ["tp1", "tp2"], ["preemptions", "rollout_s"])
    | named(["fig10"], MODELS, [*KINDS, "sync"], ["rollout_s", "max_tokens"])
    | named(["fig11"], CAPS, ["eta_p", "eta_r"], [1.125, 1.25, 1.5])
    | named(["fig11"], CAPS, ["both/1.25", "sync/1.0"])
    | named(["fig13"], ["judge", "timeout"], CAPS)
    | {"table3/stream"}
    | named(["fig14"], [16, 32, 64, 128])
    | named(["beyond"], MODELS, ["rollpacker", "ours"], ["step_s", "of_bound", "vs_rollpacker"])
)


def made_up(experiment: Experiment) -> dict[str, float]:
    """Its figures, were all figures of all steps 1."""
    names = (
        "step_s rollout_s reward_s train_s relayout_s max_tokens preemptions freed left_share"
        " tokens dollars num_prompts trained_tokens"
    )
    figures = dict.fromkeys(names.split(), 1.0)
    steps = tuple(Observed(kind=kind, figures=figures) for kind in ("short", "long", "sync"))
    return experiment.figures(dict.fromkeys(experiment.cases, steps))


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    every = (made_up(make(SCALE)) for make in EXPERIMENTS.values())
    return {name: value for found in every for name, value in found.items()}


def test_every_figure_that_is_asked_for_is_there(figures: dict[str, float]) -> None:
    assert not WANTED - set(figures)


def test_every_published_figure_has_one_of_ours(figures: dict[str, float]) -> None:
    assert not set(PUBLISHED) - set(figures)


def test_figures_lie_below_their_parts() -> None:
    for make in EXPERIMENTS.values():
        experiment = make(SCALE)
        for part in experiment.parts:
            assert part.name.split("/")[0] == experiment.name
            alone = made_up(replace(experiment, parts=(part,)))
            assert all(is_chosen(name, [part.name]) for name in alone), part.name


def test_equal_cases_of_several_experiments_are_one() -> None:
    table, figure = EXPERIMENTS["table2"](SCALE), EXPERIMENTS["fig10"](SCALE)
    assert set(figure.cases) <= set(table.cases)


@pytest.mark.parametrize(
    ("only", "parts"),
    [
        ("table3", ["table3/stream"]),
        ("fig11/8k/both", ["fig11/8k/both/1.25"]),
        ("fig10/7B/short/rollout_s", ["fig10/7B"]),
    ],
)
def test_a_part_is_chosen_by_its_experiment_by_itself_and_by_a_figure(
    only: str, parts: list[str]
) -> None:
    assert [part.name for one in chosen([only], SCALE) for part in one.parts] == parts


def test_what_papers_published_is_played_by_default() -> None:
    played = {name for one in chosen(by_default(), SCALE) for name in made_up(one)}
    assert set(PUBLISHED) <= played
    assert not any(name.startswith("beyond/") for name in played)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="got 'fig1'"):
        chosen(["fig1"], SCALE)


@pytest.mark.parametrize("variant", [SYNC, TAIL, STREAM, PaperVariant(eta_r=1.5)])
def test_a_run_has_its_steps_and_is_the_same_again(variant: PaperVariant) -> None:
    case = replace(case_of(SMALL, variant, SCALE), num_steps=2)
    steps = case.play()
    assert case.play() == steps
    assert len(steps) == 2
    for step in steps:
        assert 0 < step.figures["rollout_s"] + step.figures["train_s"] <= step.figures["step_s"]
        assert 0 < step.figures["max_tokens"] <= SMALL.cap_tokens
        assert bool(step.figures["freed"]) <= variant.streams


@pytest.mark.parametrize(
    ("only", "within"),
    [
        ("fig11/8k/sync", 0.1),
        ("h200/at_pace/3", 0.05),
        ("h200/at_pace/4", 0.05),
        ("h200/fitted/3", 0.1),
        ("h200/roofline/3/train_s", 0.05),
        ("h200/roofline/5/train_s", 0.05),
        ("h200/roofline/5/rollout_s", 0.1),
    ],
)
def test_what_was_published_or_measured_is_met(only: str, within: float) -> None:
    (experiment,) = chosen([only], SCALE)
    played = play_cases(experiment.cases, 1, str)
    for name, seconds in experiment.figures(played).items():
        assert seconds == pytest.approx(PUBLISHED[name].value, rel=within)


def test_rewards_that_follow_the_rollout_are_no_part_of_it() -> None:
    last, beside = (
        replace(case_of(replace(SMALL, tasks=("code",)), variant, SCALE), num_steps=1).play()[0]
        for variant in (SYNC, PaperVariant())
    )
    assert last.figures["reward_s"] > beside.figures["reward_s"]


@pytest.mark.parametrize(("eta", "steps"), [(1.0, 5), (1.125, 9), (1.25, 5), (1.5, 3)])
def test_a_period_ends_with_its_long_round(eta: float, steps: int) -> None:
    assert PaperVariant(eta_p=eta, eta_r=1.25).num_steps(1) == steps


def test_a_ratio_is_ours_over_the_published_one() -> None:
    known, unknown = lines_of({"table2/7B/tail": 1.95, "table2/14B/tail": 2.0})
    assert known.ratio == pytest.approx(1.5)
    assert known.cells[1:4] == ("1.95", "1.3", "1.50")
    assert unknown.ratio is None


def test_a_page_gets_known_figures_as_a_table_and_their_errors() -> None:
    figures = {"table2/7B/tail": 1.43, "table2/7B/reward": 1.81, "table2/14B/tail": 2.0}
    told = markdown_of(EXPERIMENTS["table2"](SCALE), figures)
    assert "| table2/7B/tail | 1.43 | 1.3 | +10% | RollPacker, Table 2 |" in told
    assert "No published figure is known of: 14B/tail 2." in told
    sentence = errors_in_words({**figures, "table2/7B/stream": 4.06})
    assert "3 figures" in sentence
    assert "10% in the median, at most\n100% (table2/7B/stream). It is 10% over the 3" in sentence
    page = f"before\n{BEGIN}\nold\n{END}\nafter"
    assert with_figures(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter"
    assert with_figures("", "new") == "new"


def test_figures_that_a_constant_was_fitted_to_are_marked_and_counted_apart() -> None:
    figures = {"table2/7B/tail": 1.43, "fig11/8k/eta_p/1.25": 72.0}
    told = markdown_of(EXPERIMENTS["fig11"](SCALE), figures)
    assert "| RollPacker, Figure 11 (fitted) |" in told
    assert "Table 2 (fitted)" not in told
    assert errors_in_words(figures).endswith("10% over the 1 that no constant was fitted to.")


def test_units_follow_from_names() -> None:
    names = ("fig10/7B/short/rollout_s", "fig10/7B/short/max_tokens", "table3/stream")
    assert [unit_of(name, "times") for name in names] == ["seconds", "tokens", "times"]
    told = markdown_of(EXPERIMENTS["fig6"](SCALE), {"fig6/a/rollout_s": 1, "fig6/a/preemptions": 2})
    assert "on 8 devices (seconds, count)." in told.replace("\n", " ")


@dataclass(frozen=True)
class CountedCase:
    """Takes no time."""

    value: float
    label: str = "counted"
    weight: float = 1.0

    def play(self) -> tuple[Observed, ...]:
        return (Observed(kind="run", figures={"value": self.value}),)


def counted(scale: Scale) -> Experiment:
    part = FigurePart(
        name="counted/seed",
        cases={"run": CountedCase(scale.seed)},
        figures=lambda played: {"counted/seed": played["run"][0].figures["value"]},
    )
    return Experiment(name="counted", about="The seed", unit="times", parts=(part,))


def test_cases_are_played_once() -> None:
    told: list[str] = []
    cases = [CountedCase(1.0), CountedCase(2.0), CountedCase(1.0)]
    assert set(play_cases(cases, 1, told.append)) == set(cases)
    assert len(told) == 2


def test_the_command_writes_figures_steps_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "EXPERIMENTS", {"counted": counted})
    words = ["--seed", "3", "--artifact-root", str(tmp_path)]
    assert command.main([*words, "--json", str(tmp_path / "ours.json")]) == 0
    assert json.loads((tmp_path / "ours.json").read_text()) == {"counted/seed": 3.0}
    store = Store.open(str(tmp_path)).child("paper/counted")
    assert store.read("figures.png").startswith(b"\x89PNG")
    rows = pq.read_table(tmp_path / "paper/counted/steps.parquet").to_pylist()
    assert [(row["case"], row["figure"], row["value"]) for row in rows] == [("run", "value", 3.0)]
    kept = pq.read_table(tmp_path / "paper/counted/figures.parquet").to_pylist()
    assert kept[0]["ours"] == 3.0


def test_what_is_asked_wrongly_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "fig99"]) == 2
    assert "--only must name" in capsys.readouterr().err
