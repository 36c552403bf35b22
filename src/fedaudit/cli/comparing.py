"""The command that puts records side by side."""

from collections.abc import Sequence
from pathlib import Path

from fedaudit.cli.application import app, log
from fedaudit.cli.naming import record_at
from fedaudit.core.errors import BadInput
from fedaudit.core.files import RECORD_FILE


@app.command
def compare(*records: Path, out: Path | None = None) -> None:
    """Put two or more records side by side: what a defense buys, for whom and at what cost.

    Parameters
    ----------
    records
        Records (record.json, or the folder it is in, or a live recording that was attacked), the
        base first; or one comparison.json (or its folder), which is made again from the records
        that it names.
    out
        The HTML file; the figures go beside it as JSON. By default comparison.html, beside a
        comparison that is made again and else in the current folder. Neither a record nor a
        comparison of other records is ever replaced.
    """
    from fedaudit.report.page import write_comparison
    from fedaudit.report.terminal import print_comparison
    from fedaudit.results.comparison import COMPARISON_FILE, write_comparison_file
    from fedaudit.results.read import read_record
    from fedaudit.study.comparing import compared, named_records, relative
    from fedaudit.study.running.outputs import refuse_missing_folder

    again = _comparison_in(records[0]) if len(records) == 1 else None
    if again is not None:
        paths = named_records(again)
    elif len(records) < 2:
        raise BadInput(
            f"a comparison needs at least two records or a {COMPARISON_FILE}, got {len(records)} "
            "record" + "s" * (not records)
        )
    else:
        paths = [record_at(record) for record in records]
    target = out or (again.with_suffix(".html") if again else Path("comparison.html"))
    found = [read_record(path) for path in paths]
    refuse_other_comparison(target, paths)
    refuse_missing_folder(target)
    comparison = compared(found, [relative(path, target.parent) for path in paths])
    write_comparison_file(comparison, target.with_suffix(".json"))
    write_comparison(comparison, found, target)
    print_comparison(comparison, found)
    log(f"\ncomparison: {target}")


def refuse_other_comparison(page: Path, records: Sequence[Path]) -> None:
    """Neither the page nor the figures beside it may replace what is of something else.

    Args:
        page: The HTML file.
        records: That will be compared.

    Raises:
        BadInput: Either is there and is of something else, or the name is none for a page.
    """
    from fedaudit.study.running.outputs import (
        refuse_foreign_page,
        refuse_other_comparison,
        refuse_page_alone,
    )

    if not page.name or page.suffix == ".json":
        raise BadInput(
            f"{page} is to be an HTML file, with the figures as JSON beside it; give --out a name "
            "such as comparison.html"
        )
    refuse_foreign_page(page, records)
    refuse_other_comparison(page.with_suffix(".json"), records)
    refuse_page_alone(page, page.with_suffix(".json"))


def _comparison_in(path: Path) -> Path | None:
    """The comparison that a path is, or is the folder of."""
    from fedaudit.results.comparison import COMPARISON_FILE

    if path.is_dir():
        return path / COMPARISON_FILE if (path / COMPARISON_FILE).is_file() else None
    return path if path.is_file() and path.name != RECORD_FILE else None
