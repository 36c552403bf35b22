"""Columns of Arrow tables and sizes of Parquet files, with the optional package ``pyarrow``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import open_regular, raise_if_oversized
from fedaudit.datasets.tables.columns import (
    MISSING,
    Column,
    NumberColumn,
    boolean_column,
    text_column,
)

if TYPE_CHECKING:
    import pyarrow

_BATCH_BYTES = 2**26
_BATCH_ROWS = 100_000
"""Limits of bytes and rows that are read at once to measure the unpacked size of a Parquet file."""


def unpacked_sizes(path: Path) -> Iterator[int]:
    """Yield the size in memory of each decoded batch of a Parquet file, in bytes."""
    from pyarrow import parquet

    with open_regular(path) as opened, parquet.ParquetFile(opened) as file:
        for index in range(file.metadata.num_row_groups):
            # Reading a single row of a damaged file raises an error. Reading more would crash the
            # process.
            next(file.iter_batches(batch_size=1, row_groups=[index]), None)
            group = file.metadata.row_group(index)
            # Repeated values may be stored once, so each row may be as large as the whole column.
            columns = [group.column(number) for number in range(group.num_columns)]
            largest = max((column.total_uncompressed_size for column in columns), default=1)
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(largest, 1)))
            for batch in file.iter_batches(batch_size=rows, row_groups=[index]):
                yield sum(decoded_values(values).nbytes for values in batch.columns)


def decoded_values(values: "pyarrow.Array") -> "pyarrow.Array":
    """Return the values of an array without dictionary encoding."""
    return values.dictionary_decode() if hasattr(values, "dictionary_decode") else values


def column_of(table: str, name: str, values: "pyarrow.ChunkedArray") -> Column:
    """Return numbers, texts or booleans as a column of a table.

    Raises:
        BadInput: The column has another type.
    """
    import pyarrow
    from pyarrow import types

    dtype = values.type
    if types.is_dictionary(dtype):
        dtype = dtype.value_type
        decoded_chunks = [chunk.dictionary_decode() for chunk in values.chunks]
        values = pyarrow.chunked_array(decoded_chunks, dtype)
    if types.is_boolean(dtype):
        numbers = values.cast(pyarrow.int8()).to_numpy()
        return boolean_column(np.asarray(numbers, dtype=np.float64))
    if types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype):
        numbers = values.cast(pyarrow.float64(), safe=False).to_numpy()
        return NumberColumn(np.array(numbers, dtype=np.float64))
    if types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype):
        coded = values.cast(pyarrow.large_string()).combine_chunks().dictionary_encode()
        codes = coded.indices.cast(pyarrow.int64()).fill_null(-1).to_numpy()
        return text_column(codes, [text.strip() for text in coded.dictionary.to_pylist()])
    raise BadInput(
        f"column {name!r} of {table!r} has the type {dtype}, but only numbers, texts, and true "
        f"and false are read; convert it, or set ignore = ['{name}']"
    )


@dataclass(frozen=True)
class ArrowColumn:
    """Column of an Arrow table, which is in memory or memory-mapped.

    Attributes:
        table: Name of the table, for messages.
        name: Name of the column.
        values: Chunks of values.
        file_bytes: Size in bytes of the table's files.
        texts: Text of each code, if the values are codes; else None.
    """

    table: str
    name: str
    values: "pyarrow.ChunkedArray"
    file_bytes: int
    texts: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[object]:
        # Convert values one at a time to save memory, since one chunk may contain all rows.
        return (value.as_py() for value in self.values)

    def array(self) -> Shaped[ndarray, "..."]:
        """Return numbers, texts, or lists of these as an array.

        Raises:
            BadInput: Lists differ in length, or the values exceed the memory limit.
        """
        import pyarrow
        from pyarrow import compute

        what = f"column {self.name!r} of {self.table!r}"
        values = decoded_values(self.values.combine_chunks())
        shape = [len(values)]
        try:
            # Remove one level of lists per iteration.
            while True:
                if isinstance(values, pyarrow.ExtensionArray):
                    values = values.storage
                if not hasattr(values, "flatten") or pyarrow.types.is_struct(values.type):
                    break
                lengths = compute.list_value_length(values).unique().to_pylist() or [0]
                if len(lengths) > 1 or lengths[0] is None:
                    raise BadInput(
                        f"rows of {what} differ in length; give pictures, or rows of equally "
                        "many numbers"
                    )
                shape.append(lengths[0])
                values = values.flatten()
            # Features become 32-bit numbers.
            memory = max(values.nbytes, 4 * len(values))
            raise_if_oversized(what, memory, file_bytes=self.file_bytes)
            return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)
        except pyarrow.ArrowException as error:
            raise BadInput(
                f"{what} contains no numbers ({error}); give pictures, or rows of equally "
                "many numbers"
            ) from error

    def column(self) -> Column:
        """Return numbers or texts as a column of a table.

        Raises:
            BadInput: The values are of another type, such as lists.
            Damaged: A code has no text.
        """
        column = column_of(self.table, self.name, self.values)
        if self.texts is None or not isinstance(column, NumberColumn):
            return column
        codes = np.nan_to_num(column.values, nan=MISSING).astype(np.int64)
        if codes.max(initial=MISSING) >= len(self.texts):
            raise Damaged(
                f"column {self.name!r} of {self.table!r} has the code {codes.max()}, and names for "
                f"{len(self.texts)} codes; fetch the data set again"
            )
        return text_column(codes, self.texts)
