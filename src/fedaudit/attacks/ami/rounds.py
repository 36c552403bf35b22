"""What a server reads where noise or other records hide a neuron's firing: a score, not a sign."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.ami.plant import Place, Planted, gradient_row
from fedaudit.core import Model, Params, Samples
from fedaudit.params import norm


class Reading(NamedTuple):
    """What the server looks for in uploads: the target's own gradient in the planted rows.

    Attributes:
        places: Of the planted neurons.
        direction: Of that gradient, of length 1 over all rows together; zero where no neuron
            fires for the target.
        length: Of the target's whole gradient, over all parameters.
        share: How much of that length lies in the planted rows: the rows' length over it.
    """

    places: tuple[Place, ...]
    direction: Float[Tensor, "neurons entries"]
    length: float
    share: float

    def score(self, upload: Params) -> float:
        """The part of an upload that points along the target's gradient: its matched filter.

        Nothing tells a known signal in normal noise of one size better. Scores of several
        rounds are averaged.

        Args:
            upload: A gradient at the planted model, or what a sum of several gives.

        Source: AMI, appendix E, averages gradients over rounds and neurons.
        Differs: the paper does not say how a verdict is read off an average, which is never zero.
        """
        return float((self.direction * _rows(upload, self.places).double()).sum())


def reading(planted: Planted, target: Samples) -> Reading:
    """What to look for, from the target with its label, which the server knows.

    Args:
        planted: The model that is sent.
        target: The one record that is asked about.
    """
    gradient = _own_gradient(planted.model, target)
    rows = _rows(gradient, planted.places).double()
    length, inside = norm(gradient), float(rows.norm())
    if not inside:
        return Reading(planted.places, rows, length, 0.0)
    return Reading(planted.places, rows / inside, length, min(1.0, inside / length))


def _rows(gradient: Params, places: tuple[Place, ...]) -> Float[Tensor, "neurons entries"]:
    return torch.stack([gradient_row(gradient, place) for place in places])


def _own_gradient(model: Model, record: Samples) -> Params:
    module = model.module()
    params = {name: p for name, p in module.named_parameters() if p.requires_grad}
    loss = model.architecture.loss(module(record.features), record.labels).mean()
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
