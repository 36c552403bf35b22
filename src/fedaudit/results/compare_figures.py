"""Figures of several records side by side, and what changes against each row's base."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from fedaudit.results.aggregate import (
    Value,
    Values,
    difference,
    each_over_runs,
    further_runs,
    gap_between,
    these_runs,
)
from fedaudit.results.comparison import Difference, FigureEntry, Row
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.metrics import TEST_ACCURACY, errors_cancel
from fedaudit.results.record import Record


class _Key(NamedTuple):
    """Coordinates of a figure within a row; of several views of a record the first counts."""

    topic: str
    attack: str
    metric: str
    against: str
    group: str
    contrast: str


class _Figures(NamedTuple):
    """A figure over runs, and of each."""

    whole: Estimate
    runs: Sequence[Estimate]


def figure_entries(rows: Sequence[Row], records: Sequence[Record]) -> list[FigureEntry]:
    """Test accuracy, and figures of sources and clusters, with their changes paired by seed.

    Args:
        rows: Of the comparison.
        records: Its records.
    """
    figures = [_figures(records[row.source], row.family) for row in rows]
    found = []
    for at, row in enumerate(rows):
        base: Mapping[_Key, _Figures] = {} if row.base is None else figures[row.base]
        for key, one in figures[at].items():
            change = None
            if key in base and not key.against:
                how = paired_change if key.topic == "clusters" else _difference
                change = how(one.whole, base[key].whole, one.runs, base[key].runs)
            found.append(FigureEntry(row=at, figure=one.whole, runs=len(one.runs), change=change))
    return found


def _figures(record: Record, family: str) -> dict[_Key, _Figures]:
    own = [
        one
        for one in (
            *record.where(topic="utility"),
            *record.on_sources,
            *record.where(topic="clusters"),
        )
        if one.topic != "utility" or one.metric == TEST_ACCURACY
        if (one.defense or NO_DEFENSE) == family
    ]
    utility = [one for one in own if one.topic == "utility"]
    wholes = [*each_over_runs(utility), *(one for one in own if one.seed is None)]
    found: dict[_Key, _Figures] = {}
    for whole in wholes:
        runs = [
            one
            for one in own
            if one.seed is not None and _key(one) == _key(whole) and one.view == whole.view
        ]
        found.setdefault(_key(whole), _Figures(whole, runs))
    return found


def _key(one: Estimate) -> _Key:
    return _Key(one.topic, one.attack, one.metric, one.against, one.group, one.contrast)


def _difference(
    one: Estimate, other: Estimate, runs: Sequence[Estimate], before: Sequence[Estimate]
) -> Difference | None:
    return difference(_values(runs), _values(before))


def _values(runs: Sequence[Estimate]) -> Values:
    """By seed; the one target is None."""
    return {
        run.seed: {None: Value(run.value, run.low, run.high, run.method, errors_cancel(run.metric))}
        for run in runs
        if run.value is not None
    }


def paired_change(
    mean: Estimate, base: Estimate, runs: Sequence[Estimate], before: Sequence[Estimate]
) -> Difference | None:
    """A figure less that of another study of the same seeds; None without a seed of both.

    Two runs of one seed deal the same data to the same groups and begin with the same models, so
    that the luck of the draw falls out of their difference.

    Args:
        mean: The figure over its runs.
        base: The same figure of the study that it is held against.
        runs: The figure of each run.
        before: Of each run of that study.
    """
    values = {one.seed: one.number for one in before}
    gaps = [one.number - values[one.seed] for one in runs if one.seed in values]
    if not gaps:
        return None
    if not len(gaps) == len(runs) == len(before):
        # The limits of either are over runs that the other does not have.
        method = f"over the {len(gaps)} runs that both have"
        further = further_runs(gaps) if len(gaps) > 1 else None
        return Difference(
            value=fmean(gaps), low=None, high=None, method=method, runs=len(gaps), further=further
        )
    here = gap_between(
        Value(mean.number, mean.low, mean.high, ""),
        Value(base.number, base.low, base.high, ""),
    )
    how = "limits combined, " * (here.low is not None)
    these = None if here.low is None or here.high is None else (here.low, here.high)
    return Difference(
        value=fmean(gaps),
        low=here.low,
        high=here.high,
        method=f"{how}one seed" if len(gaps) == 1 else f"{how}over {these_runs(len(gaps))}",
        runs=len(gaps),
        further=further_runs(gaps, these=these) if len(gaps) > 1 else None,
    )
