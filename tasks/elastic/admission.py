"""The rules by which a run admits and releases elastic workers. Pure: events carry the time, and
decisions are returned.

    polled ─▶ ReadCard ─▶ card ─▶ EndProcess(refuse)
                            └───▶ Admit: building ─▶ loaded: present ─▶ leaving ─▶ Forget: gone
                                      └── it fails, its lease is over, its process is away ──▲

An elastic worker is one process of a Dask worker: one that comes back under its Dask name gets
another name (`NAME.g2`). Leaves out how workers are watched and engines built (`keeper`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from artifacts.prices import CLASS_NAME
from tasks.elastic.worker_card import Ending, WorkerCard
from tasks.elastic.worker_events import (
    AdmissionDecision,
    Admit,
    AdmittedWorker,
    CardRead,
    CardUnread,
    Drain,
    Emptied,
    EndProcess,
    Failed,
    Forget,
    GivenUp,
    Join,
    Leaves,
    Loaded,
    Polled,
    ReadCard,
    Renewed,
    WorkerEvent,
)

MAX_FAILURES = 3  # of a worker's engines in a row, after which it is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """Conditions that a worker must meet to be admitted and to stay."""

    versions: Mapping[str, str]  # of the run's packages, by name
    max_workers: int
    lease_s: float  # the longest that an elastic worker may be silent
    ready_s: float  # an elastic worker that holds no weights after so long is given up
    price_classes: frozenset[str] | None = None  # that have a price; None for any


class WorkerAdmission:
    """The elastic workers of one run, and the state of each."""

    def __init__(self, rules: AdmissionRules, generations: Mapping[str, int] | None = None) -> None:
        """generations: how often each Dask worker was admitted in earlier attempts at the run."""
        self._rules = rules
        self._generations = Counter(dict(generations or {}))
        self._workers: dict[str, AdmittedWorker] = {}
        self._known: set[str] = set()  # addresses whose cards were asked for
        self._failures = Counter[str]()  # in a row, by name of the Dask worker
        self._now_s = 0.0

    @property
    def workers(self) -> tuple[AdmittedWorker, ...]:
        """All workers that were ever admitted, in order of admission."""
        return tuple(self._workers.values())

    @property
    def here(self) -> tuple[AdmittedWorker, ...]:
        """The admitted workers that are not gone."""
        return tuple(worker for worker in self._workers.values() if worker.state != "gone")

    def handle(self, event: WorkerEvent) -> list[AdmissionDecision]:
        """Take in an event and return the decisions that follow from it."""
        match event:
            case Polled(at_s=at_s, addresses=addresses):
                return self._reconcile(at_s, addresses)
            case CardRead():
                return [self._consider(event)]
            case CardUnread(address=address):
                how: Ending = "renew" if event.may_try_again else "refuse"
                reason = f"its card must be readable: {event.reason}"
                return [EndProcess(how=how, address=address, reason=reason)]
            case Renewed(at_s=at_s, dask_name=dask_name):
                for worker in self.here:
                    if worker.dask_name == dask_name:
                        self._keep(replace(worker, renewed_s=max(at_s, worker.renewed_s)))
                return []
            case Leaves(dask_name=dask_name, reason=reason):
                return self._drain(dask_name, reason)
            case Loaded():
                return self._join(event)
            case Failed():
                return self._fail(event)
            case GivenUp(name=name, reason=reason):
                given_up = self._workers.get(name)
                if given_up is None or given_up.state == "gone":
                    return []
                if given_up.state == "leaving":  # it has handed over all its requests by now
                    return self._release("dismiss", given_up, given_up.reason or reason)
                return self._release("renew", given_up, reason)
            case Emptied(name=name):
                worker = self._workers[name]
                if worker.state != "leaving":
                    return []
                return self._release("dismiss", worker, worker.reason)

    # --- coming --------------------------------------------------------------------------------

    def _reconcile(self, at_s: float, addresses: frozenset[str]) -> list[AdmissionDecision]:
        """Remove lost workers before new ones, which may come back under an old name."""
        passed_s, self._now_s = at_s - self._now_s, at_s
        decisions: list[AdmissionDecision] = []
        for worker in self.here:
            if worker.address not in addresses:
                decisions.append(self._forget(_lost(worker), "its worker is away"))
            elif overdue := self._overdue(self._pardoned(worker, passed_s)):
                decisions += self._release("renew", _lost(worker), overdue)
        decisions += [ReadCard(address=address) for address in sorted(addresses - self._known)]
        self._known = set(addresses)
        return decisions

    def _pardoned(self, worker: AdmittedWorker, passed_s: float) -> AdmittedWorker:
        """Extend the worker's lease by passed_s, if that is negative or above the run's lease: the
        trainer itself stood still, or its clock was set."""
        if 0 <= passed_s <= self._rules.lease_s:
            return worker
        renewed_s = min(self._now_s, worker.renewed_s + passed_s)
        return self._keep(replace(worker, renewed_s=renewed_s))

    def _overdue(self, worker: AdmittedWorker) -> str:
        """The time limit that the worker has missed, in words; empty if none."""
        ready_s, now_s = self._rules.ready_s, self._now_s
        if worker.state == "building":  # imports may block the thread that renews the lease
            if now_s - worker.since_s > ready_s:
                return f"it held no weights within {ready_s:g} s, all its limits together"
        elif now_s - worker.renewed_s > worker.lease_s:
            return f"its lease of {worker.lease_s:g} s was not renewed"
        return ""

    def _consider(self, shown: CardRead) -> AdmissionDecision:
        card, address, name = shown.card, shown.address, shown.card["name"]
        if card["has_served"]:  # an engine leaves state in its process that it cannot undo
            reason = "its process has held an engine; start one process for each elastic worker"
            return EndProcess(how="renew", address=address, reason=reason)
        if reason := self._objection(card, knows_token=shown.knows_token):
            return EndProcess(how="refuse", address=address, reason=reason)
        self._generations[name] += 1
        worker = AdmittedWorker(
            name=f"{name}.g{self._generations[name]}",
            dask_name=name,
            address=address,
            price_class=card["price_class"],
            devices=tuple(card["devices"]),
            state="building",
            since_s=shown.at_s,
            lease_s=card["lease_s"],
            renewed_s=shown.at_s,
        )
        return Admit(worker=self._keep(worker))

    def _objection(self, card: WorkerCard, *, knows_token: bool) -> str:
        """Why a worker is refused: the rule, the value, the cure. Empty if it is admitted."""
        rules, name, price = self._rules, card["name"], card["price_class"]
        if not knows_token:
            return (
                "the token must be the run's, this one is not; give the worker elastic.token_file"
            )
        for package, wanted in rules.versions.items():
            if (found := card.get(package, "")) != wanted:
                told = found or "none"
                return f"{package} must be {wanted} as in the run, got {told}; install that one"
        if any(worker.dask_name == name for worker in self.here):
            return f"the name must be free, {name} is here; give the worker another --name"
        if card["lease_s"] > rules.lease_s:
            return (
                f"its lease must be at most the run's {rules.lease_s:g} s, got"
                f" {card['lease_s']:g} s; give the worker that as --lease-s"
            )
        if not CLASS_NAME.fullmatch(price):
            return (
                "the price class must be lower-case letters, digits and dashes, got"
                f" {price!r}; give the worker another --price-class"
            )
        if rules.price_classes is not None and price not in rules.price_classes:
            known = ", ".join(sorted(rules.price_classes))
            return f"the price class must be one of {known}, got {price!r}; give it a price"
        if self._failures[name] >= MAX_FAILURES:
            return f"an engine must come up, those of {name} failed {MAX_FAILURES} times in a row"
        if len(self.here) >= rules.max_workers:
            return (
                f"there may be {rules.max_workers} elastic workers at once, {rules.max_workers}"
                " are here; raise elastic.max_workers"
            )
        return ""

    def _join(self, loaded: Loaded) -> list[AdmissionDecision]:
        worker, at_s = self._workers[loaded.name], loaded.at_s
        if worker.state not in ("building", "present"):
            return []
        self._failures.pop(worker.dask_name, None)
        took_s = loaded.took.pull_s + loaded.took.load_s
        present = replace(
            worker,
            state="present",
            version=loaded.version,
            took=loaded.took,
            transfers=worker.transfers + (((at_s - took_s, at_s),) if took_s else ()),
            joined_s=at_s if worker.joined_s is None else worker.joined_s,
            renewed_s=max(at_s, worker.renewed_s),
        )
        return [Join(worker=self._keep(present))]

    # --- going ---------------------------------------------------------------------------------

    def _drain(self, dask_name: str, reason: str) -> list[AdmissionDecision]:
        decisions: list[AdmissionDecision] = []
        for worker in self.here:
            if worker.dask_name != dask_name or worker.state == "leaving":
                continue
            if worker.state == "building":  # it has no request that could be taken away
                decisions += self._release("dismiss", worker, reason)
            else:
                leaving = replace(worker, state="leaving", reason=reason, leaving_s=self._now_s)
                decisions.append(Drain(worker=self._keep(leaving)))
        return decisions

    def _fail(self, failed: Failed) -> list[AdmissionDecision]:
        worker = self._workers[failed.name]
        if worker.state == "gone":
            return []
        self._failures[worker.dask_name] += 1
        worker = self._keep(replace(worker, missed=failed.missed))
        return self._release("renew", worker, failed.reason)

    def _release(self, how: Ending, worker: AdmittedWorker, reason: str) -> list[AdmissionDecision]:
        """Forget the worker and end its process."""
        end = EndProcess(how=how, address=worker.address, reason=reason)
        return [self._forget(worker, reason), end]

    def _forget(self, worker: AdmittedWorker, reason: str) -> Forget:
        reason = worker.reason or reason  # one that it gave for leaving comes first
        gone = replace(worker, state="gone", until_s=self._now_s, reason=reason)
        return Forget(worker=self._keep(gone))

    def _keep(self, worker: AdmittedWorker) -> AdmittedWorker:
        self._workers[worker.name] = worker
        return worker


def _lost(worker: AdmittedWorker) -> AdmittedWorker:
    """The worker with lost_s set, if it is in a state in which it renews its lease."""
    return replace(worker, lost_s=worker.renewed_s) if worker.state == "present" else worker
