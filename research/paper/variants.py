"""The systems that the RollPacker paper compares, as what each plays.

    sync ─▶ tail ─▶ reward ─▶ planner ─▶ stream: all of RollPacker; overlap is the paper's RLHFuse

Tail batching alone scores after its rollouts, as `sync` does: the paper's Figure 4b has 22 % of a
period in rewards with it, and 13 % without. From `reward` on each response is scored as it
finishes, and short rounds keep the first to be scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

ETA = 1.25  # the paper's, on prompts and on responses


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperVariant:
    """Which parts are on."""

    eta_p: float = 1.0  # prompts that a short round launches for one that it trains
    eta_r: float = 1.0  # responses of each of them
    scores_last: bool = False  # rewards begin when nothing generates any more
    adapts_timeouts: bool = False  # else a program has 30 s
    # the judge's layers: on devices of its own, or copied to the engines' devices, one after the
    # other or while others compute
    judge: Literal["resident", "copied", "pipelined"] = "resident"
    plans_sizes: bool = False  # the parallelism planner
    plans_by_lengths: bool = False  # by what lengths were seen, which is not the paper's rule
    streams: bool = False  # the stream trainer
    # which devices it frees: by the paper's rule, or by the devices that engines have
    stream_rule: Literal["milestones", "devices"] = "milestones"
    num_levels: int = 2  # of rounds: more than short and long ones are not the paper's
    discards: bool = False  # whether what a short round gives up on is lost, not put off
    # responses under way at a time, as a share of the step's, those of long prompts first; 0: all
    # are asked at once, in no order
    under_way: float = 0.0
    knows_lengths: bool = False  # whether prompts come in the order of their longest answer
    moves_running: bool = False  # whether what runs goes on wherever there is less to do
    packs: bool = False  # whether the learner fills its rows, or has one response to each
    async_ratio: float = 0.0  # steps that generation may be ahead: more than 0 is off-policy
    extra_lag: int = 0  # steps more that a group which takes long may be passed over
    # what becomes of running responses; 'pause' has all devices generate and train in turn
    at_update: Literal["interrupt", "drain", "pause"] = "interrupt"
    # of a group that is not complete when the last step within the bound is
    at_deadline: Literal["wait", "train_anyway"] = "wait"
    learner_share: float = 0.0  # of the devices, which only train; 0: all do both

    @property
    def batches_tails(self) -> bool:
        return self.eta_p > 1 or self.eta_r > 1

    @property
    def scheduling(self) -> dict[str, object]:
        """As `scheduling` of a run's configuration."""
        if self.async_ratio:
            return {
                "kind": "asynchronous",
                "async_ratio": self.async_ratio,
                "extra_lag": self.extra_lag,
                "at_update": self.at_update,
                "at_deadline": self.at_deadline,
            }
        if self.discards:
            return {"kind": "over_sampling", "prompt_overprovision": self.eta_p}
        if self.under_way:
            return {
                "kind": "longest_first",
                "under_way": self.under_way,
                "moves_running": self.moves_running,
            }
        if self.num_levels > 2:
            return {
                "kind": "multilevel_batching",
                "prompt_overprovision": self.eta_p,
                "num_levels": self.num_levels,
            }
        timing = "after_rollout" if self.scores_last else "per_response"
        if not self.batches_tails:
            return {"kind": "sync", "reward_timing": timing}
        return {
            "kind": "tail_batching",
            "prompt_overprovision": self.eta_p,
            "response_overprovision": self.eta_r,
            "reward_timing": timing,
            "drain": False,
        }

    def num_steps(self, periods: int) -> int:
        """Of so many periods: the short rounds whose leftovers fill a long one, and that one."""
        assert self.num_levels == 2, "a period of two kinds of rounds"
        period = 1 + round(1 / (self.eta_p - 1)) if self.eta_p > 1 else DEFAULT_PERIOD
        return periods * period


SYNC = PaperVariant(scores_last=True)
TAIL = PaperVariant(eta_p=ETA, eta_r=ETA)
TAIL_ALONE = replace(TAIL, scores_last=True)  # without a reward scheduler
REWARD = replace(TAIL, adapts_timeouts=True, judge="pipelined")
PLANNER = replace(REWARD, plans_sizes=True)
STREAM = replace(PLANNER, streams=True)
OVERLAP = PaperVariant(streams=True)
DEFAULT_PERIOD = 5  # steps, where there is no long round; as many as of an eta of 1.25
# table 2, each line with what the one before it has
CUMULATIVE: Mapping[str, PaperVariant] = {
    "tail": TAIL_ALONE,
    "reward": REWARD,
    "planner": PLANNER,
    "stream": STREAM,
}
