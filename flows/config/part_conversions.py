"""Functions of `other_systems.txt` (`foreign_values`): losses, advantages and KL; model, rows and
rewards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any  # a value of YAML, everywhere

from flows.config.foreign_values import (
    JUDGE,
    RESPONSE_LENGTHS,
    Contradiction,
    ForeignValues,
    Several,
    Unneeded,
)

LORA_RANKS = (
    "actor_train.model_args.lora_rank", "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.lora.rank",
)  # fmt: skip
KL_LOSS = "actor_rollout_ref.actor.use_kl_loss"
OVERLONG = "reward_model.reward_kwargs.overlong_buffer_cfg."
ADVANTAGE, BASELINE = "learner.advantage.kind", "learner.advantage.baseline"
ADVANTAGES = {
    "grpo": "grpo", "gae": "gae", "rloo": "dr_grpo", "gigpo": "anchor_states",
    "step_reinforce": "turn_returns", "agentic_reinforce": "turn_returns",
}  # fmt: skip
REWARDS = {"MathRuleRewardWorker": "math_answer", "CodeSandboxRewardWorker": "code"}
ESTIMATORS = {"kl": "k1", "mse": "k2", "low_var_kl": "k3", "k1": "k1", "k2": "k2", "k3": "k3"}
UNCLIPPED = ("vanilla", "tis", "topr")  # of pg_variant


# loss, advantage, KL


def of_gae(key: str, value: Any, given: ForeignValues) -> Any:
    if not given.has_critic:
        raise Unneeded
    return value


def of_adapter(key: str, value: Any, given: ForeignValues) -> Any:
    if not given.of(*LORA_RANKS):
        raise Unneeded
    return value


def adapter_targets(key: str, value: Any, given: ForeignValues) -> Any:
    """Names of matrices, or all linear ones; separated by commas in ROLL."""
    names = value.split(",") if isinstance(value, str) else list(value or ())
    names = [name.strip() for name in names]
    if {"lm_head", "embed_tokens"} & set(names):
        raise Contradiction
    return of_adapter(key, "all" if set(names) <= {"all-linear", "all"} else names, given)


def roll_advantage(key: str, value: Any, given: ForeignValues) -> Any:
    if value in ADVANTAGES:
        return ADVANTAGES[value]
    mean, std = given.of("norm_mean_type"), given.of("norm_std_type")
    if mean == "group" and std != "batch":
        return "grpo" if std == "group" else "dr_grpo"
    if value == "reinforce" and (mean in ("group", "batch") or given.of("whiten_advantages")):
        return of_step("group" if mean == "group" else "step")
    raise Contradiction


def of_step(baseline: str) -> Several:
    """Rewards over the deviation of the step, less this mean."""
    return Several({ADVANTAGE: "reinforce_plus_plus", BASELINE: baseline})


def verl_advantage(key: str, value: Any, given: ForeignValues) -> Any:
    if value == "grpo" and given.of("algorithm.norm_adv_by_std_in_grpo", default=True) is False:
        return "dr_grpo"
    if value in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        return of_step("group" if value.endswith("baseline") else "step")
    if value not in ADVANTAGES:
        raise Contradiction
    return ADVANTAGES[value]


def aggregation(key: str, value: Any, given: ForeignValues) -> Any:
    kinds = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean"}
    if value in kinds:
        return kinds[value]
    lengths = {"seq-mean-token-sum": 1, "seq-mean-token-sum-norm": given.of(*RESPONSE_LENGTHS)}
    if lengths.get(value) is None:
        raise Contradiction("write it as a loss: learner.loss.kind=custom")
    tokens = "learner.aggregation.length_tokens"
    return Several({"learner.aggregation.kind": "constant", tokens: lengths[value]})


def clips(low: float, high: float) -> Several:
    return Several({"learner.loss.clip_low": low, "learner.loss.clip_high": high})


def roll_clip(key: str, value: Any, given: ForeignValues) -> Any:
    if given.of("pg_variant") in UNCLIPPED:
        raise Unneeded("this loss has no clip")
    if not given.of("use_pg_clip_range"):
        return clips(value, value)
    return clips(given.of("pg_clip_low", default=0.2), given.of("pg_clip_high", default=0.2))


def verl_clip(key: str, value: Any, given: ForeignValues) -> Any:
    low, high = (f"actor_rollout_ref.actor.clip_ratio_{end}" for end in ("low", "high"))
    return clips(given.of(low, default=value), given.of(high, default=value))


def roll_dual_clip(key: str, value: Any, given: ForeignValues) -> Any:
    if not value or given.num_updates <= 1:
        raise Unneeded
    return 1 + 2 * given.of("pg_clip")


def verl_dual_clip(key: str, value: Any, given: ForeignValues) -> Any:
    mode = given.of("actor_rollout_ref.actor.policy_loss.loss_mode")
    if given.num_updates <= 1 or mode != "vanilla":
        raise Unneeded
    return value


def kl_term(in_loss: bool, in_reward: bool, loss: float, reward: float) -> Several:
    """The KL term, by where it is wanted and its weight in each place."""
    weight = loss if in_loss else reward if in_reward else 0.0
    place = {"learner.kl_place": "loss" if in_loss else "reward"} if weight else {}
    return Several({"learner.kl_coefficient": weight, **place})


def roll_kl(key: str, value: Any, given: ForeignValues) -> Any:
    in_reward = bool(given.of("add_token_level_kl", default=False))
    weights = given.of("kl_loss_coef", default=0.0), given.of("init_kl_coef", default=0.2)
    return kl_term(bool(value), in_reward, *weights)


def verl_kl(key: str, value: Any, given: ForeignValues) -> Any:
    in_reward = bool(given.of("algorithm.use_kl_in_reward", default=False))
    in_loss = given.of("actor_rollout_ref.actor.kl_loss_coef", default=0.001)
    return kl_term(
        bool(value), in_reward, in_loss, given.of("algorithm.kl_ctrl.kl_coef", default=0.001)
    )


def kl_estimator(key: str, value: Any, given: ForeignValues) -> Any:
    in_loss = bool(given.of("use_kl_loss", KL_LOSS))
    in_reward = given.of("add_token_level_kl", "algorithm.use_kl_in_reward", default=False)
    if in_loss != key.endswith("kl_loss_type") or not (in_loss or in_reward):
        raise Unneeded("there is no such KL term")
    if value not in ESTIMATORS or (in_loss and ESTIMATORS[value] == "k1"):
        raise Contradiction("an estimator with a gradient: k2 or k3 in the loss, k1 in the reward")
    return ESTIMATORS[value]


def overlong_buffer(key: str, value: Any, given: ForeignValues) -> Any:
    if not value:
        return Several({"learner.overlong": {"kind": "train"}})
    longest = given.of("reward_model.reward_kwargs.max_resp_len", *RESPONSE_LENGTHS)
    penalty = given.of(f"{OVERLONG}penalty_factor", default=1.0)
    soft = {"kind": "soft", "max_tokens": longest, "penalty": float(penalty)}
    return Several({"learner.overlong": {**soft, "buffer_tokens": given.of(f"{OVERLONG}len")}})


# model, rows, rewards


def model(key: str, value: Any, given: ForeignValues) -> Any:
    return Several({f"model.{name}": part for name, part in model_of(str(value)).items()})


def model_of(name: str) -> dict[str, str]:
    """A model by directory, or by its name on the hub."""
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) and not Path(name).is_dir():
        return {"kind": "hub", "repository": name}
    return {"kind": "path", "path": name}


def task(key: str, value: Any, given: ForeignValues) -> Any:
    if key.startswith("data."):
        chat = given.of("data.prompt_key", default="prompt")
        source = given.of("data.reward_fn_key", default="data_source")
        fields = {"messages_field": chat, "answer_field": "reward_model.ground_truth"}
    else:
        chat, source = given.of("actor_train.data_args.messages"), "tag"
        text = {"prompt_field": given.of("actor_train.data_args.prompt", default="prompt")}
        fields = {**({"messages_field": chat} if chat else text), "answer_field": "ground_truth"}
    files = value if isinstance(value, list) else [value]
    tasks = [
        {"kind": "files", "path": str(each), **fields, "domain_field": source} for each in files
    ]
    if len(tasks) == 1:
        return Several({"task": tasks[0]})
    return Several({"task": {"kind": "mixture", "parts": [{"task": each} for each in tasks]}})


def first_file(key: str, value: Any, given: ForeignValues) -> Any:
    trained = given.of("actor_train.data_args.file_name", "data.train_files")
    if isinstance(trained, list) and len(trained) > 1:
        raise Contradiction("of a mixture each part has its own: task.parts.*.task.heldout_path")
    files = value if isinstance(value, list) else [value]
    if len(files) > 1:
        raise Contradiction("one path, with * for several files")
    return files[0]


def domain_share(key: str, value: Any, given: ForeignValues) -> Any:
    if value == 1:
        raise Unneeded("it is the only one")
    raise Contradiction


def reward(key: str, value: Any, given: ForeignValues) -> Any:
    name, worker = key.split(".")[1], str(value).rpartition(".")[2]
    tags = given.of(f"rewards.{name}.tag_included") or [name]
    if worker in REWARDS:
        scored: dict[str, Any] = {"kind": REWARDS[worker]}
    elif worker == JUDGE:
        judge = given.of(f"rewards.{name}.model_args.model_name_or_path", default="")
        scored = {"kind": "judge", "engine": {"model": model_of(str(judge))}}
    else:
        raise Contradiction(f"write {worker} as a function: rewards.*.kind=custom, rewards.*.path")
    return Several({f"rewards.{tag}": scored for tag in tags})


def most_workers(key: str, value: Any, given: ForeignValues) -> Any:
    return max(given.matching(r"rewards\.([^.]+)\.world_size").values())
