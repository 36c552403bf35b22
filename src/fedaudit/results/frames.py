"""Conversion of rows and columns to pandas tables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import ndarray


def frame_of(table: "Sequence[Mapping[str, object]] | Mapping[str, ndarray]") -> object:
    """Return rows or columns as a pandas table, or as a list of rows if pandas is not installed.

    Args:
        table: Rows with the same names, or columns of one length by name.
    """
    try:
        from pandas import DataFrame
    except ImportError:
        if not isinstance(table, Mapping):
            return list(table)
        values = zip(*(column.tolist() for column in table.values()), strict=True)
        return [dict(zip(table, row, strict=True)) for row in values]
    return DataFrame(table)
