"""The settings that `rollflow explain --fields` lists: path, type, default and sentence of each.

Of a union every alternative's fields are listed; a field that several of them have stands once. A
`*` in a path is the key of a mapping or the place in a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from flows.config.run_config import RunConfig

COMMON = (  # what people set; the list is kept by hand
    "preset", "run_name", "resume", "seed", "num_steps", "model.kind", "model.path",
    "model.repository", "model.revision", "task.kind", "task.path", "task.repository",
    "task.split", "task.num_prompts", "task.prompt_field", "task.messages_field",
    "task.answer_field", "task.domain_field", "task.prompt_template", "task.system_prompt",
    "task.filter", "task.limit", "task.heldout_path", "task.heldout_fraction", "rewards.*.kind",
    "rewards.*.path", "rewards.*.url", "rewards.*.rubric", "environments.*.kind",
    "environments.*.path", "environments.*.max_turns", "episodes.max_turn_tokens",
    "batch.prompts_per_step", "batch.responses_per_prompt", "scheduling.kind",
    "scheduling.dynamic_sampling", "scheduling.async_ratio", "stream_trainer.enabled",
    "elastic.enabled", "sampling.temperature", "sampling.max_response_tokens",
    "engine.max_model_len", "engine.max_num_seqs", "engine.tensor_parallel_size",
    "engine.kv_cache_gb", "engine.gpu_memory_utilization", "engine.enforce_eager",
    "engine.sleep_mode", "learner.loss.kind", "learner.loss.clip_low", "learner.loss.clip_high",
    "learner.advantage.kind", "learner.aggregation.kind", "learner.kl_coefficient",
    "learner.entropy_coefficient", "learner.optimizer.learning_rate",
    "learner.optimizer.warmup_steps", "learner.optimizer.decay_steps",
    "learner.max_tokens_per_microbatch", "learner.recompute_layers", "learner.parameters",
    "cluster.device_kind", "cluster.num_devices", "cluster.roles", "cluster.scheduler_address",
    "evaluation.num_prompts", "evaluation.responses_per_prompt", "evaluation.every_steps",
    "keep.artifact_root", "keep.tracking_uri", "keep.experiment", "keep.checkpoint_every_steps",
)  # fmt: skip
TYPES = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}


class FieldRow(NamedTuple):
    """A setting as it is listed."""

    path: str  # dotted, as `--set` takes it
    type: str  # in words
    default: str  # as JSON; empty for a part, and where one must be given
    description: str


def field_rows(part: type[BaseModel] = RunConfig, place: str = "") -> list[FieldRow]:
    """Every setting below a part, in the order of the classes."""
    rows: dict[str, FieldRow] = {}
    for row in _rows(part, place):
        rows.setdefault(row.path, row)
    return list(rows.values())


def _rows(part: type[BaseModel], place: str) -> Iterator[FieldRow]:
    for name, field in part.model_fields.items():
        if field.exclude:
            continue
        path = f"{place}{name}"
        below = list(_parts(field.annotation, f"{path}."))
        kinds = [kind for inner, _ in below if (kind := _kind(inner))]
        yield FieldRow(path, _type(field, below), _default(field, below), field.description or "")
        if kinds:
            described = "The kind, which decides on the fields beside it."
            yield FieldRow(f"{below[0][1]}kind", " | ".join(kinds), "", described)
        for inner, at in below:
            yield from _rows(inner, at)


def _kind(part: type[BaseModel]) -> str:
    """The kind of an alternative; empty for a part that is none."""
    field = part.model_fields.get("kind")
    return str(get_args(field.annotation)[0]) if field else ""


def _parts(annotation: Any, place: str) -> Iterator[tuple[type[BaseModel], str]]:  # Any: types
    """The configuration classes that a field may hold, and the place of their fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, place
    inside = get_origin(annotation)
    is_many = isinstance(inside, type) and issubclass(inside, Mapping | Sequence)
    for inner in get_args(annotation):
        yield from _parts(inner, f"{place}*." if is_many else place)


def _type(field: FieldInfo, below: Sequence[tuple[type[BaseModel], str]]) -> str:
    return "a part" if below else " | ".join(dict.fromkeys(_names(field.annotation)))


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


def _default(field: FieldInfo, below: Sequence[object]) -> str:
    if below or field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    return json.dumps(to_jsonable_python(value), ensure_ascii=False)
