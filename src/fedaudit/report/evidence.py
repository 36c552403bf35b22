"""What a figure shows: whether it is above guessing, and how large the leak is in words."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from fedaudit.report.grid import Tone
from fedaudit.report.reading import Figure, above_chance, by_test_alone, rate_of

Size = Literal["trace", "weak", "clear", "strong"]

Status = Literal[
    "void",
    "control failed",
    "strong leak",
    "clear leak",
    "weak leak",
    "trace of a leak",
    "above guessing",
    "inconclusive",
    "no leak shown",
]
"""The verdicts, the gravest first. "Above guessing" is of sources: owners are named, but perhaps
by the clients' class mixes alone."""

LEAKS: Mapping[Size, Status] = {
    "strong": "strong leak",
    "clear": "clear leak",
    "weak": "weak leak",
    "trace": "trace of a leak",
}
"""The verdict that goes with a leak of each size."""


class Threshold(NamedTuple):
    """From where on a leak has a word.

    Attributes:
        word: The word.
        auc: Lower limit of an AUC that earns it.
        percent_rate: Lower limit of a true-positive rate at 1% false positives, or at some rate
            between that and 0.1%.
        thousandth_rate: The same at 0.1% false positives or fewer.
    """

    word: Size
    auc: float
    percent_rate: float
    thousandth_rate: float


SIZES = (
    Threshold("trace", 0.5, 0.01, 0.001),
    Threshold("weak", 0.55, 0.02, 0.005),
    Threshold("clear", 0.6, 0.05, 0.02),
    Threshold("strong", 0.7, 0.1, 0.05),
)
"""The words for a leak, smallest first. "Trace" is all that lies above guessing; of a rate, by its
exact test."""

ROOM_FOR_DOUBT: Size = "clear"
"""An upper limit that reaches this size leaves too much room to speak of "no leak shown"."""

_ARTICLES: dict[Size, str] = {
    "trace": "a trace of a leak",
    "weak": "a weak leak",
    "clear": "a clear leak",
    "strong": "a strong leak",
}


class Look(NamedTuple):
    """How a figure is marked: the sign before it, its colour, and the word for its size."""

    sign: str = ""
    tone: Tone = ""
    word: str = ""


def size_reached(value: float, metric: str) -> Size | None:
    """The largest word that a value earns; None at guessing or below, or without words for it."""
    reached: Size | None = None
    for threshold in SIZES:
        limit = _threshold(threshold, metric)
        if limit is not None and (value > limit or (value == limit and reached)):
            reached = threshold.word
    return reached


def _threshold(threshold: Threshold, metric: str) -> float | None:
    if metric == "auc":
        return threshold.auc
    rate = rate_of(metric)
    if rate is None or rate > 0.01:
        return None
    return threshold.thousandth_rate if rate <= 0.001 else threshold.percent_rate


def gravest(statuses: Sequence[Status]) -> Status:
    """The one of several verdicts that stands in front."""
    return min(statuses, key=get_args(Status).index)


def a_leak(size: Size) -> str:
    """The size in running text: "a weak leak"."""
    return _ARTICLES[size]


def largest(sizes: list[Size]) -> Size | None:
    """The largest of several sizes; None of none."""
    order = [threshold.word for threshold in SIZES]
    return max(sizes, key=order.index, default=None)


def size_of(figure: Figure) -> Size | None:
    """How large a leak a figure shows at least: by its lower limit, if it is above guessing.

    The lower limit, since a reader looks at the largest of many figures, whose value errs
    upward. Without an interval the value itself has to do, but for a rate: its threshold is not
    known, and limits at the threshold used are none of the rate. A rate that its test finds above
    guessing and that has too few non-members for a larger lower limit is a trace.
    """
    if not above_chance(figure) or figure.value is None:
        return None
    if rate_of(figure.metric) is None:
        return size_reached(_at_least(figure), figure.metric)
    if figure.low is None and figure.high is None:
        return None
    least = _threshold(SIZES[0], figure.metric)
    return size_reached(_at_least(figure), figure.metric) or (SIZES[0].word if least else None)


def _at_least(figure: Figure) -> float:
    """The lower limit; where there is none, 0 of a rate and the value of anything else."""
    if figure.low is not None:
        return figure.low
    return 0.0 if rate_of(figure.metric) is not None else figure.value or 0.0


def strongest_found(figures: list[Figure], metric: str) -> Figure | None:
    """The figure above guessing that shows most of a leak: by its lower limit, as its word is.

    None where none of that metric is above guessing.
    """
    found = [figure for figure in figures if figure.metric == metric and above_chance(figure)]
    return max(found, key=_shown_at_least, default=None)


def _shown_at_least(figure: Figure) -> tuple[int, float, float]:
    order: list[Size | None] = [None, *(threshold.word for threshold in SIZES)]
    return order.index(size_of(figure)), _at_least(figure), figure.value or 0.0


def leading(figures: list[Figure]) -> tuple[Figure, ...]:
    """The figures that stand for the rest wherever one is named: tile, headline and sentence.

    The AUC above guessing and the rate above guessing that show most of a leak, each by its lower
    limit; the one with the larger word first, the AUC where the words are the same.
    """
    found = [strongest_found(figures, "auc"), rate_found(figures)]
    given = [figure for figure in found if figure is not None]
    return tuple(sorted(given, key=lambda figure: -_shown_at_least(figure)[0]))


def rate_found(figures: list[Figure]) -> Figure | None:
    """The rate above guessing with the largest word; of equals, that at fewest false alarms.

    None where no rate is above guessing.
    """
    rates = sorted({f.metric for f in figures if rate_of(f.metric)}, key=lambda m: rate_of(m) or 0)
    found = [figure for m in rates if (figure := strongest_found(figures, m)) is not None]
    return max(found, key=lambda figure: _shown_at_least(figure)[0], default=None)


def look_of(figure: Figure) -> Look:
    """How a figure is marked in tables."""
    if by_test_alone(figure):
        return Look("△ ", "", "size open")
    if not above_chance(figure):
        return Look()
    size = size_of(figure)
    return Look("▲ ", tone_of(size), size or "")


def tone_of(size: Size | None) -> Tone:
    """The colour of a leak that is above guessing."""
    tones: dict[Size | None, Tone] = {None: "raised", "trace": "raised", "weak": "weak"}
    tones |= {"clear": "clear", "strong": "strong"}
    return tones[size]
