"""rollflow calibrate: measure the throughput of a model's engines at every size, batch and length,
for the parallelism planner, each size in a fresh process on the devices of a run's replica."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from artifacts.models.registry import check_model
from artifacts.reports.command_plots import throughput_plot
from flows.commands.command_line import configuration_of
from flows.commands.options import add_configuration, command
from flows.config.engine_sizes import sizes_of
from flows.config.run_config import RunConfig
from tasks.cluster.deaths import manner
from tasks.cluster.devices import engine_members, worker_specs
from tasks.cluster.parent import bound_command
from tasks.cluster.process_environment import python_path
from tasks.engines.model_files import read_head_counts
from tasks.engines.vllm.measuring import MARK, MeasuringOrder, measurable
from tasks.scheduling.layout_planner import ThroughputPoint, ThroughputProfile
from tasks.tiny_models.models import resolve_model

BATCHES = (1, 8, 32)
PICTURE = ".png"  # ending of the picture beside the profile


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow calibrate",
        description=(
            "Measure prefill and decode throughput of a model's engines, for the parallelism"
            " planner's first choice."
        ),
        epilog=(
            'A run uses the profile with --set \'planner={"enabled": true, "profile":'
            ' "profile.json"}\'.'
        ),
    )
    made.add_argument(
        "model", nargs="?", default="", help="model directory (default: the preset's model)"
    )
    add_configuration(made)
    made.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        help="tensor-parallel sizes (default: all that cluster and model allow)",
    )
    made.add_argument(
        "--batches",
        type=int,
        nargs="+",
        default=list(BATCHES),
        help="responses that decode together (default: 1 8 32)",
    )
    made.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        help="prompt tokens (default: an eighth and a half of engine.max_model_len)",
    )
    made.add_argument(
        "--new-tokens",
        type=int,
        default=32,
        help="tokens decoded per response (default: %(default)s)",
    )
    made.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="measurements of each point; the fastest counts (default: %(default)s)",
    )
    made.add_argument(
        "--output",
        default="profile.json",
        help="file of the profile; its picture lies beside it (default: %(default)s)",
    )
    return made


def measuring_orders(
    config: RunConfig, model_path: str, options: Namespace
) -> Iterator[MeasuringOrder]:
    """One order per engine size. ValueError for options that cannot be measured."""
    engine = measurable(config.engine)
    possible = sizes_of(config, read_head_counts(model_path))
    bound = engine.max_model_len
    lengths = options.lengths or [bound // 8, bound // 2]
    if min(lengths) < 1 or max(lengths) + options.new_tokens > bound:
        raise ValueError(
            f"--lengths plus --new-tokens ({options.new_tokens}) must lie within"
            f" engine.max_model_len ({bound}), got {lengths}; lower them or raise it with --set"
            " engine.max_model_len=..."
        )
    if min(*options.batches, options.repeats, options.new_tokens - 1) < 1:
        got = f"{options.batches}, {options.repeats} and {options.new_tokens}"
        raise ValueError(
            f"--batches and --repeats must be >= 1 and --new-tokens >= 2, got {got}; raise them"
        )
    specs = {spec.name: spec for spec in worker_specs(config.cluster)}
    for size in options.sizes or possible:
        if size not in possible:
            raise ValueError(
                f"--sizes must be among {', '.join(map(str, possible))} for this model and cluster,"
                f" got {size}; drop it"
            )
        replica = [
            specs[name] for name in next(iter(engine_members(config.cluster, size).values()))
        ]
        seqs = max(engine.max_num_seqs, *options.batches)
        yield MeasuringOrder(
            model_path=model_path,
            engine=engine.model_copy(update={"tensor_parallel_size": size, "max_num_seqs": seqs}),
            cores=tuple(core for spec in replica for core in spec.core_ids),
            gpus=tuple(
                spec.environment["CUDA_VISIBLE_DEVICES"]
                for spec in replica
                if "CUDA_VISIBLE_DEVICES" in spec.environment
            ),
            batches=tuple(sorted(set(options.batches))),
            lengths=tuple(sorted(set(lengths))),
            new_tokens=options.new_tokens,
            repeats=options.repeats,
        )


async def measure_all(config: RunConfig, orders: Sequence[MeasuringOrder]) -> ThroughputProfile:
    """Measure the sizes one after the other, each in a fresh process, and print every point."""
    points: list[ThroughputPoint] = []
    kv_tokens: dict[int, int] = {}
    for number, order in enumerate(orders, start=1):
        size = order.engine.tensor_parallel_size
        print(
            f"[{number}/{len(orders)}] size {size}: starting the engine, seconds on a CPU and up to"
            " minutes on a GPU",
            flush=True,
        )
        async for message in measurements(order, config.deadlines.start_s):
            if "kv_tokens" in message:
                kv_tokens[size] = message["kv_tokens"]
            elif "skipped" in message:
                print(f"  {message['skipped']}", flush=True)
            else:
                point = ThroughputPoint(**message)
                points.append(point)
                print(
                    f"  size={point.size} batch={point.batch} length={point.length}"
                    f" prefill={point.prefill_tokens_per_s:.0f}"
                    f" decode={point.decode_tokens_per_s:.0f} tokens/s",
                    flush=True,
                )
    if not points:
        raise ValueError(
            "a profile must have a point, got none because no batch fitted the KV cache; use"
            " smaller --batches or --lengths"
        )
    cluster, model = config.cluster, Path(orders[0].model_path).name
    cores = cluster.cores_per_device
    device = f"{cores} CPU core{'s' * (cores > 1)}" if cluster.device_kind == "cpu" else "1 GPU"
    return ThroughputProfile(model=model, device=device, kv_tokens=kv_tokens, points=tuple(points))


async def measurements(
    order: MeasuringOrder, silence_s: float
) -> AsyncIterator[dict[str, Any]]:  # Any: parsed JSON
    """Yield a process's messages. RuntimeError if it fails, TimeoutError for `silence_s` of
    silence."""
    with tempfile.TemporaryFile() as errors:
        command = bound_command("tasks.engines.vllm.measuring", order.model_dump_json())
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=os.environ | python_path(),
        )
        assert process.stdout is not None, "stdout is a pipe"
        try:
            while line := await asyncio.wait_for(process.stdout.readline(), silence_s):
                if line.startswith(MARK.encode()):
                    yield json.loads(line.removeprefix(MARK.encode()))
        except TimeoutError:
            size = order.engine.tensor_parallel_size
            raise TimeoutError(
                f"the measuring of size {size} said nothing for {silence_s:.0f} s; raise"
                " deadlines.start_s"
            ) from None
        finally:
            if not process.stdout.at_eof():
                with suppress(ProcessLookupError):
                    process.kill()
            code = await process.wait()
        if code:
            errors.seek(0)
            words = errors.read().decode(errors="replace").strip()
            raise RuntimeError(f"the measuring process {manner(code)}: {words[-2000:]}")


def prepare_output(path: Path) -> Path:
    """Make the folder of the output before minutes of measuring. ValueError for a wrong path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise ValueError(f"--output must be a file, got the folder {path}; name a file in it")
    if path.suffix == PICTURE:
        raise ValueError(
            f"--output must not end in {PICTURE}, got {path}: the picture would take the profile's"
            " place; end it in .json"
        )
    return path


