"""Games as tables: how each point ended, beside what its mechanism claims and what is certified."""

from rich.console import Console

from fedaudit.games.record import GameRecord, PointPlayed, Rate, Success
from fedaudit.report.grid import Cell, Grid, columns_of, named, to_rich
from fedaudit.report.words import MISSING, count, interval, number, percent

_EMPTY = Cell(MISSING, tone="muted")
_NO_BOUND = Cell("no bound", tone="muted")

_REMARK = (
    "Adv: mean of TPR, the share of games with the target in which “in” was said, and TNR, the "
    "share of games without it in which “out” was said; 50% is guessing. Intervals: "
    "Clopper-Pearson, 95%. Epsilon is of one record, in nats. At most: the largest Adv that the "
    "true epsilon allows. Proven: the success refutes every smaller epsilon."
)


def games_table(record: GameRecord) -> Grid:
    """How the games of each point ended."""
    first = record.points[0]
    caption = (
        f"{count(first.tpr.total + first.tnr.total)} games a point, {count(first.targets)} "
        f"targets, batches of {count(first.batch)} records"
    )
    numeric = ("Adv", "TPR", "TNR", "Epsilon named", "True epsilon", "At most", "Proven")
    rows = tuple(
        (
            named(point.label or point.mechanism),
            _share(point.adv),
            _share(point.tpr),
            _share(point.tnr),
            _EMPTY if point.nominal_epsilon is None else Cell(number(point.nominal_epsilon)),
            _NO_BOUND if point.true_epsilon is None else Cell(number(point.true_epsilon)),
            Cell(percent(point.most)),
            _proven(point),
        )
        for point in record.points
    )
    return Grid(caption, columns_of("Point", *numeric, numeric=numeric), rows, remark=_REMARK)


def print_games(record: GameRecord, console: Console | None = None) -> None:
    """Prints how games ended; to standard output by default.

    Args:
        record: Of a study of games.
        console: Where to print.
    """
    (console or Console()).print(to_rich(games_table(record)))


def _share(found: Rate | Success) -> Cell:
    return Cell(percent(found.value), interval(found.low, found.high, "accuracy"))


def _proven(point: PointPlayed) -> Cell:
    if not point.refuted:
        return Cell(number(point.proven_epsilon))
    return Cell(number(point.proven_epsilon), "more than named", "alarm")
