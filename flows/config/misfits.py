"""Finds everything that keeps a run from starting at once: a sentence each, with the flag that
cures it. Nothing is started, fetched or written, and no torch, vLLM or Prefect is imported but by
parts of the user's own.

    given values ─▶ misfits_of_settings  fields, kinds, rules between parts
    RunConfig    ─▶ misfits_of_places    files, folders, ports, rows
    RunConfig    ─▶ flows.config.trials  rewards are called, heads are rendered: takes longer

A wrong value is replaced by what was probably meant, or else by the preset's, so that what else is
wrong is found, too. Leaves out what only a hub or another machine knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from artifacts import layout
from artifacts.custom_part import faults_of_parts
from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.hub_rows import HubRows
from artifacts.datasets.registry import CurriculumConfig, MixtureConfig
from artifacts.models.chat_template import read_template
from artifacts.models.registry import PathConfig, TrainedElsewhere, check_model
from artifacts.reports.trackers import misfit_of_trackers
from flows.config.elastic_rules import weight_server_of
from flows.config.presets import OWN, PRESETS, YOUR_MODEL, YOUR_QUESTIONS, YOUR_REWARD, preset_fault
from flows.config.rows_needed import fitted, misfit_of_rows
from flows.config.run_config import RunConfig
from flows.config.sentence import QUOTED, flag, nearest, nearest_field, path_of, sentences
from tasks.cluster import gpus
from tasks.cluster.devices import device_map, wishes_of
from tasks.cluster.ports import Wish
from tasks.environments.processes.walls import check_seen
from tasks.isolation.interpreter import own
from tasks.rewards.judges.reward import judge_engine_of
from tasks.run.prompts import task_dataset

MOST_REPAIRS = 30  # rounds of repairs: each changes a value or is the last
LARGEST_READ = 1 << 26  # bytes of rows that are read before a run starts: more take their time
Json = dict[str, Any]  # Any: parsed JSON


class Settings(NamedTuple):
    """What is wrong with given values, and the configuration that they come to with repairs."""

    misfits: list[str]
    config: RunConfig | None  # None if they cannot be repaired
    replaced: frozenset[str]  # parts of which the preset's stand in for given ones


def misfits_of_settings(given: Mapping[str, Any]) -> Settings:  # Any: parsed JSON
    """Find all unknown fields, wrong values and broken rules of a user's values."""
    found: list[str] = []
    values, replaced = deepcopy(dict(given)), set[str]()
    preset = values.get("preset")
    if preset and preset not in PRESETS:
        found.append(preset_fault(str(preset)))
        values["preset"] = nearest(str(preset), PRESETS)
        if not values["preset"]:  # which fields there are depends on it
            return Settings(found, None, frozenset(RunConfig.model_fields))
    for _ in range(MOST_REPAIRS):
        broken: list[str] = []
        try:
            config = RunConfig.model_validate(values, context=broken)
        except ValidationError as error:
            found += sentences(error)
            before = deepcopy(values)
            for fault in error.errors():
                replaced |= _repair(values, fault)
            if values == before:
                break
        else:
            return Settings(_each_once([*found, *broken]), config, frozenset(replaced))
    return Settings(_each_once(found), None, frozenset(RunConfig.model_fields))


def _each_once(found: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(found))


def _repair(values: Json, fault: ErrorDetails) -> set[str]:
    """Replace or drop the value that is at fault; returns its part where the whole part goes."""
    place = path_of(fault["loc"])
    parents, above = _parents(values, place), place[:-1]
    if not place or parents is None:
        return set()
    if fault["type"] == "union_tag_invalid":
        asked, _, *known = QUOTED.findall(fault["msg"])
        chosen = parents.get(place[-1])
        if (kind := nearest(asked, known)) and isinstance(chosen, dict):
            chosen["kind"] = kind
            return set()
    value = parents.pop(place[-1], None)
    if fault["type"] == "extra_forbidden":
        near = nearest_field(fault["loc"]).split(".")
        if near[:-1] == above:
            parents.setdefault(near[-1], value)
        return set()
    return {place[0]} if isinstance(value, dict) else set()


def _parents(values: Json, place: list[str]) -> Json | None:
    """The mapping that holds the value at a place; None if the user has given none there."""
    below: Any = values  # Any: parsed JSON
    for name in place[:-1]:
        below = below.get(name) if isinstance(below, dict) else None
    return below if isinstance(below, dict) and place and place[-1] in below else None


