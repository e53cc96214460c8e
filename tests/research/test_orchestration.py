"""The measurement of a step's orchestration: gaps between work, and calls within them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from artifacts.records import Span
from research.benchmarks.orchestration import CALLS, calls_by_step, divided


def span(kind: str, start_s: float, end_s: float) -> Span:
    return Span(device="cpu:0", actor="one", kind=kind, start_s=start_s, end_s=end_s)


def test_stages_and_gaps_add_up_to_the_time_from_step_to_step() -> None:
    spans = [
        span("rollout", 10.3, 12.0),
        span("rollout", 12.1, 13.0),
        span("train", 13.2, 14.0),
        span("update", 14.1, 14.2),
        span("publish", 14.25, 14.5),
    ]
    parts = divided(spans, 10.0, 14.6, 15.0)
    gaps = {name: took_s for name, took_s in parts.items() if name.startswith("gap: ")}
    assert list(gaps.values()) == pytest.approx([0.3, 0.1, 0.2, 0.15, 0.1, 0.4])
    assert parts["orchestration, both"] == pytest.approx(sum(gaps.values()))
    stages = sum(took_s for name, took_s in parts.items() if name.startswith("stage: "))
    assert stages + sum(gaps.values()) == pytest.approx(parts["from step to step"]) == 5.0


def test_calls_count_in_the_step_in_which_they_begin(tmp_path: Path) -> None:
    label, other = [*CALLS][:2]
    lines = [(label, 9.0, 8.0), (label, 10.5, 0.2), (label, 10.7, 0.4), (other, 20.1, 0.1)]
    lines += [(label, 20.25, 0.3), (label, 31.0, 7.0)]
    file = tmp_path / "calls.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    table = calls_by_step(file, [10.0, 20.0, 30.0])
    assert table[label] == pytest.approx((0.3, 1.5, 0.375))
    assert table[other] == pytest.approx((0.1, 0.5, 0.1))
