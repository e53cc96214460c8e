"""The events that a round scheduler handles, and the decisions that it may answer with.

    event -> scheduler.handle(event) -> list of decisions -> driver carries them out -> new events

All are frozen and compared with ``==``. Schedulers do no I/O, read no clock and draw no random
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from artifacts.prompt_ids import row_of
from artifacts.records import Outcome, Running
from tasks.scheduling.staleness import Admission


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRef:
    """A reference to a prompt, with all that schedulers know of the prompt."""

    prompt_id: str  # its id
    domain: str  # its quota key; "<domain>@<adapter>" in a run of several adapters

    @property
    def row(self) -> int:
        """The prompt's row of the dataset: the second part of its id, behind the epoch."""
        return row_of(self.prompt_id)


# --- events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A response has ended by itself or at its length bound."""

    prompt_id: str
    index: int
    num_tokens: int  # sampled ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A finished response has its verdict; INFRA if none could be reached after retries."""

    prompt_id: str
    index: int
    outcome: Outcome
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A launched response vanished with its engine and must be launched again."""

    prompt_id: str
    index: int


Event = Finished | Scored | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Every engine samples with this weight version, and the weight check has passed it."""

    version: int


# --- decisions ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Generate one response."""

    prompt_id: str
    index: int
    oldest_version: int = 0  # of the weights that may generate it


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Stop these responses; their partial tokens go to the waste ledger."""

    prompt_id: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptGroup:
    """Train this prompt on exactly these responses."""

    prompt_id: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defer:
    """Put this prompt at the end of the long-prompt queue."""

    prompt_id: str
    is_late: bool = False  # whether the reason is its deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Give this prompt up: too few of its responses can be scored, or it is too late to train them.
    The prompt leaves the run and is counted."""

    prompt_id: str
    # whether the reason is its deadline, or that the step's slots are filled without it
    is_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Leave this complete group untrained because its rewards agree. The prompt leaves the run, is
    counted, and takes no slot."""

    prompt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Carry:
    """Leave this prompt to the next round: running responses run on, finished ones are kept."""

    prompt_id: str
    version: int  # the newest that every engine had when the prompt was dispatched
    # of a complete prompt, the responses that it will be trained on: no others are wanted
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRound:
    """End the round: once the aborts before this are carried out, only responses of carried prompts
    still run."""


Decision = Launch | Abort | AcceptGroup | Defer | Drop | Filter | Carry | CloseRound


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Bounds on the accepted groups of a round that come from one domain."""

    domain: str
    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The plan of a round: the prompts that it launches, and the groups that it must accept."""

    step: int  # the step this round belongs to, from 1
    kind: str  # the name of such rounds in records, reports and pictures
    prompts: tuple[PromptRef, ...]  # launched prompts, in launch order
    launch_per_prompt: int  # responses launched per prompt (R0, or eta_R * R0 rounded)
    accept_prompts: int  # P0: groups to accept (fewer in a drain)
    accept_per_prompt: int  # R0: responses per accepted group
    # bounds on the accepted groups by domain, one for each domain of the prompts; empty without
    quotas: tuple[Quota, ...] = ()
    # further responses a prompt may launch in place of those without a verdict, before it is
    # dropped
    max_replacements: int = 4
    # asked in this order in place of filtered groups of their domain; empty filters nothing
    reserve: tuple[PromptRef, ...] = ()
    # places of the newly drawn candidates in the prompt stream, if that has unfit rows; else they
    # follow each other
    places: tuple[int, ...] = ()
    # how many of the prompts, the first ones after those that are carried, are the queue's head
    num_queued: int = 0
    is_drain: bool = False  # whether it is played after the last planned step
    is_evaluation: bool = False  # whether it asks held-out prompts and trains nothing
    # whether responses wait for their verdicts until nothing generates any more
    scores_last: bool = False
    # the kind of round in the policy's algebra that loads the engines like this one, for which one
    # tensor-parallel size is planned; empty leaves the engines as they are
    layout: str = ""
    # tokens of the longest answer that an earlier epoch trained of each candidate, 0 for none;
    # empty where the policy does not use these lengths
    expected_tokens: tuple[int, ...] = ()
    # whether running responses move between engines of the run alone, too
    balances: bool = False
    # asked in this order as weights are published, before the reserve; of asynchronous rounds
    upcoming: tuple[PromptRef, ...] = ()
    # bound on the prompts asked before newer weights are published; None in a synchronous round
    admission: Admission | None = None
    # whether the carried responses are stopped when the round closes, and no other round begins
    # before its step is trained
    pauses: bool = False
    # treatment of running responses when the step's weights are loaded
    at_update: Running = Running.DROP

    @property
    def num_carried(self) -> int:
        """Number of leading `prompts` that the round before left undecided."""
        return len(self.admission.carried) if self.admission else 0

    @property
    def versions(self) -> range:
        """Weight versions whose tokens the step may train: those within the bound on lag, or in a
        synchronous round only the version of the step before."""
        if self.admission is not None:
            return self.admission.versions(self.step)
        return range(self.step - 1, self.step)

    @property
    def mixes_versions(self) -> bool:
        """True if a response may have tokens of several weight versions."""
        return self.at_update is not Running.DRAIN

    @property
    def overlaps(self) -> bool:
        """True if the round is played while other steps train."""
        return self.admission is not None and not self.pauses

    @property
    def is_long(self) -> bool:
        """True if the round launches only deferred prompts, apart from its reserve."""
        return 0 < self.num_queued == len(self.prompts)

    @property
    def candidates(self) -> tuple[PromptRef, ...]:
        """Every prompt that the round may launch."""
        return (*self.prompts, *self.upcoming, *self.reserve)


class RoundScheduler(Protocol):
    """Decides one round. Call `start` once, then `handle` for every event until CloseRound."""

    def start(self) -> list[Decision]: ...

    def handle(self, event: Event) -> list[Decision]: ...

    def waiting_for(self) -> str:
        """Describe what the round still lacks, in one sentence for the deadline's error message."""
        ...


@runtime_checkable
class OverlappedScheduler(RoundScheduler, Protocol):
    """Decides a round during which weights may be published, because earlier steps still train."""

    def publish(self, event: Published) -> list[Decision]: ...
