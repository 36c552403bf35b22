"""Defenses of a client against leakage.

``fedaudit.defenses.CoFedMID(members=[0, 1])``: every defense of ``fedaudit list defenses`` is here
by the name of its class, with the clients that use it. A class derived from ``Defense`` takes
``members`` as well; each member has an instance of its own in each run.
"""

from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., object]:
    if name.startswith("_"):
        raise AttributeError(f"module 'fedaudit.defenses' has no attribute {name!r}")
    from fedaudit.core.naming import DefensePart
    from fedaudit.defenses.base import Defense
    from fedaudit.defenses.catalog import DEFENSES

    known: dict[str, Callable[..., object]] = {make.__name__: make for make in DEFENSES.values()}
    known |= {"Defense": Defense, "DefensePart": DefensePart}
    if name not in known:
        raise AttributeError(f"module 'fedaudit.defenses' has no attribute {name!r}")
    return known[name]
