"""Measures of the membership risk of a model, for a server or for a client.

A server fits an attack on shadow models. A client compares its training samples with samples that
it held out: it chooses a loss threshold in its own model and applies it to the models that it
receives.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks import ATTACKS, attack_named
from fedaudit.attacks.base import Attack
from fedaudit.core import arguments
from fedaudit.core.arguments import Positive
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, FedauditError, NotVisible, Unsupported, unknown_name
from fedaudit.core.importing import is_custom
from fedaudit.core.modules import outputs_of
from fedaudit.core.tasks import Reading
from fedaudit.core.values import Model, Samples, Sees, difference
from fedaudit.observe.measurements import stacked
from fedaudit.observe.round import Exposed, Round
from fedaudit.signals.measure import measure_round


@runtime_checkable
class MembershipRule(Protocol):
    """Rule that decides about membership from the features of an attack."""

    def __call__(self, evidence: Float[Tensor, "samples _"]) -> Bool[Tensor, " samples"]:
        """Return True for each sample that is called a member."""
        ...


@runtime_checkable
class Measure(Protocol):
    """Attack on a single model that is fitted on shadow models; a frozen dataclass of settings.

    Computing features and fitting are separate methods, because the features of a shadow model are
    used in several fits.
    """

    def evidence(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        """Compute the attack's features of each sample, in double precision.

        ``start`` is the model before its training. Only attacks on updates use it.
        """
        ...

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> MembershipRule:
        """Fit the attack to features of members and of as many non-members."""
        ...


@dataclass(frozen=True)
class Decision:
    """Attack on a model with its rule fitted on shadow models.

    Attributes:
        measure: Attack that computes the features.
        verdict: The fitted rule.
        start: The model that the shadow models were trained from.
        device: Device to run models on.
    """

    measure: Measure
    verdict: MembershipRule
    start: Model
    device: torch.device = CPU

    def __call__(
        self, model: Model, samples: Samples, *, start: Model | None = None
    ) -> Bool[Tensor, " samples"]:
        """Return True for each sample that is called a member of the model's training data.

        ``start`` is the model before its training; by default the model that the shadow models
        were trained from. Attacks on updates need another one to attack that model itself.
        """
        evidence = self.measure.evidence(
            model, samples, start=start or self.start, device=self.device
        )
        return self.verdict(evidence)


def best_threshold(inside: Float[Tensor, " members"], outside: Float[Tensor, " others"]) -> float:
    """Return the score threshold with the largest balanced accuracy.

    Larger scores are likelier members. Of equally good scores, the highest is returned; if no score
    is better than guessing, infinity, at which no sample is called a member.
    """
    refuse_unusable(inside, outside)
    levels = torch.cat([inside, outside]).sort(descending=True).values
    caught, alarms = (
        len(side) - torch.searchsorted(side.sort().values, levels) for side in (inside, outside)
    )
    # Cross-multiplied integers are exact, so that ties stay ties.
    gain = caught * len(outside) - alarms * len(inside)
    best = gain.max()
    return float(levels[gain == best][0]) if best > 0 else torch.inf


def refuse_unusable(inside: Tensor, outside: Tensor) -> None:
    """Raise if scores (or losses) are missing on one side, or NaN."""
    broken = int(torch.cat([inside, outside]).isnan().sum())
    if broken or not (len(inside) and len(outside)):
        raise BadInput(
            f"a threshold separates members from non-members, got {len(inside)} and "
            f"{len(outside)} of them, and {broken} have NaN as score or loss; give samples "
            "of both kinds and check the model's outputs"
        )


@dataclass(frozen=True)
class ByLoss:
    """Loss-threshold attack of a client, with the methods that algorithms call."""

    def line(
        self, trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]
    ) -> float:
        """Return the best threshold in the client's model, by :func:`threshold_of`."""
        return threshold_of(trained, held_out)

    def risk(
        self,
        trained: Float[Tensor, " trained"],
        held_out: Float[Tensor, " held_out"],
        line: float,
    ) -> float:
        """Return the balanced accuracy at a threshold, by :func:`risk_of`."""
        return risk_of(trained, held_out, line)


def threshold_of(trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]) -> float:
    """Return the loss threshold with the largest balanced accuracy in the client's own model.

    Of equally good losses, the lowest is returned; if no loss is better than guessing, minus
    infinity, at which no sample is called a member.

    Source: IFCA-MIR, section 5.7, which names the idea only. Yeom et al. 2018 introduced the
        threshold on the loss.
    """
    return -best_threshold(-trained.double(), -held_out.double())


def risk_of(
    trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"], threshold: float
) -> float:
    """Compute the balanced accuracy of a client's threshold on a model that it received.

    Samples with a loss of at most ``threshold`` are called members; see :func:`threshold_of`.

    Source: IFCA-MIR, Eqs. (8)-(10).
    """
    refuse_unusable(trained, held_out)
    # Double precision, so that the threshold is not rounded to the precision of the losses.
    caught = int((trained.double() <= threshold).sum())
    cleared = int((held_out.double() > threshold).sum())
    return (caught / len(trained) + cleared / len(held_out)) / 2


