"""Simulated lengths: they have the published marginals, are alike within a prompt, grow with the
steps and are the same whenever they are asked for."""

from __future__ import annotations

import math
import time

import numpy as np
import numpy.typing as npt
import pytest

from tasks.simulation.length_law import LengthLaw
from tasks.simulation.workloads import DrawnLengths, Workload, workload

PUBLISHED = ("math", "code", "judge", "mixed")
CAPS = (8192, 16384, 32768)


def drawn(
    work: Workload, num_prompts: int, num_responses: int = 8, step: int = 1
) -> npt.NDArray[np.float64]:
    """Lengths by prompt and index."""
    writer = work.writer(step, seed=0)
    lengths = [
        [writer.tokens(f"0/{row}", index) for index in range(num_responses)]
        for row in range(num_prompts)
    ]
    return np.array(lengths, dtype=float)


@pytest.mark.parametrize("name", PUBLISHED)
def test_ten_thousand_lengths_have_the_published_marginals(name: str) -> None:
    lengths = np.minimum(drawn(workload(name, 16384), 1250), 16384)
    assert lengths.size == 10_000
    assert 755 <= np.percentile(lengths, 75) <= 1100
    assert 25 <= lengths.max() / np.median(lengths) <= 32


@pytest.mark.parametrize("name", PUBLISHED[:3])
def test_the_longest_of_a_step_is_as_the_law_has_it(name: str) -> None:
    (part,) = workload(name, 1).parts
    law = LengthLaw(
        median_tokens=part.lengths.median_tokens,
        p75_tokens=part.lengths.p75_tokens,
        longest_ratio=part.lengths.longest_ratio,
        endless_share=0.0,
    )
    scores = np.random.default_rng(0).standard_normal((400, 1024)).max(axis=1)
    longest = np.median([law.tokens(score) for score in scores]) / law.median_tokens
    assert longest == pytest.approx(law.longest_ratio, rel=0.1)
    # one log-normal through the median and P75 ends far below that
    assert math.exp(law.body_sigma * float(np.median(scores))) < 18


@pytest.mark.parametrize("cap", CAPS)
def test_a_bound_cuts_lengths_and_changes_no_other(cap: int) -> None:
    uncut = drawn(workload("mixed", 10**9), 400)
    cut = drawn(workload("mixed", cap), 400)
    assert np.array_equal(cut, np.minimum(uncut, cap + 1))
    assert cut.max() == cap + 1


def test_responses_to_a_prompt_are_alike_and_those_of_two_prompts_are_not() -> None:
    logs = np.log(drawn(workload("no_tail", 16384), 3000, num_responses=2))
    # within a domain: math's rows
    domains = np.array(workload("no_tail", 1).domains(3000))
    logs = logs[domains == "math"]
    assert np.corrcoef(logs[:, 0], logs[:, 1])[0, 1] == pytest.approx(0.2, abs=0.05)
    assert abs(np.corrcoef(logs[:-1, 0], logs[1:, 1])[0, 1]) < 0.1


def test_a_question_is_as_hard_in_the_next_epoch_and_its_responses_are_others() -> None:
    writer = workload("math", 16384).writer(1, seed=0)
    first = np.log([writer.tokens(f"0/{row}", 0) for row in range(2000)])
    second = np.log([writer.tokens(f"1/{row}", 0) for row in range(2000)])
    assert not np.array_equal(first, second)
    assert np.corrcoef(first, second)[0, 1] > 0.1


def test_lengths_are_functions_of_names_and_seeds() -> None:
    work = workload("mixed", 16384)
    writer = work.writer(1, seed=3)
    there = [writer.tokens(f"0/{row}", 1, noise=5) for row in range(50)]
    again = work.writer(1, seed=3)
    assert there == [again.tokens(f"0/{row}", 1, noise=5) for row in reversed(range(50))][::-1]
    assert there != [writer.tokens(f"0/{row}", 1, noise=6) for row in range(50)]
    assert there != [work.writer(1, seed=4).tokens(f"0/{row}", 1, noise=5) for row in range(50)]


def test_without_a_tail_the_longest_is_no_twice_the_median() -> None:
    lengths = drawn(workload("no_tail", 16384), 128)
    assert lengths.max() / np.median(lengths) < 2.2


def test_rows_fall_to_domains_by_their_shares_and_evenly() -> None:
    work = workload("mixed", 16384)
    domains = work.domains(128)
    counts = [domains.count(name) for name in ("math", "code", "judge")]
    assert sum(counts) == 128
    assert all(abs(count - 128 / 3) < 2 for count in counts)
    assert all(work.part_of(f"7/{row}").name == domains[row] for row in range(128))


def test_prompts_have_lengths_within_their_bound() -> None:
    lengths = [workload("math", 16384).prompt_tokens(f"0/{row}") for row in range(1000)]
    assert np.median(lengths) == pytest.approx(200, rel=0.1)
    assert max(lengths) <= 2048


def test_shares_that_do_not_sum_to_one_and_unknown_names_are_refused() -> None:
    (part,) = workload("math", 1).parts
    with pytest.raises(ValueError, match="must sum to 1"):
        Workload(name="twice", longest_tokens=1, parts=(part, part))
    with pytest.raises(ValueError, match="workload must be one of math"):
        workload("chess", 1)


def test_the_lengths_of_forty_steps_take_well_under_a_second() -> None:
    writer = workload("mixed", 16384).writer(1, seed=0)
    assert isinstance(writer, DrawnLengths)
    began_s = time.process_time()
    for row in range(160 * 40 // 8):
        for index in range(10):
            writer.tokens(f"0/{row}", index)
    assert 8 * (time.process_time() - began_s) < 1.5
