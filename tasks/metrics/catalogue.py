"""The meaning of every metric that a run logs: its unit, what it says, and when to worry.

`rollflow explain --metrics` prints it as the page docs/metrics.md. Leaves out how the metrics are
computed (`step_metrics`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from artifacts.reports.figures import HEADLINES


class Metric(NamedTuple):
    """What one metric says."""

    name: str  # in MLflow and every other tracker; a word in capitals stands for several names
    unit: str
    says: str  # what it measures
    worry: str = ""  # values at which a run needs a look; empty if none does


# name | unit | what it says | when to worry; an indented line goes on with the one before
TABLE = """
# First of all
reward/mean | reward | mean over trained responses that have a verdict | flat for many steps, or
    rising while `reward/heldout` is not
reward/heldout | reward | mean over held-out prompts, when weights are evaluated: the result | falls
    while `reward/mean` rises: the reward is gamed, or prompts are memorised
response_length/mean | tokens | mean sampled tokens of the finished responses | grows to the bound,
    or collapses to a few tokens
response_length/max | tokens | sampled tokens of the longest response | at the bound in every step
response_length/clip_ratio | share | trained responses that were cut at
    `sampling.max_response_tokens` | above 0.1: raise the bound, or see `learner.overlong`
loss/policy | loss | what the update minimised: policy loss, KL term and entropy bonus | not a
    number; its size says little, and it need not fall
kl/reference | nats a token | k3 estimate of the KL divergence from the reference model; 0 without
    one | rises steadily: raise `learner.kl_coefficient` or lower the learning rate
kl/engine | nats a token | k3 estimate of KL(engine ‖ learner): how far the learner is from what
    sampled | above 0.03: too stale, or other numerics (`engine.dtype`)
entropy | nats a token | mean entropy of the policy's next token | below a tenth of the first
    step's: it explores no more
grad_norm | norm | norm of the gradient before it is clipped | spikes by a factor of 10, or 0
clip_fraction | share | tokens without gradient because the loss clipped or masked their ratio |
    above 0.3: most of what is sampled is not learned from
learning_rate | rate | learning rate of the update | 0 after the warm-up
time/step_s | s | duration of the step | grows from step to step
throughput/trained_tokens_per_s | tokens/s | trained tokens a second that the step added to the run,
    all devices together | falls at equal lengths
throughput/sampled_tokens_per_s | tokens/s | sampled tokens a second in which an engine generated |
    falls at equal lengths
# Rewards
reward/DOMAIN_mean | reward | mean over the trained responses of one domain | one domain falls while
    others rise
reward/min | reward | lowest reward of a trained response | equal to the highest: nothing tells
    answers apart
reward/max | reward | highest reward of a trained response | equal to the lowest
reward/verdicts | count | trained responses that have a verdict | 0
reward/truncated_fraction | share | see `response_length/clip_ratio`
reward/infra | count | responses without a verdict, because the reward failed | above 0: the log has
    the first failure
reward/timeouts | count | responses whose program was ended by a time limit | more and more: the
    policy learns to write endless loops
reward/early_kills | count | programs that were ended before the longest time limit, and may have
    been right | many: raise `deadlines.reward_s`
reward/unneeded | count | responses that needed no verdict any more
reward/judge_calls | count | requests to judges
reward/judge_batches | count | batches of such requests
reward/judge_cache_hits | count | questions to a judge that were answered before
reward/judge_infra | count | requests to judges that failed | above 0
reward/judge_vetoed | count | responses that a check refused before a judge was asked
reward/judge_too_long | count | questions that do not fit the judge's context | above 0: raise its
    `max_model_len`
reward/judge_prompt_tokens | tokens | prompt tokens of the judges
reward/judge_yes_rate | share | verdicts of judges that are yes | near 0 or 1: it tells nothing
    apart
reward/judge_agreement | share | verdicts that agree with the known answer, where there is one |
    below 0.8: the judge is no good
heldout/reward_mean | reward | see `reward/heldout`
heldout/infra | count | held-out responses without a verdict | above 0: they are left out of the
    mean
# Training
train/loss | loss | see `loss/policy`
train/grad_norm | norm | see `grad_norm`
train/learning_rate | rate | see `learning_rate`
train/entropy_nats | nats a token | see `entropy`
train/reference_kl | nats a token | see `kl/reference`
train/mismatch_k3 | nats a token | see `kl/engine`
train/clip_fraction | share | see `clip_fraction`
train/mismatch_abs | nats a token | mean absolute difference of log-probabilities, learner and
    engine | above 0.1 at lag 0: numerics
train/importance_mean | ratio | mean weight learner over engine of a token, before truncation | far
    from 1
