"""The jobs of the papers: the values of RollPacker's, ROLL's and PolyRL's published scripts, and
beside each a twin that runs on two CPU cores. `flows.config.presets` registers them; the script
of each value, and what differs, is in docs/presets.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Values = dict[str, Any]  # Any: JSON values, checked by RunConfig

JUDGE = "Qwen/Qwen2.5-7B-Instruct"
# rows of a data set of which a run takes its questions: tests of programs are parsed at its start
READ_ROWS = 20_000
# dollars per GPU-hour: eight H100 reserved, two H100 as a spot machine (RLBoost, appendix A)
PRICES: Values = {"classes": {"reserved": 10.47, "spot": 2.66}, "own_class": "reserved"}
# paper and scripts launch a quarter more prompts and responses
TAIL_BATCHING: Values = {
    "kind": "tail_batching",
    "prompt_overprovision": 1.25,
    "response_overprovision": 1.25,
}


def _mixture(math: float, code: float, subjects: float, num_prompts: int) -> Values:
    """DeepMath, KodCode and subjects in these shares."""
    shares = {"deepmath": math, "kodcode": code, "multi_subject": subjects}
    parts = [
        {"task": {"kind": kind, "limit": READ_ROWS}, "weight": share}
        for kind, share in shares.items()
    ]
    return {"kind": "mixture", "parts": parts, "num_prompts": num_prompts}


def _three_domains(judge_share: float) -> Values:
    """Rules for mathematics, a sandbox for programs, a judge for subjects. judge_share: of the
    memory of each GPU that it is on."""
    model = {"kind": "hub", "repository": JUDGE}
    engine = {"model": model, "gpu_memory_utilization": judge_share}
    return {
        "rewards": {
            "math": {"kind": "math_answer"},
            "code": {"kind": "code"},
            "subjects": {"kind": "judge", "engine": engine},
        },
        "reward_workers": 32,
        "unfit_prompts": "skip",
    }


def rollpacker_7b() -> Values:
    """RollPacker's job: Qwen2.5-7B on mathematics, programs and judged subjects, responses of at
    most 8k tokens, on eight GPUs of 141 GB."""
    optimizer = {"learning_rate": 5e-7, "warmup_steps": 20, "beta2": 0.999}
    return {
        "num_steps": 40,
        "model": {"kind": "hub", "repository": "Qwen/Qwen2.5-7B"},
        # of which the 1,980 rows in each of the artifact's two published files are these shares
        "task": _mixture(0.34375, 0.3125, 0.34375, 5_760),
        **_three_domains(0.15),
        "batch": {"prompts_per_step": 128, "responses_per_prompt": 8},
        "scheduling": TAIL_BATCHING,
        "stream_trainer": {"enabled": True, "first_milestone": 0.25},
        "sampling": {"temperature": 0.99, "top_p": 1.0, "max_response_tokens": 8192},
        "engine": {"max_model_len": 10240, "max_num_seqs": 256, "gpu_memory_utilization": 0.3},
        "learner": {
            "optimizer": optimizer,
            "overlong": {"kind": "mask"},
            "max_tokens_per_microbatch": 16384,
            "recompute_layers": True,
        },
        "cluster": {
            "device_kind": "cuda",
            "num_devices": 8,
            "roles": "rollout: 0-7, learner: 0-7, judge: 0-7",
        },
        "evaluation": {"num_prompts": 96, "responses_per_prompt": 1},
    }


def rollpacker_14b() -> Values:
    """RollPacker's job with Qwen2.5-14B and responses of at most 16k tokens, on four machines of
    eight GPUs of 80 GB; the learner's parameters are spread over each."""
    return {
        "model": {"repository": "Qwen/Qwen2.5-14B"},
        "stream_trainer": {"enabled": False},
        "sampling": {"max_response_tokens": 16384},
        "engine": {
            "max_model_len": 18432,
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.4,
        },
        # by file: to gather all weights beside an engine and a judge takes more than 80 GB
        "learner": {
            "parameters": "sharded",
            "transport": "file",
            "max_tokens_per_microbatch": 18432,
        },
        **_three_domains(0.25),
        "cluster": {"num_devices": 32, "roles": "rollout: 0-31, learner: 0-31, judge: 0-31"},
    }


def rollpacker_32b() -> Values:
    """RollPacker's job with Qwen2.5-32B and responses of at most 32k tokens, on eight machines of
    eight GPUs of 141 GB; the learner's parameters are spread over each."""
    return {
        "model": {"repository": "Qwen/Qwen2.5-32B"},
        "sampling": {"max_response_tokens": 32768},
        "engine": {"max_model_len": 34816},
        **_three_domains(0.15),
        "learner": {"max_tokens_per_microbatch": 34816},
        "cluster": {"num_devices": 64, "roles": "rollout: 0-63, learner: 0-63, judge: 0-63"},
    }


def roll_rlvr_7b() -> Values:
    """ROLL's job: Qwen2.5-7B-Base on mathematics, programs and judged subjects by synchronous
    rounds, on two machines of eight GPUs of 80 GB; four of these judge."""
    optimizer = {"learning_rate": 1e-6}
    return {
        "num_steps": 500,
        # four tenths are the 4,994 of its file
        "task": _mixture(0.4, 0.3, 0.3, 12_480),
        **_three_domains(0.4),
        "batch": {"prompts_per_step": 64},
        "scheduling": {"kind": "sync"},
        "stream_trainer": {"enabled": False},
        "sampling": {"max_response_tokens": 4096},
        "engine": {"max_model_len": 6144, "gpu_memory_utilization": 0.6},
        "learner": {"optimizer": optimizer, "parameters": "sharded"},
        "cluster": {"num_devices": 16, "roles": "rollout: 0-11, learner: 0-15, judge: 12-15"},
        "evaluation": {"every_steps": 10},
    }


