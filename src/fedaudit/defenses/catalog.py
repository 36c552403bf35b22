"""The catalogue of defenses by name."""

from collections.abc import Callable

from fedaudit.defenses.augment import Augmentation
from fedaudit.defenses.base import Defense
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.hamp import Hamp
from fedaudit.defenses.mixup import MixUp
from fedaudit.defenses.noise import GradientNoise
from fedaudit.defenses.relaxloss import RelaxLoss

DEFENSES: dict[str, Callable[..., Defense]] = {
    "none": Defense,
    "gradient-noise": GradientNoise,
    "client-dp": ClientDP,
    "mixup": MixUp,
    "augmentation": Augmentation,
    "relaxloss": RelaxLoss,
    "hamp": Hamp,
}
