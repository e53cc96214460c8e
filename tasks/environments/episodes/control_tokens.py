"""Text with control tokens in it, taken apart into ids: what a template writes is control, what
somebody says is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Controls = dict[str, int]  # id of every control token, by its text
Encode = Callable[[str], tuple[int, ...]]  # of text in which nothing is a control token
STAND_IN = 0xF0000  # of the first control token: from here on nothing is anybody's text


def controls_of(tokenizer: PreTrainedTokenizerBase) -> Controls:
    added = tokenizer.added_tokens_decoder
    return {token.content: index for index, token in added.items() if token.special}


def pieces(text: str, controls: Controls) -> list[str]:
    """Plain text and control tokens in turn; it begins and ends with plain text, maybe empty."""
    return re.split(f"({_any_of(controls)})", text) if controls else [text]


def ids_of(parts: Sequence[str], controls: Controls, encode: Encode) -> tuple[int, ...]:
    """The ids of such pieces."""
    return tuple(
        index
        for part in parts
        for index in ((controls[part],) if part in controls else encode(part))
    )


def shielded(text: str, controls: Controls) -> str:
    """Somebody's text without a control token in it, to be put into a template."""
    numbers = {control: number for number, control in enumerate(controls)}
    if not controls:
        return text
    return re.sub(_any_of(controls), lambda found: chr(STAND_IN + numbers[found[0]]), text)


def unshielded(text: str, controls: Controls) -> str:
    """The text as it was said."""
    return text.translate({STAND_IN + number: control for number, control in enumerate(controls)})


def _any_of(controls: Controls) -> str:
    return "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
