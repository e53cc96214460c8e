"""Who of the workers that a run did not start generates for it. Pure: the clock comes with the
events, and what is to be done is returned.

    seen ─▶ AskCard ─▶ card ─▶ Refuse
                         └───▶ Admit: building ─▶ loaded: present ─▶ leaving ─▶ Forget: gone
                                   └── it fails, its lease is over, its worker is away ──▲

An elastic worker is one process of a worker: a worker that comes back under its name is another
elastic worker, with another name (`NAME.g2`), so that no name is used twice in a run. One that a
round gave up must begin anew like that, for it may live and still run what it was asked. Leaves out
how workers are watched and engines made (`tasks.elastic.keeper`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from artifacts.prices import CLASS_NAME
from tasks.elastic.worker_events import (
    Admit,
    AdmittedWorker,
    Applicant,
    AskCard,
    CardRead,
    CardUnread,
    Dismiss,
    Drain,
    Emptied,
    Failed,
    Forget,
    GivenUp,
    Join,
    Leaves,
    Loaded,
    Looked,
    MemberDecision,
    Refuse,
    Renew,
    Renewed,
    WorkerEvent,
)

MAX_FAILURES = 3  # of a worker's engines in a row, after which it is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """Who may come."""

    versions: Mapping[str, str]  # of the run's packages, by name
    max_workers: int
    lease_s: float  # the longest that an elastic worker may be silent
    ready_s: float  # an elastic worker that holds no weights after so long is given up
    price_classes: frozenset[str] | None = None  # that have a price; None for any


class WorkerAdmission:
    """The elastic workers of one run."""

    def __init__(self, rules: AdmissionRules, generations: Mapping[str, int] | None = None) -> None:
        """generations: how often each worker came in earlier attempts at the run."""
        self._rules = rules
        self._generations = Counter(dict(generations or {}))
        self._elastic_workers: dict[str, AdmittedWorker] = {}
        self._known: set[str] = set()  # addresses that were asked
        self._failures = Counter[str]()  # in a row, by worker
        self._now_s = 0.0

    @property
    def elastic_workers(self) -> tuple[AdmittedWorker, ...]:
        """All that ever came, in their order."""
        return tuple(self._elastic_workers.values())

    @property
    def here(self) -> tuple[AdmittedWorker, ...]:
        """Those that are not gone."""
        return tuple(
            elastic_worker
            for elastic_worker in self._elastic_workers.values()
            if elastic_worker.state != "gone"
        )

    def handle(self, event: WorkerEvent) -> list[MemberDecision]:
        """What follows from this."""
        match event:
            case Looked(at_s=at_s, workers=workers):
                return self._look(at_s, workers)
            case CardRead(at_s=at_s, address=address, applicant=applicant):
                return self._consider(at_s, address, applicant)
            case CardUnread():
                return [_without_card(event)]
            case Renewed(at_s=at_s, worker=worker):
                self._renew(at_s, worker)
                return []
            case Leaves(worker=worker, reason=reason):
                return self._drain(worker, reason)
            case Loaded():
                return self._join(event)
            case Failed():
                return self._fail(event)
            case GivenUp(elastic_worker=name, reason=reason):
                return self._give_up(name, reason)
            case Emptied(elastic_worker=name):
                return self._part(name)

    # --- coming --------------------------------------------------------------------------------

    def _look(self, at_s: float, workers: frozenset[str]) -> list[MemberDecision]:
        """Those that are away or silent go before others come under their names."""
        passed_s, self._now_s = at_s - self._now_s, at_s
        decisions: list[MemberDecision] = []
        for elastic_worker in self.here:
            if elastic_worker.address not in workers:
                decisions.append(self._forget(_lost(elastic_worker), "its worker is away"))
            elif overdue := self._overdue(self._pardoned(elastic_worker, passed_s)):
                self._keep(_lost(elastic_worker))
                decisions += self._end(elastic_worker.name, overdue)
        decisions += [AskCard(address=address) for address in sorted(workers - self._known)]
        self._known = set(workers)
        return decisions

    def _pardoned(self, elastic_worker: AdmittedWorker, passed_s: float) -> AdmittedWorker:
        """Its lease does not run while the trainer stood still or its clock was set: no two looks
        are that far apart else."""
        if 0 <= passed_s <= self._rules.lease_s:
            return elastic_worker
        return self._keep(
            replace(elastic_worker, renewed_s=min(self._now_s, elastic_worker.renewed_s + passed_s))
        )

    def _overdue(self, elastic_worker: AdmittedWorker) -> str:
        """What an elastic worker should have done by now; empty if nothing. One that is building is
        bound by another clock: what is imported there may hold the thread that renews."""
        rules, now_s = self._rules, self._now_s
        if elastic_worker.state == "building":
            late = now_s - elastic_worker.since_s > rules.ready_s
            told = f"it held no weights within {rules.ready_s:g} s, all its limits together"
            return told if late else ""
        is_silent = now_s - elastic_worker.renewed_s > elastic_worker.lease_s
        return f"its lease of {elastic_worker.lease_s:g} s was not renewed" if is_silent else ""

    def _consider(self, at_s: float, address: str, applicant: Applicant) -> list[MemberDecision]:
        if applicant.has_served:  # an engine of an earlier attempt leaves more than it takes back
            reason = "its process has held an engine; start one process for each elastic worker"
            return [Renew(address=address, reason=reason)]
        if reason := self._against(applicant):
            return [Refuse(address=address, reason=reason)]
        self._generations[applicant.name] += 1
        elastic_worker = AdmittedWorker(
            name=f"{applicant.name}.g{self._generations[applicant.name]}",
            worker=applicant.name,
            address=address,
            price_class=applicant.price_class,
            devices=applicant.devices,
            state="building",
            since_s=at_s,
            lease_s=applicant.lease_s,
            renewed_s=at_s,
        )
        self._elastic_workers[elastic_worker.name] = elastic_worker
        return [Admit(elastic_worker=elastic_worker)]

    def _against(self, applicant: Applicant) -> str:
        """Why this one may not come: the rule, the value, the cure. Empty if it may."""
        rules, name, price = self._rules, applicant.name, applicant.price_class
        if not applicant.knows_token:
            return (
                "the token must be the run's, this one is not; give the worker elastic.token_file"
            )
        for package, wanted in rules.versions.items():
            found = applicant.versions.get(package, "none")
            if found != wanted:
                return f"{package} must be {wanted} as in the run, got {found}; install that one"
        if any(elastic_worker.worker == name for elastic_worker in self.here):
            return f"the name must be free, {name} is here; give the worker another --name"
        if applicant.lease_s > rules.lease_s:
            told = f"its lease must be at most the run's {rules.lease_s:g} s"
            return f"{told}, got {applicant.lease_s:g} s; give the worker that as --lease-s"
        if not CLASS_NAME.fullmatch(price):
            told = "the price class must be lower-case letters, digits and dashes"
            return f"{told}, got {price!r}; give the worker another --price-class"
        if rules.price_classes is not None and price not in rules.price_classes:
            known = ", ".join(sorted(rules.price_classes))
            return f"the price class must be one of {known}, got {price!r}; give it a price"
        if self._failures[name] >= MAX_FAILURES:
            return f"an engine must come up, those of {name} failed {MAX_FAILURES} times in a row"
        if len(self.here) >= rules.max_workers:
            most = rules.max_workers
            return (
                f"there may be {most} elastic workers at once, {most} are here; raise"
                " elastic.max_workers"
            )
        return ""

    # --- being there ---------------------------------------------------------------------------

    def _renew(self, at_s: float, worker: str) -> None:
        for elastic_worker in self.here:
            if elastic_worker.worker == worker:
                self._keep(replace(elastic_worker, renewed_s=max(at_s, elastic_worker.renewed_s)))

    def _join(self, loaded: Loaded) -> list[MemberDecision]:
        """An elastic worker that is leaving or gone by now joins nothing."""
        elastic_worker, at_s = self._elastic_workers[loaded.elastic_worker], loaded.at_s
        if elastic_worker.state not in ("building", "present"):
            return []
        self._failures.pop(elastic_worker.worker, None)
        present = replace(
            elastic_worker,
            state="present",
            version=loaded.version,
            took=loaded.took,
            transfers=elastic_worker.transfers + _transfer(loaded),
            joined_s=at_s if elastic_worker.joined_s is None else elastic_worker.joined_s,
            renewed_s=max(at_s, elastic_worker.renewed_s),
        )
        return [Join(elastic_worker=self._keep(present))]

    # --- going ---------------------------------------------------------------------------------

    def _drain(self, worker: str, reason: str) -> list[MemberDecision]:
        decisions: list[MemberDecision] = []
        for elastic_worker in self.here:
            if elastic_worker.worker != worker or elastic_worker.state == "leaving":
                continue
            if elastic_worker.state == "building":  # there is nothing that could be taken away
                gone = self._forget(elastic_worker, reason)
                decisions += [gone, Dismiss(address=elastic_worker.address, reason=reason)]
            else:
                told = replace(
                    elastic_worker, state="leaving", reason=reason, leaving_s=self._now_s
                )
                decisions.append(Drain(elastic_worker=self._keep(told)))
        return decisions

    def _fail(self, failed: Failed) -> list[MemberDecision]:
        """One whose worker is away by then has not failed for that."""
        elastic_worker = self._elastic_workers[failed.elastic_worker]
        if elastic_worker.state == "gone":
            return []
        self._failures[elastic_worker.worker] += 1
        self._keep(replace(elastic_worker, missed=failed.missed))
        return self._end(elastic_worker.name, failed.reason)

    def _give_up(self, name: str, reason: str) -> list[MemberDecision]:
        """One that leaves has nothing more to hand over; whoever else is unknown here."""
        elastic_worker = self._elastic_workers.get(name)
        if elastic_worker is None:
            return []
        return self._part(name) if elastic_worker.state == "leaving" else self._end(name, reason)

    def _end(self, name: str, reason: str) -> list[MemberDecision]:
        elastic_worker = self._elastic_workers[name]
        if elastic_worker.state == "gone":
            return []
        return [
            self._forget(elastic_worker, reason),
            Renew(address=elastic_worker.address, reason=reason),
        ]

    def _part(self, name: str) -> list[MemberDecision]:
        elastic_worker = self._elastic_workers[name]
        if elastic_worker.state != "leaving":
            return []
        gone = self._forget(elastic_worker, elastic_worker.reason)
        return [gone, Dismiss(address=elastic_worker.address, reason=elastic_worker.reason)]

    def _forget(self, elastic_worker: AdmittedWorker, reason: str) -> Forget:
        told = elastic_worker.reason or reason  # one that said why it leaves is gone for that
        gone = replace(elastic_worker, state="gone", until_s=self._now_s, reason=told)
        return Forget(elastic_worker=self._keep(gone))

    def _keep(self, elastic_worker: AdmittedWorker) -> AdmittedWorker:
        self._elastic_workers[elastic_worker.name] = elastic_worker
        return elastic_worker


def _lost(elastic_worker: AdmittedWorker) -> AdmittedWorker:
    """One that nothing was heard of any more; of one that builds or leaves no other is expected."""
    return (
        replace(elastic_worker, lost_s=elastic_worker.renewed_s)
        if elastic_worker.state == "present"
        else elastic_worker
    )


def _transfer(loaded: Loaded) -> tuple[tuple[float, float], ...]:
    """When the version came; nothing of one that took no time."""
    took_s = loaded.took.pull_s + loaded.took.load_s
    return ((loaded.at_s - took_s, loaded.at_s),) if took_s else ()


def _without_card(unread: CardUnread) -> MemberDecision:
    reason = f"its card must be readable: {unread.reason}"
    if unread.may_try_again:
        return Renew(address=unread.address, reason=reason)
    return Refuse(address=unread.address, reason=reason)
