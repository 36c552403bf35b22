"""Comparison of a running audit with the leak ladder."""

from collections.abc import Sequence
from statistics import fmean

from fedaudit.formatting.wording import format_number
from fedaudit.plan.sections import Study
from fedaudit.report.advice import place_on_ladder
from fedaudit.results.ladder import read_ladder
from fedaudit.watch.state import RoundEstimates


def place_on_leak_ladder(
    study: Study, estimates: Sequence[RoundEstimates]
) -> tuple[str, tuple[float, float] | None]:
    """Return the place of a study's uploads on the leak ladder, with the range of expected AUCs.

    The gap is the mean over the measured rounds so far. All federations of the ladder train
    classifiers with honest clients, and single samples of theirs were audited.

    Returns:
        An empty text and None if the ladder has no similar federation.
    """
    gaps = [row.gap for row in estimates if row.gap is not None]
    rule = read_ladder().uploads
    is_similar = (
        study.audit.view == "uploads"
        and study.task.name == "classification"
        and study.audit.unit == "sample"
        and study.attacker is None
        and study.figures.evaluation == "aligned"
        and not study.figures.null_members
    )
    if not gaps or not is_similar:
        return "", None
    gap = fmean(gaps)
    if not rule.covers(gap):
        low, high = format_number(rule.smallest_gap), format_number(rule.largest_gap)
        side = "larger" if gap > rule.largest_gap else "smaller"
        return (
            f"The mean gap over these rounds, {format_number(gap)} standard deviations, is {side} "
            f"than in all federations of the leak ladder ({low} to {high}), so no AUC is "
            "expected from it."
        ), None
    return place_on_ladder("uploads", gap, format_number(gap)), rule.range_at(gap)
