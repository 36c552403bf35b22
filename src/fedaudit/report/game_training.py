"""What a report of games says of how neurons were trained: their fit and the epochs they took."""

from collections.abc import Sequence

from fedaudit.report.game_points import Shown
from fedaudit.report.grid import Cell, shortened
from fedaudit.report.reading import Epochs, PointPlayed
from fedaudit.report.words import MISSING, count, listed, number

POOR_FIT = 0.9
"""Below this a neuron does not even tell apart what it was trained on."""

BY_HEART = 0.25
"""A fit that is so much lower on what was held out is one to the rows that were trained on."""

_MOST_NAMED = 4
_EMPTY = Cell(MISSING, tone="muted")


def training_columns(shown: Sequence[Shown]) -> tuple[str, ...]:
    """Names of the columns that a table of these points has of training."""
    fit = any(one.point.fit is not None for one in shown)
    held_out = any(one.point.held_out is not None for one in shown)
    epochs = any(one.point.epochs is not None for one in shown)
    return ("Fit",) * fit + ("Held out",) * held_out + ("Epochs",) * epochs


def training_cells(point: PointPlayed, columns: Sequence[str]) -> tuple[Cell, ...]:
    """The cells of these columns."""
    made = {"Fit": _fit(point), "Held out": _held_out(point), "Epochs": _epochs(point.epochs)}
    return tuple(made[name] for name in columns)


def poor_fits(shown: Sequence[Shown]) -> list[str]:
    """Warnings about points at which low success says nothing of protection; empty for none."""
    poor = [one for one in shown if _is_poor(one.point)]
    by_heart = [one for one in shown if _is_by_heart(one.point)]
    warnings = []
    if poor:
        warnings.append(
            f"At {_named(poor)} neurons do not even tell apart what they were trained on: a low "
            "success there shows a server that trained them badly, or noise that hides all, and no "
            "more. More epochs (neuron.epochs), another step size (neuron.lr) or more copies of "
            "the target (game.copies) may do better."
        )
    if by_heart:
        warnings.append(
            f"At {_named(by_heart)} neurons tell apart what they were trained on and much less of "
            "what they were not: they have learned their rows by heart. A server with more copies "
            "of the target (game.copies) or more records of its own (game.background) may do "
            "better, so that a low success there is no sign of protection."
        )
    return warnings


def _named(shown: Sequence[Shown]) -> str:
    names = [shortened(one.name, 60) for one in shown[:_MOST_NAMED]]
    more = len(shown) - len(names)
    return listed([*names, f"{count(more)} more"] if more else names)


def _is_poor(point: PointPlayed) -> bool:
    return point.fit is not None and point.fit < POOR_FIT


def _is_by_heart(point: PointPlayed) -> bool:
    if point.fit is None or point.held_out is None or _is_poor(point):
        return False
    return point.fit - point.held_out > BY_HEART


def _fit(point: PointPlayed) -> Cell:
    if point.fit is None:
        return _EMPTY
    if _is_poor(point):
        return Cell(number(point.fit), "poor", "alarm")
    return Cell(number(point.fit))


def _held_out(point: PointPlayed) -> Cell:
    if point.held_out is None:
        return _EMPTY
    if _is_by_heart(point):
        return Cell(number(point.held_out), "by heart", "alarm")
    return Cell(number(point.held_out))


def _epochs(found: Epochs | None) -> Cell:
    if found is None:
        return _EMPTY
    detail = f"{count(found.least)} to {count(found.most)}"
    if found.low is not None and found.high is not None:
        detail = f"{found.low:,.0f}–{found.high:,.0f}\n{detail}"
    never = found.targets - found.stopped
    if never:
        detail += f"\n{count(never)} of {count(found.targets)} never"
    return Cell(f"{'≥ ' * (never > 0)}{found.value:,.0f}", detail)
