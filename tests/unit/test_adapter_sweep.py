"""Several adapters over one base: what each is asked, what it learns beside the others, how they
are published, checked, saved and exported, and what a run of several cannot be."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from learner_factories import make_model, random_groups
from plan_factories import CONTEXT

from artifacts.adapter_files import A, part_of, read_adapter
from artifacts.prompt_ids import adapter_of, asked_of, question_of, row_of
from artifacts.records import Group, pack
from artifacts.tables import groups_from_parquet, groups_to_parquet
from artifacts.weights import read_weights
from flows.config.misfits import _misfits_of_rows
from flows.config.run_config import RunConfig
from flows.evaluate import EvaluationReport
from tasks.checkpointing import export_model
from tasks.engines.base import Attestation, Probed
from tasks.engines.vllm.adapter_slot import _guard
from tasks.learner.learner_config import AdamWConfig, LearnerConfig
from tasks.learner.lora_config import LoraConfig
from tasks.learner.memory import adapter_parameters, model_size
from tasks.learner.reports import Skipped, update_figures
from tasks.learner.trainer import LearnerRank
from tasks.learner.weight_check import WeightCheckFailed, check_weights
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.prompt_stream import Answering, draw_prompts
from tasks.scheduling.queue_state import QueueState

RATES = {"fast": 1e-2, "slow": 1e-3}
SWEEP = {name: {"learning_rate": rate} for name, rate in RATES.items()}
LORA = LoraConfig.model_validate({"rank": 4, "sweep": SWEEP})
CONFIG = LearnerConfig(
    compute="fp32",
    lora=LORA,
    max_tokens_per_microbatch=64,
    kl_coefficient=0.1,
    optimizer=AdamWConfig(learning_rate=1.0, weight_decay=0.1),
)


def alone(name: str) -> LearnerConfig:
    """The configuration of a run of this adapter by itself."""
    optimizer = CONFIG.optimizer.model_copy(update={"learning_rate": RATES[name]})
    return CONFIG.model_copy(update={"lora": LoraConfig(rank=4), "optimizer": optimizer})


@pytest.fixture
def model_path(tmp_path: Path) -> str:
    return make_model(tmp_path / "model")


def answered(groups: tuple[Group, ...], name: str) -> tuple[Group, ...]:
    """The groups as this adapter has sampled them."""
    made = []
    for group in groups:
        prompt_id = asked_of(group.prompt.prompt_id, name)
        responses = tuple(
            replace(
                each,
                generated=replace(each.generated, prompt_id=prompt_id),
                score=each.score and replace(each.score, prompt_id=prompt_id),
            )
            for each in group.responses
        )
        prompt = replace(group.prompt, prompt_id=prompt_id)
        made.append(replace(group, prompt=prompt, responses=responses))
    return tuple(made)


def step_groups(step: int) -> dict[str, tuple[Group, ...]]:
    """What each adapter is trained on: of other questions, so that no two steps are alike."""
    return {name: random_groups(10 * step + place) for place, name in enumerate(RATES)}


def trained(path: str, num_steps: int = 3) -> LearnerRank:
    rank = LearnerRank(CONFIG, path, 0, 1)
    for step in range(1, num_steps + 1):
        of_each = [answered(own, name) for name, own in step_groups(step).items()]
        mixed = tuple(group for pair in zip(*of_each, strict=True) for group in pair)
        rank.accumulate(pack(mixed[:3]))
        rank.accumulate(pack(mixed[3:]))
        assert rank.update(step).applied
    return rank


def trained_alone(path: str, name: str, num_steps: int = 3) -> LearnerRank:
    rank = LearnerRank(alone(name), path, 0, 1)
    for step in range(1, num_steps + 1):
        groups = step_groups(step)[name]
        mine = [own for at, own in enumerate(groups) if 2 * at + [*RATES].index(name) < 3]
        rank.accumulate(pack(tuple(mine)))
        rank.accumulate(pack(groups[len(mine) :]))
        rank.update(step)
    return rank


def exported(rank: LearnerRank, name: str = "") -> dict[str, torch.Tensor]:
    return part_of(dict(rank._policy.parameters.exported()), name)


# --- what is asked -------------------------------------------------------------------------------


def test_an_id_names_its_adapter() -> None:
    assert asked_of("3/17", "fast") == "3/17@fast"
    assert asked_of("3/17", "") == "3/17"
    assert (adapter_of("3/17@fast"), adapter_of("3/17")) == ("fast", "")
    assert question_of("3/17@fast") == question_of("3/17") == "3/17"
    assert row_of("heldout/17@fast") == row_of("3/17") == 17


def test_every_adapter_is_asked_every_row_in_the_order_of_a_run_of_its_own() -> None:
    domains, names = ["sum"] * 7, ("fast", "slow", "middle")
    one = draw_prompts(domains, 5, 0, 20)
    all_of = draw_prompts(domains, 5, 0, 60, answering=Answering(names=names))
    for name in names:
        own = [ref for ref in all_of if adapter_of(ref.prompt_id) == name]
        assert [question_of(ref.prompt_id) for ref in own] == [ref.prompt_id for ref in one]
        assert {ref.domain for ref in own} == {f"sum@{name}"}
    later = draw_prompts(domains, 5, 25, 35, answering=Answering(names=names))
    assert later == all_of[25:], "the stream goes on in the middle of a row"
    fit = draw_prompts(domains, 5, 0, 12, unfit={2, 3}, answering=Answering(names=names))
    assert {ref.row for ref in fit}.isdisjoint({2, 3})


def test_by_domains_each_row_is_asked_once() -> None:
    sweep = {"sums": {"domains": ["add", "chain"]}, "words": {"domains": ["spell"]}}
    answering = LoraConfig.model_validate({"rank": 2, "sweep": sweep}).answering
    refs = draw_prompts(["add", "spell", "chain"], None, 0, 4, answering=answering)
    assert [ref.prompt_id for ref in refs] == ["0/0@sums", "0/1@words", "0/2@sums", "1/0@sums"]
    assert answering.times == 1


@pytest.mark.parametrize("policy", [SyncConfig(), TailBatchingConfig()])
def test_a_round_asks_and_keeps_as_many_of_each_adapter(
    policy: SyncConfig | TailBatchingConfig,
) -> None:
    turn = PlanningInputs(
        state=QueueState(),
        batch=BatchConfig(prompts_per_step=8, responses_per_prompt=2),
        step=1,
        num_steps=4,
        domains=["sum"] * 5,
        seed=0,
        answering=Answering(names=("fast", "slow")),
    )
    plan = policy.plan_round(turn)
    assert plan is not None
    counted = Counter(adapter_of(ref.prompt_id) for ref in plan.prompts)
    assert counted["fast"] == counted["slow"] == len(plan.prompts) / 2
    for quota in plan.quotas:
        assert (quota.least, quota.most) == (4, 4)
    with pytest.raises(ValueError, match=r"launches prompts \([45]\), got 3"):
        policy.plan_round(replace(turn, domains=["sum"] * 3))


# --- what is learned -----------------------------------------------------------------------------


def test_adapters_learn_beside_each_other_what_they_learn_alone(model_path: str) -> None:
    """Three updates each, to the bit: rows, normalisers, clips, moments, rates, KL term."""
    together = trained(model_path)
    for name in RATES:
        one = trained_alone(model_path, name)
        found, expected = exported(together, name), exported(one)
        assert found.keys() == expected.keys()
        for tensor, value in expected.items():
            assert torch.equal(found[tensor], value), (name, tensor)
    fast, slow = (exported(together, name) for name in RATES)
    assert any(not torch.equal(fast[name], slow[name]) for name in fast)


def test_an_adapter_without_a_gradient_stays_as_it_is(model_path: str) -> None:
    rank = LearnerRank(CONFIG.model_copy(update={"kl_coefficient": 0.0}), model_path, 0, 1)
    before = {name: {k: v.clone() for k, v in exported(rank, name).items()} for name in RATES}
    rank.accumulate(pack(answered(random_groups(3), "fast")))
    report = rank.update(1)
    assert report.applied
    made = {name: update.skipped for name, (update, _) in report.by_adapter.items()}
    assert made == {"fast": None, "slow": Skipped.EMPTY}
    figures = update_figures(report)
    assert (figures["train/applied"], figures["train/skipped_empty"]) == (1.0, 1.0)
    assert figures["adapter/fast_learning_rate"] == 1e-2
    assert (figures["adapter/fast_applied"], figures["adapter/slow_applied"]) == (1.0, 0.0)
    slow, fast = exported(rank, "slow"), exported(rank, "fast")
    assert all(torch.equal(slow[name], each) for name, each in before["slow"].items())
    assert not all(torch.equal(fast[name], each) for name, each in before["fast"].items())


def test_first_values_are_drawn_by_the_seed(model_path: str) -> None:
    sweep = {"one": {}, "same": {}, "other": {"seed": 1}}
    config = CONFIG.model_copy(
        update={"lora": LoraConfig.model_validate({"rank": 4, "sweep": sweep})}
    )
    rank, lone = LearnerRank(config, model_path, 0, 1), LearnerRank(alone("fast"), model_path, 0, 1)
    one, same, other = (exported(rank, name) for name in sweep)
    for name, tensor in exported(lone).items():
        assert torch.equal(one[name], tensor)
        assert torch.equal(same[name], tensor)
        assert torch.equal(other[name], tensor) == (not name.endswith(A))
    number = adapter_parameters(config.lora, model_size(Path(model_path)))
    assert number == sum(each.numel() for each in one.values()) * 3


def test_all_are_published_together_and_saved(model_path: str, tmp_path: Path) -> None:
    rank = trained(model_path)
    reference = rank.export_weights(3, str(tmp_path / "3.safetensors"))
    assert reference is not None
    file = dict(read_weights(reference.path))
    assert {name.partition("/")[0] for name in file} == set(RATES)
    assert file.keys() == rank.fingerprints().keys()
    rank.save_checkpoint(str(tmp_path / "checkpoint"), 3)
    assert {each.name for each in (tmp_path / "checkpoint").iterdir()} == set(RATES)
    again = LearnerRank(CONFIG, model_path, 0, 1)
    assert again.load_checkpoint(str(tmp_path / "checkpoint")) == 3
    for each in (rank, again):
        each.accumulate(
            pack(answered(random_groups(9), "fast") + answered(random_groups(8), "slow"))
        )
        each.update(4)
    assert again.fingerprints() == rank.fingerprints(), "the next step is the same, to the bit"


def test_the_best_is_merged_and_all_are_exported(model_path: str, tmp_path: Path) -> None:
    rank = trained(model_path)
    reference = rank.export_weights(2, str(tmp_path / "2.safetensors"))
    assert reference is not None
    run = replace(CONTEXT, model_path=model_path, artifact_root=str(tmp_path), learner=CONFIG)
    export_model(run, reference, "me/base", best="slow")
    for name in RATES:
        saved = read_adapter(str(tmp_path / run.run_id / "adapter" / name))
        assert all(
            torch.equal(saved.tensors[k], v.bfloat16()) for k, v in exported(rank, name).items()
        )
    whole = dict(read_weights(tmp_path / run.run_id / "model" / "model.safetensors"))
    one = replace(run, run_id="one", learner=alone("slow"))
    file = trained_alone(model_path, "slow").export_weights(2, str(tmp_path / "one.safetensors"))
    assert file is not None
    export_model(one, file, "me/base")
    expected = dict(read_weights(tmp_path / "one" / "model" / "model.safetensors"))
    assert all(torch.equal(whole[name], each) for name, each in expected.items())


# --- what is checked -----------------------------------------------------------------------------


def attested(probed: dict[str, Probed], base: Probed) -> Attestation:
    logprobs = tuple(values for own in probed.values() for values in own)
    return Attestation(
        version=3,
        fingerprints={},
        probe_logprobs=logprobs,
        base_logprobs=base,
        adapters=tuple(probed),
    )


def moved(sign: float, size: float) -> Probed:
    return (tuple(-1.0 - size * sign * (1 if at % 3 else -1) for at in range(40)),)


def test_probes_show_that_slots_are_swapped() -> None:
    """Also where each adapter's effect is far below the tolerance of single values."""
    base = moved(0.0, 0.0)
    fast, slow = moved(1.0, 0.04), moved(-1.0, 0.04)
    learner = attested({"fast": fast, "slow": slow}, base)
    assert check_weights("engine-0", learner, learner, 0.15) == 0.0
    swapped = attested({"fast": slow, "slow": fast}, base)
    with pytest.raises(WeightCheckFailed, match=r"away from .* as the learner's adapter fast of"):
        check_weights("engine-0", swapped, learner, 0.15)
    both = attested({"fast": fast, "slow": fast}, base)
    with pytest.raises(WeightCheckFailed, match=r"moves them -?0\.00 times as far"):
        check_weights("engine-0", both, learner, 0.15)
    far = attested({"fast": fast, "slow": moved(-1.0, 0.5)}, base)
    with pytest.raises(WeightCheckFailed, match=r"with adapter slow within 0\.15"):
        check_weights("engine-0", far, learner, 0.15)
    with pytest.raises(WeightCheckFailed, match=r"with adapters \('fast', 'slow'\), it gave"):
        check_weights("engine-0", attested({"": fast}, base), learner, 0.15)


