"""What the hosts of a joined cluster must have in common: nothing is built before it is found."""

from __future__ import annotations

import asyncio
from pathlib import Path

from distributed import Client

from artifacts import layout
from artifacts.handover import OWNER
from flows.run import OpenRun
from tasks.cluster.devices import worker_specs
from tasks.cluster.host_checks import SharedFile, check_numbering, check_shared
from tasks.run.run_context import RunContext

SAME_MODEL = "put the model there under the same path, or set keep.model_cache to a shared folder"


async def check_hosts(client: Client, run: OpenRun) -> None:
    """ValueError where a worker of a joined cluster misses a file of the run, or a device's number
    is that of another host."""
    config, cluster = run.config, run.config.cluster
    if cluster.scheduler_address is None:
        return
    specs, files = worker_specs(cluster), shared_files(run.context, config.local_root())
    await asyncio.to_thread(check_shared, client, specs, files)
    if config.engine.tensor_parallel_size > 1 or config.planner.enabled:
        await asyncio.to_thread(check_numbering, client, specs, cluster.devices_per_host)


def shared_files(context: RunContext, root: Path | None) -> list[SharedFile]:
    """A file in every folder by which workers get something or hand it on; `root` is the artifact
    root where that is a folder."""
    files = [
        SharedFile(
            path=f"{context.weights_dir}/{OWNER}",
            where="keep.weights_dir",
            cure="set it to a folder that all hosts share",
            roles=("rollout", "learner"),
        ),
        SharedFile(
            path=f"{context.model_path}/config.json",
            where="the model's folder",
            cure=SAME_MODEL,
            roles=("control", "rollout", "learner"),  # the first renders prompts
        ),
    ]
    if context.judge_model_path:
        path = f"{context.judge_model_path}/config.json"
        files.append(
            SharedFile(path=path, where="the judge's folder", cure=SAME_MODEL, roles=("judge",))
        )
    if root is not None:
        writers = ("rollout",) if context.environments else ()  # of the turns of episodes
        files.append(
            SharedFile(
                path=str(root / context.run_id / layout.MANIFEST),
                where="keep.artifact_root",
                cure="set it to a folder that all hosts share, or to an object store",
                roles=("control", "learner", *writers),
            )
        )
    return files
