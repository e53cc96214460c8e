"""A recorded run, and a workload made of what it recorded (`RunWork`).

    responses/, steps/, manifest of a run's store ──▶ RecordedRun ──▶ RecordedWork, `calibration`
    row of a simulated data set ──▶ the prompt at that place; behind the last one any of them, drawn

A replayed response has its recorded length, verdict and seconds of scoring. What was not recorded
(other indices, other seeds, further prompts) is drawn from the recorded responses of its prompt. A
response that the bound or an abort cut is only known to be at least so long: its further length is
drawn from an exponential law, whose mean is estimated from all lengths above the median (maximum
likelihood under censoring). The simulated learner computes a shared prefix of recorded sequences
once. Leaves out that a call with more tokens than one row computes shared tokens once per row, and
histories that a chat template rendered anew.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from artifacts.commit import StepCommit, read_commits, read_manifest
from artifacts.journal import Journal
from artifacts.prompt_ids import row_of
from artifacts.records import Generated, Outcome, Response, Score, num_computed
from artifacts.store import Store
from artifacts.tables import ResponseRow
from tasks.engines.mailbox import Mailbox
from tasks.learner.dealing import GroupPart, has_equal_rewards
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.packing import shared_prefix
from tasks.simulation.draws import uniform
from tasks.simulation.protocols import GradientWork


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A committed step of a recorded run."""

    commit: StepCommit
    rows: tuple[ResponseRow, ...]  # its responses

    @property
    def metrics(self) -> Mapping[str, float]:
        """Figures of the step by name, see `tasks.metrics.step_metrics`."""
        return self.commit.metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """Configuration and committed steps of a recorded run. Raises ValueError without a step."""

    config: Mapping[str, Any]  # the effective configuration; Any: JSON values
    steps: tuple[RecordedStep, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a recorded run must have at least one committed step, got none")

    @property
    def rows(self) -> tuple[ResponseRow, ...]:
        """All responses, step by step."""
        return tuple(row for step in self.steps for row in step.rows)

    @property
    def longest_tokens(self) -> int:
        """Bound on the tokens of a response."""
        return int(self.config["sampling"]["max_response_tokens"])


def read_run(store: Store) -> RecordedRun:
    """Read the committed steps of the run in this store. Raises ValueError if there are none."""
    journal = Journal(store)
    return RecordedRun(
        config=read_manifest(store).config,
        steps=tuple(
            RecordedStep(commit=commit, rows=tuple(journal.read(commit.step)))
            for commit in read_commits(store)
        ),
    )


class PrefixTree:
    """Named token sequences in lexicographic order. In this order two sequences share as many first
    tokens as the least that any two neighbours between them share."""

    def __init__(self, sequences: Mapping[str, tuple[int, ...]]) -> None:
        order = sorted(sequences, key=sequences.__getitem__)
        ordered = [sequences[name] for name in order]
        shared = [shared_prefix(before, after) for before, after in pairwise(ordered)]
        self.lengths = {name: len(sequence) for name, sequence in sequences.items()}
        self._ranks = {name: rank for rank, name in enumerate(order)}
        self._shared = np.array([0, *shared, 0])  # of each and the one before it

    def num_nodes(self, taken: Iterable[tuple[str, int]]) -> int:
        """Count the nodes of the prefix tree of these sequences, each given as its name and how
        many of its tokens are taken. A sequence that is taken twice stands for two that share as
        many tokens as it shares with its closest neighbour."""
        ordered = sorted((self._ranks[name], length) for name, length in taken)
        nodes = sum(length for _, length in ordered)
        for (before, length), (after, other) in pairwise(ordered):
            between = self._shared[before + 1 : after + 1]
            shared = between.min() if len(between) else self._shared[after : after + 2].max()
            nodes -= min(int(shared), length, other)
        return nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResponse:
    """A response as it was recorded."""

    name: str  # among the run's
    num_tokens: int
    is_cut: bool  # whether it would have gone on
    reward: float  # 0 without a verdict
    scored_s: float | None  # seconds from its last token to its verdict; None without one


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPrompt:
    """A prompt and its recorded responses, by index; at least one."""

    domain: str
    token_ids: tuple[int, ...]
    responses: Mapping[int, RecordedResponse]

    def response(self, index: int, seed: int, prompt_id: str) -> RecordedResponse:
        """Returns the recorded response of this index with seed 0, else a drawn response to the
        same prompt. Length, verdict and seconds of scoring belong to that one response."""
        if index in self.responses and not seed:
            return self.responses[index]
        siblings = list(self.responses.values())
        return siblings[int(uniform(seed, "sibling", prompt_id, index) * len(siblings))]


@dataclass(frozen=True, kw_only=True)
class RecordedWork:
    """A workload of recorded prompts, in the order in which they were asked (`RunWork`)."""

    prompts: tuple[RecordedPrompt, ...]
    longest_tokens: int  # bound on a response, of the simulated run
    mean_excess: float  # expected tokens that a cut response still had to go
    tree: PrefixTree  # of what a learner computes of all responses
    flat_costs: bool  # whether the learner computed groups without a gradient

    def domains(self, num_rows: int) -> tuple[str, ...]:
        """Returns the domain of each of the first num_rows rows."""
        return tuple(self._at(row).domain for row in range(num_rows))

    def prompt_tokens(self, prompt_id: str) -> int:
        """Returns the length of a prompt in tokens."""
        return len(self.question(prompt_id))

    def question(self, prompt_id: str) -> tuple[int, ...]:
        """Returns the recorded tokens of a prompt: groups are dealt to ranks by the first tokens of
        their prompts."""
        return self._at(row_of(prompt_id)).token_ids

    def writer(self, step: int, seed: int) -> RecordedLengths:
        """Returns the lengths of the responses, which are the same in every step. seed: 0 gives the
        recorded lengths."""
        return RecordedLengths(self, seed)

    def feed(self, machine: Any, seed: int) -> RecordedFeed:  # Any: it was scored there
        """Returns a feed whose verdicts come after the recorded seconds, which include the wait for
        workers."""
        return RecordedFeed(self, seed)

    def gradients(self, seed: int) -> GradientWork:
        """Returns the cost of groups for a learner like the recorded one."""
        return GradientWork(
            flat_costs=self.flat_costs, num_tokens=partial(self._computed_tokens, seed)
        )

    def scored_s(self, prompt_id: str, index: int, seed: int) -> float:
        """Returns the seconds from a response's last token to its verdict. Without a recorded
        verdict: the mean over the prompt's responses, and if they have none, over all responses."""
        prompt = self._at(row_of(prompt_id))
        told = prompt.response(index, seed, prompt_id).scored_s
        return told if told is not None else _mean_scored_s([prompt], _mean_scored_s(self.prompts))

    def reward(self, seed: int, prompt_id: str, index: int, *, is_cut: bool) -> float:
        """Returns the recorded reward; 0 if only the simulated bound cuts the response."""
        told = self._at(row_of(prompt_id)).response(index, seed, prompt_id)
        return told.reward if told.is_cut or not is_cut else 0.0

    def num_tokens(self, prompt_id: str, index: int, seed: int, noise: int) -> int:
        """Returns the length of a response in tokens, at most one more than the bound: such a
        response is cut."""
        response = self._at(row_of(prompt_id)).response(index, seed, prompt_id)
        length = float(response.num_tokens)
        if response.is_cut:
            further = uniform(seed, "goes on", prompt_id, noise, index)
            length += 1 - self.mean_excess * math.log(further)
        return max(1, round(min(length, self.longest_tokens + 1)))

    def _computed_tokens(self, seed: int, parts: Sequence[GroupPart]) -> int:
        costly = [part for part in parts if self.flat_costs or not has_equal_rewards(part.group)]
        return self.tree.num_nodes(
            self._taken(part.group.responses[place].generated, seed)
            for part in costly
            for place in part.places
        )

    def _taken(self, generated: Generated, seed: int) -> tuple[str, int]:
        """Returns the name of the recorded sequence that a response stands for, and how many of its
        tokens are computed: more or fewer than recorded where the simulated response is longer or
        shorter."""
        prompt = self._at(row_of(generated.prompt_id))
        told = prompt.response(generated.index, seed, generated.prompt_id)
        return told.name, self.tree.lengths[told.name] + generated.num_sampled - told.num_tokens

    def _at(self, row: int) -> RecordedPrompt:
        if row < len(self.prompts):
            return self.prompts[row]
        return self.prompts[int(uniform(0, "further prompt", row) * len(self.prompts))]


@dataclass(frozen=True, slots=True)
class RecordedLengths:
    """Response lengths of a recorded workload under one seed (`Lengths`)."""

    work: RecordedWork
    seed: int

    def tokens(self, prompt_id: str, index: int, noise: int = 0) -> int:
        return self.work.num_tokens(prompt_id, index, self.seed, noise)


class RecordedFeed:
    """A `ScoreFeed` whose verdicts come after the recorded seconds, on the event loop's clock."""

    def __init__(self, work: RecordedWork, seed: int) -> None:
        self._work = work
        self._seed = seed
        # when the verdict comes, by response and its end: what is asked anew ends at another time
        self._due_s: dict[tuple[str, float], float] = {}
        self._scores = Mailbox[Score]()

    async def publish(self, generated: Sequence[Generated]) -> None:
        loop = asyncio.get_running_loop()
        for response in generated:
            now_s, name = loop.time(), (response.response_id, response.finished_s)
            took_s = self._work.scored_s(response.prompt_id, response.index, self._seed)
            due_s = self._due_s.setdefault(name, now_s + took_s)
            score = self._score(response, now_s, max(now_s, due_s))
            loop.call_at(score.finished_s, self._scores.put, score)

    async def scored(self, wait_s: float) -> list[Score]:
        return await self._scores.take(wait_s)

    def _score(self, response: Generated, started_s: float, finished_s: float) -> Score:
        is_cut = response.finish_reason == "length"
        name = response.prompt_id, response.index
        reward = self._work.reward(self._seed, *name, is_cut=is_cut)
        return Score(
            prompt_id=response.prompt_id,
            index=response.index,
            reward=reward,
            outcome=Outcome.OK if reward > 0 else Outcome.WRONG,
            detail="simulated",
            scorer="simulated",
            started_s=started_s,
            finished_s=finished_s,
        )


def recorded_work(run: RecordedRun, longest_tokens: int = 0) -> RecordedWork:
    """Make a workload of a recorded run. longest_tokens: another bound on responses; 0 keeps the
    recorded bound. Raises ValueError if the responses of the run are gone."""
    rows: dict[str, list[ResponseRow]] = {}
    for row in run.rows:
        rows.setdefault(row.prompt.prompt_id, []).append(row)
    if not rows:
        raise ValueError(
            "a recorded run must have its responses to be played, got none; name one whose folder"
            " responses/ is still there"
        )
    began_s = {step.commit.step: step.commit.timings["started_s"] for step in run.steps}
    prompts: list[RecordedPrompt] = []
    sequences: dict[str, tuple[int, ...]] = {}  # that a learner computes, by response id
    for of_prompt in rows.values():
        prompt, longest = of_prompt[0].prompt, _furthest(of_prompt)
        for row in longest.values():
            generated = row.response.generated
            num_learned = max(0, num_computed(generated) - 1)  # the last one predicts nothing
            learned = prompt.token_ids + generated.token_ids[:num_learned]
            sequences[generated.response_id] = learned
        responses = {index: _response(row, began_s[row.step]) for index, row in longest.items()}
        prompts.append(
            RecordedPrompt(domain=prompt.domain, token_ids=prompt.token_ids, responses=responses)
        )
    return RecordedWork(
        prompts=tuple(prompts),
        longest_tokens=longest_tokens or run.longest_tokens,
        mean_excess=mean_excess(
            [response for prompt in prompts for response in prompt.responses.values()]
        ),
        tree=PrefixTree(sequences),
        flat_costs=LearnerConfig.model_validate(run.config["learner"]).flat_groups_cost,
    )


def resampled(work: RecordedWork, draw: int) -> RecordedWork:
    """Draw as many prompts as the workload has, with replacement. Played with a seed other than 0,
    which also draws the responses of each prompt, the result is a bootstrap sample of the record.
    """
    num_prompts = len(work.prompts)
    places = (int(uniform(draw, "resampled", place) * num_prompts) for place in range(num_prompts))
    prompts = tuple(work.prompts[place] for place in places)
    responses = [response for prompt in prompts for response in prompt.responses.values()]
    return replace(work, prompts=prompts, mean_excess=mean_excess(responses))


def mean_excess(responses: Sequence[RecordedResponse]) -> float:
    """Expected further tokens of a response that is longer than the median: the tokens above the
    median, over the number of those responses that ended by themselves. If half of the responses or
    more were cut at the bound, none is longer than the median; then all tokens over all ended
    responses."""
    middle = median(response.num_tokens for response in responses)
    above = [response for response in responses if response.num_tokens > middle]
    if not above:
        middle, above = 0, list(responses)
    num_ended = sum(not response.is_cut for response in above)
    return sum(response.num_tokens - middle for response in above) / max(1, num_ended)


def _furthest(rows: Sequence[ResponseRow]) -> dict[int, ResponseRow]:
    """Returns a prompt's responses by index; of several records of one response, the longest."""
    longest: dict[int, ResponseRow] = {}
    for row in rows:
        generated = row.response.generated
        known = longest.get(generated.index)
        if known is None or generated.num_sampled >= known.response.generated.num_sampled:
            longest[generated.index] = row
    return longest


def _response(row: ResponseRow, began_s: float) -> RecordedResponse:
    generated, score = row.response.generated, row.response.score
    return RecordedResponse(
        name=generated.response_id,
        num_tokens=generated.num_sampled,
        is_cut=generated.finish_reason != "stop",
        reward=score.reward or 0.0 if score is not None else 0.0,
        scored_s=_scored_s(row.response, began_s),
    )


def _scored_s(response: Response, began_s: float) -> float | None:
    """Returns the seconds from the last token to the verdict. If the response ended before its step
    began and was scored in that step, only the seconds of scoring: the time between two rounds or
    two attempts is no wait for the verdict."""
    score, ended_s = response.score, response.generated.finished_s
    if score is None:
        return None
    is_taken_over = ended_s < began_s <= score.started_s
    return max(0.0, score.finished_s - (score.started_s if is_taken_over else ended_s))


def _mean_scored_s(prompts: Sequence[RecordedPrompt], otherwise: float = 0.0) -> float:
    told = [
        response.scored_s
        for prompt in prompts
        for response in prompt.responses.values()
        if response.scored_s is not None
    ]
    return fmean(told) if told else otherwise
