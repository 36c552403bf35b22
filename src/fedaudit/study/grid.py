"""Grids of settings: every combination of a few lists of values, each with a readable name."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from fedaudit.core.errors import BadInput

MAX_POINTS = 200
"""Points of all grids of a study; each is a whole study, with its own runs and report."""

_LONGEST = 40
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


class Point(NamedTuple):
    """One combination: its name, safe in a file name, and its settings by dotted name."""

    label: str
    changes: dict[str, object]


def grid_points(given: object, source: str) -> list[Point]:
    """Every point of a ``[grid]`` table, or of several ``[[grid]]`` tables one after another.

    A list is a setting that varies, any other value one that all points of the grid share.

    Args:
        given: One table, or a list of tables, of settings by dotted name.
        source: Where they come from, for refusals.

    Returns:
        Points named by what varies ("sigma=0.01,rounds=30"); names, such as that of a defense,
        stand alone.

    Raises:
        BadInput: No table, an empty list or one that repeats itself, too many points, or two
            points of one name.
    """
    grids = [_flat(grid, source) for grid in (given if isinstance(given, list) else [given])]
    total = sum(math.prod(len(v) for v in grid.values() if isinstance(v, list)) for grid in grids)
    if total > MAX_POINTS:
        raise BadInput(
            f"the grid in {source} has {total:,} points, and at most {MAX_POINTS} are run in one "
            "go; shorten a list, or make several studies of it (runs are shared between them)"
        )
    points = [point for grid in grids for point in _points(grid)]
    labels = [point.label for point in points]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInput(
                f"two points of the grid in {source} are both named {label!r}; let a setting "
                "that tells them apart vary, or leave one out"
            )
    return points


def _flat(grid: object, source: str, above: str = "") -> dict[str, object]:
    """Settings by dotted name, whether they were written as dots or as tables."""
    if not isinstance(grid, dict) or not grid:
        raise BadInput(
            f"grid in {source} is a table of settings with lists of values, such as "
            '"training.rounds" = [10, 30]'
        )
    found: dict[str, object] = {}
    for name, value in grid.items():
        full = f"{above}{name}"
        if isinstance(value, list):
            _refuse_odd_list(full, value, source)
        part = _flat(value, source, f"{full}.") if isinstance(value, dict) else {full: value}
        for twice in sorted(part.keys() & found.keys()):
            raise BadInput(
                f"grid.{twice} in {source} is given twice, as a dotted name and within a table; "
                "give it once"
            )
        found |= part
    return found


def _refuse_odd_list(name: str, values: Sequence[object], source: str) -> None:
    if not values:
        raise BadInput(f"grid.{name} in {source} has no values; give at least one")
    texts = [json.dumps(value, default=str) for value in values]
    if len(set(texts)) < len(texts):
        raise BadInput(f"grid.{name} in {source} holds a value twice; give each once")


def _points(grid: Mapping[str, object]) -> Iterator[Point]:
    varied = {name: values for name, values in grid.items() if isinstance(values, list)}
    short = _short_names(list(grid))
    for combination in product(*varied.values()):
        changes = {**grid, **dict(zip(varied, combination, strict=True))}
        parts = [
            _said(value) if _is_name(name, value) else f"{short[name]}={_said(value)}"
            for name, value in changes.items()
            if name in varied or _is_name(name, value)
        ]
        yield Point(",".join(parts) or "grid", changes)


def _is_name(name: str, value: object) -> bool:
    """True if a value speaks for itself: the name of a defense, model or data set."""
    return name.endswith(".name") and isinstance(value, str)


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """The last part of each dotted name, with as many parts before it as tell it apart."""
    found = {}
    for name in names:
        parts = name.split(".")
        endings = [".".join(parts[-size:]) for size in range(1, len(parts) + 1)]
        others = [f".{other}" for other in names if other != name]
        own = next((e for e in endings if not any(o.endswith(f".{e}") for o in others)), name)
        found[name] = _UNSAFE.sub("-", own)
    return found


def _said(value: object) -> str:
    """A value as part of a file name; one that must be changed for it carries a mark of its own."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "+".join(_said(part) for part in value) if isinstance(value, list) else str(value)
    safe = _UNSAFE.sub("-", text)
    if safe == text and 0 < len(text) <= _LONGEST:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{safe[: _LONGEST - 7]}-{mark}"
