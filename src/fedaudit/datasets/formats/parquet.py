"""Tables in Parquet files, with the optional package ``pyarrow``."""

import os
from dataclasses import KW_ONLY
from pathlib import Path
from typing import ClassVar

from fedaudit.core.arguments import dataclass
from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import open_regular, raise_if_oversized
from fedaudit.datasets.dataset import DataFile
from fedaudit.datasets.tables.arrow import column_of, unpacked_sizes
from fedaudit.datasets.tables.columns import Table, raise_if_names_invalid
from fedaudit.datasets.tables.table import StoredTable, TableSource


@dataclass(frozen=True)
class parquet(TableSource, DataFile):
    """Data set in a table in a Parquet file.

    String and boolean columns are categorical. Other types, such as dates and lists,
    are refused, unless ``ignore`` names the column.

    Attributes:
        path: Path of the file, or its name in the data directory.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.parquet("hospitals.parquet", client="hospital").named_part().options
        {'client': 'hospital'}
    """

    expected_layout: ClassVar[str] = "NAME.parquet"
    suffix: ClassVar[str] = ".parquet"

    _: KW_ONLY

    def load_table(self) -> StoredTable:
        """Read the table."""
        return StoredTable(self._table(), self)

    def _table(self) -> Table:
        path = self.file
        try:
            from pyarrow import parquet as reader
        except ImportError as error:
            raise BadInput(
                f"{path.name} needs the package pyarrow, which is not installed; run pip install "
                "'fedaudit[tables]'"
            ) from error
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                unpacked = 0
                for part_size in unpacked_sizes(path):
                    unpacked += part_size
                    raise_if_oversized(path.name, unpacked, file_bytes=size)
                with reader.ParquetFile(file) as opened:
                    names = opened.schema_arrow.names
                    raise_if_names_invalid(path.name, names)
                    rows = opened.metadata.num_rows
                    used_names = [name for name in names if self.reads(name)]
                    # Numbers become 64-bit numbers.
                    raise_if_oversized(path.name, 8 * rows * len(used_names), file_bytes=size)
                    columns = {
                        name: column_of(path.name, name, opened.read([name]).column(0))
                        for name in used_names
                    }
        except FedauditError:
            raise
        except OSError as error:
            if error.strerror is None:
                raise _damaged(path, error) from error
            raise BadInput(
                f"{path} cannot be read ({error.strerror}); give the path of a regular file"
            ) from error
        # On damaged files, pyarrow can raise any of a dozen exceptions.
        except Exception as error:
            raise _damaged(path, error) from error
        if not rows or not columns:
            raise BadInput(f"{path.name} has no rows; give a table with rows")
        unread = tuple(name for name in names if name not in columns)
        return Table(path.name, columns, "Parquet", size, unread=unread, is_typed=True)


def _damaged(path: Path, error: Exception) -> Damaged:
    return Damaged(f"{path.name} cannot be read as Parquet ({str(error)[:200]}); fetch it again")
