"""Rules that compute a membership score for each sample from signals of the audited federation.

The rules of this module need no reference models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks.base import Rule, measured_rounds
from fedaudit.core import arguments
from fedaudit.core.arguments import AboveZero, AboveZeroOrInfinite, AtLeastZero, Range
from fedaudit.core.errors import BadInput, TooFewPeers, TooFewRounds, format_table
from fedaudit.core.values import Capability, ClientId
from fedaudit.observe.measurements import Measurements


@dataclass(frozen=True)
class Last:
    """The target's signal in the last round in which it was measured."""

    client_aggregation = "target only"
    round_aggregation = "last"
    needs = Capability.NOTHING

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        values = m.of(target)
        return values[measured_rounds(values, target)][-1].double()


@dataclass(frozen=True)
class Mean:
    """The mean of the target's signal over the rounds in which it was measured."""

    client_aggregation = "target only"
    round_aggregation = "mean"
    needs = Capability.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        values = m.of(target)
        return values[measured_rounds(values, target)].double().mean(0)


@dataclass(frozen=True)
class Largest:
    """The largest value of the target's signal over the rounds in which it was measured."""

    client_aggregation = "target only"
    round_aggregation = "maximum"
    needs = Capability.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        values = m.of(target)
        return values[measured_rounds(values, target)].double().amax(0)


@dataclass(frozen=True)
class SinceInitialModel:
    """Last value of a signal of the target's model, minus the value for the initial model.

    The first signal is that of the target's model, the second that of received models. The initial
    model is the model that the target received in the first round in which it was measured. If the
    first round of training is measured (``audit.every = 1``), this is the model before training,
    such as a public pretrained model. Otherwise, other clients or the target have already trained
    it, so that the difference of a member is smaller.

    Source: Mireshghallah et al. 2022 (masked language models) and Carlini et al. 2021: a likelihood
        ratio with a public model as the reference.
    """

    client_aggregation = "target only"
    round_aggregation = "last minus initial"
    needs = Capability.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        of_target, of_received = measurements
        received = of_received.of(target)
        initial = received[measured_rounds(received, target)][0].double()
        return Last()(of_target, target=target) - initial


@dataclass(frozen=True)
class Slope:
    """The least-squares slope of the target's signal over the rounds in which it was measured.

    The line is fitted to the round numbers, so rounds without a measurement are allowed.

    Source: Bai et al. 2026 (CoFedMID), appendix D, which describes FTA (Chen et al. 2024): the
        slope of confidence (FTA-C) or loss (FTA-L) over rounds. The loss signal is minus the loss,
        so both slopes are larger for members.
    Differs: The paper does not specify the model or the fit. Here, the model is the target's, or
        the global one with ``snapshot = "global"``.
    """

    client_aggregation = "target only"
    round_aggregation = "slope"
    needs = Capability.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        values = m.of(target)
        was_measured = measured_rounds(values, target)
        rounds = torch.tensor(m.rounds, dtype=torch.float64)[was_measured]
        if len({*rounds.tolist()}) < 2:
            raise TooFewRounds(
                f"a slope needs at least 2 measured rounds with client {target}, got 1; measure "
                "more rounds in which the client takes part: lower every, or train for longer"
            )
        rounds = rounds - rounds.mean()
        signal = values[was_measured].double()
        # Without this difference, rounding would give a constant signal a slope other than 0.
        rise = signal - signal[0]
        return (rounds[:, None] * rise).sum(0) / rounds.square().sum()


