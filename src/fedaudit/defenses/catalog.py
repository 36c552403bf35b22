"""The catalogue of defenses by name."""

from collections.abc import Callable

from fedaudit.defenses.base import Defense
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.noise import GradientNoise

DEFENSES: dict[str, Callable[..., Defense]] = {
    "none": Defense,
    "gradient-noise": GradientNoise,
    "client-dp": ClientDP,
}
