"""Workers that come and go, made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.elastic.admission import AdmissionRules, WorkerAdmission
from tasks.elastic.worker_card import WorkerCard
from tasks.elastic.worker_events import (
    AdmissionDecision,
    Admit,
    AdmittedWorker,
    CardRead,
    Loaded,
    Polled,
)

RULES = AdmissionRules(
    versions={"rollflow": "1", "vllm": "2"}, max_workers=2, lease_s=10.0, ready_s=60.0
)
CARD = WorkerCard(
    name="spot",
    rollflow="1",
    vllm="2",
    torch="3",
    python="3.11",
    price_class="spot",
    devices=["cpu"],
    drain_s=30.0,
    lease_s=10.0,
    has_served=False,
    made_s=0.0,
    proof="",
)


def shown(
    card: WorkerCard, address: str, at_s: float = 0.0, *, knows_token: bool = True
) -> CardRead:
    """A worker shows this card."""
    return CardRead(at_s=at_s, address=address, card=card, knows_token=knows_token)


def shown_with(changes: Mapping[str, object], address: str = "a") -> CardRead:
    """A worker shows a card with these changes, which may include `knows_token`."""
    card: Any = {**CARD, **changes}  # Any: a card with a value of its own
    knows_token = bool(card.pop("knows_token", True))
    return shown(card, address, knows_token=knows_token)


def comes(
    admission: WorkerAdmission, address: str, name: str = "spot", at_s: float = 0.0
) -> list[AdmissionDecision]:
    """A worker without fault shows its card."""
    card: WorkerCard = {**CARD, "name": name}
    return admission.handle(shown(card, address, at_s))


def present(
    admission: WorkerAdmission, address: str, name: str = "spot", at_s: float = 0.0
) -> AdmittedWorker:
    """An elastic worker with the weights of version 1."""
    admission.handle(Polled(at_s=at_s, addresses=frozenset({address})))
    (admitted,) = comes(admission, address, name, at_s)
    assert isinstance(admitted, Admit)
    admission.handle(Loaded(at_s=at_s, name=admitted.worker.name, version=1))
    return next(worker for worker in admission.here if worker.name == admitted.worker.name)


def make_elastic_worker(worker: str, *, since_s: float, until_s: float | None) -> AdmittedWorker:
    """An elastic worker as it is kept, on one core."""
    return AdmittedWorker(
        name=f"{worker}.g1",
        dask_name=worker,
        address="tcp://10.0.0.2:1",
        price_class="spot",
        devices=("cpu:0",),
        state="present" if until_s is None else "gone",
        since_s=since_s,
        joined_s=since_s,
        lease_s=10.0,
        renewed_s=since_s,
        version=1,
        until_s=until_s,
    )
