"""The parts of the GPU command, in the order of their value. One line each: what it shows, the
module that does so, and the share of the whole time that it may take at most.

A part's module takes `--device cuda|cpu` (on cpu sizes are tiny) and `--out FOLDER`, prints its
figures by `Figure.print` as it finds them, and ends with status 0 unless it could not measure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the command."""

    name: str
    about: str
    module: str
    share: float  # of the time of all parts, at most
    arguments: tuple[str, ...] = ()


PARTS = (
    Part(
        name="tests",
        about="learner and engine on this device: gradients, weights, sleep, probes",
        module="research.gpu.suites",
        share=0.3,
    ),
    Part(
        name="tiny",
        about="a whole tiny run, twice with one seed, then killed and resumed: the same weights",
        module="research.gpu.small_runs",
        share=0.3,
    ),
    Part(
        name="decode",
        about="decode steps of 64 to 512 responses, graphs on and off, beside bare vLLM",
        module="research.gpu.decode",
        share=0.4,
    ),
    Part(
        name="sleep",
        about="an engine gives its memory back, and wakes to the same tokens",
        module="research.gpu.sleeping",
        share=0.15,
    ),
    Part(
        name="publication",
        about="weights from learner to engine by each transport, the weight check included",
        module="research.benchmarks.update_and_publication",
        share=0.3,
    ),
    Part(
        name="learner",
        about="the learner's share of the matmul ceiling by rows, and its host's time a row",
        module="research.benchmarks.learner_on_gpu",
        share=0.3,
    ),
    Part(
        name="schedules",
        about="sync, tail batching, RollPacker, in turn and asynchronous, at equal answers",
        module="research.gpu.schedules",
        share=0.6,
    ),
)
