"""Sending a run's model to the hub: what would be sent, what is sent, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from learner_factories import make_model
from report_factories import make_commit, make_run

from artifacts import layout
from artifacts.adapter_files import A, B, write_adapter
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.store import Store
from flows.commands import push
from flows.run import OpenRun
from tasks.learner.lora_config import LoraConfig

SUMMARY = b"# run\n\nHeld-out reward 0.200 -> 0.600, paired difference +0.400 [+0.3, +0.5].\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRun:
    """A finished run with a model and a summary, that began with a model on this machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": 2}\n' * 9)
    made = make_run(
        Store.open(str(tmp_path / "runs")),
        make_commit(1),
        model={"kind": "path", "path": str(tmp_path / "private" / "warm-start")},
        task={"kind": "files", "path": str(tmp_path / "sums.jsonl")},
    )
    folder = Path(made.store.local_path(layout.MODEL))
    make_model(folder)
    character_tokenizer().save_pretrained(folder)
    (folder / "README.md").write_text("the card of the model before")
    (folder / ".hidden").write_text("")
    made.store.write(layout.report_file("summary.md"), SUMMARY)
    return made


class StubHub:
    """Takes what is sent; raises `fault` instead, if one is given."""

    fault: Exception | None = None
    sent: dict[str, Any]  # Any: arguments of both calls

    def __init__(self, **_: object) -> None: ...

    def create_repo(self, name: str, **how: object) -> SimpleNamespace:
        if self.fault:
            raise self.fault
        StubHub.sent = {"name": name, **how}
        return SimpleNamespace(repo_id=f"me/{name}")

    def create_commit(self, name: str, added: list[Any], commit_message: str) -> None:
        files = {each.path_in_repo: each.path_or_fileobj for each in added}
        StubHub.sent |= {"committed": name, "files": files, "message": commit_message}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[StubHub]:
    monkeypatch.setattr(huggingface_hub, "HfApi", StubHub)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_secret")
    monkeypatch.setattr(StubHub, "fault", None)
    StubHub.sent = {}
    return StubHub


def test_a_dry_run_says_what_would_be_sent_and_sends_nothing(
    run: OpenRun, hub: type[StubHub], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert push.main(["last", "me/sums", "--dry-run", "--private"]) == 0
    told = capsys.readouterr().out
    assert "/me/sums (private) would get " in told
    assert "model.safetensors" in told
    assert "+0.400 [+0.3, +0.5]" in told
    assert "from warm-start." in told
    assert "files (sums.jsonl)" in told
    assert str(tmp_path) not in told
    assert not hub.sent


def test_the_model_and_its_card_are_sent_in_one_commit(
    run: OpenRun, hub: type[StubHub], capsys: pytest.CaptureFixture[str]
) -> None:
    assert push.main(["run", "sums", "--private"]) == 0
    assert (hub.sent["name"], hub.sent["private"], hub.sent["exist_ok"]) == ("sums", True, True)
    assert hub.sent["committed"] == "me/sums"  # a name without an owner is the user's own
    files = hub.sent["files"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} < files.keys()
    assert ".hidden" not in files
    assert files["README.md"].startswith(b"---\nlibrary_name: transformers\n")
    kept = Path(run.store.local_path(layout.MODEL)) / "README.md"
    assert kept.read_text() == "the card of the model before"
    assert "hf_secret" not in capsys.readouterr().out


def test_a_model_of_the_hub_is_the_cards_base_model(run: OpenRun) -> None:
    config = run.config.model_copy(
        update={"model": huggingface_model("Qwen/Qwen3-0.6B", revision="abc")}
    )
    assert push.base_of(config) == ("Qwen/Qwen3-0.6B at abc", "Qwen/Qwen3-0.6B")


def huggingface_model(repository: str, revision: str) -> push.HubModelConfig:
    return push.HubModelConfig(repository=repository, revision=revision)


def test_a_run_of_a_remote_root_is_pushed(run: OpenRun, hub: type[StubHub]) -> None:
    root = Store.open("memory://pushed")
    root.upload(Path(run.store.local_path("")), "run")
    try:
        assert push.main(["run", "sums", "--root", "memory://pushed"]) == 0
        assert "model.safetensors" in hub.sent["files"]
    finally:
        root.delete("")


def test_an_adapter_is_sent_without_its_model(
    run: OpenRun, hub: type[StubHub], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert push.main(["run", "me/sums", "--adapter", "--dry-run"]) == 2
    assert "--adapter needs a run that published an adapter" in capsys.readouterr().err
    tensors = {f"model.layers.0.mlp.up_proj{end}": torch.ones(2, 2) for end in (A, B)}
    folder = Path(run.store.local_path(layout.ADAPTER))
    write_adapter(folder, tensors, scale=2.0, base_model=str(tmp_path / "warm-start"))
    assert push.main(["run", "me/sums", "--adapter", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "would get 3 files" in told
    assert "adapter_model.safetensors" in told
    assert "library_name: peft" in told
    assert "vllm serve warm-start --enable-lora --lora-modules sums=me/sums" in told
    assert not hub.sent
    assert push.main(["run", "me/sums", "--adapter"]) == 0
    settings = json.loads(hub.sent["files"]["adapter_config.json"])
    assert settings["base_model_name_or_path"] == "warm-start"


def test_a_run_of_several_adapters_sends_its_best_model(
    run: OpenRun,
    hub: type[StubHub],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lora = LoraConfig(rank=4, sweep={"slow": {}, "fast": {"learning_rate": 2e-3}})
    learner = run.config.learner.model_copy(update={"lora": lora})
    config = run.config.model_copy(update={"learner": learner})
    monkeypatch.setattr(push, "trained_config", lambda *_: config)
    assert push.main(["run", "me/sums", "--adapter"]) == 2
    assert "--adapter needs a run of one adapter" in capsys.readouterr().err
    assert not hub.sent
    assert push.main(["run", "me/sums", "--dry-run"]) == 0


def refused(status: int) -> errors.HfHubHTTPError:
    request = httpx2.Request("POST", "https://huggingface.co/api/repos/create")
    response = httpx2.Response(status, request=request)
    return errors.HfHubHTTPError("no", response=response)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (httpx2.ConnectError("no route"), "which does not answer (no route); connect and try"),
        (errors.OfflineModeIsEnabled("off"), "HF_HUB_OFFLINE is set; unset it"),
        (errors.HFValidationError("two slashes"), "NAME must be OWNER/NAME on the hub, got"),
        (refused(401), "(401): it does not know the token"),
        (refused(403), "(403): the token may not write there"),
        (refused(500), "was refused by the hub at https://huggingface.co (500): no; try again"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(
    run: OpenRun,
    hub: type[StubHub],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: Exception,
    words: str,
) -> None:
    monkeypatch.setattr(StubHub, "fault", fault)
    assert push.main(["run", "me/sums"]) == 2
    assert words in capsys.readouterr().err


def test_without_a_login_and_without_a_model_nothing_is_sent(
    run: OpenRun,
    hub: type[StubHub],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert push.main(["run", "me/sums"]) == 2
    assert "there is none; run `hf auth login` or set HF_TOKEN" in capsys.readouterr().err
    run.store.delete(layout.MODEL)
    assert push.main(["run", "me/sums", "--dry-run"]) == 2
    assert "a run must be over to be pushed, run has made 1 of" in capsys.readouterr().err
    assert not hub.sent
