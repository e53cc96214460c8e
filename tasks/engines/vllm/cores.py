"""On which cores vLLM computes. To be said before vLLM is imported, by the thread that will."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def pin_this_thread(cpu_ids: tuple[int, ...] | None, num_ranks: int) -> None:
    """Bind this thread, and with it the compute threads it will start, and size torch's pool to the
    cores.

    vLLM's own VLLM_CPU_OMP_THREADS_BIND does nothing for an engine in process. Set before torch is
    imported where that is still possible, because OpenMP reads its environment once. The ranks of a
    tensor-parallel replica are processes of their own, which take their cores from that variable;
    without it vLLM wants a NUMA node for each.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if num_ranks > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = cores_of_ranks(cpu_ids or (), num_ranks)
    if cpu_ids is None:
        return
    os.sched_setaffinity(0, cpu_ids)
    if "torch" not in sys.modules:
        os.environ["OMP_NUM_THREADS"] = str(len(cpu_ids))
    import torch

    torch.set_num_threads(len(cpu_ids))


def cores_of_ranks(cpu_ids: Sequence[int], num_ranks: int) -> str:
    """The cores of each rank as vLLM's CPU backend reads them, "0,1|2,3"; "nobind" when they
    cannot be shared out evenly.
    """
    share, rest = divmod(len(cpu_ids), num_ranks)
    if not share or rest:
        return "nobind"
    return "|".join(
        ",".join(map(str, cpu_ids[rank * share : (rank + 1) * share])) for rank in range(num_ranks)
    )
