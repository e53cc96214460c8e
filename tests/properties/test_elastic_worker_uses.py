"""Whatever happens to elastic workers, in whatever order: the uses of their seconds sum to what was
held."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.records import Span
from artifacts.reports.device_cost import IDLE, LENT_USES, USES, Window, held_seconds, used_seconds
from tasks.elastic.admission import WorkerAdmission
from tasks.elastic.worker_events import (
    Emptied,
    Failed,
    Leaves,
    Loaded,
    Polled,
    Renewed,
    Took,
    WorkerEvent,
)
from tasks.metrics.step_cost import elastic_worker_devices, elastic_worker_spans
from tests.unit.plan_factories import make_report
from tests.unit.worker_factories import RULES, comes

WORKERS = {"a": "tcp://a", "b": "tcp://b"}
NAMES = [f"{worker}.g{number}" for worker in WORKERS for number in (1, 2, 3)]
COMES = "comes"
times = st.floats(0.0, 40.0)
takes = st.builds(Took, pull_s=st.floats(0, 5), load_s=st.floats(0, 5))


def events(at_s: float) -> st.SearchStrategy[WorkerEvent | str]:
    """What may happen at a moment; a word stands for a worker that shows its card."""
    present = st.sets(st.sampled_from(sorted(WORKERS.values())))
    name = st.sampled_from(NAMES)
    worker = st.sampled_from(sorted(WORKERS))
    return st.one_of(
        st.just(COMES),
        present.map(lambda workers: Polled(at_s=at_s, addresses=frozenset(workers))),
        worker.map(lambda of: Renewed(at_s=at_s, dask_name=of)),
        worker.map(lambda of: Leaves(dask_name=of, reason="it leaves")),
        st.builds(Loaded, at_s=st.just(at_s), name=name, version=st.just(1), took=takes),
        name.map(lambda of: Failed(name=of, reason="no engine")),
        name.map(lambda of: Emptied(name=of)),
    )


@st.composite
def memberships(draw: st.DrawFn) -> WorkerAdmission:
    """Two workers after whatever happened."""
    admission = WorkerAdmission(RULES)
    for at_s in sorted(draw(st.lists(times, max_size=25))):
        event = draw(events(at_s))
        known = {worker.name for worker in admission.workers}
        if isinstance(event, str):
            worker = draw(st.sampled_from(sorted(WORKERS)))
            comes(admission, WORKERS[worker], worker, at_s)
        elif not isinstance(event, Loaded | Failed | Emptied) or event.name in known:
            admission.handle(event)
    return admission


spans = st.builds(
    lambda name, start_s, s: Span(
        device=f"{name.partition('.')[0]}/cpu",
        actor=name,
        kind="rollout",
        start_s=start_s,
        end_s=start_s + s,
    ),
    st.sampled_from(NAMES),
    times,
    st.floats(0, 10),
)
windows = st.builds(
    lambda start_s, s: Window(start_s=start_s, end_s=start_s + s), times, st.floats(0, 40)
)


@given(memberships(), st.lists(spans, max_size=6), st.sets(st.sampled_from(NAMES)), windows, times)
def test_the_uses_of_elastic_workers_sum_to_what_was_held(
    admission: WorkerAdmission,
    worked: list[Span],
    interrupted: set[str],
    window: Window,
    started_s: float,
) -> None:
    made = make_report(tuple(worked), started_s=started_s, finished_s=window.end_s)
    rollout = replace(made.rollout, interrupted=tuple(sorted(interrupted)))
    report = replace(made, rollout=rollout)
    held = elastic_worker_devices(admission.workers, window)
    told = [*worked, *elastic_worker_spans(admission.workers, report, window)]
    used = used_seconds(held, told, window)
    seconds = held_seconds(held, window)
    assert used.keys() == seconds.keys()
    for name, uses in used.items():
        assert uses.keys() == {*USES, *LENT_USES, IDLE}
        assert sum(uses.values()) == pytest.approx(seconds[name], abs=1e-6)
        assert min(uses.values()) >= -1e-6
