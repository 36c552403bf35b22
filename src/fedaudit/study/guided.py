"""Knowledge of a client's defense: classes dealt out, and where noise lies."""

from fedaudit.defenses.base import Defense
from fedaudit.defenses.chain import Chain
from fedaudit.defenses.cofedmid.neutral import NeutralNoise


def class_guided(defense: Defense | None) -> bool:
    """True if a client's defense, if it has one, deals classes out."""
    return defense is not None and defense.acts_in("dealt")


def noisy_tail(defense: Defense | None) -> float | None:
    """Share of the last parameters to which a client's defense adds noise that cancels, if any."""
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    noise = (part for part in parts if isinstance(part, NeutralNoise) and part.sigma > 0)
    return next((part.ratio for part in noise), None)