train/importance_max | ratio | largest of these weights | above 100
train/truncated_fraction | share | tokens whose weight was truncated | above 0.1
train/effective_sample_fraction | share | effective sample size over the number of tokens | below
    0.5: few tokens decide the update
train/cut_fraction | share | tokens without gradient: clipped, masked, or of a dropped response |
    above 0.3
train/gated_fraction | share | responses that the sequence mask dropped | above 0.3
train/flat_group_fraction | share | groups whose rewards agree, which teach nothing | near 1:
    prompts are too easy or too hard; see `scheduling.dynamic_sampling`
train/expert_load_max | ratio | most tokens of an expert over the mean of its layer; a mixture of
    experts alone | grows for many steps
train/dead_expert_fraction | share | experts that computed no token of the step, of all layers |
    above 0.1 in steps of many tokens
train/nonfinite_tokens | count | tokens without a finite log-probability | above 0
train/masked_responses | count | cut responses that were left out of the loss | most of the batch
train/applied | count | updates of the step that changed the weights | 0
train/skipped_empty | count | updates that were not made: nothing was in the loss | above 0
train/skipped_flat | count | updates that were not made: the gradient was exactly 0 | several steps
    in a row
train/skipped_critic_warmup | count | updates that were not made: the critic learns first
train/skipped_nonfinite | count | updates that were not made: the gradient was not finite | above 0
train/tokens | tokens | sampled tokens in the loss
train/tokens_scored | tokens | of these, tokens whose log-probability was computed
train/tokens_computed | tokens | tokens that went through the layers, prompts included
train/prompt_tokens_saved | tokens | prompt tokens that were computed once for several responses
train/micro_batches | count | packed rows of tokens
train/streamed_groups | count | groups whose gradients were computed while others were generated | 0
    with the stream trainer
train/tokens_per_s | tokens/s | computed tokens a second in which the learners worked
train/busy_s | s | seconds in which the learners worked, of all ranks
train/update_NUMBER_clip_fraction | share | of several updates a step: the clip fraction of one |
    grows from the first to the last above 0.3
train/update_NUMBER_proximal_k3 | nats a token | of several updates: KL from the weights before the
    first | grows fast
train/update_NUMBER_grad_norm | norm | of several updates: the norm of the gradient of one
train/value_loss | loss | loss of the critic | rises
train/critic_grad_norm | norm | norm of the critic's gradient | spikes
train/critic_skipped | count | updates that the critic did not make | above 0
train/explained_variance | share | part of the returns' variance that the critic explains | at or
    below 0 after the warm-up
adapter/NAME_reward_mean | reward | of several adapters: mean over the trained responses of one
adapter/NAME_heldout_mean | reward | mean over the held-out prompts that one answered | falls
adapter/NAME_applied | 0 or 1 | 1 if the step changed it | 0 in many steps
adapter/NAME_grad_norm | norm | norm of its gradient before it is clipped | spikes by a factor of 10
adapter/NAME_learning_rate | rate | learning rate of its update
adapter/NAME_loss | loss | what its update minimised
publish/probe_difference_nats | nats | largest difference of the probes' log-probabilities, engine
    and learner | above `weight_check`'s limit the run stops
# Lengths, and which responses are trained
length/trained_tokens | tokens | sampled tokens of the trained responses
length/trained_responses | count | trained responses
length/sampled_tokens | tokens | sampled tokens of all responses to prompts that were trained,
    filtered or dropped
length/sampled_responses | count | these responses
length/trained_share | ratio | mean length of trained responses over that of all; 1 without bias |
    below 0.9: long answers are given up
length/trained_share_so_far | ratio | the same over all steps so far | below 0.9
acceptance/accepted_tokens_mean | tokens | mean length of the responses that were trained
acceptance/sibling_tokens_mean | tokens | mean length of all responses to the prompts that were
    trained
acceptance/launched_tokens_mean | tokens | mean length of all responses of the round
acceptance/accepted_reward_mean | reward | mean reward of the responses that were trained
acceptance/launched_reward_mean | reward | mean reward of all responses of the round
acceptance/length_bias_fraction | ratio | accepted over sibling length, less 1 | below -0.1: short
    answers are favoured
acceptance/reward_bias | reward | accepted less sibling reward | far from 0
# Generation
rollout/tokens | tokens | sampled tokens of the round
rollout/tokens_per_s | tokens/s | see `throughput/sampled_tokens_per_s`
rollout/responses | count | finished responses
rollout/response_tokens_mean | tokens | see `response_length/mean`
rollout/response_tokens_max | tokens | see `response_length/max`
rollout/migrated_responses | count | responses that went on in another engine
rollout/freed_learners | count | engines that gave their device to the learner before the round was
    over
rollout/interrupted_responses | count | responses that were under way in an engine that was lost |
    above 0: an engine died
