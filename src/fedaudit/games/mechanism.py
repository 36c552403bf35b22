"""The clients' mechanism before games: its randomisers, claimed and actual epsilon."""

import dataclasses
import math
from typing import NamedTuple

from fedaudit.attacks.ami.game import NONE, Randomisers
from fedaudit.core.errors import BadInput, setting
from fedaudit.core.importing import named
from fedaudit.defenses import DEFENSES
from fedaudit.defenses.ldp import FixedPoint, LocalDP
from fedaudit.defenses.ldp.bit_mechanisms import BitMechanism
from fedaudit.plan.games import MechanismSection
from fedaudit.plan.options import check_options

NO_MECHANISM = "none"


class Given(NamedTuple):
    """A mechanism as games use it.

    Attributes:
        randomisers: Of clients and server.
        nominal_epsilon: As its settings name it; None for no mechanism.
        actual_epsilon: Of one record; infinite for none.
        delta: Probability with which either may be exceeded.
        shared_mask: Whether all records of a batch get the same noise.
        largest: Size of the largest number that a randomised record can hold; infinite for none.
    """

    randomisers: Randomisers
    nominal_epsilon: float | None
    actual_epsilon: float
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
            raise BadInput(
                f'the mechanism "none" has no settings; leave {setting("mechanism.options")} out'
            )
        return Given(NONE, None, math.inf, 0.0, False, math.inf)
    known = {name: make for name, make in DEFENSES.items() if _is_local(make)}
    make = named(
        "mechanism",
        section.name,
        known,
        wanted="a class derived from fedaudit.defenses.ldp.LocalDP",
        fits=_is_local,
    )
    check_options("mechanism", section.name, make, section.options)
    client = make(**section.options)
    assert isinstance(client, LocalDP)
    claims = (client.nominal, client.actual_epsilon(features), client.exceeded)
    if not isinstance(client, BitMechanism):
        return Given(Randomisers(client, client), *claims, False, math.inf)
    # Where a client's records share one mask, the server still does not know which.
    server = dataclasses.replace(client, shared_mask=False)
    largest = FixedPoint(client.bits, client.integer_bits).largest
    return Given(Randomisers(client, server), *claims, client.shared_mask, largest)


def _is_local(make: object) -> bool:
    return isinstance(make, type) and issubclass(make, LocalDP)
