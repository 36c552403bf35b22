"""Commands before a study: plan and check-part."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fedaudit.cli.application import (
    STUDY,
    DataDir,
    DeviceName,
    Folder,
    Pool,
    WorkerCount,
    app,
    explain_if_other_kind,
    log,
)
from fedaudit.cli.running import settings_from, value_of
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import code_named_in
from fedaudit.core.progress import without_garbage_collection

if TYPE_CHECKING:
    from fedaudit.core.values import Setting


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
    with without_garbage_collection():
        from fedaudit.api.target_names import read_study
        from fedaudit.core.devices import device_named
        from fedaudit.study.running.planning import plan_study

    # A study that will be run names code that the user trusts.
    with (
        code_named_in(study, trusted=True, folder=study.parent),
        explain_if_other_kind(study, STUDY),
    ):
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


@app.command(name="check-part")
def check_part(
    part: str,
    /,
    *settings: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True, help="Settings of the part: --sigma=0.3 --clients='[0, 1]'"
        ),
    ],
    kind: Annotated[
        Literal["attack", "defense", "algorithm", "partition"] | None, Parameter(show_choices=True)
    ] = None,
) -> None:
    """Check that an attack, defense, algorithm or partition of yours fulfils its contracts.

    The module is imported, and the part is run on small random data: name only code that you
    trust. For each contract, the command prints whether it holds, and otherwise what to mend.
    Exit code 0: all contracts hold, 1: at least one does not; 2: an error, such as a part that
    cannot be imported.

    Parameters
    ----------
    part
        module:object, in this folder or on Python's path, or a name of the catalogue.
    kind
        Kind of the part; inferred by default.
    """
    with without_garbage_collection():
        from fedaudit.api import contracts

    # By naming the part, the user trusts its module.
    with code_named_in(part, trusted=True, folder=Path.cwd()):
        results = contracts.check_part(part, _part_settings(settings), kind=kind or "")
    for result in results:
        log(f"{'broken' if result.fault else 'kept':<8}{result.name}")
        if result.fault:
            log(f"        {result.fault}")
    n_broken = sum(bool(result.fault) for result in results)
    log("", f"{part}: {len(results) - n_broken} of {len(results)} contracts are kept")
    sys.exit(1 if n_broken else 0)


def _part_settings(arguments: tuple[str, ...]) -> "dict[str, Setting]":
    """Parse settings such as ``--sigma=0.3`` to values by name."""
    settings: dict[str, Setting] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not (name.startswith("--") and equals):
            raise BadInput(f"{argument!r} is not a setting; write it as --name=value")
        settings[name[2:].replace("-", "_")] = value_of(name, text)  # type: ignore[assignment]
    return settings
