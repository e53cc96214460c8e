"""The presets for GPUs, which name your own model and questions."""

from __future__ import annotations

from flows.config.overlay import Values, overlay


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
