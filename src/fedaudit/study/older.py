"""What records of older versions lack and what follows from the rest of them."""

from collections.abc import Mapping

from fedaudit.study.clustered import CHANCE_VIOLATIONS
from fedaudit.study.guessing import alpha_of
from fedaudit.study.record import Record

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
