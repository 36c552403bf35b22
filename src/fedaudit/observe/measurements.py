"""Signals by round, client and sample, in memory and on disk.

A signal is a number that is computed for a client and a sample in a round, such as the loss of the
sample under the client's model.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.display import repr_html
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.files import create_subfolder
from fedaudit.core.values import ClientId, Params, short_repr
from fedaudit.observe.round import ALL_CLIENTS
from fedaudit.observe.tensors import (
    client_ids_in,
    group_pairs,
    groups_of,
    has_hash,
    read_tensors,
    round_paths,
    write_tensors,
)


@short_repr
@dataclass(frozen=True)
class MeasuredRound:
    """All signals of one round.

    Attributes:
        index: Number of the round.
        clients: The measured clients, in the order of the rows of a signal.
        bases: For each client, a number that identifies the model that it received.
        signals: Values by signal name.
        group_of: For each client that is merged into a group, the client whose number the group
            has.
    """

    index: int
    clients: tuple[ClientId, ...]
    bases: Int[Tensor, " clients"]
    signals: Mapping[str, Float[Tensor, "clients samples"]]
    group_of: Mapping[ClientId, ClientId] = field(default_factory=dict)

    _repr_html_ = repr_html


def rounds_with(client: ClientId, measured: Iterable[MeasuredRound]) -> list[int]:
    """Return the rounds in which a client was measured, by itself or as part of a group."""
    return [
        round.index
        for round in measured
        if {client, ALL_CLIENTS} & {*round.clients, *round.group_of}
    ]


@dataclass(frozen=True)
class Measurements:
    """One signal over a whole run.

    Attributes:
        values: Values of the signal; a larger value suggests a member. NaN if a client was not
            measured in a round.
        rounds: Round numbers in ascending order.
        clients: The clients, in the order of the second axis.
        bases: For each client and round, a number that identifies the model that the client
            received; -1 if the client was not measured.
        group_of: For each round, and for each client that is merged into a group, the client
            whose number the group has; empty if no client was merged in any round.
    """

    values: Float[Tensor, "rounds clients samples"]
    rounds: tuple[int, ...]
    clients: tuple[ClientId, ...]
    bases: Int[Tensor, "rounds clients"]
    group_of: tuple[Mapping[ClientId, ClientId], ...] = ()

    def columns(self, target: ClientId) -> Int[Tensor, " rounds"]:
        """Return the column of a client or of its group in each round; -1 if not measured.

        Raises:
            BadInput: The client was never measured.
        """
        column_of = {client: column for column, client in enumerate(self.clients)}
        default = column_of.get(ALL_CLIENTS, -1)
        groups = self.group_of or ({},) * len(self.rounds)
        columns = [column_of.get(group.get(target, target), default) for group in groups]
        if max(columns, default=-1) < 0:
            raise BadInput(f"client {target} was never measured; measured: {list(self.clients)}")
        return torch.tensor(columns, dtype=torch.int64)

    def of(self, target: ClientId) -> Float[Tensor, "rounds samples"]:
        """Return the values of a client or of its group; NaN in rounds without a measurement."""
        columns = self.columns(target)
        values = self.values[torch.arange(len(columns)), columns]
        return values.where(columns[:, None] >= 0, torch.nan)

    def on_samples(self, selection: Tensor | slice) -> "Measurements":
        """Return the measurements of some samples, chosen by positions, a mask or a slice."""
        return replace(self, values=self.values[:, :, selection])

    def peers(self, target: ClientId) -> Iterator[Float[Tensor, "peers samples"]]:
        """Yield, for each round, the values of other clients that received the target's model.

        Rounds are yielded one at a time to save memory.
        """
        for values, bases, column in zip(
            self.values, self.bases, self.columns(target).tolist(), strict=True
        ):
            is_peer = (bases == bases[column]) & ~torch.isnan(values).any(1)
            is_peer[column] = False
            # A target that was not measured in this round has no peers.
            yield values[is_peer if column >= 0 else torch.zeros_like(is_peer)]


def stacked(
    rounds: Iterable[MeasuredRound], about: Collection[ClientId] = ()
) -> dict[str, Measurements]:
    """Stack measured rounds into one array per signal, with NaN for clients missing in a round.

    Args:
        rounds: Measured rounds, in any order.
        about: Clients of interest; empty for all. Rounds in which neither these clients nor their
            groups were measured are left out, unless no round would remain. With thousands of
            clients and few participants per round, this makes the arrays much smaller.

    Raises:
        BadInput: There are no rounds.
    """
    measured: Sequence[MeasuredRound] = sorted(rounds, key=lambda r: r.index)
    if not measured:
        raise BadInput("no round was measured, so there is nothing to attack; measure more rounds")
    if about:
        relevant = {ALL_CLIENTS, *about}
        measured = [
            round for round in measured if relevant & {*round.clients, *round.group_of}
        ] or measured
    clients = tuple(sorted({client for round in measured for client in round.clients}))
    groups = tuple(round.group_of for round in measured)
    bases = torch.full((len(measured), len(clients)), -1, dtype=torch.int64)
    columns = [[clients.index(c) for c in round.clients] for round in measured]
    for row, (round, columns_of_round) in enumerate(zip(measured, columns, strict=True)):
        bases[row, columns_of_round] = round.bases
    return {
        name: Measurements(
            _stack([round.signals[name] for round in measured], columns, len(clients)),
            tuple(round.index for round in measured),
            clients,
            bases,
            groups if any(groups) else (),
        )
        for name in measured[0].signals
    }


def _stack(
    signals: Sequence[Float[Tensor, "_ samples"]], columns: Sequence[Sequence[int]], clients: int
) -> Float[Tensor, "rounds clients samples"]:
    shape = (len(signals), clients, signals[0].shape[1])
    stack = torch.full(shape, torch.nan, dtype=signals[0].dtype)
    for row, (values, columns_of_round) in enumerate(zip(signals, columns, strict=True)):
        stack[row, list(columns_of_round)] = values
    return stack


_RESTORE = "restore it from a copy, or delete its run's folder and run the study again"
_MAX_SIGNAL = 1e100
"""Largest valid absolute value of a signal: above those of diverged runs, and with a finite square.
"""


class StoredRound(NamedTuple):
    """A measured round that was read from a file, with the notes of the file."""

    measured: MeasuredRound
    notes: dict[str, str]


def measuring_device(stored: Sequence[StoredRound]) -> str:
    """Return the type of device ("cpu" or "cuda") on which the rounds were measured."""
    return stored[0].notes.get("device", "cpu")


def write_measured(folder: Path, measured: MeasuredRound, notes: Mapping[str, str]) -> None:
    """Write one measured round to a run's folder."""
    measured_folder = create_subfolder(folder, "measured")
    tensors: Params = {f"signal/{name}": values for name, values in measured.signals.items()}
    tensors["clients"] = torch.tensor(measured.clients, dtype=torch.int64)
    tensors["bases"] = measured.bases
    tensors["stands_for"] = group_pairs(measured.group_of)
    write_tensors(tensors, measured_folder / _file_name(measured.index), notes)


