"""Tokens per second of the rollout stage of a real run against bare `vllm.LLM.generate`, on the
same requests and cores.

    python -m research.benchmarks.path_throughput --preset smollm2-sync --steps 4

    a training run over Prefect, Dask and actors ─▶ its recorded responses ─▶ one bare process
    per engine, pinned to the same cores, generates every round again: the same prompts in the
    same split, each response as long as it was

Each step makes a pair. The bare processes begin a round together and their slower one ends it; they
start with an empty prefix cache in every round, as the engines do after new weights. Two windows
are given for the flow: from the first submission to the last token, and from the start of the step,
so with what Prefect and Dask take to start the tasks. Leaves out training: it comes after the
rollout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from artifacts.commit import read_commits
from artifacts.journal import Journal
from artifacts.layout import ROUNDS, step_file
from artifacts.store import Store
from flows.config.run_config import RunConfig
from research.benchmarks.bare_llm import bare_llm
from tasks.cluster.devices import worker_specs
from tasks.engines.vllm.measuring import measurable
from tasks.tiny_models.models import resolve_model

READY = "READY"
RUN = "path"
NO_SECOND_WAVE = (  # the bare engines get a round's requests all at once
    "scheduling.dynamic_sampling=0"
)


def main() -> None:
    options = _parser().parse_args()
    if options.bare:
        _bare(Path(options.bare))
        return
    with tempfile.TemporaryDirectory(prefix="rollflow-path-") as scratch:
        _pairs(options, Path(scratch))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--preset",
        default="smollm2-sync",
        help="whose rounds are measured; one that waits for all it launches",
    )
    parser.add_argument("--steps", type=int, default=4, help="pairs, one per step")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    return parser


def _pairs(options: argparse.Namespace, scratch: Path) -> None:
    config = RunConfig.model_validate({"preset": options.preset})
    _run_flow(options, scratch)
    store = Store.open(str(scratch)).child(RUN)
    steps = range(1, options.steps + 1)
    commits = read_commits(store)
    journal = Journal(store)
    tokens = [
        sum(row.response.generated.num_sampled for row in journal.read(step)) for step in steps
    ]
    windows = [json.loads(store.read(step_file(ROUNDS, step))) for step in steps]
    seconds = {
        "window": [window["finished_s"] - window["started_s"] for window in windows],
        "step": [
            window["finished_s"] - commit.timings["started_s"]
            for window, commit in zip(windows, commits, strict=True)
        ],
        "bare": _replay(config, journal, steps, scratch),
    }
    for row, step in enumerate(steps):
        rates = " ".join(
            f"{name}={tokens[row] / values[row]:.0f}" for name, values in seconds.items()
        )
        print(f"step={step} tokens={tokens[row]} tokens_per_s: {rates}")
    for name in ("window", "step"):
        ratios = [bare / own for bare, own in zip(seconds["bare"], seconds[name], strict=True)]
        print(
            f"{name} against bare: {' '.join(f'{ratio:.3f}' for ratio in ratios)}, median"
            f" {statistics.median(ratios):.3f}"
        )


def _run_flow(options: argparse.Namespace, scratch: Path) -> None:
    """The run as a user starts it, with a Prefect server of its own."""
    changes = (
        f"run_name={RUN}",
        f"num_steps={options.steps}",
        "evaluation.num_prompts=2",
        "cluster.dashboard_port=0",
        NO_SECOND_WAVE,
    )
    command = [
        sys.executable,
        "-m",
        "flows.commands.demo",
        "--preset",
        options.preset,
        "--root",
        str(scratch),
        "--prefect-port",
        "0",
    ]
    subprocess.run(
        [*command, *(word for change in changes for word in ("--set", change))],
        timeout=3600,
        check=True,
    )


def _replay(
    config: RunConfig, journal: Journal, rounds: Sequence[int], scratch: Path
) -> list[float]:
    """Seconds of each round when bare processes generate it."""
    model = str(resolve_model(config.model, Path(config.keep.model_cache)))
    specs = [spec for spec in worker_specs(config.cluster) if spec.role == "rollout"]
    children = []
    for spec in specs:
        own = [
            [row for row in journal.read(step) if row.response.generated.engine == spec.name]
            for step in rounds
        ]
        requests = [
            [(row.prompt.token_ids, len(row.response.generated.token_ids)) for row in rows]
            for rows in own
        ]
        job = {
            "config": config.model_dump(mode="json"),
            "model": model,
            "cores": spec.core_ids,
            "requests": requests,
        }
        (scratch / f"{spec.name}.json").write_text(json.dumps(job))
        command = [
            sys.executable,
            "-m",
            "research.benchmarks.path_throughput",
            "--bare",
            str(scratch / f"{spec.name}.json"),
        ]
        # the thread counts of an engine's worker; torch reads them when it is imported
        environment = os.environ | spec.environment
        children.append(
            subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
    try:
        for child in children:
            _answer(child.stdout)
        return [max(_together(children)) for _ in rounds]
    finally:
        for child in children:
            child.kill()
            child.wait()


def _together(children: Sequence[subprocess.Popen[str]]) -> list[float]:
    for child in children:
        assert child.stdin is not None, "opened with a pipe"
        print("go", file=child.stdin, flush=True)
    return [float(_answer(child.stdout)) for child in children]


def _answer(stream: IO[str] | None) -> str:
    """What the child says next; vLLM may print lines of its own between."""
    assert stream is not None, "opened with a pipe"
    for line in stream:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    raise RuntimeError("a bare process ended before it answered; its error stands above")


def _bare(path: Path) -> None:
    """One bare process: answer READY, then for every line read generate the next round and answer
    READY with its seconds."""
    job: dict[str, Any] = json.loads(path.read_text())  # Any: JSON
    config = RunConfig.model_validate(job["config"])
    llm = bare_llm(measurable(config.engine), job["model"], config.seed, job["cores"])
    from vllm import SamplingParams

    def generate(requests: Sequence[tuple[list[int], int]]) -> None:
        sampling = config.sampling
        params = [
            SamplingParams(
                max_tokens=length,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
            )
            for _, length in requests
        ]
        llm.generate(
            [{"prompt_token_ids": tokens} for tokens, _ in requests], params, use_tqdm=False
        )

    generate([(tokens, 4) for tokens, _ in job["requests"][0][:4]])
    print(READY, flush=True)
    for requests in job["requests"]:
        sys.stdin.readline()
        llm.reset_prefix_cache()
        began = time.perf_counter()
        generate(requests)
        print(READY, time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
