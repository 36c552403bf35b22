"""The catalogue of defenses by name."""

from collections.abc import Callable, Mapping
from inspect import signature

from fedaudit.core.importing import called, named
from fedaudit.core.naming import Copies
from fedaudit.core.values import ClientId, Setting
from fedaudit.defenses.augment import Augmentation
from fedaudit.defenses.base import Defense
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.cofedmid import CoFedMID
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.cofedmid.neutral import NeutralNoise
from fedaudit.defenses.cofedmid.partition import ClassGuided
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.foreign import imported_filter
from fedaudit.defenses.hamp import Hamp
from fedaudit.defenses.ldp.additive import LdpGaussian, LdpLaplace
from fedaudit.defenses.ldp.bit_mechanisms import BitRandPublished, BitwiseRR, OmePublished
from fedaudit.defenses.mixup import MixUp
from fedaudit.defenses.noise import GradientNoise
from fedaudit.defenses.quantize import GradientQuantization
from fedaudit.defenses.relaxloss import RelaxLoss
from fedaudit.defenses.sampling import DataSampling
from fedaudit.defenses.sparsify import GradientSparsification

DEFENSES: dict[str, Callable[..., Defense]] = {
    "none": Defense,
    "gradient-noise": GradientNoise,
    "client-dp": ClientDP,
    "dp-sgd": DPSGD,
    "sparsification": GradientSparsification,
    "quantization": GradientQuantization,
    "data-sampling": DataSampling,
    "filter": imported_filter,
    "mixup": MixUp,
    "augmentation": Augmentation,
    "relaxloss": RelaxLoss,
    "hamp": Hamp,
    "cofedmid": CoFedMID,
    "class-guided": ClassGuided,
    "compensation": Compensation,
    "neutral-noise": NeutralNoise,
    "bitrand": BitRandPublished,
    "ome": OmePublished,
    "bitwise-rr": BitwiseRR,
    "ldp-laplace": LdpLaplace,
    "ldp-gaussian": LdpGaussian,
}


def defense_named(name: str) -> Callable[..., Defense]:
    """The maker of a defense: of the catalogue, of a package, or the user's ``module:class``.

    Raises:
        BadInput: There is none; the nearest is named.
    """
    return named(
        "defense",
        name,
        DEFENSES,
        wanted="a class derived from fedaudit.defenses.base.Defense",
        fits=_makes_defenses,
    )


def _makes_defenses(found: object) -> bool:
    return isinstance(found, Copies) or (isinstance(found, type) and issubclass(found, Defense))


def made(name: str, options: Mapping[str, Setting], *, coalition: tuple[ClientId, ...]) -> Defense:
    """One client's own instance of a defense.

    Args:
        name: See :func:`defense_named`.
        options: Settings of the defense.
        coalition: The clients that use it together; for those defenses that take them.
    """
    make = defense_named(name)
    together = {"coalition": coalition} if "coalition" in signature(make).parameters else {}
    defense = called("defense", name, make, **options, **together)
    assert isinstance(defense, Defense)
    return defense
