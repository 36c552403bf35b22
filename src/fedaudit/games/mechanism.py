"""Clients' mechanism of local differential privacy, with its claimed and actual epsilon."""

import dataclasses
import math
from typing import NamedTuple

from fedaudit.attacks.ami.game import NO_RANDOMISERS, Randomisers
from fedaudit.core.errors import BadInput, format_setting
from fedaudit.core.importing import look_up
from fedaudit.core.options import check_options
from fedaudit.defenses import DEFENSES
from fedaudit.defenses.ldp import FixedPoint, LocalDP
from fedaudit.defenses.ldp.bit_mechanisms import BitMechanism
from fedaudit.plan.games import MechanismSection

NO_MECHANISM = "none"


class GameMechanism(NamedTuple):
    """Mechanism that clients apply to their samples.

    Attributes:
        randomisers: Randomisers of clients and server.
        nominal_epsilon: Epsilon that the settings claim; None without a mechanism.
        actual_epsilon: Actual epsilon for one sample; infinite without a mechanism.
        delta: Delta of both epsilons.
        shared_mask: Whether all samples of a batch get the same noise.
        largest: Largest absolute value in a randomised sample; infinite if unbounded.
    """

    randomisers: Randomisers
    nominal_epsilon: float | None
    actual_epsilon: float
    delta: float
    shared_mask: bool
    largest: float


def resolve_mechanism(section: MechanismSection, features: int) -> GameMechanism:
    """Return the mechanism that a study names, for samples with this number of features."""
    if section.name == NO_MECHANISM:
        if section.options:
            raise BadInput(
                f'the mechanism "none" has no settings; leave '
                f"{format_setting('mechanism.options')} out"
            )
        return GameMechanism(NO_RANDOMISERS, None, math.inf, 0.0, False, math.inf)
    mechanisms = {name: make for name, make in DEFENSES.items() if _is_local(make)}
    make = look_up(
        "mechanism",
        section.name,
        mechanisms,
        expected="a class derived from fedaudit.defenses.ldp.LocalDP",
        is_valid=_is_local,
    )
    check_options("mechanism", section.name, make, section.options)
    client = make(**section.options)
    assert isinstance(client, LocalDP)
    claims = (client.nominal, client.actual_epsilon(features), client.claimed_delta)
    if not isinstance(client, BitMechanism):
        return GameMechanism(Randomisers(client, client), *claims, False, math.inf)
    # The server cannot draw the mask that a client's samples share, so it draws separate masks.
    server = dataclasses.replace(client, shared_mask=False)
    largest = FixedPoint(client.bits, client.integer_bits).largest
    return GameMechanism(Randomisers(client, server), *claims, client.shared_mask, largest)


def _is_local(make: object) -> bool:
    return isinstance(make, type) and issubclass(make, LocalDP)
