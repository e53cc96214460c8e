"""Pictures in prompts: one token id in what the chat template wrote becomes as many as the model
needs for the picture.

    <start> * <end> How many?  +  56 x 84 pixels  ─▶  <start> * * * * * * <end> How many?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from artifacts.datasets.picture_sources import read_picture
from artifacts.models.picture_processor import processor_of
from artifacts.pictures import PictureFolder, content_of, opened
from artifacts.records import ShownPicture
from artifacts.store import Store
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
    pictures = [measured(model_path, bytes_of(source)) for source in sources]
    return placed(token_ids, pictures, read_picture_token(model_path), model_path)


def measured(model_path: str, data: bytes) -> ShownPicture:
    """A picture with the numbers of its tokens, not yet in a place. Raises ValueError for a file
    that is none."""
    rows, columns = processor_of(model_path).grid(*opened(data).size)
    return ShownPicture(content=content_of(data), begin=0, rows=rows, columns=columns)


def placed(
    token_ids: Sequence[int], pictures: Sequence[ShownPicture], token: int, model: str
) -> Shown:
    """Put pictures where rendered text has their token, in its order. Raises ValueError for a
    template, that of `model`, that does not write it once for each."""
    places = [place for place, index in enumerate(token_ids) if index == token]
    if len(places) != len(pictures):
        raise ValueError(
            f"a chat template must write the picture's token once for each of {len(pictures)}"
            f" pictures, that of {model} writes {len(places)}; set model.chat_template"
        )
    shown: list[int] = []
    found: list[ShownPicture] = []
    following = 0
    for place, picture in zip(places, pictures, strict=True):
        shown += token_ids[following:place]
        found.append(picture.moved(len(shown) - picture.begin))
        shown += [token] * picture.num_tokens
        following = place + 1
    return (*shown, *token_ids[following:]), tuple(found)


@dataclass(frozen=True, slots=True)
class PictureKeeper:
    """Keeps pictures that come while a run goes on, for all that read them by content."""

    model_path: str
    folder: PictureFolder

    @classmethod
    def of(cls, model_path: str, pictures: str) -> PictureKeeper:
        """pictures: folder or URL."""
        return cls(model_path, PictureFolder(Store.open(pictures)))

    def keep(self, data: bytes) -> ShownPicture:
        """Keep a picture; returns it without a place. Raises ValueError as `measured`."""
        shown = measured(self.model_path, data)
        self.folder.keep(data)
        return shown
