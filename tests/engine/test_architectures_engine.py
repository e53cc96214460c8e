"""Architectures with windows, scaled embeddings, scaled logits, two kinds of layers and experts go
through engine and sync gate; `python -m research.benchmarks.architectures` tries all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.benchmarks.architectures import (
    PROBES,
    TOLERANCE_NATS,
    engine_of,
    publish,
    save_models,
    through_engine_and_gate,
)
from tasks.learner.weight_check import WeightCheckFailed, check_weights
from tests.engine.conftest import NUM_GPUS, Slot

pytestmark = [
    pytest.mark.engine,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]


@pytest.mark.parametrize(
    "name", ["gemma3_text", "granite", "qwen3_moe", "mixtral", "glm4_moe", "deepseek_v3"]
)
async def test_published_models_are_what_the_engine_computes_with(
    slot: Slot, tmp_path: Path, name: str
) -> None:
    slot.take()
    engine_model, *models = save_models(name, tmp_path, 3)
    differences = await through_engine_and_gate(models, engine_model, tmp_path)
    assert len(differences) == 2
    assert max(differences) <= TOLERANCE_NATS


@pytest.mark.skipif(NUM_GPUS == 1, reason="two ranks need two GPUs")
async def test_experts_that_two_ranks_share_are_read_back_and_a_wrong_one_is_named(
    slot: Slot, tmp_path: Path
) -> None:
    """Each rank is a process. One expert of the second keeps its older values in the end."""
    slot.take()
    engine_model, *models = save_models("qwen3_moe", tmp_path, 3)
    published = [publish(model, version, tmp_path) for version, model in enumerate(models, 1)]

    def keep_one_expert(worker: Any) -> None:  # Any: vLLM's worker
        runner, reload = worker.model_runner, worker.model_runner.reload_weights

        def reload_but_one(**given: Any) -> None:  # Any: as above
            experts = runner.get_model().get_submodule("model.layers.1.mlp.experts.routed_experts")
            older = experts.w2_weight[3].clone()
            reload(**given)
            experts.w2_weight[3] = older

        if worker.rank == 1:
            runner.reload_weights = reload_but_one

    pair = engine_of(engine_model, tensor_parallel_size=2)
    try:
        pair.start()
        for weights, learner in published:
            check_weights(
                "engine", await pair.load_weights(weights, PROBES), learner, TOLERANCE_NATS
            )
        await pair._thread.call(
            "spoil", lambda core: core._engine.collective_rpc(keep_one_expert), 60
        )
        weights, learner = published[0]
        spoilt = await pair.load_weights(weights, PROBES)
    finally:
        pair.close()
    said = "the learner's model.layers.1.mlp.experts.down_proj of version 1, rank 1 of it does not"
    with pytest.raises(WeightCheckFailed, match=f"^engine must hold {said}; tensors .*: 1$"):
        check_weights("engine", spoilt, learner, TOLERANCE_NATS)
