"""The verdict on membership: how large a leak is shown, or how little one can be."""

from collections.abc import Hashable, Mapping

from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.report import evidence
from fedaudit.report.verdict import coverage_gaps, wrong_sign
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance, by_test_alone
from fedaudit.results.record import Record


def member_status(record: Record, figures: list[Estimate]) -> evidence.Status:
    """Return the verdict on membership, of figures that can be relied on.

    Args:
        record: The record.
        figures: Those of its headline.
    """
    above = [figure for figure in figures if above_chance(figure)]
    if above:
        sizes = [size for figure in above if (size := evidence.size_of(figure))]
        return evidence.LEAKS[evidence.largest(sizes) or "trace"]
    if wrong_sign(figures) or coverage_gaps(record):
        return "inconclusive"
    # Clients that are too small to be judged alone are judged together.
    judged = evidence.pooled(figures) or figures
    return "no leak shown" if little_can_hide(record, judged) else "inconclusive"


def little_can_hide(record: Record, figures: list[Estimate]) -> bool:
    """Return True if no upper limit, of an AUC or a rate, leaves room for more than a weak leak.

    Every contrast must have an AUC and a rate at few false alarms: a leak of a few samples shows
    in the rate alone.
    """
    if not figures or any(by_test_alone(figure) for figure in figures):
        return False
    for same in evidence.by_contrast(figures).values():
        known = [figure for figure in same if figure.value is not None]
        if not any(f.metric == AUC for f in known) or not any(rate_of(f.metric) for f in known):
            return False
    single = (one for one in record.findings if one.seed is not None)
    runs = evidence.grouped(single, _subject)
    highs = [(upper_limit(f, runs), f.metric) for f in figures if f.value is not None]
    doubtful = ("strong", evidence.ROOM_FOR_DOUBT)
    return all(
        high is not None and evidence.size_reached(high, metric) not in doubtful
        for high, metric in highs
    )


def upper_limit(figure: Estimate, runs: Mapping[Hashable, list[Estimate]]) -> float | None:
    """Return a figure's upper limit; for a mean over runs without one, the largest of the runs'."""
    if figure.high is not None or figure.seed is not None:
        return figure.high
    highs = [run.high for run in runs.get(_subject(figure), [])]
    known = [high for high in highs if high is not None]
    return max(known) if known and len(known) == len(highs) else None


def _subject(figure: Estimate) -> Hashable:
    """Return what a figure is of, whichever run it was found in."""
    setting = evidence.setting_of(figure)._replace(seed=None)
    return setting, figure.attack, figure.contrast, figure.metric
