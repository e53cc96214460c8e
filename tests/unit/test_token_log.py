"""New tokens on disk: what is written report by report is read back as far as it was told, also
where a writer was killed."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.attempt_log import TokenLog, read_tokens
from artifacts.digests import with_digest
from artifacts.new_tokens import NewTokens, PartialResponse, join_spans, split_spans
from artifacts.records import VersionSpan, pack, unpack
from tests.unit.record_factories import make_request

FOLDERS = (f"log-{number}" for number in itertools.count())


def everything(attempt: int) -> bool:
    return True


def told(num_before: int, num_new: int, index: int = 0, version: int = 3) -> NewTokens:
    places = range(num_before, num_before + num_new)
    return NewTokens(
        prompt_id="0/7",
        index=index,
        attempt=7001,
        engine="engine-0",
        num_before=num_before,
        token_ids=tuple(100 * index + place for place in places),
        logprobs=tuple(-place / 3 for place in places),
        versions=(VersionSpan(version=version, num_tokens=num_new),),
        submitted_s=1.5,
        first_token_s=2.5,
        reported_s=10.0 + num_before,
    )


def in_reports(sizes: list[int], index: int = 0) -> list[NewTokens]:
    """A response, told in pieces of these sizes; every report is of another version."""
    begins = itertools.accumulate(sizes, initial=0)
    return [
        told(begin, size, index, version=begin) for begin, size in zip(begins, sizes, strict=False)
    ]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    others=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    cut=st.floats(0, 1),
)
def test_what_was_told_before_a_kill_is_read_back(
    sizes: list[int], others: list[int], cut: float, tmp_path: Path
) -> None:
    """Whatever byte the last write came to."""
    folder = tmp_path / next(FOLDERS)
    log = TokenLog(folder)
    one, other = in_reports(sizes), in_reports(others, index=1)
    lines = [new for pair in itertools.zip_longest(one, other) for new in pair if new]
    for new in lines:
        log.write([new])
    log.close()
    (file,) = folder.rglob("*.jsonl")
    data = file.read_bytes()[: round(cut * file.stat().st_size)]
    file.write_bytes(data)
    whole = lines[: data.count(b"\n")]
    found = read_tokens(folder, everything)
    assert {*found} == {new.response_id for new in whole}
    for name, generated in found.items():
        known = [new for new in whole if new.response_id == name]
        assert generated.token_ids == sum((new.token_ids for new in known), ())
        assert generated.logprobs == sum((new.logprobs for new in known), ())
        assert generated.versions == sum((new.versions for new in known), ())
        assert generated.finish_reason == "aborted"


def test_the_furthest_of_several_writers_counts_and_attempts_are_apart(tmp_path: Path) -> None:
    first, second = TokenLog(tmp_path), TokenLog(tmp_path)
    first.write(in_reports([4, 4]))
    second.write([told(0, 5), replace(told(0, 9), attempt=7002)])
    assert len(read_tokens(tmp_path, lambda attempt: attempt == 7001)["0/7:0"].token_ids) == 8
    assert len(read_tokens(tmp_path, everything)["0/7:0"].token_ids) == 9


def test_a_response_begins_again_in_a_file_and_gaps_are_left_out(tmp_path: Path) -> None:
    TokenLog(tmp_path).write([told(0, 4), told(6, 4), told(0, 2), told(2, 1), told(4, 4)])
    (found,) = read_tokens(tmp_path, everything).values()
    assert found.token_ids == (0, 1, 2)


def test_new_tokens_follow_on_what_their_request_kept() -> None:
    before = in_reports([3])[0]
    request = make_request(
        kept_tokens=before.token_ids, kept_logprobs=before.logprobs, kept_versions=before.versions
    )
    assert told(2, 4).from_start(request) is None
    whole = told(3, 4).from_start(request)
    assert whole is not None
    assert (whole.num_before, whole.token_ids) == (0, tuple(range(7)))
    reported = PartialResponse(whole)
    assert not reported.extend(told(6, 2))
    assert reported.extend(told(7, 2))
    generated = reported.generated()
    assert generated.token_ids == tuple(range(9))
    assert [span.num_tokens for span in generated.versions] == [3, 6]
    assert generated.finished_s == told(7, 2).reported_s


@given(
    counts=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), max_size=6),
    cut=st.integers(0, 40),
)
def test_spans_part_and_join_to_what_they_were(counts: list[tuple[int, int]], cut: int) -> None:
    spans = join_spans(
        (), (VersionSpan(version=number, num_tokens=size) for number, size in counts)
    )
    before, after = split_spans(spans, cut)
    assert join_spans(before, after) == spans
    total = sum(size for _, size in counts)
    assert sum(span.num_tokens for span in before) == min(cut, total)


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=4), texts=st.text(max_size=5))
def test_records_that_are_packed_quickly_come_back_equal(counts: list[int], texts: str) -> None:
    reports = in_reports(counts)
    whole = replace(PartialResponse(reports[0]).generated(), text=texts)
    request = make_request(kept_tokens=whole.token_ids, kept_versions=whole.versions)
    assert unpack(pack((reports, whole, request))) == (reports, whole, request)


def test_lines_of_earlier_versions_have_numbers_in_digits(tmp_path: Path) -> None:
    TokenLog(tmp_path).write([told(0, 3)])
    (file,) = tmp_path.rglob("*.jsonl")
    new = json.loads(file.read_bytes())
    old = {**new, "token_ids": [0, 1, 2], "logprobs": [0.0, -1 / 3, -2 / 3]}
    line = {name: value for name, value in old.items() if name != "blake3"}
    file.write_bytes(with_digest("7001", json.dumps(line).encode()) + b"\n")
    (found,) = read_tokens(tmp_path, everything).values()
    assert (found.token_ids, found.logprobs) == (told(0, 3).token_ids, told(0, 3).logprobs)