rollout/lost_tokens_bound | tokens | most tokens that were lost with engines | large
rollout/lost_tokens_bound_of_one | tokens | the same of the worst response
engine/preemptions | count | times an engine took a request's cache away | many: raise
    `engine.kv_cache_gb` or lower `engine.max_num_seqs`
engine/kv_usage_max | share | fullest state of an engine's KV cache | at 1, with preemptions
engine/unclaimed_responses | count | responses that ran on for nobody | above 0
engine/replicas | count | engines of the run
engine/relayout_s | s | time in which engines were built anew in other sizes
round/step | | the number of the step
round/is_long | 0 or 1 | 1 for a long round, which trains the long-prompt queue
round/attempts | count | attempts at the step | above 1: something died in it
round/filtered_prompts | count | prompts replaced because the rewards of their group agreed | most
    of the round
round/dropped_unscored_prompts | count | prompts given up for lack of verdicts | above 0
round/dropped_late_prompts | count | prompts given up at their staleness deadline | above 0
round/parked_late_prompts | count | prompts that went to the long-prompt queue at that deadline
round/deferred_prompts | count | prompts that tail batching put off
round/left_running | count | running responses that the round left to the next one
queue/long_prompts | count | prompts in the long-prompt queue | grows without end
queue/dropped_prompts | count | prompts that were given up so far | grows
queue/unfit_prompts | count | prompts that cannot be asked | above 0: the log names each
queue/filtered_prompts | count | prompts that were filtered so far
queue/carried_prompts | count | prompts that the round left to the next one
# Asynchronous steps
lag/mean_versions | versions | mean lag of a trained response's oldest token behind the weights | at
    the bound
lag/max_versions | versions | largest such lag
lag/mixed_fraction | share | trained responses that several versions sampled
lag/recomputed_tokens | tokens | tokens computed again because newer weights were loaded | large
    beside `rollout/tokens`
lag/tokens_fraction_at_LAG | share | scored tokens that lag so many versions; 8 stands for more
lag/cut_fraction_at_LAG | share | of these, tokens without gradient | above 0.3
lag/mismatch_k3_at_LAG | nats a token | `kl/engine` of these tokens | above 0.03
lag/effective_sample_fraction_at_LAG | share | effective sample size of these tokens over their
    number | below 0.5
stall/rollout_s | s | seconds in which an asynchronous round waited for newer weights | large
stall/learner_s | s | seconds that the learner waited for samples | large
stall/evaluation_s | s | seconds that the update waited for an evaluation
# Times and devices
time/rollout_s | s | seconds in which an engine generated
time/reward_exposed_s | s | seconds in which the round waited for verdicts alone | a large part of
    the step: more `reward_workers`
time/reward_busy_s | s | seconds that rewards worked, of all workers
time/judge_busy_s | s | seconds that judges worked
time/train_s | s | seconds in which gradients were computed and nothing was generated
time/update_s | s | seconds of the optimizer's step
time/publish_s | s | seconds in which weights were published
time/gate_s | s | of these, seconds of the weight check
time/orchestration_s | s | seconds in which no stage worked | above a tenth of the step
bubble/sleep_wake_fraction | share | device time in which engines went to sleep or woke
bubble/sync_fraction | share | device time in which weights were published
bubble/tail_fraction | share | device time spent waiting for the longest responses | above 0.2: see
    `scheduling.kind`
bubble/reward_wait_fraction | share | device time spent waiting for verdicts | above 0.05
bubble/idle_fraction | share | device time without work for any other reason | above 0.2
# Tokens and cost
ledger/trained_tokens | tokens | sampled tokens that were trained
ledger/aborted_tokens | tokens | tokens of responses that were stopped half-way | more than those
    trained
ledger/discarded_tokens | tokens | tokens of finished responses that no group took
ledger/filtered_tokens | tokens | tokens of groups whose rewards agree
ledger/stale_tokens | tokens | tokens of another attempt, of too old weights, or of an episode that
    began again | large
ledger/evaluated_tokens | tokens | tokens of answers to held-out prompts
ledger/judged_tokens | tokens | tokens that judges wrote
ledger/no_update_tokens | tokens | tokens that counted as trained in a step without an update |
    above 0
