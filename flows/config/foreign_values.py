"""The values of another system's configuration, and what a function of `other_systems.txt` may
answer beside a value: several settings, `Unneeded` or `Contradiction`.

A function takes a key, its value and all values of the file, and returns the value of the rule's
setting, or `Several`. Both exceptions may have a sentence; the rule's note is the reason otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any  # a value of YAML, everywhere

from flows.config.foreign_files import Flat, Unresolved

TRAINS, INFERS = "actor_train.device_mapping", "actor_infer.device_mapping"
GATHERED = "actor_train.training_args.gradient_accumulation_steps"
EACH = "actor_train.training_args.per_device_train_batch_size"
PARALLEL = "actor_train.strategy_args.strategy_config."
RESPONSE_LENGTHS = (
    "response_length", "actor_infer.generating_args.max_new_tokens", "data.max_response_length",
)  # fmt: skip
JUDGE = "LLMJudgeRewardWorker"  # ROLL's reward by a model
DEVICES = re.compile(r"range\((?:(\d+)\s*,\s*)?(\d+)\)|\[\s*(\d[\d\s,]*)\]")


class Unneeded(Exception):
    """A key that needs no setting here, with this value."""


class Contradiction(ValueError):
    """A value that cannot be had here."""


class Several(dict[str, Any]):  # Any: JSON values
    """Values of several settings, by dotted path."""


@dataclass(frozen=True, slots=True)
class ForeignValues:
    """The values of a file, and the defaults of its system for keys that it leaves out."""

    values: Flat
    defaults: Flat

    def of(self, *keys: str, default: Any = None) -> Any:  # Any: values of YAML
        """The value of the first of these keys that is given, else of the first default."""
        for source in (self.values, self.defaults):
            for key in keys:
                if source.get(key) is not None and not isinstance(source[key], Unresolved):
                    return source[key]
        return default

    def matching(self, pattern: str) -> dict[str, Any]:  # Any: values of YAML
        """The values of all keys of a pattern, by its first group."""
        found = ((re.fullmatch(pattern, key), value) for key, value in self.values.items())
        return {match[1]: value for match, value in found if match}

    @property
    def has_critic(self) -> bool:
        return bool(self.of("adv_estimator", "algorithm.adv_estimator") == "gae")

    @property
    def num_steps(self) -> int:
        """Steps of the run. Raises Contradiction where the file counts epochs."""
        steps = self.of("max_steps", "trainer.total_training_steps")
        if steps is None:
            raise Contradiction("it counts steps of a run, whose number the file leaves to epochs")
        return int(steps)

    @property
    def mini_batches(self) -> int:
        """Optimizer updates of one pass over a step's groups."""
        if prompts := self.of("actor_rollout_ref.actor.ppo_mini_batch_size"):
            return max(1, round(float(self.of("data.train_batch_size")) / float(prompts)))
        kinds = ("tensor_model", "pipeline_model", "context")
        split = prod(self.of(f"{PARALLEL}{kind}_parallel_size", default=1) for kind in kinds)
        responses = self.of("rollout_batch_size") * self.of("num_return_sequences_in_group")
        at_once = self.of(GATHERED) * self.of(EACH, default=8)
        ranks = max(1, self.learner_devices // int(split))
        return max(1, round(float(responses) / float(at_once * ranks)))

    @property
    def num_updates(self) -> int:
        """Optimizer updates of a step."""
        passes = self.of("ppo_epochs", "actor_rollout_ref.actor.ppo_epochs", default=1)
        return int(passes) * self.mini_batches

    @property
    def learner_devices(self) -> int:
        if mapping := self.of(TRAINS):
            return len(numbers(mapping))
        each = self.of("trainer.n_gpus_per_node", default=1)
        return int(each) * int(self.of("trainer.nnodes", default=1))


def numbers(mapping: Any) -> list[int]:  # Any: a list, or a text that makes one
    """Device numbers of a mapping like "list(range(0, 8)) + [9]". Raises Contradiction."""
    text = str(mapping)
    found: list[int] = []
    for first, end, listed in DEVICES.findall(text):
        found += range(int(first or 0), int(end)) if end else map(int, re.findall(r"\d+", listed))
    if not found or DEVICES.sub("", text).strip("list()+ "):
        raise Contradiction("devices are numbers, like 'rollout: 0-7, learner: 0-7'")
    return sorted(set(found))


def ranges(devices: Iterable[int]) -> str:
    """Device numbers as cluster.roles has them: 0-3,6."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and runs[-1][1] == device - 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
