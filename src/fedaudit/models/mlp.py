"""Fully connected networks."""

import math

from torch import nn

from fedaudit.core.arguments import Decay, dataclass
from fedaudit.models.base import ConfiguredModel, Widths, dense_stack, parse_widths


@dataclass(frozen=True, kw_only=True)
class MLP(ConfiguredModel):
    """Fully connected network with ReLU; samples of any shape are flattened first.

    Attributes:
        hidden: Widths of the hidden layers, such as "200,100"; empty for a linear model.
        dropout: Fraction of hidden units that are dropped in each training step, in [0, 1).

    Examples:
        >>> import fedaudit as fa
        >>> fa.models.MLP(hidden="64,32").build(shape=(8, 8), classes=10)[1]
        Linear(in_features=64, out_features=64, bias=True)

    Source: Hu et al. 2024 (SIA), Table II(b) (one hidden layer of 200).
    """

    hidden: Widths = "200"
    dropout: Decay = 0.0

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """Return an untrained network."""
        sizes = (math.prod(shape), *parse_widths(self.hidden))
        return nn.Sequential(nn.Flatten(), *dense_stack(sizes, classes, self.dropout))
