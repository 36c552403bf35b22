"""Catalogue of attacks: a row for each, with its signals, its rule and its source."""

from collections.abc import Iterable

from fedaudit.attacks.base import Attack, constructors_in, define_attack
from fedaudit.attacks.learned import SequenceReader, Stacked
from fedaudit.attacks.references import (
    DEFAULT_OFFLINE_COEFFICIENT,
    LikelihoodRatio,
    RelativeLikelihood,
)
from fedaudit.attacks.rules import (
    AssignedRoundsOnly,
    Largest,
    Last,
    Mean,
    OneSidedLikelihood,
    Recovery,
    SinceInitialModel,
    Slope,
)
from fedaudit.attacks.sia import SourceByProduct, SourceByTail, SourceFromLastRound, SourceOnAverage
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
    ZlibRatio,
)
from fedaudit.signals.reconstruction import NearestReconstruction
from fedaudit.signals.updates import (
    CentredTailCosine,
    ControlVariateCosine,
    GradientCosine,
    GradientDifference,
    GradientNorm,
    ProjectionResidual,
    WithoutTailCosine,
)

# fmt: off
BlackboxLoss = define_attack("blackbox-loss", (Loss(),), Last(), "Yeom et al. 2018", "A member's loss is low at the client's last model.")
GradCosine = define_attack("grad-cosine", (GradientCosine(),), Last(), "Li et al. 2022", "A member's gradient points along the last update.")
GradNorm = define_attack("grad-norm", (GradientNorm(),), Last(), "Nasr et al. 2019", "A member's gradient has a small norm at the last global model.")
GradDiff = define_attack("grad-diff", (GradientDifference(),), Last(), "Li et al. 2022", "Subtracting a member's gradient shortens the last update.")
LossSeries = define_attack("loss-series", (Loss(),), Mean(), "Gu et al. 2022; Zhu et al. 2024 (FedMIA), section 4.1", "A member's loss is low over the rounds.")
AvgCosine = define_attack("avg-cosine", (GradientCosine(),), Mean(), "Li et al. 2022", "A member's gradient points along the updates over the rounds.")
FedMIA1 = define_attack("fedmia-1", (Loss(),), OneSidedLikelihood(), "Zhu et al. 2024 (FedMIA), Eqs. (8)-(12), loss", "A member's loss under the target's models is below its loss under the other clients' models.")
FedMIA2 = define_attack("fedmia-2", (GradientCosine(),), OneSidedLikelihood(), "Zhu et al. 2024 (FedMIA), Eqs. (7)-(12), cosine", "A member's gradient is more similar to the target's update than to the other clients' updates.")
FTAC = define_attack("fta-c", (Confidence(),), Slope(), "Chen et al. 2024 (FTA-C); Bai et al. 2026 (CoFedMID), appendix D", "A member's confidence rises faster over the rounds.")
FTAL = define_attack("fta-l", (Loss(),), Slope(), "Chen et al. 2024 (FTA-L); Bai et al. 2026 (CoFedMID), appendix D", "A member's loss falls faster over the rounds.")
FTACGlobal = define_attack("fta-c-global", (Confidence(snapshot="global"),), Slope(), "Chen et al. 2024 (FTA-C), on the global models; Bai et al. 2026 (CoFedMID), appendix D", "A member's confidence rises faster over the rounds' global models.")
FTALGlobal = define_attack("fta-l-global", (Loss(snapshot="global"),), Slope(), "Chen et al. 2024 (FTA-L), on the global models; Bai et al. 2026 (CoFedMID), appendix D", "A member's loss falls faster over the rounds' global models.")
SeqMIA = define_attack("seqmia", (Loss(), MaxPosterior(), PosteriorSpread(), Entropy(), ModifiedEntropy()), SequenceReader(), "Li et al. 2024 (SeqMIA), section 4; Bai et al. 2026 (CoFedMID), appendix D", "A network that is trained on a shadow run recognises how members' outputs change over the rounds.")
RMIA = define_attack("rmia", (Loss(),), RelativeLikelihood(), "Zarifzadeh et al. 2024 (RMIA)", "The last model that the adversary sees gives a member a higher likelihood than reference models that were not trained on it.")
RMIASeries = define_attack("rmia-series", (Loss(),), RelativeLikelihood(rounds="mean"), "Zarifzadeh et al. 2024 (RMIA), over rounds", "The models of all rounds give a member a higher likelihood than reference models of the same rounds.")
LiRA = define_attack("lira", (ScaledLogit(),), LikelihoodRatio(), "Carlini et al. 2022 (LiRA)", "The last model that the adversary sees is more confident in a member's class than reference models that were not trained on it.")
LiRASeries = define_attack("lira-series", (ScaledLogit(),), LikelihoodRatio(rounds="mean"), "Carlini et al. 2022 (LiRA), over rounds", "The models of all rounds are more confident in a member's class than reference models of the same rounds.")
StackedSignals = define_attack("stacked", (Loss(), GradientCosine(), GradientNorm(), GradientDifference()), Stacked(), "Shokri et al. 2017; Nasr et al. 2019, over signals of federations", "A linear classifier that is trained on a shadow run weighs losses, cosines and gradients.")
LossSeriesAware = define_attack("loss-series-aware", (Loss(),), AssignedRoundsOnly(rule=Mean()), "Gu et al. 2022 (Loss-Series), with knowledge of the classes that Bai et al. 2026 (CoFedMID) assign", "A member's loss is low over the rounds in which the defense lets the target train on the member's class.")
FedMIA2Aware = define_attack("fedmia-2-aware", (GradientCosine(),), AssignedRoundsOnly(rule=OneSidedLikelihood()), "Zhu et al. 2024 (FedMIA-II), with knowledge of the classes that Bai et al. 2026 (CoFedMID) assign", "A member's gradient is similar to the target's update in rounds in which the defense lets the target train on the member's class.")
AvgCosineControl = define_attack("avg-cosine-control", (ControlVariateCosine(),), Mean(), "Li et al. 2022 (Avg-Cosine), adapted to the control variates of Karimireddy et al. 2020 (SCAFFOLD)", "A member's gradient points along the target's control variates over the rounds.")
FedMIA2Control = define_attack("fedmia-2-control", (ControlVariateCosine(),), OneSidedLikelihood(), "Zhu et al. 2024 (FedMIA-II), adapted to the control variates of Karimireddy et al. 2020 (SCAFFOLD)", "A member's gradient is more similar to the target's control variate than to the other clients' control variates.")
AvgCosineCentredTail = define_attack("avg-cosine-centred-tail", (CentredTailCosine(),), Mean(), "Li et al. 2022 (Avg-Cosine), with knowledge of where the published noise of Bai et al. 2026 (CoFedMID) is", "A member's gradient points along the updates, after the mean of their last parameters, to which CoFedMID adds noise, is subtracted.")
FedMIA2CentredTail = define_attack("fedmia-2-centred-tail", (CentredTailCosine(),), OneSidedLikelihood(), "Zhu et al. 2024 (FedMIA-II), with knowledge of where the published noise of Bai et al. 2026 (CoFedMID) is", "A member's gradient is most similar to the target's update, after the mean of each update's last parameters is subtracted.")
AvgCosineWithoutTail = define_attack("avg-cosine-without-tail", (WithoutTailCosine(),), Mean(), "Li et al. 2022 (Avg-Cosine), with knowledge of where the noise of Bai et al. 2026 (CoFedMID) is", "A member's gradient points along the updates without their last parameters, to which CoFedMID adds noise.")
FedMIA2WithoutTail = define_attack("fedmia-2-without-tail", (WithoutTailCosine(),), OneSidedLikelihood(), "Zhu et al. 2024 (FedMIA-II), with knowledge of where the noise of Bai et al. 2026 (CoFedMID) is", "A member's gradient is most similar to the target's update, without the updates' last parameters.")
LossRecovery = define_attack("recovery", (Loss(),), Recovery(), "Nasr et al. 2019, active attacks; Mo et al. 2025 (FedPoisonMIA)", "A member's loss falls further after a malicious client has raised it.")
MinKPercent = define_attack("min-k", (MinK(),), Last(), "Shi et al. 2024 (Min-K%)", "The client's last language model gives a member's least likely tokens a high probability.")
MinKPercentPlusPlus = define_attack("min-k-plus-plus", (MinKPlusPlus(),), Last(), "Zhang et al. 2025 (Min-K%++)", "The client's last language model gives a member's least likely tokens a higher probability than it expects at their positions.")
BaseReference = define_attack("base-reference", (Loss(), Loss(snapshot="received")), SinceInitialModel(), "Mireshghallah et al. 2022; Carlini et al. 2021", "The client's last model gives a member a lower loss than the initial model, such as a pretrained one.")
Zlib = define_attack("zlib", (ZlibRatio(),), Last(), "Carlini et al. 2021", "A member's loss under the client's last language model is low for the compressed size of its text.")
ProjRes = define_attack("projres", (ProjectionResidual(),), Last(), "Deng et al. 2026 (ProjRes)", "A member's input to a linear layer is a linear combination of the rows of the layer's last update.")
AvgProjRes = define_attack("avg-projres", (ProjectionResidual(),), Mean(), "Deng et al. 2026 (ProjRes), over rounds", "A member's input to a linear layer is a linear combination of the rows of the layer's update, over the rounds.")
FedMIAProjRes = define_attack("fedmia-projres", (ProjectionResidual(),), OneSidedLikelihood(), "Deng et al. 2026 (ProjRes), with the rule of Zhu et al. 2024 (FedMIA)", "A member's input to a linear layer is closer to the span of the rows of the target's update than to the spans of the other clients' updates.")
Reconstruction = define_attack("reconstruction", (NearestReconstruction(),), Largest(), "Phong et al. 2018; Geiping et al. 2020", "A member resembles a sample that is computed from the update of the first layer, more than an unseen sample does.")

