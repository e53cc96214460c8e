"""Reads rows of Parquet files, and converts Arrow values of any type to Python's.

record batch ─▶ `rows_of` ─▶ a dictionary by column name for each row
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from artifacts.datasets.row_fields import Fields

ROWS_PER_READ = 512


def parquet_records(
    file: IO[bytes], name: str, columns_of: Callable[[list[str]], list[str]]
) -> Iterator[tuple[str, Fields]]:
    """Yield every row with `name:number`. columns_of: picks columns of all that there are. Raises
    ValueError for a file of another kind, OSError for one that cannot be read to its end."""
    try:
        parquet = pq.ParquetFile(file)
    except pa.ArrowException as error:
        raise ValueError(f"{name}: must be a Parquet file ({error}); set task.format") from error
    columns = columns_of(parquet.schema_arrow.names)
    batches = parquet.iter_batches(ROWS_PER_READ, columns=columns)
    try:
        for number, fields in enumerate(chain.from_iterable(map(rows_of, batches)), start=1):
            yield f"{name}:{number}", fields
    except pa.ArrowException as error:
        raise OSError(str(error)) from error


def rows_of(batch: Any) -> Iterator[Mapping[str, Any]]:  # Any: pyarrow is untyped
    """Yield the rows of a record batch as dictionaries by column name."""
    columns = [values_of(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def values_of(array: Any) -> list[Any]:  # Any: as above, and Python values of any type
    """Convert an Arrow array of any type, nested types too, to Python values; null becomes None.

    float16, float32        become their shortest decimals: 0.1, not 0.10000000149
    maps                    become dictionaries, so that a path may name a key
    dictionaries, run ends  become the values that they encode
    times beyond Python's   become the text that Arrow writes
    """
    kind = array.type
    if _needs_no_care(kind):
        return list(array.to_pylist())
    if isinstance(kind, pa.BaseExtensionType):
        return values_of(array.storage)
    if pa.types.is_dictionary(kind):
        return values_of(array.dictionary.take(array.indices))
    if pa.types.is_run_end_encoded(kind):
        return values_of(pc.run_end_decode(array))
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [values_of(column) for column in array.flatten()]
        rows = zip(*columns, strict=True) if columns else ((),) * len(array)
        return [
            dict(zip(names, values, strict=True)) if is_valid else None
            for is_valid, values in zip(array.is_valid().to_pylist(), rows, strict=True)
        ]
    if pa.types.is_map(kind):
        return [_dictionary(item) if item.is_valid else None for item in array]
    if pa.types.is_nested(kind):
        values = iter(values_of(pc.list_flatten(array)))
        lengths = pc.list_value_length(array).to_pylist()
        return [None if length is None else list(islice(values, length)) for length in lengths]
    if pa.types.is_temporal(kind):
        return [_time(item) for item in array]
    narrow = np.float16 if pa.types.is_float16(kind) else np.float32
    return [None if value is None else float(str(narrow(value))) for value in array.to_pylist()]


def _needs_no_care(kind: Any) -> bool:  # Any: pyarrow is untyped
    """True if Arrow's own conversion gives the values that were written into the column."""
    if pa.types.is_float16(kind) or pa.types.is_float32(kind) or pa.types.is_map(kind):
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _needs_no_care(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _needs_no_care(kind.value_type)
    parts = (kind.field(number).type for number in range(kind.num_fields))
    return not pa.types.is_temporal(kind) and all(map(_needs_no_care, parts))


def _dictionary(item: Any) -> dict[str, Any]:  # Any: a map of Arrow, and as values_of
    keys, values = map(values_of, item.values.flatten())
    return dict(zip(map(str, keys), values, strict=True))


def _time(item: Any) -> Any:  # Any: a scalar of Arrow, and as values_of
    try:
        return item.as_py()
    except (ValueError, OverflowError):  # nanoseconds, or a year that Python's have not
        return item.cast(pa.string()).as_py()
