"""Table of the use of training data in a comparison, and of what that costs a client."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fedaudit.report.grid import Cell, Filled, Grid, named, tabled
from fedaudit.report.text.comparison import labels_of
from fedaudit.report.words import MISSING, number, percent
from fedaudit.results.comparison import Comparison
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.record import Record, UsageRow


class Cost(NamedTuple):
    """Use of data and cost of a defense, over clients and seeds.

    Attributes:
        share: Of a client's samples, those that it trains on in a round.
        times: How often a sample is used over the run.
        brought_back: Of all uses, those of samples left out before; None where nothing is used.
        extra_bytes: Beside model and upload, in a round that a client takes part in.
        seconds: Of a client's training over the run.
        times_base: The seconds in multiples of the same clients' in the base; None without any.
        cosines: Of the clients that filter their updates, one a client and seed.
    """

    share: float
    times: float
    brought_back: float | None
    extra_bytes: float
    seconds: float
    times_base: float | None
    cosines: list[float]


def usage_by_row(
    comparison: Comparison, records: Sequence[Record]
) -> dict[int, Sequence[UsageRow]]:
    """Use of data in each row of a comparison, client by client and seed by seed."""
    return {
        place: [one for one in records[row.source].usage if one.defense == row.family]
        for place, row in enumerate(comparison.rows)
    }


def own(parts: Sequence[UsageRow]) -> list[UsageRow]:
    """Clients that use the defense; all where none does."""
    return [one for one in parts if one.defended or one.defense == NO_DEFENSE]


def cost(mine: Sequence[UsageRow], base: Sequence[UsageRow]) -> Cost:
    """Use and cost of some clients, held against the same clients of the base."""
    uses = sum(_sum(one.times_used) for one in mine)
    again = sum(_sum(one.times_recycled) for one in mine)
    visits = sum(sum(1 for samples in one.distinct if samples) for one in mine)
    seconds = fmean(one.seconds for one in mine)
    places = {(one.seed, one.client) for one in mine}
    same = [one.seconds for one in base if (one.seed, one.client) in places]
    return Cost(
        share=fmean(shares_by_round(mine)),
        times=uses / max(sum(one.samples for one in mine), 1),
        brought_back=again / uses if uses else None,
        extra_bytes=sum(one.extra_bytes for one in mine) / max(visits, 1),
        seconds=seconds,
        times_base=seconds / fmean(same) if same and fmean(same) else None,
        cosines=[one.filter_cosine for one in mine if one.filter_cosine is not None],
    )


def shares_by_round(parts: Sequence[UsageRow]) -> list[float]:
    """Share of its samples that a client trains on, round by round: mean over those taking part."""
    found = []
    for at in _rounds(parts):
        shares = [one.distinct[at] / one.samples for one in parts if one.distinct[at]]
        found.append(fmean(shares) if shares else 0.0)
    return found


def _rounds(parts: Sequence[UsageRow]) -> range:
    return range(min(len(one.distinct) for one in parts))


def _sum(times: Sequence[int]) -> int:
    return sum(at * samples for at, samples in enumerate(times))


_REMARK = (
    "Means over the clients that defend and over seeds. Brought back: of all uses, those of "
    "samples that the defense had left out before. Extra bytes: beside model and upload. Local "
    "time: seconds of training, and in multiples of the undefended row; not comparable between "
    "machines."
)
_FILTERED = (
    " Cosine: between what a filter of one's own is given and what it sends, mean over rounds; 1 "
    "where it leaves the direction as it is."
)


def usage_table(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Use and cost of a defending client, against a client of the row's base."""
    usage = usage_by_row(comparison, records)
    if not any(usage.values()):
        return None
    labels = labels_of(comparison)
    filtered = any(one.filter_cosine is not None for parts in usage.values() for one in parts)
    rows: list[Filled] = []
    for row, parts in usage.items():
        base = comparison.rows[row].base
        if own(parts):
            of_row = cost(own(parts), () if base is None else usage.get(base, ()))
            again, slower = of_row.brought_back, of_row.times_base
            cells: dict[str, Cell | str | None] = {
                "Defense": named(labels[row], limit=120),
                "Samples used in a round": percent(of_row.share),
                "Times a sample is used": number(of_row.times),
                "Brought back": MISSING if again is None else percent(again),
                "Extra bytes a round": f"{of_row.extra_bytes:,.0f}",
                "Local time": Cell(
                    f"{of_row.seconds:.3g} s", "" if slower is None else f"{slower:.2f} times"
                ),
            }
            if filtered:
                cells["Cosine with the raw update"] = _turned(of_row.cosines)
            rows.append(cells)
    return tabled(
        "Use of training data and cost to a client",
        rows,
        remark=_REMARK + (_FILTERED if filtered else ""),
    )


def _turned(cosines: Sequence[float]) -> Cell:
    if not cosines:
        return Cell(MISSING)
    low, high = number(min(cosines)), number(max(cosines))
    return Cell(number(fmean(cosines)), f"{low} to {high}" if low != high else "")
