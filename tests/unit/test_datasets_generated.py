"""Generated datasets: right answers, a long tail, disjoint sides, and the same rows from the same
seed."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import partial
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from artifacts.datasets.chain_sum import (
    MAX_TERM,
    MAX_TERMS,
    ChainSumConfig,
    demonstration,
    in_letters,
    question,
)
from artifacts.datasets.reasoning_gym_rows import ALLOWED_DATASETS, ReasoningGymTaskConfig
from artifacts.datasets.registry import SeedsConfig, TaskConfig, load_dataset
from artifacts.datasets.rows import Row, generate, pareto_size, question_row
from artifacts.datasets.tiny_mix import FamilyConfig, TinyMixConfig
from artifacts.printable import plain_signs
from flows.config.run_config import RunConfig

GENERATED = (
    TinyMixConfig(num_prompts=300, heldout_prompts=40),
    ChainSumConfig(num_prompts=300, heldout_prompts=40),
    SeedsConfig(domain="guess", num_prompts=300, heldout_prompts=40),
)


@pytest.mark.parametrize("config", GENERATED, ids=lambda config: config.kind)
def test_a_dataset_is_a_function_of_configuration_and_seed(
    config: TaskConfig,
) -> None:
    state = random.getstate()
    first, again, other = load_dataset(config, 3), load_dataset(config, 3), load_dataset(config, 4)
    assert first == again
    assert first.digest == again.digest != other.digest
    assert random.getstate() == state
    assert first.heldout == other.heldout, "the scores of seeds can be compared"


@pytest.mark.parametrize("config", GENERATED, ids=lambda config: config.kind)
def test_no_question_is_on_both_sides(config: TaskConfig) -> None:
    dataset = load_dataset(config, 0)
    assert (len(dataset.rows), len(dataset.heldout), len(dataset.domains)) == (300, 40, 300)
    assert not {row.text for row in dataset.rows} & {row.text for row in dataset.heldout}


def test_more_prompts_leave_the_earlier_ones_as_they_were() -> None:
    few, many = (
        load_dataset(ChainSumConfig(num_prompts=10), 0),
        load_dataset(ChainSumConfig(num_prompts=20), 0),
    )
    assert many.rows[:10] == few.rows


def test_a_row_of_seeds_names_its_episode_and_asks_nothing() -> None:
    dataset = load_dataset(SeedsConfig(domain="guess", num_prompts=500, heldout_prompts=500), 7)
    seeds = [int(row.gold) for row in (*dataset.rows, *dataset.heldout)]
    assert len(set(seeds)) == 1000
    assert max(seeds) < 2**31
    for row, seed in zip(dataset.rows, seeds, strict=False):
        assert (row.domain, row.messages, row.text) == ("guess", (), f"guess, episode {seed}")


def test_more_episodes_leave_the_earlier_ones_as_they_were_and_no_seed_is_on_both_sides() -> None:
    few, many = (
        load_dataset(SeedsConfig(domain="guess", num_prompts=count, heldout_prompts=count), 2)
        for count in (30, 5_000)
    )
    assert (many.rows[:30], many.heldout[:30]) == (few.rows, few.heldout)
    heldout = {row.gold for row in many.heldout}
    for run_seed in range(3):
        rows = load_dataset(SeedsConfig(domain="guess", num_prompts=5_000), run_seed).rows
        assert not {row.gold for row in rows} & heldout
    with pytest.raises(ValidationError, match="domain"):
        SeedsConfig(domain="")


def answer(row: Row) -> int:
    """The answer, found by other means than the generator's."""
    if row.domain == "add":
        return sum(map(int, re.findall(r"\d+", row.text)))
    if row.domain == "letters":
        letter, phrase = re.findall(r'"([^"]*)"', row.text)
        return sum(character == letter for character in phrase)
    start = int(re.search(r"has (\d+)", row.text)[1])  # type: ignore[index]
    gains = sum(int(number) for number in re.findall(r"gets (\d+)", row.text))
    return start + gains - sum(int(number) for number in re.findall(r"gives away (\d+)", row.text))


def test_tiny_mix_golds_are_right_and_never_negative() -> None:
    rows = load_dataset(TinyMixConfig(num_prompts=600), 1).rows
    assert {row.domain for row in rows} == {"add", "letters", "story"}
    assert all(int(row.gold) == answer(row) >= 0 for row in rows)


