"""The libraries of models may be imported by many threads at once, and are by none that needs no
model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from artifacts.models.character_tokenizer import character_tokenizer
from research.benchmarks.tiny_architectures import save_tiny
from tasks.engines.model_files import read_tokenizer

# what one thread can spoil is spoilt for good: this has a process of its own
MANY_THREADS = """
import json, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
import torch
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.models.importing import importing_transformers
from tasks.engines.model_files import read_tokenizer
from tasks.learner.architecture import check_architecture
from tasks.learner.policy import load_reference
from tasks.learner.ranks import Ranks
from tasks.run.prompts import tokenizer_of

path, tied = sys.argv[1:]
alone = Ranks(0, 1, torch.device("cpu"))
calls = (
    partial(read_tokenizer, path),
    partial(tokenizer_of, path),
    character_tokenizer,
    partial(check_architecture, Path(path)),
    partial(load_reference, path, "fp32", alone),
) * 3
assert "transformers" not in sys.modules
errors, begin = [], threading.Barrier(len(calls))

def call(number):
    begin.wait()
    time.sleep(0.05 * number)  # the later ones find a first import that goes on
    try:
        calls[number]()
    except BaseException as error:
        errors.append(repr(error))

threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with ThreadPoolExecutor(4) as pool:
    loaded = list(pool.map(lambda _: load_reference(tied, "fp32", alone), range(24)))
with importing_transformers():
    from transformers import AutoModelForCausalLM
AutoModelForCausalLM._model_mapping
unused = [name for name in ("sklearn", "scipy") if name in sys.modules]
import sklearn.metrics, scipy.optimize
found = [hasattr(sklearn.metrics, "roc_curve"), hasattr(scipy.optimize, "minimize")]
print(json.dumps({"errors": errors, "loaded": len(loaded), "unused": unused, "found": found}))
"""


@pytest.fixture(scope="module")
def many_threads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What came of models in a process whose threads are all the first to use them."""
    path = save_tiny("llama", tmp_path_factory.mktemp("llama"), vocabulary=64)
    tied = save_tiny("smollm3", tmp_path_factory.mktemp("smollm3"), vocabulary=64)
    for folder in (path, tied):
        character_tokenizer().save_pretrained(folder)
    told: dict[str, object] = json.loads(printed_by(MANY_THREADS, str(path), str(tied)))
    return told


def printed_by(code: str, *arguments: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.strip()


def test_many_threads_may_be_the_first_to_use_transformers(many_threads: dict[str, object]) -> None:
    assert many_threads["errors"] == []


def test_many_threads_may_load_models_whose_head_is_their_embedding(
    many_threads: dict[str, object],
) -> None:
    assert many_threads["loaded"] == 24


def test_models_are_imported_without_what_they_do_not_use_and_others_still_find(
    many_threads: dict[str, object],
) -> None:
    assert many_threads["unused"] == []
    assert many_threads["found"] == [True, True]


def test_reading_a_configuration_imports_no_model_library() -> None:
    """They take seconds, and every command reads one."""
    code = (
        "import sys, flows.config.run_config as _; print([name for name in"
        " ('transformers', 'vllm', 'mlflow', 'sklearn', 'torch.distributed.fsdp')"
        " if name in sys.modules])"
    )
    assert printed_by(code) == "[]"


def test_a_tokenizer_of_its_own_file_alone_is_read_without_any_model(tmp_path: Path) -> None:
    saved_tokenizer(tmp_path, "llama", "TokenizersBackend")
    code = (
        "import sys; from tasks.engines.model_files import read_tokenizer;"
        " read_tokenizer(sys.argv[1]); print([name for name in"
        " ('torch', 'transformers.generation', 'sklearn') if name in sys.modules])"
    )
    assert printed_by(code, str(tmp_path)) == "[]"


@pytest.mark.parametrize("named", ["TokenizersBackend", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "phi3", "mistral"])
def test_a_tokenizer_is_the_one_that_transformers_chooses(
    tmp_path: Path, architecture: str, named: str
) -> None:
    saved_tokenizer(tmp_path, architecture, named)
    read, chosen = read_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    assert type(read) is type(chosen)
    assert read.special_tokens_map == chosen.special_tokens_map
    messages = [{"role": "user", "content": "a3b2c2d1="}]
    asked = [
        tokenizer.apply_chat_template(messages, tokenize=False) for tokenizer in (read, chosen)
    ]
    assert asked[0] == asked[1]
    assert read(asked[0])["input_ids"] == chosen(asked[1])["input_ids"]


def saved_tokenizer(directory: Path, architecture: str, named: str) -> None:
    """The character tokenizer under this class name, in the directory of such a model."""
    character_tokenizer().save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": architecture}))
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tokenizer_class": named}))
