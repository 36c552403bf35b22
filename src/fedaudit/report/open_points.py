"""What an audit could not conclude, point by point, each told once."""

import re

from fedaudit.report.choosing import label_among
from fedaudit.report.grid import shortened
from fedaudit.report.names import contrast_name, contrast_order, metric_name
from fedaudit.report.reading import Figure, Record, by_test_alone
from fedaudit.report.words import capital, count, interval_of, listed, number, plural, sentence

MOST_BELOW = 3
"""Figures below guessing that are named; of more, their number stands."""

_FATES = {"refused": "was refused", "failed": "was tried and failed"}
_NEEDS = re.compile(
    r"(?:0 of \d+ seeds gave this figure(?:, and a mean needs two)?: )?"
    r"inconclusive: needs ([\d,]+) more non-members"
)


def open_points(record: Record, figures: list[Figure]) -> tuple[str, ...]:
    """What could not be concluded.

    Args:
        record: The record.
        figures: Those that stand in front.
    """
    return (*_refused(figures), *_unsure(figures), *_attacks(record), *_below(figures))


def _refused(figures: list[Figure]) -> list[str]:
    """One point for each metric, and within it one for each kind of reason."""
    missing: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        if figure.value is None:
            reason = (
                ""
                if _NEEDS.fullmatch(figure.note)
                else shortened(figure.note, 200) or "no reason recorded"
            )
            missing.setdefault((figure.metric, reason), []).append(figure)
    return [
        f"{metric_name(metric)}: {plural(len(found), 'figure')} not given. "
        f"{sentence(reason) if reason else _more_needed(found)}"
        for (metric, reason), found in missing.items()
    ]


def _more_needed(figures: list[Figure]) -> str:
    """ "Against unseen samples it needs 852 more non-members, against mixed 701." """
    needed: dict[str, set[int]] = {}
    for figure in figures:
        if found := _NEEDS.fullmatch(figure.note):
            needed.setdefault(figure.contrast, set()).add(int(found[1].replace(",", "")))
    parts = [
        f"against {_non_members(contrast)} {'it needs ' * (not place)}{_amount(needed[contrast])}"
        f"{' more non-members' * (not place)}"
        for place, contrast in enumerate(sorted(needed, key=contrast_order))
    ]
    return capital(listed(parts)) + "."


def _amount(more: set[int]) -> str:
    return count(max(more)) if len(more) == 1 else f"{count(min(more))} to {count(max(more))}"


def _non_members(contrast: str) -> str:
    return contrast_name(contrast).lower() + " samples" * (contrast != "mixed")


def _unsure(figures: list[Figure]) -> list[str]:
    alone = sum(by_test_alone(figure) for figure in figures)
    if not alone:
        return []
    return [
        f"{plural(alone, 'figure')} marked △: the corrected test says that members score higher, "
        "of several runs in at least one, but the interval still holds guessing. How large that "
        "leak is needs more audited samples."
    ]


def _attacks(record: Record) -> list[str]:
    return [
        f"{shortened(row.name, 60)} {_FATES[row.status]}: "
        f"{sentence(shortened(row.note, 200) or 'no reason recorded')}"
        for row in record.attacks
        if row.status != "run"
    ]


def _below(figures: list[Figure]) -> list[str]:
    """Attacks that rank the wrong way round; told once, however many there are."""
    below = [f for f in figures if f.metric == "auc" and f.high is not None and f.high < 0.5]
    if not below:
        return []
    told = [_ranked_below(figure, figures) for figure in below[:MOST_BELOW]]
    left = len(below) - len(told)
    more = [plural(left, "further figure")] * (left > 0)
    return [
        f"Members rank below non-members, and not above them, with {listed([*told, *more])}. This "
        "is reported as it is, since turning a score round after the fact would be choosing the "
        "answer."
    ]


def _ranked_below(figure: Figure, figures: list[Figure]) -> str:
    against = f"v. {contrast_name(figure.contrast).lower()}"
    label = label_among(figure, figures)
    where = ", ".join(part for part in (against, label) if part)
    return (
        f"{shortened(figure.attack, 60)} {where} (AUC {number(figure.value or 0.0)}, "
        f"{interval_of(figure)})"
    )
