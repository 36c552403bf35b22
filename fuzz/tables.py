"""Tables in text files and Parquet files."""

from fedaudit.datasets.formats import csv, parquet
from fuzz.target import FOLDER, file

_ROWS = [(20.5 + 7 * row % 30, "ab "[row % 3].strip(), "NS"[row % 2]) for row in range(24)]
_TEXT = "age,ward,hospital,label\n" + "".join(
    f"{age},{ward},{hospital},{('yes', 'no')[row // 2 % 2]}\n"
    for row, (age, ward, hospital) in enumerate(_ROWS)
)


def text(content: bytes) -> None:
    """Read a table of comma-separated values."""
    csv.csv(file("table.csv", content), client="hospital").read(seed=1)


def text_seeds() -> list[bytes]:
    """Return a table with commas, and one with semicolons and a byte order mark."""
    return [_TEXT.encode(), _TEXT.replace(",", ";").encode("utf-8-sig")]


def columns(content: bytes) -> None:
    """Read a Parquet file."""
    parquet.parquet(file("table.parquet", content), client="hospital").read(seed=1)


def columns_seeds() -> list[bytes]:
    """Return the same table in a Parquet file, with and without compression."""
    import pyarrow
    from pyarrow.csv import read_csv
    from pyarrow.parquet import write_table

    table = read_csv(pyarrow.py_buffer(_TEXT.encode()))
    path, seeds = FOLDER / "seed.parquet", []
    for compression in ("none", "snappy"):
        write_table(table, path, compression=compression)
        seeds.append(path.read_bytes())
    return seeds
