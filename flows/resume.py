"""The configuration of a resumed run: the one that the run was started with, and those changes
given beside `resume` that are allowed: none after which a replay would give other weights, or the
stream of prompts other questions. A begun round is played as it was planned, and replays read what
was recorded. Paths of rows, models, templates and code may change: `run_record` checks what is
there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from artifacts.commit import read_commits, read_manifest
from artifacts.reports.figures import progress_text
from artifacts.reports.tracking import flatten
from artifacts.run_ids import find_run
from artifacts.status import read_status
from artifacts.store import Store
from flows.config.keep import KeepConfig
from flows.config.overlay import overlay
from flows.config.run_config import RunConfig, mark_as_set
from flows.config.settings_file import kept_config

Json = Mapping[str, Any]  # Any: JSON values

CHANGEABLE = (  # fields, or groups of fields, that may stand in a run's way
    "num_steps", "max_recoveries", "max_infra_fraction", "reward_workers", "unfit_prompts",
    "sampling.max_response_tokens", "evaluation.every_steps", "learner.max_nonfinite_steps",
    "engine.max_model_len", "engine.max_num_seqs", "engine.max_batched_tokens",
    "engine.kv_cache_gb", "engine.gpu_memory_utilization", "engine.enforce_eager",
    "engine.report_tokens",
    "cluster.scheduler_address", "cluster.scheduler_host", "cluster.scheduler_port",
    "cluster.dashboard_port",
    "cluster.tls_ca_file", "cluster.tls_cert", "cluster.tls_key",
    "scheduling.prompt_overprovision", "scheduling.num_levels",
    "planner", "stream_trainer", "seeding", "balancing", "weight_check", "elastic", "deadlines",
    "keep", "prices",
)  # fmt: skip
# fields, at any depth of these parts, that only locate files: rows and models, which are compared
# with those that the run was begun with, or code, which a user may correct
PLACES: Mapping[str, tuple[str, ...]] = {
    "task": ("path", "heldout_path", "format"),
    "learner": ("path",),
    "scheduling": ("path",),
    "engine": ("path",),
    "model": ("path", "chat_template"),
    "rewards": ("path", "chat_template", "token_file", "token_variable"),
    "environments": ("path", "python"),
    "episodes": ("readable",),
}
# a finished run is resumed for further steps, or to report its end again with changes of these
ENDS_ANEW = (
    "keep.report", "keep.log_model", "keep.registered_model", "keep.tracking_uri",
    "keep.experiment", "keep.trackers", "prices",
)  # fmt: skip
# fields that only identify a run
OF_THE_ATTEMPT = ("preset", "run_name", "resume")


def effective_config(config: RunConfig) -> RunConfig:
    """The given configuration; for a resume, that of the start with the given changes."""
    if not config.resume:
        return config
    return resumed_config(config, config_at_start(config.keep.artifact_root, config.resume))


def meant_run(config: RunConfig) -> RunConfig:
    """Write the whole id of the run that is resumed, of which a beginning or `last` was given."""
    if not config.resume or "/" in config.resume:
        return config
    run_id = find_run(Store.open(config.keep.artifact_root), config.resume)
    return config.model_copy(update={"resume": run_id})


def config_at_start(artifact_root: str, run_id: str) -> Json:
    """Read the configuration in the run's manifest. Raises ValueError if there is none."""
    if "/" in run_id or run_id == "..":
        raise ValueError(
            f"resume must be the name of a run under {artifact_root}, got {run_id!r}; give the name"
            " of its folder alone, and where that lies as --root of 'rollflow demo' or"
            " keep.artifact_root"
        )
    manifest = read_manifest(Store.open(artifact_root).child(run_id))
    if manifest.git_sha:
        kept_config(manifest.config, f"commit {manifest.git_sha}, with which the run was begun")
    return manifest.config


def beside_resume(given: Json) -> Json:
    """Complete a user's values for RunConfig from the run that they resume, if they resume one:
    every changed part gets that run's `kind`, and a part with paths (PLACES) all of its values, so
    that a change need not repeat them; and the whole id of the run."""
    run_id, keep = given.get("resume"), given.get("keep", {})
    if not (run_id and isinstance(run_id, str) and isinstance(keep, Mapping)):
        return given
    root = str(keep.get("artifact_root", KeepConfig().artifact_root))
    if "/" not in run_id:
        run_id = find_run(Store.open(root), run_id)
    started = config_at_start(root, run_id)
    found = _with_kinds({**given, "resume": run_id}, started)
    parts = [part for part in PLACES if isinstance(found.get(part), Mapping) and part in started]
    return overlay({part: started[part] for part in parts}, found)


