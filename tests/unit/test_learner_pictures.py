"""Pictures in the learner: packed trees compute what transformers computes over each sequence, a
picture's tokens are shared by equal pictures alone, and a frozen tower stays as it is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_factories import ALONE, add_adapter, one_row, random_groups, run_rows
from peft import PeftModel
from picture_factories import PICTURE, draw_prompt, make_seeing_model, random_patches
from rank_processes import run_processes
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForImageTextToText, Qwen2_5_VLForConditionalGeneration
from turn_factories import as_episode

from artifacts.adapter_files import A, B, write_adapter, write_merged
from artifacts.models.picture_processor import Patches
from artifacts.records import Group, ShownPicture, pack, unpack
from artifacts.weight_files import weight_files
from artifacts.weights import read_weights
from research.benchmarks.naive_model import check_gradients, naive_loss, sequence_logp
from tasks.learner import tree_attention
from tasks.learner.advantage import GrpoAdvantage
from tasks.learner.architecture import aliases_of, name_in_model
from tasks.learner.lora_config import LoraConfig
from tasks.learner.losses.weighted import ReinforceLoss
from tasks.learner.micro_step import MicroStep
from tasks.learner.objective import Objective
from tasks.learner.packing import Sample, pack_samples
from tasks.learner.pictures import rotary_positions
from tasks.learner.policy import PolicyModel, load_policy, load_reference
from tasks.learner.ranks import Ranks
from tasks.learner.row_report import total
from tasks.learner.samples import SequenceMean, training_set
from tasks.learner.tower import Pictures, is_of_tower

# pictures of the four groups: of two groups the same one, one group has two, one has none
CONTENTS = (("2x3 a",), ("2x3 b",), ("3x2 c", "2x3 a"), ())


def seeing_groups(seed: int) -> tuple[Group, ...]:
    """Random groups behind prompts with pictures; the first two differ in nothing else."""
    rng = random.Random(f"{seed}/pictures")
    groups = []
    first, _ = draw_prompt(random.Random(0), ("2x3 a",))
    for group, contents in zip(random_groups(seed), CONTENTS, strict=True):
        ids, pictures = draw_prompt(random.Random(0) if len(contents) == 1 else rng, contents)
        assert len(contents) != 1 or ids == first
        prompt = replace(group.prompt, token_ids=ids, pictures=pictures)
        groups.append(replace(group, prompt=prompt))
    return tuple(groups)


def samples_of(seed: int) -> tuple[Sample, ...]:
    return training_set(seeing_groups(seed), GrpoAdvantage(), SequenceMean()).samples


def playing_groups(seed: int) -> tuple[Group, ...]:
    """The same groups, each response an episode of two turns, whose observations have pictures,
    those of the prompts among them; in every second one the history is rewritten."""
    rng = random.Random(f"{seed}/turns")
    first, of_first = draw_prompt(rng, ("2x3 a",))
    groups = []
    for group in seeing_groups(seed):
        responses = []
        for number, response in enumerate(group.responses):
            generated = response.generated
            second, of_second = draw_prompt(rng, ("4x1 d", "3x2 c"))
            num_first = len(generated.token_ids) // 2
            turns = [(first, num_first), (second, len(generated.token_ids) - num_first)]
            played = as_episode(generated, turns, restarts=(1,) if number % 2 else ())
            assert played.episode is not None
            shown = [
                replace(turn, pictures=pictures)
                for turn, pictures in zip(played.episode.turns, (of_first, of_second), strict=True)
            ]
            episode = replace(played.episode, turns=tuple(shown))
            responses.append(replace(response, generated=replace(played, episode=episode)))
        groups.append(replace(group, responses=tuple(responses)))
    return tuple(groups)


def plain_logp(
    model: Qwen2_5_VLForConditionalGeneration, sample: Sample, temperature: float
) -> Tensor:
    """Log-probabilities by transformers' own forward over each sequence that was read."""
    num_prompt, found = len(sample.prompt), []
    for begin, end in pairwise((0, *sample.restarts, len(sample.response))):
        read = [each for each in sample.pictures if each.begin < num_prompt]
        behind = range(num_prompt + begin, num_prompt + end)
        read += [each.moved(-begin) for each in sample.pictures if each.begin in behind]
        tokens = np.concatenate([sample.prompt, sample.response[begin:end]])
        at = [num_prompt + place - begin for place in sample.places if begin <= place < end]
        found.append(sequence_logp(model, tokens, at, temperature, read, random_patches)[0])
    return torch.cat(found)


