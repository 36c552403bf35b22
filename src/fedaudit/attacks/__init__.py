"""Membership and source inference attacks, for :func:`fedaudit.audit`.

>>> import fedaudit as fa
>>> attacks = [fa.attacks.FedMIA2(), fa.attacks.RMIA(offline=0.3), "loss-series"]

Each function constructs one attack of ``fedaudit list attacks``; its arguments are the settings of
the attack. :class:`Attack` combines signals and a rule to a custom attack.
"""

from collections.abc import Iterable

from fedaudit.attacks.base import ENTRIES, name_entries, with_rule_settings, with_signal_settings
from fedaudit.attacks.base import Attack as Attack
from fedaudit.attacks.learned import SequenceReader, Stacked
from fedaudit.attacks.references import DEFAULT_SLOPE, LikelihoodRatio, RelativeLikelihood
from fedaudit.attacks.rules import Last, Mean, OneSidedLikelihood, Recovery, Slope, WhereAssigned
from fedaudit.attacks.sia import SourceAtLast, SourceByProduct, SourceByTail, SourceOnAverage
from fedaudit.core.errors import unknown_name
from fedaudit.core.importing import known_name, look_up
from fedaudit.core.values import Setting
from fedaudit.signals.outputs import (
    Confidence,
    Entropy,
    Loss,
    MaxPosterior,
    MinK,
    MinKPlusPlus,
    ModifiedEntropy,
    PosteriorSpread,
    ScaledLogit,
)
from fedaudit.signals.updates import (
    CentredTailCosine,
    GradientCosine,
    GradientDifference,
    GradientNorm,
    ProjectionResidual,
    WithoutTailCosine,
)

