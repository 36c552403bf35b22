"""Clustered learning in several records side by side, and what changes against each row's base."""

from collections.abc import Sequence
from statistics import fmean
from typing import TypeAlias

from fedaudit.results.aggregate import Value, further_runs, gap_between, these_runs
from fedaudit.results.clusters import ClusterMean
from fedaudit.results.comparison import ClusterEntry, Difference, Row
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.record import Record

_Means: TypeAlias = dict[tuple[str, str], ClusterMean]


def cluster_entries(rows: Sequence[Row], records: Sequence[Record]) -> list[ClusterEntry]:
    """Each figure of clustered learning in each row, with its change paired by seed.

    Args:
        rows: Of the comparison.
        records: Its records.
    """
    means = [_means(records[row.source], row) for row in rows]
    found = []
    for at, row in enumerate(rows):
        base: _Means = {} if row.base is None else means[row.base]
        for key, mean in means[at].items():
            change = paired_change(mean, base[key]) if key in base else None
            found.append(ClusterEntry(row=at, figure=mean, change=change))
    return found


def paired_change(mean: ClusterMean, base: ClusterMean) -> Difference | None:
    """A figure less that of another study of the same seeds; None without a seed of both.

    Two runs of one seed deal the same data to the same groups and begin with the same models, so
    that the luck of the draw falls out of their difference.

    Args:
        mean: The figure.
        base: The same figure of the study that it is held against.
    """
    before = dict(zip(base.seeds, base.values, strict=True))
    values = zip(mean.seeds, mean.values, strict=True)
    gaps = [value - before[seed] for seed, value in values if seed in before]
    if not gaps:
        return None
    further = further_runs(gaps) if len(gaps) > 1 else None
    if not len(gaps) == len(mean.seeds) == len(base.seeds):
        # The limits of either are over runs that the other does not have.
        method = f"over the {len(gaps)} runs that both have"
        return Difference(
            value=fmean(gaps), low=None, high=None, method=method, runs=len(gaps), further=further
        )
    here = gap_between(
        Value(mean.value, mean.low, mean.high), Value(base.value, base.low, base.high)
    )
    return Difference(
        value=fmean(gaps),
        low=here.low,
        high=here.high,
        method=_method(len(gaps), limits=here.low is not None),
        runs=len(gaps),
        further=further,
    )


def _method(runs: int, *, limits: bool) -> str:
    how = "limits combined, " * limits
    return f"{how}one seed" if runs == 1 else f"{how}over {these_runs(runs)}"


def _means(record: Record, row: Row) -> _Means:
    found: _Means = {}
    for mean in record.cluster_means:
        if (mean.defense or NO_DEFENSE) == row.family:
            found.setdefault((mean.figure, mean.group), mean)
    return found
