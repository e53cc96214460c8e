"""What the record of acceptance says, by step and from the records of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from round_factories import ENGINE, make_engines, make_prompts, simulate_run

from artifacts import layout
from artifacts.journal import Journal
from artifacts.records import Fate, Response, response_id
from artifacts.store import Store
from artifacts.tables import ResponseRow
from research.benchmarks.acceptance_bias import choices, clustered_mean, main, parts, read_rounds
from research.spot.simulated_rounds import SimulatedRound
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.ledger import Launched, acceptance_figures, fate_of
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig

BATCH = BatchConfig(prompts_per_step=8, responses_per_prompt=4)


def launched(prompt_id: str, num_tokens: int, reward: float | None, fate: Fate) -> Launched:
    return Launched(prompt_id=prompt_id, num_tokens=num_tokens, reward=reward, fate=fate)


def record(store: Store, rounds: list[SimulatedRound]) -> None:
    """Keep simulated rounds as a run keeps its own."""
    for one in rounds:
        plan, result = one.plan, one.result
        prompts = make_prompts(plan)
        scores = {response_id(score.prompt_id, score.index): score for score in result.scores}
        filtered = {
            generated.response_id
            for generated in result.generated
            if generated.prompt_id in result.filtered
        }
        trained = {
            response.generated.response_id
            for group in result.groups
            for response in group.responses
        }
        rows = [
            ResponseRow(
                step=plan.step,
                kind=plan.kind,
                prompt=prompts[generated.prompt_id],
                response=Response(generated=generated, score=scores.get(generated.response_id)),
                fate=fate_of(generated, trained, filtered),
            )
            for generated in result.generated
        ]
        Journal(store).finalise(plan.step, rows, result.groups, ())
        store.write(layout.step_file(layout.ROUNDS, plan.step), b"{}")


def recorded_run(folder: Path, scheduling: Policy) -> str:
    store = Store.open(str(folder))
    record(
        store,
        run_virtual(
            simulate_run(
                BATCH, scheduling, num_steps=5, engines=make_engines(4, ENGINE), domains=("a",) * 50
            )
        ),
    )
    return str(folder)


def test_a_step_s_figures_compare_the_accepted_with_their_siblings_and_with_all() -> None:
    figures = acceptance_figures(
        [
            launched("p0", 10, 1.0, Fate.TRAINED),
            launched("p0", 20, 0.0, Fate.TRAINED),
            launched("p0", 60, None, Fate.ABORTED),
            launched("p1", 90, 0.0, Fate.FILTERED),
        ]
    )
    assert figures == pytest.approx(
        {
            "acceptance/accepted_tokens_mean": 15,
            "acceptance/sibling_tokens_mean": 30,
            "acceptance/launched_tokens_mean": 45,
            "acceptance/accepted_reward_mean": 0.5,
            "acceptance/launched_reward_mean": 1 / 3,
            "acceptance/length_bias_fraction": -0.5,
            "acceptance/reward_bias": 0.0,
        }
    )


def test_a_step_that_accepted_nothing_has_no_such_figures() -> None:
    assert acceptance_figures([launched("p0", 10, None, Fate.DISCARDED)]) == {}


def test_the_interval_of_a_clustered_mean_counts_prompts_not_responses() -> None:
    prompts = [(f"p{place}", float(place % 2)) for place in range(40)]
    once, often = clustered_mean(prompts, seed=1), clustered_mean(prompts * 50, seed=1)
    assert once is not None
    assert often == once
    assert (once.mean, once.num_samples) == (0.5, 40)
    assert once.low < 0.5 < once.high
    assert clustered_mean([], seed=1) is None


def test_every_response_of_a_run_is_in_one_part_and_the_choice_favours_short_ones(
    tmp_path: Path,
) -> None:
    rounds = read_rounds(
        Store.open(recorded_run(tmp_path / "tail", TailBatchingConfig(response_overprovision=1.25)))
    )
    assert list(rounds) == ["short", "long"]
    by_name = {(part.kind, part.name): part for part in parts(rounds, seed=0)}
    for kind in ("short", "every"):
        assert by_name[kind, "launched"].num_responses == sum(
            by_name[kind, name].num_responses for name in ("accepted", "discarded", "aborted")
        )
    assert by_name["short", "accepted"].num_responses == 4 * 8 * 4
    assert by_name["every", "launched"].num_responses == 4 * 10 * 5 + 8 * 4
    assert by_name["short", "aborted"].reward is None
    short, long, _ = choices(rounds, seed=0)
    assert short.tokens.high < 0
    assert (long.tokens.mean, long.reward.mean) == (0, 0)


def test_the_report_prints_both_tables_of_every_run_and_draws_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        recorded_run(tmp_path / "tail", TailBatchingConfig(response_overprovision=1.25)),
        recorded_run(tmp_path / "sync", SyncConfig()),
    ]
    plot = tmp_path / "bias.png"
    arguments = [*runs, "--plot", str(plot)]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "tail: what became of the launched responses" in told
    assert "sync: accepted minus all siblings, per prompt" in " ".join(told.split())
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_filtered_groups_are_a_part_of_their_own(tmp_path: Path) -> None:
    rounds = read_rounds(Store.open(recorded_run(tmp_path, SyncConfig(dynamic_sampling=2))))
    by_name = {part.name: part.num_responses for part in parts(rounds, seed=0)}
    assert by_name["accepted"] == 5 * 8 * 4
    assert by_name["filtered"] > 0
    asked_in_vain = by_name.get("aborted", 0) + by_name.get("discarded", 0)
    assert by_name["launched"] == by_name["accepted"] + by_name["filtered"] + asked_in_vain


def test_a_folder_without_a_round_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"the folder of a run with a closed round, got {tmp_path}" in capsys.readouterr().err
