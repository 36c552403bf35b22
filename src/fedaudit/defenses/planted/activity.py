"""Signs in how units act on the client's own samples."""

import torch

from fedaudit.core import Model, Samples
from fedaudit.defenses.planted.base import sign, values_on


@sign
def lone_units(now: Model, before: Model | None, own: Samples) -> float:
    """Share of units behind the first hidden layer that fire for at most one own sample.

    A planted neuron fires for its target alone, or for none where the client does not have it.
    With one hidden layer, its units are looked at.

    Source: AMI, Eq. (5).
    """
    values = values_on(now, own)
    fired = torch.cat([(layer > 0).sum(0) for layer in values[1:] or values])
    return float((fired <= 1).double().mean())


@sign
def one_stands_out(now: Model, before: Model | None, own: Samples) -> float:
    """Largest lead of one own sample over the next at a unit, in deviations of all but it.

    Units behind the first hidden layer, before their ReLU; with one hidden layer, its units.
    """
    values = values_on(now, own)
    together = torch.cat(values[1:] or values, dim=1).double().sort(0, descending=True).values
    first, rest = together[0], together[1:]
    # A unit that is the same for all others by rounding is one that a single sample sets apart.
    least = together.abs().amax(0).clamp_min(1e-30) * torch.finfo(torch.float32).eps
    return float(((first - rest[0]) / rest.std(0, correction=0).maximum(least)).max())


@sign
def dead_units(now: Model, before: Model | None, own: Samples) -> float:
    """Share of hidden units that fire for no own sample."""
    fired = torch.cat([(layer > 0).any(0) for layer in values_on(now, own)])
    return float((~fired).double().mean())
