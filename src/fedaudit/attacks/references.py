"""Rules that compare a model with reference models, which the adversary trained."""

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
from fedaudit.core.values import NOBODY, ClientId, Sees
from fedaudit.observe.measurements import Measurements

Signals = Float[Tensor, "references samples"]
SLOPES = tuple(step / 10 for step in range(11))
"""Slopes from which RMIA chooses."""
DEFAULT_SLOPE = 0.3
"""The slope without samples to choose it on, which the paper uses on several data sets."""
MAX_TUNED = 4
"""Maximum number of references whose attacks choose settings."""
TrainedOn = Bool[Tensor, "references samples"]
Kind = TypeVar("Kind", bound="ReferenceCalibrated")
OfflineSlope = Annotated[
    float,
    Condition(
        "a slope from 0 to 1, or -1 to choose it",
        lambda value: isinstance(value, float | int) and (0 <= value <= 1 or value == -1),
    ),
]


@arguments.dataclass(frozen=True)
class ReferenceCalibrated:
    """A rule on one signal of the target and of reference models, round by round.

    A hard sample has a large loss in every model, an easy one a small loss. Compared with models
    that were not trained on the sample (offline), or of which half were (online), the rest of the
    signal is due to membership.

    Attributes:
        rounds: "last" for the last measured round, "mean" for the mean over all measured rounds.
    """

    rounds: Literal["last", "mean"] = "last"
    references: tuple[Reference, ...] | None = field(default=None, repr=False, compare=False)
    """The reference models; None until :meth:`with_references` adds them."""

    over_clients = "against reference models"

    @property
    def over_rounds(self) -> str:
        return self.rounds

    @property
    def needs(self) -> Sees:
        several = Sees.ROUNDS if self.rounds == "mean" else Sees.NOTHING
        return Sees.REFERENCE_MODELS | several

    def with_references(self: Kind, references: Sequence[Reference]) -> Kind:
        return replace(self, references=tuple(references))

    def on_samples(self: Kind, chosen: Tensor) -> Kind:
        return replace(
            self,
            references=tuple(
                reference.on_samples(chosen) for reference in self._require_references()
            ),
        )

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        (m,) = measurements
        signals, references = m.of(target), self._require_references()
        rows = measured_rounds(signals, target).nonzero().flatten().tolist()
        trained_on = torch.stack([reference.trained_on for reference in references])
        return torch.stack(
            [
                self.compared(
                    signals[row].double(),
                    torch.stack(
                        [
                            _signal_in_round(
                                reference.measured, reference.client_for(target), m.rounds[row]
                            )
                            for reference in references
                        ]
                    ),
                    trained_on,
                )
                for row in (rows if self.rounds == "mean" else rows[-1:])
            ]
        ).mean(0)

    def refuse_few(self, trained_on: TrainedOn) -> None:
        """Raise if there would be too few reference models with or without some sample."""

    @abstractmethod
    def compared(
        self, signal: Float[Tensor, " samples"], others: Signals, trained_on: TrainedOn
    ) -> Float[Tensor, " samples"]:
        """Return the scores of a round.

        Args:
            signal: The target's signal, in double precision.
            others: The reference models' signals.
            trained_on: Which of the samples each reference model was trained on.
        """

    def _require_references(self) -> tuple[Reference, ...]:
        if not self.references:
            raise BadInput(
                "this attack compares with reference models, and has none; use "
                "Attack.with_references, or name it in a study, which trains some"
            )
        return self.references


