"""The published figures, by the names that ours have, with their sources.

A figure that was not readable to us is not here: our table leaves its place empty. Seconds, counts,
shares and ratios, as `registry` says of each experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """A figure of a paper."""

    value: float
    source: str  # which paper, and which figure or table of it


ROLLPACKER = "RollPacker"  # NSDI '26
FLASH = "ROLL-Flash"  # arXiv 2510.11345
RLBOOST = "RLBoost"  # NSDI '26, arXiv 2510.19225
FLUIDRL = "FluidRL, RLBoost's artifact"
MEASURED = "Measured"

# seconds of the recorded steps of an H200: rollout, training, all of it
H200_STEPS = {
    1: (7.382, 8.534, 18.725),
    2: (8.643, 0.806, 11.497),
    3: (8.224, 0.759, 10.776),
    4: (6.437, 0.782, 9.003),
    5: (11.308, 1.762, 14.886),
}
# which of them are compared, by machine: see `h200`
H200_COMPARED = {
    "fitted": {"rollout_s": (1,), "step_s": (3, 4)},
    "at_pace": {"rollout_s": (1,), "step_s": (3, 4)},
    "roofline": {"rollout_s": (1, 2, 3, 4, 5), "train_s": (2, 3, 4, 5)},
}

# shares of a step of veRL by task, 14B with 16k on 32 devices: rollout, reward, train
TABLE_1 = {"math": (0.72, 0.05, 0.23), "code": (0.66, 0.13, 0.21), "judge": (0.71, 0.07, 0.22)}
TABLE_2 = {"tail": 1.30, "reward": 2.01, "planner": 2.01, "stream": 2.03}  # the column of 7B
# of a period with tail batching, 14B on code: the rollouts of its short rounds, of its long one
FIGURE_4 = (("short", 0.31), ("long", 0.22))
# preemptions of a round, and seconds of its rollout
FIGURE_6 = {
    "short/tp1": (5199, 1029),
    "short/tp2": (4102, 768),
    "long/tp1": (2900, 1172),
    "long/tp2": (2601, 1284),
}
# seconds of a rollout at 8k, the mean over a period
FIGURE_11 = {
    "sync/1.0": 82,
    "eta_p/1.125": 77,
    "eta_p/1.25": 72,
    "eta_p/1.5": 60,
    "eta_r/1.125": 77,
    "eta_r/1.25": 71,
    "eta_r/1.5": 54,
    "both/1.25": 47,
}
# of the artifact's end-to-end run: seconds of a rollout and of a step, the longest response; the
# middle of what its curves range over (18 to 24 and 43 to 55 s and 1,100 to 1,700 tokens in short
# rounds, 67 to 98 s a step with a long one). Devices: its README asks for A100s
CURVES = (("short", (21, 49, 1400)), ("long", (42.7, 82.5, 4096)))
# the smallest async ratio from which on more gains nothing, by what is varied
BEST_RATIOS = {
    "model": {"0.6B": 2, "1.7B": 2, "4B": 2, "8B": 2},
    "length": {"4k": 1, "8k": 1, "16k": 1, "32k": 2},
    "prompts": {"32": 4, "64": 2, "128": 2, "256": 2},
}
# over the trainer alone: throughput, tokens a dollar, and the latter in segment A alone
SEGMENTS = {"8B": (1.66, 1.34, 1.36), "14B": (1.97, 1.49, 1.53), "32B": (1.51, 1.28, 1.45)}
# tokens a second over those of the trainer alone, and tokens a dollar, by the number of workers
WORKERS = {1: (1.2, 1.128), 2: (1.4, 1.242), 3: (1.6, 1.344), 4: (1.8, 1.435)}

STAGES = ("rollout", "reward", "train")
# beginnings of the names of figures that a constant of the simulator was fitted to, or, with
# `at_pace`, the machine of each step
FITTED = (
    "h200/at_pace/",
    "h200/roofline/",
    "fig6/long/tp1/rollout_s",
    "fig6/long/tp2/rollout_s",
    "fig11/8k/eta_",
)


def _rollpacker() -> Iterator[tuple[str, float, str]]:
    for task, shares in TABLE_1.items():
        for stage, share in zip(STAGES, shares, strict=True):
            yield f"table1/{task}/{stage}_share", share, "Table 1"
    for part, gain in TABLE_2.items():
        yield f"table2/7B/{part}", gain, "Table 2"
    for kind, share in FIGURE_4:
        yield f"fig4/{kind}/rollout_share", share, "Figure 4b"
    for rounds, (preemptions, seconds) in FIGURE_6.items():
        yield f"fig6/{rounds}/preemptions", preemptions, "Figure 6a"
        yield f"fig6/{rounds}/rollout_s", seconds, "Figure 6b"
    for eta, seconds in FIGURE_11.items():
        yield f"fig11/8k/{eta}", seconds, "Figure 11"
    for kind, values in CURVES:
        for figure, value in zip(("rollout_s", "step_s", "max_tokens"), values, strict=True):
            yield f"curves/{kind}/{figure}", value, "curves of its artifact"
    yield "fig13/judge/8k", 1.1, "its artifact's plot of Figure 13b"


def _measured() -> Iterator[tuple[str, float, str]]:
    for machine, compared in H200_COMPARED.items():
        for figure, steps in compared.items():
            for step in steps:
                place = ("rollout_s", "train_s", "step_s").index(figure)
                yield f"h200/{machine}/{step}/{figure}", H200_STEPS[step][place], "one H200"


def _flash() -> Iterator[tuple[str, float, str]]:
    yield "flash/rlvr/speedup", 2.24, "abstract: Qwen3-8B on 128 GPUs"
    for varied, ratios in BEST_RATIOS.items():
        for value, best in ratios.items():
            yield f"flash/best_ratio/{varied}/{value}", best, "table 1 of the talk's slides"


def _rlboost() -> Iterator[tuple[str, float, str]]:
    for model, (throughput, worth, in_a) in SEGMENTS.items():
        yield f"polyrl/{model}/throughput", throughput, "section 6, mean of three segments"
        yield f"polyrl/{model}/tokens_per_dollar", worth, "section 6, mean of three segments"
        yield f"polyrl/{model}/segment_a/tokens_per_dollar", in_a, "section 6, segment A"
    yield "polyrl/14B/segment_b/tokens_per_dollar", 1.37, "section 6, segment B"
    yield "polyrl/14B/static/1/throughput", 1.37, "section 6, one instance for good"


def _fluidrl() -> Iterator[tuple[str, float, str]]:
    for count, (throughput, worth) in WORKERS.items():
        yield f"polyrl/8B/static/{count}/throughput", throughput, "what its guide expects"
        yield f"polyrl/8B/static/{count}/tokens_per_dollar", worth, "its throughputs and prices"


PUBLISHED: Mapping[str, PublishedFigure] = {
    name: PublishedFigure(value=value, source=f"{paper}, {where}")
    for paper, figures in (
        (ROLLPACKER, _rollpacker()),
        (FLASH, _flash()),
        (RLBOOST, _rlboost()),
        (FLUIDRL, _fluidrl()),
        (MEASURED, _measured()),
    )
    for name, value, where in figures
}
