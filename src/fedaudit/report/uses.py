"""What clients used of their data and what a defense cost them, in numbers."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fedaudit.report.names import NO_DEFENSE
from fedaudit.report.reading import Comparison, Record, UsageRow


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
    """What the clients of each of a comparison's rows used, client by client and seed by seed."""
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


def shares_of_all(parts: Sequence[UsageRow]) -> list[float]:
    """Share of all samples together that any client trains on, round by round."""
    total = max(sum(one.samples for one in parts), 1)
    return [sum(one.distinct[at] for one in parts) / total for at in _rounds(parts)]


def shares_used_at_most(parts: Sequence[UsageRow]) -> list[float]:
    """Share of samples that are used 0 times over the run, at most once, at most twice, ..."""
    longest = max(len(one.times_used) for one in parts)
    total = sum(sum(one.times_used) for one in parts) or 1
    return [sum(sum(one.times_used[: at + 1]) for one in parts) / total for at in range(longest)]


def _rounds(parts: Sequence[UsageRow]) -> range:
    return range(min(len(one.distinct) for one in parts))


def _sum(times: Sequence[int]) -> int:
    return sum(at * samples for at, samples in enumerate(times))
