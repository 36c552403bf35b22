"""Membership and source inference attacks, for :func:`fedaudit.audit`.

>>> import fedaudit as fa
>>> attacks = [fa.attacks.FedMIA2(), fa.attacks.RMIA(offline=0.3), "loss-series"]

Each function constructs one attack of ``fedaudit list attacks``. Its arguments are the settings of
the attack. :class:`Attack` defines a custom attack from signals and a rule.
"""

from fedaudit.attacks.base import Attack as Attack
from fedaudit.attacks.catalogue import ATTACK_SETS as ATTACK_SETS
from fedaudit.attacks.catalogue import ATTACKS as ATTACKS
from fedaudit.attacks.catalogue import CONSTRUCTORS
from fedaudit.attacks.catalogue import DEFAULT_SET as DEFAULT_SET
from fedaudit.attacks.catalogue import SET_SETTINGS as SET_SETTINGS
from fedaudit.attacks.catalogue import SOURCE_ATTACKS as SOURCE_ATTACKS
from fedaudit.attacks.catalogue import attack_set as attack_set
from fedaudit.attacks.catalogue import catalogue_spellings as catalogue_spellings
from fedaudit.attacks.catalogue import resolve_attack as resolve_attack

# Their signatures are in __init__.pyi, which `make pages` writes.
globals().update(CONSTRUCTORS)

__all__ = ["Attack", *CONSTRUCTORS]


def __dir__() -> list[str]:
    return __all__