cost/CLASS_worker_s | device s | seconds in which devices of a price class were held
cost/CLASS_generating_s | device s | of these, seconds in which they generated
cost/CLASS_training_s | device s | seconds in which they trained
cost/CLASS_idle_s | device s | seconds in which they did neither | the largest of them
cost/CLASS_starting_s | device s | seconds until an elastic worker first held weights
cost/CLASS_transferring_s | device s | seconds in which weights were sent to it
cost/CLASS_draining_s | device s | seconds after the notice that it leaves
cost/CLASS_lost_s | device s | seconds from its last sign of life until it was known to be gone
cost/added_s | s | seconds that the step added to the run
cost/throughput_all_devices | tokens/s | see `throughput/trained_tokens_per_s`
cost/dollars | dollars | what the step cost, where `prices` are set
cost/CLASS_dollars | dollars | of this, the share of a price class
cost/tokens_per_dollar | tokens/$ | trained tokens a dollar | falls
# Episodes
episode/success_share | share | episodes with a verdict whose outcome is ok
episode/turns_mean | turns | mean turns of episodes that ended
episode/turns_max | turns | most turns of one of these
episode/ended_ENDING | count | episodes by their ending, such as `terminated` or `unanswered` |
    failures of environments are frequent
episode/stopped | count | episodes that were stopped before their end
episode/sampled_tokens | tokens | sampled tokens of episodes
episode/given_tokens | tokens | tokens that environments gave
episode/resumed | count | times that an episode went on after it was broken off
episode/replayed_turns | turns | turns that an environment was led through again
episode/restarted | count | times that an episode had to begin again | above a few
episode/forgotten_tokens | tokens | sampled tokens that were lost by that
episode/trained_turns_mean | turns | mean turns of the trained episodes
episode/started_turns_mean | turns | mean turns of all that the round started
episode/trained_turns_share | ratio | the former over the latter; 1 without bias | below 0.9: long
    episodes are given up
episode/action_NAME_share | share | actions that the environment calls so
episode/environment_s | s | seconds that episodes waited for environments
episode/environment_share | share | the same over all that they waited for | above 0.5: environments
    are slow
# Elastic workers
elastic/present | count | elastic workers that are present
elastic/joined | count | workers that joined in the step
elastic/lost | count | workers that had joined and are gone | more than you took away
elastic/tokens | tokens | tokens that elastic workers sampled
elastic/pull_s | s | longest time in which one of them pulled weights | as long as a step
elastic/missed_LIMIT | count | workers that were given up because they passed a time limit | above 0
seeding/window_s | s | window in which the run's own engines generate
seeding/own_s | s | seconds that they generated
seeding/closed | 0 or 1 | 1 if the window closed before the round was over
seeding/closed_early | 0 or 1 | 1 if it closed because nothing was left to do
seeding/train_wait_s | s | seconds after it in which a learner had nothing to do | large: too few
    elastic workers
seeding/elastic_worker_wait_s | s | seconds from a worker's last response to the end of the step |
    large: too many of them
seeding/next_window_s | s | the window that follows
seeding/elastic_workers_worth_holding | count | workers that would generate the whole step while the
    learners train
# Of a run
reward_before | reward | held-out reward of the first model
reward_after | reward | held-out reward of the last weights that were evaluated | within the
    interval of `reward_before`
reward_training | reward | mean of `reward/mean` over the last 5 steps
step_s | s | mean seconds that a step adds to the run
trained_tokens_per_s | tokens/s | trained tokens a second of the run's steps
system/NAME | | processors, memory, disk, network and GPUs of the flow's machine, every 10 s |
    memory near all of it
"""
HEAD = f"""# Metrics

What a run logs to MLflow and to the trackers of `keep.trackers` (`wandb`, `tensorboard`, `swanlab`,
`trackio`) after each step and evaluation; look at the first {len(HEADLINES)} first. A word in
capitals stands for several names. A run has no metrics of parts that it does not use. `rollflow
explain --metrics` prints this page.
"""


def _sections() -> dict[str, tuple[Metric, ...]]:
    found: dict[str, list[Metric]] = {}
    for line in re.sub(r"\n +", " ", TABLE.strip()).splitlines():
        if line.startswith("# "):
            metrics = found.setdefault(line.removeprefix("# "), [])
        else:
            metrics.append(Metric(*map(str.strip, line.split("|"))))
    return {title: tuple(metrics) for title, metrics in found.items()}


METRICS: Mapping[str, tuple[Metric, ...]] = _sections()  # by title; first those of HEADLINES


def metrics_page() -> str:
    """All metrics as a page in Markdown."""
    lines = [HEAD]
    for title, metrics in METRICS.items():
        lines += [f"## {title}", "", "| Metric | Unit | What it says | When to worry |"]
        lines += ["|---|---|---|---|"]
        lines += [f"| `{one.name}` | {one.unit} | {one.says} | {one.worry} |" for one in metrics]
        lines.append("")
    return "\n".join(lines)


def is_described(name: str) -> bool:
    """True if the metric of this name is in the catalogue."""
    patterns = (
        re.sub("[A-Z]+", ".+", re.escape(metric.name))
        for metrics in METRICS.values()
        for metric in metrics
    )
    return any(re.fullmatch(pattern, name) for pattern in patterns)
