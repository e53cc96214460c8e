"""Where a row's pictures come from: a path or a URL, bytes of its own file, or a drawing.

pictures/17.png   s3://bucket/17.png   data:<base64>   shapes:{...}
"""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Mapping
from typing import Any

from artifacts.datasets.shapes import SCHEME as DRAWING
from artifacts.datasets.shapes import drawn
from artifacts.urls import without_secrets

BYTES = "data:"
MOST_BYTES = 16 * 2**20  # of a picture's file


def read_picture(source: str) -> bytes:
    """The bytes of a picture's file. Raises ValueError for a file that cannot be read."""
    if source.startswith(DRAWING):
        return drawn(source)
    if source.startswith(BYTES):
        return base64.b64decode(source.removeprefix(BYTES))
    import fsspec  # tasks without files do not need it

    try:
        with fsspec.open(source, "rb") as file:
            data = bytes(file.read(MOST_BYTES + 1))
    except Exception as error:  # those of every protocol
        raise ValueError(
            f"a picture must be a file that can be read, {without_secrets(source)!r} is not"
            f" ({type(error).__name__}: {without_secrets(str(error))}); mend the path, or drop"
            " the row"
        ) from error
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"a picture's file must have at most {MOST_BYTES} bytes,"
            f" {without_secrets(source)!r} has more; make it smaller"
        )
    return data


def source_of(value: Any, folder: str, where: str) -> str:  # Any: a field of a user's row
    """The source of a picture in a row's field: a path (relative ones begin in `folder`), bytes, or
    both as the hub's data sets have them. Raises ValueError for anything else."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes) and value:
        return BYTES + base64.b64encode(value).decode()
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{where}: a picture must be a path, a URL or bytes, got {str(value)[:60]!r}; fill it"
            " in, or name another images_field"
        )
    is_relative = not ("://" in value or value.startswith(("/", BYTES, DRAWING)))
    return posixpath.join(folder, value) if is_relative and folder else value