class FakeRunner:
    """What the guard knows of a vLLM worker: its manager, and the batch of either model runner."""

    def __init__(self, request_ids: list[str], *, is_second: bool) -> None:
        self.lora_manager: Any = SimpleNamespace(
            set_active_adapters=lambda requests, mapping: None, list_adapters=lambda: {1, 2}
        )
        self._ids, self._is_second = request_ids, is_second
        if is_second:
            self.lora_state = SimpleNamespace(make_lora_inputs=lambda ids, *rest: ids)
        else:
            self.input_batch = SimpleNamespace(req_ids=request_ids)

    def run(self, *slots: int) -> None:
        if self._is_second:
            self.lora_state.make_lora_inputs(self._ids, None, None)
        self.lora_manager.set_active_adapters(set(), SimpleNamespace(prompt_mapping=slots))


@pytest.mark.parametrize("is_second", [False, True])
def test_a_request_with_another_adapter_than_its_own_is_refused(is_second: bool) -> None:
    runner = FakeRunner(["0/1@fast:0-9a", "0/1@slow:1-7b"], is_second=is_second)
    _guard(runner, {"fast": 1, "slow": 2})
    runner.run(1, 2)
    with pytest.raises(RuntimeError, match=r"asks for and has \('fast', 'slow'\)"):
        runner.run(2, 1)
    with pytest.raises(RuntimeError, match=r"requests with adapters \[0\] \(0: the base\)"):
        runner.run(1, 0)
    with pytest.raises(RuntimeError, match="2 requests and 1 adapters"):
        runner.run(1)


