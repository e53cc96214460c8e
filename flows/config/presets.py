"""The presets, which are named configurations. A preset is a function that returns plain values:
those in which it differs from another preset. Its docstring is its line in `explain --list`.

`RunConfig(preset="tiny", num_steps=5)` is the preset `tiny` with one value changed.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps

from flows.config.overlay import overlay
from flows.config.paper_presets import JOBS
from flows.config.paper_presets import Values as Values
from flows.config.tiny_presets import LEARNERS

Preset = Callable[[], Values]
PRESETS: dict[str, Preset] = {}  # in the order of `explain --list`
# placeholders of presets that need a user's own
YOUR_MODEL, YOUR_QUESTIONS = "models/your-model", "data/your-questions.jsonl"
YOUR_REWARD = "your_reward:reward"
OWN = "own"  # the preset that fits itself to the rows that there are

SHARED = "rollout: 0-1, learner: 0-1"  # roles: both cores do both
# half of the groups have equal rewards: dynamic sampling asks other prompts for some of them
DYNAMIC_SAMPLING = 0.5
SYNC: Values = {"kind": "sync", "dynamic_sampling": DYNAMIC_SAMPLING}
FREED_CORES: Values = {"enabled": True, "last_milestone": 0.9, "max_running_per_engine": 8}
ELASTIC: Values = {
    "elastic": {"enabled": True},
    "seeding": {"enabled": True},
    "engine": {"report_tokens": 32},
    "cluster": {"num_devices": 1, "roles": "rollout: 0, learner: 0", "scheduler_port": 8786},
}
# presets with a variant that trains an adapter: its rank, and ten times the rate of all weights
ADAPTED = {
    "smollm2": (16, 2.5e-4),
    "tiny": (8, 2e-3),
    **dict.fromkeys(("one-gpu", "eight-gpu"), (16, 1e-5)),
}


def preset_values(name: str) -> Values:
    """The values of a preset. Raises ValueError, which lists all presets, for an unknown name."""
    if name not in PRESETS:
        raise ValueError(preset_fault(name))
    return PRESETS[name]()


def preset_fault(name: str) -> str:
    """A sentence on an unknown preset, with the nearest one."""
    near = get_close_matches(name, PRESETS, n=1)
    cure = f"did you mean --preset {near[0]}?" if near else "choose one"
    return f"preset must be one of {', '.join(PRESETS)}, got {name!r}; {cure}"


def preset(over: str = "") -> Callable[[Preset], Preset]:
    """Register a function as the preset of its name, laid over the preset `over`."""

    def register(changes: Preset) -> Preset:
        name = changes.__name__.replace("_", "-")

        @wraps(changes)
        def values() -> Values:
            below = preset_values(over) if over else {}
            return overlay(below, {"preset": name, **changes()})

        PRESETS[name] = values
        return values

    return register


@preset(over="smollm2-answers")
def smollm2() -> Values:
    """The main job: SmolLM2-135M-Instruct learns tiny-mix with tail batching on two CPU cores,
    from longer questions to those of the task, paid for its working, too."""
    task = {"kind": "tiny_mix", "worked": True}
    lessons = [
        {"num_prompts": 160, "task": {**task, "profile": "first_lesson"}},
        {"num_prompts": 240, "task": {**task, "profile": "second_lesson"}},
    ]
    falling = {"learning_rate": 2.5e-5, "decay_steps": 56, "floor_fraction": 0.4}
    return {
        "num_steps": 64,
        "task": {"kind": "curriculum", "stages": lessons, "task": task},
        "rewards": {"*": {"kind": "worked_answer"}},
        # at temperature 1 most samples are noise, from which the model first learns to be short
        "sampling": {"temperature": 0.7, "max_response_tokens": 128},
        "learner": {"optimizer": falling},
    }


@preset()
def smollm2_answers() -> Values:
    """The main job without its lessons: SmolLM2-135M-Instruct on tiny-mix, paid for right answers
    alone, sampled at temperature 1."""
    return {
        "num_steps": 30,
        "model": {"kind": "smollm2"},
        "task": {"kind": "tiny_mix"},
        "rewards": {"*": {"kind": "math_answer"}},
        "batch": {"prompts_per_step": 8, "responses_per_prompt": 8},
        # nine responses are launched for eight: more would favour short answers
        "scheduling": {
            "kind": "tail_batching",
            "response_overprovision": 1.125,
            "dynamic_sampling": DYNAMIC_SAMPLING,
        },
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 256},
        "engine": {"max_model_len": 768, "max_num_seqs": 64, "kv_cache_gb": 1.0},
        "learner": {"optimizer": {"learning_rate": 2e-5, "warmup_steps": 2, "beta2": 0.95}},
        "cluster": {"num_devices": 2, "roles": SHARED},
        "evaluation": {"num_prompts": 128, "responses_per_prompt": 2},
    }


@preset(over="smollm2")
def smollm2_sync() -> Values:
    """The main job with plain synchronous rounds, to compare with."""
    return {"scheduling": SYNC}


@preset(over="smollm2")
def smollm2_async() -> Values:
    """The main job with generation on one core and training on the other, at the same time and at
    most one step apart."""
    return {
        "scheduling": {"kind": "asynchronous", "dynamic_sampling": DYNAMIC_SAMPLING},
        "cluster": {"roles": "rollout: 0, learner: 1"},
    }


@preset(over="smollm2-async")
def smollm2_in_turn() -> Values:
    """The main job by partial rollouts: both cores generate, then both train, and what takes long
    goes on in the next round, at most three steps behind."""
    partial = {"at_update": "pause", "extra_lag": 2}
    return {"scheduling": partial, "cluster": {"roles": SHARED}}


@preset(over="smollm2-answers")
def tinycode() -> Values:
    """SmolLM2-135M-Instruct writes small functions, which are executed in a sandbox."""
    return {
        "task": {"kind": "tinycode"},
        "rewards": {"*": {"kind": "code"}},
        "evaluation": {"num_prompts": 48},
    }


@preset(over="smollm2-answers")
def smollm2_mixed() -> Values:
    """SmolLM2-135M-Instruct on sums, letters, stories and small functions together, each with its
    own reward."""
    parts = [
        {"task": {"kind": "tiny_mix"}, "weight": 2.0, "heldout_weight": 1.0},
        {"task": {"kind": "tinycode"}, "weight": 1.0, "heldout_weight": 1.0},
    ]
    return {
        "task": {"kind": "mixture", "parts": parts},
        "rewards": {"code": {"kind": "code"}, "*": {"kind": "math_answer"}},
        # 25 times the median; RollPacker's longest responses are 25 to 32 times theirs
        "sampling": {"max_response_tokens": 640},
        "engine": {"max_model_len": 1024},
    }


@preset(over="smollm2-mixed")
def smollm2_judged() -> Values:
    """The mixed job with stories judged by a second, frozen SmolLM2: rules, sandbox and judge in
    one run; it has no skill at judging."""
    model = {"kind": "smollm2"}
    engine = {"model": model, "max_model_len": 768, "max_num_seqs": 32, "kv_cache_gb": 0.25}
    return {
        "rewards": {"story": {"kind": "judge", "engine": engine}},
        "cluster": {"roles": f"{SHARED}, judge: 1"},
        "sampling": {"max_response_tokens": 256},  # the judge reads them whole
    }


@preset(over="smollm2")
def elastic() -> Values:
    """The main job on one core, with an engine of its own; workers that join with rollflow worker
    generate, too, and may leave at any time."""
    return ELASTIC


@preset(over="smollm2-answers")
def own() -> Values:
    """Your model, your questions and your reward, which model.path, task.path and rewards.*.path
    name; batch and held-out questions fit the rows that there are. rollflow init writes a first
    folder."""
    return {
        "model": {"kind": "path", "path": YOUR_MODEL},
        "task": {"kind": "files", "path": YOUR_QUESTIONS},
        "rewards": {"*": {"kind": "custom", "path": YOUR_REWARD}},
        "evaluation": {"num_prompts": 64, "responses_per_prompt": 4},
    }


@preset(over="smollm2-answers")
def agent() -> Values:
    """SmolLM2-135M-Instruct learns a game of several turns in a few minutes: guess a number from 1
    to 20 in five tries, told whether it is higher or lower."""
    return {
        "task": {"kind": "seeds", "domain": "guess"},
        "environments": {"guess": {"kind": "guess", "largest": 20, "max_turns": 5}},
        "episodes": {"max_turn_tokens": 8},
        "rewards": {"*": {"kind": "episode"}},
        # many prompts with few responses: which guess is rewarded differs from prompt to prompt
        "batch": {"prompts_per_step": 16, "responses_per_prompt": 4},
        "scheduling": {"kind": "sync"},
        "sampling": {"max_response_tokens": 128},
        "engine": {"max_model_len": 512},
        "learner": {"optimizer": {"learning_rate": 5e-5}},
    }


@preset(over="smollm2")
def rollpacker() -> Values:
    """The main job as RollPacker has it: tail batching, and training on cores that are freed in
    mid-round."""
    return {"stream_trainer": FREED_CORES}


@preset(over="rollpacker")
def overlap() -> Values:
    """The main job as RLHFuse overlaps it: synchronous rounds, and training on cores that are freed
    in mid-round."""
    return {"scheduling": SYNC}


@preset(over="smollm2-mixed")
def rollpacker_mixed() -> Values:
    """The mixed job with tail batching, limits of running times that follow right programs, and
    training on cores freed in mid-round."""
    return {"stream_trainer": FREED_CORES}


@preset()
def tiny() -> Values:
    """A Llama of a million parameters that learns to add in about a minute; made and warmed up here
    on first use."""
    return {
        "num_steps": 36,
        "model": {"kind": "tiny_llama"},
        # with two terms there are nine questions: the model would memorise the eight trained ones
        "task": {"kind": "chain_sum", "min_terms": 3},
        "rewards": {"*": {"kind": "math_answer"}},
        "batch": {"prompts_per_step": 16, "responses_per_prompt": 8},
        "scheduling": {"kind": "tail_batching"},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 128},
        "engine": {"max_model_len": 256, "max_num_seqs": 128, "kv_cache_gb": 0.25},
        # at three times this rate a run learns nothing
        "learner": {"optimizer": {"learning_rate": 2e-4, "warmup_steps": 1, "beta2": 0.95}},
        "cluster": {"num_devices": 2, "roles": SHARED},
        # 124 different questions: the interval of the gain is then clear of 0
        "evaluation": {"num_prompts": 256, "responses_per_prompt": 2},
        "keep": {"checkpoint_every_steps": 5},
    }


@preset(over="tiny")
def tiny_sync() -> Values:
    """The tiny preset with plain synchronous rounds."""
    return {"scheduling": {"kind": "sync"}}


@preset(over="tiny")
def tiny_experts() -> Values:
    """The tiny preset with a mixture of experts, a Qwen3-MoE of two million parameters that is
    trained through the experts which its engines took."""
    return {"model": {"kind": "tiny_experts"}}


@preset(over="tiny")
def tiny_lora_sweep() -> Values:
    """The tiny preset with three adapters side by side in one run, each with its learning rate."""
    rates = {"slow": 2e-4, "middle": 2e-3, "fast": 2e-2}
    lora = {"rank": 8, "sweep": {name: {"learning_rate": rate} for name, rate in rates.items()}}
    batch = {"prompts_per_step": 48}  # 16 for each adapter
    return {"learner": {"lora": lora}, "batch": batch, "evaluation": {"num_prompts": 128}}


@preset(over="tiny")
def tiny_async() -> Values:
    """The tiny preset with generation on one core and training on the other, at the same time and
    at most one step apart."""
    return {"scheduling": {"kind": "asynchronous"}, "cluster": {"roles": "rollout: 0, learner: 1"}}


@preset(over="tiny-sync")
def tiny_judged() -> Values:
    """The tiny preset with a second tiny Llama as the judge of everything: the plumbing alone,
    nothing is learned from it."""
    model = {"kind": "tiny_llama"}
    engine = {"model": model, "max_model_len": 768, "max_num_seqs": 32, "kv_cache_gb": 0.1}
    words = {"rubric": "grade", "yes": "1", "no": "0"}  # that its characters can write
    return {
        "rewards": {"*": {"kind": "judge", "engine": engine, **words}},
        "cluster": {"roles": f"{SHARED}, judge: 1"},
    }


@preset(over="tiny")
def tiny_elastic() -> Values:
    """The tiny preset on one core; workers that join with rollflow worker generate, too, and may
    leave at any time."""
    return ELASTIC


for _small, _under in LEARNERS.items():
    preset(over=_under)(_small)


@preset()
def one_gpu() -> Values:
    """One GPU that takes turns between rollout and learner; model.path names your model, task.path
    your questions."""
    return {
        "num_steps": 200,
        "model": {"kind": "path", "path": YOUR_MODEL},
        "task": {"kind": "files", "path": YOUR_QUESTIONS},
        "rewards": {"*": {"kind": "math_answer"}},
        "batch": {"prompts_per_step": 32, "responses_per_prompt": 8},
        "scheduling": {"kind": "tail_batching"},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "max_response_tokens": 4096},
        "engine": {
            "max_model_len": 6144,
            "max_num_seqs": 256,
            "gpu_memory_utilization": 0.4,
        },
        "learner": {
            "optimizer": {"learning_rate": 1e-6, "warmup_steps": 10, "beta2": 0.95},
            "max_tokens_per_microbatch": 16384,
            "recompute_layers": True,
        },
        "cluster": {"device_kind": "cuda", "num_devices": 1, "roles": "rollout: 0, learner: 0"},
        "evaluation": {"num_prompts": 64, "responses_per_prompt": 4, "every_steps": 50},
    }


@preset(over="one-gpu")
def eight_gpu() -> Values:
    """Eight GPUs of one machine, every one in both roles, the learner's parameters spread over all;
    model.path names your model, task.path your questions."""
    cluster = {"num_devices": 8, "roles": "rollout: 0-7, learner: 0-7"}
    learner = {"parameters": "sharded"}
    return {"batch": {"prompts_per_step": 128}, "cluster": cluster, "learner": learner}


def _adapted(name: str, rank: int, learning_rate: float) -> Preset:
    def values() -> Values:
        return {"learner": {"lora": {"rank": rank}, "optimizer": {"learning_rate": learning_rate}}}

    values.__name__ = f"{name}-lora"
    values.__doc__ = f"The preset {name} with an adapter (LoRA) of rank {rank}, not all weights."
    return values


for _over, (_rank, _rate) in ADAPTED.items():
    preset(over=_over)(_adapted(_over, _rank, _rate))
for _job, _over in JOBS.items():
    preset(over=_over)(_job)
