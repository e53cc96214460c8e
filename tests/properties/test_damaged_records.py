"""Whatever happens to the bytes of a record that a resume reads, reading it says which file it is,
or gives what was written; it never gives anything else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_factories import make_report, make_step_plan, span
from record_factories import make_generated
from report_factories import make_commit, make_row
from turn_factories import as_episode

from artifacts import layout
from artifacts.attempt_log import TokenLog, TurnLog, read_tokens, read_turns
from artifacts.checkpoint import MARKER, Checkpoints
from artifacts.commit import (
    RunManifest,
    commit_step,
    read_commits,
    read_manifest,
    write_manifest,
)
from artifacts.journal import Journal
from artifacts.judgements import Judgement, JudgementCache, kept_judgements
from artifacts.new_tokens import NewTokens
from artifacts.records import Generated, Group, VersionSpan
from artifacts.status import pulse, read_status
from artifacts.store import Store
from flows.recovery import PartialRound, keep_round, partial_round
from flows.seeding_windows import FILE, read_windows, write_windows
from tasks.learner.collective import read_moments
from tasks.learner.split import Share, read_split, write_split
from tasks.rounds.report import close_round, held_tokens_before, left_by_round, read_round
from tasks.scheduling.queue_state import QueueState

MADE = (make_row("0/1", "one", 1.0), make_row("0/1", "two", 0.0, index=1))
ROWS = tuple(replace(row, step=2) for row in MADE)
GROUP = Group(prompt=ROWS[0].prompt, responses=tuple(row.response for row in ROWS))
FOLDERS = (f"run-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of record: how it comes into the folder of a run, and what a resume reads of it."""

    write: Callable[[Store], object]
    read: Callable[[Store], object]


def a_manifest() -> RunManifest:
    return RunManifest(
        run_id="run",
        created="2026-01-01",
        config={"seed": 3},
        packages={},
        git_sha=None,
        mlflow_run_id=None,
        has_digests=True,
    )


def finalise(store: Store) -> None:
    Journal(store).finalise(2, ROWS, [GROUP], [span("rollout", 0, 1)])


def judge(store: Store) -> None:
    cache = JudgementCache()
    told = Judgement(key="q", p_yes=0.75, prompt_tokens=9, new_tokens=1, detail="")
    cache.add(told)
    cache.save(store, 2)


def live(store: Store) -> None:
    with pulse(store):
        pass


ROUND = make_report((span("rollout", 0, 1),)).rollout
PLAN = PartialRound(before=QueueState(num_drawn=7), plan=make_step_plan(2).round)
KINDS = {
    layout.MANIFEST: Kind(
        write=lambda store: write_manifest(store, a_manifest()), read=read_manifest
    ),
    layout.step_file(layout.STEPS, 1): Kind(
        write=lambda store: commit_step(store, make_commit(1)), read=read_commits
    ),
    layout.step_file(layout.PLANS, 2): Kind(
        write=lambda store: keep_round(store, PLAN),
        read=lambda store: partial_round(store, 2, 9, ()),
    ),
    layout.step_file(layout.ROUNDS, 2): Kind(
        write=lambda store: close_round(store, 2, ROUND),
        read=lambda store: (
            read_round(store, 2), left_by_round(store, 2), held_tokens_before(store, 3, 1)
        ),
    ),
    layout.step_file(layout.SPLITS, 2): Kind(
        write=lambda store: write_split(store, 2, (Share(rank=0, parts=(("0/1", (0, 1)),)),)),
        read=lambda store: read_split(store, 2),
    ),
    layout.step_file(layout.MOMENTS, 2): Kind(
        write=lambda store: store.keep(
            layout.step_file(layout.MOMENTS, 2), b'{"count": 4, "mean": 0.5, "deviation": 0.25}'
        ),
        read=lambda store: read_moments(store, 2),
    ),
    layout.part_file(layout.JOURNAL, 2, 0): Kind(
        write=lambda store: Journal(store).append(2, ROWS),
        read=lambda store: Journal(store).read(2),
    ),
    layout.table_file("responses", 2): Kind(
        write=finalise, read=lambda store: Journal(store).read(2)
    ),
    layout.table_file("groups", 2): Kind(
        write=finalise, read=lambda store: Journal(store).read_groups(2)
    ),
    layout.table_file("spans", 2): Kind(
        write=finalise, read=lambda store: Journal(store).read_spans(2)
    ),
    layout.part_file(layout.JUDGEMENTS, 2, 0): Kind(
        write=judge, read=lambda store: kept_judgements(store, 2)
    ),
    layout.STATUS: Kind(write=live, read=read_status),
}  # fmt: skip


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """What may become of a file: other bytes, other bits, zeros as of a lost sector, a cut, an end
    that is not its own, nothing."""
    place, size = draw(st.floats(0, 1)), draw(st.sampled_from([1, 2, 30, 512]))
    kind = draw(st.sampled_from(["bits", "bits", "bits", "zeros", "cut", "more", "none"]))
    bits = draw(st.lists(st.integers(1, 255), min_size=size, max_size=size))

    def damaged(data: bytes) -> bytes:
        begin = min(int(place * len(data)), len(data) - 1)
        end = min(begin + size, len(data))
        pairs = zip(data[begin:end], bits, strict=False)
        middle = {"bits": bytes(byte ^ bit for byte, bit in pairs), "zeros": bytes(end - begin)}
        if kind in middle:
            return data[:begin] + middle[kind] + data[end:]
        return {"cut": data[:begin], "more": data + data[begin:end], "none": b""}[kind]

    return damaged


