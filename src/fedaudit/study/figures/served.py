"""Utility for clients of the models that they chose, where there are several."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.modules import outputs_of
from fedaudit.core.values import ClientId, Samples
from fedaudit.observe.round import Round


def model_of_each(round: Round, clients: Sequence[ClientId]) -> dict[ClientId, str]:
    """Name of every client's model; the first for one that was never asked.

    Args:
        round: With several models after it.
        clients: All of the federation.
    """
    first = next(iter(round.after))
    return {client: round.chosen.get(client, first) for client in clients}


def outputs_served(
    round: Round,
    samples: Samples,
    place: Int[ndarray, " all"],
    device: torch.device = CPU,
) -> Float[Tensor, "samples outputs"]:
    """Outputs for each sample of the model that the client uses whose data it is like.

    Args:
        round: With several models after it.
        samples: To try them on.
        place: For every sample of the data set, by id, a client.
        device: Where models are run.
    """
    theirs = torch.from_numpy(place)[samples.ids]
    used = model_of_each(round, sorted(set(theirs.tolist())))
    found: Tensor | None = None
    for name, model in round.after.items():
        clients = [client for client, chosen in used.items() if chosen == name]
        mine = torch.isin(theirs, torch.tensor(clients, dtype=torch.int64))
        if bool(mine.any()):
            outputs = outputs_of(model, samples.features[mine], device)
            if found is None:
                found = outputs.new_empty((len(samples), *outputs.shape[1:]))
            found[mine] = outputs
    return torch.empty(0, 1) if found is None else found
