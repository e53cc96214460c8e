"""rollflow push: send the model that a run has trained to the Hugging Face hub.

    run's folder ─▶ model files ─┬─▶ one commit in the model's repository
                 ─▶ model card ──┘

With --adapter those of the adapter, whose model is named as the card names it.

The login is the hub's own (`hf auth login` or HF_TOKEN), never a setting of a run. The card says
only what the run recorded: where it began, its task, held-out rewards, settings and versions; no
folders or addresses of this machine."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any

from artifacts import layout
from artifacts.adapter_files import CONFIG, WEIGHTS
from artifacts.commit import RunManifest, read_manifest
from artifacts.hub import repository_url, send_model
from artifacts.models.registry import HubModelConfig, PathConfig, SmolLM2Config, check_model
from artifacts.reports.figures import read_figures
from artifacts.store import Store
from flows.commands.ask import trained_config
from flows.commands.options import add_run, command, run_store
from flows.config.run_config import RunConfig
from flows.config.settings_file import settings_of
from flows.output import print_line

CARD = "README.md"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
OF_THIS_MACHINE = ("keep", "cluster", "elastic", "deadlines")  # parts that say how, not what
PLACES = ("path", "heldout_path", "chat_template", "token_file", "url", "python", "readable")


def model_card(
    name: str, manifest: RunManifest, config: RunConfig, result: str, is_adapter: bool = False
) -> str:
    """The card of a run's model as Markdown with the hub's front matter. result: what the run says
    of its held-out rewards. is_adapter: whether the adapter alone is sent."""
    base, link = base_of(config)
    front = [
        *([f"base_model: {link}"] if link else []),
        f"library_name: {'peft' if is_adapter else 'transformers'}",
        "pipeline_tag: text-generation",
        "tags:\n- rollflow\n- reinforcement-learning",
    ]
    rewards = ", ".join(sorted({reward.kind for reward in config.rewards.values()}))
    rows = {
        "base model": base,
        "task": task_name(config),
        "reward": rewards or "the environments' own",
        "steps": str(config.num_steps),
        "prompts a step, and responses": (
            f"{config.batch.prompts_per_step}, each with {config.batch.responses_per_prompt}"
        ),
        **({"trained": lora.explain()} if (lora := config.learner.lora).rank else {}),
        "loss": config.learner.loss.kind,
        "learning rate": f"{config.learner.optimizer.learning_rate:g}",
        "schedule": config.scheduling.kind,
        "seed": str(config.seed),
        "run": manifest.run_id,
    }
    versions = {"rollflow": version("rollflow"), **manifest.packages}
    if manifest.git_sha:
        versions["commit"] = manifest.git_sha
    use = f"vllm serve {link or base} --enable-lora --lora-modules {PurePath(name).name}={name}"
    use = use if is_adapter else f"vllm serve {name}"
    settings = json.dumps(public(settings_of(config)), indent=2)
    return "\n".join(
        [
            "---", *front, "---", "",
            f"# {PurePath(name).name}", "",
            f"Made by reinforcement learning with Rollflow from {base}.", "",
            result, "",
            "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items()), "",
            "## Use", "", "```", use, "```", "",
            "## Settings", "", "```json", settings, "```", "",
            "## Versions", "", ", ".join(f"{key} {value}" for key, value in versions.items()), "",
        ]
    )  # fmt: skip


def base_of(config: RunConfig) -> tuple[str, str]:
    """Name of the model that the run began with, and its repository on the hub, or ""."""
    match config.model:
        case HubModelConfig(repository=repository, revision=revision):
            return f"{repository} at {revision}", repository
        case SmolLM2Config():
            return SMOLLM2, SMOLLM2
        case PathConfig(path=path):
            return PurePath(path).name, ""
    return f"a model of kind {config.model.kind}, built by Rollflow", ""


def task_name(config: RunConfig) -> str:
    """The task's kind, with its repository or the names of its files."""
    task = config.task
    where = getattr(task, "repository", "") or PurePath(getattr(task, "path", "")).name
    return f"{task.kind} ({where})" if where else task.kind


def public(settings: Mapping[str, Any]) -> dict[str, Any]:  # Any: parsed JSON
    """Settings without what is of one machine: of paths and addresses only the last part stays."""

    def shown(key: str, value: Any) -> Any:  # Any: parsed JSON
        match value:
            case dict():
                return {name: shown(name, below) for name, below in value.items()}
            case list():
                return [shown(key, each) for each in value]
            case str() if key in PLACES:
                return PurePath(value).name
        return value

    return {key: shown(key, value) for key, value in settings.items() if key not in OF_THIS_MACHINE}


