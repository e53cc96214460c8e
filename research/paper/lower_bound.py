"""The least seconds in which synchronous on-policy steps can train given groups on given devices,
if all lengths were known in advance and everything were packed perfectly.

    bound = steps x (update, publish) + max(latency, work)

latency   A step trains on responses that its own weights generated, so that it takes at least its
          longest response alone in the fastest engine, and to train that. Summed over steps this is
          least when groups of about the same length share a step.
work      Devices are busy generating and training. A decode step of n responses costs its
          replica's devices all of it, so that large batches are cheap, but slow: tokens of one
          response come one after the other, and the longest has little time for each. So the
          responses of a step have a price of running each, the longest the highest, and a batch of
          them is weighed by what it costs and how long it makes them run (Lagrangian duality: any
          prices give a bound). Where positions are reached by few groups, they share steps.

What it leaves out makes it smaller, never larger: prefills, verdicts, the room of KV caches,
and whatever is generated and not trained. It bounds steps one after the other on colocated
devices, not steps that overlap. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.engines.simulation.pace import Pace
from tasks.scheduling.prompt_stream import derive_seed
from tasks.simulation.figures import TrainedGroup
from tasks.simulation.simulated_run import SimulatedRun

# prices of a running response that are tried, in devices; 0 is none
PRICES = np.array([0.0, *(2.0 ** (exponent / 4) for exponent in range(-56, 29))])
MOST_TURNS = 50  # of looking for the best prices; any give a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What steps are played on."""

    paces: Mapping[int, Pace]  # of a replica, by its devices
    num_devices: int  # that generate or train
    rank_devices: int  # that train a response together
    train_s_per_token: float  # of one device
    train_s_per_response: float = 0.0  # the least of a response that shares no micro-batch
    free_s: float  # every device goes over from generating to training so long, once a step
    update_s: float  # of a step: new weights, and into the engines


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """Seconds of all steps together."""

    latency_s: float
    work_s: float
    update_s: float

    @property
    def seconds(self) -> float:
        """No steps can take less."""
        return self.update_s + max(self.latency_s, self.work_s)


def resources_of(run: SimulatedRun) -> Resources:
    """The resources of a run, with engines of every size that its machine allows."""
    machine, placement = run.machine, run.placement
    sizes = machine.sizes(len(placement.rollout), machine.devices_per_host)
    return Resources(
        paces={size: machine.engine(size).pace for size in sizes},
        num_devices=len(placement.devices),
        rank_devices=placement.devices_per_rank,
        train_s_per_token=machine.train_s_per_token(),
        train_s_per_response=machine.train_s_per_response(),
        free_s=machine.free_s(max(sizes)) if placement.is_colocated else 0.0,
        update_s=machine.update_s() + machine.publish_s(max(sizes)),
    )


def needed_groups(run: SimulatedRun, num_prompts: int) -> list[TrainedGroup]:
    """The first prompts of the data set on their first responses, as long as they are in the first
    step: what a policy trains that favours no length."""
    lengths, work = run.work.writer(1, run.seed), run.work
    return [
        TrainedGroup(
            prompt_tokens=work.prompt_tokens(prompt_id),
            response_tokens=tuple(
                min(
                    work.longest_tokens,
                    lengths.tokens(prompt_id, index, derive_seed(run.seed, prompt_id, index)),
                )
                for index in range(run.batch.responses_per_prompt)
            ),
        )
        for prompt_id in (f"0/{row}" for row in range(num_prompts))
    ]


def lower_bound(
    resources: Resources, groups: Sequence[TrainedGroup], prompts_per_step: int
) -> LowerBound:
    """Of training these groups, so many in a step."""
    num_steps = math.ceil(len(groups) / prompts_per_step)
    return LowerBound(
        latency_s=_latency_s(resources, groups, prompts_per_step),
        work_s=num_steps * resources.free_s + _work_s(resources, groups, prompts_per_step),
        update_s=num_steps * resources.update_s,
    )


def _latency_s(
    resources: Resources, groups: Sequence[TrainedGroup], prompts_per_step: int
) -> float:
    """The longest path of every step, with the groups that take longest in the same steps."""
    paths = sorted((_path_s(resources, group) for group in groups), reverse=True)
    return sum(paths[::prompts_per_step])


