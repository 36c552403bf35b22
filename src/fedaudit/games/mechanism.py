"""The clients' mechanism before games: claimed and actual epsilon, and normal noise taken apart."""

import dataclasses
import math
from dataclasses import replace
from typing import NamedTuple

from fedaudit.attacks.ami.game import NONE, Randomisers
from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.defenses.base import Defense
from fedaudit.defenses.catalog import DEFENSES
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.ldp.bit_mechanisms import BitMechanism
from fedaudit.defenses.ldp.encoding import FixedPoint
from fedaudit.defenses.ldp.mechanism import LocalDP
from fedaudit.defenses.noise import GradientNoise
from fedaudit.games.settings import MechanismSection
from fedaudit.study.settings.options import check_options


class NoiseDecomposition(NamedTuple):
    """A defense as a noiseless one and independent normal noise on every entry of the upload.

    Attributes:
        deterministic: The same without noise; gives the same upload in every round.
        spread: Standard deviation of the noise; 0 for none.
        record_clip: Largest length of one record's gradient before the mean; infinite for none,
            None where the upload is clipped as a whole.
        noise_multiplier: The noise in clips, where one record's or the whole is clipped; else 0.
    """

    deterministic: Defense
    spread: float
    record_clip: float | None
    noise_multiplier: float


def decompose_noise(defense: Defense, batch: int) -> NoiseDecomposition | None:
    """A defense taken apart; None where it is not known to be of that kind.

    Args:
        defense: Of a client that sends one gradient of everything it has (FedSGD).
        batch: How many records that is.
    """
    kind = type(defense)
    if kind is Defense:
        return NoiseDecomposition(defense, 0.0, math.inf, 0.0)
    if isinstance(defense, GradientNoise) and kind is GradientNoise:
        return NoiseDecomposition(GradientNoise(0.0), defense.sigma, math.inf, 0.0)
    if isinstance(defense, ClientDP) and kind is ClientDP:
        multiplier = defense.noise_multiplier
        spread = multiplier * defense.clip if multiplier else 0.0
        return NoiseDecomposition(ClientDP(defense.clip, 0.0), spread, None, multiplier)
    # Copies of an image are drawn anew in every round.
    if isinstance(defense, DPSGD) and kind is DPSGD and defense.multiplicity == 1:
        multiplier = defense.noise_multiplier
        spread = multiplier * defense.clip / batch if multiplier else 0.0
        return NoiseDecomposition(
            replace(defense, noise_multiplier=0.0), spread, defense.clip, multiplier
        )
    return None


NO_MECHANISM = "none"


class Given(NamedTuple):
    """A mechanism as games use it.

    Attributes:
        randomisers: Of clients and server.
        nominal_epsilon: As its settings name it; None for no mechanism.
        true_epsilon: Of one record; infinite for none.
        delta: Probability with which either may be exceeded.
        shared_mask: Whether all records of a batch get the same noise.
        largest: Size of the largest number that a randomised record can hold; infinite for none.
    """

    randomisers: Randomisers
    nominal_epsilon: float | None
    true_epsilon: float
    delta: float
    shared_mask: bool
    largest: float


def given(section: MechanismSection, features: int) -> Given:
    """The mechanism that a study names.

    Args:
        section: Of the study.
        features: Of one record.

    Raises:
        BadInput: There is none of that name, or its settings are wrong.
    """
    if section.name == NO_MECHANISM:
        if section.options:
            raise BadInput('the mechanism "none" has no settings; leave mechanism.options out')
        return Given(NONE, None, math.inf, 0.0, False, math.inf)
    known = {
        name: make
        for name, make in DEFENSES.items()
        if isinstance(make, type) and issubclass(make, LocalDP)
    }
    if section.name not in known:
        raise unknown_name("mechanism", section.name, [NO_MECHANISM, *known])
    make = known[section.name]
    check_options("mechanism", section.name, make, section.options)
    client = make(**section.options)
    claims = (client.nominal, client.true_epsilon(features), client.exceeded)
    if not isinstance(client, BitMechanism):
        return Given(Randomisers(client, client), *claims, False, math.inf)
    # Where a client's records share one mask, the server still does not know which.
    server = dataclasses.replace(client, shared_mask=False)
    largest = FixedPoint(client.bits, client.integer_bits).largest
    return Given(Randomisers(client, server), *claims, client.shared_mask, largest)
