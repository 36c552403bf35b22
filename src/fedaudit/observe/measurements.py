"""Measurements, one number for every (round, client, sample), and measured rounds on disk."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import own_folder
from fedaudit.core.values import ClientId, Params
from fedaudit.observe.round import EVERYBODY
from fedaudit.observe.tensors import (
    carries_hash,
    groups_of,
    numbered,
    numbers_of,
    pairs,
    read_tensors,
    write_tensors,
)


@dataclass(frozen=True)
class MeasuredRound:
    """All signals of one round.

    Attributes:
        index: The round.
        clients: The clients measured, in the order of the columns.
        bases: For each client, a number that is the same for clients sent the same model.
        signals: Values by signal name.
        stands_for: For a client merged into a group, the client the group is named after.
    """

    index: int
    clients: tuple[ClientId, ...]
    bases: Int[Tensor, " clients"]
    signals: Mapping[str, Float[Tensor, "clients samples"]]
    stands_for: Mapping[ClientId, ClientId] = field(default_factory=dict)


def rounds_with(client: ClientId, measured: Iterable[MeasuredRound]) -> list[int]:
    """Return the rounds in which a client was measured, alone or in a sum."""
    return [one.index for one in measured if {client, EVERYBODY} & {*one.clients, *one.stands_for}]


@dataclass(frozen=True)
class Measurements:
    """One signal over a whole run. NaN where a client was not measured in a round.

    Attributes:
        values: Larger is likelier a member.
        rounds: Round indices, ascending.
        clients: Column order.
        bases: Which clients of a round were sent the same model; -1 where not measured.
        stands_for: Round by round, for a client merged into a group the client that the group
            is named after; empty where nobody was ever merged.
    """

    values: Float[Tensor, "rounds clients samples"]
    rounds: tuple[int, ...]
    clients: tuple[ClientId, ...]
    bases: Int[Tensor, "rounds clients"]
    stands_for: tuple[Mapping[ClientId, ClientId], ...] = ()

    def columns(self, target: ClientId) -> Int[Tensor, " rounds"]:
        """In each round the position of a client or of the group it was in; -1 for neither.

        Raises:
            BadInput: The client was never measured.
        """
        places = {client: column for column, client in enumerate(self.clients)}
        everybody = places.get(EVERYBODY, -1)
        groups = self.stands_for or ({},) * len(self.rounds)
        found = [places.get(group.get(target, target), everybody) for group in groups]
        if max(found, default=-1) < 0:
            raise BadInput(f"client {target} was never measured; measured: {list(self.clients)}")
        return torch.tensor(found, dtype=torch.int64)

    def of(self, target: ClientId) -> Float[Tensor, "rounds samples"]:
        """The target's values, or those of the group that it was in; NaN where in neither."""
        columns = self.columns(target)
        values = self.values[torch.arange(len(columns)), columns]
        return values.where(columns[:, None] >= 0, torch.nan)

    def on_samples(self, chosen: Tensor | slice) -> "Measurements":
        """Return the same of some of the samples: their positions, a mask or a slice."""
        return replace(self, values=self.values[:, :, chosen])

    def peers(self, target: ClientId) -> Iterator[Float[Tensor, "peers samples"]]:
        """Round by round, the values of the other clients that were sent the target's model.

        One round at a time: of a thousand peers, all rounds together are large.
        """
        for values, bases, own in zip(
            self.values, self.bases, self.columns(target).tolist(), strict=True
        ):
            comparable = (bases == bases[own]) & ~torch.isnan(values).any(1)
            comparable[own] = False
            # Where the target was neither there nor in a group, nobody is comparable.
            yield values[comparable if own >= 0 else torch.zeros_like(comparable)]


def stacked(
    rounds: Iterable[MeasuredRound], about: Collection[ClientId] = ()
) -> dict[str, Measurements]:
    """Measured rounds as one cube a signal; clients missing in a round become NaN there.

    Args:
        rounds: In any order.
        about: Rounds in which none of these clients was measured, nor a group of theirs, are
            left out if there are others. In a federation of thousands, of which few take part at
            a time, the cube of all rounds has a column for everybody who ever did.

    Raises:
        BadInput: There are no rounds.
    """
    measured: Sequence[MeasuredRound] = sorted(rounds, key=lambda r: r.index)
    if not measured:
        raise BadInput("nothing was measured: there is no round to attack; measure more often")
    if about:
        wanted = {EVERYBODY, *about}
        telling = [one for one in measured if wanted & {*one.clients, *one.stands_for}]
        measured = telling or measured
    clients = tuple(sorted({client for round in measured for client in round.clients}))
    groups = tuple(round.stands_for for round in measured)
    bases = torch.full((len(measured), len(clients)), -1, dtype=torch.int64)
    columns = [[clients.index(c) for c in round.clients] for round in measured]
    for row, (round, column) in enumerate(zip(measured, columns, strict=True)):
        bases[row, column] = round.bases
    return {
        name: Measurements(
            _cube([r.signals[name] for r in measured], columns, len(clients)),
            tuple(r.index for r in measured),
            clients,
            bases,
            groups if any(groups) else (),
        )
        for name in measured[0].signals
    }


def _cube(
    slices: Sequence[Float[Tensor, "_ samples"]], columns: Sequence[Sequence[int]], clients: int
) -> Float[Tensor, "rounds clients samples"]:
    cube = torch.full((len(slices), clients, slices[0].shape[1]), torch.nan, dtype=slices[0].dtype)
    for row, (values, column) in enumerate(zip(slices, columns, strict=True)):
        cube[row, list(column)] = values
    return cube


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

    Args:
        folder: The run's, such as ``runs/my-study/seed-1``; that of a live recording.

    Raises:
        BadInput: The folder holds no measured round.
        Damaged: A file is not one that fedaudit wrote, or rounds do not fit together.
    """
    if found := stored_in(folder):
        return found
    inner = sorted(path.parent for path in folder.glob("*/measured"))
    hint = f", such as {inner[0]}" if inner else ""
    what = "holds no measured round" if folder.is_dir() else "is no folder"
    raise BadInput(f"{folder} {what}; give the folder of a run or of a live recording{hint}")


def stored_in(folder: Path) -> list[Stored]:
    """All measured rounds of a run, ascending; none as long as none was measured.

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


def measured_names(folder: Path) -> set[str]:
    """Return names of the signals in a run's first measured round; none if there is no round.

    Raises:
        Damaged: The file is not one that fedaudit wrote.
    """
    first = next(iter(numbered(folder / "measured", ".safetensors")), None)
    return set(_measured(first[1], first[0]).measured.signals) if first else set()


def tell_of_unhashed(folder: Path, log: Callable[[str], None]) -> None:
    """Says how many measured rounds of a run carry no hash; older versions wrote none.

    Whether one of these was altered cannot be told from its file.
    """
    files = [path for _, path in numbered(folder / "measured", ".safetensors")]
    count = sum(not carries_hash(path) for path in files)
    if count:
        log(
            f"{count} of {len(files)} measured rounds in {folder} carry no hash, as those of older "
            "versions: that they were not altered cannot be told"
        )


def fault_in(measured: MeasuredRound, clients: Collection[ClientId], samples: int) -> str:
    """Reason why a measured round cannot be of a run with these clients and so many samples.

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
    """True if a signal has a row for each client, of numbers that can be."""
    return (
        values.ndim == 2
        and len(values) == clients
        and values.dtype in (torch.float32, torch.float64)
        and bool((values.abs() <= _MOST).all())
    )
