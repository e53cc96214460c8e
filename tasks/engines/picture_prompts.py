"""Pictures in prompts: one token id in what the chat template wrote becomes as many as the model
needs for the picture.

    <start> * <end> How many?  +  56 x 84 pixels  ─▶  <start> * * * * * * <end> How many?
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from artifacts.datasets.picture_sources import read_picture
from artifacts.models.picture_processor import processor_of
from artifacts.pictures import content_of, opened
from artifacts.records import ShownPicture
from tasks.engines.model_files import read_picture_token, takes_pictures

Shown = tuple[tuple[int, ...], tuple[ShownPicture, ...]]  # a prompt's tokens, and its pictures


@lru_cache(maxsize=16)
def bytes_of(source: str) -> bytes:
    """The file of a row's picture. Raises ValueError as `read_picture`."""
    return read_picture(source)


def check_seeing(model_path: str) -> None:
    """Raises ValueError for a model of text alone."""
    if not takes_pictures(model_path):
        raise ValueError(
            "a row with pictures needs a model with a vision tower, the model in"
            f" {model_path} has none; choose one of docs/models.md, or leave images_field out"
        )


def with_pictures(model_path: str, token_ids: Sequence[int], sources: Sequence[str]) -> Shown:
    """Put the pictures of a row where its rendered prompt has their tokens. Raises ValueError for a
    picture that is none, and for a template that does not show it once."""
    token, processor = read_picture_token(model_path), processor_of(model_path)
    places = [place for place, index in enumerate(token_ids) if index == token]
    if len(places) != len(sources):
        raise ValueError(
            f"a chat template must write the picture's token once for each of {len(sources)}"
            f" pictures, that of {model_path} writes {len(places)}; set model.chat_template"
        )
    shown: list[int] = []
    pictures: list[ShownPicture] = []
    following = 0
    for place, source in zip(places, sources, strict=True):
        data = bytes_of(source)
        rows, columns = processor.grid(*opened(data).size)
        shown += token_ids[following:place]
        pictures.append(
            ShownPicture(content=content_of(data), begin=len(shown), rows=rows, columns=columns)
        )
        shown += [token] * (rows * columns)
        following = place + 1
    return (*shown, *token_ids[following:]), tuple(pictures)
