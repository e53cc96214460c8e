"""Derives what follows from other settings: the time limits of a run's parts, which no user sets
(`DerivedSeconds`), as fixed multiples of values in its table `deadlines`; and, unless a user sets
it, after how many steps the run evaluates in between."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

from flows.config.parts import Parts
from tasks.environments.adapters.http import HttpConfig
from tasks.environments.registry import EnvironmentConfig
from tasks.environments.tools.tools import ToolsConfig
from tasks.rewards.custom import CustomConfig
from tasks.rewards.judges.reward import JudgeConfig
from tasks.rewards.maths.math_answer import MathAnswerConfig, WorkedAnswerConfig
from tasks.rewards.programs.code_tests import CodeTestsConfig
from tasks.rewards.registry import RewardConfig
from tasks.rewards.service import ServiceConfig
from tasks.run.run_context import DeadlineConfig

Part = TypeVar("Part", bound=BaseModel)
Changes = dict[str, Any]  # Any: values of fields


EVALUATIONS = 5  # in equal parts of a run, the last at its end
FEWEST_STEPS = 10  # of a run that evaluates in between by default


def fill_in_limits(config: Parts) -> None:
    """Set the derived values in place, while the configuration is being validated."""
    deadlines = config.deadlines
    hosts = _changed(
        config.episodes.hosts,
        step_s=deadlines.environment_s,
        reset_s=2 * deadlines.environment_s,
        place_s=60 * deadlines.environment_s,
    )
    filled: Changes = {
        "cluster": _changed(config.cluster, start_deadline_s=deadlines.start_s / 5),
        "elastic": _changed(
            config.elastic,
            build_s=deadlines.start_s,
            pull_s=2 * deadlines.weights_s,
            load_s=deadlines.weights_s,
        ),
        "episodes": _changed(config.episodes, hosts=hosts),
        "environments": {
            domain: _of_environment(environment, deadlines)
            for domain, environment in config.environments.items()
        },
        "rewards": {
            domain: _of_reward(reward, deadlines) for domain, reward in config.rewards.items()
        },
    }
    limits = {
        "start_deadline_s": deadlines.start_s,
        "call_deadline_s": 0.4 * deadlines.call_s,
        "load_deadline_s": deadlines.weights_s,
    }
    known = limits.keys() & type(config.engine).model_fields.keys()  # a simulated engine has none
    filled["engine"] = _changed(
        config.engine,
        **{name: limits[name] for name in known},
        adapter=config.learner.lora.engine_shape if config.trains else None,
    )
    evaluation = config.evaluation
    is_open = not evaluation.every_steps and "every_steps" not in evaluation.model_fields_set
    if is_open and config.num_steps >= FEWEST_STEPS:
        every_steps = -(-config.num_steps // EVALUATIONS)
        filled["evaluation"] = _changed(evaluation, every_steps=every_steps)
    vars(config).update(filled)


def _changed(part: Part, **limits: Any) -> Part:  # Any: values of fields
    """Copy a part with these limits; they do not count as fields that the user has set."""
    changed = part.model_copy(update=limits)
    changed.__pydantic_fields_set__.difference_update(limits.keys() - part.model_fields_set)
    return changed


def _of_environment(config: EnvironmentConfig, deadlines: DeadlineConfig) -> EnvironmentConfig:
    match config:
        case HttpConfig():
            return _changed(config, timeout_s=2 * deadlines.environment_s)
        case ToolsConfig():
            return _changed(config, program_s=deadlines.environment_s / 6)
    return config


def _of_reward(config: RewardConfig, deadlines: DeadlineConfig) -> RewardConfig:
    match config:
        case JudgeConfig():
            engine = _changed(config.engine, call_deadline_s=deadlines.call_s)
            return _changed(config, deadline_s=deadlines.reward_s, engine=engine)
        case CustomConfig():
            return _changed(config, timeout_s=deadlines.reward_s, start_s=deadlines.start_s)
        case ServiceConfig():
            return _changed(config, timeout_s=deadlines.reward_s)
        case CodeTestsConfig():
            timeout = _changed(config.timeout, ceiling_s=deadlines.reward_s / 2)
            return _changed(config, timeout=timeout)
        case WorkedAnswerConfig():
            return _changed(config, answer=_of_reward(config.answer, deadlines))
        case MathAnswerConfig():
            return _changed(config, timeout_s=deadlines.reward_s / 60)
    return config