def read_measured(folder: Path) -> list[StoredRound]:
    """Read all measured rounds of a run, ascending.

    Args:
        folder: Folder of a run, such as ``runs/my-study/seed-1``, or of a live recording.

    Raises:
        BadInput: The folder contains no measured round.
        Damaged: A file was not written by fedaudit, or rounds have different signals or samples.
    """
    if stored := measured_rounds_in(folder):
        return stored
    subfolders = sorted(path.parent for path in folder.glob("*/measured"))
    hint = f", such as {subfolders[0]}" if subfolders else ""
    problem = "contains no measured round" if folder.is_dir() else "is not a folder"
    raise BadInput(f"{folder} {problem}; give the folder of a run or of a live recording{hint}")


def measured_rounds_in(folder: Path) -> list[StoredRound]:
    """Read all measured rounds of a run, ascending; return an empty list if no round was measured.

    Raises:
        Damaged: A file was not written by fedaudit, or rounds have different signals or samples.
    """
    rounds = [
        read_round(path, index) for index, path in round_paths(folder / "measured", ".safetensors")
    ]
    shapes = {
        (tuple(sorted(s.measured.signals)), next(iter(s.measured.signals.values())).shape[1])
        for s in rounds
    }
    if len(shapes) > 1:
        raise Damaged(
            f"the measured rounds in {folder} have different signals or samples, so they come from "
            "different runs; restore the folder from a copy, or delete it and run the study again"
        )
    return rounds


