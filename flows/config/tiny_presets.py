"""The presets of a Llama of a million parameters that answers in a single turn."""

from __future__ import annotations

from flows.config.overlay import Values, overlay


def tiny() -> Values:
    """A Llama of a million parameters that learns to add in about a minute; made and warmed up here
    on first use."""
    return {
        "preset": "tiny",
        "num_steps": 20,
        "model": {"kind": "tiny_llama"},
        # with two terms there are nine questions: the model would memorise the eight trained ones
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
