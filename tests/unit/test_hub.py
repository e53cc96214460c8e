"""Models and data sets by their name on the hub: fetched once, kept to a commit, had from the cache
without a network, and refused in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub_server import Hub, Repository, serve_hub, use_hub
from huggingface_hub import constants
from pydantic import ValidationError
from safetensors.torch import save

from artifacts.datasets.hub_rows import HubRowsConfig
from artifacts.datasets.registry import MixtureConfig, PartConfig, load_dataset
from artifacts.datasets.rows import Dataset
from artifacts.models.registry import HubModelConfig
from flows.config.run_config import RunConfig, pinned
from flows.config.trials import misfits_of_trials
from tasks.tiny_models.models import resolve_model

MODEL = {
    "config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": save({"weights": torch.ones(2)}),
    "onnx/model.safetensors": b"another format",
    "pytorch_model.bin": b"again",
}
ROWS = b"".join(
    json.dumps({"prompt": f"{number} + 1?", "answer": number + 1}).encode() + b"\n"
    for number in range(20)
)
CARD = b"""---
license: mit
configs:
- config_name: easy
  data_files:
  - split: train
    path: easy/part-*.jsonl
  - split: test
    path: easy/test.jsonl
- config_name: hard
  data_files: hard.jsonl
---
# Sums
"""
SUMS = {
    "README.md": CARD,
    "easy/part-0.jsonl": ROWS,
    "easy/part-1.jsonl": ROWS.replace(b" + 1?", b" + 1 = ?"),
    "easy/test.jsonl": b'{"prompt": "3 + 1?", "answer": 4}\n',
    "hard.jsonl": b'{"prompt": "e ^ (i pi)?", "answer": -1}\n',
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serve_hub() as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path / "hub")
        yield hub


def load(**fields: object) -> Dataset:
    return load_dataset(HubRowsConfig.model_validate({"heldout_fraction": 0} | fields), 0)


def test_a_model_is_fetched_once_without_what_nobody_loads(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["models/acme/tiny"] = Repository(MODEL)
    config = HubModelConfig(repository="acme/tiny")
    path = resolve_model(config, tmp_path)
    assert (path / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert path.name == hub.repositories["models/acme/tiny"].commit
    assert resolve_model(config, tmp_path) == path
    assert sorted(hub.fetched) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_run_keeps_to_the_commit_whatever_the_branch_becomes(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["models/acme/tiny"] = Repository(MODEL)
    hub.repositories["datasets/acme/sums"] = Repository(SUMS)
    first = {place: repository.commit for place, repository in hub.repositories.items()}
    judge = {
        "kind": "judge",
        "engine": {"model": {"kind": "hub", "repository": "acme/tiny"}},
    }
    parts = [{"task": {"kind": "hub", "repository": "acme/sums", "name": "hard"}}]
    config = pinned(
        RunConfig.model_validate(
            {
                "preset": "tiny-judged",
                "model": {"kind": "hub", "repository": "acme/tiny"},
                "task": {"kind": "mixture", "parts": parts},
                "rewards": {"*": judge},
            }
        )
    )
    assert isinstance(config.model, HubModelConfig)
    assert config.model.revision == first["models/acme/tiny"]
    kept = config.model_dump(mode="json")
    assert kept["rewards"]["*"]["engine"]["model"]["revision"] == first["models/acme/tiny"]
    assert kept["task"]["parts"][0]["task"]["revision"] == first["datasets/acme/sums"]
    path = resolve_model(config.model, tmp_path)
    hub.repositories["models/acme/tiny"] = Repository(MODEL | {"model.safetensors": b"newer"})
    assert pinned(config) == config
    assert resolve_model(config.model, tmp_path) == path


def test_what_names_no_hub_is_left_as_it_is() -> None:
    config = RunConfig.model_validate({"preset": "tiny"})
    assert pinned(config) is config


def test_without_a_network_the_cache_counts(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.repositories["models/acme/tiny"] = Repository(MODEL)
    hub.repositories["datasets/acme/sums"] = Repository(SUMS)
    model = HubModelConfig(repository="acme/tiny")
    path, rows = resolve_model(model, tmp_path), load(repository="acme/sums", name="easy")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.repositories.clear()
    assert resolve_model(model, tmp_path) == path
    assert model.pinned().revision == path.name
    assert load(repository="acme/sums", name="easy") == rows


def test_the_clients_own_environment_is_honoured(hub: Hub, tmp_path: Path) -> None:
    """In a process of its own, since the client reads its environment when it is imported."""
    hub.repositories["models/acme/tiny"] = Repository(MODEL)
    program = (
        "from artifacts.models.registry import HubModelConfig\n"
        "from artifacts.models.registry import fetch_hub_model\n"
        "print(fetch_hub_model(HubModelConfig(repository='acme/tiny')))"
    )
    environment = os.environ | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    for offline in ("0", "1"):
        finished = subprocess.run(
            [sys.executable, "-c", program],
            env=environment | {"HF_HUB_OFFLINE": offline},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert finished.returncode == 0, finished.stderr
        assert Path(finished.stdout.strip()).is_relative_to(tmp_path / "home")
    assert len(hub.fetched) == 3


def test_a_hub_that_does_not_answer_is_named_with_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path)
    monkeypatch.setattr(constants, "DEFAULT_ETAG_TIMEOUT", 1)
    with pytest.raises(ValueError, match=r"must be in the cache .*127\.0\.0\.1:9 does not answer"):
        resolve_model(HubModelConfig(repository="acme/tiny"), tmp_path)


def test_the_offline_switch_is_named(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match=r"HF_HUB_OFFLINE is set; connect, or run `hf download acme"
    ):
        resolve_model(HubModelConfig(repository="acme/tiny"), tmp_path)


@pytest.mark.parametrize(
    ("repository", "revision", "message"),
    [
        (None, "main", r"'acme/tiny' must be a repository of the hub at http://127.*correct the"),
        (Repository(MODEL), "v9", r"must have the revision 'v9'.*name a branch"),
        (Repository(MODEL, is_gated=True), "main", r"'acme/tiny' is gated .*hf auth login"),
        (Repository({"README.md": b""}), "main", r"must hold config.json"),
        (
            Repository(MODEL | {"config.json": b'{"architectures": ["BertForMaskedLM"]}'}),
            "main",
            r"must be a causal language model.*BertForMaskedLM",
        ),
        (
            Repository({name: MODEL[name] for name in ("config.json", "model.safetensors")}),
            "main",
            r"must hold a tokenizer",
        ),
        (
            Repository({name: MODEL[name] for name in ("config.json", "tokenizer.json")}),
            "main",
            r"must hold weights",
        ),
    ],
)
def test_a_model_that_cannot_be_had_or_trained_is_refused_in_one_sentence(
    hub: Hub, tmp_path: Path, repository: Repository | None, revision: str, message: str
) -> None:
    if repository is not None:
        hub.repositories["models/acme/tiny"] = repository
    with pytest.raises(ValueError, match=message) as refused:
        resolve_model(HubModelConfig(repository="acme/tiny", revision=revision), tmp_path)
    assert "\n" not in str(refused.value)
    assert "model.safetensors" not in hub.fetched


def test_a_name_that_is_none_is_refused_by_the_configuration() -> None:
    with pytest.raises(ValidationError, match="repository"):
        HubModelConfig(repository="https://example.org/acme/tiny")


def test_a_card_says_which_files_a_split_is(hub: Hub) -> None:
    hub.repositories["datasets/acme/sums"] = Repository(SUMS)
    dataset = load(repository="acme/sums", name="easy", heldout_split="test")
    assert len(dataset.rows) == 39, "the question of the other split is not trained"
    assert [row.text for row in dataset.heldout] == ["3 + 1?"]
    assert not {row.text for row in dataset.rows} & {"3 + 1?"}
    assert [row.gold for row in load(repository="acme/sums", name="hard").rows] == ["-1"]
    assert hub.fetched.count("easy/part-0.jsonl") == 1


@pytest.mark.parametrize(
    "name",
    ["train.jsonl", "data/train-00000-of-00001.jsonl", "train/0.jsonl", "data/train.jsonl"],
)
def test_without_a_card_names_say_it(hub: Hub, name: str) -> None:
    files = {name: ROWS, "data/test-00000-of-00001.jsonl": ROWS, "notes.txt": b"x"}
    hub.repositories["datasets/acme/sums"] = Repository(files)
    assert len(load(repository="acme/sums").rows) == 20
    assert hub.fetched == [name]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "hard", "split": "test"}, r"must be one of train, got 'test'"),
        ({"name": "odd"}, r"must be a configuration of acme/sums \(easy, hard\), got 'odd'"),
        ({"repository": "acme/none"}, r"dataset 'acme/none' must be a repository"),
        ({"repository": "acme/bare"}, r"must have Parquet, CSV or JSON-lines files, none matches"),
        (
            {"name": "easy", "answer_field": "gold"},
            r"acme/sums@[0-9a-f]{12}/easy/train: easy/part-0.jsonl:1: field 'gold' is missing",
        ),
    ],
)
def test_a_data_set_that_cannot_be_had_is_refused(
    hub: Hub, fields: dict[str, str], message: str
) -> None:
    hub.repositories["datasets/acme/sums"] = Repository(SUMS)
    hub.repositories["datasets/acme/bare"] = Repository({"script.py": b"", "README.md": b"# x"})
    with pytest.raises(ValueError, match=message):
        load(**{"repository": "acme/sums", **fields})


def test_a_part_of_a_mixture_may_come_from_the_hub(hub: Hub) -> None:
    hub.repositories["datasets/acme/sums"] = Repository(SUMS)
    part = PartConfig(task=HubRowsConfig(repository="acme/sums", name="easy"))
    dataset = load_dataset(MixtureConfig(parts=(part,), num_prompts=50, heldout_prompts=1), 0)
    assert len({row.text for row in dataset.rows}) == 38


def test_what_the_hub_does_not_give_is_found_without_a_fetch(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.repositories["models/acme/tiny"] = Repository(MODEL)
    hub.repositories["models/acme/gated"] = Repository(MODEL, is_gated=True)
    hub.repositories["datasets/acme/sums"] = Repository(SUMS)
    hub.repositories["datasets/acme/bare"] = Repository({"train.jsonl": ROWS})
    HubModelConfig(repository="acme/tiny").check_there()
    for name in ("sums", "bare"):
        HubRowsConfig(repository=f"acme/{name}").check_there()
    assert hub.fetched == []
    for model, told in {
        HubModelConfig(repository="acme/none"): "which knows none of that name",
        HubModelConfig(repository="acme/tiny", revision="v9"): "must have the revision 'v9'",
        HubModelConfig(repository="acme/gated"): "is gated on the hub",
    }.items():
        with pytest.raises(ValueError, match=told):
            model.check_there()
    config = RunConfig.model_validate(
        {
            "preset": "tiny",
            "model": {"kind": "hub", "repository": "acme/none"},
            "task": {"kind": "hub", "repository": "acme/lost"},
        }
    )
    found = misfits_of_trials(config)
    assert len([each for each in found if "which knows none of that name" in each]) == 2
    fetched = resolve_model(HubModelConfig(repository="acme/tiny"), tmp_path)
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "hub")
    HubModelConfig(repository="acme/tiny", revision=fetched.name).check_there()
    with pytest.raises(ValueError, match="does not answer"):
        HubModelConfig(repository="acme/other").check_there()
