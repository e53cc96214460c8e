"""The plain loop that packed training must equal: transformers' own passes over one sequence at a
time, in fp32, without packing, trees or anything else of the learner's."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from artifacts.models.picture_processor import Patches
from artifacts.records import ShownPicture
from tasks.learner.architecture import model_class, read_config
from tasks.learner.packing import Ints, Sample
from tasks.learner.policy import PolicyModel

Read = Callable[[str], Patches]  # by a picture's content


def no_patches(content: str) -> Patches:
    """Read nothing: for samples without pictures."""
    raise AssertionError(f"a sample shows the picture {content}, which nobody reads")


def naive_model(path: str) -> Any:  # Any: models of transformers carry no types
    """The model as transformers runs it, one sequence at a time, fp32."""
    return model_class(read_config(Path(path))).from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )


def naive_logp(
    model: Any,  # Any: as above
    sample: Sample,
    temperature: float = 1.0,
    read: Read = no_patches,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each sampled token by an ordinary forward pass over the
    sequence. read: the pixels of a picture by its content."""
    at = [len(sample.prompt) + place for place in sample.places]
    return sequence_logp(model, sample.tokens, at, temperature, sample.pictures, read)


def sequence_logp(
    model: Any,  # Any: as above
    tokens: Ints,
    at: Sequence[int],
    temperature: float,
    pictures: Sequence[ShownPicture] = (),
    read: Read = no_patches,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of the tokens at these places of a sequence."""
    ids, places = torch.from_numpy(tokens)[None], torch.tensor(at, dtype=torch.int64)
    output = model(input_ids=ids, use_cache=False, **_pixels(len(tokens), pictures, read))
    logs = (output.logits[0, places - 1] / temperature).log_softmax(-1)
    return logs.gather(1, ids[0, places, None])[:, 0], -(logs.exp() * logs).sum(-1)


def _pixels(num_tokens: int, pictures: Sequence[ShownPicture], read: Read) -> Mapping[str, Tensor]:
    """What a forward pass of transformers takes of pictures; nothing without any."""
    if not pictures:
        return {}
    is_picture = torch.zeros(1, num_tokens, dtype=torch.int32)
    for picture in pictures:
        is_picture[0, picture.begin : picture.begin + picture.num_tokens] = 1
    seen = [read(picture.content) for picture in pictures]
    return {
        "pixel_values": torch.cat([torch.from_numpy(each.values) for each in seen]),
        "image_grid_thw": torch.tensor([each.grid for each in seen]),
        "mm_token_type_ids": is_picture,
    }


def naive_loss(samples: Sequence[Sample], logp_of: Callable[[Sample], Tensor]) -> Tensor:
    """The REINFORCE loss of log-probabilities of one sequence at a time."""
    losses = []
    for sample in samples:
        logp = logp_of(sample)
        correction = (logp.detach() - torch.from_numpy(sample.sampling_logp)).exp().clamp(max=2.0)
        losses.append(sample.weight * (-correction * sample.advantages[0] * logp).sum())
    return torch.stack(losses).sum()


def check_gradients(policy: PolicyModel, model: nn.Module) -> None:
    """The policy's gradients are those of an ordinary model, of all parameters that it trains.
    Raises AssertionError with the parameter's name."""
    for name, parameter in model.named_parameters():
        if name in policy.parameters.shapes:
            check_gradient(name, policy.parameters.gradient(name), gradient_of(parameter))


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient of a parameter, zero without one."""
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


def check_gradient(name: str, found: Tensor, wanted: Tensor) -> None:
    """Raises AssertionError, with the name, for a gradient that is not the wanted one."""
    torch.testing.assert_close(
        found,
        wanted,
        rtol=1e-3,
        atol=1e-5 * (1 + float(wanted.abs().max())),
        msg=lambda text: f"{name}: {text}",
    )


def random_samples(seed: int, vocabulary: int) -> list[Sample]:
    """Two families of prompts with a shared prefix, long-tailed response lengths, equal responses;
    without token 0, which some models pad with."""
    rng = random.Random(seed)

    def draw(length: int) -> list[int]:
        return [rng.randrange(1, vocabulary) for _ in range(length)]

    families, samples = [draw(9), draw(5)], []
    for number in range(4):
        prompt = families[number % 2] + draw(rng.randint(1, 6))
        responses = [draw(length) for length in (rng.choice([1, 2, 3]), 5, 8, 30)]
        samples += [_sample(rng, prompt, response) for response in (*responses, responses[1])]
    return samples


def _sample(rng: random.Random, prompt: Sequence[int], response: Sequence[int]) -> Sample:
    return Sample(
        prompt=np.array(prompt),
        response=np.array(response),
        sampled=(range(len(response)),),
        sampling_logp=np.array([-1.0 - (token % 7) / 3 for token in response], dtype=np.float32),
        advantages=(rng.uniform(-1.0, 1.0),),
        reward=1.0,
        weight=1 / len(response),
    )
