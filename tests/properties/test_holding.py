"""Whatever is held and whatever happens on it: the uses of a class sum to what was held of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.records import Span
from artifacts.reports.device_cost import Held, Window, held_seconds, used_seconds

DEVICES = ("cpu:0", "cpu:1", "elastic-worker-0")
KINDS = ("rollout", "train", "update", "reward", "evaluate", "gate", "publish", "start")
moments = st.floats(-20, 20, allow_nan=False)
windows = st.builds(
    lambda start, s: Window(start_s=start, end_s=start + s), moments, st.floats(0, 20)
)
spans = st.builds(
    lambda device, kind, start, end: Span(
        device=device, actor=device, kind=kind, start_s=start, end_s=end
    ),
    st.sampled_from(DEVICES),
    st.sampled_from(KINDS),
    moments,
    moments,
)
holdings = st.builds(
    lambda device, name, start, end: Held(
        device=device, price_class=name, start_s=start, end_s=end
    ),
    st.sampled_from(DEVICES),
    st.sampled_from(("reserved", "spot")),
    moments,
    moments,
)


@given(st.lists(holdings, max_size=6), st.lists(spans, max_size=15), windows)
def test_uses_sum_to_what_was_held(held: list[Held], worked: list[Span], window: Window) -> None:
    used = used_seconds(held, worked, window)
    seconds = held_seconds(held, window)
    assert used.keys() == seconds.keys()
    for name, uses in used.items():
        assert sum(uses.values()) == pytest.approx(seconds[name], abs=1e-6)
        assert min(uses.values()) >= -1e-6


@given(st.lists(holdings, max_size=6), windows)
def test_no_device_is_paid_for_outside_the_window(held: list[Held], window: Window) -> None:
    most = len(held) * window.duration_s
    assert sum(held_seconds(held, window).values()) <= most + 1e-6


@given(st.lists(holdings, min_size=1, max_size=6), st.lists(spans, max_size=15), windows, moments)
def test_two_windows_cost_what_one_does(
    held: list[Held], worked: list[Span], window: Window, cut: float
) -> None:
    cut_s = min(max(cut, window.start_s), window.end_s)
    parts = [Window(start_s=window.start_s, end_s=cut_s), Window(start_s=cut_s, end_s=window.end_s)]
    whole = used_seconds(held, worked, window)
    for name, uses in whole.items():
        for use, seconds in uses.items():
            halves = sum(used_seconds(held, worked, part)[name][use] for part in parts)
            assert halves == pytest.approx(seconds, abs=1e-6)