def result_of(store: Store) -> str:
    """What the run says of its held-out rewards: its summary's first line, or else its figures."""
    summary = store.read_if_there(layout.report_file("summary.md"))
    told = [line for line in (summary or b"").decode().splitlines() if line.startswith("Held-out")]
    if told:
        return told[0]
    figures = read_figures(store)
    if figures is None or figures.reward_before is None:
        return "The run kept no held-out reward."
    after = "" if figures.reward_after is None else f" -> {figures.reward_after:.3f}"
    return f"Held-out reward {figures.reward_before:.3f}{after}."


@contextmanager
def folder_of(store: Store, name: str) -> Iterator[Path]:
    """A folder of the run; that of a remote root is fetched for the while."""
    with tempfile.TemporaryDirectory(prefix="rollflow-push-") as scratch:
        if store.is_local:
            yield Path(store.local_path(name))
        else:
            store.download(name, Path(scratch))
            yield Path(scratch)


def model_files(folder: Path) -> dict[str, Path | bytes]:
    """The files of a model's folder, by name."""
    return {
        path.name: path
        for path in sorted(check_model(folder).iterdir())
        if path.is_file() and not path.name.startswith(".")
    }


def adapter_files(folder: Path, base: str) -> dict[str, Path | bytes]:
    """The files of an adapter's folder, by name. base: what PEFT loads beneath the adapter, in
    place of a folder of this machine."""
    settings = json.loads((folder / CONFIG).read_text()) | {"base_model_name_or_path": base}
    return {CONFIG: json.dumps(settings, indent=2).encode(), WEIGHTS: folder / WEIGHTS}


def told_size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 100_000 else f"{num_bytes:,} bytes"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="rollflow push",
        description="Send the model that a run has trained to the Hugging Face hub, with a model"
        " card. The login is the hub's own: 'hf auth login', or HF_TOKEN.",
    )
    add_run(made)
    made.add_argument("name", metavar="NAME", help="model on the hub, such as me/sums")
    made.add_argument(
        "--adapter", action="store_true", help="send the adapter alone, without its model"
    )
    made.add_argument(
        "--private", action="store_true", help="only you see the model, if it is not there already"
    )
    made.add_argument(
        "--dry-run", action="store_true", help="print what would be sent, and send nothing"
    )
    return made


@command(parser)
def main(options: argparse.Namespace) -> int:
    store = run_store(options.run, options.root)
    config, manifest = trained_config(store, "pushed"), read_manifest(store)
    card = model_card(options.name, manifest, config, result_of(store), options.adapter).encode()
    if options.adapter and config.learner.lora.sweep:
        raise ValueError(
            f"--adapter needs a run of one adapter, {manifest.run_id} has several; push its model,"
            f" which is the best one's, or send a folder of {store.url}/{layout.ADAPTER} yourself"
        )
    if options.adapter and not store.exists(f"{layout.ADAPTER}/{CONFIG}"):
        raise ValueError(
            f"--adapter needs a run that published an adapter, {manifest.run_id} published whole"
            " weights; push its model, or train with learner.lora.publish=adapter"
        )
    with folder_of(store, layout.ADAPTER if options.adapter else layout.MODEL) as folder:
        name, link = base_of(config)
        files = adapter_files(folder, link or name) if options.adapter else model_files(folder)
        files[CARD] = card
        sizes = {
            name: len(data) if isinstance(data, bytes) else data.stat().st_size
            for name, data in files.items()
        }
        total = told_size(sum(sizes.values()))
        if options.dry_run:
            who = "private" if options.private else "public"
            address = repository_url(options.name)
            print_line(f"{address} ({who}) would get {len(files)} files, {total}:")
            for name, size in sizes.items():
                print_line(f"  {told_size(size):>14}  {name}")
            print_line("the card, README.md:")
            print_line(card.decode())
            return 0
        print_line(f"sending {len(files)} files, {total}, of {manifest.run_id}")
        message = f"Rollflow run {manifest.run_id}"
        address = send_model(options.name, files, message, is_private=options.private)
    print_line(f"sent: {address}")
    return 0
