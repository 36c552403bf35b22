"""Measures of the membership risk of a model, for a server or for a client.

A server fits an attack on shadow models. A client chooses a loss threshold that separates its
training samples from its held-out samples on the model that it trained. It then applies this
threshold to the models that it receives.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks import ATTACKS, resolve_attack
from fedaudit.attacks.base import Attack
from fedaudit.core import arguments
from fedaudit.core.arguments import Positive
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, FedauditError, NotVisible, Unsupported, unknown_name
from fedaudit.core.importing import is_custom
from fedaudit.core.modules import outputs_of
from fedaudit.core.tasks import OutputKind
from fedaudit.core.values import Capability, Model, Samples, difference
from fedaudit.observe.measurements import stacked
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals.measure import measure_round


@runtime_checkable
class MembershipRule(Protocol):
    """Rule that decides from an attack's features which samples are members."""

    def __call__(self, features: Float[Tensor, "samples _"]) -> Bool[Tensor, " samples"]:
        """Return True for each sample that is classified as a member."""
        ...


@runtime_checkable
class RiskAttack(Protocol):
    """Attack on a single model that is fitted on shadow models; a frozen dataclass of settings.

    Computing features and fitting are separate methods, because cross-validation uses the features
    of a shadow model in several fits.
    """

    def features(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        """Compute the attack's features of each sample, in double precision.

        ``start`` is the model before its training. Only attacks on updates use it.
        """
        ...

    def fit(
        self, members: Float[Tensor, "members _"], nonmembers: Float[Tensor, "others _"]
    ) -> MembershipRule:
        """Fit a rule to the features of equally many members and non-members."""
        ...


@dataclass(frozen=True)
class FittedAttack:
    """Attack on a model, with a rule that is fitted on shadow models.

    Attributes:
        attack: Attack that computes the features.
        rule: The fitted rule.
        start: The model that the shadow models were trained from.
        device: Device to run models on.
    """

    attack: RiskAttack
    rule: MembershipRule
    start: Model
    device: torch.device = CPU

    def __call__(
        self, model: Model, samples: Samples, *, start: Model | None = None
    ) -> Bool[Tensor, " samples"]:
        """Return True for each sample that is classified as a member of the model's training data.

        ``start`` is the model before its training; None for the attribute of that name. To apply an
        attack on updates to that model, pass the model from which its training started.
        """
        features = self.attack.features(
            model, samples, start=start or self.start, device=self.device
        )
        return self.rule(features)


def best_threshold(
    members: Float[Tensor, " members"], nonmembers: Float[Tensor, " others"]
) -> float:
    """Return the score threshold with the largest balanced accuracy.

    Larger scores mean likelier members. The function returns the highest of several equally good
    thresholds. If no threshold is better than guessing, it returns infinity, so that no sample is
    classified as a member.
    """
    raise_if_unusable(members, nonmembers)
    thresholds = torch.cat([members, nonmembers]).sort(descending=True).values
    true_positives = len(members) - torch.searchsorted(members.sort().values, thresholds)
    false_positives = len(nonmembers) - torch.searchsorted(nonmembers.sort().values, thresholds)
    # Whole numbers are compared, because equal quotients could differ in their last bits.
    gain = true_positives * len(nonmembers) - false_positives * len(members)
    best = gain.max()
    return float(thresholds[gain == best][0]) if best > 0 else torch.inf


def raise_if_unusable(members: Tensor, nonmembers: Tensor) -> None:
    """Raise if there are no members or no non-members, or if scores (or losses) are NaN."""
    n_nan = int(torch.cat([members, nonmembers]).isnan().sum())
    if n_nan or not (len(members) and len(nonmembers)):
        raise BadInput(
            "a threshold needs scores or losses of members and non-members without NaN, got "
            f"{len(members)} members and {len(nonmembers)} non-members, of which {n_nan} are "
            "NaN; pass members and non-members, and check the model's outputs"
        )


@dataclass(frozen=True)
class LossThreshold:
    """Loss-threshold attack of a client, in the form that algorithms require."""

    def threshold(
        self, members: Float[Tensor, " members"], held_out: Float[Tensor, " held_out"]
    ) -> float:
        """Return the result of :func:`best_loss_threshold`."""
        return best_loss_threshold(members, held_out)

    def risk(
        self,
        members: Float[Tensor, " members"],
        held_out: Float[Tensor, " held_out"],
        threshold: float,
    ) -> float:
        """Return the result of :func:`client_risk`."""
        return client_risk(members, held_out, threshold)


def best_loss_threshold(
    members: Float[Tensor, " members"], held_out: Float[Tensor, " held_out"]
) -> float:
    """Return the loss threshold with the largest balanced accuracy on the client's own model.

    The arguments are losses. The function returns the lowest of several equally good thresholds. If
    no threshold is better than guessing, it returns minus infinity, so that no sample is called a
    member.

    Source: Jung et al. 2025 (IFCA-MIR), section 5.7, which only gives the idea. Yeom et al. 2018
        introduced the threshold on the loss.
    """
    return -best_threshold(-members.double(), -held_out.double())


def client_risk(
    members: Float[Tensor, " members"], held_out: Float[Tensor, " held_out"], threshold: float
) -> float:
    """Compute the balanced accuracy of a client's threshold on a model that it received.

    Samples with a loss of at most ``threshold`` are classified as members.

    Source: Jung et al. 2025 (IFCA-MIR), Eqs. (8)-(10).
    """
    raise_if_unusable(members, held_out)
    # Double precision is used so that the threshold is not rounded to the precision of the losses.
    true_positives = int((members.double() <= threshold).sum())
    true_negatives = int((held_out.double() > threshold).sum())
    return (true_positives / len(members) + true_negatives / len(held_out)) / 2


@arguments.dataclass(frozen=True)
class TrainMia:
    """Classifier on the largest posteriors and the loss, trained on shadow models.

    Attributes:
        top: Number of largest posteriors; all posteriors if the model has fewer classes.

    Source: Shokri et al. 2017, section 5.3; Jung et al. 2025 (IFCA-MIR), Algorithm 2.
    Differs: The paper names no classifier. This is logistic regression at 0.5 on standardised
        features. Sorted posteriors and the loss of the true class replace the posteriors and one
        classifier per class.
    """

    top: Positive = 3

    def features(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        outputs = outputs_of(model, samples.features, device)
        posteriors = outputs.double().softmax(1)
        largest = posteriors.topk(min(self.top, posteriors.shape[1])).values
        losses = model.architecture.loss(outputs, samples.targets).double()
        features = torch.cat([largest, losses[:, None]], 1)
        if not bool(features.isfinite().all()):
            raise BadInput(
                "the model's outputs or losses are not finite for some samples; lower the learning "
                "rate or check the features"
            )
        return features

    def fit(
        self, members: Float[Tensor, "members _"], nonmembers: Float[Tensor, "others _"]
    ) -> "LinearRule":
        # Imported here, because scikit-learn adds a second to the import of the package.
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits

        features = torch.cat([members, nonmembers])
        std, mean = torch.std_mean(features, 0, correction=0)
        scale = torch.where(std > 0, std, 1.0)
        is_member = np.arange(len(features)) < len(members)
        # Several BLAS threads change the last bits of results.
        with threadpool_limits(1, user_api="blas"):
            model = LogisticRegression(max_iter=1000)
            model.fit(((features - mean) / scale).numpy(), is_member)
        return LinearRule(
            mean, torch.from_numpy(model.coef_[0]) / scale, float(model.intercept_[0])
        )


@dataclass(frozen=True)
class LinearRule:
    """Rule that calls a sample a member if a linear function of its features is positive.

    Attributes:
        mean: Mean of the features, which is subtracted first for numerical accuracy.
        weights: Coefficients of the linear function.
        offset: Value of the linear function at the mean.
    """

    mean: Float[Tensor, " features"]
    weights: Float[Tensor, " features"]
    offset: float

    def __call__(self, features: Float[Tensor, "samples features"]) -> Bool[Tensor, " samples"]:
        """Return True for each sample that is classified as a member."""
        return ((features - self.mean) * self.weights).sum(1) + self.offset > 0


_REASONS_BY_NEED = {
    Capability.ROUNDS: "needs several rounds of the training",
    Capability.UPLOADS: "compares clients with each other",
    Capability.AUXILIARY_DATA: "needs auxiliary data to train on",
    Capability.REFERENCE_MODELS: "needs reference models",
    Capability.CHOOSES_MODEL: "chooses the model that is trained",
    Capability.CHOOSES_UPLOAD: "chooses the update of a client",
    Capability.CONTROL_VARIATES: "uses control variates",
}
_TARGET = 0


def reason_unsuitable(attack: Attack) -> str:
    """Return why an attack cannot measure the risk of a single model, or an empty string."""
    if attack.infers_source:
        return "infers the source of a sample, not its membership"
    for capability, reason in _REASONS_BY_NEED.items():
        if capability in attack.needs:
            return reason
    if attack.learns:
        return "is trained on a run with known members"
    if attack.needs_side_information:
        return "needs side information about a defense"
    if OutputKind.TOKENS in attack.needed_outputs:
        return "reads tokens, but the models that clients choose between are classifiers"
    return ""


@dataclass(frozen=True)
class CatalogueAttack:
    """Attack of the catalogue on one model, or on the update from one model to the next.

    Attributes:
        attack: A membership attack without trained parameters; only its threshold is fitted.
    """

    attack: Attack

    def __post_init__(self) -> None:
        reason = reason_unsuitable(self.attack)
        if reason:
            raise Unsupported(
                f"this attack ({self.attack.about or self.attack.source}) cannot measure the risk "
                f"of a model: it {reason}; use an attack on a single model, such as blackbox-loss"
            )

    def features(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        round = _one_client(self._exposed(model, start))
        measured = measure_round(round, self.attack.signals, samples, device=device)
        return self.attack.scores(stacked([measured]), _TARGET)[:, None]

    def fit(
        self, members: Float[Tensor, "members _"], nonmembers: Float[Tensor, "others _"]
    ) -> "ScoreThreshold":
        return ScoreThreshold(best_threshold(members[:, 0], nonmembers[:, 0]))

    def _exposed(self, model: Model, start: Model) -> ObservedModels:
        if Capability.UPDATE not in self.attack.needs:
            # The attack sees the model as the next round's global model, before any training.
            return ObservedModels(base=model, local=model)
        update = difference(model.params, start.params)
        if not any(bool(step.any()) for step in update.values()):
            raise NotVisible(
                "an attack on updates needs a model that differs from its start; pass the model "
                "that its training started from"
            )
        return ObservedModels(base=start, local=model, update=update)


@dataclass(frozen=True)
class ScoreThreshold:
    """Rule that calls samples with the highest scores members.

    Attributes:
        lowest: Lowest score at which a sample is classified as a member; infinite for no members.
    """

    lowest: float

    def __call__(self, features: Float[Tensor, "samples 1"]) -> Bool[Tensor, " samples"]:
        """Return True for each sample that is classified as a member."""
        return features[:, 0] >= self.lowest


def _one_client(observed: ObservedModels) -> Round:
    """Return the round of a federation with a single client."""
    after = {} if observed.local is None else {"global": observed.local}
    return Round(
        index=1,
        observed={_TARGET: observed},
        sent={},
        uploads={},
        weights={_TARGET: 1.0},
        selected=(_TARGET,),
        answered=(_TARGET,),
        after=after,
    )


MEASURES: dict[str, RiskAttack] = {"train-mia": TrainMia()} | {
    name: CatalogueAttack(attack)
    for name, attack in ATTACKS.items()
    if not reason_unsuitable(attack)
}


def resolve_measure(name: str) -> RiskAttack:
    """Return the measure of risk with this name, or wrap the attack with this name."""
    if name in MEASURES:
        return MEASURES[name]
    try:
        attack = resolve_attack(name)
    except FedauditError:
        if is_custom(name):
            raise
        raise unknown_name("measure of risk", name, MEASURES) from None
    reason = reason_unsuitable(attack)
    if reason:
        raise Unsupported(
            f"the attack {name!r} cannot measure the risk of a model: it {reason}; "
            f"measures: {', '.join(sorted(MEASURES))}"
        )
    return CatalogueAttack(attack)