def trained(policy: PolicyModel, samples: Sequence[Sample], max_tokens: int) -> float:
    step = MicroStep(Objective(loss=ReinforceLoss()), 0.8, policy, None)
    return run_rows(step, samples, max_tokens).loss_sum


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("groups_of", [seeing_groups, playing_groups])
@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_of_packed_pictures_are_those_of_a_plain_pass_over_each_sequence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tied: bool,
    is_trained: bool,
    groups_of: Callable[[int], tuple[Group, ...]],
    kind: str,
) -> None:
    monkeypatch.setattr(tree_attention, "QUERIES_PER_BLOCK", 16)
    path = make_seeing_model(tmp_path, tied, kind=kind)
    pictures = Pictures(read=random_patches, is_trained=is_trained)
    policy = load_policy(path, "fp32", ALONE, pictures=pictures)
    model = AutoModelForImageTextToText.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    samples = training_set(groups_of(3), GrpoAdvantage(), SequenceMean()).samples
    total = trained(policy, samples, 60)
    expected = naive_loss(samples, lambda sample: plain_logp(model, sample, temperature=0.8))
    expected.backward()

    assert total == pytest.approx(expected.item(), rel=1e-4)
    named = dict(model.named_parameters())
    assert named.keys() == dict(policy.parameters.exported()).keys()
    of_tower = {name: parameter for name, parameter in named.items() if is_of_tower(name)}
    assert policy.parameters.shapes.keys() == named.keys() - (() if is_trained else of_tower.keys())
    for name, parameter in of_tower.items() if is_trained else ():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0, name
    check_gradients(policy, model)


def test_an_adapter_of_what_sees_has_the_gradients_of_a_plain_pass(tmp_path: Path) -> None:
    """Of the decoder's matrices alone; neither of a pair is zero."""
    path = make_seeing_model(tmp_path / "model")
    pictures = Pictures(read=random_patches, is_trained=False)
    lora = LoraConfig(rank=4, alpha=6.0)
    shapes = load_policy(path, "fp32", ALONE, lora=lora, pictures=pictures).parameters.shapes
    assert not any(map(is_of_tower, shapes))
    assert len(shapes) == 2 * 2 * 7, "of two layers the seven matrices"
    chance = torch.Generator().manual_seed(3)
    adapter = {name: 0.2 * torch.randn(shape, generator=chance) for name, shape in shapes.items()}
    write_adapter(tmp_path / "adapter", adapter, scale=1.5, base_model="")
    lora = lora.model_copy(update={"initial": str(tmp_path / "adapter")})
    policy = load_policy(path, "fp32", ALONE, lora=lora, pictures=pictures)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    leaves = {name: each.clone().requires_grad_() for name, each in adapter.items()}
    add_adapter(model, leaves, 1.5)
    samples = samples_of(3)
    total = trained(policy, samples, 60)
    expected = naive_loss(samples, lambda sample: plain_logp(model, sample, temperature=0.8))
    expected.backward()
    assert total == pytest.approx(expected.item(), rel=1e-4)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        largest = float(leaf.grad.abs().max())
        got = policy.parameters.gradient(name)
        torch.testing.assert_close(got, leaf.grad, rtol=1e-3, atol=1e-5 * (1 + largest))


@pytest.mark.parametrize("is_other", [True, False])
def test_an_adapter_of_what_sees_is_merged_into_files_of_either_names(
    tmp_path: Path, is_other: bool
) -> None:
    """As save_pretrained and the hub have them, or as the model itself has them."""
    path = make_seeing_model(tmp_path / "model")
    (file,) = weight_files(Path(path))
    before = {name_in_model(name): each for name, each in read_weights(file)}
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(path)
    assert before.keys() == dict(model.named_parameters()).keys()
    assert before.keys() != dict(read_weights(file)).keys()
    if not is_other:
        save_file(before, file, {"format": "pt"})
    stems = [f"model.language_model.layers.{layer}.mlp.up_proj" for layer in range(2)]
    adapter = {stem + A: torch.ones(4, 64) for stem in stems}
    adapter |= {stem + B: torch.ones(96, 4) for stem in stems}
    aliases = aliases_of(Path(path))
    write_merged([file], adapter, 0.5, aliases, tmp_path / "merged.safetensors", name_in_model)
    after = dict(read_weights(tmp_path / "merged.safetensors"))
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        added = 2.0 if name.removesuffix(".weight") in stems else 0.0
        wanted = (tensor.bfloat16().float() + added).bfloat16()
        assert torch.equal(after[name], wanted), name
    write_adapter(tmp_path / "adapter", adapter, scale=1.5, base_model=path)
    loaded = PeftModel.from_pretrained(model, tmp_path / "adapter")
    pairs = {name for name, _ in loaded.named_parameters() if "lora_A" in name}
    assert pairs == {f"base_model.model.{stem}.lora_A.default.weight" for stem in stems}, (
        "none of the tower, whose layers have equal names"
    )


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_picture_is_computed_once_a_row_and_by_a_frozen_tower_once(
    tmp_path: Path, is_trained: bool
) -> None:
    read: Counter[str] = Counter()

    def counted(content: str) -> Patches:
        read[content] += 1
        return random_patches(content)

    pictures = Pictures(read=counted, is_trained=is_trained)
    policy = load_policy(make_seeing_model(tmp_path), "fp32", ALONE, pictures=pictures)
    samples = samples_of(3)
    trained(policy, samples, 1000)
    assert read == {"2x3 a": 1, "2x3 b": 1, "3x2 c": 1}
    trained(policy, samples, 1000)
    assert set(read.values()) == ({2} if is_trained else {1})