def misfits_of_places(
    config: RunConfig, wishes: Iterable[Wish] = (), replaced: frozenset[str] = frozenset()
) -> list[str]:
    """Find all files, folders, ports and rows that are not as the configuration needs them. wishes:
    ports beyond the run's own. replaced: parts that are not the user's, and not looked at."""
    checks: list[Iterator[str]] = [misfits_of_ports(config, wishes), _misfits_of_folders(config)]
    if "cluster" not in replaced:
        checks.append(_misfits_of_machines(config))
    if "model" not in replaced:
        checks.append(_misfits_of_models(config))
    if not {"rewards", "environments", "episodes"} & replaced:
        checks.append(misfits_of_code(config))
    if not {"task", "batch", "scheduling", "evaluation"} & replaced:
        checks.append(_misfits_of_rows(config))
    return _each_once([*_placeholders(config), *(told for check in checks for told in check)])


def _placeholders(config: RunConfig) -> Iterator[str]:
    needed = []
    if _is_placeholder(getattr(config.model, "path", ""), YOUR_MODEL):
        needed.append("--set model.path=DIRECTORY (or --set model.kind=hub and a repository)")
    if _is_placeholder(getattr(config.task, "path", ""), YOUR_QUESTIONS):
        needed.append("--set task.path=FILE")
    for domain, reward in config.rewards.items():
        if _is_placeholder(getattr(reward, "path", ""), YOUR_REWARD):
            field = flag(f"rewards.{domain}.path", "FILE.py:FUNCTION")
            needed.append(f"{field} (or {flag(f'rewards.{domain}.kind', 'math_answer')})")
    if needed:
        begin = "; 'rollflow init FOLDER' writes a first folder" if config.preset == OWN else ""
        yield (
            f"the preset {config.preset} needs {' and '.join(needed)}: it has none of its"
            f" own{begin}"
        )


def _is_placeholder(path: str, placeholder: str) -> bool:
    return path == placeholder and not Path(path).exists()


def _misfits_of_models(config: RunConfig) -> Iterator[str]:
    try:
        config.learner.lora.check_initial()
    except ValueError as error:
        yield str(error)
    judge = judge_engine_of(config.rewards)
    for model in filter(None, (config.model, judge and judge.model)):
        if isinstance(model, PathConfig) and not _is_placeholder(model.path, YOUR_MODEL):
            try:
                check_model(Path(model.path).expanduser())
            except ValueError as error:
                yield str(error)
        if isinstance(model, TrainedElsewhere) and model.chat_template:
            try:
                read_template(model.chat_template)
            except ValueError as error:
                yield str(error)


def misfits_of_code(config: RunConfig) -> Iterator[str]:
    """Parts by path that are not there or cannot be made, and those that processes could not read.
    A joined cluster's workers may be on other machines."""
    parts: dict[str, BaseModel] = {
        **{f"rewards.{domain}": reward for domain, reward in config.rewards.items()},
        **{f"environments.{domain}": game for domain, game in config.environments.items()},
    }
    unsound = set()
    for field, part in parts.items():
        file, _, name = str(getattr(part, "path", "")).rpartition(":")
        if file.endswith(".py") and not Path(file).is_file():
            unsound.add(field)
            yield (
                f"{field}.path must name a function or class in a file, there is no file {file};"
                f" {flag(f'{field}.path', f'FILE.py:{name}')}"
            )
    for field, told in faults_of_parts(config):
        if field not in unsound:
            unsound.add(field)
            yield f"{field}: {told}"
    games = [
        game
        for domain, game in config.environments.items()
        if f"environments.{domain}" not in unsound
    ]
    if games and not config.cluster.scheduler_address:
        try:
            check_seen(config.episodes.hosts, own(), filter(None, (game.source for game in games)))
        except ValueError as error:
            yield str(error)


def misfits_of_ports(config: RunConfig, wishes: Iterable[Wish] = ()) -> Iterator[str]:
    """Ports that the user has named and that are taken on this machine."""
    own_wishes = [] if config.cluster.scheduler_address else [*wishes_of(config.cluster)]
    server = None
    with suppress(ValueError):  # told among the rules
        server = weight_server_of(config.elastic, config.cluster)
    if server:
        is_named = "port" in config.elastic.weights.model_fields_set
        what, cure = "the weight server", "in elastic.weights.port"
        try:
            own_wishes += [
                Wish(what=what, port=server.port, is_named=is_named, cure=cure, host=host)
                for host in server.addresses
            ]
        except ValueError as error:
            yield f"elastic.weights.interface: {error}"
    for wish in (*wishes, *own_wishes):
        try:
            wish.check()
        except ValueError as error:
            yield str(error)


