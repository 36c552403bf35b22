"""Scores of a server that cannot read a sign: noise, sums of uploads, thresholds, ranges."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.ami.plant import Neurons, Place, Planted, gradient_row, silenced
from fedaudit.core.errors import BadInput
from fedaudit.core.values import Model, Params, Samples, norm, weighted_sum
from fedaudit.observe.round import Gradient


class ValueRange(NamedTuple):
    """Range of each neuron's values.

    Attributes:
        least: Smallest value.
        most: Largest value.
    """

    least: Float[Tensor, " neurons"]
    most: Float[Tensor, " neurons"]

    @property
    def width(self) -> Float[Tensor, " neurons"]:
        """Largest minus smallest value."""
        return self.most - self.least


def range_over_box(
    neurons: Neurons, low: Float[Tensor, "*features"], high: Float[Tensor, "*features"]
) -> ValueRange:
    """Limits that hold for every record whose features lie between these, by interval arithmetic.

    No value can lie outside; not every value inside need occur.

    Args:
        neurons: Whose values.
        low: Smallest value of each feature, or of all.
        high: Largest: what a randomised record can decode to.

    Raises:
        BadInput: The box is empty or has no end.

    Source: Gowal et al. 2018 (interval bound propagation).
    """
    features = neurons.first.shape[2]
    low, high = (side.double().expand(features) for side in (low, high))
    if not bool(((low <= high) & low.isfinite() & high.isfinite()).all()):
        raise BadInput("records lie in a box with finite ends, the lower below the upper")
    middle, half = (low + high) / 2, (high - low) / 2
    first, second = neurons.first.double(), neurons.second.double()
    centre = first @ middle + neurons.first_bias.double()
    reach = first.abs() @ half
    least, most = (centre - reach).relu(), (centre + reach).relu()
    up, down = second.relu(), (-second).relu()
    bias = neurons.second_bias.double()
    return ValueRange(
        (up * least - down * most).sum(1) + bias,
        (up * most - down * least).sum(1) + bias,
    )


class NeuronReading(NamedTuple):
    """The server's reference in uploads: the target's own gradient in the planted rows.

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


def reading(planted: Planted, target: Samples) -> NeuronReading:
    """The reference from the target with its label, which the server knows.

    Args:
        planted: The model that is sent.
        target: The one record that is asked about.
    """
    gradient = _own_gradient(planted.model, target)
    rows = _rows(gradient, planted.places).double()
    length, inside = norm(gradient), float(rows.norm())
    if not inside:
        return NeuronReading(planted.places, rows, length, 0.0)
    return NeuronReading(planted.places, rows / inside, length, min(1.0, inside / length))


def _rows(gradient: Params, places: tuple[Place, ...]) -> Float[Tensor, "neurons entries"]:
    return torch.stack([gradient_row(gradient, place) for place in places])


def _own_gradient(model: Model, record: Samples) -> Params:
    module = model.module()
    params = {name: p for name, p in module.named_parameters() if p.requires_grad}
    task = model.architecture.task
    loss = task.losses(task.outputs(module, record.features), record.targets).mean()
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))


def summed(uploads: Sequence[Gradient]) -> Params:
    """Secure sum of some clients' gradients: their mean, by numbers of samples.

    Unlike the "sum" of :mod:`fedaudit.observe.views`, which is of clients that were sent one
    model: addition does not know that they were not.

    Args:
        uploads: One a client.

    Raises:
        BadInput: There are none, or a client does not say over how many samples its mean is.
    """
    total = sum(upload.samples for upload in uploads)
    if not uploads or not all(upload.samples for upload in uploads):
        raise BadInput(
            "clients' gradients are added up by their numbers of samples: give at least one, each "
            f"with its number; got {[upload.samples for upload in uploads]}"
        )
    shares = [upload.samples / total for upload in uploads]
    return weighted_sum([upload.values for upload in uploads], shares)


def dead(planted: Planted) -> Model:
    """The planted model with its neurons silent for every record: their rows have no gradient.

    Sent to everybody but one client, it leaves in the planted rows of a sum what that client
    sent, as if nothing had been added up.

    Args:
        planted: What the one client is sent.

    Source: Pasquini, Francati and Ateniese 2022 (model inconsistency).
    """
    return silenced(planted.model, planted.places)