def _path_s(resources: Resources, group: TrainedGroup) -> float:
    """From the first token of a group's longest response to its gradients, nothing else there."""
    longest = max(group.response_tokens)
    alone_s = min(
        pace.steps_s(longest, 1, group.prompt_tokens, 0) for pace in resources.paces.values()
    )
    train_s = longest * resources.train_s_per_token / resources.rank_devices
    return alone_s + max(resources.free_s, train_s)


def _work_s(resources: Resources, groups: Sequence[TrainedGroup], prompts_per_step: int) -> float:
    """Device-seconds over devices. `device-seconds <= devices x T`, and the response of a rank runs
    no longer than all steps together: `its running seconds <= T`. The latter, times its price, is
    added for every rank; the prices that give most are found turn by turn (Dinkelbach's method)."""
    num_tokens = _tokens_by_rank(groups, prompts_per_step)
    token_s = _token_s(resources, len(num_tokens))
    other_s = _reading_s(resources, groups) + _training_s(resources, groups)
    found_s = 0.0
    for _ in range(MOST_TURNS):
        chosen = np.argmax(np.outer(num_tokens, token_s) - found_s * PRICES, axis=1)
        spent_s = float(num_tokens @ token_s[chosen]) + other_s
        better_s = spent_s / (resources.num_devices + float(PRICES[chosen].sum()))
        if better_s <= found_s:
            break
        found_s = better_s
    return found_s


def _tokens_by_rank(
    groups: Sequence[TrainedGroup], prompts_per_step: int
) -> npt.NDArray[np.float64]:
    """How many tokens the longest response of a step has, the second longest, and so on, all steps
    together: as few as the longer ones can have when groups are dealt to steps.

    So many responses of a step are longer than a position as its groups have together. Where the
    groups that have most of them share steps, fewest ranks reach it: for every position by itself,
    which is less than any steps can do for all of them.
    """
    most = max(len(group.response_tokens) for group in groups)
    lengths = np.zeros((len(groups), most), dtype=np.int64)
    for row, group in enumerate(groups):
        lengths[row, : len(group.response_tokens)] = sorted(group.response_tokens, reverse=True)
    positions = np.arange(lengths.max())
    # groups with a first, a second, ... response that is longer
    longer = [
        len(groups) - np.searchsorted(np.sort(each), positions, "right") for each in lengths.T
    ]
    ends = range(0, len(groups) + prompts_per_step, prompts_per_step)
    before = [np.minimum(end, longer).sum(axis=0) for end in ends]
    counts = np.bincount(np.diff(before, axis=0).ravel(), minlength=prompts_per_step * most + 1)
    return counts[:0:-1].cumsum()[::-1].astype(np.float64)


def _token_s(resources: Resources, most_running: int) -> npt.NDArray[np.float64]:
    """By price, the least device-seconds of a decoded token without its attention and the price of
    its seconds, at the best size and batch."""
    steps = [
        (pace.base_s(batch, 0), size / batch)
        for size, pace in resources.paces.items()
        for batch in range(1, min(most_running, pace.max_batch) + 1)
    ]
    step_s, share = np.array(steps).T
    return np.array([np.min(step_s * (share + price)) for price in PRICES])


def _reading_s(resources: Resources, groups: Sequence[TrainedGroup]) -> float:
    """Device-seconds in which tokens attend to those before them."""
    reads = sum(
        tokens * group.prompt_tokens + tokens * (tokens - 1) / 2
        for group in groups
        for tokens in group.response_tokens
    )
    return reads * min(size * pace.step_s_per_kv_token for size, pace in resources.paces.items())


def _training_s(resources: Resources, groups: Sequence[TrainedGroup]) -> float:
    """Device-seconds of training: every response, and every prompt once or, where a response shares
    no micro-batch, with each of its responses."""
    token_s, least_s = resources.train_s_per_token, resources.train_s_per_response
    if not least_s:
        num_tokens = sum(group.prompt_tokens + sum(group.response_tokens) for group in groups)
        return num_tokens * token_s
    return sum(
        max(least_s, token_s * (group.prompt_tokens + tokens))
        for group in groups
        for tokens in group.response_tokens
    )
