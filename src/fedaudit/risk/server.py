"""Risk as a server finds it out: it trains shadows of each model, and attacks them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.devices import CPU
from fedaudit.core.values import Model, Samples
from fedaudit.fl.algorithms.ifca_mir import GUESS, Cluster
from fedaudit.fl.training.parallel import side_by_side
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.risk.base import Decision, Measure
from fedaudit.risk.catalog import TrainMia
from fedaudit.risk.shadow_models import Shadows, ShadowTraining, refuse_few, shadow_models


class ShadowSuccess(NamedTuple):
    """Success of an attack on members of a model's shadows.

    Attributes:
        estimate: Balanced accuracy on shadows that the attack was not fitted on.
        low: Lower limit of 95%, for other samples and these shadows.
        high: Upper limit.
        decide: The attack, fitted on all shadows, for models and samples of one's own.
        size: Samples that each shadow was trained on.
    """

    estimate: float
    low: float
    high: float
    decide: Decision
    size: int


class _Seen(NamedTuple):
    """Evidence of a shadow, or of half of its samples."""

    inside: Float[Tensor, "members _"]
    outside: Float[Tensor, "others _"]


class _Look(NamedTuple):
    start: Model
    model: Model
    inside: Int[Tensor, " size"]
    outside: Int[Tensor, " size"]


class _Counts(NamedTuple):
    """Numbers of members caught and of others cleared, each out of so many."""

    caught: int
    members: int
    cleared: int
    nonmembers: int


@dataclass(frozen=True)
class ServerRisk:
    """The server plays the attacker on its own models.

    It trains shadows of each model on samples of its own, fits an attack on all but one of them,
    and tries it on that one, each in turn. Of a single shadow, one half of the samples is tried
    with what the other half taught.

    Attributes:
        samples: The server's own: of nobody in the federation, at least ten.
        shadows: How many shadows, and how they are trained.
        measure: The attack.
        device: Where shadows are trained and run.

    Source: IFCA-MIR, Algorithm 2 and Eq. (8).
    Differs: The paper does not say what the attack's accuracy is measured on. Here it is always
        on a shadow that the attack never saw.
    """

    samples: Samples
    shadows: ShadowTraining
    measure: Measure = field(default_factory=TrainMia)
    device: torch.device = CPU

    def __post_init__(self) -> None:
        refuse_few(self.samples)

    def __call__(self, clusters: Sequence[Cluster], *, seed: int) -> list[float]:
        """See :class:`~fedaudit.fl.algorithms.ifca_mir.Risk`; a guess's for what nobody trains."""
        judged = self.judged(clusters, seed=seed)
        return [GUESS if one is None else one.estimate for one in judged]

    def judged(self, clusters: Sequence[Cluster], *, seed: int) -> list[ShadowSuccess | None]:
        """The risk of each model, with its limits and the attack that found it.

        Args:
            clusters: The models; None comes back for one that nobody trains.
            seed: See :func:`fedaudit.risk.shadow_models.shadow_models`.
        """
        trained = shadow_models(clusters, self.samples, self.shadows, seed=seed, device=self.device)
        seen = iter(self._seen(trained))
        return [self._judged(one, [next(seen) for _ in one.models]) for one in trained]

    def _seen(self, trained: Sequence[Shadows]) -> list[_Seen]:
        """Evidence of all shadows of all models, in their order."""
        looks = [
            _Look(*own)
            for one in trained
            for own in zip(one.starts, one.models, one.inside, one.outside, strict=True)
        ]
        return side_by_side(self._looked, looks, device=self.device)

    def _looked(self, look: _Look) -> _Seen:
        evidence = self.measure.evidence(
            look.model,
            self.samples.take(torch.cat([look.inside, look.outside])),
            start=look.start,
            device=self.device,
        )
        inside, outside = evidence.chunk(2)
        return _Seen(inside, outside)

    def _judged(self, shadows: Shadows, seen: list[_Seen]) -> ShadowSuccess | None:
        if not seen:
            return None
        parts = _halves(seen[0]) if len(seen) == 1 else seen
        counts = [
            self._tried(one, parts[:place] + parts[place + 1 :]) for place, one in enumerate(parts)
        ]
        found = counted_balanced_accuracy(*(sum(column) for column in zip(*counts, strict=True)))
        verdict = self.measure.fitted(*_joined(seen))
        decide = Decision(self.measure, verdict, shadows.base, self.device)
        return ShadowSuccess(found.value, found.low, found.high, decide, len(shadows.inside[0]))

    def _tried(self, one: _Seen, others: list[_Seen]) -> _Counts:
        verdict = self.measure.fitted(*_joined(others))
        caught, cleared = verdict(one.inside), ~verdict(one.outside)
        return _Counts(int(caught.sum()), len(caught), int(cleared.sum()), len(cleared))


def _joined(seen: Sequence[_Seen]) -> _Seen:
    inside, outside = zip(*seen, strict=True)
    return _Seen(torch.cat(inside), torch.cat(outside))


def _halves(seen: _Seen) -> list[_Seen]:
    middle = len(seen.inside) // 2
    first, second = slice(middle), slice(middle, None)
    return [_Seen(seen.inside[part], seen.outside[part]) for part in (first, second)]
