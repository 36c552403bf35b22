"""Data sets in data frames of pandas."""

from dataclasses import InitVar, field
from typing import TYPE_CHECKING

import numpy as np

from fedaudit.core.arguments import dataclass
from fedaudit.core.errors import BadInput, type_of
from fedaudit.core.values import short_repr
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.tables.columns import (
    Column,
    NumberColumn,
    Table,
    boolean_column,
    raise_if_names_invalid,
    text_column,
)
from fedaudit.datasets.tables.table import StoredTable, TableSource

if TYPE_CHECKING:
    import pandas


@short_repr
@dataclass(frozen=True, eq=False)
class dataframe(TableSource):
    """Data set in a data frame of pandas.

    Columns of texts, booleans and pandas categories are read as categories. The index is not read.

    Attributes:
        frame: The data frame.
        name: Name of the data set, for the report.

    Raises:
        BadInput: ``frame`` is not a data frame, or a column has another type, such as dates.

    Examples:
        >>> import fedaudit as fa
        >>> import pandas
        >>> frame = pandas.DataFrame({"age": [31, 54, 47, 29] * 3, "readmitted": ["no", "yes"] * 6})
        >>> fa.datasets.dataframe(frame, label="readmitted")(seed=0).classes
        2
    """

    frame: InitVar[object]
    name: str = field(default="table", kw_only=True)
    table: Table = field(init=False)

    def __post_init__(self, frame: object) -> None:
        object.__setattr__(self, "table", _table(self, frame))

    def __call__(self, *, seed: int) -> Dataset:
        """Return the data set; the seed selects the test rows."""
        return self.read(seed)

    def load_table(self) -> StoredTable:
        """Return the table."""
        return StoredTable(self.table, self)


def _table(source: dataframe, frame: object) -> Table:
    try:
        import pandas
    except ImportError as error:
        raise BadInput(
            "a data frame needs the package pandas, which is not installed; run pip install "
            "'fedaudit[tables]'"
        ) from error
    if not isinstance(frame, pandas.DataFrame):
        raise BadInput(
            f"argument `frame` must be a pandas.DataFrame, got {type_of(frame)}; convert it, or "
            "use fedaudit.datasets.samples for arrays"
        )
    names = [str(name) for name in frame.columns]
    raise_if_names_invalid(source.name, names)
    if not len(frame) or not names:
        raise BadInput(f"{source.name!r} has no rows or no columns; give a table with both")
    columns = {
        name: _column(source.name, name, frame.iloc[:, index])
        for index, name in enumerate(names)
        if source.reads(name)
    }
    return Table(
        source.name,
        columns,
        "a data frame",
        frame.size * 8,
        unread=tuple(name for name in names if name not in columns),
        is_typed=True,
    )


def _column(table: str, name: str, values: "pandas.Series[object]") -> Column:
    from pandas import factorize
    from pandas.api import types

    if types.is_bool_dtype(values.dtype):
        return boolean_column(values.to_numpy(dtype=np.float64, na_value=np.nan))
    if types.is_numeric_dtype(values.dtype) and not types.is_complex_dtype(values.dtype):
        return NumberColumn(values.to_numpy(dtype=np.float64, na_value=np.nan))
    codes, unique_values = factorize(values)
    if all(isinstance(value, str | bool | int) for value in unique_values):
        texts = [str(value).strip() for value in unique_values]
        return text_column(np.asarray(codes, dtype=np.int64), texts)
    raise BadInput(
        f"column {name!r} of {table!r} has values of the type {values.dtype}, but only numbers, "
        f"texts, and true and false are read; convert it, or set ignore = ['{name}']"
    )
