"""rollflow explain: describe a configuration before a run: a step in numbers (`algebra_rows`), the
process on every device, and with --fields the settings with type, default and sentence.

Of a union --fields lists the fields of all alternatives; a field of several alternatives stands
once. A `*` in a path is a key of a mapping or an index of a list.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table

from artifacts.config_parts import Misfits
from flows.commands.algebra_rows import algebra_rows
from flows.commands.command_line import configuration_of
from flows.commands.options import add_configuration, command
from flows.config.device_choice import told
from flows.config.misfits import misfits_of_places
from flows.config.other_systems import names_elsewhere
from flows.config.presets import PRESETS
from flows.config.run_config import RunConfig
from flows.config.sentence import listed
from flows.config.trials import misfits_of_trials
from tasks.cluster.cards import GB, smallest_card_bytes
from tasks.cluster.devices import worker_specs
from tasks.metrics.catalogue import metrics_page

COMMON = (  # the settings that --fields lists without --all
    "preset", "run_name", "resume", "seed", "num_steps", "model.kind", "model.path",
    "model.repository", "model.revision", "model.chat_template", "task.kind", "task.path",
    "task.repository", "task.split", "task.num_prompts", "task.prompt_field", "task.messages_field",
    "task.answer_field", "task.domain_field", "task.prompt_template", "task.system_prompt",
    "task.filter", "task.limit", "task.heldout_path", "task.heldout_fraction", "rewards.*.kind",
    "rewards.*.path", "rewards.*.url", "rewards.*.rubric", "environments.*.kind",
    "environments.*.path", "environments.*.max_turns", "episodes.max_turn_tokens",
    "batch.prompts_per_step", "batch.responses_per_prompt", "scheduling.kind", "scheduling.path",
    "scheduling.dynamic_sampling", "scheduling.async_ratio", "stream_trainer.enabled",
    "elastic.enabled", "sampling.temperature", "sampling.max_response_tokens",
    "engine.max_model_len", "engine.max_num_seqs", "engine.tensor_parallel_size",
    "engine.kv_cache_gb", "engine.gpu_memory_utilization", "engine.enforce_eager",
    "engine.sleep_mode", "learner.loss.kind", "learner.loss.path", "learner.loss.clip_low",
    "learner.loss.clip_high", "learner.advantage.kind", "learner.advantage.path",
    "learner.aggregation.kind", "learner.kl_coefficient", "learner.entropy_coefficient",
    "learner.lora.rank", "learner.lora.targets", "learner.lora.initial",
    "learner.optimizer.learning_rate",
    "learner.optimizer.warmup_steps", "learner.optimizer.decay_steps",
    "learner.max_tokens_per_microbatch", "learner.recompute_layers", "learner.parameters",
    "cluster.device_kind", "cluster.num_devices", "cluster.roles", "cluster.scheduler_address",
    "evaluation.num_prompts", "evaluation.responses_per_prompt", "evaluation.every_steps",
    "keep.artifact_root", "keep.tracking_uri", "keep.experiment", "keep.trackers",
    "keep.checkpoint_every_steps",
)  # fmt: skip
TYPES = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}


def placement_rows(config: RunConfig) -> Iterator[tuple[str, str, str, str]]:
    """Name, device, cores and slots of every worker process."""
    for spec in worker_specs(config.cluster):
        cores = ",".join(map(str, spec.core_ids)) or "any"
        slots = ", ".join(f"{name}={amount:g}" for name, amount in spec.resources)
        yield spec.name, spec.device or "-", cores, slots


def show(config: RunConfig, console: Console, card: int | None = None) -> None:
    """Print the step in numbers and the placement of the processes. card: bytes of each GPU."""
    title = f"{config.preset}: a step in numbers"
    algebra = Table(title=title, box=None, show_header=False, title_justify="left")
    for quantity, value in algebra_rows(config, card):
        algebra.add_row(quantity, value)
    algebra.add_row("devices", told(config))
    columns = ("worker", "device", "cores", "slots")
    placement = Table(*columns, title="Who works where", box=None, title_justify="left")
    for row in placement_rows(config):
        placement.add_row(*row)
    console.print(algebra, "", placement)


class FieldRow(NamedTuple):
    """A setting in the list of --fields."""

    path: str  # dotted, as `--set` takes it
    type: str  # in words
    default: str  # as JSON; empty for a group of settings and for a required one
    description: str


def field_rows(part: type[BaseModel] = RunConfig, prefix: str = "") -> list[FieldRow]:
    """All settings below a configuration class, in the order of its fields. prefix: their path."""
    rows: dict[str, FieldRow] = {}
    for row in _rows(part, prefix):
        rows.setdefault(row.path, row)
    return list(rows.values())


def _rows(part: type[BaseModel], prefix: str) -> Iterator[FieldRow]:
    for name, field in part.model_fields.items():
        if field.exclude:
            continue
        path = f"{prefix}{name}"
        below = list(_parts(field.annotation, f"{path}."))
        kinds = [
            str(get_args(inner.model_fields["kind"].annotation)[0])
            for inner, _ in below
            if "kind" in inner.model_fields
        ]
        words = "a part" if below else " | ".join(dict.fromkeys(_names(field.annotation)))
        default = ""
        if not below and not field.is_required():
            value = field.get_default(call_default_factory=True)
            default = json.dumps(to_jsonable_python(value), ensure_ascii=False)
        yield FieldRow(path, words, default, field.description or "")
        if kinds:
            described = "The kind, which decides on the fields beside it."
            yield FieldRow(f"{below[0][1]}kind", " | ".join(kinds), "", described)
        for inner, at in below:
            yield from _rows(inner, at)


def _parts(annotation: Any, prefix: str) -> Iterator[tuple[type[BaseModel], str]]:  # Any: types
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, prefix
    inside = get_origin(annotation)
    is_many = isinstance(inside, type) and issubclass(inside, Mapping | Sequence)
    for inner in get_args(annotation):
        yield from _parts(inner, f"{prefix}*." if is_many else prefix)


def _names(annotation: Any) -> Iterator[str]:  # Any: types
    inside, inner = get_origin(annotation), get_args(annotation)
    if annotation in TYPES:
        yield TYPES[annotation]
    elif inside is Literal:
        yield from map(str, inner)
    elif isinstance(inside, type) and issubclass(inside, Mapping):
        yield "mapping"
    elif isinstance(inside, type) and issubclass(inside, Sequence):
        yield "list"
    else:
        for each in inner:
            yield from _names(each)


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow explain",
        description="Describe a configuration before a run.",
        epilog="example: rollflow explain --preset tiny --set batch.prompts_per_step=32",
    )
    add_configuration(made)
    made.add_argument("--list", action="store_true", help="list the presets")
    made.add_argument("--fields", action="store_true", help="list the settings that people set")
    made.add_argument("--metrics", action="store_true", help="say what each metric is")
    made.add_argument("--all", action="store_true", help="with --fields: list all settings")
    made.add_argument(
        "--json", action="store_true", help="print the effective configuration as JSON"
    )
    made.add_argument(
        "--gpu-gb", type=float, help="memory of each GPU, GB (default: of the smallest one here)"
    )
    return made


@command(parser)
def main(options: Namespace) -> int:
    console = Console()
    if options.list:
        for name, preset in PRESETS.items():
            console.print(f"{name:<20} {' '.join((preset.__doc__ or '').split())}", highlight=False)
        return 0
    if options.fields:
        for row in field_rows():
            if options.all or row.path in COMMON:
                default = f" (default {row.default})" if row.default else ""
                elsewhere = names_elsewhere(row.path)
                named = f" [{elsewhere}]" if elsewhere else ""
                print(f"{row.path:<40} {row.type}{default}: {row.description}{named}")
        if not options.all:
            print("These are what people set; 'rollflow explain --fields --all' lists the rest.")
        return 0
    if options.metrics:
        print(metrics_page(), end="")
        return 0
    config = configuration_of(options)
    if options.json:
        print(json.dumps(config.model_dump(mode="json"), indent=2))
        return 0
    card = int(options.gpu_gb * GB) if options.gpu_gb else smallest_card_bytes()
    show(config, console, card)
    if found := misfits_of_places(config) or misfits_of_trials(config):
        print(f"\nNot ready to start: {listed(Misfits(found))}", file=sys.stderr)
    return 1 if found else 0
