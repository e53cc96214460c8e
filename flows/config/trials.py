"""Tries what only an attempt shows, before anything of a run is started: the user's chat template
renders a question, the user's reward is called once on the first one, the heads of environments are
measured by the model's tokenizer, those of attention are shared out over the devices of an engine,
the memory of GPUs is predicted, the hub is asked for what it shall give, and the first row is read
of files that are large or elsewhere.
Takes as long as the user's imports and the tokenizer's do, and seconds where others must answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.hub_rows import HubRows
from artifacts.datasets.rows import Dataset
from artifacts.models.chat_template import check_template
from artifacts.models.registry import (
    HubModelConfig,
    TinyAdderConfig,
    TinyPlayerConfig,
    TrainedElsewhere,
)
from artifacts.records import Generated, Outcome, Prompt, VersionSpan
from artifacts.urls import without_secrets
from flows.config.engine_sizes import check_heads, heads_of
from flows.config.misfits import is_at_hand, is_far, single_tasks
from flows.config.run_config import RunConfig
from tasks.cluster.cards import smallest_card_bytes
from tasks.environments.episodes.bridge import bridge_of, make_bridge
from tasks.rewards.base import Reward
from tasks.rewards.custom import CustomConfig
from tasks.rewards.judges.reward import judge_engine_of
from tasks.rewards.registry import config_of
from tasks.run.prompts import task_dataset
from tasks.tiny_models.models import present_model, with_template

LONGEST_LOOK_S = 10.0  # at the first row of files that are large or elsewhere


def misfits_of_trials(config: RunConfig) -> list[str]:
    """What the attempts find, a sentence each; `misfits_of_places` must have found nothing."""
    templates = list(_misfits_of_templates(config))
    if templates:  # heads are rendered by them
        return list(dict.fromkeys([*templates, *_misfits_of_rewards(config)]))
    checks = (
        _misfits_of_far_parts, _misfits_of_rewards, _misfits_of_heads, _misfits_of_sizes,
        _misfits_of_memory,
    )  # fmt: skip
    return list(dict.fromkeys(told for check in checks for told in check(config)))


def _misfits_of_far_parts(config: RunConfig) -> Iterator[str]:
    """What the hub does not give, and files, large or elsewhere, whose first row is unusable."""
    judge = judge_engine_of(config.rewards)
    for part in (config.model, judge and judge.model, *single_tasks(config.task)):
        if isinstance(part, HubModelConfig | HubRows):
            try:
                part.check_there()
            except ValueError as error:
                yield str(error)
        elif isinstance(part, FilesConfig) and is_far(part):
            yield from in_time(part.check_first_rows)


def in_time(check: Callable[[], None]) -> list[str]:
    """The fault that a check finds within LONGEST_LOOK_S; empty if it finds none or takes longer:
    then the run finds it."""
    found: list[str] = []

    def look() -> None:
        try:
            check()
        except ValueError as error:
            found.append(str(error))

    looking = Thread(target=look, daemon=True)
    looking.start()
    looking.join(LONGEST_LOOK_S)
    return found[:1]


def left_unchecked(config: RunConfig) -> str:
    """A line on what only the run itself finds out about its rows; empty if all have been read."""
    left = []
    for task in filter(is_far, single_tasks(config.task)):
        if isinstance(task, HubRows):
            left.append(f"the rows of {task.repository} on the hub")
        elif isinstance(task, FilesConfig):
            left.append(f"all but the first row of {without_secrets(task.path)}")
    return f"left to the run to check: {', '.join(left)}" if left else ""


def _misfits_of_templates(config: RunConfig) -> Iterator[str]:
    """Chat templates of the user's that do not render a question of the task."""
    judge = judge_engine_of(config.rewards)
    has_system = bool(getattr(config.task, "system_prompt", ""))
    asked = ((config.model, has_system), (judge.model if judge else None, False))
    for model, after_system in asked:
        if isinstance(model, TrainedElsewhere) and model.chat_template:
            try:
                check_template(model.chat_template, has_system=after_system)
            except ValueError as error:
                yield str(error)


