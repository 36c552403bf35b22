"""Conversion of a recording to a table of signals, which a site can send without its samples."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy import ndarray

from fedaudit.core.errors import BadInput, format_option
from fedaudit.core.values import NO_CLIENT
from fedaudit.live.clients import plain_name
from fedaudit.live.decisions import reason_nothing_was_sent
from fedaudit.live.files import read_audit
from fedaudit.live.recording import is_recording, read_recording
from fedaudit.live.tables.signals import SIGNAL_COLUMNS
from fedaudit.observe.measurements import MeasuredRound, read_measured


def signal_table(recording: Path | str, *, client: str = "") -> dict[str, ndarray]:
    """Return the signals of a recording, or of a guard's folder, as a table without samples.

    :func:`from_signals` records the tables of several sites together. The table states for each
    audited sample whether the client trains on it, but has neither features nor labels. The name
    of a sample is the client's name and a number.

    Args:
        recording: Folder of a recording of the view "uploads", or of a guard.
        client: Name of the client in the table, for a recording of a single client; by default
            its name in the recording. Clients of different tables need different names.

    Raises:
        BadInput: The folder has no recording of uploads, no measured round, or no signal that a
            table can have; or ``client`` is invalid or names one of several clients.
        Damaged: A file is missing or cannot be read.

    Examples:
        >>> import fedaudit as fa
        >>> import torch
        >>> data = {0: (torch.randn(800, 2), torch.arange(800) % 2)}
        >>> split = fa.fair_split(data, audited=600)
        >>> net = torch.nn.Linear(2, 2)
        >>> quiet = lambda line: None
        >>> with fa.Guard("runs/site-a", net, split.audit, limit=0.65, log=quiet) as guard:
        ...     _ = guard.check(1, sent=net, upload=net)
        >>> sorted(fa.signal_table("runs/site-a", client="site-a"))
        ['client', 'cosine', 'drawn_for', 'loss', 'owner', 'projection_residual', 'round', 'sample']
    """
    folder = Path(recording)
    if not is_recording(folder):
        raise BadInput(f"{folder} is not a recording; give the folder of a guard or recorder")
    settings = read_recording(folder)
    if settings.view != "uploads" or settings.table:
        kind = f"of the view {settings.view!r}" if settings.view != "uploads" else "of a table"
        raise BadInput(
            f"{folder} is a recording {kind}; give a recording of clients' uploads, such as a "
            "guard's folder"
        )
    if reason := reason_nothing_was_sent(folder):
        raise BadInput(f"{folder}: {reason}")
    rounds = [stored.measured for stored in read_measured(folder)]
    audit = read_audit(folder)
    numbers = sorted({*audit.owner[audit.owner != NO_CLIENT].tolist(), *_clients(rounds)})
    names = {number: settings.names.get(number, str(number)) for number in numbers}
    if client:
        if len(numbers) > 1:
            raise BadInput(
                f"{folder} has {len(numbers)} clients, and {format_option('client')} names one; "
                "omit this option"
            )
        names = {numbers[0]: _valid_name(client)}
    columns = [
        name for name, column in SIGNAL_COLUMNS.items() if column.signal in rounds[0].signals
    ]
    if not columns:
        raise BadInput(
            f"{folder} has the signals {', '.join(rounds[0].signals)}, and a table has none of "
            f"them; measure attacks on {', '.join(SIGNAL_COLUMNS)}"
        )
    prefix = names[numbers[0]] if len(numbers) == 1 else settings.name
    sample = np.array([f"{prefix}-{number}" for number in range(len(audit))], dtype=object)
    per_sample = {"sample": sample, "owner": _names_of(names, audit.owner)}
    if (audit.fair_target != NO_CLIENT).all():
        per_sample["drawn_for"] = _names_of(names, audit.fair_target)
    parts = [
        {
            "round": np.full(len(audit), round.index),
            "client": np.full(len(audit), names[number], dtype=object),
            **per_sample,
            **{name: _column(name, round, row) for name in columns},
        }
        for round in rounds
        for row, number in enumerate(round.clients)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _clients(rounds: list[MeasuredRound]) -> set[int]:
    return {client for round in rounds for client in round.clients}


def _valid_name(client: str) -> str:
    name = plain_name(client)
    if not name or len(name) > 200:
        raise BadInput(
            f"{format_option('client')} is {client[:80]!r}; give a name of 1 to 200 letters"
        )
    return name


def _names_of(names: Mapping[int, str], numbers: ndarray) -> ndarray:
    """Return the name of each client number; empty for held-out samples."""
    return np.array([names.get(number, "") for number in numbers.tolist()], dtype=object)


def _column(name: str, round: MeasuredRound, row: int) -> ndarray:
    column = SIGNAL_COLUMNS[name]
    return column.restore(round.signals[column.signal][row].double().numpy())


def csv_of(table: Mapping[str, ndarray]) -> str:
    """Return a table as CSV; numbers are written with all digits."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
    return text.getvalue()
