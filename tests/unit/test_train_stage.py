"""The training stage over a real learner and a real sample buffer in this process: streaming, a
lost attempt, and its replay."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from learner_factories import make_model, random_groups
from plan_factories import CONTEXT, make_step_plan
from turn_factories import as_episode

from artifacts.records import Group, VersionSpan, WeightsRef, unpack
from artifacts.store import Store
from artifacts.weights import fingerprint, fingerprints
from tasks import train
from tasks.engines.base import Attestation
from tasks.engines.transports.base import TransportKind
from tasks.engines.transports.registry import opened
from tasks.learner.advantage import ReinforcePlusPlusAdvantage
from tasks.learner.collective import replay_gradients
from tasks.learner.learner_config import LearnerConfig, Placement
from tasks.learner.publication import written
from tasks.learner.remote import LearnerActor, RemoteLearner
from tasks.learner.reports import GradientReport
from tasks.learner.split import one_shot, read_split, write_split
from tasks.learner.weight_check import WeightCheckFailed
from tasks.run.run_context import StepPlan, store_of
from tasks.run.sample_buffer import GROUPED, RoundAborted
from tasks.run.sample_stream import (
    CAPACITIES,
    BufferActor,
    LocalBuffer,
    SampleStream,
    root_cause,
    round_key,
)
from tasks.scheduling.stream_training import AllAccepted, ScaleDown

GROUPS = random_groups(3, num_groups=8)
FREED = ScaleDown(engines=("engine-0",), learners=("learner-0",))


@dataclass(frozen=True, slots=True)
class Local:
    """An actor in this process, called as a remote one is."""

    name: str
    actor: object

    async def call(
        self, method: str, *args: object, deadline_s: float
    ) -> Any:  # Any: see Remote.call
        answer = getattr(self.actor, method)(*args)
        return await answer if inspect.isawaitable(answer) else answer


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def learner(model_path: str, monkeypatch: pytest.MonkeyPatch) -> LearnerActor:
    actor = new_learner(model_path)
    monkeypatch.setattr(train, "learners_of", lambda run: [remote("learner-0", actor)])
    return actor


def remote(name: str, actor: LearnerActor) -> RemoteLearner:
    return RemoteLearner(Local(name, actor), deadline_s=60.0)  # type: ignore[arg-type]  # a local actor for a remote one


def new_learner(model_path: str) -> LearnerActor:
    config = LearnerConfig(compute="fp32", max_tokens_per_microbatch=64)
    return LearnerActor(config, model_path, rank=0, world_size=1, core_ids=(), device="cpu")


def make_plan(tmp_path: Path, attempt: int = 1) -> StepPlan:
    learner = LearnerConfig(max_tokens_per_microbatch=60)
    run = replace(CONTEXT, artifact_root=str(tmp_path), learner=learner)
    return replace(make_step_plan(attempt=attempt), run=run)


async def play(
    plan: StepPlan, buffer: BufferActor, heard: Sequence[Group | ScaleDown], failure: str = ""
) -> GradientReport:
    """The stage beside a rollout that says these things, and then closes or fails."""
    await buffer.open_round(round_key(plan))
    stream = SampleStream(LocalBuffer(buffer, asyncio.get_running_loop()), round_key(plan))
    stage = asyncio.create_task(train.accumulate(plan, stream))
    for word in heard:
        await stream.put(GROUPED, [word])
        for _ in range(20):  # let the stage take it
            await asyncio.sleep(0)
    await (stream.abort(failure) if failure else stream.close(GROUPED))
    return await stage


def weights(actor: LearnerActor) -> dict[str, int]:
    """Fingerprints after the step's update."""
    actor.update(1)
    return actor._rank.fingerprints()


def test_groups_are_trained_before_the_round_is_closed(
    learner: LearnerActor, tmp_path: Path
) -> None:
    plan = make_plan(tmp_path)
    report = asyncio.run(
        play(plan, BufferActor(CAPACITIES, "run"), [*GROUPS[:3], FREED, *GROUPS[3:]])
    )
    assert report.num_groups_streamed > 3
    assert report.ranks[0].num_groups == len(GROUPS)
    split = read_split(store_of(plan), 1)
    assert split is not None
    assert len(split) > 2