@arguments.dataclass(frozen=True)
class TrainMia:
    """Classifier of the largest posteriors and the loss, trained on shadow models.

    Attributes:
        top: Number of posteriors, the largest first; all posteriors if the model has fewer classes.

    Source: Shokri et al. 2017, section 5.3; IFCA-MIR, Algorithm 2.
    Differs: The paper names no classifier. This is logistic regression at 0.5 on standardised
        features. Sorted posteriors and the loss of the true class replace the posteriors and one
        classifier per class.
    """

    top: Positive = 3

    def evidence(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        outputs = outputs_of(model, samples.features, device)
        posteriors = outputs.double().softmax(1)
        largest = posteriors.topk(min(self.top, posteriors.shape[1])).values
        losses = model.architecture.loss(outputs, samples.targets).double()
        features = torch.cat([largest, losses[:, None]], 1)
        if not bool(features.isfinite().all()):
            raise BadInput(
                "the model's outputs or losses are not finite for some samples, so that no attack "
                "can be trained; lower the learning rate or check the features"
            )
        return features

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> "Linear":
        # Imported here, because scikit-learn would add a second to every start-up.
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits

        together = torch.cat([inside, outside])
        spread, center = torch.std_mean(together, 0, correction=0)
        scale = torch.where(spread > 0, spread, 1.0)
        is_member = np.arange(len(together)) < len(inside)
        # Threads of BLAS change the last bits of results.
        with threadpool_limits(1, user_api="blas"):
            model = LogisticRegression(max_iter=1000)
            model.fit(((together - center) / scale).numpy(), is_member)
        return Linear(center, torch.from_numpy(model.coef_[0]) / scale, float(model.intercept_[0]))


@dataclass(frozen=True)
class Linear:
    """Linear rule: a sample is called a member if it lies on one side of a hyperplane.

    Attributes:
        center: Point that is subtracted first for numerical accuracy: the mean of the features.
        weights: Normal vector of the hyperplane, towards members.
        offset: Decision value at the center.
    """

    center: Float[Tensor, " evidence"]
    weights: Float[Tensor, " evidence"]
    offset: float

    def __call__(self, evidence: Float[Tensor, "samples evidence"]) -> Bool[Tensor, " samples"]:
        """Return True for each sample that is called a member."""
        return ((evidence - self.center) * self.weights).sum(1) + self.offset > 0


_UNAVAILABLE = {
    Sees.ROUNDS: "needs several rounds of the training",
    Sees.UPLOADS: "compares clients with each other",
    Sees.AUXILIARY_DATA: "needs auxiliary data to train on",
    Sees.REFERENCE_MODELS: "needs reference models",
    Sees.CHOOSES_MODEL: "chooses the model that is trained",
    Sees.CHOOSES_UPLOAD: "chooses the update of a client",
}
_TARGET = 0


def why_unfit(attack: Attack) -> str:
    """Return why an attack cannot measure the risk of a single model, or an empty string."""
    if attack.infers_source:
        return "infers the source of a sample, not its membership"
    for capability, reason in _UNAVAILABLE.items():
        if capability in attack.needs:
            return reason
    if attack.learns:
        return "is trained on a run with known members"
    if attack.needs_side_information:
        return "needs side information about a defense"
    if Reading.TOKENS in attack.reads:
        return "reads tokens, and the models that clients choose between are classifiers"
    return ""


@dataclass(frozen=True)
class ByAttack:
    """Attack of the catalogue on one model, or on the update from one model to the next.

    Attributes:
        attack: A membership attack without trained parameters; only its threshold is fitted.
    """

    attack: Attack

    def __post_init__(self) -> None:
        reason = why_unfit(self.attack)
        if reason:
            raise Unsupported(
                f"this attack ({self.attack.about or self.attack.source}) cannot measure the risk "
                f"of a model: it {reason}; use an attack on a single model, such as blackbox-loss"
            )

    def evidence(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        round = _one_client(self._exposed(model, start))
        measured = measure_round(round, self.attack.signals, samples, device=device)
        return self.attack.scores(stacked([measured]), _TARGET)[:, None]

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> "AtLeast":
        return AtLeast(best_threshold(inside[:, 0], outside[:, 0]))

    def _exposed(self, model: Model, start: Model) -> Exposed:
        if Sees.UPDATE not in self.attack.needs:
            # The server sees the model as it is sent in the next round, before any training.
            return Exposed(base=model, local=model)
        update = difference(model.params, start.params)
        if not any(bool(step.any()) for step in update.values()):
            raise NotVisible(
                "an attack on updates needs a model that has changed; pass the model that its "
                "training started from"
            )
        return Exposed(base=start, local=model, update=update)


@dataclass(frozen=True)
class AtLeast:
    """Threshold rule: samples with the highest scores are called members.

    Attributes:
        lowest: Lowest score of a sample that is called a member; infinite if none is.
    """

    lowest: float

    def __call__(self, evidence: Float[Tensor, "samples 1"]) -> Bool[Tensor, " samples"]:
        """Return True for each sample that is called a member."""
        return evidence[:, 0] >= self.lowest


def _one_client(exposed: Exposed) -> Round:
    """Return the round of a federation with a single client."""
    after = {} if exposed.local is None else {"global": exposed.local}
    return Round(
        index=1,
        exposed={_TARGET: exposed},
        sent={},
        uploads={},
        weights={_TARGET: 1.0},
        asked=(_TARGET,),
        answered=(_TARGET,),
        after=after,
    )


MEASURES: dict[str, Measure] = {"train-mia": TrainMia()} | {
    name: ByAttack(attack) for name, attack in ATTACKS.items() if not why_unfit(attack)
}


def measure_named(name: str) -> Measure:
    """Return the measure with this name, or the one that wraps the attack with this name."""
    if name in MEASURES:
        return MEASURES[name]
    try:
        attack = attack_named(name)
    except FedauditError:
        if is_custom(name):
            raise
        raise unknown_name("measure of risk", name, MEASURES) from None
    reason = why_unfit(attack)
    if reason:
        raise Unsupported(
            f"the attack {name!r} cannot measure the risk of a model: it {reason}; "
            f"measures: {', '.join(sorted(MEASURES))}"
        )
    return ByAttack(attack)
