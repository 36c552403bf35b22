"""Commands that show what is there: report, list, explain."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedaudit.cli.application import app, log
from fedaudit.cli.naming import record_at
from fedaudit.core.errors import LISTED
from fedaudit.core.files import REPORT_FILE


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
    from fedaudit.results.read import read_record
    from fedaudit.study.running.outputs import refuse_foreign_page, refuse_missing_folder

    path = record_at(record)
    target = out or path.with_name(REPORT_FILE)
    whole = read_record(path)
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

    log(explanation(name))
