"""What clients trained on and what a defense cost them: a figure and a table."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fedaudit.report.drawing import Choice, Figures, Panel, Spec, plotly_text, series_line, spec_of
from fedaudit.report.grid import Cell, Grid, columns_of, named
from fedaudit.report.reading import Comparison, Record, UsageRow
from fedaudit.report.rows import labels_of
from fedaudit.report.styles import Key, Style, style, swatch
from fedaudit.report.uses import (
    Cost,
    cost,
    own,
    shares_by_round,
    shares_of_all,
    shares_used_at_most,
    usage_by_row,
)
from fedaudit.report.words import MISSING, number, percent

_CAPTION = (
    "Training data that are used: of the clients that defend (of all where none does, or in the "
    "middle panel), means over clients and seeds. A sample that is used less often leaves less to "
    "be found."
)
_REMARK = (
    "Means over the clients that defend and over seeds. Brought back: of all uses, those of "
    "samples that the defense had left out before. Extra bytes: sent and received beside model and "
    "upload. Local time: seconds of training on the machine of each record, and how many times "
    "those of the same clients in the row that it is held against; records made on other machines "
    "or beside other work cannot be compared in it."
)
_FILTERED = (
    " Cosine: between what a filter of one's own is given and what it sends, mean over rounds; 1 "
    "where it leaves the direction as it is."
)
_COLUMNS = (
    "Samples used in a round",
    "Times a sample is used",
    "Brought back",
    "Extra bytes a round",
    "Local time",
)


class _Lines(NamedTuple):
    """A row's line in each panel."""

    own: Spec
    of_all: Spec
    at_most: Spec


def usage_figure(comparison: Comparison, records: Sequence[Record]) -> Figures | None:
    """Samples used in each round, and how often each is used over the run; a line a row."""
    usage = usage_by_row(comparison, records)
    if not any(usage.values()):
        return None
    labels = labels_of(comparison)
    looks = {row: style(place) for place, row in enumerate(usage)}
    lines = [_lines(parts, looks[row], labels[row]) for row, parts in usage.items() if own(parts)]
    keys = tuple(Key(labels[row], plotly_text(labels[row]), swatch(looks[row])) for row in usage)
    return Figures("usage", _CAPTION, (Choice("", _panels(lines)),), keys)


def _lines(parts: Sequence[UsageRow], look: Style, name: str) -> _Lines:
    mine = own(parts)
    at_most = shares_used_at_most(mine)
    return _Lines(
        _by_round(shares_by_round(mine), look, name),
        _by_round(shares_of_all(parts), look, name),
        series_line(
            range(len(at_most)),
            at_most,
            look,
            name,
            shape="hv",
            marks=6,
            hover="%{y:.1%} of samples used at most %{x} times",
        ),
    )


def _by_round(shares: Sequence[float], look: Style, name: str) -> Spec:
    rounds = range(1, len(shares) + 1)
    return series_line(rounds, shares, look, name, marks=6, hover="%{y:.1%} in round %{x}")


def _panels(lines: Sequence[_Lines]) -> tuple[Panel, ...]:
    share = {"title": {"text": "Share of samples"}, "tickformat": ".0%", "rangemode": "tozero"}
    rounds = {"title": {"text": "Round"}, "tickformat": "d", "nticks": 8}
    times = {"title": {"text": "Times used"}, "tickformat": "d", "nticks": 6}
    return (
        Panel(
            "A client's own, round by round",
            "Share of its samples that a client trains on in each round.",
            spec_of([line.own for line in lines], xaxis=rounds, yaxis=share),
        ),
        Panel(
            "The federation's, round by round",
            "Share of all samples that any client trains on in each round.",
            spec_of([line.of_all for line in lines], xaxis=rounds, yaxis=share),
        ),
        Panel(
            "Used at most so often over the run",
            "Share of a client's samples that are used at most so many times over the run.",
            spec_of([line.at_most for line in lines], xaxis=times, yaxis=share),
        ),
    )


def usage_table(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """What a defending client uses and spends, against a client of the row's base."""
    usage = usage_by_row(comparison, records)
    if not any(usage.values()):
        return None
    labels = labels_of(comparison)
    costs = {
        row: cost(own(parts), () if base is None else usage.get(base, ()))
        for row, parts in usage.items()
        for base in [comparison.rows[row].base]
        if own(parts)
    }
    filtered = any(one.filter_cosine is not None for parts in usage.values() for one in parts)
    numeric = (*_COLUMNS, *(["Cosine with the raw update"] if filtered else []))
    return Grid(
        "Use of training data and cost to a client",
        columns_of("Defense", *numeric, numeric=numeric),
        tuple(
            (named(labels[row], limit=120), *_cells(of_row)[: len(numeric)])
            for row, of_row in costs.items()
        ),
        remark=_REMARK + (_FILTERED if filtered else ""),
    )


def _cells(of_row: Cost) -> tuple[Cell, ...]:
    again, slower = of_row.brought_back, of_row.times_base
    return (
        Cell(percent(of_row.share)),
        Cell(number(of_row.times)),
        Cell(MISSING if again is None else percent(again)),
        Cell(f"{of_row.extra_bytes:,.0f}"),
        Cell(f"{of_row.seconds:.3g} s", "" if slower is None else f"{slower:.2f} times"),
        _turned(of_row.cosines),
    )


def _turned(cosines: Sequence[float]) -> Cell:
    """The mean cosine, with the clients' and seeds' range where they differ."""
    if not cosines:
        return Cell(MISSING)
    low, high = number(min(cosines)), number(max(cosines))
    return Cell(number(fmean(cosines)), f"{low} to {high}" if low != high else "")
