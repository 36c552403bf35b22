"""Defenses that end in normal noise, taken apart: what they do without it, and how much it is."""

import math
from dataclasses import replace
from typing import NamedTuple

from fedaudit.defenses.base import Defense
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.noise import GradientNoise


class Apart(NamedTuple):
    """A defense as a noiseless one and independent normal noise on every entry of the upload.

    Attributes:
        quiet: The same without noise; gives the same upload in every round.
        spread: Standard deviation of the noise; 0 for none.
        record_clip: Largest length of one record's gradient before the mean; infinite for none,
            None where the upload is clipped as a whole.
        noise_multiplier: The noise in clips, where one record's or the whole is clipped; else 0.
    """

    quiet: Defense
    spread: float
    record_clip: float | None
    noise_multiplier: float


def noise_apart(defense: Defense, batch: int) -> Apart | None:
    """A defense taken apart; None where it is not known to be of that kind.

    Args:
        defense: Of a client that sends one gradient of everything it has (FedSGD).
        batch: How many records that is.
    """
    kind = type(defense)
    if kind is Defense:
        return Apart(defense, 0.0, math.inf, 0.0)
    if isinstance(defense, GradientNoise) and kind is GradientNoise:
        return Apart(GradientNoise(0.0), defense.sigma, math.inf, 0.0)
    if isinstance(defense, ClientDP) and kind is ClientDP:
        multiplier = defense.noise_multiplier
        spread = multiplier * defense.clip if multiplier else 0.0
        return Apart(ClientDP(defense.clip, 0.0), spread, None, multiplier)
    # Copies of an image are drawn anew in every round.
    if isinstance(defense, DPSGD) and kind is DPSGD and defense.multiplicity == 1:
        multiplier = defense.noise_multiplier
        spread = multiplier * defense.clip / batch if multiplier else 0.0
        return Apart(replace(defense, noise_multiplier=0.0), spread, defense.clip, multiplier)
    return None
