"""A first attention of a few rows ends no process: with AMX it must have asked for the tile
registers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tasks.engines.vllm.attention import attention_path

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]


@pytest.mark.skipif(
    attention_path() != "amx", reason="without AMX there are no tile registers to ask for"
)
@pytest.mark.parametrize("kind", ["engine", "ranks", "judge", "by_hand"])
def test_a_process_survives_a_short_first_attention(kind: str, model_path: str) -> None:
    command = [sys.executable, "-m", "tests.engine.first_attention", kind, model_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "DONE" in done.stdout


def test_the_attention_path_is_vllms_choice() -> None:
    import torch
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    assert attention_path() == _get_attn_isa(torch.bfloat16, 32)
