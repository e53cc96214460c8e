"""Workers that come and go, made up."""

from __future__ import annotations

from dataclasses import replace

from tasks.elastic.admission import AdmissionRules, WorkerAdmission
from tasks.elastic.worker_events import (
    Admit,
    AdmittedWorker,
    Applicant,
    CardRead,
    Loaded,
    Looked,
    MemberDecision,
)

RULES = AdmissionRules(
    versions={"rollflow": "1", "vllm": "2"}, max_workers=2, lease_s=10.0, ready_s=60.0
)
APPLICANT = Applicant(
    name="spot",
    versions={"rollflow": "1", "vllm": "2"},
    price_class="spot",
    devices=("cpu",),
    knows_token=True,
    lease_s=10.0,
)


def comes(
    members: WorkerAdmission, address: str, name: str = "spot", at_s: float = 0.0
) -> list[MemberDecision]:
    """A worker without fault shows its card."""
    applicant = replace(APPLICANT, name=name)
    return members.handle(CardRead(at_s=at_s, address=address, applicant=applicant))


def present(
    members: WorkerAdmission, address: str, name: str = "spot", at_s: float = 0.0
) -> AdmittedWorker:
    """An elastic worker with the weights of version 1."""
    members.handle(Looked(at_s=at_s, workers=frozenset({address})))
    (admitted,) = comes(members, address, name, at_s)
    assert isinstance(admitted, Admit)
    members.handle(Loaded(at_s=at_s, elastic_worker=admitted.elastic_worker.name, version=1))
    return next(
        elastic_worker
        for elastic_worker in members.here
        if elastic_worker.name == admitted.elastic_worker.name
    )


def make_elastic_worker(worker: str, *, since_s: float, until_s: float | None) -> AdmittedWorker:
    """An elastic worker as it is kept, on one core."""
    return AdmittedWorker(
        name=f"{worker}.g1",
        worker=worker,
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
