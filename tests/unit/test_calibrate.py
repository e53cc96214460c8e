"""Calibration: which replicas are measured, how a batch is timed, what a failed measurement says,
what is written."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from artifacts.records import Generated, Request
from flows.commands import calibrate
from flows.commands.calibrate import (
    measurements,
    measuring_orders,
    parser,
    prepare_output,
    write_profile,
)
from flows.config.run_config import RunConfig
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.engines.vllm.measuring import MeasuringOrder, measure, random_requests
from tasks.scheduling.layout_planner import ThroughputPoint, ThroughputProfile


class CountingCore:
    """A core whose first step prefills everything; every step gives each response a token."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.prefilling = False
        self.batches: list[list[Request]] = []
        self.num_steps = 0

    @property
    def busy(self) -> bool:
        return bool(self.left)

    def add(self, requests: Sequence[Request]) -> None:
        self.batches.append(list(requests))
        self.left = {request.response_id: request.max_new_tokens for request in requests}
        self.prefilling = True

    def step(self) -> list[Generated]:
        self.num_steps += 1
        self.prefilling = False
        self.left = {name: tokens - 1 for name, tokens in self.left.items() if tokens > 1}
        return []

    def close(self) -> None:
        self.left.clear()


def order(**changes: object) -> MeasuringOrder:
    fields: dict[str, object] = {
        "model_path": "nowhere", "engine": VllmEngineConfig(tensor_parallel_size=2),
        "cores": (0, 1), "gpus": (), "batches": (1, 4),
        "lengths": (16,), "new_tokens": 5, "repeats": 3,
    }  # fmt: skip
    return MeasuringOrder(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """As much of a model as orders need: four heads, which two devices can share."""
    (tmp_path / "config.json").write_text(
        json.dumps({"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64})
    )
    return tmp_path


def orders_of(model: Path, *arguments: str, **changes: object) -> list[MeasuringOrder]:
    config = RunConfig.model_validate({"preset": "tiny", **changes})
    return list(measuring_orders(config, str(model), parser().parse_args([str(model), *arguments])))


def test_an_order_comes_back_from_json() -> None:
    assert MeasuringOrder.model_validate_json(order().model_dump_json()) == order()


def test_every_size_that_cluster_and_model_allow_is_measured_on_a_replicas_cores(
    model: Path,
) -> None:
    made = orders_of(model, "--batches", "4", "1", "200")
    assert [one.engine.tensor_parallel_size for one in made] == [1, 2]
    assert [one.cores for one in made] == [(0,), (0, 1)]
    assert made[0].batches == (1, 4, 200)
    assert made[0].engine.max_num_seqs == 200, "the whole batch decodes together"
    assert made[0].lengths == (32, 128), "an eighth and a half of the engine's context"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lengths", "250"), r"must lie within engine\.max_model_len \(256\), got \[250\]"),
        (("--lengths", "0"), r"must lie within"),
        (("--sizes", "4"), r"must be among 1, 2 .* got 4; drop it"),
        (("--batches", "0"), r"--batches and --repeats must be >= 1"),
        (("--new-tokens", "1"), r"--new-tokens >= 2"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    model: Path, arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        orders_of(model, *arguments)


def test_every_repeat_computes_new_prompts_and_decodes_them_to_the_same_length() -> None:
    core = CountingCore()
    point = measure(core, order(), batch=4, length=16, vocabulary=64)
    assert (point.size, point.batch, point.length) == (2, 4, 16)
    assert min(point.prefill_tokens_per_s, point.decode_tokens_per_s) > 0
    assert core.num_steps == 3 * 5
    prompts = [request.prompt_tokens for batch in core.batches for request in batch]
    assert len(set(prompts)) == 12, "a prefix that the cache knows would not be computed"


def test_prompts_stay_within_the_vocabulary() -> None:
    requests = random_requests(random.Random(0), new_tokens=3, batch=5, length=50, vocabulary=7)
    assert {token for request in requests for token in request.prompt_tokens} == set(range(7))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "--output must be a file, got the folder"),
        ("/config.json/profile.json", "File exists"),
        ("/profile.png", "--output must not end in .png"),
    ],
)
def test_where_no_profile_can_be_is_said_before_anything_is_measured(
    model: Path,
    output: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(calibrate, "measure_all", None)
    monkeypatch.setattr(calibrate, "check_model", Path)
    words = [str(model), "--preset", "tiny", "--output", f"{model}{output}"]
    assert calibrate.main(words) == 2
    assert said in capsys.readouterr().err


async def test_a_measuring_process_that_fails_is_quoted() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)exit status 1: .*nowhere lacks config\.json"):
        _ = [message async for message in measurements(order(), silence_s=120)]


def test_the_profile_lies_beside_its_picture_and_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tuple(
        ThroughputPoint(
            size=size,
            batch=batch,
            length=32,
            prefill_tokens_per_s=900.0 * size,
            decode_tokens_per_s=100.0 * batch,
        )
        for size in (1, 2)
        for batch in (1, 8)
    )
    profile = ThroughputProfile(
        model="tiny", device="1 CPU core", kv_tokens={1: 5000, 2: 10000}, points=points
    )
    write_profile(profile, prepare_output(tmp_path / "made" / "profile.json"))
    assert ThroughputProfile.from_json((tmp_path / "made" / "profile.json").read_text()) == profile
    assert (tmp_path / "made" / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert "10000" in capsys.readouterr().out
