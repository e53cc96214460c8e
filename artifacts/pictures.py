"""Pictures as files, each named by its content.

    bytes ─▶ keep ─▶ pictures/<SHA-256> in the run's folder ─▶ read ─▶ RGB pixels

Equal pictures are kept once, whatever number of prompts show them. Pillow is imported when one is
opened: tasks without pictures never import it. Leaves out what a model sees of a picture
(`artifacts.models.picture_processor`).
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from artifacts.store import Store

if TYPE_CHECKING:
    from PIL.Image import Image

Made = TypeVar("Made")
# formats that decode to the same pixels everywhere, and that no interpreter reads
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 4096 * 4096  # of a file; what a model sees of it is bounded by its own processor


def content_of(data: bytes) -> str:
    """The name of a picture's file: the SHA-256 of its bytes."""
    return hashlib.sha256(data).hexdigest()


def opened(data: bytes) -> Image:
    """Decode a picture to RGB. Raises ValueError for bytes that are none, or too large a one."""
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = picture.size
        if width * height > MAX_PIXELS:
            raise ValueError(
                f"a picture must have at most {MAX_PIXELS} pixels, got {width} x {height}; make it"
                " smaller"
            )
        return picture.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, EOFError) as error:
        raise ValueError(
            f"a picture must be a whole file of {', '.join(FORMATS)}, got {len(data)} bytes that"
            f" are none ({error}); mend or drop the row"
        ) from None


def as_url(data: bytes) -> str:
    """A `data:` URL of a picture, for a page that shows it."""
    kind = next((kind for mark, kind in _MARKS.items() if data.startswith(mark)), "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


_MARKS = {b"\xff\xd8": "jpeg", b"RIFF": "webp", b"BM": "bmp", b"GIF8": "gif"}


class PictureFolder:
    """The pictures of a run."""

    def __init__(self, store: Store) -> None:
        """store: the run's folder of pictures."""
        self._store = store

    def keep(self, data: bytes) -> str:
        """Keep a picture, if it is not there; returns its content."""
        content = content_of(data)
        if not self._store.exists(content):
            with suppress(FileExistsError):
                self._store.create(content, data)
        return content

    def read(self, content: str) -> bytes:
        """The bytes of the picture with this content. Raises ValueError for damaged ones, and
        FileNotFoundError."""
        data = self._store.read(content)
        if content_of(data) != content:
            raise ValueError(
                f"{self._store.url}/{content} ({len(data)} bytes) must be the picture that it is"
                " named after, it is not; restore it from a copy"
            )
        return data


class LatestMade(Generic[Made]):
    """What is made of pictures, kept by content up to a number of bytes, the latest used longest.
    All calls come from one thread."""

    def __init__(
        self, make: Callable[[str], Made], num_bytes_of: Callable[[Made], int], most_bytes: int
    ) -> None:
        self._make, self._num_bytes_of, self._most_bytes = make, num_bytes_of, most_bytes
        self._kept: OrderedDict[str, Made] = OrderedDict()
        self._num_bytes = 0

    def of(self, content: str) -> Made:
        """The value of the picture with this content, made if it is not kept."""
        if content in self._kept:
            self._kept.move_to_end(content)
            return self._kept[content]
        made = self._kept[content] = self._make(content)
        self._num_bytes += self._num_bytes_of(made)
        while self._num_bytes > self._most_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._num_bytes -= self._num_bytes_of(dropped)
        return made
