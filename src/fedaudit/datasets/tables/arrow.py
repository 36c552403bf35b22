"""Sizes and values of Parquet files, with the optional package ``pyarrow``."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.core.files import open_regular

if TYPE_CHECKING:
    import pyarrow

_BATCH_BYTES = 2**26
_BATCH_ROWS = 100_000
"""Limits of the bytes and rows of a Parquet file that are read at once to measure its unpacked
size."""


def unpacked_sizes(path: Path) -> Iterator[int]:
    """Yield the bytes that a Parquet file unpacks to, a part at a time."""
    from pyarrow import parquet

    with open_regular(path) as opened, parquet.ParquetFile(opened) as file:
        for index in range(file.metadata.num_row_groups):
            # Damaged metadata of a column raise here. Below, they would end the process.
            next(file.iter_batches(batch_size=1, row_groups=[index]), None)
            group = file.metadata.row_group(index)
            # A single value can be as large as its whole stored column.
            columns = [group.column(place) for place in range(group.num_columns)]
            largest = max((column.total_uncompressed_size for column in columns), default=1)
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(largest, 1)))
            for batch in file.iter_batches(batch_size=rows, row_groups=[index]):
                yield sum(decoded_values(values).nbytes for values in batch.columns)


def decoded_values(values: "pyarrow.Array") -> "pyarrow.Array":
    """Return values without dictionary encoding."""
    return values.dictionary_decode() if hasattr(values, "dictionary_decode") else values