# --- what is recorded, and what is refused -------------------------------------------------------


def test_groups_keep_their_adapter() -> None:
    groups = answered(random_groups(3), "fast")
    data = groups_to_parquet(4, groups)
    assert pq.read_table(io.BytesIO(data))["adapter"].to_pylist() == ["fast"] * len(groups)
    rows = [SimpleNamespace(response=response) for group in groups for response in group.responses]
    assert groups_from_parquet(data, rows) == list(groups)  # type: ignore[arg-type]


def test_an_evaluation_tells_which_is_best() -> None:
    scores = {"heldout/0@fast": 0.25, "heldout/1@fast": 0.75, "heldout/0@slow": 0.75}
    report = EvaluationReport(
        version=1, scores=scores, questions={}, num_infra=0, tokens=0, judged_tokens=0, seconds=0.0
    )
    assert report.by_adapter == {"fast": 0.5, "slow": 0.75}
    assert report.metrics["adapter/slow_heldout_mean"] == 0.75
    assert report.best == "slow"
    one = replace(report, scores={"heldout/0": 1.0})
    assert (one.best, one.by_adapter) == ("", {})


def configured(**changes: Any) -> RunConfig:  # Any: settings
    return RunConfig.model_validate({"preset": "tiny-lora-sweep", **changes})


