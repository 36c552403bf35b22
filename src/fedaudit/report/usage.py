"""What clients trained on and what a defense cost them: figures and a table."""

from collections.abc import Sequence
from statistics import fmean

from fedaudit.report.choosing import NO_DEFENSE
from fedaudit.report.drawing import Choice, Figures, Panel, Spec, plotly_text, series_line, spec_of
from fedaudit.report.grid import Cell, Grid, columns_of, named
from fedaudit.report.rows import labels_of
from fedaudit.report.styles import Key, Style, style, swatch
from fedaudit.report.words import MISSING, number, percent
from fedaudit.study.compared import Comparison
from fedaudit.study.record import Record, UsageRow

_FILTERED = (
    " Cosine: between what a filter of one's own is given and what it sends, mean over rounds; 1 "
    "where it leaves the direction as it is."
)


def usage_figure(comparison: Comparison, records: Sequence[Record]) -> Figures | None:
    """Samples used in each round, and how often each is used over the run; a line a row."""
    usage = _usage(comparison, records)
    if not any(usage.values()):
        return None
    labels = labels_of(comparison)
    looks = {row: style(place) for place, row in enumerate(usage)}
    by_round, by_times, of_all = list[Spec](), list[Spec](), list[Spec]()
    for row, parts in usage.items():
        mine, name, look = _own(parts), labels[row], looks[row]
        if not mine:
            continue
        by_round.append(_line(_shares(mine), look, name, "%{y:.1%} in round %{x}"))
        of_all.append(_line(_shares(parts, together=True), look, name, "%{y:.1%} in round %{x}"))
        by_times.append(_times(mine, look, name))
    share = {"title": {"text": "Share of samples"}, "tickformat": ".0%", "rangemode": "tozero"}
    rounds = {"title": {"text": "Round"}, "tickformat": "d", "nticks": 8}
    times = {"title": {"text": "Times used"}, "tickformat": "d", "nticks": 6}
    panels = (
        Panel(
            "A client's own, round by round",
            "Share of its samples that a client trains on in each round.",
            spec_of(by_round, xaxis=rounds, yaxis=share),
        ),
        Panel(
            "The federation's, round by round",
            "Share of all samples that any client trains on in each round.",
            spec_of(of_all, xaxis=rounds, yaxis=share),
        ),
        Panel(
            "Used at most so often over the run",
            "Share of a client's samples that are used at most so many times over the run.",
            spec_of(by_times, xaxis=times, yaxis=share),
        ),
    )
    keys = tuple(Key(labels[row], plotly_text(labels[row]), swatch(looks[row])) for row in usage)
    return Figures(
        "usage",
        "Training data that are used: of the clients that defend (of all where none does, or in "
        "the middle panel), means over clients and seeds. A sample that is used less often leaves "
        "less to be found.",
        (Choice("", panels),),
        keys,
    )


def usage_table(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """What a defending client uses and spends, against a client of the row's base."""
    usage = _usage(comparison, records)
    if not any(usage.values()):
        return None
    labels = labels_of(comparison)
    filtered = any(_cosines(parts) for parts in usage.values())
    rows = []
    for row, parts in usage.items():
        mine, base = _own(parts), comparison.rows[row].base
        if not mine:
            continue
        total = sum(_sum(one.times_used) for one in mine)
        again = sum(_sum(one.times_recycled) for one in mine)
        visits = sum(sum(1 for n in one.distinct if n) for one in mine)
        rows.append(
            (
                named(labels[row], limit=120),
                Cell(percent(fmean(_shares(mine)))),
                Cell(number(total / max(sum(one.samples for one in mine), 1))),
                Cell(percent(again / total) if total else MISSING),
                Cell(f"{sum(one.extra_bytes for one in mine) / max(visits, 1):,.0f}"),
                _ratio(mine, usage.get(base, []) if base is not None else []),
                *([_turned(_cosines(mine))] if filtered else []),
            )
        )
    numeric = (
        "Samples used in a round",
        "Times a sample is used",
        "Brought back",
        "Extra bytes a round",
        "Local time",
        *(["Cosine with the raw update"] if filtered else []),
    )
    return Grid(
        "Use of training data and cost to a client",
        columns_of("Defense", *numeric, numeric=numeric),
        tuple(rows),
        remark="Means over the clients that defend and over seeds. Brought back: of all uses, "
        "those of samples that the defense had left out before. Extra bytes: sent and received "
        "beside model and upload. Local time: seconds of training on the machine of each record, "
        "and how many times those of the same clients in the row that it is held against; records "
        "made on other machines or beside other work cannot be compared in it."
        + (_FILTERED if filtered else ""),
    )


def _usage(comparison: Comparison, records: Sequence[Record]) -> dict[int, list[UsageRow]]:
    return {
        place: [one for one in records[row.source].usage if one.defense == row.family]
        for place, row in enumerate(comparison.rows)
    }


def _own(parts: Sequence[UsageRow]) -> list[UsageRow]:
    """Clients that use the defense; all where none does."""
    return [one for one in parts if one.defended or one.defense == NO_DEFENSE]


def _shares(parts: Sequence[UsageRow], *, together: bool = False) -> list[float]:
    """Share of samples used in each round: mean over clients that took part, or of all data."""
    rounds = min(len(one.distinct) for one in parts)
    found = []
    for at in range(rounds):
        if together:
            total = sum(one.samples for one in parts)
            found.append(sum(one.distinct[at] for one in parts) / max(total, 1))
            continue
        shares = [one.distinct[at] / one.samples for one in parts if one.distinct[at]]
        found.append(fmean(shares) if shares else 0.0)
    return found


def _line(values: Sequence[float], look: Style, name: str, hover: str) -> Spec:
    line = series_line(list(range(1, len(values) + 1)), list(values), look, name, marks=6)
    return line | {"hovertemplate": hover + f"<extra>{plotly_text(name)}</extra>"}


def _times(parts: Sequence[UsageRow], look: Style, name: str) -> Spec:
    """Share of samples that are used at most so many times, as steps."""
    longest = max(len(one.times_used) for one in parts)
    total = sum(sum(one.times_used) for one in parts) or 1
    shares = [sum(sum(one.times_used[: at + 1]) for one in parts) / total for at in range(longest)]
    line = series_line(list(range(longest)), shares, look, name, shape="hv", marks=6)
    hover = "%{y:.1%} of samples used at most %{x} times"
    return line | {"hovertemplate": f"{hover}<extra>{plotly_text(name)}</extra>"}


def _sum(times: Sequence[int]) -> int:
    return sum(at * samples for at, samples in enumerate(times))


def _cosines(parts: Sequence[UsageRow]) -> list[float]:
    return [one.filter_cosine for one in parts if one.filter_cosine is not None]


def _turned(cosines: Sequence[float]) -> Cell:
    """The mean cosine, with the clients' and seeds' range where they differ."""
    if not cosines:
        return Cell(MISSING)
    low, high = number(min(cosines)), number(max(cosines))
    return Cell(number(fmean(cosines)), f"{low} to {high}" if low != high else "")


def _ratio(mine: Sequence[UsageRow], base: Sequence[UsageRow]) -> Cell:
    seconds = fmean(one.seconds for one in mine)
    places = {(one.seed, one.client) for one in mine}
    same = [one.seconds for one in base if (one.seed, one.client) in places]
    if not same or not fmean(same):
        return Cell(f"{seconds:.3g} s")
    return Cell(f"{seconds:.3g} s", f"{seconds / fmean(same):.2f} times")
