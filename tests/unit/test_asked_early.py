"""Asking further prompts early changes when a synchronous round is over, and nothing else of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from round_factories import make_plan

from artifacts.records import Outcome
from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    CloseRound,
    Decision,
    Drop,
    Filter,
    Finished,
    Launch,
    RoundPlan,
    Scored,
)
from tasks.scheduling.wait_for_all import WaitForAll


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What the answers to a round's prompts are worth."""

    seed: int
    infra_share: float  # of the responses, which have no verdict

    def reward(self, prompt_id: str, index: int) -> float | None:
        """The same whenever it is asked; half of the prompts are always answered alike."""
        draws = random.Random(f"{self.seed} {prompt_id} {index}")
        if draws.random() < self.infra_share:
            return None
        about = random.Random(f"{self.seed} {prompt_id}")
        return float(draws.random() < 0.5) if about.random() < 0.5 else float(about.random() < 0.5)


class Played:
    """A round in which responses finish in a random order."""

    def __init__(self, plan: RoundPlan, questions: Questions, order: random.Random) -> None:
        self.accepted: dict[str, set[float | None]] = {}  # rewards by prompt
        self.filtered: set[str] = set()
        self.dropped: set[str] = set()
        self.asked: set[tuple[str, int]] = set()
        self.most_running = 0
        self._running: list[tuple[str, int]] = []
        self._questions = questions
        self.is_closed = False
        scheduler = WaitForAll(plan)
        self._carry_out(scheduler.start())
        while not self.is_closed:
            prompt_id, index = self._running.pop(order.randrange(len(self._running)))
            reward = questions.reward(prompt_id, index)
            outcome = Outcome.INFRA if reward is None else Outcome.OK
            self._carry_out(
                [
                    *scheduler.handle(Finished(prompt_id=prompt_id, index=index, num_tokens=1)),
                    *scheduler.handle(
                        Scored(prompt_id=prompt_id, index=index, outcome=outcome, reward=reward)
                    ),
                ]
            )
        assert not self._running, "nothing runs when a round is over"

    def _carry_out(self, decisions: list[Decision]) -> None:
        assert not self.is_closed
        for decision in decisions:
            match decision:
                case Launch(prompt_id=prompt_id, index=index):
                    assert (prompt_id, index) not in self.asked, "nothing is asked twice"
                    self.asked.add((prompt_id, index))
                    self._running.append((prompt_id, index))
                case Abort(prompt_id=prompt_id, indices=indices):
                    for index in indices:
                        self._running.remove((prompt_id, index))
                case AcceptGroup(prompt_id=prompt_id, indices=indices):
                    reward = self._questions.reward
                    self.accepted[prompt_id] = {reward(prompt_id, index) for index in indices}
                case Filter(prompt_id=prompt_id):
                    self.filtered.add(prompt_id)
                case Drop(prompt_id=prompt_id):
                    self.dropped.add(prompt_id)
                case CloseRound():
                    self.is_closed = True
        self.most_running = max(self.most_running, len(self._running))

    @property
    def taught(self) -> set[str]:
        """Accepted prompts whose rewards differ."""
        return {prompt_id for prompt_id, rewards in self.accepted.items() if len(rewards) > 1}

    @property
    def decided(self) -> set[str]:
        """Prompts of which the prompt stream hears that they were asked."""
        return {*self.accepted, *self.filtered, *self.dropped}


@given(
    domains=st.lists(st.sampled_from("ab"), min_size=1, max_size=6),
    reserve=st.lists(st.sampled_from("ab"), max_size=6),
    accept_per_prompt=st.integers(2, 8),
    infra_share=st.sampled_from([0.0, 0.0, 0.2]),
    seeds=st.tuples(*[st.integers(0, 10**6)] * 3),
)
def test_a_round_that_asks_early_trains_what_it_would_train_anyway(
    domains: list[str],
    reserve: list[str],
    accept_per_prompt: int,
    infra_share: float,
    seeds: tuple[int, int, int],
) -> None:
    """Whatever finishes first, early and late. Which of the groups that teach nothing are trained
    when the reserve is used up is the one thing that hangs on it, with and without asking early."""
    plan = make_plan(domains=domains, accept_per_prompt=accept_per_prompt, reserve=reserve)
    questions = Questions(seed=seeds[0], infra_share=infra_share)
    early = Played(plan, questions, random.Random(seeds[1]))
    late = Played(replace(plan, scores_last=True), questions, random.Random(seeds[2]))
    assert early.taught == late.taught
    assert early.decided == late.decided
    assert early.dropped == late.dropped
    assert len(early.filtered) == len(late.filtered)
    assert len(early.accepted) + len(early.dropped) == plan.accept_prompts
    assert late.asked <= early.asked
    if not infra_share:  # a response without a verdict is replaced, room or not
        assert early.most_running <= len(domains) * accept_per_prompt
