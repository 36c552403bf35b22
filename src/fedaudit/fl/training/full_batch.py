"""A client's gradient over all of its data at once, as FedSGD asks for it."""

import torch
from torch import nn

from fedaudit.core import Batch, Model, Params, Samples, chunks
from fedaudit.defenses.base import Defense, Objective, Turn
from fedaudit.devices import CPU, by_kind, computing_on, params_on, samples_on
from fedaudit.errors import BadInput
from fedaudit.fl.training.local import dropout_of, objective_of
from fedaudit.modules import loaded
from fedaudit.observe.round import Gradient
from fedaudit.params import plus, scaled

_CHUNK = 512
_CHUNK_ON_GPU = 4096


def full_gradient(model: Model, data: Samples, defense: Defense, turn: Turn) -> Gradient:
    """The gradient of a client's mean loss over all its data, with the defense's hooks in force.

    One step of gradient descent along it is what training with one batch of everything does.
    Where nothing but the mean of the samples' losses is asked for, it is added up over chunks, so
    that memory does not grow with the data; a defense with a loss or a gradient of its own, and a
    network that normalises over its batch, see all samples at once.

    Args:
        model: Where the gradient is taken, in training mode.
        data: The client's (prepared) samples.
        defense: Its training hooks.
        turn: What the hooks may know, and on which device to calculate.

    Raises:
        BadInput: The gradient is not finite.

    Source: SIA, Algorithm 1 (ClientUpdate); McMahan et al. 2017, section 2 (FedSGD).
    """
    with computing_on(turn.device), dropout_of(turn):
        module = loaded(model, "training", turn.device).train()
        chosen = defense.select(samples_on(data, turn.device), turn)
        objective = objective_of(module, defense, turn)
        batches = [
            _of_batch(objective, defense.batch(batch, turn), defense, turn)
            for batch in _noted(defense, chosen, turn)
        ]
        values = params_on(_mean(batches), CPU)
        trained = Model.of(model.architecture, module)
    if not all(bool(value.isfinite().all()) for value in values.values()):
        raise BadInput(
            f"client {turn.client}'s gradient is not finite in round {turn.round}; lower the "
            "learning rate or check the features"
        )
    return Gradient(values, params_on(trained.buffers, CPU), samples=len(data))


def _noted(defense: Defense, chosen: Samples, turn: Turn) -> list[Batch]:
    """One batch of everything, or what the defense makes of it."""
    batches = list(defense.batches(chosen, len(chosen), turn))
    for batch in batches:
        turn.note("used", batch.ids)
    return batches


def _mean(parts: list[Params]) -> Params:
    total = parts[0]
    for part in parts[1:]:
        total = plus(total, part)
    return scaled(total, 1 / len(parts)) if len(parts) > 1 else total


def _of_batch(objective: Objective, batch: Batch, defense: Defense, turn: Turn) -> Params:
    separable = objective.per_sample is not None and not defense.acts_in("gradient")
    if not separable or not len(batch) or _normalises_over_batches(objective.module):
        return defense.gradient(objective, batch, turn)
    params = objective.params
    total = {name: torch.zeros_like(param) for name, param in params.items()}
    size = by_kind(turn.device, cpu=_CHUNK, gpu=_CHUNK_ON_GPU)
    for rows in chunks(len(batch), size):
        part = Batch(batch.x[rows], batch.y[rows], batch.ids[rows])
        values = defense.gradient(objective, part, turn)
        total = plus(total, values, len(part) / len(batch))
    return total


def _normalises_over_batches(module: nn.Module) -> bool:
    kind = nn.modules.batchnorm._BatchNorm
    return any(isinstance(part, kind) for part in module.modules())
