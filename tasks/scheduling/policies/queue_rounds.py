"""Plans of the policies that put prompts off or drop them: rounds over new prompts or over some
that wait, and the drain. Leaves out which prompts a round is over, and when (`tail_batching`,
`multilevel`, `over_sampling`)."""

from __future__ import annotations

import math

from tasks.scheduling.batch import RoundShape
from tasks.scheduling.events import PromptRef, RoundPlan
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.quotas import domain_quotas

SHORT, LONG, DRAIN = "short", "long", "drain"


def queue_round(
    turn: PlanningInputs,
    shape: RoundShape,
    waiting: tuple[PromptRef, ...],
    num_reserve: int,
    *,
    chooses: bool,
) -> RoundPlan:
    """A round of this shape over prompts that wait and, for the rest, new ones. chooses: whether it
    keeps the first to finish, of every domain its share."""
    num_new = shape.launch_prompts - len(waiting)
    upcoming = turn.upcoming(num_new + num_reserve)
    prompts = (*waiting, *upcoming[:num_new])
    return RoundPlan(
        step=turn.step,
        kind=shape.kind,
        layout=shape.kind,
        prompts=prompts,
        num_queued=len(waiting),
        launch_per_prompt=shape.launch_per_prompt,
        accept_prompts=shape.accept_prompts,
        accept_per_prompt=shape.accept_per_prompt,
        quotas=domain_quotas(prompts, shape.accept_prompts) if chooses else (),
        reserve=upcoming[num_new:],
        places=turn.places(len(upcoming)),
    )


def drain_round(turn: PlanningInputs, queue: tuple[PromptRef, ...]) -> RoundPlan:
    """The next of as few rounds as possible over this order of the queue, all of about the same
    size: a tiny last one would make a noisy update. It loads the engines like a long one.

    Without a reserve: nothing new is drawn, groups whose rewards agree are trained as they are.
    """
    num_rounds = math.ceil(len(queue) / turn.batch.prompts_per_step)
    prompts = queue[: math.ceil(len(queue) / num_rounds)]
    return RoundPlan(
        step=turn.step,
        kind=DRAIN,
        layout=LONG,
        prompts=prompts,
        num_queued=len(prompts),
        is_drain=True,
        launch_per_prompt=turn.batch.responses_per_prompt,
        accept_prompts=len(prompts),
        accept_per_prompt=turn.batch.responses_per_prompt,
    )