# fmt: off
BlackboxLoss = with_signal_settings("blackbox-loss", Loss, Last(), "Yeom et al. 2018", "A member's loss is low at the client's last model.")
GradCosine = with_signal_settings("grad-cosine", GradientCosine, Last(), "Li et al. 2022", "A member's gradient points along the last update.")
GradNorm = with_signal_settings("grad-norm", GradientNorm, Last(), "Nasr et al. 2019", "A member's gradient is short at the last global model.")
GradDiff = with_signal_settings("grad-diff", GradientDifference, Last(), "Li et al. 2022", "Subtracting a member's gradient shortens the last update.")
LossSeries = with_signal_settings("loss-series", Loss, Mean(), "Gu et al. 2022; FedMIA section 4.1", "A member's loss is low over the rounds.")
AvgCosine = with_signal_settings("avg-cosine", GradientCosine, Mean(), "Li et al. 2022", "A member's gradient points along the updates over the rounds.")
FedMIA1 = with_rule_settings("fedmia-1", (Loss(),), OneSidedLikelihood, "FedMIA, Eqs. (8)-(12), loss", "A member's loss under the target's models is below its loss under the other clients' models.")
FedMIA2 = with_rule_settings("fedmia-2", (GradientCosine(),), OneSidedLikelihood, "FedMIA, Eqs. (7)-(12), cosine", "A member's gradient fits the target's update better than the other clients'.")
FTAC = with_signal_settings("fta-c", Confidence, Slope(), "FTA-C; CoFedMID appendix D", "A member's confidence rises faster over the rounds.")
FTAL = with_signal_settings("fta-l", Loss, Slope(), "FTA-L; CoFedMID appendix D", "A member's loss falls faster over the rounds.")
FTACGlobal = with_signal_settings("fta-c-global", Confidence, Slope(), "FTA-C on the global models; CoFedMID appendix D", "A member's confidence rises faster over the rounds' global models.", snapshot="global")
FTALGlobal = with_signal_settings("fta-l-global", Loss, Slope(), "FTA-L on the global models; CoFedMID appendix D", "A member's loss falls faster over the rounds' global models.", snapshot="global")
SeqMIA = with_rule_settings("seqmia", (Loss(), MaxPosterior(), PosteriorSpread(), Entropy(), ModifiedEntropy()), SequenceReader, "SeqMIA, section 4; CoFedMID appendix D", "A network that is trained on a shadow run recognises how members' outputs change over the rounds.")
RMIA = with_rule_settings("rmia", (Loss(),), RelativeLikelihood, "Zarifzadeh et al. 2024 (RMIA)", "A member is likelier to the last model than to reference models that were not trained on it.")
RMIASeries = with_rule_settings("rmia-series", (Loss(),), RelativeLikelihood, "Zarifzadeh et al. 2024 (RMIA), over rounds", "A member is likelier to the models of all rounds than to reference models of the same rounds.", rounds="mean")
LiRA = with_rule_settings("lira", (ScaledLogit(),), LikelihoodRatio, "Carlini et al. 2022 (LiRA)", "The last model is more confident in a member than reference models without it, in standard deviations.")
LiRASeries = with_rule_settings("lira-series", (ScaledLogit(),), LikelihoodRatio, "Carlini et al. 2022 (LiRA), over rounds", "The models of all rounds are more confident in a member than reference models of the same rounds.", rounds="mean")
StackedSignals = with_rule_settings("stacked", (Loss(), GradientCosine(), GradientNorm(), GradientDifference()), Stacked, "Shokri et al. 2017; Nasr et al. 2019, over signals of federations", "A linear classifier that is trained on a shadow run weighs losses, cosines and gradients.")
LossSeriesAware = with_rule_settings("loss-series-aware", (Loss(),), WhereAssigned, "Loss-Series, knowing the classes that CoFedMID assigns", "A member's loss is low over the rounds in which the target was to train on its class.", rule=Mean())
FedMIA2Aware = with_rule_settings("fedmia-2-aware", (GradientCosine(),), WhereAssigned, "FedMIA-II, knowing the classes that CoFedMID assigns", "A member's gradient fits the target's update where the target was to train on its class.", rule=OneSidedLikelihood())
AvgCosineCentredTail = with_signal_settings("avg-cosine-centred-tail", CentredTailCosine, Mean(), "Avg-Cosine, knowing where CoFedMID's published noise is", "A member's gradient points along the updates, after subtracting the mean of their last entries.")
FedMIA2CentredTail = with_rule_settings("fedmia-2-centred-tail", (CentredTailCosine(),), OneSidedLikelihood, "FedMIA-II, knowing where CoFedMID's published noise is", "A member's gradient fits the target's update best, after subtracting the mean of each update's last entries.")
AvgCosineWithoutTail = with_signal_settings("avg-cosine-without-tail", WithoutTailCosine, Mean(), "Avg-Cosine, knowing where CoFedMID's noise is", "A member's gradient points along the updates without their last entries.")
FedMIA2WithoutTail = with_rule_settings("fedmia-2-without-tail", (WithoutTailCosine(),), OneSidedLikelihood, "FedMIA-II, knowing where CoFedMID's noise is", "A member's gradient fits the target's update best, without the updates' last entries.")
LossRecovery = with_rule_settings("recovery", (Loss(),), Recovery, "Nasr et al. 2019, active attacks; Mo et al. 2025 (FedPoisonMIA)", "A member's loss falls further after a malicious client has raised it.")
MinKPercent = with_signal_settings("min-k", MinK, Last(), "Shi et al. 2024 (Min-K%)", "A member's least likely tokens are likely to the client's last language model.")
MinKPercentPlusPlus = with_signal_settings("min-k-plus-plus", MinKPlusPlus, Last(), "Zhang et al. 2025 (Min-K%++)", "A member's least likely tokens are likely, relative to what the client's last language model expects.")
ProjRes = with_signal_settings("projres", ProjectionResidual, Last(), "Deng et al. 2026 (ProjRes)", "What enters a linear layer of a member lies in the span of the layer's last update.")
AvgProjRes = with_signal_settings("avg-projres", ProjectionResidual, Mean(), "ProjRes, over rounds", "What enters a linear layer of a member lies in the span of the layer's updates over the rounds.")
FedMIAProjRes = with_rule_settings("fedmia-projres", (ProjectionResidual(),), OneSidedLikelihood, "ProjRes under FedMIA's rule", "What enters a linear layer of a member lies in the span of the target's update more than of the other clients'.")

