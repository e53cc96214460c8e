"""The token ledger: every sampled token in exactly one column, named by its fate; and the bias of
acceptance, trained responses against all that were launched. Pure.

Leaves out tokens that were given within an episode, and tokens that are in no record: those that
died with an engine, and those that a load dropped because the coordinator that had requested them
was dead.

How acceptance biases the sample. Within a prompt: keeping the first R0 of eta_R*R0 verdicts keeps
the shortest ones; with eta_R = 1 nothing is chosen there. Between rounds: a prompt is deferred
because one of its answers was long, and answers again in a long round. If that round draws anew,
short answers have two chances to be trained and long ones one. If it draws with the same seeds
(`RoundInputs.request`), every prompt is trained on its first R0 draws, as far as the updates in
between have not changed the policy, and only the order of prompts has changed. Aborted responses
count with the tokens they had, so every difference reported here is smaller than the true one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from artifacts.records import Fate, Generated


def account_tokens(
    generated: Iterable[Generated],
    *,
    trained: Collection[str] = frozenset(),
    filtered: Collection[str] = frozenset(),
    is_evaluation: bool = False,
    stale_tokens: int = 0,
) -> dict[Fate, int]:
    """Tokens of a round by fate, every column of the ledger among them.

    `trained` and `filtered` hold response ids. Each record counts once, whatever its id; tokens
    that an episode lost when it began again are stale.
    """
    ledger = dict.fromkeys(Fate, 0)
    ledger[Fate.STALE] = stale_tokens
    for response in generated:
        fate = fate_of(response, trained, filtered, is_evaluation=is_evaluation)
        ledger[fate] += response.num_sampled
        ledger[Fate.STALE] += response.num_forgotten
    return ledger


def fate_of(
    response: Generated,
    trained: Collection[str],
    filtered: Collection[str] = frozenset(),
    *,
    is_evaluation: bool = False,
) -> Fate:
    """The ledger's column of a response's tokens. `trained` and `filtered` hold response ids."""
    if response.finish_reason == "aborted":
        return Fate.ABORTED
    if is_evaluation:
        return Fate.EVALUATED
    if response.response_id in trained:
        return Fate.TRAINED
    return Fate.FILTERED if response.response_id in filtered else Fate.DISCARDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The properties of a launched response by which the bias of acceptance is measured."""

    prompt_id: str  # its prompt
    num_tokens: int  # sampled tokens; a lower bound of its length if it was aborted
    reward: float | None  # its verdict; None if there was none in time
    fate: Fate  # the ledger's column of its tokens

    @property
    def is_accepted(self) -> bool:
        """True if the response was trained."""
        return self.fate is Fate.TRAINED


def acceptance_figures(launched: Sequence[Launched]) -> dict[str, float]:
    """The metrics of acceptance: length and reward of the accepted responses beside those of their
    siblings and of all; empty if none was accepted."""
    accepted = [response for response in launched if response.is_accepted]
    if not accepted:
        return {}
    chosen_from = {response.prompt_id for response in accepted}
    siblings = [response for response in launched if response.prompt_id in chosen_from]
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
    """Mean of the sampled tokens per response; 0 without a response."""
    return sum(response.num_tokens for response in launched) / max(len(launched), 1)


def mean_reward(launched: Sequence[Launched]) -> float:
    """Mean reward of the responses with a verdict; 0 without one."""
    rewards = [response.reward for response in launched if response.reward is not None]
    return sum(rewards) / max(len(rewards), 1)
