"""What a configuration is said to mean before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner_factories import make_model
from round_factories import plan_round

from flows.commands.algebra_rows import algebra_rows
from flows.commands.explain import COMMON, field_rows, main, placement_rows
from flows.config.run_config import RunConfig
from research.benchmarks.naive_model import naive_model
from tasks.learner.memory import model_size
from tasks.scheduling.queue_state import QueueState, RoundEnd, finish_round


def configured(preset: str = "tiny", **values: object) -> RunConfig:
    return RunConfig.model_validate({"preset": preset, **values})


def test_the_algebra_of_tail_batching_tells_what_is_launched_and_kept() -> None:
    rows = dict(algebra_rows(configured(scheduling={"response_overprovision": 1.25})))
    assert rows["prompts launched per step"] == "20 in a short round (16 kept), 16 in a long one"
    assert rows["responses launched per prompt"] == "10 in a short round (8 kept), 8 in a long one"
    assert rows["responses launched per step"] == "200, at most 128 tokens each"
    assert rows["groups trained per step"] == "16 of 8 responses = 128 responses"
    assert rows["requests per engine"] == "100 on each of 2"
    assert (
        rows["steps"]
        == "36, 4 short rounds for each long one, and up to 2 more to drain the long-prompt queue"
    )
    assert rows["evaluation"] == (
        "256 held-out prompts x 2 responses, before and after; x 1 every 8 steps"
    )


def test_an_episode_is_told_with_its_bounds_and_its_environments() -> None:
    rows = dict(algebra_rows(configured("tiny-agent")))
    assert (
        rows["an episode of guess"]
        == "at most 4 turns of 4 sampled tokens, 32 tokens with what is given between"
    )
    assert rows["environments"] == "up to 64 processes beside each engine, 512 MiB each"
    assert "environments" not in dict(algebra_rows(configured("tiny-sync")))


def test_the_algebra_of_synchronous_rounds_is_plain() -> None:
    rows = dict(algebra_rows(configured("tiny-sync")))
    assert rows["prompts launched per step"] == "16"
    assert rows["steps"] == "36"


@pytest.mark.parametrize(
    ("text", "said"), [("{}", "Unrecognized model in"), ("{", "is not a valid JSON file")]
)
def test_a_model_that_cannot_be_read_is_one_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(text)
    words = ["--preset", "tiny", "--set", "model.kind=path", "--set", f"model.path={tmp_path}"]
    assert main(words) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert (told.err.count("\n"), told.out) == (1, "")


def test_a_bias_of_acceptance_is_told_where_there_is_one() -> None:
    rows = dict(algebra_rows(configured(scheduling={"response_overprovision": 1.25})))
    assert (
        rows["acceptance within a prompt"]
        == "the first 8 verdicts of 10: short answers are favoured, not so where"
        " none is launched in vain"
    )
    assert "acceptance within a prompt" not in dict(algebra_rows(configured()))


def test_dynamic_sampling_tells_its_bound() -> None:
    rows = dict(algebra_rows(configured(scheduling={"dynamic_sampling": 1.5})))
    assert (
        rows["groups whose rewards agree"]
        == "replaced by up to 24 further prompts a step, of the same domains"
    )
    assert "groups whose rewards agree" not in dict(algebra_rows(configured("tiny-sync")))


def test_no_drain_is_promised_where_none_is_made() -> None:
    assert (
        dict(algebra_rows(configured(scheduling={"drain": False})))["steps"]
        == "36, 4 short rounds for each long one"
    )


def test_training_in_mid_round_is_told() -> None:
    assert dict(algebra_rows(configured()))["training in mid-round"].startswith("no")
    told = dict(
        algebra_rows(configured(stream_trainer={"enabled": True, "max_running_per_engine": 3}))
    )["training in mid-round"]
    assert (
        told
        == "on devices freed when 20% to 50% of the groups are accepted and at most 3 responses run"
        " on each engine that stays"
    )


def test_where_steps_overlap_no_device_is_freed_and_that_is_told() -> None:
    streamed = RunConfig.model_validate(
        {"preset": "tiny-async", "stream_trainer": {"enabled": True}}
    )
    assert dict(algebra_rows(streamed))["training in mid-round"].startswith("group by group")


def test_a_clip_that_cannot_act_is_told() -> None:
    told = dict(algebra_rows(configured()))["policy loss"]
    assert told.startswith("ppo_clip: weights learner/engine are truncated at 2; ")
    assert told.endswith("clipped to 0.8 to 1.28, and 1 in a step of one update")
    clipped = configured(learner={"loss": {"old_policy": "engine"}})
    assert "clipped to 0.8 to 1.28" in dict(algebra_rows(clipped))["policy loss"]
    reinforced = configured(learner={"loss": {"kind": "reinforce"}})
    told = dict(algebra_rows(reinforced))["policy loss"]
    assert told == "reinforce: weights learner/engine are truncated at 2"
    gated = configured(
        learner={
            "sequence_mask": {
                "kind": "drift",
                "statistic": "k1",
                "bound": 0.1,
                "negative_only": True,
            }
        }
    )
    told = dict(algebra_rows(gated))["sequence mask"]
    assert told == "responses with a negative advantage are dropped above 0.1 of k1 drift"
    assert dict(algebra_rows(configured()))["sequence mask"] == "no response is dropped"


def test_several_updates_are_told() -> None:
    assert dict(algebra_rows(configured()))["optimizer updates per step"].startswith("1 (")
    several = configured(learner={"mini_batches": 4, "passes": 2})
    told = dict(algebra_rows(several))["optimizer updates per step"]
    assert told.startswith("8: 4 mini-batches of about 4 groups, gone over 2 times; ")


def test_a_critic_is_told() -> None:
    assert "critic" not in dict(algebra_rows(configured()))
    told = dict(algebra_rows(configured(learner={"advantage": {"kind": "gae"}})))
    assert told["critic"].endswith("learning rate 5e-05, constant, values held within 0.5 a step")
    assert told["optimizer updates per step"].endswith("scored once more before the first")


def test_whether_older_weights_are_corrected_is_told() -> None:
    told = dict(algebra_rows(configured()))["tokens of older weights"]
    assert told.startswith("corrected by the loss")
    plain = configured(learner={"loss": {"kind": "policy_gradient"}})
    assert dict(algebra_rows(plain))["tokens of older weights"].startswith("not corrected")


def test_how_far_generation_goes_ahead_is_told() -> None:
    ahead = {
        "async_ratio": 1.5,
        "extra_lag": 2,
        "response_overprovision": 1.5,
        "at_update": "drain",
    }
    rows = dict(algebra_rows(configured("tiny-async", scheduling=ahead)))
    assert rows["largest staleness"].startswith("4 steps; 1.5 on average")
    assert rows["responses launched per prompt"] == "12 in an asynchronous round (8 kept)"
    assert rows["acceptance within a prompt"].startswith("the first 8 verdicts of 12")
    update = "responses that newer weights find running"
    assert rows[update].startswith("are finished first")
    assert update not in dict(algebra_rows(configured("tiny-sync")))
    in_turn = {"async_ratio": 1.5, "at_update": "pause"}
    rows = dict(algebra_rows(configured("tiny-async", scheduling=in_turn)))
    assert rows["largest staleness"] == "2 steps; 1.5 on average"
    assert rows["requests per engine"] == "320 on each of 1, with those that earlier rounds left"
    assert rows[update].startswith("none: a round stops what is undecided")


@pytest.mark.parametrize(("async_ratio", "expected"), [(0, "4"), (1.5, "4, and up to 3 more")])
def test_a_drain_is_told_where_anything_can_be_parked(async_ratio: float, expected: str) -> None:
    parks = {"at_deadline": "park", "async_ratio": async_ratio}
    rows = dict(algebra_rows(configured("tiny-async", num_steps=4, scheduling=parks)))
    assert rows["steps"].removesuffix(" to drain the long-prompt queue") == expected


def test_evaluations_on_the_way_are_told() -> None:
    assert dict(algebra_rows(configured("one-gpu")))["evaluation"].endswith(
        "before and after; x 1 every 50 steps"
    )


@pytest.mark.parametrize("over", [1.25, 1.5, 2.0, 3.0, 4.0])
def test_the_drain_takes_no_more_rounds_than_told(over: float) -> None:
    """However many steps precede it, when every short round defers all that it can."""
    config = configured(batch={"prompts_per_step": 4}, scheduling={"prompt_overprovision": over})
    rows = dict(algebra_rows(config))
    told = int(rows["steps"].partition("up to ")[2].split()[0])
    assert max(drain_rounds(config, num_steps) for num_steps in range(1, 20)) <= told


def drain_rounds(config: RunConfig, num_steps: int) -> int:
    state, step = QueueState(), 1
    while (
        plan := plan_round(
            state,
            config.batch,
            config.scheduling,
            domains=["a"] * 50,
            seed=0,
            step=step,
            num_steps=num_steps,
        )
    ) is not None:
        names = [ref.prompt_id for ref in plan.prompts]
        state = finish_round(
            state,
            plan,
            RoundEnd(accepted=names[: plan.accept_prompts], deferred=names[plan.accept_prompts :]),
        )
        step += 1
    return step - 1 - num_steps


def test_the_learner_s_memory_is_told_for_both_ways_of_keeping_parameters(tmp_path: Path) -> None:
    rows = dict(algebra_rows(configured(keep={"model_cache": str(tmp_path)})))
    assert rows["learner memory"] == (
        "replicated over 2: 12 bytes a parameter on each, 10 GB hold 0.83 billion; activations come"
        " on top"
    )
    assert rows["if it were sharded"].startswith("sharded over 2: 8 bytes a parameter on each")
    alone = {"roles": "rollout: 0-1, learner: 0"}
    rows = dict(algebra_rows(configured(cluster=alone, learner={"kl_coefficient": 0.1})))
    assert rows["learner memory"].startswith("replicated over 1: 20 bytes a parameter")
    assert not [quantity for quantity in rows if quantity.startswith("if it were")]


def test_the_memory_of_a_model_that_is_here_is_told(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model")
    size = model_size(Path(path))
    model = naive_model(path)
    layer = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    assert (size.num_parameters, size.largest_layer) == (model.num_parameters(), layer)
    assert (size.table, size.is_tied) == (61 * 32, True)
    config = configured(model={"kind": "path", "path": path}, learner={"parameters": "sharded"})
    held = 8 * size.num_parameters / 1e9
    whole = (10 * layer + 4 * size.table) / 1e9
    told = dict(algebra_rows(config))["learner memory"]
    assert f"; here {held:.2g} GB and {whole:.2g} GB for a moment;" in told


def test_every_worker_is_placed() -> None:
    assert list(placement_rows(configured())) == [
        ("control", "-", "any", "coordinator=4"),
        ("engine-0", "cpu:0", "0", "rollout=1"),
        ("engine-1", "cpu:1", "1", "rollout=1"),
        ("learner-0", "cpu:0", "0", "learner=1"),
        ("learner-1", "cpu:1", "1", "learner=1"),
    ]
    eight = list(placement_rows(configured("eight-gpu")))
    assert len(eight) == 17
    assert eight[8][:3] == ("engine-7", "cuda:7", "any")


def test_every_field_is_listed_by_the_path_that_sets_it_and_explained() -> None:
    rows = field_rows()
    paths = {row.path for row in rows}
    assert {
        "num_steps",
        "learner.optimizer.learning_rate",
        "scheduling.drain",
        "task.path",
        "rewards.*.memory_bytes",
    } <= paths
    assert not [row.path for row in rows if not (row.description and row.type)]
    assert len(paths) == len(rows)


def test_what_people_set_is_a_short_list_of_settings() -> None:
    assert set(COMMON) <= {row.path for row in field_rows()}
    assert 55 <= len(COMMON) == len(set(COMMON)) <= 80


def test_a_setting_has_its_type_and_its_default() -> None:
    rows = {row.path: row for row in field_rows()}
    assert rows["learner.optimizer.learning_rate"][1:3] == ("number", "2e-05")
    assert rows["num_steps"][1:3] == ("integer", "")
    assert rows["cluster.device_kind"][1:3] == ("auto | cpu | cuda", '"auto"')
    assert rows["cluster.scheduler_address"][1:3] == ("text | null", "null")
    assert rows["engine"][1:3] == ("a part", "")
    assert rows["engine.kind"].type == "vllm | simulated | custom"


def test_policy_and_rewards_are_named() -> None:
    rows = dict(algebra_rows(configured("smollm2-judged")))
    assert rows["scheduling policy"] == "tail_batching"
    assert rows["reward of story"] == "judge"
    assert rows["reward of other domains"] == "math_answer"


@pytest.mark.parametrize("preset", ["tiny", "smollm2", "eight-gpu"])
def test_no_field_of_a_preset_is_left_out(preset: str) -> None:
    listed = {row.path for row in field_rows()}
    assert leaves(configured(preset).model_dump(mode="json")) <= listed


def leaves(values: dict[str, object], place: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in values.items():
        found |= leaves(value, f"{place}{name}.") if isinstance(value, dict) else {f"{place}{name}"}
    return found
