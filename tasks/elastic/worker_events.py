"""Events and decisions of `WorkerAdmission`: the keeper carries decisions out, which makes new
events. All are compared with ``==``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tasks.elastic.config import Limit
from tasks.elastic.worker_card import Ending, WorkerCard

WorkerState = Literal["building", "present", "leaving", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Durations of the steps after which an elastic worker held its weights, seconds."""

    build_s: float = 0.0  # its engine, the pull of the model's folder included
    pull_s: float = 0.0  # the pull of the version that it holds
    load_s: float = 0.0  # the load of that version into the engine, with the weight check


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedWorker:
    """An admitted process of an elastic worker."""

    name: str  # of its engine: the Dask worker's, and which of its processes it is
    dask_name: str  # of the Dask worker
    address: str  # Dask's, of the process
    price_class: str
    devices: tuple[str, ...]
    state: WorkerState
    since_s: float  # when it was admitted, Unix seconds
    lease_s: float  # the longest that it may be silent
    renewed_s: float  # when its lease was renewed last
    version: int | None = None  # weights that it holds; None before the first
    joined_s: float | None = None  # when it held weights for the first time, Unix seconds
    took: Took = Took()  # until it held its present weights
    # when it pulled and loaded each version that it held, (start, end) in Unix seconds
    transfers: tuple[tuple[float, float], ...] = ()
    leaving_s: float | None = None  # when it announced that it leaves, Unix seconds
    lost_s: float | None = None  # last sign of life of one that vanished, Unix seconds
    until_s: float | None = None  # when it was gone
    reason: str = ""  # why it leaves or is gone
    missed: Limit | None = None  # the limit that it missed, if that is why it is gone

    @property
    def timeline_devices(self) -> tuple[str, ...]:
        """The devices as timelines show them: every GPU, or all cores as one."""
        gpus = [device for device in self.devices if device.startswith("cuda:")]
        return tuple(f"{self.dask_name}/{device}" for device in gpus or ("cpu",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """The scheduler's list of all elastic workers at this time; the clock of the rules."""

    at_s: float
    addresses: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRead:
    """A worker that asks to be admitted has sent its card."""

    at_s: float
    address: str
    card: WorkerCard
    knows_token: bool  # the card proves that


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUnread:
    """A worker's card could not be read."""

    address: str
    reason: str
    may_try_again: bool  # another process of the worker may be able to send one


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """A worker has renewed its lease."""

    at_s: float
    dask_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """A worker has announced that it will end."""

    dask_name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The engine of an elastic worker holds this version and has passed the weight check."""

    at_s: float
    name: str
    version: int
    took: Took = Took()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The engine of an elastic worker was not built, or does not hold the weights."""

    name: str
    reason: str
    missed: Limit | None = None  # the limit that was missed, if that is why


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A round gave up an elastic worker, whose process may be alive and still run old requests."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptied:
    """A leaving elastic worker has no running request left."""

    name: str


WorkerEvent = (
    Polled | CardRead | CardUnread | Renewed | Leaves | Loaded | Failed | GivenUp | Emptied
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCard:
    """Read the card of the worker at this address."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Build an engine in this worker's process, and load the weights into it."""

    worker: AdmittedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Let rounds send requests to this elastic worker."""

    worker: AdmittedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Have rounds send no more requests to this elastic worker, and move those that run."""

    worker: AdmittedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Discard this elastic worker and its engine: it is gone."""

    worker: AdmittedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class EndProcess:
    """Have the process at this address print the reason and end, if it can be reached."""

    how: Ending
    address: str
    reason: str


AdmissionDecision = ReadCard | Admit | Join | Drain | Forget | EndProcess
