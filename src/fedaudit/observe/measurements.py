"""What was measured: one number for every (round, client, sample)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core import ClientId
from fedaudit.errors import BadInput
from fedaudit.observe.round import EVERYBODY


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

    def peers(self, target: ClientId) -> Float[Tensor, "rounds peers samples"]:
        """The other clients' values; NaN where one was sent another model than the target."""
        columns = self.columns(target)
        rows = torch.arange(len(columns))
        comparable = (self.bases == self.bases[rows, columns][:, None]) & (columns[:, None] >= 0)
        values = self.values.where(comparable[:, :, None], torch.nan)
        count = len(self.clients)
        # Where the target was in no group, nothing is comparable: any column may stay out.
        others = [[i for i in range(count) if i != own % count] for own in columns.tolist()]
        return values[rows[:, None], torch.tensor(others, dtype=torch.int64)]


def stacked(rounds: Iterable[MeasuredRound]) -> dict[str, Measurements]:
    """Measured rounds as one cube a signal; clients missing in a round become NaN there.

    Raises:
        BadInput: There are no rounds.
    """
    measured: Sequence[MeasuredRound] = sorted(rounds, key=lambda r: r.index)
    if not measured:
        raise BadInput("nothing was measured: there is no round to attack; measure more often")
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
