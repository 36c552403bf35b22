"""Reading of study files: a study, its variants, and the points of its grid.

A grid consists of all combinations of values from several lists. Each combination is a point with a
readable name.
"""

import copy
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Generic, NamedTuple

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.plan.sections import SAMPLES_NAMES, Study
from fedaudit.plan.values import Kind, read_toml, settings_from

MAX_POINTS = 200
"""Maximum number of points of a study's grids, since each point has separate runs and a report."""

_ALL = "all"
"""Value of ``--variant`` that selects the study and all of its variants."""
_MAX_LABEL = 40
"""Maximum length of a value in the name of a point."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
"""Characters that are replaced in file names."""


def read_studies(
    path: Path,
    overrides: dict[str, object] | None = None,
    resolve_names: Callable[[dict[str, object]], dict[str, object]] | None = None,
) -> list[Study]:
    """Return the study of a TOML file, followed by its variants; see :func:`points_of`.

    Args:
        path: The file.
        overrides: Values by dotted name, such as ``{"training.rounds": 10}``, which apply to the
            study and to all variants.
        resolve_names: Function that replaces names of clients in settings by their numbers.

    Raises:
        BadInput: The file does not exist or is not TOML, or a setting is wrong.
    """
    values = read_toml(path, "the study")
    points = points_of(values, Study, str(path), overrides, resolve_names)
    return [point.study for point in points]


@dataclass(frozen=True)
class Point(Generic[Kind]):
    """A study, or one of its variants.

    Attributes:
        label: Name of the variant or of the point of a grid; empty for the study itself.
        changes: Values by dotted name that differ from the study.
        study: All settings.
    """

    label: str
    changes: dict[str, object]
    study: Kind


def points_of(
    values: Mapping[str, object],
    kind: type[Kind],
    source: str,
    overrides: Mapping[str, object] | None = None,
    resolve_names: Callable[[dict[str, object]], dict[str, object]] | None = None,
) -> list[Point[Kind]]:
    """Return a study, followed by its variants and the points of its grid.

    A variant is a table ``[variants.NAME]`` with the settings, by dotted name, that differ from the
    study. Its name consists of the study's name and NAME. Every point of a ``[grid]`` is a variant
    too.

    Raises:
        BadInput: A variant is not a table, or a setting is wrong.
    """
    tables = dict(values)
    variants = _variants(tables.pop("variants", {}), tables.pop("grid", None), source)
    points = []
    for label, changes in [("", dict[str, object]()), *variants.items()]:
        varied = _apply_changes(tables, label, {**changes, **(overrides or {})})
        if resolve_names is not None:
            varied = resolve_names(varied)
        variant_source = f"{source} (variant {label!r})" if label else source
        study = settings_from(varied, kind, source=variant_source, overrides=overrides or ())
        points.append(Point(label, changes, study))
    return points


def _variants(tables: object, grid: object, source: str) -> dict[str, dict[str, object]]:
    """Return the changes by dotted name of each variant and of each point of the grid."""
    if not isinstance(tables, dict) or not all(isinstance(v, dict) for v in tables.values()):
        raise BadInput(f"variants in {source} must be tables, such as [variants.small]")
    if "" in tables:
        raise BadInput(f"a variant in {source} has no name; give it one, as in [variants.small]")
    variants: dict[str, dict[str, object]] = dict(tables)
    for label, changes in grid_points(grid, source) if grid is not None else ():
        if label in variants:
            raise BadInput(
                f"{source} has a variant and a point of its grid named {label!r}; rename the "
                "variant"
            )
        variants[label] = changes
    if _ALL in variants:
        raise BadInput(
            f"a variant in {source} is named {_ALL!r}, but --variant {_ALL} runs the study with "
            "all of its variants; give the variant another name"
        )
    renamed = [label for label, changes in variants.items() if "name" in changes]
    if renamed:
        raise BadInput(
            f"the variant {renamed[0]!r} in {source} sets name, but the name follows from the name "
            "of the study and of the variant; remove it"
        )
    return variants


def _apply_changes(
    values: dict[str, object], label: str, changes: dict[str, object]
) -> dict[str, object]:
    varied = copy.deepcopy(values)
    for name, value in changes.items():
        _set(varied, name, value)
    if label:
        varied["name"] = f"{varied.get('name', '')}-{label}"
    return varied


def chosen_studies(studies: list[Study], variant: str) -> list[Study]:
    """Return the studies that ``--variant`` selects.

    Args:
        studies: The study and its variants.
        variant: Name of a variant; empty for the study itself, "all" for all of them.

    Raises:
        BadInput: The variant does not exist.
    """
    if variant == _ALL:
        return studies
    labels = {study.name.removeprefix(f"{studies[0].name}-"): study for study in studies[1:]}
    if not variant:
        return studies[:1]
    if not labels:
        raise BadInput(f"{studies[0].name} has no variants; remove --variant={variant}")
    if variant not in labels:
        raise unknown_name("variant", variant, [*labels, _ALL])
    return [labels[variant]]


def _set(values: dict[str, object], dotted: str, value: object) -> None:
    *sections, last = dotted.split(".")
    table = values
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise BadInput(f"{dotted!r} cannot be set: {section!r} is a value, not a table")
        table = inner
    # The file may set the number of audited samples under one of its other names.
    for synonym in SAMPLES_NAMES if sections == ["audit"] and last in SAMPLES_NAMES else ():
        table.pop(synonym, None)
    table[last] = value


class GridPoint(NamedTuple):
    """Point of a grid: its name, which is a valid file name, and its settings by dotted name."""

    label: str
    changes: dict[str, object]


def grid_points(tables: object, source: str) -> list[GridPoint]:
    """Return all points of a ``[grid]`` table, or of several ``[[grid]]`` tables in their order.

    A setting with a list of values varies between points. Other values apply to all points.

    Returns:
        Points. A point's name lists the varied settings, such as "sigma=0.01,rounds=30". For the
        name of a part, such as a defense, the setting's name is left out.

    Raises:
        BadInput: A grid is not a table, a list is empty or repeats a value, there are too many
            points, or two points have the same name.
    """
    grids = [_flat(grid, source) for grid in (tables if isinstance(tables, list) else [tables])]
    total = sum(math.prod(len(v) for v in grid.values() if isinstance(v, list)) for grid in grids)
    if total > MAX_POINTS:
        raise BadInput(
            f"the grid in {source} has {total:,} points, but at most {MAX_POINTS} are allowed; "
            "shorten a list, or split the grid into several studies"
        )
    points = [point for grid in grids for point in _points(grid)]
    labels = [point.label for point in points]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInput(
                f"two points of the grid in {source} have the same name {label!r}; remove one of "
                "them, or give a list for a setting that differs between them"
            )
    return points


def _flat(grid: object, source: str, prefix: str = "") -> dict[str, object]:
    """Return a grid's settings by dotted name. The grid may have dotted names or nested tables."""
    if not isinstance(grid, dict) or not grid:
        raise BadInput(
            f"grid in {source} must be a table of settings with lists of values, such as "
            '"training.rounds" = [10, 30]'
        )
    settings: dict[str, object] = {}
    for name, value in grid.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, list):
            _raise_if_empty_or_repeated(dotted, value, source)
        added = _flat(value, source, f"{dotted}.") if isinstance(value, dict) else {dotted: value}
        for repeated in sorted(added.keys() & settings.keys()):
            raise BadInput(
                f"grid.{repeated} in {source} is given twice, as a dotted name and within a table; "
                "give it once"
            )
        settings |= added
    return settings


