"""Gives a model the user's chat template, without a change of the model's own directory.

    model directory ─┐
                     ├─▶ directory in the cache: links to the model's files, and the template
    template file  ──┘

Engines, learners, evaluations and the export read that directory as they read any model, so that
none of them has to know of the template. Leaves out how chats become tokens (`chat_tokens`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from artifacts.models.importing import importing_transformers
from artifacts.models.registry import build_once

TEMPLATE = "chat_template.jinja"  # where transformers and vLLM look first
TOKENIZER_CONFIG = "tokenizer_config.json"
REPLACED = (TEMPLATE, "chat_template.json", TOKENIZER_CONFIG)  # files that may hold a template
LARGEST = 1 << 20  # bytes of a template
QUESTION = "How much is 2 + 3?"
# texts of tokens that a template may name, as tokenizers hand them over
TOKENS = {name: f"<{name}>" for name in ("bos_token", "eos_token", "pad_token", "unk_token")}


def read_template(file: str) -> str:
    """The text of a chat template. Raises ValueError for a file that is not there, not UTF-8, empty
    or larger than LARGEST."""
    path = Path(file).expanduser()
    rule = "model.chat_template must be a file with a Jinja template"
    if not path.is_file():
        raise ValueError(f"{rule}, there is no file {file}; --set model.chat_template=FILE")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{rule} of at most 1 MiB, {file} is larger; name another file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{rule}, {file} is not UTF-8; name another file") from None
    if not text.strip():
        raise ValueError(
            f"{rule}, {file} is empty; leave model.chat_template out for the model's own template"
        )
    return text


def check_template(file: str, *, has_system: bool) -> None:
    """Render a question, after a system turn if `has_system`. Raises ValueError for a template that
    does not compile, fails, or leaves the question out. Imports transformers: takes seconds."""
    text = read_template(file)
    turns = [{"role": "user", "content": QUESTION}]
    if has_system:
        turns.insert(0, {"role": "system", "content": "Be brief."})
    with importing_transformers():
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            [turns], chat_template=text, add_generation_prompt=True, **TOKENS
        )
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        line = getattr(error, "lineno", None)
        place = f"line {line}: " if line else ""
        asked = "a question after a system turn" if has_system else "a question"
        raise ValueError(
            f"model.chat_template must render {asked}, {file} does not ({place}{error}); mend it"
            " there"
        ) from None
    if QUESTION not in rendered[0]:
        raise ValueError(
            f"model.chat_template must write the question, {file} leaves it out of"
            f" {rendered[0][:80]!r}; write message['content'] for each message of messages"
        )


def templated(model: Path, file: str, cache_dir: Path) -> Path:
    """Return a directory in `cache_dir` with the model's files and this template. Its name differs
    if the model's place, its files' names, its tokenizer's settings or the template differ. Raises
    ValueError as `read_template` does."""
    text, home = read_template(file), model.resolve()
    names = sorted(path.name for path in home.iterdir() if path.is_file())
    settings = _tokenizer_settings(home)
    identity = json.dumps([str(home), names, settings, text])
    digest = hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()
    linked = [name for name in names if name not in REPLACED]
    write = partial(_write, home, linked, settings, text)
    return build_once(cache_dir, f"{model.name}-template-{digest}", write)


def _tokenizer_settings(model: Path) -> str:
    """The tokenizer's settings without a chat template, as JSON; empty where there are none."""
    file = model / TOKENIZER_CONFIG
    if not file.is_file():
        return ""
    settings = dict(json.loads(file.read_text(encoding="utf-8")))
    settings.pop("chat_template", None)
    return json.dumps(settings, indent=2, ensure_ascii=False)


def _write(home: Path, linked: Sequence[str], settings: str, text: str, target: Path) -> None:
    for name in linked:
        os.symlink(home / name, target / name)
    if settings:
        (target / TOKENIZER_CONFIG).write_text(settings, encoding="utf-8")
    (target / TEMPLATE).write_text(text, encoding="utf-8")
