"""One union and one function know which engines there are; the simulated one serves a run in a
worker process."""

from __future__ import annotations

import ast
import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from record_factories import make_request

from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.records import Generated, Request, WeightsRef
from artifacts.weights import fingerprint, write_weights
from flows.commands.command_line import assemble
from flows.config.run_config import RunConfig
from tasks.engines.base import EngineLost
from tasks.engines.registry import EngineConfig
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.vllm.engine import VllmEngineConfig

ROOT = Path(__file__).parents[2]
FAST = SimulatedEngineConfig(responses="chain_sums", step_s=1e-4, step_s_per_sequence=0)
CHOICE: TypeAdapter[EngineConfig] = TypeAdapter(EngineConfig)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as far as a simulated engine reads one: its tokenizer."""
    path = tmp_path_factory.mktemp("model")
    character_tokenizer().save_pretrained(path)
    return path


def asked(question: str, index: int = 0, bound: int = 200) -> Request:
    tokens = tuple(character_tokenizer().encode(question, add_special_tokens=False))
    return make_request(index=index, prompt_tokens=tokens, max_new_tokens=bound, seed=index)


def answers(model: Path, config: SimulatedEngineConfig, *requests: Request) -> list[Generated]:
    """The responses to these, by index."""

    async def generate() -> list[Generated]:
        engine = config.build_engine(str(model), "engine-0", core_ids=(), seed=0)
        await engine.submit(requests)
        done: list[Generated] = []
        while len(done) < len(requests):
            done += await engine.collect(10.0)
        engine.close()
        return sorted(done, key=lambda response: response.index)

    return asyncio.run(generate())


def test_the_kind_chooses_the_engine() -> None:
    assert isinstance(CHOICE.validate_python({"kind": "vllm"}), VllmEngineConfig)
    assert isinstance(CHOICE.validate_python({"kind": "simulated"}), SimulatedEngineConfig)
    with pytest.raises(ValidationError, match="kind"):
        CHOICE.validate_python({"kind": "imagined"})


def test_a_run_chooses_it_with_one_field_and_keeps_the_real_one_otherwise() -> None:
    simulated = RunConfig.model_validate(assemble("tiny", "", ["engine.kind=simulated"]))
    assert isinstance(simulated.engine, SimulatedEngineConfig)
    changed = RunConfig.model_validate(assemble("tiny", "", ["engine.max_num_seqs=3"]))
    assert isinstance(changed.engine, VllmEngineConfig)
    assert (changed.engine.max_num_seqs, changed.engine.max_model_len) == (3, 256)


def test_nobody_else_asks_which_engine_it_is() -> None:
    """Configurations of one kind are named where they are defined, where their kind is listed, by
    what belongs to vLLM alone, and by what plays on simulated machines."""
    names = {"VllmEngineConfig", "SimulatedEngineConfig"}
    played = ("tasks/simulation/", "research/")
    allowed = ("tasks/engines/", "tasks/rewards/judges/engine_config.py", *played)
    rooms = [ROOT / room for room in ("flows", "tasks", "artifacts")]
    sources = [path for room in rooms for path in room.rglob("*.py")]
    askers = [
        name
        for path in sources
        if not (name := str(path.relative_to(ROOT))).startswith(allowed) and names & names_in(path)
    ]
    assert askers == []


def names_in(path: Path) -> set[str]:
    """The names that a file uses."""
    tree = ast.walk(ast.parse(path.read_text()))
    return {node.id for node in tree if isinstance(node, ast.Name)}


def test_a_simulated_answer_works_out_the_question_and_ends(model: Path) -> None:
    never_wrong = FAST.model_copy(update={"wrong_share": 0.0, "ramble_share": 0.0})
    (response,) = answers(model, never_wrong, asked("a3b2c2="))
    assert response.text == "a3b5c7\nAnswer: 7"
    assert response.token_ids[-1] == character_tokenizer().eos_token_id
    assert response.finish_reason == "stop"
    assert len(response.logprobs) == len(response.token_ids)


def test_some_answers_are_wrong_and_all_are_alike_the_next_time(model: Path) -> None:
    requests = [asked("a3b2c2d1e1=", index) for index in range(20)]
    first, second = (answers(model, FAST, *requests) for _ in range(2))
    assert [response.token_ids for response in first] == [one.token_ids for one in second]
    right = [response.text.endswith("Answer: 9") for response in first]
    assert any(right)
    assert not all(right)


def test_the_bound_cuts_an_answer(model: Path) -> None:
    (response,) = answers(model, FAST, asked("a3b2c2=", bound=4))
    assert (len(response.token_ids), response.finish_reason) == (4, "length")


def test_a_response_goes_on_where_it_was_cut(model: Path) -> None:
    (whole,) = answers(model, FAST, asked("a3b2c2d1="))
    kept = replace(
        asked("a3b2c2d1="), kept_tokens=whole.token_ids[:5], kept_logprobs=whole.logprobs[:5]
    )
    (resumed,) = answers(model, FAST, kept)
    assert resumed.token_ids == whole.token_ids


def test_another_task_is_refused_with_its_cure(model: Path) -> None:
    with pytest.raises(ValueError, match=r"choose that task, or engine\.responses=nothing"):
        answers(model, FAST, asked("0123="))


def test_times_are_those_of_the_machine(model: Path) -> None:
    before_s = time.time()
    (response,) = answers(model, FAST, asked("a3b2="))
    assert before_s - 1 <= response.submitted_s <= response.first_token_s
    assert response.first_token_s <= response.finished_s <= time.time() + 1


def test_it_attests_what_lies_in_the_file_and_to_no_logprobs(model: Path, tmp_path: Path) -> None:
    tensor = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    file = tmp_path / "1.safetensors"
    write_weights([("embed.weight", tensor)], file, version=1)

    async def load() -> None:
        engine = FAST.build_engine(str(model), "engine-0", core_ids=(), seed=0)
        held = await engine.load_weights(
            WeightsRef(version=1, path=str(file), digest=""), probes=((1, 2),)
        )
        assert (held.version, held.probe_logprobs) == (1, None)
        assert held.fingerprints == {"embed.weight": fingerprint(tensor)}
        missing = WeightsRef(version=2, path=str(tmp_path / "2.safetensors"), digest="")
        with pytest.raises(ValueError, match="found none at"):
            await engine.load_weights(missing, probes=())

    asyncio.run(load())


def test_a_closed_replica_is_lost(model: Path) -> None:
    async def close() -> None:
        engine = FAST.build_engine(str(model), "engine-0", core_ids=(), seed=0)
        await engine.sleep()
        engine.close()
        with pytest.raises(EngineLost):
            await engine.stats()

    asyncio.run(close())


def test_a_replica_of_two_devices_has_the_room_of_both() -> None:
    assert SimulatedEngineConfig(kv_capacity_tokens=100, tensor_parallel_size=2).kv_tokens == 200
