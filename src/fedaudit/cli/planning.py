"""Commands before a study: plan."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedaudit.cli.application import (
    STUDY,
    DataDir,
    DeviceName,
    Folder,
    Pool,
    WorkerCount,
    app,
    explain_wrong_kind,
    log,
)
from fedaudit.cli.running import settings_from
from fedaudit.core.importing import code_named_in
from fedaudit.core.progress import importing


@app.command
def plan(
    study: Path,
    /,
    *overrides: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="Settings to change, by dotted name: --training.rounds=10",
        ),
    ],
    out: Folder | None = None,
    pool: Pool = None,
    data_dir: DataDir = None,
    workers: WorkerCount = 0,
    device: DeviceName = "cpu",
) -> None:
    """Print samples, rounds, time and disk space of a study, and the smallest leak it can detect.

    The time is estimated from the first rounds, which are trained in a temporary folder. Nothing
    is written elsewhere. With the --out and --pool of the run, runs that are already trained cost
    no time.

    Parameters
    ----------
    study
        A study (TOML); its variants are not planned.
    """
    with importing():
        from fedaudit.core.devices import device_named
        from fedaudit.study.front.target_names import read_study
        from fedaudit.study.running.planning import plan_study

    # A study that will be run names code that the user trusts.
    with code_named_in(study, trusted=True, folder=study.parent), explain_wrong_kind(study, STUDY):
        settings = read_study(study, settings_from(overrides), data_dir=data_dir)
        planned = plan_study(
            settings,
            out or Path("runs") / settings.name,
            pool=Path("runs") / "pool" if out is None and pool is None else pool,
            data_dir=data_dir,
            workers=workers or os.cpu_count() or 1,
            device=device_named(device),
        )
    log(*str(planned).split("\n"))
