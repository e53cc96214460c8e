"""The report of a row whose sums lie on the device, until they are read for many rows at once.

    row ─▶ PendingReport ─┐
    row ─▶ PendingReport ─┴─▶ read ─▶ an AccumulateReport for each row

Reading waits for all that a GPU has to do; with one read for every row it would stand still while
the host prepares the next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tasks.learner.reports import AccumulateReport, ExpertLoad
from tasks.learner.version_sums import NUM_SUMS, read_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReport:
    """A report of which some numbers are still on the device."""

    known: AccumulateReport  # the numbers that the host knows
    started_s: float  # Unix seconds: when the host began with the row
    ended_s: float  # and when it had queued the last of it
    sums: Mapping[str, Tensor]  # by the report's fields, tensors of one element
    versions: tuple[int, ...] = ()  # weight versions of `by_version`
    by_version: Tensor | None = None  # (versions, NUM_SUMS) fp64: `sums_by_version`
    expert_tokens: Tensor | None = None  # (layers, experts): `ExpertLoad`; None of a dense model


def read(pending: Sequence[PendingReport]) -> list[AccumulateReport]:
    """The reports of rows, in order, in one read. A device that computes behind a queue is busy
    with a row until the next one begins, with the last one until it answers."""
    if not pending:
        return []
    parts: list[Tensor] = []
    for row in pending:
        parts += [value.double().reshape(1) for value in row.sums.values()]
        if row.by_version is not None:
            parts.append(row.by_version.reshape(-1))
        if row.expert_tokens is not None:
            parts.append(row.expert_tokens.double().reshape(-1))
    numbers: list[float] = torch.cat(parts).tolist()
    reports: list[AccumulateReport] = []
    ends = [row.ended_s for row in pending]
    if parts[0].device.type != "cpu":
        ends = [*(following.started_s for following in pending[1:]), time.time()]
    start = 0
    for row, end in zip(pending, ends, strict=True):
        found: dict[str, Any] = {}  # Any: the types of the report's fields
        for name, value in zip(row.sums, numbers[start:], strict=False):
            found[name] = int(value) if name.startswith("num_") else value
        start += len(row.sums)
        if row.by_version is not None:
            size = NUM_SUMS * len(row.versions)
            found["by_version"] = read_sums(row.versions, numbers[start : start + size])
            start += size
        if row.expert_tokens is not None:
            num_layers, num_experts = row.expert_tokens.shape
            begins = range(start, start + num_layers * num_experts, num_experts)
            layers = (map(int, numbers[begin : begin + num_experts]) for begin in begins)
            found["expert_load"] = ExpertLoad(tuple(map(tuple, layers)))
            start += num_layers * num_experts
        reports.append(replace(row.known, busy=((row.started_s, end),), **found))
    return reports


def total(pending: Sequence[PendingReport]) -> AccumulateReport:
    """The sum of the rows' reports, in one read."""
    report = AccumulateReport()
    for each in read(pending):
        report += each
    return report