SIA = define_attack("sia", (Loss(),), SourceFromLastRound(), "Hu et al. 2024 (SIA), Algorithms 1-3", "A sample is from the client whose last model has the least loss on it.")
SIAMean = define_attack("sia-mean", (Loss(),), SourceOnAverage(), "Hu et al. 2024 (SIA), section 5 (future work)", "A sample is from the client whose models have the least loss on it over the rounds.")
SIAProduct = define_attack("sia-product", (Loss(),), SourceByProduct(), "Hu et al. 2024 (SIA), section 5 (future work)", "A sample is from the client with the largest product of posterior probabilities over the rounds.")
SIALikelihood = define_attack("sia-likelihood", (Loss(),), SourceByTail(rule=OneSidedLikelihood()), "Zhu et al. 2024 (FedMIA-I), as a source posterior", "A sample is from the client whose models have a loss furthest below that of the other clients' models.")
SIACosine = define_attack("sia-cosine", (GradientCosine(),), SourceByTail(rule=OneSidedLikelihood()), "Zhu et al. 2024 (FedMIA-II), as a source posterior", "A sample is from the client whose updates are most similar to its gradient, compared with the other clients' updates.")
# fmt: on

CONSTRUCTORS = constructors_in(globals())
"""Every constructor by the name that it has in :mod:`fedaudit.attacks`."""

