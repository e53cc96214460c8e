"""Checkpoints of a run: saving them, restoring the learners from the last one, replaying training
from recorded groups, and the export of the trained model."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts import layout
from artifacts.adapter_files import part_of, write_adapter, write_merged
from artifacts.checkpoint import Checkpoints
from artifacts.records import WeightsRef
from artifacts.weight_files import MODEL_WEIGHTS, weight_files
from artifacts.weights import read_weights
from tasks.engines.model_files import takes_pictures
from tasks.learner.architecture import aliases_of, has_experts, name_in_model, read_config
from tasks.learner.publication import write_mixture, written
from tasks.learner.replay import check_digest, replay_training, versions_of
from tasks.learner.reports import PublishReport
from tasks.run.actor_handles import learners_of, sleep_engines
from tasks.run.run_context import RunContext
from tasks.train import publish

# suffixes of weight files, in any format
WEIGHT_ENDINGS = (
    ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".ot", ".onnx",
)  # fmt: skip


@task(name="restore-policy", task_run_name="restore-to-step-{step}", cache_policy=NO_CACHE)
async def restore_policy(
    run: RunContext, step: int, keep_checkpoints: int, committed: WeightsRef | None
) -> PublishReport:
    """Restore the learners to this step, unless they already hold its weights or later ones, and
    publish their weights to the engines. Raises ReplayDiffers if the restored weights are not the
    committed ones."""
    learners = learners_of(run)
    if min(await versions_of(learners)) < step:
        store = run.open_store()
        await sleep_engines(run, run.engines)
        await replay_training(
            learners,
            store,
            Checkpoints(store, keep_checkpoints),
            step,
            scratch=Path(run.weights_dir),
            config=run.learner,
        )
    report = await publish(run)
    if report.weights.version == step and committed is not None:
        check_digest(report.weights, committed)
    return report


async def begin_checkpoint(run: RunContext, step: int, keep: int) -> asyncio.Task[str]:
    """Begin to save the shards of all learner ranks, as they are now, as one checkpoint, complete
    or absent. Returns the task of the rest, whose result is the checkpoint's path in the store:
    ranks may train the next step meanwhile, whose updates wait for their shards. keep: how many
    checkpoints remain. Raises ActorLost, StoreError."""
    checkpoints, learners = Checkpoints(run.open_store(), keep), learners_of(run)
    with ExitStack() as stack:
        aside = stack.enter_context(checkpoints.aside(Path(run.weights_dir)))
        await asyncio.gather(*(learner.begin_checkpoint(str(aside)) for learner in learners))
        rest = stack.pop_all()

    async def save() -> str:
        with rest:
            await asyncio.gather(*(learner.end_checkpoint() for learner in learners))
            return await asyncio.to_thread(checkpoints.commit, step, aside)

    return asyncio.create_task(save(), name=f"checkpoint-{step}")


def export_model(run: RunContext, weights: WeightsRef, base_model: str = "", best: str = "") -> str:
    """Write the trained model into the run's folder as a Hugging Face directory: the new weights,
    experts one by one as published checkpoints have them, and all files of the first model's
    directory but its weights; an adapter is merged, and written beside the model, too, over
    `base_model`; of several `best` is merged. Returns the model's URL. Call it while no step is
    under way, outside of event loops."""
    store = run.open_store()
    if not Path(weights.path).exists():  # they came to the engines without a file
        in_step = run.learner.ranks_in_step
        weights = asyncio.run(written(learners_of(run), weights, ranks_in_step=in_step))
    with tempfile.TemporaryDirectory(prefix="rollflow-model-") as aside:
        model = Path(aside) / layout.MODEL
        model.mkdir()
        for path in Path(run.model_path).iterdir():
            if (
                path.is_file()
                and path.suffix not in WEIGHT_ENDINGS
                and not path.name.endswith(".index.json")
            ):
                shutil.copyfile(path, model / path.name)
        if run.learner.lora.engine_shape is None and has_experts(read_config(Path(run.model_path))):
            write_mixture(Path(run.model_path), weights, model)
        elif run.learner.lora.engine_shape is None:
            shutil.copyfile(weights.path, model / MODEL_WEIGHTS)
        else:
            base_model = base_model or str(Path(run.model_path).resolve())
            written_adapter = _export_adapters(run, weights, model, base_model, best)
            store.upload(written_adapter, layout.ADAPTER)
        store.upload(model, layout.MODEL)
    return f"{store.url}/{layout.MODEL}"


def _export_adapters(
    run: RunContext, weights: WeightsRef, model: Path, base_model: str, best: str
) -> Path:
    """Write the merged weights into the folder of the model; returns a folder with the adapter, or
    with a folder for each of several."""
    tensors, lora = dict(read_weights(weights.path)), run.learner.lora
    base, merges = Path(run.model_path), part_of(tensors, best or lora.names[0])
    named = name_in_model if takes_pictures(str(base)) else str
    write_merged(
        weight_files(base), merges, lora.scale, aliases_of(base), model / MODEL_WEIGHTS, named
    )
    folder = model.with_name(layout.ADAPTER)
    for name in lora.names:
        own = part_of(tensors, name)
        write_adapter(folder / name, own, scale=lora.scale, base_model=base_model)
    return folder
