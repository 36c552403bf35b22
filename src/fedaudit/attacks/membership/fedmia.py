"""FedMIA's rule, which uses every other client as a model that was not trained on the sample."""

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.core.errors import BadInput, TooFewPeers
from fedaudit.core.values import ClientId, Sees
from fedaudit.observe.measurements import Measurements


@dataclass(frozen=True)
class OneSidedLikelihood:
    """Mean over rounds of how far the target's signal lies above the other clients'.

    In every round a normal distribution is fitted, for each sample, to the other clients' values.
    The target's value becomes its upper tail probability under that distribution. The score is the
    negative mean of these over the rounds. It ranks samples like the paper's mean cumulative
    probability, but does not saturate at 1 for values far above the others'.

    Other clients that were sent another model than the target in a round are no peers in it. A
    round with fewer than two peers carries no information and is omitted.

    Attributes:
        outlier_sigmas: A peer more than this many standard deviations above the peers' mean is
            excluded from the fit, since it may have the sample itself. At 3 the filter can never
            act with fewer than 11 peers: no value lies more than sqrt(n - 1) population standard
            deviations above the mean of n values that include it.
        leave_one_out: Compares each peer with mean and standard deviation of the *others*, so that
            the filter can act among few peers too.
        variance_floor: Added to the variance. The published code adds 1e-8, which is as large as
            the variance of a large network's cosines; use it for parity only.

    Source: FedMIA, Eqs. (4), (5) and (8)-(12), Algorithm 1.
    Differs: Score is the negative mean upper tail (the same ranking, no ties at the top); float64;
    no constant in the variance; the filter is applied to every signal, as Eq. (8) says (the
    published code filters cosines only, and only on non-IID data).
    """

    outlier_sigmas: float = 3.0
    leave_one_out: bool = False
    variance_floor: float = 0.0

    over_clients = "one-sided likelihood"
    over_rounds = "mean"
    needs = Sees.UPLOADS | Sees.ROUNDS

    def __post_init__(self) -> None:
        if not (self.outlier_sigmas > 0 and self.variance_floor >= 0):
            raise BadInput(
                "outlier_sigmas must be above 0 and variance_floor at least 0, got "
                f"{self.outlier_sigmas} and {self.variance_floor}"
            )

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        """Return the score of every sample.

        Raises:
            TooFewPeers: No round has two peers to fit a distribution to.
        """
        (m,) = measurements
        most_peers, tails = 0, list[Tensor]()
        for signal, peers in zip(m.of(target).double(), m.peers(target), strict=True):
            if bool(torch.isnan(signal).any()):
                continue
            most_peers = max(most_peers, len(peers))
            if len(peers) >= 2:
                tails.append(self._upper_tail(signal, peers.double()))
        if not tails:
            raise TooFewPeers(
                "the likelihood rule needs at least 2 clients other than the target that were "
                f"sent the same model in the same round, got {most_peers} at best; use a rule on "
                "the target alone, such as avg-cosine or loss-series"
            )
        return -torch.stack(tails).mean(0)

    def _upper_tail(
        self, value: Float[Tensor, " samples"], peers: Float[Tensor, "peers samples"]
    ) -> Float[Tensor, " samples"]:
        """Return 1 - Lambda of Eq. (11): the probability that a non-member's signal is larger."""
        mean, variance = _moments(peers, self._not_outliers(peers))
        spread = (variance + self.variance_floor).sqrt()
        above = value - mean
        # If peers agree exactly there is no spread, and only the direction counts.
        z = torch.where(spread > 0, above / spread.where(spread > 0, 1.0), above.sign() * torch.inf)
        # Not torch.special.ndtr(-z), which is exactly 0 from z = 8.3 on.
        tail: Tensor = 0.5 * torch.special.erfc(z.where(above != 0, 0.0) / sqrt(2))
        return tail

    def _not_outliers(self, peers: Float[Tensor, "peers samples"]) -> Bool[Tensor, "peers samples"]:
        """Return the peers that Eq. (8) keeps, in one pass and on the upper side only."""
        all_peers = torch.ones_like(peers, dtype=torch.bool)
        if not self.leave_one_out:
            mean, variance = _moments(peers, all_peers)
            return peers <= mean + self.outlier_sigmas * variance.sqrt()
        if len(peers) < 3:
            return all_peers
        is_kept = []
        for index in range(len(peers)):
            others = torch.cat([peers[:index], peers[index + 1 :]])
            mean, variance = _moments(others, torch.ones_like(others, dtype=torch.bool))
            is_kept.append(peers[index] <= mean + self.outlier_sigmas * variance.sqrt())
        return torch.stack(is_kept)


def _moments(
    peers: Float[Tensor, "peers samples"], selected: Bool[Tensor, "peers samples"]
) -> tuple[Float[Tensor, " samples"], Float[Tensor, " samples"]]:
    """Return mean and population variance of the selected peers, Eqs. (9) and (10)."""
    count = selected.sum(0)
    # Relative to the first peer, peers that agree exactly have mean and variance exactly 0.
    # Relative to 0, their variance would be a rounding error.
    off = peers - peers[0]
    mean = off.where(selected, 0.0).sum(0) / count
    return peers[0] + mean, (off - mean).square().where(selected, 0.0).sum(0) / count
