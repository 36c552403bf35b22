"""Fully connected networks."""

import math

from torch import nn

from fedaudit.models._parts import dense_stack, widths


def mlp(
    *, shape: tuple[int, ...], classes: int, hidden: str = "200", dropout: float = 0.0
) -> nn.Sequential:
    """A fully connected network with ReLU; samples of any shape are flattened first.

    Args:
        shape: Shape of one sample.
        classes: Number of outputs.
        hidden: Widths of the hidden layers, ``"200"`` or ``"200,100"``; empty is a linear model.
        dropout: Share of hidden units left out in each training step, in [0, 1); 0 is none.

    Source: SIA, Table II(b) (one hidden layer of 200).
    """
    sizes = (math.prod(shape), *widths("mlp", "hidden", hidden))
    return nn.Sequential(nn.Flatten(), *dense_stack(sizes, classes, dropout))