def _raise_if_empty_or_repeated(name: str, values: Sequence[object], source: str) -> None:
    if not values:
        raise BadInput(f"grid.{name} in {source} has no values; give at least one")
    texts = [json.dumps(value, default=str) for value in values]
    if len(set(texts)) < len(texts):
        raise BadInput(f"grid.{name} in {source} repeats a value; give each once")


def _points(grid: Mapping[str, object]) -> Iterator[GridPoint]:
    varied = {name: values for name, values in grid.items() if isinstance(values, list)}
    short = _short_names(list(grid))
    for combination in product(*varied.values()):
        changes = {**grid, **dict(zip(varied, combination, strict=True))}
        parts = [
            file_name_of(value) if _is_name(name, value) else f"{short[name]}={file_name_of(value)}"
            for name, value in changes.items()
            if name in varied or _is_name(name, value)
        ]
        yield GridPoint(",".join(parts) or "grid", changes)


def _is_name(name: str, value: object) -> bool:
    """Return True if a value is the name of a defense, model or data set."""
    return name.endswith(".name") and isinstance(value, str)


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Map each dotted name to its shortest unique ending."""
    short = {}
    for name in names:
        parts = name.split(".")
        endings = [".".join(parts[-size:]) for size in range(1, len(parts) + 1)]
        others = [f".{other}" for other in names if other != name]
        unique = (e for e in endings if not any(o.endswith(f".{e}") for o in others))
        short[name] = _UNSAFE.sub("-", next(unique, name))
    return short


def file_name_of(value: object) -> str:
    """Format a value for a file name; add a hash if characters are replaced or removed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "+".join(file_name_of(part) for part in value) if isinstance(value, list) else str(value)
    safe = _UNSAFE.sub("-", text)
    if safe == text and 0 < len(text) <= _MAX_LABEL:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{safe[: _MAX_LABEL - 7]}-{digest}"
