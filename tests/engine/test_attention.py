"""A first attention of a few rows ends no process: with AMX it must have asked for the tile
registers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tasks.engines.vllm.worker_patches import attention_path
from tests.engine.conftest import cores_only

pytestmark = [
    pytest.mark.engine,
    cores_only,
    pytest.mark.timeout(600),
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def endings(model_path: str) -> tuple[dict[str, int], str]:
    """The exit status of each kind of process, and what all of them said."""
    command = [sys.executable, "-m", "tests.engine.first_attention", model_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.skipif(
    attention_path() != "amx", reason="without AMX there are no tile registers to ask for"
)
@pytest.mark.parametrize("kind", ["engine", "ranks", "judge", "by_hand"])
def test_a_process_survives_a_short_first_attention(
    kind: str, endings: tuple[dict[str, int], str]
) -> None:
    statuses, said = endings
    assert statuses[kind] == 0, said[-3000:]


def test_the_attention_path_is_vllms_choice() -> None:
    import torch
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    assert attention_path() == _get_attn_isa(torch.bfloat16, 32)
