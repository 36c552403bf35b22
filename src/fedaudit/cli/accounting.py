"""Command that computes epsilon over all rounds of a federation."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fedaudit.cli.application import (
    HAVE_RECORDS,
    PRIVACY_SETUP,
    STUDY,
    DataDir,
    app,
    expecting,
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
    """Compute epsilon over all rounds of a federation, and the rounds left until a target.

    Exit code 0: within the target, or no target; 1: above the target; 2: refused, for example
    because the steps of a round give no differential privacy.

    Parameters
    ----------
    setup
        A privacy set-up (TOML), a study file whose audited clients use client-dp or dp-sgd, or
        the record of such a study.
    target
        Largest epsilon that is accepted; that of the set-up by default.
    unit
        Unit that the target is about; by default what the first phase protects.
    delta
        Failure probability; that of the set-up by default, or 1e-5 for a study.
    every
        Number of rounds between two rows of the table.
    record
        A record whose measured lower bounds on epsilon are printed below the table.
    json
        Print the budget as JSON.
    """
    from fedaudit.privacy_budget.budget import EXIT_CODES
    from fedaudit.privacy_budget.budget import budget as computed

    with expecting(setup, PRIVACY_SETUP, STUDY, *HAVE_RECORDS):
        result = computed(
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
