"""python -m tests.engine.first_attention MODEL: processes whose first attention has few rows, and
how each of them ends. They are forked from one that has imported vLLM and asked for nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from importlib import import_module

from artifacts.judgements import JudgeQuestion
from artifacts.models.registry import PathConfig
from artifacts.records import pack
from research.benchmarks.bare_llm import bare_llm
from tasks.engines.vllm.engine import VllmEngineConfig, build_core
from tasks.engines.vllm.llm_engine import pin_this_thread
from tasks.rewards.judges.engine import JudgeActor
from tasks.rewards.judges.engine_config import JudgeEngineConfig

CORES = tuple(sorted(os.sched_getaffinity(0)))[:2]


def engine(model: str, ranks: int = 1) -> None:
    """Its warm-up begins with four tokens."""
    pin_this_thread(CORES, ranks)
    build_core(_config(ranks), model, "engine-0", 1).close()


def ranks(model: str) -> None:
    engine(model, ranks=2)


def judge(model: str) -> None:
    config = JudgeEngineConfig(model=PathConfig(path=model), max_model_len=64, kv_cache_gb=0.05)
    started = JudgeActor(config, model, "judge-0", (0, 1), has_tokenizer=False, start_s=240)
    short = JudgeQuestion(
        key="k",
        before="a",
        answer="",
        after="",
        mode="yes_no",
        yes="Yes",
        no="No",
        max_new_tokens=1,
    )
    asyncio.run(started.decide(pack((short,))))
    asyncio.run(started.close())


def by_hand(model: str) -> None:
    from vllm import SamplingParams

    llm = bare_llm(_config(1), model, 1, CORES)
    params = SamplingParams(max_tokens=3, detokenize=False)
    llm.generate([{"prompt_token_ids": [5]}], params, use_tqdm=False)


def _config(ranks: int) -> VllmEngineConfig:
    return VllmEngineConfig(
        max_num_seqs=4, max_model_len=64, kv_cache_gb=0.05, tensor_parallel_size=ranks
    )


KINDS = {"engine": engine, "ranks": ranks, "judge": judge, "by_hand": by_hand}


def ending(kind: str, model: str) -> int:
    """The exit status of a process that is forked from this one, negative for a signal."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            KINDS[kind](model)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    import_module("tasks.engines.vllm.imports")
    print(json.dumps({kind: ending(kind, sys.argv[1]) for kind in KINDS}))