def test_equal_token_ids_with_another_picture_share_no_node_behind_it() -> None:
    first, second = samples_of(3)[0], samples_of(3)[4]
    assert first.prompt.tolist() == second.prompt.tolist()
    begin = first.pictures[0].begin
    alike = [replace(first, response=second.response), replace(first, response=first.response)]
    ours = pack_samples(alike)
    assert ours.num_prompt_nodes == len(first.prompt)
    other = replace(second, pictures=(replace(first.pictures[0], content="2x3 z"),))
    assert pack_samples([first, other]).num_prompt_nodes == 2 * len(first.prompt) - begin


def test_no_order_of_arrival_changes_a_row_and_samples_keep_pictures_when_sent() -> None:
    groups = seeing_groups(5)
    there = training_set(groups, GrpoAdvantage(), SequenceMean())
    assert unpack(pack(there)).samples == there.samples
    samples = list(there.samples)
    row = pack_samples(samples)
    random.Random(1).shuffle(samples)
    shuffled = pack_samples(samples)
    assert row.tokens.tolist() == shuffled.tokens.tolist()
    assert row.rotary is not None
    assert shuffled.rotary is not None
    assert row.rotary.tolist() == shuffled.rotary.tolist()
    assert pack_samples([each for each in samples if not each.pictures]).rotary is None


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_rotary_positions_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    path = make_seeing_model(tmp_path, kind=kind)
    model = AutoModelForImageTextToText.from_pretrained(path)
    ids, pictures = draw_prompt(random.Random(2), ("4x3 a", "2x5 b", "1x1 c"))
    grids = [random_patches(picture.content).grid for picture in pictures]
    types = torch.tensor([[int(index == PICTURE) for index in ids]])
    wanted, _ = model.model.get_rope_index(
        torch.tensor([ids]), types.int(), image_grid_thw=torch.tensor(grids)
    )
    assert rotary_positions(pictures, len(ids)).tolist() == wanted[:, 0].tolist()
    assert rotary_positions((), 4).tolist() == [[0, 1, 2, 3]] * 3


def test_a_picture_knows_its_tokens() -> None:
    assert ShownPicture(content="", begin=0, rows=3, columns=4).num_tokens == 12


def _sharded(rank: int, out: str, model: str, is_trained: bool) -> None:
    """One of two ranks, of which the second has no picture."""
    torch.set_num_threads(1)
    ranks = Ranks(rank, 2, torch.device("cpu"))
    ranks.join(f"file://{out}/meeting", 60.0)
    pictures = Pictures(read=random_patches, is_trained=is_trained)
    policy = load_policy(model, "fp32", ranks, "sharded", pictures=pictures)
    reference = load_reference(model, "fp32", ranks, "sharded", pictures=pictures)
    row = one_row([each for each in samples_of(3) if bool(each.pictures) == (rank == 0)])
    torch.testing.assert_close(reference.score(row).logp, policy.score(row).logp)
    step = MicroStep(Objective(loss=ReinforceLoss()), 0.8, policy, None)
    loss_sum = total([step.run(row)]).loss_sum
    parameters = policy.parameters
    gradients = [
        (piece.name, piece.start, gradient.clone())
        for piece, gradient in zip(parameters.pieces, parameters.reduced(), strict=True)
    ]
    exported = {name: tensor.clone() for name, tensor in parameters.exported()}
    torch.save((loss_sum, gradients, exported), f"{out}/{rank}.pt")
    ranks.close()


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_beside_a_whole_tower_are_those_of_a_plain_pass_where_the_decoder_is_sharded(
    tmp_path: Path, tied: bool, is_trained: bool, kind: str
) -> None:
    path = make_seeing_model(tmp_path / "model", tied, kind=kind)
    run_processes(_sharded, [(rank, str(tmp_path), path, is_trained) for rank in range(2)])
    told = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    model = AutoModelForImageTextToText.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    expected = naive_loss(samples_of(3), lambda sample: plain_logp(model, sample, temperature=0.8))
    expected.backward()

    assert sum(loss_sum for loss_sum, *_ in told) == pytest.approx(expected.item(), rel=1e-4)
    found: dict[str, Tensor] = {}
    named = dict(model.named_parameters())
    for name, start, part in (each for _, gradients, _ in told for each in gradients):
        whole = found.setdefault(name, torch.full_like(named[name], torch.nan))
        whole.view(-1)[start : start + part.numel()] = part
    of_tower = {name for name in named if is_of_tower(name)}
    assert found.keys() == named.keys() - (set() if is_trained else of_tower)
    for name, gradient in found.items():
        wanted = named[name].grad
        assert wanted is not None
        atol = 1e-5 * (1 + float(wanted.abs().max()))
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=atol, msg=name)
    for _, _, exported in told:
        assert exported.keys() == named.keys()
        for name, tensor in exported.items():
            torch.testing.assert_close(tensor, named[name].detach(), rtol=0, atol=0)
