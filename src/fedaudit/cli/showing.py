"""Commands that show what is there: report, list, explain."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedaudit.cli.application import app, log
from fedaudit.cli.naming import record_at
from fedaudit.core.files import REPORT_FILE


@app.command
def report(record: Path, /, *, out: Path | None = None) -> None:
    """Write the HTML report of a record, or of a record of games.

    Parameters
    ----------
    record
        A record.json or a games.json, or the folder it is in, or a live recording that was
        attacked.
    out
        The HTML file; by default report.html beside the record. Only HTML is ever replaced.
    """
    from fedaudit.report.page import write_games_report, write_report
    from fedaudit.results.games import GameRecord
    from fedaudit.results.older import completed
    from fedaudit.results.read import read_any_record
    from fedaudit.study.running.outputs import refuse_foreign_page, refuse_missing_folder

    path = record_at(record)
    target = out or path.with_name(REPORT_FILE)
    found = read_any_record(path)
    whole = found if isinstance(found, GameRecord) else completed(found)
    refuse_missing_folder(target)
    refuse_foreign_page(target, [path])
    if isinstance(whole, GameRecord):
        write_games_report(whole, target)
    else:
        write_report(whole, target)
    log(f"report: {target}")


@app.command(name="list")
def list_command(
    kind: Annotated[str, Parameter(help="One catalogue only, such as attacks.")] = "", /
) -> None:
    """List what fedaudit knows: attacks, defenses, data sets, models, views, partitions."""
    from rich.console import Console

    from fedaudit.catalogue import listing

    Console().print(listing(kind))


@app.command
def explain(name: str, /) -> None:
    """Explain an attack, defense, view, model or other entry: what it does and its source."""
    from fedaudit.catalogue import explanation

    log(explanation(name))
