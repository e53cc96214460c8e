"""Generation without an engine, by transformers, one prompt at a time, in float32: for a person at
a terminal, who waits for the first word. It is ready in seconds, where vLLM takes half a minute on
a CPU. Leaves out everything that training needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from artifacts.models.importing import building_model, importing_transformers
from artifacts.models.picture_processor import processor_of
from artifacts.records import Generated, Prompt, VersionSpan
from tasks.engines.chat_tokens import ChatTokens
from tasks.engines.model_files import read_stop_ids, read_tokenizer, takes_pictures

with importing_transformers():
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        GenerationConfig,
        PreTrainedTokenizerBase,
        TextStreamer,
    )
    from transformers.utils import logging as transformers_logging

Told = Callable[[str], None]


class PlainModel:
    """A model loaded in float32, with its tokenizer."""

    def __init__(self, directory: Path, name: str) -> None:
        """`name`: the engine's name in the responses."""
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        self.name, self.path = name, str(directory)
        self.tokenizer: PreTrainedTokenizerBase = read_tokenizer(str(directory))
        kind = AutoModelForCausalLM
        if takes_pictures(self.path):
            kind = AutoModelForImageTextToText
        with building_model():
            model = kind.from_pretrained(directory, dtype=torch.float32)
        self._model = model.eval()
        self._stop_ids = read_stop_ids(str(directory), self.tokenizer)
        self._tokens = ChatTokens(self.tokenizer, self._stop_ids)

    def answer(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        temperature: float,
        tell: Told,
        shown: Sequence[bytes] = (),
    ) -> Generated:
        """Generate one response; its text goes to `tell` in pieces. Temperature 0 is greedy. shown:
        the files of the prompt's pictures."""
        began_s = time.time()
        given = torch.tensor([prompt.token_ids])
        how = GenerationConfig(  # whole: what the model's own file adds is not what was trained
            max_new_tokens=max_new_tokens,
            do_sample=temperature > 0,
            temperature=temperature or 1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=list(self._stop_ids) or None,
            pad_token_id=next(iter(self._stop_ids), 0),  # there is nothing to pad
        )
        with torch.inference_mode():
            output = self._model.generate(
                given,
                attention_mask=torch.ones_like(given),
                generation_config=how,
                streamer=_Telling(self._tokens, tell),
                **self._seen(given, prompt, shown),
            )
        token_ids = tuple(output[0, given.shape[1] :].tolist())
        is_stopped = bool(token_ids) and token_ids[-1] in self._stop_ids
        return Generated(
            prompt_id=prompt.prompt_id,
            index=0,
            token_ids=token_ids,
            logprobs=(0.0,) * len(token_ids),
            versions=(VersionSpan(version=0, num_tokens=len(token_ids)),),
            finish_reason="stop" if is_stopped else "length",
            text=self._tokens.decode(token_ids),
            engine=self.name,
            submitted_s=began_s,
            first_token_s=began_s,
            finished_s=time.time(),
        )

    def _seen(self, given: Tensor, prompt: Prompt, shown: Sequence[bytes]) -> dict[str, Tensor]:
        """What the model takes for the pictures, by transformers' names."""
        if not shown:
            return {}
        read = [processor_of(self.path).patches(data) for data in shown]
        is_picture = torch.zeros_like(given)
        for picture in prompt.pictures:
            is_picture[0, picture.begin : picture.begin + picture.num_tokens] = 1
        return {
            "pixel_values": torch.cat([torch.from_numpy(each.values) for each in read]),
            "image_grid_thw": torch.tensor([each.grid for each in read]),
            "mm_token_type_ids": is_picture.int(),
        }


class _Telling(TextStreamer):  # type: ignore[misc]  # transformers is not typed
    """Passes the text to a function instead of printing it."""

    def __init__(self, tokens: ChatTokens, tell: Told) -> None:
        super().__init__(tokens, skip_prompt=True)  # of a tokenizer it only ever asks `decode`
        self._tell = tell

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._tell(text)
