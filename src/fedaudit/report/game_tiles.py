"""The numbers at the top of a report of games."""

from collections.abc import Sequence

from fedaudit.report.evidence import tone_of
from fedaudit.report.game_points import (
    Shown,
    behind_mechanism,
    epsilon,
    far_above,
    least_right,
    most_right,
    overtaken,
    short,
    shown_points,
    times_named,
    times_text,
    without_mechanism,
)
from fedaudit.report.game_rounds import in_rounds
from fedaudit.report.reading import GameRecord
from fedaudit.report.sources import size_reached_by
from fedaudit.report.tiles import Tile
from fedaudit.report.words import count, interval, percent


def game_tiles(record: GameRecord) -> list[Tile]:
    """The numbers at the top of a report of games."""
    shown = shown_points(record.points)
    behind, bare = behind_mechanism(shown), without_mechanism(shown)
    what = "defense" if in_rounds(shown) else "mechanism"
    claiming = [one for one in shown if one.point.nominal_epsilon is not None]
    found = [
        _success_tile(f"Server right, most behind a {what}", behind),
        _success_tile(f"Server right, least behind a {what}", behind, most=False)
        if len(behind) > 1
        else None,
        _success_tile(f"Server right, no {what}", bare),
        _contradicted_tile(claiming) if claiming else None,
        _factor_tile(claiming),
    ]
    return [tile for tile in found if tile is not None]


def _success_tile(label: str, shown: Sequence[Shown], *, most: bool = True) -> Tile | None:
    if not shown:
        return None
    one = most_right(shown) if most else least_right(shown)
    adv = one.point.adv
    size = size_reached_by(2 * adv.low - 1)
    detail = f"{short(one)}; 95% interval {interval(adv.low, adv.high, 'accuracy')}; guessing 50%"
    return Tile(label, percent(adv.value), detail, tone_of(size) if size else "")


def _contradicted_tile(claiming: Sequence[Shown]) -> Tile:
    wrong = sum(one.point.refuted or overtaken(one.point) for one in claiming)
    detail = "points whose success refutes the epsilon that they name"
    value = f"{count(wrong)} of {count(len(claiming))}"
    return Tile("Named epsilon contradicted", value, detail, "alarm" if wrong else "")


def _factor_tile(claiming: Sequence[Shown]) -> Tile | None:
    known = [(ratio, one) for one in claiming if (ratio := times_named(one.point)) is not None]
    if not known:
        return None
    ratio, one = max(known, key=lambda pair: pair[0])
    value = f"{times_text(ratio)} ×"
    detail = f"{short(one)}: the true one is {epsilon(one.point.true_epsilon or 0.0)}"
    return Tile("True epsilon over the named one", value, detail, "alarm" * far_above(one.point))
