"""What records of older versions lack or call by another name, as this version has it."""

from collections.abc import Mapping

from fedaudit.study.clustered import CHANCE_VIOLATIONS
from fedaudit.study.guessing import alpha_of, rate_of
from fedaudit.study.record import Figure, Record

AT_THRESHOLD = "at the threshold used"
"""What limits of a rate in a record of an older version are limits of."""

_ALLOWS_FOR_THRESHOLD = "order statistics"
"""How the method of limits of a rate begins (``fedaudit.metrics.rate_limits``, long to load)."""

FIRST_SET = "2026-1"
"""The attacks that were run where none was named, before sets of attacks had names."""


def settled(config: Mapping[str, object]) -> dict[str, object]:
    """The settings of a study that was carried out, with defaults as they were at its time.

    That is the set of attacks, and how the risk of a clustered federation's models was estimated.
    """
    before = {"attack_set": FIRST_SET} if config.get("attacks") == {} else {}
    found = {**before, **config}
    risk = config.get("risk")
    if isinstance(risk, Mapping) and "training" not in risk:
        found["risk"] = {"training": "continued", "sizes": "capped", **risk}
    return found


def completed(record: Record) -> Record:
    """The record with all that follows from it; one of this version as it is."""
    changes: dict[str, object] = {}
    # Few records come this far, and the arithmetic takes longer to load than a report to write.
    if record.sources and not record.source_figures:
        from fedaudit.study.owners_over_seeds import source_figures

        changes["source_figures"] = source_figures(record.sources, alpha_of(record))
    if record.clusters and not any(one.figure == CHANCE_VIOLATIONS for one in record.cluster_means):
        from fedaudit.study.cluster_means import cluster_means

        floors = [one for one in cluster_means(record.clusters) if one.figure == CHANCE_VIOLATIONS]
        if floors:
            changes["cluster_means"] = [*record.cluster_means, *floors]
    return record.model_copy(update=changes) if changes else record


def restated(record: Record) -> Record:
    """The record with the limits of its rates called what they are.

    Older versions took the threshold of a rate as given. Such limits hold for the share of members
    above the threshold that was used and not for the rate at a false-positive rate, so that a
    ceiling, a size or a verdict cannot rest on them. No others follow from the record.
    """
    findings = [_at_threshold(figure) for figure in record.findings]
    return record.model_copy(update={"findings": findings})


def _at_threshold(figure: Figure) -> Figure:
    of_one_run = rate_of(figure.metric) is not None and figure.seed is not None
    without = figure.low is None and figure.high is None
    if not of_one_run or without or figure.method.startswith(_ALLOWS_FOR_THRESHOLD):
        return figure
    return figure.model_copy(
        update={
            "low": None,
            "high": None,
            "low_at_threshold": figure.low,
            "high_at_threshold": figure.high,
            "method": f"{figure.method} {AT_THRESHOLD}".strip(),
        }
    )
