"""The tokenizer of the tiny model, an ordinary Hugging Face tokenizer: one token per character, one
for "\\nAnswer: ", and a chat template that only concatenates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from artifacts.datasets.chain_sum import ANSWER, CHARACTERS
from artifacts.models.importing import importing_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
# of the tokenizer with pictures, which are shown before the text
SHOWING = "<|vision_start|><|image_pad|><|vision_end|>"
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
SEEING_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}" + SHOWING + "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
VOCABULARY_SIZE = 64  # padded: engines want multiples of 64


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Make the tokenizer. Ids 0 to 3 are pad, bos, eos and unknown; unused ids decode to
    nothing."""
    with importing_transformers():
        from transformers import PreTrainedTokenizerFast

    tokens = (PAD, BOS, EOS, UNKNOWN, ANSWER, *CHARACTERS)
    backend = Tokenizer(
        WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN)
    )
    backend.pre_tokenizer = Split(Regex(rf"{ANSWER}|[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def seeing_tokenizer() -> PreTrainedTokenizerFast:
    """Make the same tokenizer with the tokens of pictures, in the order of VISION behind the
    others."""
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION)})
    tokenizer.chat_template = SEEING_TEMPLATE
    return tokenizer