def signal_names(folder: Path) -> set[str]:
    """Return the names of the signals in a run's first measured round, or an empty set.

    Raises:
        Damaged: The file was not written by fedaudit.
    """
    first = next(iter(round_paths(folder / "measured", ".safetensors")), None)
    return set(read_round(first[1], first[0]).measured.signals) if first else set()


def warn_of_unhashed(folder: Path, log: Callable[[str], None]) -> None:
    """Log how many measured rounds of a run have no hash, as older versions wrote them."""
    files = [path for _, path in round_paths(folder / "measured", ".safetensors")]
    count = sum(not has_hash(path) for path in files)
    if count:
        log(
            f"{count} of {len(files)} measured rounds in {folder} have no hash, because an older "
            "version wrote them: changes to these files cannot be detected"
        )


def reason_invalid(measured: MeasuredRound, clients: Collection[ClientId], samples: int) -> str:
    """Return the reason why a measured round cannot belong to a run; "" if it can."""
    if not {*measured.clients, *measured.group_of} <= {*clients, ALL_CLIENTS}:
        return "it has clients that the run does not have"
    sizes = {values.shape[1] for values in measured.signals.values()}
    return "" if sizes == {samples} else f"it has {max(sizes)} samples instead of {samples}"


def measured_round_in(folder: Path, index: int) -> MeasuredRound:
    """Read one measured round of a run.

    Raises:
        Damaged: The file was not written by fedaudit.
    """
    return read_round(folder / "measured" / _file_name(index), index).measured


def _file_name(index: int) -> str:
    return f"round-{index:06d}.safetensors"


def read_round(path: Path, index: int) -> StoredRound:
    """Read one measured round of a run.

    Args:
        path: File of the round.
        index: Number of the round.

    Raises:
        BadInput: The file does not exist.
        Damaged: The file was not written by fedaudit.
    """
    tensors, notes = read_tensors(path)
    try:
        clients = client_ids_in(tensors.pop("clients"))
        bases = tensors.pop("bases")
        group_of = groups_of(tensors.pop("stands_for"), clients)
        signals = {name.removeprefix("signal/"): value for name, value in tensors.items()}
        if not (
            signals and all(_is_valid_signal(value, len(clients)) for value in signals.values())
        ):
            raise ValueError("a signal has an invalid shape or value")
        if bases.dtype != torch.int64 or bases.shape != (len(clients),):
            raise ValueError("it does not have one number of a received model for each client")
        if not bool(((bases >= 0) & (bases < len(clients))).all()):
            raise ValueError("the number of a received model is out of range")
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} is not a valid measured round ({error}); {_RESTORE}") from error
    return StoredRound(MeasuredRound(index, clients, bases, signals, group_of), notes)


def _is_valid_signal(values: Tensor, clients: int) -> bool:
    return (
        values.ndim == 2
        and len(values) == clients
        and values.dtype in (torch.float32, torch.float64)
        # As a 32-bit number, the maximum is infinite.
        and bool((values.double().abs() <= _MAX_SIGNAL).all())
    )