def test_worked_golds_are_those_of_training_sums_and_stories() -> None:
    """They lead from line to line to the answer; questions and held-out golds stay as they are."""
    plain, worked = (load_dataset(TinyMixConfig(worked=worked), 1) for worked in (False, True))
    assert worked.heldout == plain.heldout
    for row, answered in zip(worked.rows, plain.rows, strict=True):
        *lines, last = row.gold.split("\n")
        assert (row.text, row.messages, last) == (answered.text, answered.messages, answered.gold)
        if row.domain == "letters":
            assert not lines
            continue
        total = int(re.findall(r"\d+", row.text)[0])
        for line in lines:
            before, sign, change, after = re.fullmatch(r"(\d+) ([+-]) (\d) = (\d+)", line).groups()  # type: ignore[union-attr]
            assert int(before) == total
            total += int(f"{sign}{change}")
            assert int(after) == total
        assert total == int(last)


def test_tiny_mix_never_asks_one_of_its_own_examples() -> None:
    for row in load_dataset(TinyMixConfig(num_prompts=1000), 2).rows:
        assert row.text not in {message.content for message in row.messages[:-1]}
        assert row.messages[-1].content == row.text


def test_the_examples_of_tiny_mix_show_every_step_and_the_answer() -> None:
    rows = {row.domain: row for row in load_dataset(TinyMixConfig(num_prompts=200), 0).rows}
    assert rows["add"].messages[2].content == "What is 2 + 4 + 1 + 3?"
    assert rows["add"].messages[3].content == "2 + 4 = 6\n6 + 1 = 7\n7 + 3 = 10\nAnswer: 10"
    assert rows["letters"].messages[5].content == "a-_-s-m-a-l-l-_-o-r-a-n-g-e-_-b-a-g\nAnswer: 4"
    assert [len(rows[name].messages) for name in ("add", "letters", "story")] == [9, 7, 9]


def test_a_family_without_weight_is_not_asked() -> None:
    config = TinyMixConfig(num_prompts=200, add=FamilyConfig(weight=0, max_size=12, alpha=1.3))
    assert set(load_dataset(config, 0).domains) == {"letters", "story"}


@given(st.integers(0, 2**32), st.integers(2, 30), st.floats(1e-6, 5.0))
def test_sizes_stay_within_their_bounds(seed: int, largest: int, alpha: float) -> None:
    assert 2 <= pareto_size(random.Random(seed), 2, largest, alpha) <= largest


def test_chain_sum_asks_no_shorter_questions_than_it_may() -> None:
    dataset = load_dataset(ChainSumConfig(min_terms=3, max_terms=4), 0)
    assert {row.text.count("c") for row in (*dataset.rows, *dataset.heldout)} == {1}
    with pytest.raises(ValueError, match=r"min_terms must be <= max_terms \(4\), got 5; lower it"):
        ChainSumConfig(min_terms=5, max_terms=4)


def test_no_question_outweighs_the_tiny_evaluation() -> None:
    """The interval of the summary rests on different questions, not on one asked often."""
    config = RunConfig.model_validate({"preset": "tiny"})
    asked = load_dataset(config.task, config.seed).heldout[: config.evaluation.num_prompts]
    times = Counter(row.text for row in asked)
    assert len(times) >= 120
    assert max(times.values()) <= len(asked) / 8


def test_chain_sum_sizes_have_a_long_tail() -> None:
    terms = [
        row.text.count("=") + len(re.findall("[a-z]", row.text)) - 1
        for row in load_dataset(ChainSumConfig(), 0).rows
    ]
    assert max(terms) >= 8 * median(terms)


@given(st.lists(st.integers(1, MAX_TERM), min_size=2, max_size=MAX_TERMS), st.integers(0, 999))
def test_a_clean_demonstration_ends_with_the_sum(terms: list[int], seed: int) -> None:
    text = demonstration(terms, random.Random(seed), wrong_share=0.0, ramble_share=0.0)
    assert text.endswith(
        f"{'abcdefghijklmnopqrstuvwx'[len(terms) - 1]}{sum(terms)}\nAnswer: {sum(terms)}"
    )
    assert text.startswith(f"a{terms[0]}b{terms[0] + terms[1]}")
    assert question(terms).endswith("=")


