"""The presets of SmolLM2-135M-Instruct that answer in a single turn, on two CPU cores."""

from __future__ import annotations

from flows.config.overlay import Values, overlay


def smollm2_answers() -> Values:
    """The main job without its lessons: SmolLM2-135M-Instruct on tiny-mix, paid for right answers
    alone, sampled at temperature 1."""
    return {
        "preset": "smollm2-answers",
        "num_steps": 30,
        "model": {"kind": "smollm2"},
        "task": {"kind": "tiny_mix"},
        "rewards": {"*": {"kind": "math_answer"}},
        "batch": {"prompts_per_step": 8, "responses_per_prompt": 8},
        # nine responses are launched for eight: more would favour short answers. Half of the groups
        # have equal rewards: dynamic sampling asks other prompts for some of them
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


def smollm2() -> Values:
    """The main job: SmolLM2-135M-Instruct learns tiny-mix with tail batching on two CPU cores,
    from longer questions to those of the task, paid for its working, too."""
    lessons = [
        {"num_prompts": 160, "task": _lesson("first_lesson")},
        {"num_prompts": 240, "task": _lesson("second_lesson")},
    ]
    falling = {"learning_rate": 2.5e-5, "decay_steps": 56, "floor_fraction": 0.4}
    return overlay(
        smollm2_answers(),
        {
            "preset": "smollm2",
            "num_steps": 64,
            "task": {
                "kind": "curriculum",
                "stages": lessons,
                "task": {"kind": "tiny_mix", "worked": True},
            },
            "rewards": {"*": {"kind": "worked_answer"}},
            # at temperature 1 most samples are noise, from which the model first learns to be short
            "sampling": {"temperature": 0.7, "max_response_tokens": 128},
            "learner": {"optimizer": falling},
        },
    )


def _lesson(profile: str) -> Values:
    """A stage's task: tiny-mix with working and the sizes of this profile."""
    return {"kind": "tiny_mix", "worked": True, "profile": profile}


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


def smollm2_in_turn() -> Values:
    """The main job by partial rollouts: both cores generate, then both train, and what takes long
    goes on in the next round, at most three steps behind."""
    partial = {"at_update": "pause", "extra_lag": 2}
    cluster = {"roles": smollm2()["cluster"]["roles"]}
    return overlay(
        smollm2_async(), {"preset": "smollm2-in-turn", "scheduling": partial, "cluster": cluster}
    )


def tinycode() -> Values:
    """SmolLM2-135M-Instruct writes small functions, which are executed in a sandbox."""
    return overlay(
        smollm2_answers(),
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
        smollm2_answers(),
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
