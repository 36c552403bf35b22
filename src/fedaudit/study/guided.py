"""Which defenses deal classes out, so that an adversary could know of it."""

from fedaudit.defenses.base import Defense
from fedaudit.defenses.chain import Chain
from fedaudit.defenses.cofedmid.compensation import Compensation
from fedaudit.defenses.cofedmid.partition import ClassGuided


def class_guided(defense: Defense | None) -> ClassGuided | None:
    """How a client's defense deals classes out, if it does."""
    if isinstance(defense, Chain):
        return next((how for part in defense.parts if (how := class_guided(part))), None)
    if isinstance(defense, Compensation):
        return defense.partition
    return defense if isinstance(defense, ClassGuided) else None
