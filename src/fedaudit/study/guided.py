"""Which clients' defenses deal classes out, so that an adversary could know of it."""

from fedaudit.defenses.base import Defense


def class_guided(defense: Defense | None) -> bool:
    """Whether a client's defense, if it has one, deals classes out."""
    return defense is not None and defense.acts_in("dealt")
