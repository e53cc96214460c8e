"""Named configurations. A preset is a function that returns plain values; its docstring is its line
in `explain --list`.

`RunConfig(preset="tiny", num_steps=5)` is the preset `tiny` with one value changed. Variants are
written as what they change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flows.config.overlay import overlay

Values = dict[str, Any]  # Any: JSON values, checked by RunConfig


def smollm2() -> Values:
    """The main job: SmolLM2-135M-Instruct on tiny-mix with tail batching, two CPU cores."""
    return {
        "preset": "smollm2",
        "num_steps": 30,
        "model": {"kind": "smollm2"},
        "task": {"kind": "tiny_mix"},
        "rewards": {"*": {"kind": "math_answer"}},
        "batch": {"prompts_per_step": 8, "responses_per_prompt": 8},
        # nine responses for eight: more would favour short answers. Half of the groups have equal
        # rewards: ask others for some of them
        "scheduling": {
            "kind": "tail_batching",
            "response_overprovision": 1.125,
            "dynamic_sampling": 0.5,
        },
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 256},
        "engine": {"max_model_len": 768, "max_num_seqs": 64, "kv_cache_gb": 1.0},
        "learner": {"optimizer": {"learning_rate": 2e-5, "warmup_steps": 2, "beta2": 0.95}},
        "cluster": {"device_kind": "cpu", "num_devices": 2, "roles": "rollout: 0-1, learner: 0-1"},
        "evaluation": {"num_prompts": 128, "responses_per_prompt": 2},
    }


def smollm2_sync() -> Values:
    """The main job with plain synchronous rounds, to compare with."""
    main_job = smollm2()
    scheduling = {"kind": "sync", "dynamic_sampling": main_job["scheduling"]["dynamic_sampling"]}
    return overlay(main_job, {"preset": "smollm2-sync", "scheduling": scheduling})


def smollm2_async() -> Values:
    """The main job with generation on one core and training on the other, at the same time and at
    most one step apart."""
    scheduling = {
        "kind": "asynchronous",
        "dynamic_sampling": smollm2()["scheduling"]["dynamic_sampling"],
    }
    cluster = {"roles": "rollout: 0, learner: 1"}
    return overlay(
        smollm2(), {"preset": "smollm2-async", "scheduling": scheduling, "cluster": cluster}
    )


def tinycode() -> Values:
    """SmolLM2-135M-Instruct writes small functions, which are executed in a sandbox."""
    return overlay(
        smollm2(),
        {
            "preset": "tinycode",
            "task": {"kind": "tinycode"},
            "rewards": {"*": {"kind": "code"}},
            "evaluation": {"num_prompts": 48},
        },
    )


def smollm2_mixed() -> Values:
    """SmolLM2-135M-Instruct on sums, letters, stories and small functions together, each with its
    own reward."""
    parts = [
        {"task": {"kind": "tiny_mix"}, "weight": 2.0, "heldout_weight": 1.0},
        {"task": {"kind": "tinycode"}, "weight": 1.0, "heldout_weight": 1.0},
    ]
    return overlay(
        smollm2(),
        {
            "preset": "smollm2-mixed",
            "task": {"kind": "mixture", "parts": parts},
            "rewards": {"code": {"kind": "code"}, "*": {"kind": "math_answer"}},
            "sampling": {
                "max_response_tokens": 640
            },  # 25 times the median; RollPacker's longest responses are 25 to 32 times theirs
            "engine": {"max_model_len": 1024},
        },
    )


def smollm2_judged() -> Values:
    """The mixed job with stories judged by a second, frozen SmolLM2: rules, sandbox and judge in
    one run; it has no skill at judging."""
    judge = {
        "kind": "judge",
        "engine": {
            "model": {"kind": "smollm2"},
            "max_model_len": 768,
            "max_num_seqs": 32,
            "kv_cache_gb": 0.25,
        },
    }
    cluster = {"roles": "rollout: 0-1, learner: 0-1, judge: 1"}
    shorter = {"sampling": {"max_response_tokens": 256}}  # the judge reads them whole
    return overlay(
        smollm2_mixed(),
        {"preset": "smollm2-judged", "rewards": {"story": judge}, "cluster": cluster, **shorter},
    )


def rollpacker() -> Values:
    """The main job as RollPacker has it: tail batching, and training on cores that are freed in
    mid-round."""
    trainer = {"enabled": True, "last_milestone": 0.9, "max_running_per_engine": 8}
    return overlay(smollm2(), {"preset": "rollpacker", "stream_trainer": trainer})


def overlap() -> Values:
    """The main job as RLHFuse overlaps it: synchronous rounds, and training on cores that are freed
    in mid-round."""
    return overlay(rollpacker(), {"preset": "overlap", "scheduling": smollm2_sync()["scheduling"]})


def rollpacker_mixed() -> Values:
    """The mixed job with tail batching, limits of running times that follow right programs, and
    training on cores freed in mid-round."""
    return overlay(
        smollm2_mixed(),
        {"preset": "rollpacker-mixed", "stream_trainer": rollpacker()["stream_trainer"]},
    )


def tiny() -> Values:
    """A Llama of a million parameters that learns to add in about a minute; made and warmed up here
    on first use."""
    return {
        "preset": "tiny",
        "num_steps": 20,
        "model": {"kind": "tiny_llama"},
        # of two terms there are nine questions: eight would be memorised, and the held-out one lost
        "task": {"kind": "chain_sum", "min_terms": 3},
        "rewards": {"*": {"kind": "math_answer"}},
        "batch": {"prompts_per_step": 16, "responses_per_prompt": 8},
        "scheduling": {"kind": "tail_batching"},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 128},
        "engine": {"max_model_len": 256, "max_num_seqs": 128, "kv_cache_gb": 0.25},
        "learner": {"optimizer": {"learning_rate": 3e-4, "warmup_steps": 1, "beta2": 0.95}},
        "cluster": {"device_kind": "cpu", "num_devices": 2, "roles": "rollout: 0-1, learner: 0-1"},
        "evaluation": {"num_prompts": 128, "responses_per_prompt": 4},
        "keep": {"checkpoint_every_steps": 5},
    }


def tiny_sync() -> Values:
    """The tiny preset with plain synchronous rounds."""
    return overlay(tiny(), {"preset": "tiny-sync", "scheduling": {"kind": "sync"}})


def tiny_async() -> Values:
    """The tiny preset with generation on one core and training on the other, at the same time and
    at most one step apart."""
    return overlay(
        tiny(),
        {
            "preset": "tiny-async",
            "scheduling": {"kind": "asynchronous"},
            "cluster": {"roles": "rollout: 0, learner: 1"},
        },
    )


def tiny_judged() -> Values:
    """The tiny preset with a second tiny Llama as the judge of everything: the plumbing alone,
    nothing is learned from it."""
    engine = {
        "model": {"kind": "tiny_llama"},
        "max_model_len": 768,
        "max_num_seqs": 32,
        "kv_cache_gb": 0.1,
    }
    judge = {
        "kind": "judge",
        "engine": engine,
        "rubric": "grade",
        "yes": "1",
        "no": "0",
    }  # words that its characters can write
    cluster = {"roles": "rollout: 0-1, learner: 0-1, judge: 1"}
    return overlay(
        tiny_sync(), {"preset": "tiny-judged", "rewards": {"*": judge}, "cluster": cluster}
    )


def agent() -> Values:
    """SmolLM2-135M-Instruct learns a game of several turns in a few minutes: guess a number from 1
    to 20 in five tries, told whether it is higher or lower."""
    return overlay(
        smollm2_sync(),
        {
            "preset": "agent",
            "task": {"kind": "seeds", "domain": "guess"},
            "environments": {"guess": {"kind": "guess", "largest": 20, "max_turns": 5}},
            "episodes": {"max_turn_tokens": 8},
            "rewards": {"*": {"kind": "episode"}},
            # many numbers, each guessed by few: what one number rewards is noise for the others
            "batch": {"prompts_per_step": 16, "responses_per_prompt": 4},
            "scheduling": {"dynamic_sampling": 0.0},
            "sampling": {"max_response_tokens": 128},
            "engine": {"max_model_len": 512},
            "learner": {"optimizer": {"learning_rate": 5e-5}},
        },
    )


def tiny_agent() -> Values:
    """A Llama of a million parameters that knows the moves of a guessing game and what they are
    answered, and learns to choose them."""
    game = {"kind": "guess", "style": "terse", "largest": 8, "max_turns": 4}
    return overlay(
        tiny_sync(),
        {
            "preset": "tiny-agent",
            "num_steps": 100,
            "model": {"kind": "tiny_player", "game": game, "warm_up_steps": 400},
            "task": {"kind": "seeds", "domain": "guess"},
            "environments": {"guess": game},
            "episodes": {"max_turn_tokens": 4},
            "rewards": {"*": {"kind": "episode"}},
            "batch": {"prompts_per_step": 64, "responses_per_prompt": 4},
            "sampling": {"max_response_tokens": 32},
            "engine": {"max_model_len": 64},
            "learner": {"optimizer": {"learning_rate": 1e-3, "warmup_steps": 10}},
            "keep": {"checkpoint_every_steps": 20},
        },
    )


def one_gpu() -> Values:
    """One GPU that takes turns between rollout and learner; model.path names your model, task.path
    your questions."""
    return {
        "preset": "one-gpu",
        "num_steps": 200,
        "model": {"kind": "path", "path": "models/your-model"},
        "task": {"kind": "files", "path": "data/your-questions.jsonl"},
        "rewards": {"*": {"kind": "math_answer"}},
        "batch": {"prompts_per_step": 32, "responses_per_prompt": 8},
        "scheduling": {"kind": "tail_batching"},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 4096},
        "engine": {
            "max_model_len": 6144,
            "max_num_seqs": 256,
            "gpu_memory_utilization": 0.4,
            "enforce_eager": False,
        },
        "learner": {
            "optimizer": {"learning_rate": 1e-6, "warmup_steps": 10, "beta2": 0.95},
            "max_tokens_per_microbatch": 16384,
            "recompute_layers": True,
        },
        "cluster": {"device_kind": "cuda", "num_devices": 1, "roles": "rollout: 0, learner: 0"},
        "evaluation": {"num_prompts": 64, "responses_per_prompt": 4, "every_steps": 50},
    }


def eight_gpu() -> Values:
    """Eight GPUs of one host, every one colocated; model.path names your model, task.path your
    questions."""
    cluster = {"num_devices": 8, "roles": "rollout: 0-7, learner: 0-7"}
    return overlay(
        one_gpu(), {"preset": "eight-gpu", "batch": {"prompts_per_step": 128}, "cluster": cluster}
    )


PRESETS: Mapping[str, Callable[[], Values]] = {
    "smollm2": smollm2,
    "smollm2-sync": smollm2_sync,
    "smollm2-async": smollm2_async,
    "tinycode": tinycode,
    "smollm2-mixed": smollm2_mixed,
    "smollm2-judged": smollm2_judged,
    "agent": agent,
    "rollpacker": rollpacker,
    "overlap": overlap,
    "rollpacker-mixed": rollpacker_mixed,
    "tiny": tiny,
    "tiny-sync": tiny_sync,
    "tiny-async": tiny_async,
    "tiny-judged": tiny_judged,
    "tiny-agent": tiny_agent,
    "one-gpu": one_gpu,
    "eight-gpu": eight_gpu,
}


def preset_values(name: str) -> Values:
    """The values of a preset. ValueError names the presets there are."""
    if name not in PRESETS:
        raise ValueError(
            f"preset must be one of {', '.join(PRESETS)}, got {name!r}; choose one, or change one"
            " with --set FIELD=VALUE"
        )
    return PRESETS[name]()
