"""Measures of membership risk: a model's outputs, an attack of the catalogue, or a client's own.

A client knows its own model, and which of its samples it held out. The threshold on losses that
best distinguishes the two in its own model is the one that it uses in the models that it is sent.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedaudit.attacks import ATTACKS, attack_named
from fedaudit.attacks.base import Attack
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
    """Tells members by what was looked at."""

    def __call__(self, evidence: Float[Tensor, "samples _"]) -> Bool[Tensor, " samples"]:
        """Membership decision on each sample."""
        ...


@runtime_checkable
class Measure(Protocol):
    """An attack on one model, to be fitted on shadows; a frozen dataclass with its settings.

    What it looks at is kept apart from what it concludes, because a shadow is looked at once and
    fitted on several times.
    """

    def evidence(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        """The attack's features of each sample in a model, in 64 bits.

        Args:
            model: Under attack.
            samples: To look at.
            start: Where the model's training began; most attacks need no such thing.
            device: Where to run the model.
        """
        ...

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> MembershipRule:
        """The attack fitted to features of members and of as many others."""
        ...


@dataclass(frozen=True)
class Decision:
    """Takes samples for members of a model's training data, or not.

    Attributes:
        measure: Looks at the model.
        verdict: What it has learned from shadows.
        start: Where the shadows began.
        device: Where models are run.
    """

    measure: Measure
    verdict: MembershipRule
    start: Model
    device: torch.device = CPU

    def __call__(
        self, model: Model, samples: Samples, *, start: Model | None = None
    ) -> Bool[Tensor, " samples"]:
        """Membership decision on each sample.

        Args:
            model: Under attack.
            samples: To decide on.
            start: Where its training began; None for where the shadows did. Attacks on updates
                need it for the very model that the shadows began at.
        """
        evidence = self.measure.evidence(
            model, samples, start=start or self.start, device=self.device
        )
        return self.verdict(evidence)


def best_threshold(inside: Float[Tensor, " members"], outside: Float[Tensor, " others"]) -> float:
    """The score from which on samples are taken for members with the largest balanced accuracy.

    Compared in whole numbers, so that rounding breaks no tie.

    Args:
        inside: Scores of members, larger for likelier ones.
        outside: Scores of others.

    Returns:
        One of the scores, the highest of equally good ones; infinity, at which nobody is taken for
        a member, where no score is better than a guess.

    Raises:
        BadInput: A side is empty, or a score is not a number.
    """
    refuse_unusable(inside, outside)
    levels = torch.cat([inside, outside]).sort(descending=True).values
    found, alarms = (
        len(side) - torch.searchsorted(side.sort().values, levels) for side in (inside, outside)
    )
    gain = found * len(outside) - alarms * len(inside)
    most = gain.max()
    return float(levels[gain == most][0]) if most > 0 else torch.inf


def refuse_unusable(inside: Tensor, outside: Tensor) -> None:
    """Refuses scores (or losses) that no line can be drawn between.

    Raises:
        BadInput: A side is empty, or one of them is not a number.
    """
    broken = int(torch.cat([inside, outside]).isnan().sum())
    if broken or not (len(inside) and len(outside)):
        raise BadInput(
            f"a line is drawn between members and others, got {len(inside)} and {len(outside)} of "
            f"them, of whose scores or losses {broken} are not numbers; give samples of both kinds "
            "and check the model's outputs"
        )


@dataclass(frozen=True)
class ByLoss:
    """A client's own attack, as an algorithm takes it."""

    def line(
        self, trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]
    ) -> float:
        """See :func:`threshold_of`."""
        return threshold_of(trained, held_out)

    def risk(
        self,
        trained: Float[Tensor, " trained"],
        held_out: Float[Tensor, " held_out"],
        line: float,
    ) -> float:
        """See :func:`risk_of`."""
        return risk_of(trained, held_out, line)


