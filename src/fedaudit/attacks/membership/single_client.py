"""Rules that look at the target client alone."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fedaudit.attacks.rule import measured_rounds
from fedaudit.core import ClientId, Sees
from fedaudit.observe.measurements import Measurements


@dataclass(frozen=True)
class Last:
    """The signal at the target in the last round in which it was measured."""

    over_clients = "target only"
    over_rounds = "last"
    needs = Sees.NOTHING

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """See :class:`fedaudit.attacks.base.Rule`."""
        (m,) = measurements
        values = m.of(target)
        return values[measured_rounds(values, target)][-1].double()


@dataclass(frozen=True)
class Mean:
    """The mean of the signal at the target over the rounds in which it was measured."""

    over_clients = "target only"
    over_rounds = "mean"
    needs = Sees.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """See :class:`fedaudit.attacks.base.Rule`."""
        (m,) = measurements
        values = m.of(target)
        return values[measured_rounds(values, target)].double().mean(0)
