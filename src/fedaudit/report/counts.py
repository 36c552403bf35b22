"""The counts behind the rates: members and false alarms, run by run and in all."""

from typing import NamedTuple

from fedaudit.report.choosing import RunsBehind, headline, key_of, runs_behind
from fedaudit.report.grid import Cell, Grid, columns_of, named
from fedaudit.report.names import contrast_name, contrast_order, metric_name
from fedaudit.report.reading import Figure, Record, rate_of
from fedaudit.report.words import MISSING, count


class Counted(NamedTuple):
    """Whole numbers of samples.

    Attributes:
        found: Members flagged.
        members: All members.
        alarms: Non-members flagged.
        nonmembers: All non-members.
    """

    found: int
    members: int
    alarms: int
    nonmembers: int


def counted(figure: Figure) -> Counted | None:
    """The counts behind a rate of one run; None for any other figure."""
    if figure.value is None or figure.realised_fpr is None or rate_of(figure.metric) is None:
        return None
    return Counted(
        round(figure.value * figure.n_members),
        figure.n_members,
        round(figure.realised_fpr * figure.n_nonmembers),
        figure.n_nonmembers,
    )


def in_all(figure: Figure, runs: RunsBehind) -> Counted | None:
    """The counts behind a rate, summed over the runs where it is a mean over several."""
    if figure.seed is not None:
        return counted(figure)
    parts = [part for run in runs.get(key_of(figure), []) if (part := counted(run))]
    if not parts:
        return counted(figure)
    return Counted(*(sum(column) for column in zip(*parts, strict=True)))


def counts_in_words(part: Counted) -> str:
    """What a table says below a rate: members found, and false alarms."""
    return (
        f"{count(part.found)}/{count(part.members)}\nFP {count(part.alarms)}/"
        f"{count(part.nonmembers)}"
    )


def sizes_in_words(figures: list[Figure], runs: RunsBehind, contrast: str) -> str:
    """Members and non-members of a contrast: of the one run, or of each of several.

    A mean over runs must not look like one audit of all their samples together.
    """
    here = [figure for figure in figures if figure.contrast == contrast]
    behind = [
        run for f in here if f.seed is None for run in runs.get(key_of(f), []) if run.n_members
    ]
    seeds = {run.seed for run in behind}
    if len(seeds) > 1:
        return f"{len(seeds)} seeds, each {_range(behind)}"
    found = [figure for figure in here if figure.n_members]
    return _range(found) if len({(f.n_members, f.n_nonmembers) for f in found}) == 1 else ""


def _range(figures: list[Figure]) -> str:
    members = {figure.n_members for figure in figures}
    others = {figure.n_nonmembers for figure in figures}
    return f"{_span(members)} v. {_span(others)}"


def _span(amounts: set[int]) -> str:
    low, high = min(amounts), max(amounts)
    return count(low) if low == high else f"{count(low)}–{count(high)}"


def counts_table(record: Record) -> Grid | None:
    """Members found and false alarms behind each mean rate, seed by seed; None without means."""
    runs = runs_behind(record)
    means = [f for f in headline(record) if f.seed is None and in_all(f, runs) is not None]
    seeds = sorted({run.seed or 0 for f in means for run in runs.get(key_of(f), [])})
    if not seeds:
        return None
    means.sort(key=lambda figure: (figure.metric, contrast_order(figure.contrast)))
    rows = []
    for mean in means:
        by_seed = {run.seed: counted(run) for run in runs.get(key_of(mean), [])}
        cells = [_cell(by_seed.get(seed)) for seed in seeds]
        where = [Cell(contrast_name(mean.contrast)), Cell(metric_name(mean.metric))]
        rows.append((named(mean.attack), *where, *cells, _cell(in_all(mean, runs))))
    headings = [f"Seed {seed}" for seed in seeds] + ["In all"]
    return Grid(
        "Counts behind the rates, seed by seed",
        columns_of("Attack", "Non-members", "Rate", *headings, numeric=headings),
        tuple(rows),
        remark="Members found of all members, and below them false alarms (FP) of all non-members. "
        "Seeds are runs of their own, each with a threshold of its own: the sum in the last column "
        "is for orientation, and no interval rests on it.",
    )


def _cell(part: Counted | None) -> Cell:
    if part is None:
        return Cell(MISSING, tone="muted")
    found, alarms = counts_in_words(part).split("\n")
    return Cell(found, alarms)
