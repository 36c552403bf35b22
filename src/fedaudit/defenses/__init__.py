"""Defenses that clients use against leakage, for :class:`fedaudit.Federation`.

>>> import fedaudit as fa
>>> defenses = [fa.defenses.CoFedMID(clients=[0, 1]), fa.defenses.DPSGD(1.0, 0.1, clients=[2])]

Each class is a defense of ``fedaudit list defenses``. Its argument ``clients`` lists the clients
that use it; by default, these are all clients without another defense. To write a custom defense,
derive a class from :class:`ConfiguredDefense` or :class:`Defense`, and override the hooks that it
needs.
"""

from collections.abc import Callable, Mapping
from inspect import signature

from fedaudit.core.importing import call_reporting_errors, look_up
from fedaudit.core.naming import CopyFactory
from fedaudit.core.values import ClientId, Setting
from fedaudit.defenses.augment import Augmentation as Augmentation
from fedaudit.defenses.clip import ClientDP as ClientDP
from fedaudit.defenses.cofedmid import CoFedMID as CoFedMID
from fedaudit.defenses.cofedmid.compensation import Compensation as Compensation
from fedaudit.defenses.cofedmid.neutral import NeutralNoise as NeutralNoise
from fedaudit.defenses.cofedmid.partition import ClassGuided as ClassGuided
from fedaudit.defenses.custom import imported_filter as imported_filter
from fedaudit.defenses.dpsgd import DPSGD as DPSGD
from fedaudit.defenses.hamp import Hamp as Hamp
from fedaudit.defenses.ldp.additive import LdpGaussian as LdpGaussian
from fedaudit.defenses.ldp.additive import LdpLaplace as LdpLaplace
from fedaudit.defenses.ldp.bit_mechanisms import BitRandPublished as BitRandPublished
from fedaudit.defenses.ldp.bit_mechanisms import BitwiseRR as BitwiseRR
from fedaudit.defenses.ldp.bit_mechanisms import OmePublished as OmePublished
from fedaudit.defenses.mixup import MixUp as MixUp
from fedaudit.defenses.noise import GradientNoise as GradientNoise
from fedaudit.defenses.quantize import GradientQuantization as GradientQuantization
from fedaudit.defenses.relaxloss import RelaxLoss as RelaxLoss
from fedaudit.defenses.sampling import DataSampling as DataSampling
from fedaudit.defenses.sparsify import GradientSparsification as GradientSparsification
from fedaudit.fl.hooks import ConfiguredDefense as ConfiguredDefense
from fedaudit.fl.hooks import Defense as Defense

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

__all__ = sorted({"ConfiguredDefense", "Defense", *(make.__name__ for make in DEFENSES.values())})


def __dir__() -> list[str]:
    return __all__


def defense_named(name: str) -> Callable[..., Defense]:
    """Return the class of a defense by catalogue name, package entry point or ``module:class``.

    Raises:
        BadInput: No defense has this name; the message suggests a similar name.
    """
    return look_up(
        "defense",
        name,
        DEFENSES,
        expected="a class derived from fedaudit.defenses.Defense",
        is_valid=lambda value: (
            isinstance(value, CopyFactory)
            or (isinstance(value, type) and issubclass(value, Defense))
        ),
    )


def create_defense(
    name: str, options: Mapping[str, Setting], *, coalition: tuple[ClientId, ...]
) -> Defense:
    """Create the instance of a defense for one client.

    Args:
        name: Name of the defense, as in :func:`defense_named`.
        options: Settings of the defense.
        coalition: Clients that use the defense together; ignored if it has no such parameter.
    """
    make = defense_named(name)
    accepted = signature(make).parameters.keys() & {"coalition", "clients"}
    coalition_options = dict.fromkeys(accepted, coalition) if coalition else {}
    defense = call_reporting_errors("defense", name, make, **options, **coalition_options)
    assert isinstance(defense, Defense)
    return defense