@arguments.dataclass(frozen=True)
class OneSidedLikelihood:
    """One-sided likelihood of FedMIA: the target's signal compared with that of other clients.

    In each round and for each sample, a normal distribution is fitted to the signals of the
    target's peers, which are the clients that received the same model. The upper tail probability
    of the target's signal is computed under this distribution. The score is minus the mean tail
    probability over the rounds. It ranks samples like the paper's mean cumulative probability, but
    does not saturate at 1. Rounds with fewer than two peers are left out.

    Attributes:
        outlier_sigmas: Peers more than this many standard deviations above the peers' mean are
            excluded from the fit, since they may have the sample, too. With fewer than 11 peers,
            the value 3 excludes none, since no value is more than sqrt(n - 1) population standard
            deviations above the mean of n values.
        leave_one_out: Whether the outlier filter compares each peer with the mean and standard
            deviation of the *other* peers. If True, outliers can be excluded even with fewer than
            11 peers, but at least 3.
        variance_floor: Offset that is added to the variance (not a lower bound). The published code
            adds 1e-8, which is as large as the variance of cosines of a large network. Use it only
            to reproduce that code.

    Source: Zhu et al. 2024 (FedMIA), Eqs. (4), (5) and (8)-(12), Algorithm 1.
    Differs: The score is minus the mean upper tail probability, which gives the same ranking
        without ties at the top. It is computed in float64, without a constant in the variance. The
        outlier filter is applied to every signal, as in Eq. (8). The published code filters only
        cosines, and only on non-IID data.
    """

    outlier_sigmas: AboveZeroOrInfinite = 3.0
    leave_one_out: bool = False
    variance_floor: AtLeastZero = 0.0

    client_aggregation = "one-sided likelihood"
    needs_other_clients = True
    round_aggregation = "mean"
    needs = Capability.UPLOADS | Capability.ROUNDS

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        max_peers, tails = 0, list[Tensor]()
        for signal, peers in zip(m.of(target).double(), m.peers(target), strict=True):
            if bool(torch.isnan(signal).any()):
                continue
            max_peers = max(max_peers, len(peers))
            if len(peers) >= 2:
                tails.append(self._upper_tail(signal, peers.double()))
        if not tails:
            raise TooFewPeers(
                "the likelihood rule needs at least 2 other clients that were sent the same model "
                f"as the target in the same round, got {max_peers} at most; use an attack "
                "that needs only the target's signal, such as avg-cosine or loss-series"
            )
        return -torch.stack(tails).mean(0)

    def _upper_tail(
        self, value: Float[Tensor, " samples"], peers: Float[Tensor, "peers samples"]
    ) -> Float[Tensor, " samples"]:
        """Return 1 - Lambda of Eq. (11): the probability that a non-member's signal is larger."""
        mean, variance = _moments(peers, self._is_inlier(peers))
        std = (variance + self.variance_floor).sqrt()
        difference = value - mean
        # If all peers have the same value, the standard deviation is 0 and z is infinite.
        z = torch.where(
            std > 0, difference / std.where(std > 0, 1.0), difference.sign() * torch.inf
        )
        # erfc is used because torch.special.ndtr(-z) is exactly 0 from z = 8.3 on.
        tail: Tensor = 0.5 * torch.special.erfc(z.where(difference != 0, 0.0) / sqrt(2))
        return tail

    def _is_inlier(self, peers: Float[Tensor, "peers samples"]) -> Bool[Tensor, "peers samples"]:
        """Return whether each peer's value is at most the limit of Eq. (8)."""
        if not self.leave_one_out:
            mean, variance = _moments(peers)
            return peers <= mean + self.outlier_sigmas * variance.sqrt()
        if len(peers) < 3:
            return torch.ones_like(peers, dtype=torch.bool)
        rows = []
        for index in range(len(peers)):
            mean, variance = _moments(torch.cat([peers[:index], peers[index + 1 :]]))
            rows.append(peers[index] <= mean + self.outlier_sigmas * variance.sqrt())
        return torch.stack(rows)


def _moments(
    peers: Float[Tensor, "peers samples"], is_inlier: Bool[Tensor, "peers samples"] | None = None
) -> tuple[Float[Tensor, " samples"], Float[Tensor, " samples"]]:
    """Return mean and population variance of the inliers (default: all peers), Eqs. (9), (10)."""
    if is_inlier is None:
        is_inlier = torch.ones_like(peers, dtype=torch.bool)
    count = is_inlier.sum(0)
    # Differences from the first peer are used, so that equal peers have a variance of exactly 0.
    offset = peers - peers[0]
    mean = offset.where(is_inlier, 0.0).sum(0) / count
    return peers[0] + mean, (offset - mean).square().where(is_inlier, 0.0).sum(0) / count


