"""Reads rows of users' files: Parquet, CSV or JSON lines, on any file system of fsspec's.

    files -> records with their file and line -> filter, mapping, limit -> RowTable -> sides

Every row is read once before a run starts, so that the error of a bad row names its file, line and
field. Files are read in pieces, so that memory does not grow with the file.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import PurePosixPath
from typing import IO, Any, Literal

from pydantic import Field

from artifacts.datasets.row_fields import Fields
from artifacts.datasets.row_mapping import MappedConfig, wanted_row
from artifacts.datasets.row_table import RowTable, RowTableWriter, split
from artifacts.datasets.rows import Dataset
from artifacts.urls import Location

logger = logging.getLogger(__name__)

Format = Literal["parquet", "csv", "jsonl"]
Record = tuple[str, Fields | ValueError]  # a row's file and line, and its fields or its error

PACKED = (".gz", ".bz2", ".xz", ".zst")
SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
}  # fmt: skip
# what readers and unpackers raise
_DAMAGED = (OSError, EOFError, LZMAError, zlib.error, UnicodeDecodeError)
_LONGEST_CSV_FIELD = 1 << 30  # Python's own limit of 131,072 characters is too small for tests


class FilesConfig(MappedConfig):
    """Rows of Parquet, CSV or JSON-lines files."""

    kind: Literal["files"] = Field(
        "files", description="Chooses rows of Parquet, CSV or JSON-lines files."
    )
    path: Location = Field(
        ...,
        min_length=1,
        description=("The file: a path or an fsspec URL, with * for several; .gz is unpacked."),
    )
    format: Literal["by suffix", "parquet", "csv", "jsonl"] = Field(
        "by suffix", description="What the files are, where their suffix does not say it."
    )
    heldout_path: Location = Field(
        "",
        description=(
            "Files with the questions to evaluate on; empty: heldout_fraction of those in path."
        ),
    )
    heldout_fraction: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Share of the distinct questions kept for evaluation, without heldout_path.",
    )

    @property
    def folder(self) -> str:
        """Where the files lie."""
        return self.path.partition("*")[0].rpartition("/")[0]

    def check_first_rows(self) -> None:
        """Read the first row that is wanted of either side. Raises ValueError as `load` does."""
        first = self.model_copy(update={"limit": 1})
        for field, path in (("task.path", self.path), ("task.heldout_path", self.heldout_path)):
            if path:
                read_table(first, _records(self, path, field), path)

    def load(self, seed: int) -> Dataset:
        """Load the files' rows in their order, rows of held-out questions apart. Raises ValueError
        for an unusable file or row."""
        records = _records(self, self.path, "task.path")
        table, heldout = read_trained(self, records, self.path), None
        if path := self.heldout_path:
            heldout = read_table(self, _records(self, path, "task.heldout_path"), path)
        return split("files", table, heldout, self.heldout_fraction, seed)


def read_trained(config: MappedConfig, records: Iterator[Record], source: str) -> RowTable:
    """Read the table to train on, as `read_table` does. Raises ValueError as well if its first rows
    are not those of `first_rows_sha256`."""
    table, wanted = read_table(config, records, source), config.first_rows_sha256
    if wanted and table.first_rows_sha256 != wanted:
        raise ValueError(
            f"the first rows of {source} must have the SHA-256 {wanted}, got"
            f" {table.first_rows_sha256}: they are others, or are mapped in another way; name the"
            " right revision or file, or correct task.first_rows_sha256"
        )
    return table


def read_table(config: MappedConfig, records: Iterator[Record], source: str) -> RowTable:
    """Map records to rows; records that are left out are counted by reason. Raises ValueError if no
    row remains, and for an unusable record unless `unusable_rows` is "skip"."""
    writer, num_rows, first_unusable = RowTableWriter(), 0, ""
    for where, fields in records:
        try:
            row = wanted_row(config, fields, where)
        except ValueError as error:
            if config.unusable_rows == "refuse":
                raise ValueError(f"{error}, or set unusable_rows=skip") from error
            writer.left_out["unusable"] += 1
            first_unusable = first_unusable or str(error)
            continue
        if row is None:
            writer.left_out["filtered"] += 1
            continue
        writer.add(row)
        num_rows += 1
        if config.limit and num_rows == config.limit:
            break
    if first_unusable:
        count = writer.left_out["unusable"]
        logger.warning("source=%s rows_left_out=%d first=%s", source, count, first_unusable)
    if num_rows:
        return writer.finish()
    if first_unusable:
        reason = f" that is usable, the first because of: {first_unusable}"
    elif config.filter:
        reason = f" under the filter {list(config.filter)}; loosen it"
    else:
        reason = "; give files with rows"
    raise ValueError(f"the task must have at least one row, got none of {source}{reason}")


def read_records(
    file: IO[bytes], format_: Format, paths: Sequence[str], name: str
) -> Iterator[Record]:
    """Yield every row of an open file with its file and line (`name:number`). Raises ValueError for
    a damaged file. paths: the dotted paths that the mapping reads."""
    try:
        match format_:
            case "parquet":
                from artifacts.datasets.parquet_rows import parquet_records  # pyarrow with it

                yield from parquet_records(file, name, lambda names: _columns(paths, names, name))
            case "csv":
                yield from _csv(file, paths, name)
            case "jsonl":
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield f"{name}:{number}", _json_object(line, f"{name}:{number}")
    except _DAMAGED as error:
        raise ValueError(
            f"{name}: must be a whole file of the kind that it is called, it cannot be read to its"
            f" end ({error}); copy it again, or set task.format"
        ) from error


def format_by_suffix(name: str) -> Format:
    """The format of a file, by the suffix of its name. Raises ValueError for an unknown suffix."""
    path = PurePosixPath(name)
    if path.suffix in PACKED:
        from fsspec.utils import infer_compression

        if infer_compression(name) is None:
            raise ValueError(
                f"a packed file needs a package that unpacks {path.suffix}, got {name} without one;"
                " pip install zstandard, or unpack the file"
            )
        path = path.with_suffix("")
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"a file of rows must end with one of {', '.join(SUFFIXES)}, got {name}; set"
            " task.format"
        )
    return SUFFIXES[path.suffix]


def _records(config: FilesConfig, path: str, field: str) -> Iterator[Record]:
    import fsspec  # when rows are read: every command reads the settings of them

    with _readable(field, path):
        files: Sequence[Any] = fsspec.open_files(path, "rb", compression="infer")  # Any: untyped
    if not files:
        raise ValueError(f"{field} must match at least one file, got {path}; correct the path")
    for file in files:
        name = file.full_name if "://" in path else file.path
        format_ = format_by_suffix(name) if config.format == "by suffix" else config.format
        with _readable(field, path):
            opened = file.open()
        with opened:
            yield from read_records(opened, format_, sorted(config.paths), name)


@contextmanager
def _readable(field: str, path: str) -> Iterator[None]:
    """Turn any error of opening a file into a ValueError with the setting and the path."""
    try:
        yield
    except Exception as error:  # every protocol has errors of its own
        told = error.__cause__ or error  # fsspec's own may say no more than the URL
        reason = getattr(told, "strerror", None) or str(told)
        raise ValueError(
            f"{field} must be a file that can be read, got {path} ({reason}); correct the path"
        ) from error


def _csv(file: IO[bytes], paths: Sequence[str], name: str) -> Iterator[Record]:
    csv.field_size_limit(_LONGEST_CSV_FIELD)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    reader = csv.DictReader(text, strict=True)
    try:
        _columns(paths, list(reader.fieldnames or ()), name)
        for fields in reader:
            where = f"{name}:{reader.line_num}"
            unequal = ValueError(
                f"{where}: every row must have as many values as the header"
                f" ({len(reader.fieldnames or ())}); repair the row"
            )
            is_unequal = None in fields or None in fields.values()
            yield where, unequal if is_unequal else fields
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{name}:{reader.line_num}: must be CSV in UTF-8 ({error}); repair it"
        ) from error


def _columns(paths: Sequence[str], names: list[str], name: str) -> list[str]:
    """The columns that the paths need. Raises ValueError for a path whose column is missing."""
    # a column whose own name has dots counts by its whole name
    found = {path: path if path in names else path.partition(".")[0] for path in paths}
    missing = [path for path, column in found.items() if column not in names]
    if missing:
        raise ValueError(
            f"{name}: field {missing[0]!r} is missing, the file has"
            f" {', '.join(map(repr, names))}; name the right field in the task's config"
        )
    return sorted(set(found.values()))


def _json_object(line: bytes, where: str) -> Fields | ValueError:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors alike
        raise ValueError(
            f"{where}: every line must be one JSON object in UTF-8, got {line[:60]!r} ({error});"
            " repair the line"
        ) from error
    if not isinstance(fields, dict):
        return ValueError(
            f"{where}: every line must be one JSON object, got {type(fields).__name__}; write one"
            " object per line"
        )
    return fields