@arguments.dataclass(frozen=True)
class RelativeLikelihood(ReferenceCalibrated):
    """RMIA: a sample's likelihood under the target, divided by its mean over reference models.

    The signal is minus a loss that is a negative log-likelihood: exp(-loss) is the probability of
    the true class, or its geometric mean over tokens.

    Attributes:
        rounds: "last", or "mean" of the logarithms over rounds.
        offline: Slope a of the approximation for samples that no reference model was trained on:
            the mean over models with and without the sample is approximated by
            ((1 + a) * the mean over models without it + 1 - a) / 2. From 0 to 1; -1 chooses the
            multiple of 0.1 with the largest AUC in attacks on the reference models, each compared
            with the others, and uses 0.3 with a single reference model.

    Source: Zarifzadeh et al. 2024 (RMIA), Eqs. (2), (9) and (10), and its choice of a.
    Differs: The score is the logarithm of the ratio, instead of the share of population samples
        whose ratio it exceeds by a factor. It ranks samples in the same order, without ties and
        without population samples. The authors choose a by an attack on one reference model. Here,
        each of the first four references is attacked in turn, on samples that these were trained on
        and on the audited samples, which none was trained on. Reference models are federations,
        whose clients have the defenses of the audited federation by default.
    """

    offline: OfflineSlope = -1.0

    def __call__(self, *measurements: Measurements, target: ClientId) -> Float[Tensor, " samples"]:
        if self.offline >= 0:
            return super().__call__(*measurements, target=target)
        slope = self.chosen_slope(target)
        return replace(self, offline=slope)(*measurements, target=target)

    def chosen_slope(self, target: ClientId) -> float:
        """Return the slope with the largest AUC in attacks on the first reference models.

        Only these have members among the measured samples that were drawn for them. A further
        model's members would be samples that it shares with these by chance.

        Args:
            target: The client under audit. References may be measured at another client instead.
        """
        references = self._require_references()
        areas = []
        for index, attacked in enumerate(references[:MAX_TUNED]):
            others = (*references[:index], *references[index + 1 :])
            areas.append(self._areas(attacked, others, target))
        areas = [by_slope for by_slope in areas if by_slope]
        return SLOPES[int(np.argmax(np.mean(areas, axis=0)))] if areas else DEFAULT_SLOPE

    def _areas(
        self, attacked: Reference, others: tuple[Reference, ...], target: ClientId
    ) -> list[float]:
        """Return the AUC of each slope in an attack on a reference; empty if there can be none."""
        tunings = [reference.tuning for reference in others if reference.tuning is not None]
        if attacked.tuning is None or not tunings:
            return []
        client, owner = attacked.client_for(target), attacked.tuning.owner
        absent = torch.stack([tuning.owner == NOBODY for tuning in tunings])
        # A sample that all other references were trained on cannot be compared.
        comparable = absent.any(0) & ((owner == client) | (owner == NOBODY))
        is_member = (owner == client)[comparable].numpy()
        if not 0 < is_member.sum() < len(is_member):
            return []
        (m,) = attacked.tuning.measured
        target_signals, mask = m.of(client), absent[:, comparable].numpy()
        rows = measured_rounds(target_signals, client).nonzero().flatten().tolist()
        scores = np.zeros((len(SLOPES), len(is_member)))
        for row in rows if self.rounds == "mean" else rows[-1:]:
            signals = [
                _signal_in_round(tuning.measured, reference.client_for(target), m.rounds[row])[
                    comparable
                ].numpy()
                for reference, tuning in zip(others, tunings, strict=True)
            ]
            without = _log_mean_exp(np.stack(signals), mask)
            target_signal = target_signals[row, comparable].double().numpy()
            scores += [target_signal - _approximation(without, slope) for slope in SLOPES]
        return [_auc(slope_scores, is_member) for slope_scores in scores]

    def compared(
        self, signal: Float[Tensor, " samples"], others: Signals, trained_on: TrainedOn
    ) -> Float[Tensor, " samples"]:
        mask = trained_on.numpy()
        with_it = _log_mean_exp(others.numpy(), mask)
        without = _log_mean_exp(others.numpy(), ~mask)
        assumed = _approximation(without, self.offline)
        both = np.logaddexp(with_it, without) - log(2)
        never, always = ~mask.any(0), mask.all(0)
        usual = np.where(never, assumed, np.where(always, with_it, both))
        return signal - torch.from_numpy(usual)


def _approximation(without: Float[ndarray, " samples"], slope: float) -> Float[ndarray, " samples"]:
    """Return the log mean over models of both kinds, approximated from those without a sample."""
    constant = log(1 - slope) if slope < 1 else -np.inf
    assumed: Float[ndarray, " samples"] = np.logaddexp(without + log(1 + slope), constant) - log(2)
    return assumed


