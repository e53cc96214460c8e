"""What does it cost a rollout that its engine hands new tokens over as they come?

    python -m benchmarks.token_reports MODEL --report-tokens 32

Tokens per second, and per second of processor time, of one engine with reports and without, on the
same requests, cores and seed. Every measurement is a fresh process pinned to the same cores; the
two alternate, and which goes first alternates too. Where other processes share the cores, read the
rates per CPU second. With reports the process also does all that the coordinator of a round does
with them: it packs and unpacks them, puts them together and writes them to disk. The network
between two machines is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from artifacts.new_tokens import parted
from artifacts.records import Request, pack, unpack
from artifacts.token_log import TokenLog
from benchmarks.paired_processes import Result, in_pairs, paired_parser, tell
from benchmarks.rollout_throughput import random_requests
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.rounds.reports import Reports

KINDS = ("without", "with")
SEED = 11


def main() -> None:
    """Print a line for each pair, and the medians."""
    options = _parser().parse_args()
    if options.kind:
        tell(asyncio.run(_measure(options)))
        return
    for pair, results in enumerate(in_pairs("benchmarks.token_reports", KINDS, options.pairs)):
        same = len({results[kind][-1]["checksum"] for kind in KINDS}) == 1
        print(f"pair={pair} {_compare(results, slice(-1, None))} same_tokens={same}", flush=True)
    print(f"median {_compare(results, slice(None))}")


def _compare(results: Mapping[str, Sequence[Result]], which: slice) -> str:
    """Medians of both kinds, and what the reports cost, on both clocks."""
    said = []
    for clock in ("seconds", "cpu_seconds"):
        without, told = (
            [result["tokens"] / result[clock] for result in results[kind][which]] for kind in KINDS
        )
        ratios = [ours / theirs for theirs, ours in zip(without, told, strict=True)]
        said.append(
            f"tokens per {clock[:-1]}: without={statistics.median(without):.1f}"
            f" with={statistics.median(told):.1f} cost={1 - statistics.median(ratios):.2%}"
        )
    num_reported = results["with"][-1]["reported_tokens"]
    return f"{', '.join(said)}, reported_tokens={num_reported}"


def _parser() -> argparse.ArgumentParser:
    parser = paired_parser(__doc__, KINDS, new_tokens=128)
    parser.add_argument("--report-tokens", type=int, default=32, help="steps between two reports")
    return parser


async def _measure(options: argparse.Namespace) -> Result:
    report_tokens = options.report_tokens if options.kind == "with" else 0
    config = VllmEngineConfig(
        max_num_seqs=options.prompts * options.responses,
        max_model_len=max(256, options.prompt_tokens + options.new_tokens),
        report_tokens=report_tokens,
    )
    engine = VllmEngine(config, options.model, "engine-0", options.cores, SEED)
    engine.start()
    requests = random_requests(options)
    with tempfile.TemporaryDirectory() as folder:
        log = TokenLog(Path(folder))
        await _generate(engine, requests[:4], report_tokens, log)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        tokens, num_reported = await _generate(engine, requests, report_tokens, log)
        seconds, cpu_seconds = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        log.close()
    engine.close()
    return {
        "tokens": sum(map(len, tokens)),
        "reported_tokens": num_reported,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "checksum": hash(tuple(tokens)),
    }


async def _generate(
    engine: VllmEngine, requests: Sequence[Request], report_tokens: int, log: TokenLog
) -> tuple[list[tuple[int, ...]], int]:
    """The responses' tokens, and how many of them were told of before they were over."""
    asked = {request.response_id: request for request in requests}
    reports = Reports(report_tokens)
    done: dict[str, tuple[int, ...]] = {}
    num_reported = 0
    await engine.submit(requests)
    while len(done) < len(requests):
        over, told = parted(unpack(pack(await engine.collect(60))))
        kept = [reports.keep(asked[new.response_id], new) for new in told]
        log.write([new for new in kept if new is not None])
        num_reported += sum(len(new.token_ids) for new in told)
        for generated in over:
            reports.forget(generated.response_id)
            done[generated.response_id] = generated.token_ids
    return [done[request.response_id] for request in requests], num_reported


if __name__ == "__main__":
    main()