def _misfits_of_machines(config: RunConfig) -> Iterator[str]:
    """GPUs that no one machine has, of a run that starts its workers on this one. A machine has the
    GPUs that are found here; where none are, as many as cluster.devices_per_host."""
    cluster = config.cluster
    if cluster.scheduler_address or cluster.device_kind != "cuda":
        return
    placed = device_map(cluster)
    needed = 1 + max(device for devices in placed.values() for device in devices)
    here = len(gpus.found_gpus().names)
    if needed > (here or cluster.devices_per_host):
        machine = f"this machine's {here}" if here else f"one machine's {cluster.devices_per_host}"
        one = "" if here else f"; a machine that has all: --set cluster.devices_per_host={needed}"
        yield (
            f"cluster.roles must lie on {machine} GPUs where cluster.scheduler_address is empty,"
            f" got {cluster.roles!r}, which needs {needed}; start a Dask cluster on all machines"
            f" (deployments/README.md) and --set cluster.scheduler_address=tls://HOST:8786{one}"
        )


def _misfits_of_folders(config: RunConfig) -> Iterator[str]:
    root = config.local_root()
    folders = {"keep.artifact_root": root, "keep.weights_dir": Path(config.keep.weights_dir)}
    folders["keep.model_cache"] = Path(config.keep.model_cache)
    for field, folder in folders.items():
        if folder is None:
            continue
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            reason = "is not yours to write to" if there.is_dir() else "is a file"
            yield (
                f"{field} must be a folder that can be written, {there} {reason}; --set"
                f" {field}=FOLDER"
            )
    named = "" if config.resume else config.run_name
    if root and named and (root / named / layout.MANIFEST).exists():
        yield (
            f"run_name must be new under {root}, {named!r} is there; --set run_name=NAME, or go on"
            f" with it: --resume {named}"
        )
    if told := misfit_of_trackers(config.keep.trackers):
        yield told
    if root is None and not config.keep.tracking_uri:
        try:
            config.tracking_uri()
        except ValueError as error:
            yield str(error)


def _misfits_of_rows(config: RunConfig) -> Iterator[str]:
    if _is_placeholder(getattr(config.task, "path", ""), YOUR_QUESTIONS) or not is_at_hand(
        config.task
    ):
        return
    try:
        config, _ = fitted(config, task_dataset(config.task, config.seed))
        dataset = task_dataset(config.task, config.seed)
    except ValueError as error:
        yield str(error)
        return
    if told := misfit_of_rows(config, dataset):
        yield told
    answered, there = config.learner.lora.answering.by_domain, {*dataset.domains}
    there |= {row.domain for row in dataset.heldout}
    if answered and (apart := sorted(answered.keys() ^ there)):
        yield (
            "learner.lora.sweep.*.domains must be those of the task"
            f" ({', '.join(sorted(there))}), each once, {apart[0]!r} is on one side alone; name it"
            " right, or give it to an adapter"
        )
    known = {*config.rewards, *config.environments}
    for row in {row.domain: row for row in dataset.heldout}.values():
        if "*" not in known and row.domain not in config.rewards:
            yield (
                f"every domain needs a reward, {row.domain!r} has none beside"
                f" {', '.join(sorted(config.rewards))}; --set 'rewards.*.kind=math_answer'"
            )
        if not row.messages and row.domain not in config.environments:
            yield (
                f"a row that asks nothing must be of a domain with an environment, {row.domain!r}"
                f" has none; --set environments.{row.domain}.kind=KIND"
            )


def single_tasks(task: BaseModel) -> Iterator[BaseModel]:
    """The tasks of a mixture and of the stages of a curriculum; another task itself."""
    match task:
        case MixtureConfig():
            parts: Iterable[BaseModel] = (part.task for part in task.parts)
        case CurriculumConfig():
            parts = (task.task, *(stage.task for stage in task.stages))
        case _:
            yield task
            return
    for part in parts:
        yield from single_tasks(part)


def is_at_hand(task: BaseModel) -> bool:
    """True if the rows of a task are made here, or lie here in files that are read in a moment."""
    return not any(map(is_far, single_tasks(task)))


def is_far(task: BaseModel) -> bool:
    """True if the rows of a single task are not here, or take their time to be read."""
    if not isinstance(task, FilesConfig):
        return isinstance(task, HubRows)
    paths = [path for path in (task.path, task.heldout_path) if path]
    sizes = [Path(path).stat().st_size for path in paths if Path(path).is_file()]
    return any("://" in path for path in paths) or sum(sizes) >= LARGEST_READ
