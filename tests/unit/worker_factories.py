"""Workers that come and go, made up."""

from __future__ import annotations

from dataclasses import replace

from tasks.elastic.admission import AdmissionRules, WorkerAdmission
from tasks.elastic.worker_events import (
    AdmissionDecision,
    Admit,
    AdmittedWorker,
    Applicant,
    CardRead,
    Loaded,
    Polled,
)

RULES = AdmissionRules(
    versions={"rollflow": "1", "vllm": "2"}, max_workers=2, lease_s=10.0, ready_s=60.0
)
APPLICANT = Applicant(
    dask_name="spot",
    versions={"rollflow": "1", "vllm": "2"},
    price_class="spot",
    devices=("cpu",),
    knows_token=True,
    lease_s=10.0,
)


def comes(
    admission: WorkerAdmission, address: str, name: str = "spot", at_s: float = 0.0
) -> list[AdmissionDecision]:
    """A worker without fault shows its card."""
    applicant = replace(APPLICANT, dask_name=name)
    return admission.handle(CardRead(at_s=at_s, address=address, applicant=applicant))


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