def test_the_preset_trains_three_rates() -> None:
    config = configured()
    assert config.learner.lora.names == ("slow", "middle", "fast")
    assert config.engine.adapter is not None
    assert config.engine.adapter.names == config.learner.lora.names
    rates = [config.learner.optimizer_of(name).learning_rate for name in config.learner.lora.names]
    assert rates == [2e-4, 2e-3, 2e-2]
    told = config.learner.lora.explain()
    assert "3 adapters (slow at rate 0.0002, middle at rate 0.002, fast at rate 0.02) of" in told


def test_domains_must_be_those_of_the_task() -> None:
    sweep = {"one": {"domains": ["no such"]}}
    learner = {"lora": {"rank": 2, "sweep": sweep}}
    config = RunConfig.model_validate({"preset": "tiny", "learner": learner})
    assert any("must be those of the task (" in told for told in _misfits_of_rows(config))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"scheduling": {"kind": "asynchronous"}}, "sync or tail_batching, got asynchronous"),
        ({"engine": {"kind": "custom", "path": "examples.echo_engine:EchoEngine"}}, "got custom"),
        ({"elastic": {"enabled": True}}, "elastic.enabled=false, got True"),
        ({"learner": {"lora": {"publish": "merged"}}}, "publish=adapter, got merged"),
        ({"learner": {"mini_batches": 2}}, "passes 1, got 2 and 1"),
        ({"learner": {"parameters": "sharded", "compute": "fp32"}}, "replicated, got sharded"),
        ({"learner": {"advantage": {"kind": "gae"}}}, "has by itself, got gae"),
        ({"batch": {"prompts_per_step": 16}}, r"\(3\), .* trains 16, launches 20; --set .*=21"),
        ({"batch": {"prompts_per_step": 18}}, r"got 18, by which a round launches 23; .*=21"),
        (
            {"scheduling": {"dynamic_sampling": 0.3}, "batch": {"prompts_per_step": 24}},
            r"a round has in reserve 8; --set batch.*=48",
        ),
    ],
)
def test_what_a_sweep_cannot_be_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        configured(**changes)


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"Fast": {}}, "lower-case letters, digits, - and _, got 'Fast'"),
        ({"a@b": {}}, "got 'a@b'"),
        ({"a": {"domains": ["sum"]}, "b": {}}, "got none for b"),
        ({"a": {"domains": ["sum"]}, "b": {"domains": ["sum"]}}, "got sum twice"),
    ],
)
def test_settings_of_no_sweep_are_refused(sweep: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LoraConfig.model_validate({"rank": 2, "sweep": sweep})
    with pytest.raises(ValueError, match=r"learner\.lora\.sweep needs an adapter"):
        LoraConfig.model_validate({"sweep": {"a": {}}})
