"""Step plans and reports of a made-up run."""

from __future__ import annotations

from artifacts.datasets.chain_sum import ChainSumConfig
from artifacts.records import Span, WeightsRef
from tasks.engines.base import SamplingConfig
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.reports import (
    AccumulateReport,
    GradientReport,
    PolicyReport,
    PublishReport,
    UpdateReport,
)
from tasks.learner.weight_check import WeightCheckConfig
from tasks.metrics.report import StepReport
from tasks.rewards.maths.math_answer import MathAnswerConfig
from tasks.rewards.scoring import RewardReport
from tasks.rounds.report import RolloutReport
from tasks.run.run_context import DeadlineConfig, RunContext, StepPlan
from tasks.scheduling.events import PromptRef, RoundPlan
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.stream_training import StreamTrainerConfig

CONTEXT = RunContext(
    run_id="run",
    artifact_root="memory://runs",
    seed=0,
    task=ChainSumConfig(),
    rewards={"*": MathAnswerConfig()},
    model_path="model",
    engine=VllmEngineConfig(max_model_len=320),
    sampling=SamplingConfig(),
    learner=LearnerConfig(),
    engines=("engine-0",),
    learners=("learner-0",),
    devices={"control": "host", "engine-0": "cpu:0", "learner-0": "cpu:0"},
    reward_workers=1,
    max_infra_fraction=0.25,
    weights_dir="weights",
    scheduling=SyncConfig(),
    stream_trainer=StreamTrainerConfig(),
    gate=WeightCheckConfig(tolerance_nats=0.1),
    deadlines=DeadlineConfig(progress_s=1.0, call_s=1.0, start_s=1.0),
)


def make_step_plan(step: int = 1, kind: str = "short", attempt: int = 1) -> StepPlan:
    round_plan = RoundPlan(
        step=step,
        kind=kind,
        prompts=(PromptRef(prompt_id="0/0", domain="test"),),
        launch_per_prompt=2,
        accept_prompts=1,
        accept_per_prompt=2,
        is_evaluation=kind == "evaluate",
        num_queued=int(kind in ("long", "drain")),
        layout="" if kind == "evaluate" else kind,
    )
    return StepPlan(
        run=CONTEXT,
        round=round_plan,
        weights=WeightsRef(version=step - 1, path="", digest=""),
        attempt=attempt,
    )


def span(kind: str, start_s: float, end_s: float) -> Span:
    return Span(device="cpu:0", actor="engine-0", kind=kind, start_s=start_s, end_s=end_s)


def make_report(
    spans: tuple[Span, ...],
    started_s: float = 0.0,
    finished_s: float = 10.0,
    plan: StepPlan | None = None,
    lengths: tuple[int, ...] = (5, 15),
    ranks: tuple[AccumulateReport, ...] = (),
) -> StepReport:
    """A step over this window; all spans are booked by the rollout, their kinds count."""
    return StepReport(
        plan=plan or make_step_plan(),
        rollout=RolloutReport(
            accepted=("0/0",),
            deferred=(),
            dropped=(),
            filtered=("0/3",),
            tokens={"trained": 20, "aborted": 4},
            lengths=lengths,
            acceptance={"acceptance/reward_bias": 0.25},
            num_preemptions=3,
            spans=spans,
            started_s=started_s,
            finished_s=finished_s,
        ),
        reward=RewardReport(
            num_scored=2,
            num_infra=1,
            first_infra="",
            num_timeouts=0,
            num_early_kills=0,
            num_unneeded=0,
            relearned={},
            busy_s=0.5,
            spans=(),
        ),
        gradients=GradientReport(ranks=ranks, spans=()),
        policy=PolicyReport(
            update=UpdateReport(
                step=1,
                skipped=None,
                normaliser=1.0,
                loss=0.25,
                grad_norm=2.0,
                learning_rate=1e-5,
                busy=(),
            ),
            spans=(),
        ),
        published=PublishReport(
            weights=WeightsRef(version=1, path="", digest="d"),
            probe_difference_nats=0.02,
            check_s=0.1,
            spans=(),
        ),
        started_s=started_s,
        finished_s=finished_s,
    )
