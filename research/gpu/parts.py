"""The parts of the GPU command, in the order of their value: what each shows, the module that does
so, and its weight among those to come in what time is left.

A part's module takes `--device cuda|cpu` (on cpu sizes are tiny) and `--out FOLDER`, prints its
figures by `Figure.print` as it finds them, the most valuable first, and `not_measured` for those
that this machine cannot give. It ends with status 0 unless it could not measure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the command."""

    name: str
    about: str
    module: str
    weight: float
    arguments: tuple[str, ...] = ()


PARTS = (
    Part(
        name="tests",
        about="tests of learner and engine on this device: gradients, weights, draws, sleep",
        module="research.gpu.suites",
        weight=2.0,
    ),
    Part(
        name="tiny",
        about="a whole tiny run, then one that is killed and resumed: the same weights; its start",
        module="research.gpu.small_runs",
        weight=2.5,
    ),
    Part(
        name="publication",
        about="weights from learner to engine by each transport, the weight check included",
        module="research.benchmarks.update_and_publication",
        weight=2.0,
    ),
    Part(
        name="learner",
        about="the learner's share of the matmul ceiling by rows, and its host's time a row",
        module="research.benchmarks.learner_on_gpu",
        weight=2.0,
    ),
    Part(
        name="decode",
        about="decode steps of 64 to 512 responses, graphs on and off, beside bare vLLM",
        module="research.gpu.decode",
        weight=3.0,
    ),
    Part(
        name="sleep",
        about="an engine gives its memory back, and wakes to the same tokens",
        module="research.gpu.sleeping",
        weight=1.0,
    ),
    Part(
        name="cards",
        about="an engine over two cards, two learner ranks, replicated and sharded, by NCCL",
        module="research.benchmarks.several_cards",
        weight=2.0,
    ),
    Part(
        name="schedules",
        about="sync, tail batching, RollPacker, in turn and asynchronous, at equal answers",
        module="research.gpu.schedules",
        weight=4.0,
    ),
    Part(
        name="leak",
        about="memory of GPUs and processes over 200 tiny steps, once they have settled",
        module="research.benchmarks.leak",
        weight=2.0,
    ),
)
