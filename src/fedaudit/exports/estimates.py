"""Tables of all estimates of a record, as CSV and Parquet."""

import csv
import io

from fedaudit.core.importing import raise_if_missing
from fedaudit.results.record import Record

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of texts that spreadsheets interpret as formulas."""


def estimate_rows(record: Record) -> list[dict[str, object]]:
    """Return a row for each estimate, all with the same keys.

    ``over_runs`` is True for estimates over all runs of a study. Values that an estimate lacks,
    such as a p-value, are None.
    """
    rows: list[dict[str, object]] = [
        *({"over_runs": False, **row} for row in record.rows()),
        *({"over_runs": True, **row} for row in record.mean_rows()),
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def estimates_csv(record: Record) -> str:
    """Return all estimates as CSV; texts are escaped so that spreadsheets do not run formulas."""
    rows, text = estimate_rows(record), io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def estimates_parquet(record: Record) -> bytes:
    """Return all estimates as a Parquet file.

    Raises:
        BadInput: The package pyarrow is not installed.
    """
    raise_if_missing("pyarrow", needed_by="this export", extra="tables")
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(estimate_rows(record)), file)
    return file.getvalue()


def _safe(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