def _with_kinds(given: Json, started: Json) -> dict[str, Any]:  # Any: JSON values
    kinds = {"kind": started["kind"]} if "kind" in started else {}
    below = {
        name: _with_kinds(value, started[name])
        for name, value in given.items()
        if isinstance(value, Mapping) and isinstance(started.get(name), Mapping)
    }
    return {**kinds, **given, **below}


def resumed_config(given: RunConfig, started: Json) -> RunConfig:
    """The configuration of a resumed run. Raises ValueError for a change that is not allowed."""
    kept = kept_config(started).model_dump(mode="json", exclude={"resume"})
    unset = given.model_dump(mode="json", exclude_unset=True, exclude=set(OF_THE_ATTEMPT))
    asked = _whole_lists(unset, given.model_dump(mode="json"))
    wanted = overlay(kept, asked)
    for field, (before, after) in differences(_placeless(kept), _placeless(wanted)).items():
        if not _is_among(field, CHANGEABLE):
            places = (f"{part}...{name}" for part, names in PLACES.items() for name in names)
            raise ValueError(
                f"{field} must stay what the run was started with ({before}), got {after} beside "
                "resume; leave it out, or start a new run. What may change: "
                f"{', '.join((*CHANGEABLE, *places))}"
            )
    found_at = {"keep": {"artifact_root": given.keep.artifact_root}}
    config = RunConfig.model_validate(overlay(wanted, found_at))
    mark_as_set(config, asked)  # ports of earlier attempts do not count as set: they may be taken
    return config.model_copy(update={"resume": given.resume})


def _whole_lists(asked: Json, dumped: Json) -> Json:
    """Replace lists by those of `dumped`, whose elements have their default fields, too."""
    return {
        name: _whole_lists(value, dumped[name]) if isinstance(value, Mapping) else dumped[name]
        for name, value in asked.items()
    }


def _is_among(field: str, names: Sequence[str]) -> bool:
    return any(f"{field}.".startswith(f"{name}.") for name in names)


def _placeless(config: Json) -> Json:
    return {
        part: _without(value, PLACES[part]) if part in PLACES else value
        for part, value in config.items()
    }


def _without(value: Any, names: Sequence[str]) -> Any:  # Any: JSON in, JSON out
    match value:
        case Mapping():
            kept = {name: item for name, item in value.items() if name not in names}
            return {name: _without(item, names) for name, item in kept.items()}
        case list():
            return [_without(item, names) for item in value]
    return value


def nothing_left(given: RunConfig) -> str:
    """A sentence if the run is finished and `given` asks for nothing new; else empty."""
    if not given.resume:
        return ""
    started = config_at_start(given.keep.artifact_root, given.resume)
    store = Store.open(given.keep.artifact_root).child(given.resume)
    status = None
    with suppress(ValueError):  # of a damaged file
        status = read_status(store)
    if status is None or status.state != "finished":
        return ""
    before, now = kept_config(started), resumed_config(given, started)
    changed = differences(before.model_dump(mode="json"), now.model_dump(mode="json"))
    if now.num_steps > before.num_steps or any(_is_among(field, ENDS_ANEW) for field in changed):
        return ""
    return (
        f"{given.resume} is finished: {progress_text(len(read_commits(store)), before.num_steps)}"
        f" steps; beside --resume, '--set num_steps=N' with N above {before.num_steps} adds some"
    )


def changes_of(started: Json, config: RunConfig, step: int) -> tuple[Mapping[str, str | int], ...]:
    """Fields in which `config` differs from the start after `step`, as records for the manifest."""
    kept = kept_config(started).model_dump(mode="json", exclude={"resume"})
    now = config.model_dump(mode="json", exclude={"resume"})
    return tuple(
        {"after_step": step, "field": field, "before": before, "after": after}
        for field, (before, after) in differences(kept, now).items()
    )  # fmt: skip


def differences(before: Json, after: Json) -> dict[str, tuple[str, str]]:
    """Differing values as (before, after) texts by dotted field; "" where one is missing."""
    old, new = dict(flatten(before)), dict(flatten(after))
    names = [*old, *(name for name in new if name not in old)]
    values = {name: (old.get(name, ""), new.get(name, "")) for name in names}
    return {name: (before, after) for name, (before, after) in values.items() if before != after}
