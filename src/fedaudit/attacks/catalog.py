"""The catalogues of attacks, on membership and on sources: tables to hold against the papers."""

from collections.abc import Iterable

from fedaudit.attacks.base import Attack
from fedaudit.attacks.membership.assignment_aware import WhereAssigned
from fedaudit.attacks.membership.fedmia import OneSidedLikelihood
from fedaudit.attacks.membership.recovery import Recovery
from fedaudit.attacks.membership.reference import USUAL_SLOPE, LikelihoodRatio, RelativeLikelihood
from fedaudit.attacks.membership.seqmia import SequenceReader
from fedaudit.attacks.membership.single_client import Last, Mean, Slope
from fedaudit.attacks.membership.stacked import Stacked
from fedaudit.attacks.sia import SourceAtLast, SourceByProduct, SourceByTail, SourceOnAverage
from fedaudit.core.errors import unknown_name
from fedaudit.core.importing import as_catalogued, installed, is_own, named, unknown_part
from fedaudit.core.values import Setting
from fedaudit.signals.outputs import (
    Confidence,
    Entropy,
    Loss,
    MaxPosterior,
    ModifiedEntropy,
    PosteriorSpread,
    ScaledLogit,
)
from fedaudit.signals.residuals import ProjectionResidual
from fedaudit.signals.tokens import MinK, MinKPlusPlus
from fedaudit.signals.updates import (
    CentredTailCosine,
    GradientCosine,
    GradientDifference,
    GradientNorm,
    WithoutTailCosine,
)

# fmt: off
ATTACKS: dict[str, Attack] = {
    "blackbox-loss": Attack((Loss(),), Last(), "Yeom et al. 2018", "A member's loss is low at the client's last model."),
    "grad-cosine": Attack((GradientCosine(),), Last(), "Li et al. 2022", "A member's gradient points along the last update."),
    "grad-norm": Attack((GradientNorm(),), Last(), "Nasr et al. 2019", "A member's gradient is short at the last global model."),
    "grad-diff": Attack((GradientDifference(),), Last(), "Li et al. 2022", "Taking a member's gradient away shortens the last update."),
    "loss-series": Attack((Loss(),), Mean(), "Gu et al. 2022; FedMIA section 4.1", "A member's loss is low over the rounds."),
    "avg-cosine": Attack((GradientCosine(),), Mean(), "Li et al. 2022", "A member's gradient points along the updates over the rounds."),
    "fedmia-1": Attack((Loss(),), OneSidedLikelihood(), "FedMIA, Eqs. (8)-(12), loss", "A member's loss at the target is below what the other clients' models give it."),
    "fedmia-2": Attack((GradientCosine(),), OneSidedLikelihood(), "FedMIA, Eqs. (7)-(12), cosine", "A member's gradient fits the target's update better than the other clients'."),
    "fta-c": Attack((Confidence(),), Slope(), "FTA-C; CoFedMID appendix D", "A member's confidence rises faster over the rounds."),
    "fta-l": Attack((Loss(),), Slope(), "FTA-L; CoFedMID appendix D", "A member's loss falls faster over the rounds."),
    "fta-c-global": Attack((Confidence("global"),), Slope(), "FTA-C on the global models; CoFedMID appendix D", "A member's confidence rises faster over the rounds' global models."),
    "fta-l-global": Attack((Loss("global"),), Slope(), "FTA-L on the global models; CoFedMID appendix D", "A member's loss falls faster over the rounds' global models."),
    "seqmia": Attack((Loss(), MaxPosterior(), PosteriorSpread(), Entropy(), ModifiedEntropy()), SequenceReader(), "SeqMIA, section 4; CoFedMID appendix D", "A network that has learned on a shadow run how members' outputs move over the rounds."),
    "rmia": Attack((Loss(),), RelativeLikelihood(), "Zarifzadeh et al. 2024 (RMIA)", "A member is likelier to the last model than to reference models that were not trained on it."),
    "rmia-series": Attack((Loss(),), RelativeLikelihood(rounds="mean"), "Zarifzadeh et al. 2024 (RMIA), over rounds", "A member is likelier to the models of all rounds than to reference models of the same rounds."),
    "lira": Attack((ScaledLogit(),), LikelihoodRatio(), "Carlini et al. 2022 (LiRA)", "The last model is surer of a member than reference models that were not trained on it, in standard deviations."),
    "lira-series": Attack((ScaledLogit(),), LikelihoodRatio(rounds="mean"), "Carlini et al. 2022 (LiRA), over rounds", "The models of all rounds are surer of a member than reference models of the same rounds."),
    "stacked": Attack((Loss(), GradientCosine(), GradientNorm(), GradientDifference()), Stacked(), "Shokri et al. 2017; Nasr et al. 2019, over signals of federations", "A linear classifier that has learned on a shadow run how to weigh losses, cosines and gradients."),
    "loss-series-aware": Attack((Loss(),), WhereAssigned(Mean()), "Loss-Series, told of the classes that CoFedMID assigns", "A member's loss is low over the rounds in which the target was to train on its class."),
    "fedmia-2-aware": Attack((GradientCosine(),), WhereAssigned(OneSidedLikelihood()), "FedMIA-II, told of the classes that CoFedMID assigns", "A member's gradient fits the target's update where the target was to train on its class."),
    "avg-cosine-centred-tail": Attack((CentredTailCosine(),), Mean(), "Avg-Cosine, told where CoFedMID's published noise lies", "A member's gradient points along the updates less the mean of their last entries."),
    "fedmia-2-centred-tail": Attack((CentredTailCosine(),), OneSidedLikelihood(), "FedMIA-II, told where CoFedMID's published noise lies", "A member's gradient fits the target's update best once each update's last entries are less their mean."),
    "avg-cosine-without-tail": Attack((WithoutTailCosine(),), Mean(), "Avg-Cosine, told where CoFedMID's noise lies", "A member's gradient points along the updates, their last entries left out."),
    "fedmia-2-without-tail": Attack((WithoutTailCosine(),), OneSidedLikelihood(), "FedMIA-II, told where CoFedMID's noise lies", "A member's gradient fits the target's update best, their last entries left out."),
    "recovery": Attack((Loss(),), Recovery(), "Nasr et al. 2019, active attacks; Mo et al. 2025 (FedPoisonMIA)", "A member's loss falls further after a malicious client has raised it."),
    "min-k": Attack((MinK(),), Last(), "Shi et al. 2024 (Min-K%)", "A member's least likely tokens are likely to the client's last language model."),
    "min-k-plus-plus": Attack((MinKPlusPlus(),), Last(), "Zhang et al. 2025 (Min-K%++)", "A member's least likely tokens are likely for what the client's last language model expects there."),
    "projres": Attack((ProjectionResidual(),), Last(), "Deng et al. 2026 (ProjRes)", "What enters a linear layer of a member lies in the span of the layer's last update."),
    "avg-projres": Attack((ProjectionResidual(),), Mean(), "ProjRes, over rounds", "What enters a linear layer of a member lies in the span of the layer's updates over the rounds."),
    "fedmia-projres": Attack((ProjectionResidual(),), OneSidedLikelihood(), "ProjRes under FedMIA's rule", "What enters a linear layer of a member lies in the span of the target's update more than of the other clients'."),
}