def polyrl_8b() -> Values:
    """PolyRL's job: Qwen3-8B on OpenR1-Math, a host of eight GPUs of 141 GB that trains, and
    elastic workers of two GPUs each, four at most."""
    return {
        "num_steps": 1054,  # fifteen times 9,000 questions
        "model": {"kind": "hub", "repository": "Qwen/Qwen3-8B"},
        "task": {"kind": "openr1", "limit": 10_000, "heldout_fraction": 0.1},
        "rewards": {"*": {"kind": "math_answer"}},
        "unfit_prompts": "skip",
        "batch": {"prompts_per_step": 128, "responses_per_prompt": 8},
        "scheduling": {"kind": "sync"},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 14336},
        "engine": {
            "max_model_len": 14848,
            "max_num_seqs": 256,
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.3,
            "report_tokens": 10,
        },
        "learner": {
            "optimizer": {"learning_rate": 1e-6, "beta2": 0.999, "weight_decay": 0.01},
            "kl_coefficient": 0.001,
            "max_tokens_per_microbatch": 16384,
            "recompute_layers": True,
        },
        "elastic": {"enabled": True, "max_workers": 4},
        "seeding": {"enabled": True},
        "prices": PRICES,
        "cluster": {
            "device_kind": "cuda",
            "num_devices": 8,
            "roles": "rollout: 0-7, learner: 0-7",
            "scheduler_port": 8786,
        },
        "evaluation": {"num_prompts": 256, "responses_per_prompt": 1, "every_steps": 100},
        "keep": {"checkpoint_every_steps": 100},
    }


def _generated(math: float, code: float, stories: float) -> Values:
    """Sums and letters, small functions, and stories for a judge, in these shares."""
    families = {
        "add": {"max_size": 12, "alpha": 1.3},
        "letters": {"max_size": 7, "alpha": 1.2},
        "story": {"max_size": 8, "alpha": 1.2},
    }
    no_stories = {**families, "story": {**families["story"], "weight": 0.0}}
    only_stories = {name: {**family, "weight": 0.0} for name, family in families.items()}
    only_stories["story"] = families["story"]
    parts = [
        {"task": {"kind": "tiny_mix", "profile": no_stories}, "weight": math},
        {"task": {"kind": "tinycode"}, "weight": code},
        {"task": {"kind": "tiny_mix", "profile": only_stories}, "weight": stories},
    ]
    return {"kind": "mixture", "parts": parts}


def rollpacker_7b_small() -> Values:
    """The schedule and the parts of rollpacker-7b on two cores: SmolLM2-135M, generated questions,
    a second SmolLM2 as the judge."""
    return {
        "num_steps": 40,
        "task": _generated(0.34375, 0.3125, 0.34375),
        "scheduling": {**TAIL_BATCHING, "dynamic_sampling": 0.0},
        # a core decodes few responses at once, and the last groups take most of a round
        "stream_trainer": {"enabled": True, "last_milestone": 0.9, "max_running_per_engine": 8},
        "learner": {"overlong": {"kind": "mask"}},
        "cluster": {"device_kind": "cpu"},
    }


def rollpacker_14b_small() -> Values:
    """The parts of rollpacker-14b on two cores: responses twice as long as those of
    rollpacker-7b-small, the learner's parameters spread over both cores."""
    return {
        "stream_trainer": {"enabled": False},
        "sampling": {"max_response_tokens": 512},
        "learner": {"parameters": "sharded"},
    }


def rollpacker_32b_small() -> Values:
    """The parts of rollpacker-32b on two cores: responses four times as long as those of
    rollpacker-7b-small."""
    return {"sampling": {"max_response_tokens": 1024}, "engine": {"max_model_len": 1536}}


def roll_rlvr_7b_small() -> Values:
    """The schedule and the roles of roll-rlvr-7b on two cores: one generates, the other judges,
    both train."""
    return {
        "num_steps": 60,
        "task": _generated(0.4, 0.3, 0.3),
        "scheduling": {"kind": "sync"},
        "stream_trainer": {"enabled": False},
        "learner": {"parameters": "sharded"},
        "cluster": {"roles": "rollout: 0, learner: 0-1, judge: 1"},
    }


def polyrl_8b_small() -> Values:
    """The schedule and the parts of polyrl-8b on one core; workers that join with rollflow workers
    generate, too, by the step script's schedule."""
    return {
        "scheduling": {"kind": "sync"},
        "engine": {"report_tokens": 10},
        "learner": {"kl_coefficient": 0.001},
        "elastic": {"max_workers": 4},
        "prices": PRICES,
        "cluster": {"device_kind": "cpu"},
    }


# each job by the preset that its values are laid over
JOBS: Mapping[Callable[[], Values], str] = {
    rollpacker_7b: "",
    rollpacker_14b: "rollpacker-7b",
    rollpacker_32b: "rollpacker-14b",
    roll_rlvr_7b: "rollpacker-7b",
    polyrl_8b: "",
    rollpacker_7b_small: "smollm2-judged",
    rollpacker_14b_small: "rollpacker-7b-small",
    rollpacker_32b_small: "rollpacker-14b-small",
    roll_rlvr_7b_small: "rollpacker-7b-small",
    polyrl_8b_small: "elastic",
}