_ALL = [construct() for construct in CONSTRUCTORS.values()]

ATTACKS = {attack.name: attack for attack in _ALL if not attack.infers_source}
"""Every attack on membership by its catalogue name, with default settings."""

SOURCE_ATTACKS = {attack.name: attack for attack in _ALL if attack.infers_source}
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

A published set never changes, because an additional attack changes the corrected significance of
all others. New default attacks are added in a new set.
"""

SET_SETTINGS: dict[str, dict[str, dict[str, Setting]]] = {
    "2026-2": {name: {"offline": DEFAULT_OFFLINE_COEFFICIENT} for name in ("rmia", "rmia-series")},
}
"""Settings of attacks in older sets that differ from the catalogue's current defaults."""

DEFAULT_SET = list(ATTACK_SETS)[-1]
"""The set that is used if a study or recording names neither attacks nor a set."""


def attack_set(name: str) -> dict[str, Attack]:
    """Return the attacks of a set by name, with their settings in this set.

    Raises:
        BadInput: No set has this name; the message suggests the nearest one.
    """
    if name not in ATTACK_SETS:
        raise unknown_name("set of attacks", name, ATTACK_SETS)
    settings = SET_SETTINGS.get(name, {})
    return {
        attack: resolve_attack(attack).with_settings(settings.get(attack, {}))
        for attack in ATTACK_SETS[name]
    }


def resolve_attack(name: str) -> Attack:
    """Return the attack with a name of the catalogue or an installed package, or ``module:object``.

    Raises:
        BadInput: No attack has this name; the message suggests the nearest one.
    """
    attack: Attack | type[Attack] = look_up(
        "attack",
        name,
        ATTACKS | SOURCE_ATTACKS,
        expected="a fedaudit.attacks.Attack, or a subclass that needs no arguments",
        is_valid=lambda value: (
            isinstance(value, Attack) or (isinstance(value, type) and issubclass(value, Attack))
        ),
    )
    return attack() if isinstance(attack, type) else attack  # type: ignore[call-arg]


def catalogue_spellings(names: Iterable[str]) -> list[str]:
    """Return the catalogue's spelling of attack names; raise if an attack does not exist.

    Names of custom attacks (``module:object``) are returned unchanged, and nothing is imported.

    Raises:
        BadInput: No attack has one of these names; the message suggests the nearest one.
    """
    return [known_name("attack", name, ATTACKS | SOURCE_ATTACKS) for name in names]
