"""Membership by an attack of the catalogue, at the threshold that is best on shadow models."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks.base import Attack
from fedaudit.core import Model, Samples, Sees
from fedaudit.devices import CPU
from fedaudit.errors import NotVisible, Unsupported
from fedaudit.observe.measurements import stacked
from fedaudit.observe.round import Exposed, Round
from fedaudit.params import difference
from fedaudit.risk.threshold import best_threshold
from fedaudit.signals.measure import measure_round

_LACKING = {
    Sees.ROUNDS: "follows the training over several rounds",
    Sees.UPLOADS: "compares clients with each other",
    Sees.AUXILIARY_DATA: "needs data of its own to learn from",
    Sees.CHOOSES_MODEL: "chooses the model that is trained",
}
_TARGET = 0


def why_unfit(attack: Attack) -> str:
    """Why an attack cannot measure what one model gives away; empty if it can."""
    if attack.infers_source:
        return "asks whose a sample is, not whether it was trained on"
    for sight, why in _LACKING.items():
        if sight in attack.needs:
            return why
    if attack.learns:
        return "has to be shown a run of which the members are known"
    if attack.informed:
        return "has to be told what a defense chose"
    return ""


@dataclass(frozen=True)
class ByAttack:
    """An attack that scores samples by one model, or by one step from a model to the next.

    Attributes:
        attack: On membership; it learns nothing but where to draw the line.
    """

    attack: Attack

    def __post_init__(self) -> None:
        why = why_unfit(self.attack)
        if why:
            raise Unsupported(
                f"this attack ({self.attack.about or self.attack.source}) cannot measure the risk "
                f"of a model: it {why}; use one that looks at one model, such as blackbox-loss"
            )

    def evidence(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        """The attack's score; see :class:`fedaudit.risk.base.Measure`.

        Raises:
            NotVisible: The attack looks at an update, and the model is where it started.
        """
        round = _one_client(self._shown(model, start))
        measured = measure_round(round, self.attack.signals, samples, device=device)
        return self.attack.scores(stacked([measured]), _TARGET)[:, None]

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> "AtLeast":
        """The line that tells most apart; see :class:`fedaudit.risk.base.Measure`."""
        return AtLeast(best_threshold(inside[:, 0], outside[:, 0]))

    def _shown(self, model: Model, start: Model) -> Exposed:
        if Sees.UPDATE not in self.attack.needs:
            # As it is sent out next: what nobody has trained yet is all there is to see.
            return Exposed(base=model, local=model)
        update = difference(model.params, start.params)
        if not any(bool(step.any()) for step in update.values()):
            raise NotVisible(
                "an attack on updates cannot be tried on a model that has not moved; give "
                "the model that its training started from"
            )
        return Exposed(base=start, local=model, update=update)


@dataclass(frozen=True)
class AtLeast:
    """Members are the samples with the highest scores.

    Attributes:
        lowest: Of the scores of those who are taken for members; infinite for nobody.
    """

    lowest: float

    def __call__(self, evidence: Float[Tensor, "samples 1"]) -> Bool[Tensor, " samples"]:
        """See :class:`fedaudit.risk.base.Verdict`."""
        return evidence[:, 0] >= self.lowest


def _one_client(shown: Exposed) -> Round:
    """A federation of one: nobody to compare with."""
    after = {} if shown.local is None else {"global": shown.local}
    return Round(
        index=1,
        exposed={_TARGET: shown},
        sent={},
        uploads={},
        weights={_TARGET: 1.0},
        asked=(_TARGET,),
        answered=(_TARGET,),
        after=after,
    )