SIA = with_rule_settings("sia", (Loss(),), SourceAtLast, "SIA, Algorithms 1-3", "A sample is from the client whose last model has the least loss on it.")
SIAMean = with_rule_settings("sia-mean", (Loss(),), SourceOnAverage, "SIA, section 5 (future work)", "A sample is from the client whose models have the least loss on it over the rounds.")
SIAProduct = with_rule_settings("sia-product", (Loss(),), SourceByProduct, "SIA, section 5 (future work)", "A sample is from the client that is likeliest by the product of the rounds' posteriors.")
SIALikelihood = with_rule_settings("sia-likelihood", (Loss(),), SourceByTail, "FedMIA-I as a source posterior", "A sample is from the client whose models' loss on it is furthest below the others'.", rule=OneSidedLikelihood())
SIACosine = with_rule_settings("sia-cosine", (GradientCosine(),), SourceByTail, "FedMIA-II as a source posterior", "A sample is from the client whose updates its gradient fits furthest above the others'.", rule=OneSidedLikelihood())
# fmt: on

__all__ = ["Attack", *name_entries(globals())]

_ALL = {name: construct() for name, construct in ENTRIES.items()}

ATTACKS = {name: attack for name, attack in _ALL.items() if not attack.infers_source}
"""Every attack on membership by its catalogue name, with default settings."""

SOURCE_ATTACKS = {name: attack for name, attack in _ALL.items() if attack.infers_source}
"""Every attack on the source of a sample by its catalogue name, with default settings."""

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
"""Sets of default attacks, which studies and recordings run if they name no attack.

All attacks of an evaluation share its significance level, so that an additional attack changes the
significance of all others. A published set therefore never changes; new default attacks get a new
set.
"""

SET_SETTINGS: dict[str, dict[str, dict[str, Setting]]] = {
    "2026-2": {name: {"offline": DEFAULT_SLOPE} for name in ("rmia", "rmia-series")},
}
"""Settings that older sets keep for attacks with new defaults in the catalogue."""

DEFAULT_SET = list(ATTACK_SETS)[-1]
"""The set that is used if a study or recording names neither attacks nor a set."""


def attack_set(name: str) -> dict[str, Attack]:
    """Return the attacks of a set by name, with the settings that they have in it.

    Raises:
        BadInput: No such set; the message names the nearest.
    """
    if name not in ATTACK_SETS:
        raise unknown_name("set of attacks", name, ATTACK_SETS)
    settings = SET_SETTINGS.get(name, {})
    return {
        attack: attack_named(attack).with_settings(settings.get(attack, {}))
        for attack in ATTACK_SETS[name]
    }


def attack_named(name: str) -> Attack:
    """Return the attack of that name, from the catalogue, an installed package or ``module:object``.

    Raises:
        BadInput: No such attack; the message names the nearest.
    """
    attack: Attack | type[Attack] = look_up(
        "attack",
        name,
        ATTACKS | SOURCE_ATTACKS,
        expected="a fedaudit.attacks.Attack, or a subclass that needs no arguments",
        fits=lambda value: (
            isinstance(value, Attack) or (isinstance(value, type) and issubclass(value, Attack))
        ),
    )
    return attack() if isinstance(attack, type) else attack  # type: ignore[call-arg]


def catalogued(names: Iterable[str]) -> list[str]:
    """Return names of attacks as the catalogue spells them, after checking that each is known.

    Custom attacks (``module:object``) are left as they are, and nothing is imported.

    Raises:
        BadInput: An attack of that name does not exist; the message names the nearest.
    """
    return [known_name("attack", name, ATTACKS | SOURCE_ATTACKS) for name in names]


def __dir__() -> list[str]:
    return __all__