def said_or_read(store: Store, name: str) -> object:
    """What a resume reads of a record, or the sentence that refuses it, which names the record."""
    try:
        return KINDS[name].read(store)
    except ValueError as error:
        sentence = str(error)
    assert f"{store.url}/{name}" in sentence
    return sentence


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damages())
def test_a_damaged_record_is_named(
    name: str, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    store = Store.open(str(tmp_path / next(FOLDERS))).requiring_digests()
    KINDS[name].write(store)
    expected, whole = KINDS[name].read(store), store.read(name)
    data = damage(whole)
    store.write(name, data)
    assert isinstance(said_or_read(store, name), str) != (data == whole)
    store.write(name, whole)
    assert KINDS[name].read(store) == expected


@pytest.mark.parametrize("name", KINDS)
def test_where_records_may_lack_a_digest_a_flipped_byte_changes_none(
    name: str, tmp_path: Path
) -> None:
    """One that hits the digest's own key, too, in whatever reads runs of every version."""
    store = Store.open(str(tmp_path))
    KINDS[name].write(store)
    expected, whole = KINDS[name].read(store), store.read(name)
    path = store.local_path(name)
    for place in range(max(0, len(whole) - 900), len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        found = said_or_read(store, name)
        assert isinstance(found, str) or found == expected


def test_a_record_that_has_lost_its_digest_is_damaged_where_the_run_has_digests(
    tmp_path: Path,
) -> None:
    store = Store.open(str(tmp_path))
    for name, kind in KINDS.items():
        kind.write(store)
        expected = kind.read(store)
        store.write(name, store.checked(name))
        if name != layout.MANIFEST:
            assert kind.read(store) == expected, "as of an earlier version"
        with pytest.raises(ValueError, match="it has no digest"):
            kind.read(store.requiring_digests())
        store.delete(name)


def test_a_record_in_the_place_of_another_is_damaged(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path)).requiring_digests()
    close_round(store, 2, ROUND)
    store.write(layout.step_file(layout.ROUNDS, 3), store.read(layout.step_file(layout.ROUNDS, 2)))
    with pytest.raises(ValueError, match=r"rounds/00003.json .* must be whole"):
        read_round(store, 3)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damages())
