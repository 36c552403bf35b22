"""All that a record says of attacks and accuracy, in the order that a comparison asks for it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.results.aggregate import Value, Values
from fedaudit.results.comparison import Row
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.metrics import TEST_ACCURACY
from fedaudit.results.record import Record


class Key(NamedTuple):
    """Coordinates of a figure within a row."""

    attack: str
    contrast: str
    metric: str


class FigureIndex(NamedTuple):
    """All that a row's record says of attacks and accuracy.

    Attributes:
        values: Figures by seed and target, those over the record's runs under the seed None.
        notes: Why a figure was refused.
        above: Targets at which a figure is above guessing, by test and interval.
        by_test: Targets at which the test alone finds it above guessing.
        tested: Figures that were tested at all.
        accuracy: Test accuracy by seed; its one target is None.
    """

    values: Mapping[Key, Values]
    notes: Mapping[Key, str]
    above: Mapping[Key, set[int | None]]
    by_test: Mapping[Key, set[int | None]]
    tested: set[Key]
    accuracy: Values


def is_compared(figure: Estimate) -> bool:
    """True if a figure is one of those that comparisons are of: an attack's AUC or rate."""
    rate = figure.metric == AUC or figure.metric.startswith("tpr@")
    return bool(figure.attack) and rate


def audited(values: Mapping[Key, Values]) -> set[int | None]:
    """All clients that a row has figures of."""
    return {t for by_seed in values.values() for by in by_seed.values() for t in by}


def inside(row: Row, values: Mapping[Key, Values]) -> set[int | None]:
    """Audited clients that a row's defense is of; all where it has none, or all use it."""
    targets = audited(values)
    return targets if row.coalition is None else targets.intersection(row.coalition)


def figure_index_of(record: Record, row: Row) -> FigureIndex:
    """The figures that a row's record has."""
    own = [f for f in record.findings if is_compared(f) and (f.defense or NO_DEFENSE) == row.family]
    tested = [f for f in _most_summarised(own) if f.value is not None and f.significant is not None]
    return FigureIndex(
        values=_values(own),
        notes=_notes([f for f in own if f.seed is not None] or own),
        above=_targets(figure for figure in tested if above_chance(figure)),
        by_test=_targets(figure for figure in tested if figure.significant),
        tested={_key(figure) for figure in tested},
        accuracy=_accuracy(record, row.family),
    )


def _key(figure: Estimate) -> Key:
    return Key(figure.attack, figure.contrast, figure.metric)


def _targets(figures: Iterable[Estimate]) -> dict[Key, set[int | None]]:
    found: dict[Key, set[int | None]] = {}
    for figure in figures:
        found.setdefault(_key(figure), set()).add(figure.target)
    return found


def _values(figures: Sequence[Estimate]) -> dict[Key, Values]:
    found: dict[Key, dict[int | None, dict[int | None, Value]]] = {}
    for figure in figures:
        if figure.value is not None:
            cancels = rate_of(figure.metric) is None
            value = Value(figure.value, _least(figure), figure.high, figure.method, cancels)
            by_seed = found.setdefault(_key(figure), {})
            by_seed.setdefault(figure.seed, {})[figure.target] = value
    return dict(found)


def _least(figure: Estimate) -> float | None:
    """The lower limit; 0 of a rate with too few non-members for any other, which holds as well."""
    bounded = figure.low is None and figure.high is not None and rate_of(figure.metric) is not None
    return 0.0 if bounded else figure.low


def _notes(figures: Sequence[Estimate]) -> dict[Key, str]:
    """Reason why figures were refused; of several reasons the first."""
    found: dict[Key, str] = {}
    for figure in figures:
        if figure.value is None:
            found.setdefault(_key(figure), figure.note)
    return found


def _most_summarised(figures: Sequence[Estimate]) -> list[Estimate]:
    """Figures over seeds where there are any: they make a family of tests of their own."""
    return [figure for figure in figures if figure.seed is None] or list(figures)


def _accuracy(record: Record, defense: str) -> Values:
    return {
        one.seed: {None: Value(one.value, one.low, one.high, one.method)}
        for one in record.where(topic="utility", metric=TEST_ACCURACY)
        if one.value is not None and (one.defense or NO_DEFENSE) == defense
    }
