"""What the three training stages of a step say of themselves: gradients, update, publication.

Each is handed on to the next stage, and all to the step's figures. Leaves out what a single rank
counts (`reports`).
"""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.records import Span, WeightsRef
from tasks.engines.base import Attestation
from tasks.learner.reports import AccumulateReport, UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReport:
    """What accumulation did in a round; the gradients stay with the learners."""

    ranks: tuple[AccumulateReport, ...]  # by rank; all zero if the step had been updated before
    spans: tuple[Span, ...]
    num_groups_streamed: int = 0  # groups trained before the round was closed


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """What the updates did."""

    update: UpdateReport
    spans: tuple[Span, ...]
    # by rank, the passes between the updates of a step that makes several
    ranks: tuple[AccumulateReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """The version that the engines sample with now."""

    weights: WeightsRef
    # mean absolute difference of the probes' log-probabilities, engines against learner; None
    # where no gate compares them
    probe_difference_nats: float | None
    gate_s: float  # the comparison; what engines and learner attest is made while the engines load
    spans: tuple[Span, ...]
    attested: Attestation | None = None  # what the gate expects of engines; None where it is off
    drained_s: float = 0.0  # longest that an engine finished what it ran before it loaded
