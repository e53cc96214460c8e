"""rollflow ask: ask the model that a run has trained.

    RUN "question"     one answer; --before adds that of the model it started from
    RUN --task         a held-out question of the run's own task, and what the answer is worth
    RUN                a question a line, from the terminal or a pipe, until its end

Every question stands alone. A typed one is given to the model as it is, one of the task with the
task's own system prompt and template."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from artifacts import layout
from artifacts.commit import read_manifest
from artifacts.datasets.chain_sum import ChainSumConfig, in_letters
from artifacts.datasets.registry import load_dataset
from artifacts.datasets.rows import Row, question_row
from artifacts.models.registry import check_model
from artifacts.pictures import opened
from artifacts.printable import plain_signs
from artifacts.records import Generated, Prompt
from artifacts.store import Store
from flows.commands.options import add_run, command, run_store
from flows.config.run_config import RunConfig
from flows.config.settings_file import kept_config
from tasks.engines.picture_prompts import bytes_of, with_pictures
from tasks.environments.episodes.prompts import no_pictures, render
from tasks.rewards.judges.reward import JudgeConfig
from tasks.rewards.registry import config_of, score_with
from tasks.tiny_models.models import resolve_model

if TYPE_CHECKING:
    from tasks.engines.plain import PlainModel

OWN_DOMAIN = "question"  # domain of a typed question
ANY_ROW = -1
BLOCKS = 42  # of a shown picture, from left to right


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question for every model."""

    row: Row  # the question with its system prompt
    number: int | None  # its number among the held-out questions; None for a typed one


def trained_config(store: Store, use: str = "asked") -> RunConfig:
    """The configuration of a run. ValueError if the run has no trained model yet, which cannot be
    put to this use then."""
    manifest = read_manifest(store)
    if not store.exists(f"{layout.MODEL}/config.json"):
        made = len(store.list(layout.STEPS))
        raise ValueError(
            f"a run must be over to be {use}, {manifest.run_id} has made {made} of"
            f" {manifest.config.get('num_steps')} steps; wait for it, or resume it with"
            f" '{_resume_command(store.url)}'"
        )
    return kept_config(manifest.config)


def _resume_command(url: str) -> str:
    root, _, run_id = url.rpartition("/")
    if "://" in root:
        return f"rollflow train --set keep.artifact_root={shlex.quote(root)} --resume {run_id}"
    return f"rollflow demo --root {shlex.quote(root)} --resume {run_id}"


def answer_bound(options: argparse.Namespace, config: RunConfig) -> int:
    """Maximum tokens of an answer. ValueError if no question has room, or for a temperature < 0."""
    new_tokens = options.max_tokens
    if new_tokens is None:
        new_tokens = config.sampling.max_response_tokens
    context = config.engine.max_model_len
    if not 1 <= new_tokens < context:
        raise ValueError(
            f"--max-tokens must be 1 to {context - 1} (the context that the run was trained with"
            f" holds {context}), got {new_tokens}; choose such a bound"
        )
    if not options.temperature >= 0:  # not-a-number is refused, too
        raise ValueError(
            f"--temperature must be >= 0, got {options.temperature:g}; 0 takes the likeliest token"
        )
    return int(new_tokens)


def next_questions(
    options: argparse.Namespace, config: RunConfig, console: Console
) -> Iterator[AskedQuestion]:
    """The questions to ask. ValueError, before any model is loaded, for a row that is not there."""
    if options.task is not None:
        return iter([heldout_question(config, options.task)])
    if options.question:
        return iter([own_question(options.question, config)])
    return _typed_questions(console, config)


def heldout_question(config: RunConfig, number: int) -> AskedQuestion:
    """The held-out question with this number, or any. ValueError for none, or an episode."""
    heldout = load_dataset(config.task, config.seed).heldout
    chosen = random.randrange(len(heldout)) if number == ANY_ROW else number
    if not 0 <= chosen < len(heldout):
        raise ValueError(
            f"--task must be the number of a held-out question, 0 to {len(heldout) - 1}, got"
            f" {chosen}; leave the number out to draw one"
        )
    if not heldout[chosen].messages:
        raise ValueError(
            "a question of the task must be a text to be asked, those of"
            f" {heldout[chosen].domain!r} are episodes of an environment; 'rollflow episodes RUN"
            " --heldout' shows what was said in them"
        )
    return AskedQuestion(row=heldout[chosen], number=chosen)


def own_question(text: str, config: RunConfig) -> AskedQuestion:
    if isinstance(config.task, ChainSumConfig):
        text = in_letters(text)
    return AskedQuestion(row=question_row(OWN_DOMAIN, text, gold=""), number=None)