def test_damaged_seeding_windows_are_found_again(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    store = Store.open(str(tmp_path / next(FOLDERS)))
    write_windows(store, "model", "spot", {2: 8.0})
    store.write(FILE, damage(store.read(FILE)))
    assert read_windows(store, "model", "spot") in ({}, {2: 8.0})


def told(num_before: int) -> NewTokens:
    return NewTokens(
        prompt_id="0/7",
        index=0,
        attempt=7001,
        engine="engine-0",
        num_before=num_before,
        token_ids=(num_before, 8),
        logprobs=(-0.5, -0.25),
        versions=(VersionSpan(version=3, num_tokens=2),),
        submitted_s=1.5,
        first_token_s=2.5,
        reported_s=10.0 + num_before,
    )


def keep_tokens(folder: Path) -> None:
    log = TokenLog(folder)
    for num_before in (0, 2, 4):
        log.write([told(num_before)])
    log.close()


def keep_turns(folder: Path) -> None:
    generated = make_generated(token_ids=(5, 6, 7), attempt=7001)
    log = TurnLog(folder, "engine-0")
    log.write(as_episode(generated, [((1, 2), 2), ((3,), 1)]), 0)
    log.close()


Reader = Callable[[Path, Callable[[int], bool]], dict[str, Generated]]


@pytest.mark.parametrize(("keep", "read"), [(keep_tokens, read_tokens), (keep_turns, read_turns)])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damages())
def test_of_a_damaged_log_the_lines_before_the_damage_count(
    keep: Callable[[Path], None], read: Reader, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    folder = tmp_path / next(FOLDERS)
    keep(folder)
    (file,) = folder.rglob("*.jsonl")
    whole = file.read_bytes()
    known = []
    for num_lines in range(whole.count(b"\n") + 1):
        file.write_bytes(b"".join(whole.splitlines(keepends=True)[:num_lines]))
        known.append(read(folder, lambda attempt: True))
    file.write_bytes(damage(whole))
    assert read(folder, lambda attempt: True) in known


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["shard-0", "critic/shard-0", MARKER]),
    damage=damages(),
    is_local=st.booleans(),
)
def test_a_damaged_checkpoint_is_never_handed_out(
    name: str, damage: Callable[[bytes], bytes], is_local: bool, tmp_path: Path
) -> None:
    root = next(FOLDERS)
    store = Store.open(str(tmp_path / root) if is_local else f"memory://{root}").requiring_digests()
    checkpoints = Checkpoints(store, keep=2)
    with checkpoints.aside(tmp_path) as aside:
        (aside / "critic").mkdir()
        for shard in ("shard-0", "critic/shard-0"):
            (aside / shard).write_bytes(bytes(range(200)) * 5)
        checkpoints.commit(7, aside)
    place = f"{layout.checkpoint_dir(7)}/{name}"
    whole = store.read(place)
    data = damage(whole)
    store.write(place, data)
    if data == whole:
        return
    with (
        pytest.raises(ValueError, match=rf"checkpoints/00007/{name} .*; delete its folder"),
        checkpoints.fetched(7, tmp_path),
    ):
        pytest.fail("handed out")


def test_a_checkpoint_of_an_earlier_version_is_compared_by_its_sizes(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    folder = layout.checkpoint_dir(7)
    store.write(f"{folder}/shard", b"12345")
    store.write(f"{folder}/{MARKER}", json.dumps({"step": 7, "files": {"shard": 5}}).encode())
    with Checkpoints(store, keep=1).fetched(7, tmp_path) as directory:
        assert (directory / "shard").read_bytes() == b"12345"
    store.write(f"{folder}/shard", b"1234")
    with (
        pytest.raises(ValueError, match=r"00007/shard must be as it was saved \(5 bytes"),
        Checkpoints(store, keep=1).fetched(7, tmp_path),
    ):
        pytest.fail("handed out")


def test_moments_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must be in .*moments/00002.json, which"):
        read_moments(Store.open(str(tmp_path)), 2)


def test_responses_that_are_not_there_are_named_not_their_groups(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    finalise(store)
    store.delete(layout.table_file("responses", 2))
    with pytest.raises(ValueError, match=r"must be in .*responses/step=00002/part-0.parquet"):
        Journal(store).read_groups(2)
