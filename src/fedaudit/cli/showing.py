"""Commands that show what is there: report, compare, list, explain."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fedaudit.cli.application import app, log
from fedaudit.cli.kinds import COMPARISON, HAVE_RECORDS, meant_as
from fedaudit.core.errors import LISTED, BadInput
from fedaudit.core.files import RECORD_FILE, REPORT_FILE, record_at

if TYPE_CHECKING:
    from fedaudit.results.record import Record


def record_in(path: Path) -> "Record":
    """The record in a file; a file of another kind is refused with what it is."""
    from fedaudit.results.read import read_record

    with meant_as(path, *HAVE_RECORDS):
        return read_record(path)


@app.command
def report(record: Path, /, *, out: Path | None = None) -> None:
    """Write the HTML report of a record.

    Parameters
    ----------
    record
        A record.json, or the folder it is in, or a live recording that was attacked.
    out
        The HTML file; by default report.html beside the record. Only HTML is ever replaced.
    """
    from fedaudit.report.page import write_report
    from fedaudit.study.running.outputs import refuse_foreign_page, refuse_missing_folder

    path = record_at(record)
    target = out or path.with_name(REPORT_FILE)
    whole = record_in(path)
    refuse_missing_folder(target)
    refuse_foreign_page(target, [path])
    write_report(whole, target)
    log(f"report: {target}")


_CATALOGUES = ", ".join(LISTED.values())


@app.command(name="list", help=f"List what fedaudit knows by name: {_CATALOGUES}.")
def list_command(
    kind: Annotated[str, Parameter(help=f"One catalogue only: {_CATALOGUES}.")] = "", /
) -> None:
    """Prints one catalogue, or all of them."""
    from rich.console import Console

    from fedaudit.catalogue import listing

    Console().print(listing(kind))


@app.command
def explain(
    name: Annotated[
        str, Parameter(help="Of anything that `fedaudit list` shows, such as fedmia-2.")
    ],
    /,
) -> None:
    """Explain one attack, defense, model or other part: what it does, its settings and source."""
    from fedaudit.catalogue import explanation

    log(*explanation(name).split("\n"))


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
    from fedaudit.study.comparing import compared, named_records, relative
    from fedaudit.study.running.outputs import refuse_missing_folder

    again = _comparison_in(records[0]) if len(records) == 1 else None
    if again is not None:
        with meant_as(again, COMPARISON):
            paths = named_records(again)
    elif len(records) < 2:
        raise BadInput(
            f"a comparison needs at least two records or a {COMPARISON_FILE}, got {len(records)} "
            "record" + "s" * (not records)
        )
    else:
        paths = [record_at(record) for record in records]
    target = out or (again.with_suffix(".html") if again else Path("comparison.html"))
    found = [record_in(path) for path in paths]
    refuse_other_comparison(target, paths)
    refuse_missing_folder(target)
    comparison = compared(found, [relative(path, target.parent) for path in paths])
    write_comparison_file(comparison, target.with_suffix(".json"))
    write_comparison(comparison, found, target)
    print_comparison(comparison, found)
    log("", f"comparison: {target}")


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