def write_profile(profile: ThroughputProfile, path: Path) -> None:
    """Write the profile and its picture, and print the profile as a table."""
    path.write_text(profile.to_json())
    picture = path.with_suffix(PICTURE)
    curves = {
        f"size {size}, {length} tokens": [
            (point.batch, point.prefill_tokens_per_s, point.decode_tokens_per_s)
            for point in profile.points
            if (point.size, point.length) == (size, length)
        ]
        for size, length in sorted({(point.size, point.length) for point in profile.points})
    }
    title = f"{profile.model}: replicas of so many devices, {profile.device} each"
    picture.write_bytes(throughput_plot(curves, title))
    rates = ("prefill tokens/s", "decode tokens/s")
    table = Table("size", "batch", "prompt tokens", *rates, "KV cache tokens", box=None)
    for point in profile.points:
        sizes = map(str, (point.size, point.batch, point.length))
        rates = (f"{point.prefill_tokens_per_s:.0f}", f"{point.decode_tokens_per_s:.0f}")
        table.add_row(*sizes, *rates, str(profile.kv_tokens[point.size]))
    Console().print(table, f"\n{path} and {picture}", highlight=False)


@command(parser, RuntimeError)
def main(options: Namespace) -> int:
    config = configuration_of(options)
    if options.model:
        model = check_model(Path(options.model))
    else:
        model = resolve_model(config.model, Path(config.keep.model_cache))
    orders = tuple(measuring_orders(config, str(model), options))
    output = prepare_output(Path(options.output))
    write_profile(asyncio.run(measure_all(config, orders)), output)
    return 0