def _misfits_of_rewards(config: RunConfig) -> Iterator[str]:
    if not is_at_hand(config.task):
        return
    dataset = task_dataset(config.task, config.seed)
    for domain, settings in config.rewards.items():
        if not isinstance(settings, CustomConfig):
            continue
        try:
            reward = settings.build_reward()
        except ValueError as error:
            yield f"rewards.{domain}: {error}"
            continue
        try:
            yield from tried(reward, f"rewards.{domain}", _first_of(config, settings, dataset))
        finally:
            reward.close()


def _first_of(config: RunConfig, settings: CustomConfig, dataset: Dataset) -> Prompt | None:
    """The first question that the reward judges, not tokenised; None if it judges none."""
    for number, row in enumerate(dataset.rows):
        with suppress(ValueError):  # of a domain without a reward
            if config_of(config.rewards, row.domain) is settings:
                return Prompt(
                    prompt_id=f"0/{number}",
                    domain=row.domain,
                    token_ids=(0,),
                    gold=row.gold,
                    text=row.conversation,
                )
    return None


def tried(reward: Reward, field: str, prompt: Prompt | None) -> Iterator[str]:
    """A sentence if the reward gives no number for the right answer to this question."""
    if prompt is None:
        return
    now_s = time.time()
    answer = Generated(
        prompt_id=prompt.prompt_id,
        index=0,
        token_ids=(0,),
        logprobs=(0.0,),
        versions=(VersionSpan(version=0, num_tokens=1),),
        finish_reason="stop",
        text=prompt.gold,
        engine="none",
        submitted_s=now_s,
        first_token_s=now_s,
        finished_s=now_s,
    )
    score = reward.score(prompt, answer)
    if score.outcome is Outcome.INFRA:
        yield (
            f"{field} must give a number, called once with the first question"
            f" ({prompt.text[:60]!r}), its answer as the response and as the gold"
            f" ({prompt.gold[:60]!r}) it gave none: {score.detail}; mend it there"
        )


def _misfits_of_heads(config: RunConfig) -> Iterator[str]:
    """Heads of environments that leave no room for an episode in the engines' context."""
    most = config.engine.max_model_len - config.sampling.max_response_tokens
    for domain in config.environments:
        try:
            length = _head_length(config, domain)
        except ValueError as error:
            yield f"environments.{domain}: {error}"
            continue
        if length is not None and length > most:
            longest = config.sampling.max_response_tokens
            yield (
                f"the head of environments.{domain}, its rules and examples, must fit in {most}"
                f" tokens (engine.max_model_len less sampling.max_response_tokens), it has"
                f" {length}; --set engine.max_model_len={length + longest}"
            )


def _head_length(config: RunConfig, domain: str) -> int | None:
    """Tokens of the head of a domain's environment; None if the model's tokenizer is not here."""
    head = config.environments[domain].head()
    if isinstance(config.model, TinyAdderConfig | TinyPlayerConfig):
        # imported when needed, transformers with it
        from artifacts.models.character_tokenizer import character_tokenizer

        tokenizer = character_tokenizer()
        stop = (int(tokenizer.eos_token_id),)
        return len(make_bridge(tokenizer, stop, head, "the tiny model").head)
    cache = Path(config.keep.model_cache)
    if (found := present_model(config.model, cache)) is None:
        return None
    return len(bridge_of(str(with_template(config.model, found, cache)), head).head)


def _misfits_of_sizes(config: RunConfig) -> Iterator[str]:
    """Tensor-parallel sizes over which the model's attention heads cannot be shared out."""
    if config.engine.tensor_parallel_size == 1:
        return
    heads = None
    with suppress(ValueError):  # of the hub, told above
        heads = heads_of(config)
    try:
        if heads is not None:
            check_heads(config, heads)
    except ValueError as error:
        yield str(error)


def _misfits_of_memory(config: RunConfig) -> Iterator[str]:
    """GPUs of this machine that cannot hold what the configuration puts on them."""
    if config.cluster.device_kind != "cuda" or config.cluster.scheduler_address:
        return
    found = present_model(config.model, Path(config.keep.model_cache))
    if found is None:
        return
    # imported when needed, torch with them
    from flows.config.gpu_memory import check_gpu_memory
    from tasks.learner.memory import model_size

    try:
        check_gpu_memory(config, model_size(found), smallest_card_bytes())
    except ValueError as error:
        yield str(error)
