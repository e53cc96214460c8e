"""From accepted groups to samples: the responses that are trained, their advantages and weights.

An update's loss is sum(weight * token loss) / sum(normaliser), both over all ranks, divided once
(invariants 4 and 5, docs/architecture.md); its tokens are those that the model sampled (14). Leaves
out the division (`trainer`), packing and tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.records import (
    Generated,
    Group,
    Routes,
    Score,
    ShownPicture,
    VersionSpan,
    sampled_versions,
)
from tasks.learner.advantage import Moments, ReinforcePlusPlusAdvantage, step_moments
from tasks.learner.credit import Credit, token_mean, turn_advantages
from tasks.learner.dealing import GroupPart, as_part
from tasks.learner.overlong import AS_SCORED, Overlong
from tasks.learner.packing import NO_ROUTES, Ints, Sample
from tasks.rewards.base import checked_reward


class TokenMean(FrozenConfig):
    """Every token counts the same: long responses weigh more than short ones."""

    kind: Literal["token_mean"] = Field(
        default="token_mean", description="Mean over all tokens of the update."
    )

    def of(self, num_tokens: int) -> tuple[float, float]:
        return 1.0, float(num_tokens)


class SequenceMean(FrozenConfig):
    """Every response counts the same, an episode as one response: the mean over responses of the
    mean over their tokens (GRPO as published)."""

    kind: Literal["sequence_mean"] = Field(
        default="sequence_mean", description="Mean over responses of their tokens' mean."
    )

    def of(self, num_tokens: int) -> tuple[float, float]:
        return 1.0 / num_tokens, 1.0


class ConstantLength(FrozenConfig):
    """The mean over responses of their token sums over a constant (Dr.GRPO)."""

    kind: Literal["constant"] = Field(
        default="constant", description="Mean over responses of their token sum over a constant."
    )
    length_tokens: int = Field(
        default=256, ge=1, description="The constant; usually the bound on response tokens."
    )

    def of(self, num_tokens: int) -> tuple[float, float]:
        return 1.0 / self.length_tokens, 1.0


AggregationConfig = Annotated[
    TokenMean | SequenceMean | ConstantLength, Field(discriminator="kind")
]
"""`of(num_tokens)` gives a response's weight per token and its addition to the normaliser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSet:
    """The samples of some groups, and what they add to the sums of an update."""

    samples: tuple[Sample, ...]  # every response that is in the loss
    normaliser: float  # what the samples add to the divisor of the loss
    num_groups: int  # groups given
    num_groups_flat: int  # groups whose advantages are all zero
    num_responses_excluded: int  # responses without a verdict or without a sampled token
    num_responses_masked: int  # truncated responses that `overlong` leaves out
    adapter: str = ""  # that sampled them, and is trained on them; empty for one, or none

    def __reduce__(self) -> tuple[Any, ...]:  # Any: the types of the values
        """Pickle as columns: the arrays of all samples joined, every prompt once, the rest by
        sample as tuples of numbers."""
        samples = self.samples
        prompts = {id(sample.prompt): sample.prompt for sample in samples}
        places = {name: place for place, name in enumerate(prompts)}
        responses = np.concatenate([_NO_TOKENS, *(sample.response for sample in samples)])
        logprobs = np.concatenate([_NO_LOGP, *(sample.sampling_logp for sample in samples)])
        numbers = [
            (
                places[id(sample.prompt)],
                len(sample.response),
                tuple((own.start, own.stop) for own in sample.sampled),
                sample.advantages,
                sample.reward,
                sample.weight,
                tuple((span.version, span.num_tokens) for span in sample.versions),
                sample.restarts,
                sample.pictures,
                sample.routes,
            )
            for sample in samples
        ]
        counts = [getattr(self, each.name) for each in fields(self)[1:]]
        return _from_columns, (counts, [*prompts.values()], responses, logprobs, numbers)


def _from_columns(
    counts: Sequence[Any],  # Any: as below
    prompts: Sequence[Ints],
    responses: Ints,
    logprobs: NDArray[np.float32],
    numbers: Iterable[tuple[Any, ...]],  # Any: what `__reduce__` puts there
) -> TrainingSet:
    samples: list[Sample] = []
    begin = first = 0  # of the sample's tokens, and of those among them that were sampled
    for given in numbers:
        place, length, pairs, advantages, reward, weight, versions, restarts, *rest = given
        pictures, routes = rest
        end, sampled = begin + length, tuple(range(*pair) for pair in pairs)
        last = first + sum(map(len, sampled))
        made = Sample(
            prompt=prompts[place],
            response=responses[begin:end],
            sampled=sampled,
            sampling_logp=logprobs[first:last],
            advantages=advantages,
            reward=reward,
            weight=weight,
            versions=tuple(VersionSpan(version=own, num_tokens=num) for own, num in versions),
            restarts=restarts,
            pictures=pictures,
            routes=routes,
        )
        samples.append(made)
        begin, first = end, last
    names = [each.name for each in fields(TrainingSet)[1:]]
    return TrainingSet(samples=tuple(samples), **dict(zip(names, counts, strict=True)))


_NO_TOKENS, _NO_LOGP = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)


