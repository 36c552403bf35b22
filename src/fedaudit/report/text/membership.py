"""Sentences on membership inference: headline, upper limits, and what a verdict means."""

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, wording
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.deciding.membership import (
    are_several,
    largest_limits,
    member_status,
    scope_of,
)
from fedaudit.report.fixed import fixed, fixed_texts
from fedaudit.report.grid import shortened
from fedaudit.report.verdict import (
    WRONG_SIGN,
    coverage_gaps,
    fairness_caveat,
    figures_by_side,
    people_caveat,
    range_headline,
    unit_of,
    units_of,
    wrong_sign,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Record

LEAKAGE = fixed_texts("membership.leakage")
"""How the headline of a leak of each size begins, by verdict."""
_RATES = ("tpr@0.01", "tpr@0.001")


def member_headline(record: Record, status: evidence.Status, *, alone: bool) -> str:
    """Return the headline on membership, with the clients that it is about and its caveats.

    Args:
        record: The record.
        status: Its verdict on membership.
        alone: Whether the record is about no other topic.
    """
    sides = figures_by_side(record)
    names, front = list(sides), next(iter(sides.values()))
    text = _headline(record, status, front, alone=alone)
    if len(sides) > 1:
        other = member_status(record, sides[names[1]])
        text = f"{wording.capital(names[0])}: {text[:1].lower()}{text[1:]}"
        text += f". {wording.capital(names[1])}: {other}"
    parts = (text, scope_of(record, front), fairness_caveat(record), people_caveat(record))
    return ". ".join(filter(None, parts))


def _headline(
    record: Record, status: evidence.Status, front: list[Estimate], *, alone: bool
) -> str:
    if status in LEAKAGE:
        distinguished = fixed(f"membership.distinguished.{unit_of(record)}")
        better = fixed_texts("membership.better").get(status, "")
        return range_headline(front) or f"{LEAKAGE[status]}: {distinguished}{better}"
    if status == "no leak shown":
        return f"No leak{'' if alone else ' of membership'} shown by the attacks that were run"
    if wrong_sign(front):
        return f"Inconclusive: {WRONG_SIGN}"
    if any(bounds.unit.startswith("one client") for bounds in shown_bounds(record)):
        return "Inconclusive about single samples: too few were audited to say"
    if coverage_gaps(record) and alone:
        return "Inconclusive: not every upload was measured"
    return f"Inconclusive{'' if alone else ' about membership'}: this audit is too small to say"


def member_meaning(record: Record, status: evidence.Status, figures: list[Estimate]) -> str:
    """Return what follows from the verdict, and what does not.

    Args:
        record: The record.
        status: The verdict on membership.
        figures: Those of its headline.
    """
    meaning = fixed(f"membership.meaning.{status}", units=units_of(record))
    if status in LEAKAGE:
        if unit_of(record) == "canary sample":
            meaning = fixed("membership.meaning.canary sample")
        elif status == "trace of a leak" and range_headline(figures):
            meaning = fixed("membership.meaning.range")
        return " ".join(filter(None, (meaning, _affected(figures), _may_be_larger(figures))))
    if status == "inconclusive" and wrong_sign(figures):
        return (
            f"{wording.capital(WRONG_SIGN)}. Check the score's sign before anything is concluded."
        )
    return f"{meaning} {_hidden(record, figures)}" if status == "no leak shown" else meaning


def _affected(figures: list[Estimate]) -> str:
    """Return with which of several defenses the leak is shown."""
    affected = {wording.defense_name(one.defense) for one in figures if above_chance(one)}
    every = evidence.distinct(wording.defense_name(one.defense) for one in figures)
    found = wording.some([shortened(name, 60) for name in every if name in affected])
    spared = wording.some([shortened(name, 60) for name in every if name not in affected])
    if len(every) < 2:
        return ""
    return f"Found with {found}{f', not found with {spared}' if spared else ''}."


def _may_be_larger(figures: list[Estimate]) -> str:
    above = [figure for figure in figures if above_chance(figure)]
    highs = [evidence.size_reached(f.high, f.metric) for f in above if f.high is not None]
    least = evidence.largest([size for figure in above if (size := evidence.size_of(figure))])
    most = evidence.largest([size for size in highs if size])
    if least is None or most is None or most == least:
        return ""
    return f"The size is by the lower limits; the upper limits allow a {most} leak."


def _hidden(record: Record, figures: list[Estimate]) -> str:
    """Return the leaks that "no leak shown" does not rule out."""
    planted = any(c.control == "planted leak" and c.passed for c in record.controls)
    fewest = [f.value for f in figures if f.metric == "tpr@0.001"]
    unknown = "This audit says nothing about TPR below 1% FPR. "
    return (
        f"{fixed('membership.power.planted' if planted else 'membership.power.not_planted')} "
        f"What could still be hidden: {upper_bounds(figures)}. "
        f"{unknown if not fewest or None in fewest else ''}"
        "This is a measurement, not a proof: a stronger attack may exist."
    )


def upper_bounds(figures: list[Estimate], metrics: tuple[str, ...] = (AUC, *_RATES)) -> str:
    """Return the largest upper limits: "AUC up to 0.596 and TPR at 1% FPR up to 2.0%".

    With several clients each limit names whose it is, pooled clients first.

    Args:
        figures: Figures of a headline.
        metrics: Those whose limits are wanted.
    """
    several, parts = are_several(figures), []
    for metric in metrics:
        limits = [
            f"{wording.shown(limit.value, metric)}{f' for {limit.name}' * several}"
            for limit in largest_limits(figures, metric)
        ]
        if limits:
            more = f" ({limits[1]})" if limits[1:] and several else ""
            parts.append(f"{wording.metric_name(metric)} up to {limits[0]}{more}")
    return wording.listed(parts)


def rate_bounds(figures: list[Estimate]) -> str:
    """Return :func:`upper_bounds` of the rates at few false alarms alone."""
    return upper_bounds(figures, _RATES)