SOURCE_ATTACKS: dict[str, Attack] = {
    "sia": Attack((Loss(),), SourceAtLast(), "SIA, Algorithms 1-3", "A sample is from the client whose last model has the least loss on it."),
    "sia-mean": Attack((Loss(),), SourceOnAverage(), "SIA, section 5 (future work)", "A sample is from the client whose models have the least loss on it over the rounds."),
    "sia-product": Attack((Loss(),), SourceByProduct(), "SIA, section 5 (future work)", "A sample is from the client that is likeliest by the product of the rounds' posteriors."),
    "sia-likelihood": Attack((Loss(),), SourceByTail(rule=OneSidedLikelihood()), "FedMIA-I as a source posterior", "A sample is from the client whose models' loss on it is furthest below the others'."),
    "sia-cosine": Attack((GradientCosine(),), SourceByTail(rule=OneSidedLikelihood()), "FedMIA-II as a source posterior", "A sample is from the client whose updates its gradient fits furthest above the others'."),
}
# fmt: on

ATTACK_SETS: dict[str, tuple[str, ...]] = {
    "2026-1": (
        "blackbox-loss",
        "grad-cosine",
        "grad-norm",
        "grad-diff",
        "loss-series",
        "avg-cosine",
        "fedmia-1",
        "fedmia-2",
        "fta-c",
        "fta-l",
        "seqmia",
        "loss-series-aware",
        "fedmia-2-aware",
        "sia",
        "sia-mean",
        "sia-product",
        "sia-likelihood",
        "sia-cosine",
    ),
}
ATTACK_SETS["2026-2"] = (
    *ATTACK_SETS["2026-1"],
    "rmia",
    "rmia-series",
    "lira",
    "lira-series",
)
ATTACK_SETS["2026-3"] = (*ATTACK_SETS["2026-2"], "fta-c-global", "fta-l-global")
"""What studies and recordings that name no attack run, by the name of the set.

Attacks of one evaluation share its error level, so that one attack more moves the figures of all
others. A set therefore never changes: rows that are to be run by default come with a new set.
"""

SET_SETTINGS: dict[str, dict[str, dict[str, Setting]]] = {
    "2026-2": {name: {"offline": USUAL_SLOPE} for name in ("rmia", "rmia-series")},
}
"""Settings of a set's attacks that the catalogue's default was when the set was made."""

DEFAULT_SET = list(ATTACK_SETS)[-1]
"""The set of studies and recordings that name neither an attack nor a set."""


def attack_set(name: str) -> dict[str, Attack]:
    """The attacks of a set by name, with the settings that they have in it.

    Raises:
        BadInput: There is no such set; the refusal names the nearest.
    """
    if name not in ATTACK_SETS:
        raise unknown_name("set of attacks", name, ATTACK_SETS)
    given = SET_SETTINGS.get(name, {})
    return {one: attack_named(one).with_settings(given.get(one, {})) for one in ATTACK_SETS[name]}


def attack_named(name: str) -> Attack:
    """The attack of that name, of an installed package, or of the user's own as ``module:object``.

    Raises:
        BadInput: There is none; the nearest is named.
    """
    found: Attack | type[Attack] = named(
        "attack",
        name,
        ATTACKS | SOURCE_ATTACKS,
        wanted="a fedaudit.attacks.base.Attack, or a class of such that takes nothing",
        fits=lambda found: isinstance(found, Attack) or _makes_attacks(found),
    )
    return found() if isinstance(found, type) else found  # type: ignore[call-arg]


def catalogued(names: Iterable[str]) -> list[str]:
    """Names of attacks as the catalogue spells them, each of which is one.

    The user's own (``module:object``) are left as they are, and nothing is imported.

    Raises:
        BadInput: There is no attack of a name; the nearest is named.
    """
    known = ATTACKS | SOURCE_ATTACKS
    found = [as_catalogued("attack", name, known) for name in names]
    for name in found:
        if not (is_own(name) or name in known or name in installed("attack")):
            raise unknown_part("attack", name, known)
    return found


def _makes_attacks(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Attack)