def training_set(
    groups: Sequence[Group | GroupPart],
    advantage: Credit,
    normalisation: TokenMean | SequenceMean | ConstantLength,
    overlong: Overlong = AS_SCORED,
) -> TrainingSet:
    """Make samples in the order of groups and responses. Responses without a verdict change neither
    a mean nor a normaliser. A part of a group trains its own responses, with the whole group's
    advantages; the part with its first response counts the group in the statistics."""
    samples: list[Sample] = []
    normaliser = 0.0
    num_flat = num_excluded = num_masked = 0
    parts = [as_part(group) for group in groups]
    for part in parts:
        group = part.group
        rewards = _rewards(group, overlong)
        advantages = turn_advantages(group, rewards, advantage, part.moments)
        prompt = np.array(group.prompt.token_ids, dtype=np.int64)
        num_flat += part.is_first and not any(map(any, filter(None, advantages)))
        for place in part.places:
            generated = group.responses[place].generated
            of_turns, reward = advantages[place], rewards[place]
            num_sampled = generated.num_sampled
            if of_turns is None or reward is None or not num_sampled:
                num_excluded += 1
                continue
            if overlong.is_masked(generated):
                num_masked += 1
                continue
            weight, addition = normalisation.of(num_sampled)
            normaliser += addition
            made = _sample(prompt, group.prompt.pictures, generated, of_turns, reward, weight)
            samples.append(made)
    return TrainingSet(
        samples=tuple(samples),
        normaliser=normaliser,
        num_groups=sum(part.is_first for part in parts),
        num_groups_flat=num_flat,
        num_responses_excluded=num_excluded,
        num_responses_masked=num_masked,
    )


def _sample(
    prompt: Ints,
    pictures: tuple[ShownPicture, ...],
    generated: Generated,
    advantages: tuple[float, ...],
    reward: float,
    weight: float,
) -> Sample:
    """Make the training sample of one response."""
    sampled, num_tokens = generated.sampled, len(generated.token_ids)
    logprobs = np.fromiter(generated.logprobs, np.float32, num_tokens)
    return Sample(
        prompt=prompt,
        response=np.fromiter(generated.token_ids, np.int64, num_tokens),
        sampled=sampled,
        restarts=generated.restarts,
        sampling_logp=np.concatenate([logprobs[each.start : each.stop] for each in sampled]),
        advantages=advantages,
        reward=reward,
        weight=weight,
        versions=sampled_versions(generated),
        pictures=(*pictures, *(picture.moved(len(prompt)) for picture in generated.pictures)),
        routes=routes_of(generated.routes),
    )


def routes_of(routes: Routes | None) -> NDArray[np.uint8] | NDArray[np.int16]:
    """(tokens, width): the numbers of recorded routes."""
    if routes is None:
        return NO_ROUTES
    if routes.num_bytes == 1:
        return np.frombuffer(routes.data, np.uint8).reshape(-1, routes.width)
    return np.frombuffer(routes.data, np.int16).reshape(-1, routes.width)


def advantages_of(
    groups: Sequence[Group],
    advantage: Credit,
    overlong: Overlong = AS_SCORED,
    moments: Moments | None = None,
) -> dict[str, float]:
    """The advantage of each response that is in the loss, by response id; where turns have
    advantages of their own, their mean over sampled tokens."""
    found: dict[str, float] = {}
    for group in groups:
        by_response = turn_advantages(group, _rewards(group, overlong), advantage, moments)
        for response, of_turns in zip(group.responses, by_response, strict=True):
            generated = response.generated
            if of_turns is None or not generated.num_sampled or overlong.is_masked(generated):
                continue
            found[generated.response_id] = token_mean(of_turns, generated.sampled)
    return found


def moments_of(
    groups: Sequence[Group], advantage: Credit, overlong: Overlong = AS_SCORED
) -> Moments | None:
    """The moments of all rewards of a step; None for an advantage that does not need them."""
    if not isinstance(advantage, ReinforcePlusPlusAdvantage):
        return None
    return step_moments([_rewards(group, overlong) for group in groups], advantage)


def _rewards(group: Group, overlong: Overlong) -> list[float | None]:
    """The group's rewards after overlong shaping. Raises ValueError if it cannot be trained."""
    name = group.prompt.prompt_id
    if not group.prompt.token_ids:
        raise ValueError(
            f"a prompt must have at least one token, {name!r} has none; check the chat template"
        )
    rewards: list[float | None] = []
    for response in group.responses:
        generated = response.generated
        if response.score is None:
            raise ValueError(
                f"only scored responses are trained, {generated.response_id!r} has no score; wait"
                " for its reward"
            )
        _check_tokens(generated)
        _check_rewards(response.score, generated)
        reward = response.score.reward
        rewards.append(None if reward is None else overlong.shaped(reward, generated))
    return rewards


def _check_rewards(score: Score, generated: Generated) -> None:
    """Raises ValueError for a recorded reward out of range: older versions accepted any number."""
    turns = generated.episode.turns if generated.episode else ()
    for reward in (score.reward, *(turn.reward for turn in turns)):
        try:
            checked_reward(0 if reward is None else reward)
        except ValueError as error:
            raise ValueError(
                f"the records of this step have a reward of {score.scorer} that cannot be trained"
                f" on ({generated.response_id!r}): {error}; mend the reward and begin a new run"
            ) from error


def _check_tokens(generated: Generated) -> None:
    name, num_tokens = generated.response_id, len(generated.token_ids)
    if len(generated.logprobs) != num_tokens:
        raise ValueError(
            f"every token needs its sampling_logp log-probability, {name!r} has {num_tokens} tokens"
            f" and {len(generated.logprobs)} log-probabilities; ask the engine for"
            " log-probabilities"
        )
    if generated.episode is None:
        return
    in_turns = sum(turn.num_tokens for turn in generated.episode.turns)
    assert in_turns == num_tokens, f"the turns of {name} have {in_turns} of {num_tokens} tokens"
