"""Pictures in vLLM: an engine computes what transformers computes of the same pixels, shares a
prompt's cache by its pictures, and sees with the tower of the weights that it has loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from picture_factories import make_seeing_model
from transformers import AutoModelForImageTextToText, Qwen2_5_VLForConditionalGeneration

from artifacts.adapter_files import merged, write_adapter
from artifacts.datasets.rows import Message
from artifacts.datasets.shapes import drawn
from artifacts.models.character_tokenizer import VISION, seeing_tokenizer
from artifacts.models.picture_processor import processor_of
from artifacts.models.registry import TinyVisionConfig
from artifacts.pictures import PictureFolder
from artifacts.records import Generated, Request, Running, ShownPicture, WeightsRef
from artifacts.store import Store
from tasks.engines.base import PicturedProbe, Probes
from tasks.engines.chat_tokens import ChatTokens
from tasks.engines.picture_prompts import with_pictures
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.lora_config import LoraConfig
from tasks.learner.pictures import rotary_positions
from tasks.learner.trainer import LearnerRank
from tasks.tiny_models.seeing import build_seeing_model
from tests.engine.conftest import Slot, collect_all, cores_only, generate

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
    cores_only,
]

BARS = ('shapes:{"bars":[9,7,4],"ink":"blue"}', 'shapes:{"bars":[1,8,2],"ink":"red"}')
FIELDS = 'shapes:{"fields":"c.s.cc..s","ink":"black","look":7}'
TOLERANCE = 2e-4  # nats, of fp32
Shown = tuple[tuple[int, ...], tuple[ShownPicture, ...]]
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Seeing:
    """A model, the pictures of a run, and an engine that reads both."""

    path: str
    folder: Path
    engine: VllmEngine

    def shown(self, *sources: str) -> Shown:
        """A prompt with these pictures."""
        tokens = ChatTokens(seeing_tokenizer())
        ids = tokens.chat([Message(role="user", content="second=")], len(sources))
        return with_pictures(self.path, ids, sources)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory, slot: Slot) -> Seeing:
    path, folder = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("pictures")
    # two steps of warm-up: random weights, but for a file of every kind that a model has
    build_seeing_model(TinyVisionConfig(profile={"warm_up_steps": 2}), path, print)
    kept = PictureFolder(Store.open(str(folder)))
    for source in (*BARS, FIELDS):
        kept.keep(drawn(source))
    slot.take()
    config = VllmEngineConfig(
        pictures=str(folder),
        dtype="float32",
        max_num_seqs=8,
        max_model_len=128,
        max_batched_tokens=512,
        kv_cache_gb=0.05,
        call_deadline_s=240,
    )
    engine = VllmEngine(config=config, model_path=str(path), name="engine-a", cpu_ids=None, seed=1)
    engine.start()
    slot.hold(engine)
    return Seeing(path=str(path), folder=folder, engine=engine)


def request(shown: Shown, name: str = "0/0", index: int = 0, **changes: object) -> Request:
    fields: dict[str, object] = {
        "prompt_tokens": shown[0],
        "pictures": shown[1],
        "max_new_tokens": 6,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": index,
    }
    return Request(prompt_id=name, index=index, **(fields | changes))  # type: ignore[arg-type]


def plain_logprobs(
    seeing: Seeing,
    tokens: Sequence[int],
    pictures: Sequence[ShownPicture],
    weights: Mapping[str, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Log-probability of each token after the first, by transformers: its tower, then its layers. A
    picture's token that the model has sampled is one like others."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(seeing.path, dtype=torch.float32)
    if weights is not None:
        model.load_state_dict(dict(weights), strict=False)
    ids = torch.tensor([tokens])
    kept, processor = PictureFolder(Store.open(str(seeing.folder))), processor_of(seeing.path)
    read = [processor.patches(kept.read(picture.content)) for picture in pictures]
    with torch.no_grad():
        embedded = model.get_input_embeddings()(ids)
        seen = model.model.get_image_features(
            torch.cat([torch.from_numpy(each.values) for each in read]),
            torch.tensor([each.grid for each in read]),
        )
        for picture, tokens_seen in zip(pictures, seen.pooler_output, strict=True):
            embedded[0, picture.begin : picture.begin + picture.num_tokens] = tokens_seen
        positions = torch.from_numpy(rotary_positions(pictures, len(tokens)))[:, None]
        hidden = model.model.language_model(inputs_embeds=embedded, position_ids=positions)
        logits = model.lm_head(hidden.last_hidden_state)[0, :-1]
    return logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]


def check_logprobs(seeing: Seeing, generated: Generated, shown: Shown) -> None:
    wanted = plain_logprobs(seeing, (*shown[0], *generated.token_ids), shown[1])
    given = torch.tensor(generated.logprobs)
    torch.testing.assert_close(given, wanted[-len(given) :], atol=TOLERANCE, rtol=0)


async def test_tokens_behind_pictures_have_the_log_probabilities_of_transformers(
    seeing: Seeing,
) -> None:
    prompts = [seeing.shown(BARS[0]), seeing.shown(BARS[1]), seeing.shown(FIELDS, BARS[0])]
    assert prompts[0][0] == prompts[1][0], "pictures alone tell these apart"
    requests = [
        request(shown, f"0/{number}", index)
        for number, shown in enumerate(prompts)
        for index in range(3)
    ]
    done = await generate(seeing.engine, requests)
    for each in requests:
        check_logprobs(seeing, done[each.response_id], (each.prompt_tokens, each.pictures))


async def test_a_response_goes_on_behind_its_kept_tokens(seeing: Seeing) -> None:
    shown = seeing.shown(FIELDS)
    whole = request(shown, "1/0", 1, max_new_tokens=8)
    done = (await generate(seeing.engine, [whole]))[whole.response_id]
    num_kept = max(1, len(done.token_ids) - 1)
    kept = replace(
        whole,
        kept_tokens=done.token_ids[:num_kept],
        kept_logprobs=done.logprobs[:num_kept],
        kept_versions=(replace(done.versions[0], num_tokens=num_kept),),
    )
    again = (await generate(seeing.engine, [kept]))[whole.response_id]
    assert again.token_ids == done.token_ids


async def test_engine_and_learner_agree_on_tower_and_probe_and_no_older_tower_is_used(
    seeing: Seeing, tmp_path: Path
) -> None:
    config = LearnerConfig(compute="fp32", vision="trained", pictures=str(seeing.folder))
    learner = LearnerRank(config, seeing.path, 0, 1)
    shown = seeing.shown(BARS[0])
    probes = (PicturedProbe.of(*shown),)
    for version in (1, 2):
        if version == 2:  # the tower alone has changed
            for name, tensor in learner._policy.parameters.exported():
                if name.startswith("model.visual.merger.mlp.2"):
                    tensor.mul_(-1.0)
        weights = learner.export_weights(version, str(tmp_path / f"{version}.safetensors"))
        assert weights is not None
        held = await seeing.engine.load_weights(weights, probes, Running.DROP)
        assert held.fingerprints == learner.fingerprints()
        assert any(name.startswith("model.visual.blocks") for name in held.fingerprints)
        assert held.probe_logprobs is not None
        ours = torch.tensor(learner.probe(probes)[0])
        theirs = torch.tensor(held.probe_logprobs[0])
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)
        exported = dict(learner._policy.parameters.exported())
        done = (await generate(seeing.engine, [request(shown, f"2/{version}")]))[f"2/{version}:0"]
        rounded = {name: each.bfloat16().float() for name, each in exported.items()}
        wanted = plain_logprobs(seeing, (*shown[0], *done.token_ids), shown[1], rounded)
        given = torch.tensor(done.logprobs)
        torch.testing.assert_close(given, wanted[-len(given) :], atol=TOLERANCE, rtol=0)


def versions_of(seeing: Seeing, folder: Path) -> dict[int, tuple[WeightsRef, Weights]]:
    """Two weight versions, which differ in the tower alone, as references and as numbers."""
    config = LearnerConfig(compute="fp32", vision="trained", pictures=str(seeing.folder))
    learner = LearnerRank(config, seeing.path, 0, 1)
    made = {}
    for version in (1, 2):
        exported = dict(learner._policy.parameters.exported())
        if version == 2:
            for name, tensor in exported.items():
                if name.startswith("model.visual.merger.mlp.2"):
                    tensor.mul_(-1.0)
        weights = learner.export_weights(version, str(folder / f"{version}.safetensors"))
        assert weights is not None
        rounded = {name: each.bfloat16().float() for name, each in exported.items()}
        made[version] = weights, rounded
    return made


async def loaded_meanwhile(
    seeing: Seeing, requests: Sequence[Request], weights: WeightsRef, running: Running
) -> dict[str, Generated]:
    """These requests, in the steps of which weights are loaded."""

    def load(core: VllmCore) -> None:
        core.add(requests)
        for _ in range(3):
            seeing.engine._thread.deliver(core.step())
        core.load(weights, (), running)

    await seeing.engine._thread.call("test", load, 60)
    return await collect_all(seeing.engine, len(requests))


async def test_what_runs_while_a_new_tower_is_loaded_goes_on_with_it(
    seeing: Seeing, tmp_path: Path
) -> None:
    """With its picture seen anew, each later token has the log-probability that the new weights
    give it; nothing else of the older tower is used either."""
    versions = versions_of(seeing, tmp_path)
    await seeing.engine.load_weights(versions[1][0], (), Running.DROP)
    shown = seeing.shown(FIELDS, BARS[0])
    requests = [request(shown, "3/0", index, max_new_tokens=12) for index in range(4)]
    done = await loaded_meanwhile(seeing, requests, versions[2][0], Running.INTERRUPT)
    assert (1, 2) in {tuple(span.version for span in each.versions) for each in done.values()}
    for each in done.values():
        tokens = (*shown[0], *each.token_ids)
        by_version = {
            version: plain_logprobs(seeing, tokens, shown[1], numbers)
            for version, (_, numbers) in versions.items()
        }
        place = len(shown[0]) - 1
        for span in each.versions:
            end = place + span.num_tokens
            first = place - len(shown[0]) + 1
            given = torch.tensor(each.logprobs[first : first + span.num_tokens])
            wanted = by_version[span.version][place:end]
            torch.testing.assert_close(given, wanted, atol=TOLERANCE, rtol=0)
            place = end


async def test_a_load_that_keeps_the_cache_changes_no_draw_and_shows_new_prompts_to_the_new_tower(
    seeing: Seeing, tmp_path: Path
) -> None:
    versions = versions_of(seeing, tmp_path)
    await seeing.engine.load_weights(versions[1][0], (), Running.DROP)
    shown = seeing.shown(FIELDS)
    requests = [request(shown, "4/0", index, max_new_tokens=12) for index in range(4)]
    plain = await generate(seeing.engine, requests)
    await seeing.engine.load_weights(versions[1][0], (), Running.DROP)
    same = replace(versions[1][0], version=5)
    done = await loaded_meanwhile(seeing, requests, same, Running.KEEP)
    assert {name: each.token_ids for name, each in done.items()} == {
        name: each.token_ids for name, each in plain.items()
    }
    await loaded_meanwhile(seeing, requests, versions[2][0], Running.KEEP)
    later = request(shown, "4/1")
    (new,) = (await generate(seeing.engine, [later])).values()
    wanted = plain_logprobs(seeing, (*shown[0], *new.token_ids), shown[1], versions[2][1])
    given = torch.tensor(new.logprobs)
    torch.testing.assert_close(given, wanted[-len(given) :], atol=TOLERANCE, rtol=0)


async def agreed(
    engine: VllmEngine, learner: LearnerRank, version: int, folder: Path, probes: Probes
) -> tuple[torch.Tensor, torch.Tensor]:
    """Load what the learner publishes; returns the log-probabilities of the first probe in learner
    and engine, which agree as all tensors do."""
    weights = learner.export_weights(version, str(folder / f"{version}.safetensors"))
    assert weights is not None
    held = await engine.load_weights(weights, probes, Running.DROP)
    assert held.fingerprints == learner.fingerprints()
    assert held.probe_logprobs is not None
    ours, theirs = map(torch.tensor, (learner.probe(probes)[0], held.probe_logprobs[0]))
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)
    return ours, theirs


async def test_an_adapter_of_the_decoder_is_held_and_computed_with_beside_pictures(
    seeing: Seeing, slot: Slot, tmp_path: Path
) -> None:
    """Learner and engine agree on its matrices and on probes with pictures; behind pictures tokens
    have the log-probabilities of a model with the adapter added. The last test: its engine takes
    the place of the other one."""
    lora = LoraConfig(rank=4)  # of scale 2, with which numbers of bf16 stay such
    config = LearnerConfig(compute="fp32", pictures=str(seeing.folder), lora=lora)
    shapes = LearnerRank(config, seeing.path, 0, 1)._policy.parameters.shapes
    chance = torch.Generator().manual_seed(3)
    adapter = {  # numbers of bf16, as engines get them
        name: (0.2 * torch.randn(shape, generator=chance)).bfloat16().float()
        for name, shape in shapes.items()
    }
    write_adapter(tmp_path / "adapter", adapter, scale=lora.scale, base_model="")
    begun = lora.model_copy(update={"initial": str(tmp_path / "adapter")})
    learner = LearnerRank(config.model_copy(update={"lora": begun}), seeing.path, 0, 1)
    slot.take()
    engine = VllmEngine(
        config=seeing.engine._config.model_copy(update={"adapter": lora.engine_shape}),
        model_path=seeing.path,
        name="engine-b",
        cpu_ids=None,
        seed=1,
    )
    engine.start()
    slot.hold(engine)
    shown = seeing.shown(FIELDS, BARS[0])
    probes = (PicturedProbe.of(*shown),)
    _, theirs = await agreed(engine, learner, 1, tmp_path, probes)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(seeing.path, dtype=torch.float32)
    added = {
        name: merged(name, weight, adapter, lora.scale)
        for name, weight in model.state_dict().items()
    }
    done = await generate(engine, [request(shown, "9/0", index) for index in range(3)])
    plain = plain_logprobs(seeing, shown[0], shown[1])
    assert (plain - theirs).abs().max() > 0.05, "the adapter is not small"
    for each in done.values():
        wanted = plain_logprobs(seeing, (*shown[0], *each.token_ids), shown[1], added)
        given = torch.tensor(each.logprobs)
        torch.testing.assert_close(given, wanted[-len(given) :], atol=TOLERANCE, rtol=0)


def make_qwen3_vl(path: Path) -> str:
    """A Qwen3-VL with random weights, bf16, that reads the tokens of the tiny tokenizer."""
    made = AutoModelForImageTextToText.from_pretrained(make_seeing_model(path, kind="qwen3_vl"))
    made.to(torch.bfloat16).save_pretrained(path)
    tokenizer = seeing_tokenizer()
    start, end, picture, video = map(int, tokenizer.convert_tokens_to_ids(list(VISION)))
    config = json.loads((path / "config.json").read_text())
    config |= {
        "vision_start_token_id": start,
        "vision_end_token_id": end,
        "image_token_id": picture,
        "video_token_id": video,
    }
    (path / "config.json").write_text(json.dumps(config))
    tokenizer.save_pretrained(path)
    return str(path)


async def test_qwen3_vl_adds_what_its_tower_sees_behind_the_first_layers_as_the_learner_does(
    seeing: Seeing, slot: Slot, tmp_path: Path
) -> None:
    """Of whole prompts and of those that are computed in chunks, with one tower and another."""
    path = make_qwen3_vl(tmp_path / "model")
    config = LearnerConfig(compute="fp32", vision="trained", pictures=str(seeing.folder))
    learner = LearnerRank(config, path, 0, 1)
    slot.take()
    engine = VllmEngine(
        config=seeing.engine._config.model_copy(update={"max_batched_tokens": 16}),
        model_path=path,
        name="engine-c",
        cpu_ids=None,
        seed=1,
    )
    engine.start()
    slot.hold(engine)
    other = replace(seeing, path=path, engine=engine)
    shown = other.shown(FIELDS, BARS[0])
    probes = (PicturedProbe.of(*shown), tuple(shown[0][:2]))
    before = []
    for version in (1, 2):
        if version == 2:  # what is added behind the first layer alone has changed
            for name, tensor in learner._policy.parameters.exported():
                if name.startswith("model.visual.deepstack_merger_list.0.linear_fc2"):
                    tensor.mul_(-1.0)
        ours, _ = await agreed(engine, learner, version, tmp_path, probes)
        before.append(ours)
        done = await generate(engine, [request(shown, f"8/{version}", index) for index in range(3)])
        for each in done.values():
            whole = PicturedProbe.of((*shown[0], *each.token_ids), shown[1])
            wanted = torch.tensor(learner.probe((whole,))[0][-len(each.token_ids) :])
            given = torch.tensor(each.logprobs)
            torch.testing.assert_close(given, wanted, atol=TOLERANCE, rtol=0)
    assert (before[0] - before[1]).abs().max() > 0.05, "what is added is not small"
