"""Pictures in packed rows: ids that tell their tokens apart, and the positions of their tokens.

    prompt        <start> * * * * <end> How many?      * is one id for all pictures
    packed        <start> 7 8 9 10 <end> How many?     7 to 10: of this picture alone (+ 2**24)
    rows                  0 0 1 1                      a picture's tokens are at one time; the text
    columns               0 1 0 1                      behind goes on behind its longer side

Equal pictures at one place of equal prompts thus become the same nodes of the prefix tree, and
others do not. Ids follow the sorted contents, so that no order of arrival changes them. Leaves out
the embeddings of pictures (`tower`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from artifacts.records import ShownPicture

FIRST_PICTURE_ID = 1 << 24  # above every vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedPicture:
    """A picture whose tokens have consecutive ids of their own."""

    first_id: int  # of its first token
    content: str  # as in `ShownPicture`
    num_tokens: int  # that stand for it


def first_ids(pictures: Iterable[ShownPicture]) -> Mapping[str, int]:
    """The id of the first token of each picture, by its content."""
    sizes = {picture.content: picture.num_tokens for picture in pictures}
    found: dict[str, int] = {}
    following = FIRST_PICTURE_ID
    for content, size in sorted(sizes.items()):
        found[content] = following
        following += size
    return found


def rotary_positions(pictures: Sequence[ShownPicture], length: int) -> NDArray[np.int64]:
    """(3, length): the positions by time, row and column of a sequence that begins with a prompt
    with these pictures, as Qwen2-VL and its successors have them."""
    positions = np.empty((3, length), dtype=np.int64)
    end = following = 0  # of what is written, and the next token's position
    for picture in pictures:
        following = _write_text(positions, end, picture.begin, following)
        end = picture.begin + picture.num_tokens
        places = np.indices((1, picture.rows, picture.columns)).reshape(3, -1)
        positions[:, picture.begin : end] = following + places
        following += max(picture.rows, picture.columns)
    _write_text(positions, end, length, following)
    return positions


def _write_text(positions: NDArray[np.int64], begin: int, end: int, following: int) -> int:
    positions[:, begin:end] = np.arange(following, following + end - begin)
    return following + end - begin
