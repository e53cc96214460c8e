"""Settings of earlier versions. Old names of renamed settings are accepted for one more version;
removed settings are refused with a sentence that says what to do instead. A path is dotted; `*`
stands for any key of a mapping, such as the domain of a reward."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

READ_UNTIL = "0.3"  # version that no longer reads the old names

RENAMED: Mapping[str, str] = {
    "alarm": "monitors",
    "engine.says": "engine.responses",
    "gate": "weight_check",
    "guests": "elastic",
    "guests.most_guests": "elastic.max_workers",
    "guests.max_running_per_guest": "elastic.max_running_per_worker",
    "learner.gate": "learner.sequence_mask",
    "learner.normalisation": "learner.aggregation",
    "rewards.*.shown": "rewards.*.judge_input",
}


def _all(part: str, names: str, cure: str) -> dict[str, str]:
    return {f"{part}.{name}": cure for name in names.split()}


_TABLE = "deadlines has all limits now; set deadlines."
_BOUNDS = "min_effective_sample_fraction max_mismatch_k3 max_cut_fraction min_entropy_share"
_WARNED = "it is fixed (docs/asynchrony.md); raise monitors.steps_in_a_row to be warned less"
REMOVED: Mapping[str, str] = {
    "learner.temperature": "it is always sampling.temperature; set that alone",
    "cluster.start_deadline_s": f"{_TABLE}start_s, of which it is a fifth",
    "deadlines.engine_call_s": f"{_TABLE}call_s",
    "deadlines.learner_call_s": f"{_TABLE}call_s, of which it is three times",
    "elastic.build_s": f"{_TABLE}start_s",
    "elastic.load_s": f"{_TABLE}weights_s",
    "elastic.pull_s": f"{_TABLE}weights_s, of which it is twice",
    "engine.call_deadline_s": f"{_TABLE}call_s, of which it is two fifths",
    "engine.load_deadline_s": f"{_TABLE}weights_s",
    "engine.start_deadline_s": f"{_TABLE}start_s",
    "environments.*.program_s": f"{_TABLE}environment_s, of which it is a sixth",
    "environments.*.timeout_s": f"{_TABLE}environment_s, of which it is twice",
    "episodes.hosts.place_s": f"{_TABLE}environment_s, of which it is sixty times",
    "episodes.hosts.reset_s": f"{_TABLE}environment_s, of which it is twice",
    "episodes.hosts.step_s": f"{_TABLE}environment_s",
    "rewards.*.answer.timeout_s": f"{_TABLE}reward_s, of which it is a sixtieth",
    "rewards.*.deadline_s": f"{_TABLE}reward_s",
    "rewards.*.engine.call_deadline_s": f"{_TABLE}call_s",
    "rewards.*.start_s": f"{_TABLE}start_s",
    "rewards.*.timeout.ceiling_s": f"{_TABLE}reward_s, of which it is half",
    "rewards.*.timeout_s": f"{_TABLE}reward_s",
    "guests.build_s": f"{_TABLE}start_s",
    "guests.load_s": f"{_TABLE}weights_s",
    "guests.pull_s": f"{_TABLE}weights_s, of which it is twice",
    **_all(
        "balancing",
        "look_s threshold most_moves keep_running most_running",
        "nobody measured a better value; leave it out",
    ),
    **_all("stream_trainer", "milestone_step kv_share", "it is the paper's value; leave it out"),
    **_all("seeding", "damping remembers", "it is the paper's value; leave it out"),
    **_all("gate", "num_probes probe_tokens", "it is fixed; set weight_check.tolerance_nats"),
    **_all(
        "rewards.*",
        "max_final_answer_chars max_answer_chars max_new_tokens max_calls_per_round veto",
        "it is fixed (docs/judge.md); leave it out",
    ),
    "rewards.*.engine.streaming": "it is fixed (docs/judge.md); leave it out",
    "cluster.coordinator_slots": "a run has the four that it needs; leave it out",
    **_all("monitors", _BOUNDS, _WARNED),
    **_all("alarm", _BOUNDS, _WARNED),
    **_all("environments.*", "max_result_chars", "it is 200; leave it out"),
    "environments.*.questions.signs": "questions have all three; leave it out",
    "rewards.*.engine.dtype": "it is bfloat16; leave it out",
    "rewards.*.timeout.factor": "it is the paper's value; leave it out",
    "learner.advantage.epsilon": "it is 1e-6; leave it out",
    "learner.optimizer.epsilon": "it is 1e-8; leave it out",
    "engine.block_size": "it is 32; leave it out",
    "episodes.hosts.max_observation_chars": "it is 32768; leave it out",
    "task.slow_share": "it is 0.15; leave it out",
    **_all("task", "add letters story", "name a profile: task.profile"),
    **_all(
        "model",
        "hidden_size intermediate_size num_layers head_dim warm_up_steps wrong_share ramble_share"
        " heedful_share seed",
        "name a profile: model.profile",
    ),
    **_all(
        "engine",
        "max_batch step_s step_s_per_sequence sequence_exponent prefill_s_per_token"
        " kv_capacity_tokens step_s_per_kv_token weights_s matrix_s_per_token chunk_tokens"
        " attention_share kv_margin shares_prompts draft_tokens draft_yield takes_seeds lengths"
        " wrong_share ramble_share",
        "name a profile: engine.profile, or one of its numbers: engine.profile.FIELD",
    ),
}

Values = dict[str, Any]  # Any: JSON values


def with_todays_names(given: Mapping[str, Any]) -> Values:  # Any: JSON values
    """Replace old names, with a warning. ValueError for a removed setting, or one given twice."""
    values: Values = _copied(given)
    for old, cure in REMOVED.items():
        for path in _found(values, old.split(".")):
            raise ValueError(f"{'.'.join(path)} is no setting any more: {cure}")
    # deeper names first: `guests.most_guests` is renamed before `guests` moves
    for old in sorted(RENAMED, key=lambda name: -name.count(".")):
        for path in list(_found(values, old.split("."))):
            _move(values, path, new_path(path))
    return values


def new_path(path: Sequence[str]) -> list[str]:
    """The path of a setting with its present names; a path without old names is unchanged."""
    for length in range(len(path), 0, -1):
        for old, new in RENAMED.items():
            pattern = old.split(".")
            alike = (name in ("*", key) for key, name in zip(path, pattern, strict=False))
            if len(pattern) == length and all(alike):
                keys = (key for key, name in zip(path, pattern, strict=False) if name == "*")
                named = [next(keys) if name == "*" else name for name in new.split(".")]
                return [*named, *path[length:]]
    return list(path)


def _found(values: Any, pattern: Sequence[str]) -> Iterator[list[str]]:  # Any: JSON values
    if not pattern:
        yield []
    elif isinstance(values, Mapping):
        for key in list(values) if pattern[0] == "*" else [pattern[0]]:
            if key in values:
                yield from ([key, *rest] for rest in _found(values[key], pattern[1:]))


def _move(values: Values, old: Sequence[str], new: Sequence[str]) -> None:
    """Move a value to its new path; mappings are merged. ValueError if both paths have a value."""
    before, after = ".".join(old), ".".join(new)
    moved = _parent(values, old).pop(old[-1])
    parent = _parent(values, new)
    there = parent.get(new[-1], {})
    if isinstance(there, dict) and isinstance(moved, dict) and not there.keys() & moved.keys():
        moved = there | moved
    elif new[-1] in parent:
        raise ValueError(f"{after} must be given once, got it as {before} too; leave {before} out")
    parent[new[-1]] = moved
    _log_once(f"{before} is {after} now; the old name is read until {READ_UNTIL}")


def _parent(values: Values, path: Sequence[str]) -> Values:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    return values


def _copied(values: Any) -> Any:  # Any: JSON values
    if isinstance(values, Mapping):
        return {key: _copied(value) for key, value in values.items()}
    return values


@cache
def _log_once(line: str) -> None:
    """Log a warning only once per process, however often values with the old name are read."""
    logger.warning(line)
