"""What a server sees behind a shuffler that mixes the parameters of the clients' uploads."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedaudit.core.errors import NotVisible
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Model, Params, add_scaled
from fedaudit.observe.models import group_models
from fedaudit.observe.round import ObservedModels, Round


def shuffled_rounds(rounds: Iterable[Round]) -> Iterator[Round]:
    """Permute the values of each entry of the updates among the clients of a round.

    An entry is one number of a parameter or buffer. Clients that received different models are not
    mixed. The sum of the updates is unchanged, so an adversary can still attack the sum: see the
    view "sum".

    Raises:
        NotVisible: Clients send no updates.

    Source: Athanasiou et al. 2026 (arXiv 2603.02017): shuffling at the level of parameters, from
        the abstract only.
    Differs: The residue number system is left out. It also hides which values belong to one entry,
        so that the server sees only the sum, as in the view "sum". Clients do not multiply their
        updates by their weights before they are mixed.
    """
    for round in rounds:
        clients = sorted(round.observed)
        observed = {client: round.observed[client] for client in clients}
        bases = [models.base for models in observed.values() if models.base is not None]
        if len(bases) < len(clients) or any(models.update is None for models in observed.values()):
            raise NotVisible(
                "the view 'shuffled' mixes the clients' model updates, but clients of this "
                "algorithm send none; use the view 'uploads'"
            )
        numbers = group_models(bases).numbers
        random = seeded(0, "shuffled parameters", round.index)
        for number in sorted({*numbers}):
            group = [c for c, own in zip(clients, numbers, strict=True) if own == number]
            mixed = _mixed([observed[client] for client in group], random)
            observed.update(zip(group, mixed, strict=True))
        yield replace(round, observed=observed, uploads={}, group_of=dict(round.group_of))


def _mixed(group: Sequence[ObservedModels], random: torch.Generator) -> list[ObservedModels]:
    """Return clients that received the same model, with permuted entries."""
    base = group[0].base
    assert base is not None
    updates = _permuted([models.update or {} for models in group], random)
    buffers = _permuted([models.local.buffers if models.local else {} for models in group], random)
    scales = {models.gradient_scale for models in group}
    return [
        ObservedModels(
            base,
            Model(base.architecture, add_scaled(base.params, update), own_buffers),
            update,
            scales.copy().pop() if len(scales) == 1 else None,
        )
        for update, own_buffers in zip(updates, buffers, strict=True)
    ]


def _permuted(values: Sequence[Params], random: torch.Generator) -> list[Params]:
    mixed: list[Params] = [{} for _ in values]
    for name in values[0]:
        rows = _permuted_rows(torch.stack([of_client[name] for of_client in values]), random)
        for own, row in zip(mixed, rows, strict=True):
            own[name] = row
    return mixed


def _permuted_rows(stacked: Tensor, random: torch.Generator) -> Tensor:
    """Permute the first axis, independently at each position of the other axes."""
    order = torch.rand(stacked.shape, generator=random).argsort(stable=True, dim=0)
    return stacked.gather(0, order.to(stacked.device))
