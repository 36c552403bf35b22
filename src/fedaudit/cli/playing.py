"""The command that plays games."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedaudit.cli.application import DataDir, Folder, app, log
from fedaudit.cli.overrides import settings_from
from fedaudit.core.errors import BadInput
from fedaudit.core.files import RECORD_FILE, REPORT_FILE
from fedaudit.core.importing import code_named_in


@app.command
def games(
    study: Annotated[Path, Parameter(help="A study of games, a TOML file.")],
    /,
    *overrides: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="Settings to change, by dotted name: --game.games=1000",
        ),
    ],
    out: Folder | None = None,
    data_dir: DataDir = None,
) -> None:
    """Play security games: does a server that plants a neuron tell who was in a batch?

    All variants and points of the study's grid are played, and make one record. Points that were
    played before are not played again.
    """
    from fedaudit.games.settings import GameStudy, kind_of
    from fedaudit.study.settings.toml import read_toml

    if kind_of(read_toml(study, "the study")) not in (GameStudy, None):
        raise BadInput(
            f"{study} is a study of a federation that is trained, not of games; carry it out with "
            f"`fedaudit run {study}`"
        )
    play(study, overrides, out, data_dir)


def play(study: Path, overrides: Sequence[str], out: Path | None, data_dir: Path | None) -> None:
    """Plays a file that is known to be of games; arguments as those of :func:`games`."""
    from fedaudit.core.progress import bars
    from fedaudit.games.run import read_points, run_games
    from fedaudit.report.page import write_report
    from fedaudit.report.terminal import print_record
    from fedaudit.study.running.outputs import refuse_page_alone

    points = read_points(study, settings_from(overrides, command="games"))
    folder = out or Path("runs") / points[0].study.name
    # Before anything is played, as it would be the last thing to be refused.
    refuse_page_alone(folder / REPORT_FILE, folder / RECORD_FILE)
    # A study is a program, and whoever plays it runs it.
    with code_named_in(study, trusted=True, folder=study.parent), bars() as progress:
        record = run_games(points, folder, data_dir=data_dir, progress=progress, log=log)
    write_report(record, folder / REPORT_FILE)
    print_record(record)
    log(f"\nrecord: {folder / RECORD_FILE}\nreport: {folder / REPORT_FILE}")
