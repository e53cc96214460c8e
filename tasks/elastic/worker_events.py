"""What the rules of membership hear of workers that a run did not start, and what they answer.

    event -> Membership.handle(event) -> decisions -> the keeper carries them out -> new events

All are frozen and compared with ``==``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tasks.elastic.worker_limits import Limit

WorkerState = Literal["building", "present", "leaving", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """What a worker says of itself."""

    name: str  # that its owner gave it
    versions: Mapping[str, str]  # of the packages that must be the run's, by name
    price_class: str  # what an hour of it costs, by the name of the price
    devices: tuple[str, ...]  # that its engine works on
    knows_token: bool  # whether it has shown that it knows the run's token
    lease_s: float  # it says that it is there four times in that time
    has_served: bool = False  # whether its process has held an engine before


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """How long it took until an elastic worker held its weights, seconds."""

    build_s: float = 0.0  # its engine, with the model's folder on the way there
    pull_s: float = 0.0  # the version that it holds, on the way there
    load_s: float = 0.0  # that version into the engine, and through the gate


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedWorker:
    """A process of a worker that was admitted."""

    name: str  # of its engine: the worker's, and which of its processes it is
    worker: str  # name of the worker
    address: str  # Dask's, of the process
    price_class: str
    devices: tuple[str, ...]
    state: WorkerState
    since_s: float  # when it was admitted, Unix seconds
    lease_s: float  # so long it may be silent
    renewed_s: float  # when its lease was renewed last
    version: int | None = None  # weights that it holds; None before the first
    joined_s: float | None = None  # when it held weights for the first time, Unix seconds
    took: Took = Took()  # to hold those that it holds
    # when it pulled and loaded each version that it held, (start, end) in Unix seconds
    transfers: tuple[tuple[float, float], ...] = ()
    leaving_s: float | None = None  # when it said that it leaves, Unix seconds
    # when it was heard of last, Unix seconds; of one that was gone without a word
    lost_s: float | None = None
    until_s: float | None = None  # when it was gone
    reason: str = ""  # why it leaves or is gone
    missed: Limit | None = None  # which limit it missed, if that is why it is gone


# --- what happens ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """All workers that offer themselves, at this time; the clock of the rules."""

    at_s: float
    workers: frozenset[str]  # their addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRead:
    """A worker said who it is."""

    at_s: float
    address: str
    applicant: Applicant


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUnread:
    """A worker could not say who it is."""

    address: str
    reason: str
    may_try_again: bool  # whether another process of it may be able to


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """A worker said that it is there."""

    at_s: float
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """A worker said that it will end."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An elastic worker's engine holds this version, and has passed the gate."""

    at_s: float
    elastic_worker: str
    version: int
    took: Took = Took()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An elastic worker's engine was not built, or does not hold the weights."""

    elastic_worker: str
    reason: str
    missed: Limit | None = None  # which limit it missed, if that is why


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A round has nothing more to expect of an elastic worker, which may live and run old
    requests."""

    elastic_worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptied:
    """An elastic worker that leaves runs nothing any more."""

    elastic_worker: str


WorkerEvent = (
    Looked | CardRead | CardUnread | Renewed | Leaves | Loaded | Failed | GivenUp | Emptied
)


# --- what is to be done ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCard:
    """Ask this worker who it is."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Build an engine there, and give it the weights."""

    elastic_worker: AdmittedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Tell this worker why it may not come; its process ends."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Rounds may ask this elastic worker."""

    elastic_worker: AdmittedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Rounds ask this elastic worker no more, and take away what it runs."""

    elastic_worker: AdmittedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """This elastic worker is gone: nobody waits for it."""

    elastic_worker: AdmittedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss:
    """End this process for good: nobody needs to start it again."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """End this process, if it is there; whoever started it may start another, which is welcome."""

    address: str
    reason: str


MemberDecision = AskCard | Admit | Refuse | Join | Drain | Forget | Dismiss | Renew
