"""Measured rounds on disk: one safetensors file each, written whole or not at all."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedaudit.core import ClientId, Params
from fedaudit.errors import Damaged
from fedaudit.files import own_folder
from fedaudit.observe.layout import groups_of, numbered, numbers_of, pairs
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import EVERYBODY
from fedaudit.observe.tensors import carries_hash, read_tensors, write_tensors

_AGAIN = "restore it from a copy, or delete its run's folder and run the study again"
_MOST = 1e100
"""Beyond any signal, be it of a run that diverged; squares of larger ones are not finite."""


class Stored(NamedTuple):
    """A measured round as it was stored, with its notes."""

    measured: MeasuredRound
    notes: dict[str, str]


def write_measured(folder: Path, measured: MeasuredRound, notes: Mapping[str, str]) -> None:
    """Adds one measured round to a run's folder."""
    place = own_folder(folder, "measured")
    tensors: Params = {f"signal/{name}": values for name, values in measured.signals.items()}
    tensors["clients"] = torch.tensor(measured.clients, dtype=torch.int64)
    tensors["bases"] = measured.bases
    tensors["stands_for"] = pairs(measured.stands_for)
    path = place / f"round-{measured.index:06d}.safetensors"
    write_tensors(tensors, path, notes)


def read_measured(folder: Path) -> list[Stored]:
    """All measured rounds of a run, ascending.

    Raises:
        Damaged: A file is not one that fedaudit wrote, or rounds do not fit together.
    """
    found = [
        _measured(path, index) for index, path in numbered(folder / "measured", ".safetensors")
    ]
    shapes = {
        (tuple(sorted(s.measured.signals)), next(iter(s.measured.signals.values())).shape[1])
        for s in found
    }
    if len(shapes) > 1:
        raise Damaged(
            f"the measured rounds in {folder} have different signals or samples; they are of "
            "different runs: restore the folder or delete it"
        )
    return found


def tell_of_unhashed(folder: Path, say: Callable[[str], None]) -> None:
    """Says how many measured rounds of a run carry no hash; older versions wrote none.

    Whether one of these was altered cannot be told from its file.
    """
    files = [path for _, path in numbered(folder / "measured", ".safetensors")]
    count = sum(not carries_hash(path) for path in files)
    if count:
        say(
            f"{count} of {len(files)} measured rounds in {folder} carry no hash, as those of older "
            "versions: that they were not altered cannot be told"
        )


def fault_in(measured: MeasuredRound, clients: Collection[ClientId], samples: int) -> str:
    """Why a measured round cannot be of a run with these clients and so many samples.

    Args:
        measured: As it was read.
        clients: All of the run.
        samples: That are measured.

    Returns:
        Empty if it can be.
    """
    if not {*measured.clients, *measured.stands_for} <= {*clients, EVERYBODY}:
        return "it has clients that the run has not"
    sizes = {values.shape[1] for values in measured.signals.values()}
    return "" if sizes == {samples} else f"it has {max(sizes)} samples instead of {samples}"


def _measured(path: Path, index: int) -> Stored:
    tensors, notes = read_tensors(path)
    try:
        clients = numbers_of(tensors.pop("clients"))
        bases = tensors.pop("bases")
        stands_for = groups_of(tensors.pop("stands_for"), clients)
        signals = {name.removeprefix("signal/"): value for name, value in tensors.items()}
        if not (signals and all(_fits(value, len(clients)) for value in signals.values())):
            raise ValueError("it has signals of odd shapes or values")
        if bases.dtype != torch.int64 or bases.shape != (len(clients),):
            raise ValueError("it has not one base for each client")
        if not bool(((bases >= 0) & (bases < len(clients))).all()):
            raise ValueError("it has bases that no client can have")
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} is not a measured round ({error}); {_AGAIN}") from error
    return Stored(MeasuredRound(index, clients, bases, signals, stands_for), notes)


def _fits(values: Tensor, clients: int) -> bool:
    """Whether a signal has a row for each client, of numbers that can be."""
    return (
        values.ndim == 2
        and len(values) == clients
        and values.dtype in (torch.float32, torch.float64)
        and bool((values.abs() <= _MOST).all())
    )
