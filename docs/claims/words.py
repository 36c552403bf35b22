"""Comparisons and regimes of a claim in words."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from docs.claims.comparing import BY_STUDENT, Figure, counts
from docs.claims.data import Term, Test, regimes
from docs.claims.judging import (
    VERDICTS,
    PartResult,
    RegimeResult,
    Verdict,
    deciding_part,
    smallest_margin,
)
from docs.claims.names import attack_words, figure_words, setting_words, words
from fedaudit.formatting.wording import capitalise, join_and
from fedaudit.results.estimate import COUNTS


class Side(NamedTuple):
    """Side of a comparison in words."""

    figure: str
    # Attack; empty for a mean of attacks, and if the figure has none.
    attack: str
    # Variant, settings and group of clients.
    settings: tuple[str, ...]


CONTRASTS = {
    "other_client": " against other clients' samples",
    "unseen": " against held-out samples",
}
"""Non-members, if they are only one of the two groups."""
BASES = {
    "membership": "no defense",
    "sources": "alpha 100, 10 epochs",
    "clusters": "IFCA",
    "games": "",
}
"""Settings of the base of a regime, by topic."""
OF_MODELS = ("overfitting",)
"""Figures of models that results list by attack."""
STATES: Mapping[Verdict, str] = {
    "confirmed": "holds",
    "contradicted": "does not hold",
    "not run": "incomplete",
}
"""Verdicts on a regime, if other words describe them better."""
HOLDS: Mapping[Verdict, tuple[str, str]] = {
    "confirmed": ("holds", "hold"),
    "contradicted": ("does not hold", "do not hold"),
    "no difference": ("shows no difference", "show no difference"),
    "open": ("is open", "are open"),
    "not run": ("was not run", "were not run"),
}
"""Verdicts on one comparison and on several."""


def side_of(regime_name: str, test: Test, term: Term) -> Side:
    regime = regimes()[regime_name]
    figure, attack = term.figure or test.figure, ""
    settings: tuple[str, ...] = () if term.group in ("everybody", "planted") else (term.group,)
    if term.words:
        settings += tuple(term.words.split(", "))
    elif term.variant is not None:
        settings += setting_words(term.variant)
    elif BASES[regime.kind]:
        settings += tuple(BASES[regime.kind].split(", "))
    if term.attack in words().attacks:
        attack = "" if figure in OF_MODELS else attack_words(term.attack)
    elif term.attack:
        # In games, the settings of a point.
        settings += setting_words(term.attack)
    return Side(figure, attack, settings)


class Comparison(NamedTuple):
    """Comparison in words."""

    # Figure, common words of both sides, and the values for which the claim holds.
    head: str
    # Number of attacks of a mean; empty for a single one.
    attacks: str
    # Values and their difference.
    values: str


def comparison_words(part: PartResult) -> Comparison:
    assert part.one is not None
    assert part.gap is not None
    digits = 1 if (part.test.one.figure or part.test.figure) in COUNTS else None
    head, labels = common_and_own_words(part.regime, part.test, part.other)
    if part.other.value is not None:
        head = f"{head}; needed: {needed(part.test, part.other)}"
        return Comparison(capitalise(head), _attacks(part), with_limits(part.one, digits))
    assert part.reference is not None
    head = f"{head}; needed difference: {needed(part.test, part.other)}".removeprefix("; ")
    values = [
        f"{label}: {number(figure.value, digits)}"
        for label, figure in zip(labels, (part.one, part.reference), strict=True)
    ]
    common = " over common samples" if part.is_over_common_samples else ""
    gap = f"difference{common}: {with_limits(part.gap, digits)}"
    return Comparison(capitalise(head), _attacks(part), "; ".join([*values, gap]))


def common_and_own_words(regime: str, test: Test, other: Term) -> tuple[str, list[str]]:
    """Return the common words of both sides of a comparison, and the words for each side.

    The base of a regime has no words if both sides, or the only side, are the base.
    """
    terms = [test.one] if other.value is not None else [test.one, other]
    sides = [side_of(regime, test, term) for term in terms]
    base = BASES[regimes()[regime].kind].split(", ")
    if all(term.variant is None and not term.words for term in terms):
        sides = [
            side._replace(settings=tuple(word for word in side.settings if word not in base))
            for side in sides
        ]
    first, last = sides[0], sides[-1]
    shared = [word for word in first.settings if word in last.settings]
    same_figure, same_attack = first.figure == last.figure, first.attack == last.attack
    attack = first.attack if same_attack else ""
    figure = figure_words(first.figure, attack) if same_figure else attack
    mean = "mean " if test.one.attacks else ""
    contrast = CONTRASTS.get(test.contrast, "") if _is_membership(first.figure) else ""
    parts = [f"{mean}{figure}{contrast}".strip(), f"({', '.join(shared)})" if shared else ""]
    head = " ".join(filter(None, parts)) if parts[0] else ", ".join(shared)
    labels = [
        ", ".join(
            [
                *([] if same_figure else [figure_words(side.figure)]),
                *([] if same_attack else [side.attack]),
                *(word for word in side.settings if word not in shared),
            ]
        )
        for side in sides
    ]
    return head, labels


def _attacks(part: PartResult) -> str:
    """Return how many attacks of a mean are above chance level without a defense."""
    attacks = part.test.one.attacks
    if not attacks:
        return ""
    number = len(counts(regimes()[part.regime], part.test, part.test.one))
    return f"{number} attacks" if number == len(attacks) else f"{number} of {len(attacks)} attacks"


def _is_membership(figure: str) -> bool:
    return figure == "auc" or figure.startswith("tpr@")


def needed(test: Test, other: Term) -> str:
    """Return the values of a figure or difference for which a claim holds."""
    value = other.value or 0.0
    if test.direction == "near":
        return f"within {test.margin:g} of {value:g}"
    limit = value + test.margin if test.direction == "above" else value - test.margin
    # Without rounding, 0.1 + 0.02 has 17 digits, and 0 minus a margin of 0 is "-0".
    return f"{test.direction} {round(limit, 6) + 0.0:g}"


def regimes_words(results: Sequence[RegimeResult]) -> list[str]:
    """Return the deciding comparison of each regime, below a line with the figure."""
    lines: dict[str, list[str]] = {}
    for result in results:
        part = deciding_part(result)
        assert part is not None
        head, attacks, values = comparison_words(part)
        omitted = {"leak": "no leak", "seeds": "one seed"}.get(result.wanting, "")
        state = omitted or STATES.get(result.verdict, result.verdict)
        line = f"{', '.join(filter(None, [f'`{result.regime}` {state}', attacks]))}: {values}"
        line += within_words(part) if state == "open" else ""
        is_single = len(result.parts) == 1 or omitted
        lines.setdefault(head, []).append(line if is_single else f"{line}; {_tally(result.parts)}")
    return [line for head, below in lines.items() for line in (head, *below)]


_UNNAMED_RATES = {"adv", "success", "test_accuracy", "accuracy", "tpr", "tnr"}
"""Rates that tables print without their name."""


def short_words(part: PartResult) -> str:
    """Return the figure or difference of a comparison, and the values for which a claim holds.

    Other metrics than AUCs and rates are named.
    """
    digits = 1 if (part.test.one.figure or part.test.figure) in COUNTS else None
    is_figure = part.other.value is not None
    figure = part.one if is_figure else part.gap
    assert figure is not None
    metric = part.test.one.figure or part.test.figure
    is_named = not (_is_membership(metric) or metric in _UNNAMED_RATES)
    name = f"{figure_words(metric)}: " if is_named else ""
    values = with_limits(figure._replace(further=None), digits)
    return f"{name}{values}; {needed(part.test, part.other)}"


def within_words(part: PartResult) -> str:
    """Return the smallest margin that the difference of an open comparison lies within."""
    margin = None if part.gap is None else smallest_margin(part.test, part.gap)
    if margin is None:
        return ""
    # Rounded up, so that the statement holds.
    text = f"{math.ceil(1000 * margin) / 1000:g}"
    return f", within {text}" + (f" of {part.other.value:g}" if part.other.value else "")


def _tally(parts: Sequence[PartResult]) -> str:
    numbers = Counter(part.verdict for part in parts)
    if len(numbers) == 1:
        (verdict,) = numbers
        amount = "both" if len(parts) == 2 else f"all {len(parts)}"
        if verdict == "contradicted":
            return f"none of {len(parts)} comparisons holds"
        return f"{amount} comparisons {HOLDS[verdict][1]}"
    states = [
        f"{numbers[verdict]} {HOLDS[verdict][numbers[verdict] > 1]}"
        for verdict in VERDICTS
        if numbers[verdict]
    ]
    return f"of {len(parts)} comparisons, {join_and(states)}"


# Numbers.


def with_limits(figure: Figure, digits: int | None = None) -> str:
    """Return a figure with its interval for these runs, and for further runs if it is known."""
    text = number(figure.value, digits)
    if figure.low is None or figure.high is None:
        return text
    limits = f"{number(figure.low, digits)} to {number(figure.high, digits)}"
    if figure.further in (None, (figure.low, figure.high)) or figure.method == BY_STUDENT:
        return f"{text} ({limits})"
    assert figure.further is not None
    low, high = (number(limit, digits) for limit in figure.further)
    return f"{text} ({limits}; further runs {low} to {high})"


def number(value: float, digits: int | None = None) -> str:
    if digits is None:
        digits = 3 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"
