"""Who of the workers that a run did not start generates for it. Pure: the clock comes with the
events, and what is to be done is returned.

    seen ─▶ AskCard ─▶ card ─▶ Refuse
                         └───▶ Admit: building ─▶ loaded: present ─▶ leaving ─▶ Forget: gone
                                   └── it fails, its lease is over, its worker is away ──▲

A guest is one process of a worker: a worker that comes back under its name is another guest, with
another name (`NAME.g2`), so that no name is used twice in a run. One that a round gave up must
begin anew like that, for it may live and still run what it was asked. Leaves out how workers are
watched and engines made (`tasks.elastic.keeper`).
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
    most_guests: int
    lease_s: float  # the longest that a guest may be silent
    ready_s: float  # a guest that holds no weights after so long is given up
    price_classes: frozenset[str] | None = None  # that have a price; None for any


class WorkerAdmission:
    """The guests of one run."""

    def __init__(self, rules: AdmissionRules, generations: Mapping[str, int] | None = None) -> None:
        """generations: how often each worker came in earlier attempts at the run."""
        self._rules = rules
        self._generations = Counter(dict(generations or {}))
        self._guests: dict[str, AdmittedWorker] = {}
        self._known: set[str] = set()  # addresses that were asked
        self._failures = Counter[str]()  # in a row, by worker
        self._now_s = 0.0

    @property
    def guests(self) -> tuple[AdmittedWorker, ...]:
        """All that ever came, in their order."""
        return tuple(self._guests.values())

    @property
    def here(self) -> tuple[AdmittedWorker, ...]:
        """Those that are not gone."""
        return tuple(guest for guest in self._guests.values() if guest.state != "gone")

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
            case GivenUp(guest=name, reason=reason):
                return self._give_up(name, reason)
            case Emptied(guest=name):
                return self._part(name)

    # --- coming --------------------------------------------------------------------------------

    def _look(self, at_s: float, workers: frozenset[str]) -> list[MemberDecision]:
        """Those that are away or silent go before others come under their names."""
        passed_s, self._now_s = at_s - self._now_s, at_s
        decisions: list[MemberDecision] = []
        for guest in self.here:
            if guest.address not in workers:
                decisions.append(self._forget(_lost(guest), "its worker is away"))
            elif overdue := self._overdue(self._pardoned(guest, passed_s)):
                self._keep(_lost(guest))
                decisions += self._end(guest.name, overdue)
        decisions += [AskCard(address=address) for address in sorted(workers - self._known)]
        self._known = set(workers)
        return decisions

    def _pardoned(self, guest: AdmittedWorker, passed_s: float) -> AdmittedWorker:
        """Its lease does not run while the trainer stood still or its clock was set: no two looks
        are that far apart else."""
        if 0 <= passed_s <= self._rules.lease_s:
            return guest
        return self._keep(replace(guest, renewed_s=min(self._now_s, guest.renewed_s + passed_s)))

    def _overdue(self, guest: AdmittedWorker) -> str:
        """What a guest should have done by now; empty if nothing. One that is building is bound by
        another clock: what is imported there may hold the thread that renews."""
        rules, now_s = self._rules, self._now_s
        if guest.state == "building":
            late = now_s - guest.since_s > rules.ready_s
            told = f"it held no weights within {rules.ready_s:g} s, all its limits together"
            return told if late else ""
        is_silent = now_s - guest.renewed_s > guest.lease_s
        return f"its lease of {guest.lease_s:g} s was not renewed" if is_silent else ""

    def _consider(self, at_s: float, address: str, applicant: Applicant) -> list[MemberDecision]:
        if applicant.has_served:  # an engine of an earlier attempt leaves more than it takes back
            reason = "its process has held an engine: every guest begins in a process of its own"
            return [Renew(address=address, reason=reason)]
        if reason := self._against(applicant):
            return [Refuse(address=address, reason=reason)]
        self._generations[applicant.name] += 1
        guest = AdmittedWorker(
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
        self._guests[guest.name] = guest
        return [Admit(guest=guest)]

    def _against(self, applicant: Applicant) -> str:
        """Why this one may not come: the rule, the value, the cure. Empty if it may."""
        rules, name, price = self._rules, applicant.name, applicant.price_class
        if not applicant.knows_token:
            return "the token must be the run's, this one is not; give the worker guests.token_file"
        for package, wanted in rules.versions.items():
            found = applicant.versions.get(package, "none")
            if found != wanted:
                return f"{package} must be {wanted} as in the run, got {found}; install that one"
        if any(guest.worker == name for guest in self.here):
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
        if len(self.here) >= rules.most_guests:
            most = rules.most_guests
            return f"there may be {most} guests at once, {most} are here; raise guests.most_guests"
        return ""

    # --- being there ---------------------------------------------------------------------------

    def _renew(self, at_s: float, worker: str) -> None:
        for guest in self.here:
            if guest.worker == worker:
                self._keep(replace(guest, renewed_s=max(at_s, guest.renewed_s)))

    def _join(self, loaded: Loaded) -> list[MemberDecision]:
        """A guest that is leaving or gone by now joins nothing."""
        guest, at_s = self._guests[loaded.guest], loaded.at_s
        if guest.state not in ("building", "present"):
            return []
        self._failures.pop(guest.worker, None)
        present = replace(
            guest,
            state="present",
            version=loaded.version,
            took=loaded.took,
            transfers=guest.transfers + _transfer(loaded),
            joined_s=at_s if guest.joined_s is None else guest.joined_s,
            renewed_s=max(at_s, guest.renewed_s),
        )
        return [Join(guest=self._keep(present))]

    # --- going ---------------------------------------------------------------------------------

    def _drain(self, worker: str, reason: str) -> list[MemberDecision]:
        decisions: list[MemberDecision] = []
        for guest in self.here:
            if guest.worker != worker or guest.state == "leaving":
                continue
            if guest.state == "building":  # there is nothing that could be taken away
                gone = self._forget(guest, reason)
                decisions += [gone, Dismiss(address=guest.address, reason=reason)]
            else:
                told = replace(guest, state="leaving", reason=reason, leaving_s=self._now_s)
                decisions.append(Drain(guest=self._keep(told)))
        return decisions

    def _fail(self, failed: Failed) -> list[MemberDecision]:
        """One whose worker is away by then has not failed for that."""
        guest = self._guests[failed.guest]
        if guest.state == "gone":
            return []
        self._failures[guest.worker] += 1
        self._keep(replace(guest, missed=failed.missed))
        return self._end(guest.name, failed.reason)

    def _give_up(self, name: str, reason: str) -> list[MemberDecision]:
        """One that leaves has nothing more to hand over; whoever else is unknown here."""
        guest = self._guests.get(name)
        if guest is None:
            return []
        return self._part(name) if guest.state == "leaving" else self._end(name, reason)

    def _end(self, name: str, reason: str) -> list[MemberDecision]:
        guest = self._guests[name]
        if guest.state == "gone":
            return []
        return [self._forget(guest, reason), Renew(address=guest.address, reason=reason)]

    def _part(self, name: str) -> list[MemberDecision]:
        guest = self._guests[name]
        if guest.state != "leaving":
            return []
        gone = self._forget(guest, guest.reason)
        return [gone, Dismiss(address=guest.address, reason=guest.reason)]

    def _forget(self, guest: AdmittedWorker, reason: str) -> Forget:
        told = guest.reason or reason  # one that said why it leaves is gone for that
        gone = replace(guest, state="gone", until_s=self._now_s, reason=told)
        return Forget(guest=self._keep(gone))

    def _keep(self, guest: AdmittedWorker) -> AdmittedWorker:
        self._guests[guest.name] = guest
        return guest


def _lost(guest: AdmittedWorker) -> AdmittedWorker:
    """One that nothing was heard of any more; of one that builds or leaves no other is expected."""
    return replace(guest, lost_s=guest.renewed_s) if guest.state == "present" else guest


def _transfer(loaded: Loaded) -> tuple[tuple[float, float], ...]:
    """When the version came; nothing of one that took no time."""
    took_s = loaded.took.pull_s + loaded.took.load_s
    return ((loaded.at_s - took_s, loaded.at_s),) if took_s else ()


def _without_card(unread: CardUnread) -> MemberDecision:
    reason = f"its card must be readable: {unread.reason}"
    if unread.may_try_again:
        return Renew(address=unread.address, reason=reason)
    return Refuse(address=unread.address, reason=reason)
