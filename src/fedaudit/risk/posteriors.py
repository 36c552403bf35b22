"""Membership by what a model says of a sample: the classic attack with shadow models."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.core import Model, Samples
from fedaudit.devices import CPU
from fedaudit.errors import BadInput
from fedaudit.modules import outputs_of


@dataclass(frozen=True)
class TrainMia:
    """A classifier of a model's largest posteriors and its loss, learned on shadow models.

    Attributes:
        top: How many posteriors it sees, the largest first, at least 1; all where the model has
            fewer classes.

    Source: Shokri et al. 2017, section 5.3; IFCA-MIR, Algorithm 2.
    Differs: The paper names no classifier. This is logistic regression at 0.5 on standardised
        evidence; sorted posteriors and the loss of the true class stand for the posterior and
        one classifier for each class.
    """

    top: int = 3

    def __post_init__(self) -> None:
        if self.top < 1:
            raise BadInput(f"an attack on posteriors sees at least 1 of them, got {self.top}")

    def evidence(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        """The largest posteriors, and the loss; see :class:`fedaudit.risk.base.Measure`.

        Raises:
            BadInput: They are not finite.
        """
        outputs = outputs_of(model, samples.features, device)
        posteriors = outputs.double().softmax(1)
        largest = posteriors.topk(min(self.top, posteriors.shape[1])).values
        losses = model.architecture.loss(outputs, samples.labels).double()
        found = torch.cat([largest, losses[:, None]], 1)
        if not bool(found.isfinite().all()):
            raise BadInput(
                "the model's outputs or losses are not finite for some samples, so that nothing "
                "can be learned of members; lower the learning rate or check the features"
            )
        return found

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> "Linear":
        """See :class:`fedaudit.risk.base.Measure`."""
        # Imported here: a second of start-up that training alone need not pay.
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits

        together = torch.cat([inside, outside])
        spread, center = torch.std_mean(together, 0, correction=0)
        scale = torch.where(spread > 0, spread, 1.0)
        is_member = np.arange(len(together)) < len(inside)
        # Threads of BLAS change the last bits.
        with threadpool_limits(1, user_api="blas"):
            model = LogisticRegression(max_iter=1000)
            model.fit(((together - center) / scale).numpy(), is_member)
        return Linear(center, torch.from_numpy(model.coef_[0]) / scale, float(model.intercept_[0]))


@dataclass(frozen=True)
class Linear:
    """Members are on one side of a plane.

    Attributes:
        center: A point, for exactness the middle of what was learned from.
        weights: Across the plane, towards members.
        offset: How far inside the center is.
    """

    center: Float[Tensor, " evidence"]
    weights: Float[Tensor, " evidence"]
    offset: float

    def __call__(self, evidence: Float[Tensor, "samples evidence"]) -> Bool[Tensor, " samples"]:
        """See :class:`fedaudit.risk.base.Verdict`."""
        return ((evidence - self.center) * self.weights).sum(1) + self.offset > 0
