"""What the fixed names of a record are called in a report: one table of words for each kind.

A name that its table lacks, from another version or a hand, is shown as it is, shortened.
"""

from fedaudit.report.grid import shortened
from fedaudit.report.reading import SIGHTS, rate_of

NO_DEFENSE = "none"

CONTRASTS = {
    "unseen": "Unseen",
    "other_client": "Other clients'",
    "mixed": "Mixed",
}
"""Short heading of each contrast, in the order of a report."""

CONTRAST_MEANINGS = {
    "unseen": "samples that no client trained on",
    "other_client": "samples that another client trained on",
    "mixed": "a mixture of unseen samples and other clients' samples",
}

ORIGINS = {
    "member": "Member",
    "other_client": "Another client's",
    "unseen": "Unseen",
}
"""Whose a sample is."""

SIGNALS = {
    "loss": "minus the loss",
    "confidence": "probability of the true class",
    "max_posterior": "largest probability of any class",
    "posterior_std": "spread of the probabilities",
    "minus_entropy": "minus the entropy",
    "minus_modified_entropy": "minus the modified entropy",
    "gradient-cosine": "gradient-update cosine",
    "gradient-norm": "minus squared gradient norm",
    "gradient-difference-raw": "gradient difference",
    "gradient-difference-sum": "gradient difference, rescaled",
}
"""What the numbers of a signal are: all are turned so that larger stands for members."""

METRICS = {
    "auc": "AUC",
    "epsilon": "ε (lower bound)",
    "formal_epsilon": "formal ε, whole training",
    "formal_epsilon_of_a_round": "formal ε, one round",
}
"""Metrics whose words are not those of their name; rates at a rate have words of their own."""


def contrast_name(contrast: str) -> str:
    """Heading of a contrast."""
    return CONTRASTS.get(contrast, _as_it_is(contrast))


def contrast_meaning(contrast: str) -> str:
    """The non-members of a contrast, in running text."""
    return CONTRAST_MEANINGS.get(contrast, _as_it_is(contrast))


def contrast_order(contrast: str) -> tuple[int, str]:
    """Sort key that puts contrasts in the order of a report."""
    known = list(CONTRASTS)
    return (known.index(contrast) if contrast in known else len(known), contrast)


def defense_name(defense: str) -> str:
    """A defense as a reader sees it."""
    return "no defense" if defense in ("", NO_DEFENSE) else defense


def sight_name(sight: str) -> str:
    """What an adversary sees or an attack needs."""
    plain = sight.lower()
    return SIGHTS.get(plain, _as_it_is(plain))


def signal_name(signal: str) -> str:
    """What a signal's numbers are."""
    plain = signal.removeprefix("global_")
    meaning = SIGNALS.get(plain, _as_it_is(plain))
    return meaning if plain == signal else f"{meaning}, global model"


def metric_name(metric: str) -> str:
    """A metric's name for a heading: "auc" is AUC, "tpr@0.001" is TPR at 0.1% FPR."""
    rate = rate_of(metric)
    if rate is not None:
        return f"TPR at {100 * rate:g}% FPR"
    return METRICS.get(metric, _as_it_is(metric))


def is_share(metric: str) -> bool:
    """Whether a metric is a share of something, and so is shown in per cent."""
    return rate_of(metric) is not None or metric.endswith(("accuracy", "_rate", "_share", "tpr"))


def _as_it_is(name: str) -> str:
    return shortened(name.replace("_", " "))
