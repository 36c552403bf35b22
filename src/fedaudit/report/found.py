"""What was found, in sentences: for each setting, against each kind of non-member."""

from typing import NamedTuple

from fedaudit.report.choosing import (
    differing,
    distinct,
    label_among,
    setting_of,
    settings_of,
    strongest,
)
from fedaudit.report.evidence import a_leak, leading, rate_found, size_of
from fedaudit.report.grid import shortened
from fedaudit.report.names import contrast_meaning, contrast_order
from fedaudit.report.reading import Figure, above_chance, by_interval_alone, by_test_alone, rate_of
from fedaudit.report.words import capital, count, level_of, listed, number, with_interval

ALARMS = {"tpr@0.001": "1,000", "tpr@0.01": "100"}
"""Rates that are told as members of a thousand, and how many non-members a false alarm is in."""


class Sentence(NamedTuple):
    """Whom members were told from, and what was found."""

    against: str
    found: str


class Bullet(NamedTuple):
    """What was found under one setting: a heading and a sentence or two for each contrast."""

    label: str
    sentences: tuple[Sentence, ...]


def bullets(figures: list[Figure]) -> tuple[Bullet, ...]:
    """One bullet for each defense and view; clients and seeds are named where they matter."""
    whole = distinct(setting._replace(target=None, seed=None) for setting in settings_of(figures))
    return tuple(
        Bullet(
            _title(label),
            _by_contrast([f for f in figures if (f.defense, f.view) == setting[:2]]),
        )
        for setting, label in zip(whole, differing(whole), strict=True)
    )


def room(figures: list[Figure]) -> str:
    """What the data leave room for: the largest upper limits, as words; empty without any."""
    parts = []
    high = _highest(figures, "auc")
    if high is not None:
        parts.append(f"an AUC up to {number(high)}")
    rates = [(alarms, _highest(figures, metric)) for metric, alarms in reversed(ALARMS.items())]
    known = [(alarms, of_thousand(high)) for alarms, high in rates if high is not None]
    parts += [
        f"up to {most} at one in {alarms}"
        if place
        else f"up to {most} of 1,000 members identified at one false alarm in {alarms} non-members"
        for place, (alarms, most) in enumerate(known)
    ]
    return listed(parts)


def of_thousand(share: float) -> str:
    """How many of a thousand members a share is."""
    return count(round(1000 * min(max(share, 0.0), 1.0)))


def _highest(figures: list[Figure], metric: str) -> float | None:
    highs = [f.high for f in figures if f.metric == metric and f.high is not None]
    return max(highs, default=None)


def _title(label: str) -> str:
    """A setting as a heading; names of defenses keep their own capitals."""
    label = shortened(label, 120)
    if not label or label.startswith(("no defense", "view:", "client", "seed", "all", "over")):
        return label[:1].upper() + label[1:]
    return f"With {label}"


def _by_contrast(figures: list[Figure]) -> tuple[Sentence, ...]:
    contrasts = sorted({figure.contrast for figure in figures}, key=contrast_order)
    return tuple(
        _contrast(contrast, [figure for figure in figures if figure.contrast == contrast])
        for contrast in contrasts
    )


def _contrast(contrast: str, figures: list[Figure]) -> Sentence:
    """The strongest attack of a contrast, and what it means among 1,000 members.

    An attack is said to identify members only where that is above guessing; where none is, the
    sentence says how much the data leave room for.
    """
    against = f"Against {contrast_meaning(contrast)}"
    above = [figure for figure in figures if above_chance(figure)]
    first = leading(figures)
    auc = next((figure for figure in first if figure.metric == "auc"), None)
    best = auc or strongest(figures, "auc")
    if best is None and not above:
        return Sentence(against, "no attack gave a usable figure.")
    sentences = [_auc_sentence(best, figures)] if best else []
    if not above:
        sentences.append(_left_open(figures))
    elif first and first[0].metric != "auc":
        # The larger leak stands first, and what was found before what was not.
        sentences.insert(0, _identified(above, None))
    else:
        sentences.append(_identified(above, best) or _none_identified(figures))
    text = " ".join(capital(sentence) for sentence in sentences if sentence)
    return Sentence(against, text[:1].lower() + text[1:])


def _auc_sentence(best: Figure, figures: list[Figure]) -> str:
    name = f"{shortened(best.attack, 60)}{_where(best, figures)}"
    figure = f"AUC {with_interval(best)}"
    if above_chance(best):
        size = size_of(best)
        return f"the strongest attack is {name}, {figure}{f', {a_leak(size)}' if size else ''}."
    if any(above_chance(one) for one in figures):
        by_auc = f"by AUC, no attack is above guessing{_allowing(best)}"
        return f"{by_auc}: the highest is {name}, {figure}."
    return f"no attack is above guessing{_allowing(best)}; the highest is {name}, {figure}."


def _allowing(best: Figure) -> str:
    """Why a figure whose interval lies above 0.5 is still not called above guessing."""
    alone = by_interval_alone(best)
    return " once the number of figures tested is allowed for" if alone else ""


def _where(figure: Figure, figures: list[Figure]) -> str:
    """Which client and seed a figure is of, where there is more than one of them."""
    label = label_among(figure, figures)
    return f" ({label})" if label else ""


def _identified(above: list[Figure], told: Figure | None) -> str:
    """ "Of 1,000 members, N ..." at the rate that shows most of a leak."""
    best = rate_found(above)
    if best is None:
        return ""
    name = f"{shortened(best.attack, 60)}{_where(best, above)}"
    if told is not None and above_chance(told) and _is_same(told, best):
        name = "it"
    size = size_of(best)
    return (
        f"Of 1,000 members, {name} identifies {_with_limits(best)} at the price of one false "
        f"alarm in {ALARMS[best.metric]} non-members{f', {a_leak(size)}' if size else ''}; "
        f"guessing would find {of_thousand(rate_of(best.metric) or 0)}."
    )


def _is_same(one: Figure, other: Figure) -> bool:
    return (one.attack, *setting_of(one)) == (other.attack, *setting_of(other))


def _none_identified(figures: list[Figure]) -> str:
    """For a leak that the AUC shows and no rate at few false alarms."""
    left = room([figure for figure in figures if figure.metric != "auc"])
    if not left:
        return ""
    return f"At few false alarms, no attack is above guessing; the data leave room for {left}."


def _left_open(figures: list[Figure]) -> str:
    alone = sum(by_test_alone(figure) for figure in figures)
    marked = (
        f" The corrected test alone speaks for a leak in {count(alone)} of these figures (△), "
        "the intervals do not."
        if alone
        else ""
    )
    left = room(figures)
    return (f"The data leave room for {left}." if left else "") + marked


def _with_limits(figure: Figure) -> str:
    middle = of_thousand(figure.value or 0)
    level = level_of(figure.method)
    if figure.high is None:
        return f"about {middle}"
    if figure.low is None:
        named = f"{level} upper limit" if level else "at most"
        return f"{middle} ({named} {of_thousand(figure.high)})"
    named = f"{level} interval " if level else ""
    return f"{middle} ({named}{of_thousand(figure.low)} to {of_thousand(figure.high)})"
