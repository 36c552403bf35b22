"""The first picture of security games: success of the server with its bounds, point by point."""

from fedaudit.report.figures.drawing import OKABE_ITO, Style
from fedaudit.report.figures.forest import (
    BASELINE,
    DEFENDED,
    MOST_LINES,
    PLAIN,
    Line,
    Mark,
    Picture,
    Track,
    TrackCell,
    forest,
)
from fedaudit.report.fixed import fixed
from fedaudit.report.grid import shortened
from fedaudit.report.text.points import (
    ShownPoint,
    contradicted,
    families,
    most_right,
    shown_points,
)
from fedaudit.report.wording import interval, percent
from fedaudit.results.games import CLAIMED_SUCCESS
from fedaudit.results.record import Record

_AT_CLAIM = Style(OKABE_ITO[2], "", "triangle-down")
_LOOKS = {
    "success": PLAIN,
    "contradicts its ε or noise bound": DEFENDED[0],
    "most that the claimed ε allows any server": _AT_CLAIM,
    "most that the actual ε or the noise allows": BASELINE,
}


def games_picture(record: Record) -> Picture:
    """Return the first picture: a row per point, with its epsilon or rounds, against guessing.

    Of many points it has the ends of each family, in the order of epsilons or rounds, or the point
    of each family where the server does best.
    """
    groups = families(shown_points(record.games)).values()
    selections = {
        "": [item for inside in groups for item in inside],
        " The smallest and the largest of each mechanism or defense are shown.": [
            item for inside in groups for item in (inside[0], inside[-1])[: len(inside)]
        ],
        " Of each mechanism or defense the point is shown where the server does best.": [
            most_right(inside) for inside in groups
        ],
    }
    fitting = [(text, points) for text, points in selections.items() if len(points) <= MOST_LINES]
    text, points = fitting[0] if fitting else list(selections.items())[-1]
    points = points[:MOST_LINES]
    caption = fixed("pictures.games") + text
    if left := len(record.games) - len(points):
        caption += f" The tables have {left} more points."
    track, title = Track("Attack success rate", "%", 0.5), "Success of the server against guessing"
    return forest(title, "success", caption, [track], [_row(item) for item in points], _LOOKS)


def _row(item: ShownPoint) -> Line:
    point, adv = item.point, item.point.adv
    limits = interval(adv.low, adv.high, "accuracy")
    look = DEFENDED[0] if contradicted(point) else PLAIN
    text = f"{item.name}: right in {percent(adv.value)} ({limits})"
    marks = [Mark(adv.value, adv.low, adv.high, look, text)]
    claimed, actual = point.figure(CLAIMED_SUCCESS), point.most if point.most < 1 else None
    for most, look, size in ((claimed, _AT_CLAIM, 6), (actual, BASELINE, 9)):
        if most is not None:
            text = f"{item.name}: at most {percent(most)}"
            marks.append(Mark(most, None, None, look, text, size))
    return Line(shortened(item.name, 60), (TrackCell(tuple(marks), percent(adv.value), limits),))
