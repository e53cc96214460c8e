"""What acceptance does to the sample: trained responses against all that were launched.

Within a prompt: keeping the first R0 of eta_R*R0 verdicts keeps the shortest ones; with eta_R = 1
nothing is chosen there. Between rounds: a prompt is deferred because one of its answers was long,
and answers again in a long round. If that round draws anew, short answers have two chances to be
trained and long ones one, even with eta_R = 1. If it draws with the same seeds
(`tasks.rounds.driver`), every prompt is trained on its first R0 draws, as far as the updates in
between have left the law alone, and only the order of prompts has changed. An engine without such
draws would keep this second, smaller bias; synchronous rounds have neither. Aborted responses
count with the tokens they had, so every difference reported here is smaller than the true one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from artifacts.records import Fate, Generated
from tasks.scheduling.ledger import fate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launched response as the measurement sees it."""

    prompt_id: str  # its prompt
    num_tokens: int  # sampled tokens; a lower bound of its length if it was aborted
    reward: float | None  # its verdict; None if there was none in time
    fate: Fate  # the ledger's column of its tokens

    @property
    def is_accepted(self) -> bool:
        """Whether it was trained."""
        return self.fate is Fate.TRAINED


def launched_of(
    generated: Iterable[Generated],
    rewards: Mapping[str, float | None],
    *,
    trained: Collection[str],
    filtered: Collection[str],
) -> list[Launched]:
    """All responses of a training round; `rewards` by response id, `trained` and `filtered` hold
    response ids."""
    return [
        Launched(
            prompt_id=response.prompt_id,
            num_tokens=response.num_sampled,
            reward=rewards.get(response.response_id),
            fate=fate_of(response, trained, filtered),
        )
        for response in generated
    ]


def siblings_of_accepted(launched: Sequence[Launched]) -> list[Launched]:
    """Every launched response of the prompts that were accepted: what the accepted ones were chosen
    from."""
    accepted = {response.prompt_id for response in launched if response.is_accepted}
    return [response for response in launched if response.prompt_id in accepted]


def acceptance_figures(launched: Sequence[Launched]) -> dict[str, float]:
    """Length and reward of the accepted responses beside those of their siblings and of all; empty
    if none was accepted."""
    accepted = [response for response in launched if response.is_accepted]
    if not accepted:
        return {}
    siblings = siblings_of_accepted(launched)
    return {
        "acceptance/accepted_tokens_mean": mean_tokens(accepted),
        "acceptance/sibling_tokens_mean": mean_tokens(siblings),
        "acceptance/launched_tokens_mean": mean_tokens(launched),
        "acceptance/accepted_reward_mean": mean_reward(accepted),
        "acceptance/launched_reward_mean": mean_reward(launched),
        "acceptance/length_bias_fraction": mean_tokens(accepted) / max(mean_tokens(siblings), 1.0)
        - 1.0,
        "acceptance/reward_bias": mean_reward(accepted) - mean_reward(siblings),
    }


def mean_tokens(launched: Sequence[Launched]) -> float:
    """Mean tokens; 0 without a response."""
    return sum(response.num_tokens for response in launched) / max(len(launched), 1)


def mean_reward(launched: Sequence[Launched]) -> float:
    """Mean reward of those with a verdict; 0 without one."""
    rewards = [response.reward for response in launched if response.reward is not None]
    return sum(rewards) / max(len(rewards), 1)