def test_without_a_freed_device_the_stage_is_one_call(
    learner: LearnerActor, tmp_path: Path
) -> None:
    plan = make_plan(tmp_path)
    report = asyncio.run(play(plan, BufferActor(CAPACITIES, "run"), GROUPS))
    assert report.num_groups_streamed == 0
    assert [len(share.parts) for share in read_split(store_of(plan), 1) or ()] == [len(GROUPS)]


async def test_learners_train_while_the_round_is_recorded_and_no_split_precedes_it(
    learner: LearnerActor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A split that outlived an unrecorded round would name groups that its repetition may lack."""
    plan, buffer, trained = make_plan(tmp_path), BufferActor(CAPACITIES, "run"), asyncio.Event()
    accumulate = learner.accumulate

    def heard(step: int, payload: bytes) -> bytes:
        trained.set()
        return accumulate(step, payload)

    monkeypatch.setattr(learner, "accumulate", heard)
    await buffer.open_round(round_key(plan))
    stream = SampleStream(LocalBuffer(buffer, asyncio.get_running_loop()), round_key(plan))
    stage = asyncio.create_task(train.accumulate(plan, stream))
    await stream.put(GROUPED, [*GROUPS, AllAccepted()])
    await asyncio.wait_for(trained.wait(), 30)
    await asyncio.sleep(0)
    assert read_split(store_of(plan), 1) is None
    assert not stage.done(), "the update comes after the round's tables"
    await stream.close(GROUPED)
    report = await stage
    assert report.num_groups_streamed == 0
    assert [len(share.parts) for share in read_split(store_of(plan), 1) or ()] == [len(GROUPS)]


def test_advantages_of_the_whole_step_wait_for_its_last_group_and_are_replayed(
    model_path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Over two ranks, of which neither has all groups, and over one."""
    config = LearnerConfig(compute="fp32", advantage=ReinforcePlusPlusAdvantage(baseline="step"))
    plan = make_plan(tmp_path)
    plan = replace(plan, run=replace(plan.run, learner=config))

    def actors(number: int) -> list[LearnerActor]:
        return [LearnerActor(config, model_path, 0, 1, (), "cpu") for _ in range(number)]

    def gradients(ranks: Sequence[LearnerActor]) -> torch.Tensor:
        return torch.stack([actor._rank._policy.parameters.gradients for actor in ranks]).sum(0)

    def learners(ranks: Sequence[LearnerActor]) -> list[RemoteLearner]:
        return [remote(f"learner-{place}", actor) for place, actor in enumerate(ranks)]

    two, again, one = actors(2), actors(2), actors(1)
    monkeypatch.setattr(train, "learners_of", lambda run: learners(two))
    report = asyncio.run(
        play(plan, BufferActor(CAPACITIES, "run"), [*GROUPS[:3], FREED, *GROUPS[3:]])
    )
    assert report.num_groups_streamed == 0
    store = store_of(plan)
    asyncio.run(replay_gradients(learners(again), GROUPS[::-1], store, 1, config))
    assert torch.equal(gradients(again), gradients(two))
    elsewhere = Store.open(str(tmp_path / "elsewhere"))
    asyncio.run(replay_gradients(learners(one), GROUPS, elsewhere, 1, config))
    torch.testing.assert_close(gradients(one), gradients(two), rtol=1e-3, atol=1e-4)
    assert gradients(one).any()


def test_what_a_lost_attempt_accumulated_is_discarded(
    learner: LearnerActor, model_path: str, tmp_path: Path
) -> None:
    buffer = BufferActor(CAPACITIES, "run")

    async def attempts() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await play(
                make_plan(tmp_path), buffer, [FREED, *GROUPS[:5]], failure="engine-1 is gone"
            )
        assert isinstance(root_cause(caught.value), RoundAborted)
        assert learner._rank._sums[""][0] > 0
        await play(make_plan(tmp_path, attempt=2), buffer, GROUPS)

    asyncio.run(attempts())
    undisturbed = new_learner(model_path)
    asyncio.run(replayed(undisturbed, make_plan(tmp_path), GROUPS))
    assert weights(learner) == weights(undisturbed)


@pytest.mark.parametrize("is_decided", [False, True])
def test_a_response_of_weights_that_the_round_does_not_allow_is_not_trained(
    learner: LearnerActor, tmp_path: Path, is_decided: bool
) -> None:
    """As a closed round may hold it that another version of the code has written."""
    first = GROUPS[0].responses[0]
    versions = (VersionSpan(version=3, num_tokens=len(first.generated.token_ids)),)
    other = replace(first, generated=replace(first.generated, versions=versions))
    groups = (replace(GROUPS[0], responses=(other, *GROUPS[0].responses[1:])), *GROUPS[1:])
    plan = make_plan(tmp_path)
    if is_decided:
        write_split(store_of(plan), 1, one_shot(groups, 1, flat_costs=False))
    words = rf"versions \[0\] alone, response {first.generated.response_id} has versions \[3\]"
    with pytest.raises((ValueError, ExceptionGroup)) as caught:
        asyncio.run(play(plan, BufferActor(CAPACITIES, "run"), groups))
    assert re.search(words, str(root_cause(caught.value)))
    assert learner._rank._sums[""][0] == 0


def test_an_observation_that_other_weights_read_is_no_reason_not_to_train(
    learner: LearnerActor, tmp_path: Path
) -> None:
    first = GROUPS[0].responses[0]
    turns = (((7, 8), first.generated.num_sampled), ((9,), 0))
    episode = as_episode(first.generated, turns)
    spans = (*episode.versions[:-1], VersionSpan(version=3, num_tokens=1))
    spoken = replace(first, generated=replace(episode, versions=spans))
    groups = (replace(GROUPS[0], responses=(spoken, *GROUPS[0].responses[1:])), *GROUPS[1:])
    asyncio.run(play(make_plan(tmp_path), BufferActor(CAPACITIES, "run"), groups))
    assert learner._rank._sums[""][0] > 0


async def replayed(actor: LearnerActor, plan: StepPlan, groups: Sequence[Group]) -> None:
    """The step's gradients from its records, in another learner."""
    learners = [remote("learner-0", actor)]
    await replay_gradients(learners, groups, store_of(plan), 1, plan.run.learner)


def test_a_replay_comes_to_the_very_weights_of_the_streamed_step(
    learner: LearnerActor, model_path: str, tmp_path: Path
) -> None:
    plan = make_plan(tmp_path)
    asyncio.run(play(plan, BufferActor(CAPACITIES, "run"), [FREED, *GROUPS]))
    expected = weights(learner)
    again = new_learner(model_path)
    asyncio.run(replayed(again, plan, GROUPS[::-1]))
    assert weights(again) == expected


def test_a_replay_of_several_updates_comes_to_the_very_weights(
    model_path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither a freed device nor the order of arrival changes which groups make which update."""
    config = LearnerConfig(compute="fp32", mini_batches=3, passes=2)
    plan = make_plan(tmp_path)
    plan = replace(plan, run=replace(plan.run, learner=config))
    trained, again = (LearnerActor(config, model_path, 0, 1, (), "cpu") for _ in range(2))
    monkeypatch.setattr(train, "learners_of", lambda run: [remote("learner-0", trained)])
    report = asyncio.run(
        play(plan, BufferActor(CAPACITIES, "run"), [*GROUPS[:3], FREED, *GROUPS[3:]])
    )
    assert report.num_groups_streamed == 0
    assert [len(share.parts) for share in read_split(store_of(plan), 1) or ()] == [3, 3, 2]
    asyncio.run(replayed(again, plan, GROUPS[::-1]))
    expected, before = weights(trained), again._rank.fingerprints()
    assert weights(again) == expected != before
    assert again._rank._updater.optimizer.num_updates == 6


def test_a_stage_reports_the_passes_between_its_updates(
    model_path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = LearnerConfig(compute="fp32", passes=3)
    plan = make_plan(tmp_path)
    plan = replace(plan, run=replace(plan.run, learner=config, learners=("learner-0",)))
    actor = LearnerActor(config, model_path, 0, 1, (), "cpu")
    monkeypatch.setattr(train, "learners_of", lambda run: [remote("learner-0", actor)])
    looked = asyncio.run(play(plan, BufferActor(CAPACITIES, "run"), GROUPS)).ranks[0]
    gradients = GradientReport(ranks=(looked,), spans=())
    policy = asyncio.run(train.update_policy.fn(plan, gradients))
    (passes,) = policy.ranks
    assert passes.num_tokens_passed == 3 * looked.num_tokens_scored > 0
    assert passes.num_tokens_computed == 3 * looked.num_tokens_computed
    kinds = [span.kind for span in policy.spans]
    assert (kinds.count("train"), kinds.count("update")) == (passes.num_micro_batches, 3)


def test_a_replay_skips_the_update_that_was_skipped(
    learner: LearnerActor,
    model_path: str,
    tmp_path: Path,
) -> None:
    first = GROUPS[0].responses[0]
    logprobs = (math.nan,) * len(first.generated.logprobs)
    sick = replace(first, generated=replace(first.generated, logprobs=logprobs))
    groups = (replace(GROUPS[0], responses=(sick, *GROUPS[0].responses[1:])), *GROUPS[1:])
    plan, before = make_plan(tmp_path), learner._rank.fingerprints()
    asyncio.run(play(plan, BufferActor(CAPACITIES, "run"), groups))
    again = new_learner(model_path)
    asyncio.run(replayed(again, plan, groups[::-1]))
    assert weights(learner) == weights(again) == before
    assert (learner._version, again._version) == (1, 1)


def test_a_repeated_stage_follows_the_split_that_was_decided(
    learner: LearnerActor, tmp_path: Path
) -> None:
    """The round was closed and its split recorded when the attempt was lost: nobody is freed now,
    and yet the calls are the same."""
    plan, buffer = make_plan(tmp_path), BufferActor(CAPACITIES, "run")

    async def attempts() -> None:
        await play(plan, buffer, [FREED, *GROUPS])
        first = learner._rank._policy.parameters.gradients.clone()
        split = read_split(store_of(plan), 1)
        report = await play(make_plan(tmp_path, attempt=2), buffer, GROUPS[::-1])
        assert report.num_groups_streamed == 0
        assert read_split(store_of(plan), 1) == split
        assert learner._rank._policy.parameters.gradients.equal(first)

    asyncio.run(attempts())


def test_a_step_that_was_updated_is_not_trained_again(
    learner: LearnerActor, tmp_path: Path
) -> None:
    plan, buffer = make_plan(tmp_path), BufferActor(CAPACITIES, "run")

    async def attempts() -> GradientReport:
        await play(plan, buffer, [FREED, *GROUPS])
        learner.update(1)
        return await play(make_plan(tmp_path, attempt=2), buffer, GROUPS)

    report = asyncio.run(attempts())
    assert [rank.num_groups for rank in report.ranks] == [0]
    assert learner._rank._sums[""][0] == 0


def publish_of(
    learners: Sequence[LearnerActor],
    tmp_path: Path,
    patch: pytest.MonkeyPatch,
    config: LearnerConfig = CONTEXT.learner,
    transport: TransportKind = "file",
) -> list[str]:
    """Publish through the gate to an engine that holds what came; what ranks were asked but plain
    attestations: "learner-1 export_weights", or the name alone of one that was asked the probes."""
    asked: list[str] = []
    names = tuple(f"learner-{rank}" for rank in range(len(learners)))

    @dataclass(frozen=True, slots=True)
    class Rank(Local):
        async def call(self, method: str, *args: object, deadline_s: float) -> Any:  # Any: as Local
            if method != "attest":
                asked.append(f"{self.name} {method}")
            elif unpack(args[0]):  # type: ignore[arg-type]  # packed probes
                asked.append(self.name)
            if method == "send_weights":
                return await asyncio.to_thread(self.actor._rank.send_weights)  # type: ignore[attr-defined]
            return await Local.call(self, method, *args, deadline_s=deadline_s)

    @dataclass(frozen=True, slots=True)
    class Loaded:
        name: str

        def take(self, weights: WeightsRef) -> dict[str, int]:
            with opened(weights, torch.device("cpu"), f"{self.name}/0", {}) as stream:
                return {
                    name: fingerprint(tensor)
                    for bucket in stream.buckets
                    for name, tensor in bucket.items()
                }

        async def load_weights(
            self, weights: WeightsRef, probes: tuple[tuple[int, ...], ...], running: str
        ) -> Attestation:
            return Attestation(
                version=weights.version,
                fingerprints=await asyncio.to_thread(self.take, weights),
                probe_logprobs=learners[0]._rank.probe(probes),
            )

    ranks = [
        RemoteLearner(Rank(name, actor), deadline_s=60.0)  # type: ignore[arg-type]  # a local actor for a remote one
        for name, actor in zip(names, learners, strict=True)
    ]
    patch.setattr(train, "learners_of", lambda run: ranks)
    patch.setattr(train, "engines_of", lambda run, asked: [Loaded(name) for name in asked])
    devices = dict.fromkeys((*names, "engine-0"), "cpu:0")
    run = replace(
        CONTEXT,
        learners=names,
        weights_dir=str(tmp_path),
        devices=devices,
        learner=config,
        transport=transport,
    )
    asyncio.run(train.publish(replace(run, probes=((1, 2, 3),))))
    return asked


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_the_gate_sees_every_rank_and_asks_the_last_one_the_probes(
    model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_ranks: int,
) -> None:
    learners = [new_learner(model_path) for _ in range(num_ranks)]
    asked = publish_of(learners, tmp_path, monkeypatch)
    assert set(asked) == {"learner-0 export_weights", f"learner-{num_ranks - 1}"}
    assert len(asked) == 2
    for rank in range(num_ranks if num_ranks > 1 else 0):
        element = learners[rank]._rank._policy.parameters.view("model.norm.weight")[3]
        kept = element.clone()
        element += 1
        with pytest.raises(WeightCheckFailed, match=r"must hold the learner's model\.norm\.weight"):
            publish_of(learners, tmp_path, monkeypatch)
        element.copy_(kept)


def test_ranks_in_step_all_export_and_then_all_attest_with_probes(
    model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learners = [new_learner(model_path) for _ in range(3)]
    sharded = LearnerConfig(parameters="sharded")
    asked = publish_of(learners, tmp_path, monkeypatch, sharded)
    names = [f"learner-{rank}" for rank in range(3)]
    assert sorted(asked[:3]) == [f"{name} export_weights" for name in names]
    assert sorted(asked[3:]) == names


@pytest.mark.parametrize("transport", ["ipc", "broadcast"])
@pytest.mark.parametrize("parameters", ["replicated", "sharded"])
def test_without_a_file_ranks_offer_and_all_attest(
    model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    transport: TransportKind,
    parameters: Placement,
) -> None:
    """With ipc every rank has a handle for its own GPU; a broadcast is of the first one alone, for
    which all gather their shards. Nothing is written until somebody asks for it."""
    learners = [new_learner(model_path) for _ in range(3)]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    sharded = parameters == "sharded"
    for rank, learner in enumerate(learners):
        learner._rank._ranks = SimpleNamespace(rank=rank, device=torch.device("cpu"))  # type: ignore[assignment]
    config = LearnerConfig(parameters=parameters)
    asked = publish_of(learners, tmp_path, monkeypatch, config, transport)
    names = [f"learner-{rank}" for rank in range(3)]
    assert sorted(each for each in asked if "offer" in each) == [
        f"{name} offer_weights" for name in names
    ]
    assert ("learner-0 send_weights" in asked) == (transport == "broadcast")
    assert [each for each in asked if each in names] == (names if sharded else names[-1:])
    assert not list(tmp_path.glob("*.safetensors"))
    if transport == "ipc" and not sharded:
        learners[2]._rank._policy.parameters.view("model.norm.weight")[3] += 1
        with pytest.raises(WeightCheckFailed, match=r"must hold the learner's model\.norm\.weight"):
            publish_of(learners, tmp_path, monkeypatch, config, transport)


def test_a_version_without_a_file_is_written_for_who_asks(
    learner: LearnerActor, tmp_path: Path
) -> None:
    """The learner may have moved on: the reference says which version the file has."""
    learner._version = 4
    asked = WeightsRef(version=3, path=str(tmp_path / "00003.safetensors"), digest="")
    weights = asyncio.run(written([remote("learner-0", learner)], asked, ranks_in_step=False))
    assert (weights.version, Path(weights.path).name) == (4, "00004.safetensors")
    assert fingerprints(weights.path) == learner._rank.fingerprints()


def test_a_rank_of_another_version_is_named(
    model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learners = [new_learner(model_path) for _ in range(3)]
    learners[1]._version = 4
    with pytest.raises(WeightCheckFailed, match="learner-1 must hold version 0, it holds 4"):
        publish_of(learners, tmp_path, monkeypatch)


def test_a_replay_without_a_recorded_split_deals_as_a_plain_step_does(
    learner: LearnerActor, tmp_path: Path
) -> None:
    plan = make_plan(tmp_path)
    asyncio.run(play(plan, BufferActor(CAPACITIES, "run"), GROUPS))
    gradients = learner._rank._policy.parameters.gradients.clone()
    store = Store.open(str(tmp_path / "empty"))
    learners = [remote("learner-0", learner)]
    asyncio.run(replay_gradients(learners, GROUPS[::-1], store, 1, plan.run.learner))
    assert learner._rank._policy.parameters.gradients.equal(gradients)
