"""Command that computes epsilon over all rounds of a federation."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fedaudit.cli.application import (
    KINDS_WITH_A_RECORD,
    PRIVACY_SETUP,
    STUDY,
    DataDir,
    app,
    explain_if_other_kind,
    log,
)


@app.command
def budget(
    setup: Path,
    /,
    *,
    target: float | None = None,
    unit: Literal["sample", "person", "client"] | None = None,
    delta: float | None = None,
    every: int | None = None,
    record: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    data_dir: DataDir = None,
) -> None:
    """Compute epsilon over all rounds of a federation, and the number of rounds within a target.

    Exit code 0: epsilon is within the target, or there is no target. 1: It is above the target. 2:
    An error, for example if local training in a round is not differentially private.

    Parameters
    ----------
    setup
        A privacy set-up (TOML), a study file whose audited clients use client-dp or dp-sgd, or the
        record of such a study.
    target
        Maximum epsilon; by default, the target of the set-up.
    unit
        Unit that the target protects; by default, the unit of the first phase. A phase is a number
        of rounds with the same settings.
    delta
        Failure probability; by default, that of the set-up, or 1e-5 for a study.
    every
        Number of rounds from one row of the table to the next.
    record
        A record with measured lower bounds on epsilon, which are printed below the table.
    json
        Print the budget as JSON.
    """
    from fedaudit.privacy_budget.budget import EXIT_CODES
    from fedaudit.privacy_budget.budget import budget as compute_budget

    with explain_if_other_kind(setup, PRIVACY_SETUP, STUDY, *KINDS_WITH_A_RECORD):
        result = compute_budget(
            setup,
            target=target,
            unit=unit,
            delta=delta,
            every=every,
            record=record,
            data_dir=data_dir,
        )
    if json:
        print(result.to_json())
    else:
        log(*str(result).split("\n"))
    sys.exit(EXIT_CODES[result.verdict])