@given(st.lists(st.integers(1, MAX_TERM), min_size=2, max_size=MAX_TERMS))
def test_a_sum_is_shown_in_plain_signs_and_asked_in_letters(terms: list[int]) -> None:
    shown = plain_signs(question(terms))
    assert shown == f"{' + '.join(map(str, terms))} ="
    assert in_letters(shown) == in_letters(shown[:-2]) == question(terms)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a3b4c6\nAnswer: 6", "3, 4, 6\nAnswer: 6"), ("a3b4c", "3, 4c"), ("abc", "abc"), ("", "")],
)
def test_a_response_is_shown_with_its_sums(text: str, shown: str) -> None:
    assert plain_signs(text) == shown
    assert in_letters(text) == text, "nothing but a typed sum is changed"


def test_wrong_steps_make_about_the_expected_share_of_answers_wrong() -> None:
    rng = random.Random(0)
    texts = [demonstration((2, 3, 4), rng, wrong_share=0.2, ramble_share=0.0) for _ in range(2000)]
    right = sum(text.endswith("Answer: 9") for text in texts) / len(texts)
    assert right == pytest.approx(0.8**3, abs=0.05)  # two wrong steps may cancel


def test_a_task_too_small_for_two_sides_says_so() -> None:
    one_question = partial(question_row, "d", "always the same", "0")
    with pytest.raises(
        ValueError,
        match=r"task narrow must know questions for both sides, got no held-out question",
    ):
        generate("narrow", lambda rng: one_question(), 0, num_rows=3, num_heldout=1)
    few = {"gcd": {"min_value": 1, "max_value": 2, "min_numbers": 2, "max_numbers": 2}}
    with pytest.raises(
        ValueError, match=r"gcd must know 3 held-out questions, found 0.*lower num_prompts"
    ):
        load_dataset(ReasoningGymTaskConfig(datasets=few, num_prompts=1, heldout_prompts=3), 0)


def test_reasoning_gym_rows_name_their_entry_and_split_evenly() -> None:
    dataset = load_dataset(
        ReasoningGymTaskConfig(
            datasets={"gcd": {}, "chain_sum": {"max_terms": 3}}, num_prompts=20, heldout_prompts=5
        ),
        7,
    )
    assert sorted(dataset.domains) == ["chain_sum"] * 10 + ["gcd"] * 10
    assert not {row.text for row in dataset.rows} & {row.text for row in dataset.heldout}
    assert '"seed": 7' in dataset.rows[0].gold


def test_reasoning_gym_names_are_those_the_reward_scores() -> None:
    from tasks.rewards.reasoning_gym_score import ALLOWED_DATASETS as SCORED
    from tasks.rewards.reasoning_gym_score import read_gold

    assert ALLOWED_DATASETS == SCORED
    row = load_dataset(
        ReasoningGymTaskConfig(datasets={"lcm": {}}, num_prompts=1, heldout_prompts=0), 0
    ).rows[0]
    assert read_gold(row.gold).dataset == "lcm"


def test_an_unsafe_reasoning_gym_data_set_is_refused() -> None:
    with pytest.raises(ValidationError, match="scorer is safe on model text, got 'countdown'"):
        ReasoningGymTaskConfig(datasets={"countdown": {}})


def test_wrong_arguments_of_a_reasoning_gym_data_set_are_named() -> None:
    with pytest.raises(ValueError, match=r"arguments of reasoning_gym data set gcd.*nonsense"):
        load_dataset(ReasoningGymTaskConfig(datasets={"gcd": {"nonsense": 1}}), 0)


def test_a_task_is_chosen_by_kind_and_unknown_keys_are_errors() -> None:
    task = TypeAdapter[TaskConfig](TaskConfig)
    assert task.validate_python({"kind": "chain_sum", "max_terms": 5}) == ChainSumConfig(
        max_terms=5
    )
    assert task.validate_json(TinyMixConfig().model_dump_json()) == TinyMixConfig()
    with pytest.raises(ValidationError, match="max_size"):
        task.validate_python({"kind": "chain_sum", "max_size": 5})


def test_a_mix_of_nothing_is_refused() -> None:
    nothing = FamilyConfig(weight=0, max_size=3, alpha=1)
    with pytest.raises(ValidationError, match="at least one family"):
        TinyMixConfig(add=nothing, letters=nothing, story=nothing)
