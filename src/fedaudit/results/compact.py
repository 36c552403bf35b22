"""Estimates as they stand in a file: what neighbours share is written once, defaults not at all."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from fedaudit.results.estimate import Coordinates, Estimate

FIGURES = "figures"
_OWN = ("metric", "value")
"""Never shared, so that a short file cannot stand for millions of figures."""
_AT = tuple(Coordinates.model_fields)


def compact(estimates: Sequence[Estimate]) -> list[dict[str, object]]:
    """Neighbours at the same coordinates as one entry: what they share, and their figures."""
    return [
        _together([one.model_dump(mode="json", exclude_defaults=True) for one in same])
        for _, same in groupby(estimates, key=_coordinates)
    ]


def expanded(given: object) -> object:
    """One entry a figure; what is no such list is given back for the format to refuse."""
    if not isinstance(given, list):
        return given
    found: list[object] = []
    for entry in given:
        figures = entry.get(FIGURES) if isinstance(entry, Mapping) else None
        if not isinstance(figures, list):
            found.append(entry)
            continue
        shared = {name: value for name, value in entry.items() if name not in (FIGURES, *_OWN)}
        found += [{**shared, **one} if isinstance(one, Mapping) else one for one in figures]
    return found


def _coordinates(one: Estimate) -> tuple[object, ...]:
    return tuple(getattr(one, name) for name in _AT)


def _together(entries: Sequence[dict[str, object]]) -> dict[str, object]:
    first, *others = entries
    if not others:
        return first
    shared = {
        name: value
        for name, value in first.items()
        if name not in _OWN and all(name in one and one[name] == value for one in others)
    }
    figures = [{k: v for k, v in one.items() if k not in shared} for one in entries]
    return {**shared, FIGURES: figures}
