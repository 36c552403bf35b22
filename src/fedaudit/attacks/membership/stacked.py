"""Attack on many signals by a linear classifier that learned their weights."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks.base import measured_rounds, nothing_learned
from fedaudit.core.errors import BadInput, TooFewPeers
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import ClientId, Sees
from fedaudit.observe.measurements import Measurements

Evidence = Float[Tensor, "samples evidence"]


@dataclass(frozen=True)
class Stacked:
    """Weighted sum of the evidence of single attacks, learned on samples of known membership.

    Evidence of each signal consists of its last value, its mean over the rounds, and its mean
    distance from the other clients' values in their standard deviations. Threshold attacks and
    FedMIA use the same numbers. A logistic regression weighs them, fitted on each of several
    bootstrap samples; its mean log-odds are the score.

    Attributes:
        penalty: Weight of the squared coefficients, in samples.
        bags: Number of bootstrap samples.

    Source: None; the evidence is that of Yeom et al. 2018, Li et al. 2022 and FedMIA, Eqs. (5) to
    (12), put together as a shadow attack (Shokri et al. 2017; Nasr et al. 2019).
    """

    penalty: float = 1.0
    bags: int = 10

    over_clients = "learned"
    over_rounds = "learned"
    needs = Sees.UPLOADS | Sees.ROUNDS | Sees.AUXILIARY_DATA

    def __post_init__(self) -> None:
        if not (self.penalty > 0 and self.bags >= 1):
            raise BadInput(
                f"penalty must be above 0 and bags at least 1, got {self.penalty} and {self.bags}"
            )

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """Raise, as the rule must be fitted first.

        Raises:
            BadInput: Always.
        """
        raise nothing_learned()

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> "FittedStack":
        """Return the classifier that learned from samples of known membership.

        Raises:
            NotVisible: No round has two other clients for comparison.
        """
        from sklearn.linear_model import LogisticRegression

        raw = _evidence(measurements, target)
        mean, spread = raw.mean(0), raw.std(0, correction=0)
        # Constant evidence carries no information, so any divisor will do.
        spread = spread.where(spread > 0, 1.0)
        standardised, truth = ((raw - mean) / spread).numpy(), is_member.numpy()
        rng, weights = seeded_numpy(seed, "bags"), []
        members, others = np.flatnonzero(truth), np.flatnonzero(~truth)
        for _ in range(self.bags):
            drawn = np.concatenate([rng.choice(part, len(part)) for part in (members, others)])
            regression = LogisticRegression(C=1 / self.penalty, max_iter=1000)
            regression.fit(standardised[drawn], truth[drawn])
            weights.append(np.append(regression.coef_[0], regression.intercept_))
        return FittedStack(mean, spread, torch.from_numpy(np.mean(weights, axis=0)))


@dataclass(frozen=True, eq=False)
class FittedStack:
    """Fitted :class:`Stacked`.

    Attributes:
        mean: Mean of each piece of evidence over the training samples.
        spread: Their standard deviations.
        weights: Weights of each piece of evidence, and the intercept.
    """

    mean: Float[Tensor, " evidence"]
    spread: Float[Tensor, " evidence"]
    weights: Float[Tensor, " evidence_and_1"]

    over_clients = Stacked.over_clients
    over_rounds = Stacked.over_rounds
    needs = Stacked.needs

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """Return the score of every sample.

        Raises:
            NotVisible: No round has two other clients for comparison.
        """
        seen = (_evidence(measurements, target) - self.mean) / self.spread
        # Evidence beyond the range of the training samples counts no more than at its end.
        return (seen.clamp(-_FURTHEST, _FURTHEST) * self.weights[:-1]).sum(1) + self.weights[-1]


_FURTHEST = 6.0


def _evidence(measurements: tuple[Measurements, ...], target: ClientId) -> Evidence:
    return torch.stack(
        [evidence for m in measurements for evidence in _of_signal(m, target)], dim=1
    )


def _of_signal(m: Measurements, target: ClientId) -> list[Float[Tensor, " samples"]]:
    """Return the last value, the mean, and the mean distance from the other clients' values."""
    values_of_target = m.of(target).double()
    was_measured = measured_rounds(values_of_target, target)
    distances = [
        _distance(values, peers.double())
        for values, peers, seen in zip(values_of_target, m.peers(target), was_measured, strict=True)
        if seen and len(peers) >= 2
    ]
    if not distances:
        raise TooFewPeers(
            "this attack needs at least 2 clients other than the target that were sent the same "
            "model in the same round, and there are fewer; use an attack on the target alone, such "
            "as loss-series"
        )
    return [
        values_of_target[was_measured][-1],
        values_of_target[was_measured].mean(0),
        torch.stack(distances).mean(0),
    ]


def _distance(
    values: Float[Tensor, " samples"], peers: Float[Tensor, "peers samples"]
) -> Float[Tensor, " samples"]:
    above = values - peers.mean(0)
    spread = peers.std(0, correction=0)
    # If peers agree exactly there is no unit of distance, and only the direction counts.
    return torch.where(spread > 0, above / spread.where(spread > 0, 1.0), above.sign())