def _auc(scores: Float[ndarray, " samples"], is_member: Bool[ndarray, " samples"]) -> float:
    """Return the AUC: the share of member and non-member pairs in order, where ties count half."""
    others = np.sort(scores[~is_member])
    below = np.searchsorted(others, scores[is_member], "left")
    not_above = np.searchsorted(others, scores[is_member], "right")
    return float((below + not_above).mean() / (2 * len(others)))


@arguments.dataclass(frozen=True)
class LikelihoodRatio(ReferenceCalibrated):
    """LiRA: a normal distribution of the signal over reference models, for each sample.

    Offline, the score is the target's distance above the mean over models that were not trained on
    the sample, in standard deviations if each sample has its own variance. Online, it is the
    logarithm of the ratio of the densities with and without the sample.

    Attributes:
        rounds: "last", or "mean" of the scores over rounds.
        variance: "fixed" for one variance for all samples, which is better with few reference
            models; "each" for one variance per sample.

    Source: Carlini et al. 2022 (LiRA), Algorithm 1 and Eq. (4); section VI-C (fixed variance).
    Differs: The score is the distance and not its probability, which ranks samples in the same
        order without ties. The published code uses the median over the models, and here it is the
        mean. Its fixed variance is that of all signals of all samples, with and without the sample;
        here it is the variance about each sample's mean, separately for both kinds of models. Its
        offline score is the density, which treats signals far below those of the reference models
        like signals far above; here, as in Eq. (4), only the upper side counts. Reference models
        are federations, as for RMIA.
    """

    variance: Literal["fixed", "each"] = "fixed"

    def compared(
        self, signal: Float[Tensor, " samples"], others: Signals, trained_on: TrainedOn
    ) -> Float[Tensor, " samples"]:
        without, spread = self._fitted(others, ~trained_on)
        above = signal - without
        if not bool(trained_on.any()):
            return above if self.variance == "fixed" else above / spread
        with_it, wide = self._fitted(others, trained_on)
        densities = (above / spread).square() - ((signal - with_it) / wide).square()
        return densities / 2 + (spread / wide).log()

    def refuse_few(self, trained_on: TrainedOn) -> None:
        self._refuse_few(~trained_on)
        if bool(trained_on.any()):
            self._refuse_few(trained_on)

    def _fitted(
        self, others: Signals, chosen: TrainedOn
    ) -> tuple[Float[Tensor, " samples"], Float[Tensor, " samples"]]:
        """Return mean and standard deviation of each sample over the chosen models."""
        self._refuse_few(chosen)
        count = chosen.sum(0)
        mean = others.where(chosen, 0.0).sum(0) / count
        squares = (others - mean).where(chosen, 0.0).square().sum(0)
        if self.variance == "each":
            variance = squares / (count - 1)
        else:
            variance = (squares.sum() / (count - 1).sum().clamp_min(1)).expand_as(squares)
        return mean, variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()

    def _refuse_few(self, chosen: TrainedOn) -> None:
        count = chosen.sum(0)
        fewest = 2 if self.variance == "each" else 1
        if int(count.min()) < fewest:
            raise BadInput(
                f"a likelihood ratio with variance {self.variance!r} needs {fewest} reference "
                f"models with and without every sample, got {int(count.min())}; raise "
                "references.count, or use RMIA"
            )


def _signal_in_round(
    measured: tuple[Measurements, ...], client: ClientId, index: int
) -> Float[Tensor, " samples"]:
    """Return a reference's signal in a round, or in its last one if it was not measured then."""
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
    values: Float[ndarray, "references samples"], chosen: Bool[ndarray, "references samples"]
) -> Float[ndarray, " samples"]:
    """Return the log mean of the exponentials of the chosen values; minus infinity for none."""
    # Not torch.logsumexp, whose last digits depend on the position of a sample in memory.
    total = np.logaddexp.reduce(np.where(chosen, values, -np.inf), axis=0)
    mean: Float[ndarray, " samples"] = total - np.log(np.maximum(chosen.sum(0), 1))
    return mean
