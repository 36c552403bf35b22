"""Signals from updates: each sample's gradient against what training did to the model.

FedMIA writes I for the model sent minus the model returned, which points along the gradient;
fedaudit's update is returned minus sent, so that I is minus the update.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import Sees
from fedaudit.signals.base import AgainstUpdates, Seen


@dataclass(frozen=True)
class GradientCosine:
    """Cosine between a sample's gradient at the model sent and minus the client's update.

    A zero gradient or update has no direction; its cosine is 0.

    Source: FedMIA, Eq. (7); Li et al. 2022.
    """

    name = "gradient-cosine"
    needs = Sees.GLOBAL_MODEL | Sees.UPDATE

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        return _cosines(seen.against_updates)


@dataclass(frozen=True)
class CentredTailCosine:
    """The cosine once the last entries of gradient and update are each less their own mean.

    A server that knows of one number which a client adds to all of its last parameters has by
    this what the cosine over uploads without that number would tell it, but for the one
    direction that it gives up.

    Attributes:
        tail: Share of the parameters, counted from the last, to which the number is added, in
            (0, 1]; in a study that of the audited client's noise if left out.

    Source: None; FedMIA, Eq. (7), against CoFedMID's algorithm 3.
    """

    tail: float = 0.2
    needs = Sees.GLOBAL_MODEL | Sees.UPDATE

    def __post_init__(self) -> None:
        if not 0 < self.tail <= 1:
            raise BadInput(f"tail is a share of the parameters in (0, 1], got {self.tail}")

    @property
    def name(self) -> str:
        """Differs by where the tail begins."""
        return f"gradient-cosine-centred-tail-{self.tail:g}"

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        from fedaudit.signals.gradients import products_centred_in_tail

        products = partial(products_centred_in_tail, tail=self.tail)
        return _cosines(seen.against_updates_by(products))


@dataclass(frozen=True)
class WithoutTailCosine:
    """The cosine over all parameters but the last.

    A server that knows where a client's noise lies looks at the rest, which has none.

    Attributes:
        tail: Share of the parameters, counted from the last, that is left out, in (0, 1); in a
            study that of the audited client's noise if left out.

    Source: None; FedMIA, Eq. (7), against CoFedMID's section 4.3.
    """

    tail: float = 0.2
    needs = Sees.GLOBAL_MODEL | Sees.UPDATE

    def __post_init__(self) -> None:
        if not 0 < self.tail < 1:
            raise BadInput(
                f"tail is a share of the parameters in (0, 1), of which some must be left; got "
                f"{self.tail}"
            )

    @property
    def name(self) -> str:
        """Differs by where the tail begins."""
        return f"gradient-cosine-without-tail-{self.tail:g}"

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        from fedaudit.signals.gradients import products_without_tail

        return _cosines(seen.against_updates_by(partial(products_without_tail, tail=self.tail)))


def _cosines(against: AgainstUpdates) -> Float[Tensor, "clients samples"]:
    dots, gradient_norms, update_norms = against
    lengths = gradient_norms * update_norms[:, None]
    return torch.where(lengths > 0, -dots / lengths.where(lengths > 0, 1.0), 0.0)


@dataclass(frozen=True)
class GradientNorm:
    """Minus the squared length of a sample's gradient at the model sent.

    It knows nothing of the client: the same for all clients that were sent the same model.

    Source: Nasr et al. 2019, as FedMIA's Grad-Norm.
    Differs: Also as "grad-norm" over several rounds it keeps this sign; the published code
        negates the averaged form twice.
    """

    name = "gradient-norm"
    needs = Sees.GLOBAL_MODEL

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        return -seen.gradient_norms.square()


@dataclass(frozen=True)
class GradientDifference:
    """Reduction of I's squared length without a sample's gradient g: |I|^2 - |I - g|^2.

    Attributes:
        scale: "raw" takes I as it is, as the published code does: I is about a learning rate
            long, so that the score is mostly minus the squared length of g. "sum" lengthens I
            to the sum of the samples' gradients, for which the threshold 0 was derived.

    Source: Li et al. 2022; FedMIA's Grad-Diff.
    """

    scale: Literal["raw", "sum"] = "raw"
    needs = Sees.GLOBAL_MODEL | Sees.UPDATE

    def __post_init__(self) -> None:
        if self.scale not in ("raw", "sum"):
            raise BadInput(f'scale is "raw" or "sum", got {self.scale!r}')

    @property
    def name(self) -> str:
        """Differs by scale."""
        return f"gradient-difference-{self.scale}"

    def __call__(self, seen: Seen) -> Float[Tensor, "clients samples"]:
        """See :class:`fedaudit.signals.base.Signal`.

        Raises:
            Unsupported: The scale "sum" is asked for, but how clients step is unknown.
        """
        dots, gradient_norms, _ = seen.against_updates
        return 2 * self._lengthening(seen)[:, None] * -dots - gradient_norms.square()

    def _lengthening(self, seen: Seen) -> Float[Tensor, " clients"]:
        if self.scale == "raw":
            return torch.ones(len(seen.clients), dtype=torch.float64)
        known = [scale for scale in seen.gradient_scales if scale is not None]
        if len(known) < len(seen.clients):
            raise Unsupported(
                'gradient-difference with scale "sum" must know the learning rate, batch size and '
                'epochs of SGD clients; they are not known here, use scale "raw"'
            )
        return torch.tensor(known, dtype=torch.float64)
