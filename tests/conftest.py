"""Settings of all tests: a property is judged by its examples, not by how long a loaded machine
takes for one of them; and which files are begun first where processes share them out."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from tasks.cluster import cores, gpus
from tasks.engines.vllm.worker_patches import attention_path

settings.register_profile("rollflow", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=10_000)
settings.load_profile("rollflow")

TESTS = Path(__file__).parent
NEEDED_BYTES = 1_000_000_000  # models and runs of the whole suite: 0.9 GB where nothing is cached
# runs whose processes are killed, lost or joined by others: `make recovery-test` has them
RECOVERY = (
    "flows/test_recovery.py",
    "flows/test_episode_injections.py",
    "flows/test_joined_cluster.py",
    "flows/test_elastic_worker_runs.py",
    "flows/test_kills.py",
    "flows/test_asynchronous_recovery.py",
    "flows/test_elastic_injections.py",
    "flows/test_far_environments.py",
    "flows/test_token_recovery.py",
    "flows/test_episode_recovery.py",
    "flows/test_actor_deaths.py",
    "flows/test_damaged_runs.py",
    "flows/test_stopped_runs.py",
    "flows/test_environment_workers.py",
    "flows/test_relayout.py",
    "flows/test_judged_run.py",
    "flows/test_multilevel_run.py",
    "flows/test_elastic_worker_joins.py",
    "flows/test_critic_run.py",
    "flows/test_paper_jobs.py",
    "sandbox/test_environment_process_deaths.py",
    "sandbox/test_environment_workers_die.py",
    "sandbox/test_killed_engine.py",
)
# what takes longest of the others, so that none is begun last
SLOW = (
    "flows/test_simulated_run.py",
    "engine/test_attention.py",
    "flows/test_asynchronous_run.py",
    "flows/test_episode_schedules.py",
    "flows/test_run.py",
    "flows/test_adapter_run.py",
    "engine/test_vllm_draws.py",
    "engine/test_vllm_engine.py",
    "unit/test_user_modules.py",
    "unit/test_recommend.py",
    "unit/test_worker_tls.py",
    "unit/test_worker_network.py",
)
PLACES = {TESTS / name: place for place, name in enumerate(SLOW + RECOVERY)}
assert all(path.is_file() for path in PLACES), "RECOVERY or SLOW names a file that is not there"


def pytest_sessionstart(session: pytest.Session) -> None:
    """A disk that is full after ten minutes fails tests that have nothing to do with it."""
    for path in (Path.cwd(), Path(tempfile.gettempdir())):
        free = shutil.disk_usage(path).free
        if free < NEEDED_BYTES:
            pytest.exit(
                f"the tests need {NEEDED_BYTES / 1e9:g} GB of disk, {free / 1e9:.1f} GB are free at"
                f" {path}; free some, or set TMPDIR to another disk",
                returncode=pytest.ExitCode.USAGE_ERROR,
            )


@pytest.fixture(autouse=True)
def cores_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In these tests a preset means cores that multiply bf16 fast, on every machine."""
    if request.path.parent.name in ("unit", "properties"):
        none = gpus.FoundGpus(reason="no NVIDIA driver is here")
        monkeypatch.setattr(gpus, "found_gpus", lambda: none)
        monkeypatch.setattr(cores, "multiply_bf16", lambda: True)


def pytest_report_header() -> str:
    """The kernel that real engines run on here: its faults are one kind of machine's and not
    another's."""
    return f"attention path of the cores: {attention_path() or 'unknown'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files of recovery are marked, single tests of others say it themselves; processes that share
    the files take them in this order."""
    for item in items:
        if PLACES.get(item.path, -1) >= len(SLOW):
            item.add_marker(pytest.mark.recovery)
    if hasattr(config, "workerinput"):  # one of several processes (pytest-xdist)
        items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
