"""Tables and journal: an exact round trip, readable by anyone, complete after an interruption."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts import layout
from artifacts.episodes import Ending, Episode, Turn
from artifacts.journal import Journal
from artifacts.records import (
    CaseResult,
    CaseVerdict,
    Fate,
    Generated,
    Group,
    Outcome,
    Prompt,
    Response,
    Score,
    ShownPicture,
    Span,
    VersionSpan,
)
from artifacts.store import Store
from artifacts.tables import (
    ResponseRow,
    groups_from_parquet,
    groups_to_parquet,
    responses_from_parquet,
    responses_to_parquet,
)

NUMBERS = st.floats(allow_nan=False)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
IDS = st.integers(0, 2**31 - 1)


def a_prompt(name: str = "0/1") -> Prompt:
    return Prompt(prompt_id=name, domain="add", token_ids=(1, 2, 3), gold="3", text="1 + 2?")


def a_row(
    index: int = 0,
    *,
    prompt: str = "0/1",
    scored: bool = False,
    tokens: int = 4,
    step: int = 7,
    fate: Fate | None = None,
) -> ResponseRow:
    generated = Generated(
        prompt_id=prompt,
        index=index,
        token_ids=tuple(range(tokens)),
        logprobs=tuple(-0.1 * token for token in range(tokens)),
        versions=(VersionSpan(version=6, num_tokens=tokens),),
        finish_reason="stop",
        text="3",
        engine="engine-0",
        submitted_s=1.7e9 + 0.1,
        first_token_s=1.7e9 + 0.2,
        finished_s=1.7e9 + 0.3,
    )
    score = Score(
        prompt_id=prompt,
        index=index,
        reward=1.0,
        outcome=Outcome.OK,
        detail="",
        scorer="math",
        started_s=1.7e9 + 0.4,
        finished_s=1.7e9 + 0.5,
    )
    return ResponseRow(
        step=step,
        kind="short",
        prompt=a_prompt(prompt),
        response=Response(generated=generated, score=score if scored else None),
        fate=fate,
    )


def test_the_pictures_of_a_prompt_come_back_and_make_it_another_question() -> None:
    pictures = tuple(
        ShownPicture(content=content, begin=2, rows=3, columns=4) for content in ("ab", "cd")
    )
    row = replace(a_row(scored=True), prompt=replace(a_prompt(), pictures=pictures))
    group = Group(prompt=row.prompt, responses=(row.response,))
    assert responses_from_parquet(responses_to_parquet(7, [row])) == [row]
    assert groups_from_parquet(groups_to_parquet(7, [group]), [row]) == [group]
    assert row.prompt.identity != a_prompt().identity == a_prompt().text


def test_test_cases_come_back_and_files_without_them_are_read() -> None:
    row = a_row(scored=True)
    assert row.response.score is not None
    cases = tuple(
        CaseResult(key=f"1f/{n}", verdict=verdict, wall_s=0.1 * n, limit_s=2.0)
        for n, verdict in enumerate(CaseVerdict)
    )
    executed = replace(
        row, response=replace(row.response, score=replace(row.response.score, cases=cases))
    )
    data = responses_to_parquet(7, [executed, row])
    assert responses_from_parquet(data) == [executed, row]
    table, sink = pq.ParquetFile(io.BytesIO(data)).read(), io.BytesIO()
    earlier = table.drop_columns(["cases", "attempt", "episode_seed", "episode"])
    pq.write_table(earlier, sink)
    assert responses_from_parquet(sink.getvalue()) == [row, row]


TURNS = st.builds(
    Turn,
    num_given=IDS,
    num_sampled=IDS,
    observation=TEXT,
    action=TEXT,
    reward=st.none() | NUMBERS,
    asked_s=NUMBERS,
    acted_s=NUMBERS,
    answered_s=st.none() | NUMBERS,
    info=st.dictionaries(TEXT, TEXT, max_size=2).map(lambda info: tuple(info.items())),
)
EPISODES = st.builds(
    Episode,
    turns=st.lists(TURNS, max_size=3).map(tuple),
    ending=st.none() | st.sampled_from(Ending),
    detail=TEXT,
    last_observation=TEXT,
    reset_s=NUMBERS,
    num_resumed=IDS,
    num_replayed=IDS,
    num_restarted=IDS,
    num_forgotten=IDS,
)


@st.composite
def rows(draw: st.DrawFn) -> ResponseRow:
    tokens = draw(st.lists(IDS, max_size=5))
    generated = Generated(
        prompt_id=draw(TEXT),
        index=draw(IDS),
        token_ids=tuple(tokens),
        logprobs=tuple(draw(NUMBERS) for _ in tokens),
        versions=tuple(VersionSpan(version=draw(IDS), num_tokens=1) for _ in tokens),
        finish_reason=draw(st.sampled_from(("stop", "length", "aborted"))),
        text=draw(TEXT),
        engine=draw(TEXT),
        submitted_s=draw(NUMBERS),
        first_token_s=draw(NUMBERS),
        finished_s=draw(NUMBERS),
        attempt=draw(st.integers(0, 2**40)),
        episode=draw(st.none() | EPISODES),
    )
    score = Score(
        prompt_id=generated.prompt_id,
        index=generated.index,
        reward=draw(st.none() | NUMBERS),
        outcome=draw(st.sampled_from(Outcome)),
        detail=draw(TEXT),
        scorer=draw(TEXT),
        started_s=draw(NUMBERS),
        finished_s=draw(NUMBERS),
    )
    prompt_tokens = tuple(draw(st.lists(IDS, max_size=3)))
    prompt = Prompt(
        prompt_id=generated.prompt_id,
        domain=draw(TEXT),
        token_ids=prompt_tokens,
        gold=draw(TEXT),
        text=draw(TEXT),
        episode_seed=draw(st.none() | st.integers(0, 2**63 - 1)),
    )
    return ResponseRow(
        step=7,
        kind=draw(st.sampled_from(("sync", "short", "long", "drain"))),
        prompt=prompt,
        response=Response(generated=generated, score=draw(st.none() | st.just(score))),
        fate=draw(st.none() | st.sampled_from(Fate)),
        advantage=draw(st.none() | NUMBERS),
    )


@settings(max_examples=60)
@given(st.lists(rows(), max_size=4))
def test_records_come_back_equal_to_the_last_bit(written: list[ResponseRow]) -> None:
    read = responses_from_parquet(responses_to_parquet(7, written))
    assert read == written
    assert repr(read) == repr(written)  # tells 0.0 from -0.0


def test_logprobs_that_were_float32_cost_four_bytes_or_less_a_token() -> None:
    numbers = pa.array([index**0.5 % 3 for index in range(1, 20_001)], pa.float32()).to_pylist()
    row = a_row(tokens=0)
    generated = Generated(
        **{
            name: getattr(row.response.generated, name)
            for name in ("prompt_id", "index", "finish_reason", "text", "engine")
        },
        token_ids=(0,) * len(numbers),
        logprobs=tuple(numbers),
        versions=(),
        submitted_s=0.0,
        first_token_s=0.0,
        finished_s=0.0,
    )
    data = responses_to_parquet(
        7,
        [
            ResponseRow(
                step=7,
                kind="sync",
                prompt=row.prompt,
                response=Response(generated=generated, score=None),
            )
        ],
    )
    columns = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    sizes = {
        columns.column(i).path_in_schema: columns.column(i).total_compressed_size
        for i in range(columns.num_columns)
    }
    assert sizes["logprobs.list.element"] <= 4 * len(numbers)


def test_pyarrow_duckdb_and_pandas_read_the_table_by_path(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    for step in (7, 12):
        Journal(store).finalise(
            step, [a_row(0, scored=True, step=step), a_row(1, scored=True, step=step)], [], []
        )
    root = str(tmp_path / "responses")
    arrow = ds.dataset(root, partitioning="hive").to_table(filter=ds.field("step") == 12)
    assert arrow.num_rows == 2
    assert pq.read_table(root).num_rows == 4
    frame = pd.read_parquet(root, filters=[("step", "=", 7)])
    assert frame["reward"].tolist() == [1.0, 1.0]
    counts = duckdb.sql(
        f"select step, count(*), sum(len(token_ids)) from '{root}/*/*.parquet' group by step order"
        " by step"
    )
    assert [tuple(map(int, row)) for row in counts.fetchall()] == [(7, 2, 8), (12, 2, 8)]


def an_episode_row() -> ResponseRow:
    """Nine given tokens and a sampled one, then two given ones; with a picture."""
    common = {"observation": "?", "asked_s": 1.0, "acted_s": 2.0}
    turns = (
        Turn(
            num_given=9,
            num_sampled=1,
            action="a",
            reward=0.5,
            answered_s=3.0,
            pictures=(ShownPicture(content="ab", begin=2, rows=1, columns=3),),
            **common,
        ),
        Turn(num_given=2, num_sampled=0, action="", reward=None, answered_s=None, **common),
    )
    row = a_row(scored=True)
    episode = Episode(turns=turns, ending=Ending.TURNS)
    response = replace(row.response, generated=replace(row.response.generated, episode=episode))
    return replace(row, prompt=replace(row.prompt, episode_seed=5), response=response)


def test_turns_are_read_by_path_and_groups_count_sampled_tokens(tmp_path: Path) -> None:
    store, row, single = Store.open(str(tmp_path)), an_episode_row(), a_row(1, scored=True)
    group = Group(prompt=row.prompt, responses=(row.response, single.response))
    Journal(store).finalise(7, [row, replace(single, prompt=row.prompt)], [group], [])
    assert Journal(store).read_groups(7) == [group]
    turns = duckdb.sql(
        "select episode_seed, episode.ending, unnest(episode.turns, recursive := true)"
        f" from '{tmp_path}/responses/*/*.parquet' where episode is not null"
    )
    told = [dict(zip(turns.columns, turn, strict=True)) for turn in turns.fetchall()]
    assert [(turn["num_given"], turn["num_sampled"], turn["reward"]) for turn in told] == [
        (9, 1, 0.5),
        (2, 0, None),
    ]
    assert {(turn["episode_seed"], turn["ending"]) for turn in told} == {(5, "turns")}
    read = pq.read_table(tmp_path / "responses")["episode"].to_pylist()
    assert [None if cell is None else len(cell["turns"]) for cell in read] == [2, None]
    assert pq.read_table(tmp_path / "groups")["num_tokens"].to_pylist() == [1 + 4]


def test_a_file_of_another_version_or_table_is_refused() -> None:
    data = responses_to_parquet(7, [a_row()])
    table = pq.ParquetFile(io.BytesIO(data)).read()
    sink = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata({**table.schema.metadata, b"rollflow.schema_version": b"99"}),
        sink,
    )
    with pytest.raises(ValueError, match=r"schema version 1, got 'responses' version 99"):
        responses_from_parquet(sink.getvalue())


def test_the_journal_keeps_each_response_once_and_prefers_scores(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    journal = Journal(store)
    journal.append(7, [a_row(0), a_row(1)])
    journal.append(7, [a_row(1, scored=True), a_row(2, scored=True)])
    journal.append(7, [a_row(2)])
    assert journal.append(7, []) is None
    assert Journal(store).read(7) == [a_row(0), a_row(1, scored=True), a_row(2, scored=True)]
    assert journal.read(8) == []


def test_a_restarted_writer_goes_on_after_the_last_part(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    first, second = Journal(store), Journal(store)
    names = [first.append(7, [a_row(0)]), second.append(7, [a_row(1)]), first.append(7, [a_row(2)])]
    assert names == [layout.part_file(layout.JOURNAL, 7, part) for part in (0, 1, 2)]
    assert len(Journal(store).read(7)) == 3


def test_finalising_replaces_parts_by_three_tables_and_can_be_repeated(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    journal = Journal(store)
    kept = [a_row(0, scored=True, fate=Fate.TRAINED), a_row(1, scored=True, fate=Fate.DISCARDED)]
    group = Group(prompt=a_prompt(), responses=(kept[1].response, kept[0].response))
    span = Span(device="cpu:0", actor="engine-0", kind="rollout", start_s=1.5, end_s=2.5)
    journal.append(7, [a_row(0), a_row(1)])
    for _ in range(2):
        journal.finalise(7, kept, [group], [span])
    assert journal.read(7) == kept
    assert journal.read_groups(7) == [group]
    assert journal.read_spans(7) == [span]
    journal.drop_parts(7)
    assert store.list(layout.JOURNAL) == []
    assert journal.read(7) == kept


def test_killed_while_finalising_loses_nothing(tmp_path: Path) -> None:
    """The response table is written before the parts go: whichever is there, the step reads the
    same."""
    store = Store.open(str(tmp_path))
    Journal(store).append(7, [a_row(0)])
    store.write(
        layout.table_file("responses", 7), responses_to_parquet(7, [a_row(0, fate=Fate.TRAINED)])
    )
    assert Journal(store).read(7) == [a_row(0, fate=Fate.TRAINED)]