@dataclass(frozen=True)
class AssignedRoundsOnly:
    """Wrapper that applies a rule, for each sample, only to rounds that may have used the sample.

    Under some defenses, a client trains on only a few classes in each round: those that its
    coalition (the clients that use the defense together) assigns to it. A member is then used only
    in some rounds, so a mean over all rounds hides the difference from non-members. An adversary
    that is in the coalition, or has its seed, knows the assigned classes, and ignores the rounds in
    which a sample's class was not assigned. If the target never trained on a sample's class, the
    sample is scored on all rounds.

    Attributes:
        rule: The rule that scores the remaining rounds.
        may_be_used: For each round, whether the target may have trained on each sample; a single
            entry applies to all samples. None if the adversary does not know this.

    Source: None; Bai et al. 2026 (CoFedMID) attack the coalition's aggregate instead (section 5.4).
    """

    rule: Rule
    may_be_used: Mapping[int, Bool[Tensor, "*samples"]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def client_aggregation(self) -> str:
        return self.rule.client_aggregation

    @property
    def needs_other_clients(self) -> bool:
        return bool(getattr(self.rule, "needs_other_clients", False))

    @property
    def round_aggregation(self) -> str:
        return f"{self.rule.round_aggregation}, where assigned"

    @property
    def needs(self) -> Capability:
        return self.rule.needs | Capability.ROUNDS

    def with_side_information(
        self, may_be_used: Mapping[int, Bool[Tensor, "*samples"]]
    ) -> "AssignedRoundsOnly":
        return replace(self, may_be_used=dict(may_be_used))

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        is_scored = self._scored_rounds(measurements[0])
        # Samples with the same rounds are scored together.
        patterns, pattern_of = torch.unique(is_scored, dim=1, return_inverse=True)
        scores = torch.empty(is_scored.shape[1], dtype=torch.float64)
        for number, rounds in enumerate(patterns.unbind(1)):
            samples = (pattern_of == number).nonzero().flatten()
            selected = [_select(m, rounds, samples) for m in measurements]
            scores[samples] = self.rule(*selected, target=target)
        return scores

    def _scored_rounds(self, m: Measurements) -> Bool[Tensor, "rounds samples"]:
        """Return the rounds in which each sample is scored; all rounds if none may have used it."""
        if self.may_be_used is None:
            raise BadInput(
                "this attack needs to know which samples the target may have trained on in each "
                "round; call Attack.with_side_information, or add the attack to a study"
            )
        unknown = [index for index in m.rounds if index not in self.may_be_used]
        if unknown:
            raise BadInput(
                f"side information for the rounds {unknown} is missing; pass it for all measured "
                f"rounds {list(m.rounds)}"
            )
        count = m.values.shape[2]
        may_be_used = torch.stack([self.may_be_used[index].expand(count) for index in m.rounds])
        return may_be_used | ~may_be_used.any(0)


def _select(m: Measurements, rounds: Bool[Tensor, " rounds"], samples: Tensor) -> Measurements:
    rows = rounds.nonzero().flatten().tolist()
    return replace(
        m,
        values=m.values[rounds][:, :, samples],
        rounds=tuple(m.rounds[row] for row in rows),
        bases=m.bases[rounds],
        group_of=tuple(m.group_of[row] for row in rows) if m.group_of else (),
    )


@arguments.dataclass(frozen=True)
class Recovery:
    """Mean decrease of the logarithm of a sample's loss after poisoned rounds.

    In a poisoned round, a malicious client's update raises the loss of the audited samples
    (gradient ascent or wrong labels). The score is the mean decrease of the log loss from a
    poisoned round to the last round before the next one. In the honest rounds between them, the
    owner of a member trains on it; no client trains on a held-out sample.

    Attributes:
        first: Number of the first poisoned round. With 0, every measured round except the last
            counts as poisoned, and ``every`` is ignored. In a study, it defaults to that of the
            malicious client.
        every: Number of rounds from one poisoned round to the next, at least 2.
        floor: Offset above 0 that is added to every loss, so that a loss of 0 has a logarithm.

    Source: Nasr et al. 2019, active attacks: training on a sample undoes the ascent on it.
    Differs: The paper trains a network on gradients, losses and outputs of several rounds, with
        samples of known membership. Here, only the loss is used, and nothing is learned.
    """

    client_aggregation = "target only"
    round_aggregation = "mean fall after poisoned rounds"
    needs = Capability.ROUNDS | Capability.CHOOSES_UPLOAD

    first: Annotated[int, Range(ge=0, le=10**9)] = 0
    every: Annotated[int, Range(ge=2, le=10**9)] = 2
    floor: AboveZero = 0.01

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        values = m.of(target)
        was_measured = measured_rounds(values, target)
        rounds = torch.tensor(m.rounds)[was_measured].tolist()
        # Loss signals are negative losses.
        losses = -values[was_measured].double().clamp(max=0)
        intervals = self._poisoned_intervals(rounds)
        if not intervals:
            raise BadInput(
                f"there are no losses after a poisoned round (first {self.first}, every "
                f"{self.every}; measured rounds: {rounds}); leave out the attack's settings, which "
                f"default to those of {format_table('attacker')}"
            )
        logs = (losses + self.floor).log()
        return torch.stack([logs[start] - logs[end] for start, end in intervals]).mean(0)

    def _poisoned_intervals(self, rounds: list[int]) -> list[tuple[int, int]]:
        """Return the rows of each poisoned round and of the last round before the next one."""
        if not self.first:
            return [(row, row + 1) for row in range(len(rounds) - 1)]
        rows = {index: row for row, index in enumerate(rounds)}
        intervals = []
        for index, row in rows.items():
            is_poisoned = index >= self.first and (index - self.first) % self.every == 0
            end = index + self.every - 1
            if is_poisoned and end in rows:
                intervals.append((row, rows[end]))
        return intervals