def ask_models(
    asked: AskedQuestion,
    models: Sequence[PlainModel],
    config: RunConfig,
    new_tokens: int,
    temperature: float,
    console: Console,
) -> None:
    """Print the answer of every model, with its score if the question is the task's."""
    is_sum = isinstance(config.task, ChainSumConfig)
    shown = plain_signs if is_sum else str
    if asked.number is not None:
        console.print(f"heldout/{asked.number} ({asked.row.domain})", style="dim")
        console.print(shown(asked.row.conversation))
    pictures = [bytes_of(source) for source in asked.row.pictures]
    for data in pictures:
        console.print(in_blocks(data) if console.color_system else described(data))
    print_on = partial(print, end="", flush=True)
    for model in models:
        if len(models) > 1:
            console.print(f"--- {model.name}", style="bold")
        name = "question" if asked.number is None else f"heldout/{asked.number}"
        room = config.engine.max_model_len - new_tokens
        show = partial(with_pictures, model.path) if pictures else no_pictures
        prompt = render(asked.row, model.tokenizer, name, room, show)
        tell = (lambda piece: None) if is_sum else print_on
        generated = model.answer(prompt, new_tokens, temperature, tell, pictures)
        print(plain_signs(generated.text) if is_sum else "", flush=True)
        seconds = generated.finished_s - generated.submitted_s
        cut = ", cut at the bound" if generated.finish_reason == "length" else ""
        told = f"{generated.num_sampled} tokens in {seconds:.1f} s{cut}"
        if asked.number is not None:
            score = score_text(prompt, generated, config)
            told = f"{score}, expected {asked.row.gold[:200]}; {told}"
        console.print(told, style="dim")


def described(data: bytes) -> str:
    """A picture where there are no colours to show it."""
    width, height = opened(data).size
    return f"(a picture of {width} x {height} pixels)"


def in_blocks(data: bytes) -> Text:
    """A picture in coloured half blocks, at most BLOCKS of them wide."""
    picture: Any = opened(data)  # Any: Pillow's types do not say that pixels are three numbers
    picture.thumbnail((BLOCKS, BLOCKS))
    text = Text()
    for y in range(0, picture.height - 1, 2):
        for x in range(picture.width):
            upper, lower = (Color.from_rgb(*picture.getpixel((x, y + row))) for row in (0, 1))
            text.append("▀", Style(color=upper, bgcolor=lower))
        text.append("\n")
    return text


def score_text(prompt: Prompt, generated: Generated, config: RunConfig) -> str:
    reward_config = config_of(config.rewards, prompt.domain)
    if isinstance(reward_config, JudgeConfig):
        return "scored by a judge, which is not started here"
    reward = reward_config.build_reward()
    try:
        score = score_with(reward, prompt, generated)
    finally:
        reward.close()
    if score.reward is None:
        return f"no verdict ({score.detail})"
    return f"reward {score.reward:g} ({score.outcome}, {score.detail})"


@contextmanager
def opened_model(name: str, store: Store, config: RunConfig) -> Iterator[PlainModel]:
    """Load the trained model, or for "before" the one that the run started from."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from tasks.engines.plain import PlainModel  # seconds: only when the options are sound

    with tempfile.TemporaryDirectory(prefix="rollflow-ask-") as scratch:
        if name == "before":
            directory = resolve_model(config.model, Path(config.keep.model_cache))
        elif store.is_local:
            directory = store.local_path(layout.MODEL)
        else:
            directory = Path(scratch)
            store.download(layout.MODEL, directory)
        yield PlainModel(check_model(directory), name)


def _typed_questions(console: Console, config: RunConfig) -> Iterator[AskedQuestion]:
    is_typed = sys.stdin.isatty()
    if is_typed:
        console.print("a question a line; Ctrl-D ends", style="dim")
    while True:
        if is_typed:
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield own_question(line.rstrip("\n"), config)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="rollflow ask",
        description="Ask the model that a run has trained.",
    )
    add_run(made)
    made.add_argument(
        "question",
        nargs="?",
        default="",
        help="question to ask; without one, every typed line is asked",
    )
    made.add_argument(
        "--before", action="store_true", help="ask the model that the run started from, too"
    )
    made.add_argument(
        "--task",
        type=int,
        nargs="?",
        const=ANY_ROW,
        metavar="NUMBER",
        help="ask a held-out question of the run's task, any or the one of this number, and score"
        " the answer",
    )
    made.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        help="0 takes the likeliest token each time (default: %(default)s)",
    )
    made.add_argument("--max-tokens", type=int, help="bound on an answer (default: the run's own)")
    return made


@command(parser)
def main(options: argparse.Namespace) -> int:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    with ExitStack() as stack:
        store = run_store(options.run, options.root)
        config = trained_config(store)
        new_tokens = answer_bound(options, config)
        questions = next_questions(options, config, console)
        print(f"loading the model of {store.url.rpartition('/')[2]}", file=sys.stderr, flush=True)
        models = [
            stack.enter_context(opened_model(name, store, config))
            for name in ("before", "after")
            if options.before or name == "after"
        ]
        for asked in questions:
            ask_models(asked, models, config, new_tokens, options.temperature, console)
    return 0
