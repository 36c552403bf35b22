"""The catalogue of defenses by name."""

from collections.abc import Callable

from fedaudit.defenses.augment import Augmentation
from fedaudit.defenses.base import Defense
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.foreign import imported_filter
from fedaudit.defenses.hamp import Hamp
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
    "sparsification": GradientSparsification,
    "quantization": GradientQuantization,
    "data-sampling": DataSampling,
    "filter": imported_filter,
    "mixup": MixUp,
    "augmentation": Augmentation,
    "relaxloss": RelaxLoss,
    "hamp": Hamp,
}
