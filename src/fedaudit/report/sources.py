"""Source inference as a report shows it: each attack's figure with its runs, and words for size."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from fedaudit.report.evidence import Look, Size, largest, tone_of
from fedaudit.report.grid import shortened
from fedaudit.report.names import NO_DEFENSE, defense_name
from fedaudit.report.reading import Mean, Record, SourceFigure, SourceResult

Run: TypeAlias = SourceResult
"""What one attack found in one run."""


class Threshold(NamedTuple):
    """From where on a leak of sources has a word.

    Attributes:
        word: The word.
        share: Of the owners that class mixes leave open, the share that is named.
    """

    word: Size
    share: float


SOURCE_SIZES = (
    Threshold("trace", 0.0),
    Threshold("weak", 0.05),
    Threshold("clear", 0.15),
    Threshold("strong", 0.3),
)
"""Words as for other leaks: the best guess at membership that AUCs of 0.55, 0.6 and 0.7 allow has
an advantage of about 7, 14 and 29%, and this share is that advantage for two clients of the same
class mix."""


class Named(NamedTuple):
    """One attack under one defense and view.

    Attributes:
        figure: Over its runs.
        runs: One a seed.
    """

    figure: SourceFigure
    runs: tuple[Run, ...]


def on_sources(record: Record) -> tuple[Named, ...]:
    """Every source attack of a record, those without a defense first."""
    found = [Named(figure, _runs_of(figure, record)) for figure in record.source_figures]
    return tuple(sorted(found, key=lambda one: one.figure.defense not in ("", NO_DEFENSE)))


def labels_of_named(named: Sequence[Named]) -> list[str]:
    """A name for each: the attack, and its defense and view where these differ."""
    parts = [
        (
            shortened(one.figure.attack, 60),
            shortened(defense_name(one.figure.defense), 60),
            f"view: {shortened(one.figure.view)}",
        )
        for one in named
    ]
    varies = [len({part[place] for part in parts}) > 1 for place in range(3)]
    return [
        " · ".join(text for place, text in enumerate(part) if place == 0 or varies[place])
        for part in parts
    ]


def strongest_on_sources(named: Sequence[Named]) -> Named | None:
    """That which shows most: beyond class mixes by its lower limit, else the highest success."""
    return max(named, key=_shown, default=None)


def excess_size(figure: SourceFigure) -> Size | None:
    """How large a leak is shown at least beyond class mixes; None where none is."""
    if not figure.above_mixes:
        return None
    return size_reached_by(beyond(least_of(figure.excess), figure.mixes))


def size_reached_by(share: float) -> Size | None:
    """The largest word that a share of owners, of those that are left open, earns."""
    if share <= 0:
        return None
    return largest([threshold.word for threshold in SOURCE_SIZES if share >= threshold.share])


def beyond(excess: float, level: float) -> float:
    """An excess over a level, as a share of what that level leaves open."""
    return excess / (1 - level) if level < 1 else 0.0


def most_beyond(figure: SourceFigure) -> Size | None:
    """The largest leak that the data leave room for, held against guessing.

    Against guessing and not against class mixes, so that "no leak shown" covers both.
    """
    chance = figure.chance
    return size_reached_by(beyond(highest_of(figure.success) - chance, chance))


def look_of_source(figure: SourceFigure) -> Look:
    """How a success is marked in tables."""
    if not figure.above_guessing:
        return Look("△ ", "", "size open") if figure.guessing.significant else Look()
    size = excess_size(figure)
    if size is None:
        return Look("◇ ", "", "mixes may be all")
    return Look("▲ ", tone_of(size), size)


def least_of(mean: Mean) -> float:
    """The lower limit; the value where there is none."""
    return mean.value if mean.low is None else mean.low


def highest_of(mean: Mean) -> float:
    """The upper limit; 1 where there is none."""
    return 1.0 if mean.high is None else mean.high


def _shown(one: Named) -> tuple[bool, bool, float]:
    figure = one.figure
    value = beyond(least_of(figure.excess), figure.mixes)
    strength = value if figure.above_mixes else figure.success.value
    return figure.above_mixes, figure.above_guessing, strength


def _runs_of(figure: SourceFigure, record: Record) -> tuple[Run, ...]:
    key = (figure.attack, figure.defense, figure.view)
    return tuple(run for run in record.sources if (run.attack, run.defense, run.view) == key)
