"""Rules that compare the target's signal with those of reference models."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import field, replace
from math import log
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from fedaudit.attacks.base import Reference, measured_rounds
from fedaudit.core import arguments
from fedaudit.core.arguments import Condition
from fedaudit.core.errors import BadInput
from fedaudit.core.values import NO_CLIENT, Capability, ClientId
from fedaudit.observe.measurements import Measurements

Signals = Float[Tensor, "references samples"]
OFFLINE_COEFFICIENTS = tuple(step / 10 for step in range(11))
"""Values of the coefficient a from which RMIA chooses."""

DEFAULT_OFFLINE_COEFFICIENT = 0.3
"""The coefficient a if there are no tuning samples; the paper uses it for several data sets."""

MAX_ATTACKED_REFERENCES = 4
"""Largest number of references that are attacked to choose settings."""

TrainedOn = Bool[Tensor, "references samples"]
Calibrated = TypeVar("Calibrated", bound="ReferenceCalibrated")
OfflineCoefficient = Annotated[
    float,
    Condition(
        "a coefficient from 0 to 1, or -1 to choose it",
        lambda value: isinstance(value, float | int) and (0 <= value <= 1 or value == -1),
    ),
]


@arguments.dataclass(frozen=True)
class ReferenceCalibrated:
    """Base class of rules that compare a signal of the target with those of reference models.

    A hard sample has a large loss in every model, and an easy sample has a small loss. The
    comparison with reference models removes this difference, so that the remaining signal is due to
    membership. In offline attacks, no reference model was trained on the attacked samples. In
    online attacks, about half of the models were trained on each sample.

    Attributes:
        rounds: "last" for the last measured round, "mean" for the mean over all measured rounds.
    """

    rounds: Literal["last", "mean"] = "last"
    references: tuple[Reference, ...] | None = field(default=None, repr=False, compare=False)
    """The reference models; None until :meth:`with_references` adds them."""

    client_aggregation = "against reference models"

    @property
    def round_aggregation(self) -> str:
        return self.rounds

    @property
    def needs(self) -> Capability:
        rounds_needed = Capability.ROUNDS if self.rounds == "mean" else Capability.NOTHING
        return Capability.REFERENCE_MODELS | rounds_needed

    def with_references(self: Calibrated, references: Sequence[Reference]) -> Calibrated:
        return replace(self, references=tuple(references))

    def on_samples(self: Calibrated, selection: Tensor) -> Calibrated:
        return replace(
            self,
            references=tuple(
                reference.on_samples(selection) for reference in self._require_references()
            ),
        )

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        signals, references = m.of(target), self._require_references()
        rows = measured_rounds(signals, target).nonzero().flatten().tolist()
        trained_on = torch.stack([reference.trained_on for reference in references])
        scores = []
        for row in rows if self.rounds == "mean" else rows[-1:]:
            reference_signals = [
                _signal_in_round(reference.measured, reference.client_for(target), m.rounds[row])
                for reference in references
            ]
            scores.append(
                self.score_round(signals[row].double(), torch.stack(reference_signals), trained_on)
            )
        return torch.stack(scores).mean(0)

    def check_reference_counts(self, trained_on: TrainedOn) -> None:
        """Raise if too few reference models are trained on a sample, or too few are not.

        Args:
            trained_on: Whether each reference model is trained on each sample.
        """

    @abstractmethod
    def score_round(
        self, signal: Float[Tensor, " samples"], reference_signals: Signals, trained_on: TrainedOn
    ) -> Float[Tensor, " samples"]:
        """Return the scores of a round.

        Args:
            signal: The target's signal, in double precision.
            reference_signals: The reference models' signals.
            trained_on: Whether each reference model was trained on each sample.
        """

    def _require_references(self) -> tuple[Reference, ...]:
        if not self.references:
            raise BadInput(
                "this attack needs reference models, and has none; call Attack.with_references, or "
                "add the attack to a study, which trains reference models"
            )
        return self.references


@arguments.dataclass(frozen=True)
class RelativeLikelihood(ReferenceCalibrated):
    """RMIA: a sample's likelihood under the target, divided by its mean over reference models.

    The signal is a negative loss, and the loss is a negative log-likelihood. Therefore, exp(-loss)
    is the probability of the true class, or the geometric mean of probabilities over tokens.

    Attributes:
        rounds: "last" for the last measured round, "mean" for the mean of the logarithms over
            rounds.
        offline: Coefficient a, from 0 to 1, of the approximation for samples that no reference
            model was trained on: the mean over models that were and were not trained on the sample
            is about ((1 + a) * mean over models that were not + 1 - a) / 2. A larger a assumes that
            training on a sample raises its likelihood less; 1 assumes no effect. With -1, a is
            chosen from 0, 0.1, ..., 1. For this, the first four reference models are attacked, each
            with all others as reference models. The value with the largest mean AUC is used. With a
            single reference model, a is 0.3.

    Source: Zarifzadeh et al. 2024 (RMIA), Eqs. (2), (9) and (10), and its choice of a.
    Differs: The score is the logarithm of the ratio. In the paper, it is the fraction of population
        samples z with ratio(x) >= gamma * ratio(z). The logarithm ranks samples in the same order,
        without ties and without population samples. The authors choose a by an attack on one
        reference model. Here, each of the first four reference models is attacked. Its members are
        samples on which it was trained, and its non-members are the audited samples. Reference
        models are trained by federations, whose clients have the defenses of the audited federation
        by default.
    """

    offline: OfflineCoefficient = -1.0

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        if self.offline >= 0:
            return super().__call__(*measurements, target=target)
        coefficient = self.choose_offline_coefficient(target)
        return replace(self, offline=coefficient)(*measurements, target=target)

    def choose_offline_coefficient(self, target: ClientId) -> float:
        """Return the coefficient a with the largest mean AUC in attacks on reference models.

        The tuning samples are training samples of the first ``MAX_ATTACKED_REFERENCES``
        federations. Other federations trained on them only by chance, so they are not attacked.

        Args:
            target: The audited client. References may have been measured at another client.
        """
        references = self._require_references()
        aucs_by_coefficient = []
        for index, attacked in enumerate(references[:MAX_ATTACKED_REFERENCES]):
            other_references = (*references[:index], *references[index + 1 :])
            aucs = self._auc_by_coefficient(attacked, other_references, target)
            if aucs:
                aucs_by_coefficient.append(aucs)
        if not aucs_by_coefficient:
            return DEFAULT_OFFLINE_COEFFICIENT
        return OFFLINE_COEFFICIENTS[int(np.argmax(np.mean(aucs_by_coefficient, axis=0)))]

    def _auc_by_coefficient(
        self, attacked: Reference, others: tuple[Reference, ...], target: ClientId
    ) -> list[float]:
        """Return the AUC for each coefficient in an attack on a reference; empty if impossible."""
        tunings = [reference.tuning for reference in others if reference.tuning is not None]
        if attacked.tuning is None or not tunings:
            return []
        client, owner = attacked.client_for(target), attacked.tuning.owner
        is_unused = torch.stack([tuning.owner == NO_CLIENT for tuning in tunings])
        # At least one of the other references must not be trained on the sample.
        is_comparable = is_unused.any(0) & ((owner == client) | (owner == NO_CLIENT))
        is_member = (owner == client)[is_comparable].numpy()
        if not 0 < is_member.sum() < len(is_member):
            return []
        (m,) = attacked.tuning.measured
        target_signals, mask = m.of(client), is_unused[:, is_comparable].numpy()
        rows = measured_rounds(target_signals, client).nonzero().flatten().tolist()
        scores = np.zeros((len(OFFLINE_COEFFICIENTS), len(is_member)))
        for row in rows if self.rounds == "mean" else rows[-1:]:
            signals = []
            for reference, tuning in zip(others, tunings, strict=True):
                other_client = reference.client_for(target)
                signal = _signal_in_round(tuning.measured, other_client, m.rounds[row])
                signals.append(signal[is_comparable].numpy())
            log_mean = _log_mean_exp(np.stack(signals), mask)
            target_signal = target_signals[row, is_comparable].double().numpy()
            scores += [
                target_signal - _approximate_mean(log_mean, coefficient)
                for coefficient in OFFLINE_COEFFICIENTS
            ]
        return [_auc(coefficient_scores, is_member) for coefficient_scores in scores]

    def score_round(
        self, signal: Float[Tensor, " samples"], reference_signals: Signals, trained_on: TrainedOn
    ) -> Float[Tensor, " samples"]:
        mask = trained_on.numpy()
        log_mean_with = _log_mean_exp(reference_signals.numpy(), mask)
        log_mean_without = _log_mean_exp(reference_signals.numpy(), ~mask)
        log_mean_if_unused = _approximate_mean(log_mean_without, self.offline)
        log_mean_of_both = np.logaddexp(log_mean_with, log_mean_without) - log(2)
        # The mean depends on whether no, all or some references were trained on the sample.
        in_none, in_all = ~mask.any(0), mask.all(0)
        log_mean = np.where(
            in_none, log_mean_if_unused, np.where(in_all, log_mean_with, log_mean_of_both)
        )
        return signal - torch.from_numpy(log_mean)


def _approximate_mean(
    log_mean_without: Float[ndarray, " samples"], coefficient: float
) -> Float[ndarray, " samples"]:
    """Approximate the log mean over all models from that over models not trained on a sample."""
    constant = log(1 - coefficient) if coefficient < 1 else -np.inf
    doubled: Float[ndarray, " samples"] = np.logaddexp(
        log_mean_without + log(1 + coefficient), constant
    )
    return doubled - log(2)


def _auc(scores: Float[ndarray, " samples"], is_member: Bool[ndarray, " samples"]) -> float:
    """Return the fraction of pairs in which the member scores higher; ties count half."""
    nonmembers = np.sort(scores[~is_member])
    n_below = np.searchsorted(nonmembers, scores[is_member], "left")
    n_not_above = np.searchsorted(nonmembers, scores[is_member], "right")
    return float((n_below + n_not_above).mean() / (2 * len(nonmembers)))


@arguments.dataclass(frozen=True)
class LikelihoodRatio(ReferenceCalibrated):
    """LiRA: a score from normal distributions fitted to each sample's signal over reference models.

    If no reference model was trained on the sample (an offline attack), the score is the target's
    signal minus its mean over the reference models. With a variance per sample, this difference is
    divided by the standard deviation. If some reference models were trained on the sample
    (online), the score is the logarithm of a ratio of densities: that of models that were trained
    on the sample, and that of models that were not.

    Attributes:
        rounds: "last" for the last measured round, "mean" for the mean of the scores over rounds.
        variance: "fixed" for the same variance for all samples, which is better with few reference
            models. "each" for a variance per sample.

    Source: Carlini et al. 2022 (LiRA), Algorithm 1 and Eq. (4); section VI-C (fixed variance).
    Differs: The score is a difference instead of a probability, which ranks samples in the same
        order without ties. The mean over the models replaces the published code's median. The fixed
        variance is computed from the distances to each sample's mean, separately for models that
        were and were not trained on the sample. In the published code, it is the variance of all
        signals of all samples. If no reference model was trained on the sample, the published
        code's score is the density, which treats signals far below those of the reference models
        like signals far above. Here, as in Eq. (4), only signals above count. Reference models are
        trained by federations, as for RMIA.
    """

    variance: Literal["fixed", "each"] = "fixed"

    def score_round(
        self, signal: Float[Tensor, " samples"], reference_signals: Signals, trained_on: TrainedOn
    ) -> Float[Tensor, " samples"]:
        mean_without, std_without = self._moments(reference_signals, ~trained_on)
        difference = signal - mean_without
        if not bool(trained_on.any()):
            return difference if self.variance == "fixed" else difference / std_without
        mean_with, std_with = self._moments(reference_signals, trained_on)
        z_without, z_with = difference / std_without, (signal - mean_with) / std_with
        # The logarithm of the ratio of two normal densities.
        return (z_without.square() - z_with.square()) / 2 + (std_without / std_with).log()

    def check_reference_counts(self, trained_on: TrainedOn) -> None:
        self._raise_if_too_few(~trained_on)
        if bool(trained_on.any()):
            self._raise_if_too_few(trained_on)

    def _moments(
        self, reference_signals: Signals, mask: TrainedOn
    ) -> tuple[Float[Tensor, " samples"], Float[Tensor, " samples"]]:
        """Return mean and standard deviation of each sample's signal over the masked models."""
        self._raise_if_too_few(mask)
        count = mask.sum(0)
        mean = reference_signals.where(mask, 0.0).sum(0) / count
        squares = (reference_signals - mean).where(mask, 0.0).square().sum(0)
        if self.variance == "each":
            variance = squares / (count - 1)
        else:
            variance = (squares.sum() / (count - 1).sum().clamp_min(1)).expand_as(squares)
        return mean, variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()

    def _raise_if_too_few(self, mask: TrainedOn) -> None:
        count = mask.sum(0)
        min_references = 2 if self.variance == "each" else 1
        if int(count.min()) < min_references:
            noun = "model that was" if min_references == 1 else "models that were"
            raise BadInput(
                f"a likelihood ratio with variance {self.variance!r} needs, for every sample, at "
                f"least {min_references} reference {noun} not trained on it (online attacks: also "
                f"{min_references} trained on it), got {int(count.min())}; increase "
                "references.count, or use RMIA"
            )


def _signal_in_round(
    measured: tuple[Measurements, ...], client: ClientId, index: int
) -> Float[Tensor, " samples"]:
    """Return a reference's signal in a round, or in its last one if the round was not measured."""
    (m,) = measured
    values = m.of(client)
    was_measured = measured_rounds(values, client)
    rows = [
        row
        for row, measured_round in enumerate(m.rounds)
        if measured_round == index and bool(was_measured[row])
    ]
    return values[rows[0] if rows else int(was_measured.nonzero()[-1])].double()


def _log_mean_exp(
    values: Float[ndarray, "references samples"], mask: Bool[ndarray, "references samples"]
) -> Float[ndarray, " samples"]:
    """Return the log of the mean exponential of the masked values; minus infinity for none."""
    # The last digits of torch.logsumexp would depend on the position of a sample in memory.
    total = np.logaddexp.reduce(np.where(mask, values, -np.inf), axis=0)
    mean: Float[ndarray, " samples"] = total - np.log(np.maximum(mask.sum(0), 1))
    return mean
