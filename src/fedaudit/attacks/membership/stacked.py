"""One attack out of many signals: a linear classifier that has learned how to weigh them."""

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
    """Weighs what single attacks look at, by samples whose membership is known.

    Evidence of each signal are its last value, its mean over the rounds, and the mean over the
    rounds of its distance from the other clients' in their standard deviations: what threshold
    attacks look at, and FedMIA's comparison. A logistic regression weighs them, fitted on each of
    several bootstrap samples; its mean log-odds are the score.

    Attributes:
        penalty: Weight of the squared coefficients, in samples.
        bags: Bootstrap samples.

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
                f"penalty is above 0 and bags at least 1, got {self.penalty} and {self.bags}"
            )

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """See :class:`fedaudit.attacks.base.Rule`.

        Raises:
            BadInput: Always: nothing has been learned yet.
        """
        raise nothing_learned()

    def fitted(
        self,
        *measurements: Measurements,
        is_member: Bool[Tensor, " samples"],
        target: ClientId,
        seed: int,
    ) -> "FittedStack":
        """See :class:`fedaudit.attacks.base.LearnedRule`.

        Raises:
            NotVisible: In no round are there two other clients to compare with.
        """
        from sklearn.linear_model import LogisticRegression

        raw = _evidence(measurements, target)
        mean, spread = raw.mean(0), raw.std(0, correction=0)
        # Constant evidence carries no information, whatever it is divided by.
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
    """A :class:`Stacked` that has learned.

    Attributes:
        mean: Of each piece of evidence, where it learned.
        spread: Likewise.
        weights: Of each, and of 1.
    """

    mean: Float[Tensor, " evidence"]
    spread: Float[Tensor, " evidence"]
    weights: Float[Tensor, " evidence_and_1"]

    over_clients = Stacked.over_clients
    over_rounds = Stacked.over_rounds
    needs = Stacked.needs

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """See :class:`fedaudit.attacks.base.Rule`.

        Raises:
            NotVisible: In no round are there two other clients to compare with.
        """
        seen = (_evidence(measurements, target) - self.mean) / self.spread
        # Beyond what it has learned from, evidence counts no more than there.
        return (seen.clamp(-_FURTHEST, _FURTHEST) * self.weights[:-1]).sum(1) + self.weights[-1]


_FURTHEST = 6.0


def _evidence(measurements: tuple[Measurements, ...], target: ClientId) -> Evidence:
    return torch.stack(
        [evidence for m in measurements for evidence in _of_signal(m, target)], dim=1
    )


def _of_signal(m: Measurements, target: ClientId) -> list[Float[Tensor, " samples"]]:
    """Last value, mean, and mean distance from the other clients' in their deviations."""
    values_of_target = m.of(target).double()
    was_measured = measured_rounds(values_of_target, target)
    apart = [
        _distance(values, peers.double())
        for values, peers, seen in zip(values_of_target, m.peers(target), was_measured, strict=True)
        if seen and len(peers) >= 2
    ]
    if not apart:
        raise TooFewPeers(
            "this attack compares the target with at least 2 clients besides the target that were "
            "sent the same model in the same round, and there are fewer; use one that looks at the "
            "target alone, such as loss-series"
        )
    return [
        values_of_target[was_measured][-1],
        values_of_target[was_measured].mean(0),
        torch.stack(apart).mean(0),
    ]


def _distance(
    values: Float[Tensor, " samples"], peers: Float[Tensor, "peers samples"]
) -> Float[Tensor, " samples"]:
    above = values - peers.mean(0)
    spread = peers.std(0, correction=0)
    # Peers that agree exactly leave no unit to measure in: only the direction is known.
    return torch.where(spread > 0, above / spread.where(spread > 0, 1.0), above.sign())