def threshold_of(trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"]) -> float:
    """The loss up to which samples are best taken for members of the client's own model.

    Args:
        trained: Losses in that model of samples that it was trained on.
        held_out: Losses of samples of the same client that it was not trained on.

    Returns:
        One of these losses, the lowest of those with the largest balanced accuracy; minus
        infinity, at which nobody is taken for a member, if that is the best.

    Raises:
        BadInput: A side is empty, or a loss is not a number.

    Source: IFCA-MIR, section 5.7, which names the idea only; the threshold on the loss is that of
        Yeom et al. 2018.
    """
    return -best_threshold(-trained.double(), -held_out.double())


def risk_of(
    trained: Float[Tensor, " trained"], held_out: Float[Tensor, " held_out"], threshold: float
) -> float:
    """Balanced accuracy of a client's threshold on a model that it was sent.

    Args:
        trained: Losses in that model of samples that the client trains on.
        held_out: Losses of the samples that it holds out.
        threshold: Samples with this loss or less are taken for members; see :func:`threshold_of`.

    Returns:
        A share; 0.5 is what a guess gets right.

    Raises:
        BadInput: A side is empty, or a loss is not a number.

    Source: IFCA-MIR, Eqs. (8)-(10).
    """
    refuse_unusable(trained, held_out)
    # In 64 bits: a threshold is not rounded to the losses' precision first.
    caught = int((trained.double() <= threshold).sum())
    cleared = int((held_out.double() > threshold).sum())
    return (caught / len(trained) + cleared / len(held_out)) / 2


@dataclass(frozen=True)
class TrainMia:
    """A classifier of a model's largest posteriors and its loss, learned on shadow models.

    Attributes:
        top: How many posteriors it sees, the largest first, at least 1; all where the model has
            fewer classes.

    Source: Shokri et al. 2017, section 5.3; IFCA-MIR, Algorithm 2.
    Differs: The paper names no classifier. This is logistic regression at 0.5 on standardised
        evidence; sorted posteriors and the loss of the true class stand for the posterior and
        one classifier for each class.
    """

    top: int = 3

    def __post_init__(self) -> None:
        if self.top < 1:
            raise BadInput(f"an attack on posteriors sees at least 1 of them, got {self.top}")

    def evidence(
        self, model: Model, samples: Samples, *, start: Model, device: torch.device = CPU
    ) -> Float[Tensor, "samples _"]:
        """The largest posteriors, and the loss; see :class:`fedaudit.risk.catalog.Measure`.

        Raises:
            BadInput: They are not finite.
        """
        outputs = outputs_of(model, samples.features, device)
        posteriors = outputs.double().softmax(1)
        largest = posteriors.topk(min(self.top, posteriors.shape[1])).values
        losses = model.architecture.loss(outputs, samples.targets).double()
        found = torch.cat([largest, losses[:, None]], 1)
        if not bool(found.isfinite().all()):
            raise BadInput(
                "the model's outputs or losses are not finite for some samples, so that nothing "
                "can be learned of members; lower the learning rate or check the features"
            )
        return found

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> "Linear":
        """See :class:`fedaudit.risk.catalog.Measure`."""
        # Imported here: a second of start-up that training alone need not pay.
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits

        together = torch.cat([inside, outside])
        spread, center = torch.std_mean(together, 0, correction=0)
        scale = torch.where(spread > 0, spread, 1.0)
        is_member = np.arange(len(together)) < len(inside)
        # Threads of BLAS change the last bits.
        with threadpool_limits(1, user_api="blas"):
            model = LogisticRegression(max_iter=1000)
            model.fit(((together - center) / scale).numpy(), is_member)
        return Linear(center, torch.from_numpy(model.coef_[0]) / scale, float(model.intercept_[0]))


@dataclass(frozen=True)
class Linear:
    """Members are on one side of a plane.

    Attributes:
        center: A point, for exactness the middle of what was learned from.
        weights: Across the plane, towards members.
        offset: How far inside the center is.
    """

    center: Float[Tensor, " evidence"]
    weights: Float[Tensor, " evidence"]
    offset: float

    def __call__(self, evidence: Float[Tensor, "samples evidence"]) -> Bool[Tensor, " samples"]:
        """See :class:`fedaudit.risk.catalog.MembershipRule`."""
        return ((evidence - self.center) * self.weights).sum(1) + self.offset > 0


_LACKING = {
    Sees.ROUNDS: "follows the training over several rounds",
    Sees.UPLOADS: "compares clients with each other",
    Sees.AUXILIARY_DATA: "needs data of its own to learn from",
    Sees.REFERENCE_MODELS: "needs models of its own to compare with",
    Sees.CHOOSES_MODEL: "chooses the model that is trained",
    Sees.CHOOSES_UPLOAD: "chooses what a client sends",
}
_TARGET = 0


def why_unfit(attack: Attack) -> str:
    """Reason why an attack cannot measure what one model gives away; empty if it can."""
    if attack.infers_source:
        return "asks whose a sample is, not whether it was trained on"
    for sight, why in _LACKING.items():
        if sight in attack.needs:
            return why
    if attack.learns:
        return "has to be shown a run of which the members are known"
    if attack.needs_side_information:
        return "has to be told what a defense chose"
    if Reading.TOKENS in attack.reads:
        return "reads tokens, and clients choose between models that tell classes apart"
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
        """The attack's score; see :class:`fedaudit.risk.catalog.Measure`.

        Raises:
            NotVisible: The attack looks at an update, and the model is where it started.
        """
        round = _one_client(self._shown(model, start))
        measured = measure_round(round, self.attack.signals, samples, device=device)
        return self.attack.scores(stacked([measured]), _TARGET)[:, None]

    def fitted(
        self, inside: Float[Tensor, "members _"], outside: Float[Tensor, "others _"]
    ) -> "AtLeast":
        """The line that tells most apart; see :class:`fedaudit.risk.catalog.Measure`."""
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
        """See :class:`fedaudit.risk.catalog.MembershipRule`."""
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


MEASURES: dict[str, Measure] = {"train-mia": TrainMia()} | {
    name: ByAttack(attack) for name, attack in ATTACKS.items() if not why_unfit(attack)
}


def measure_named(name: str) -> Measure:
    """The measure of that name.

    Raises:
        BadInput: There is neither a measure nor an attack of that name.
        Unsupported: It is an attack that cannot measure the risk of a model; it says why.
    """
    if name in MEASURES:
        return MEASURES[name]
    try:
        attack = attack_named(name)
    except FedauditError:
        if is_custom(name):
            raise
        raise unknown_name("measure of risk", name, MEASURES) from None
    why = why_unfit(attack)
    if why:
        raise Unsupported(
            f"the attack {name!r} cannot measure the risk of a model: it {why}; "
            f"measures: {', '.join(sorted(MEASURES))}"
        )
    return ByAttack(attack)
