"""Settings of a file or of objects as a study, its variants and the points of its grid.

A grid is every combination of a few lists of values, each with a readable name.
"""

import copy
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Generic, NamedTuple

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.plan.sections import Study
from fedaudit.plan.toml import read_toml
from fedaudit.plan.values import Kind, settings_from

MAX_POINTS = 200
"""Points of all grids of a study; each is a whole study, with its own runs and report."""

_ALL = "all"
"""What ``--variant`` takes for the study and all of its variants."""
_LONGEST = 40
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def read_study(path: Path | str, overrides: dict[str, object] | None = None) -> Study:
    """Read a study from a TOML file, without its variants.

    Args:
        path: The file.
        overrides: Values by dotted name that replace the file's, such as
            ``{"training.rounds": 10}``.

    Returns:
        The settings, which :func:`fedaudit.run_study` runs.

    Raises:
        BadInput: No such file, not TOML, or a wrong setting.

    Examples:
        >>> import fedaudit as fa
        >>> from pathlib import Path
        >>> _ = Path("mine.toml").write_text("name = 'mine'\\n[data]\\nname = 'digits'\\n")
        >>> fa.read_study("mine.toml", {"training.rounds": 3}).training.rounds
        3
    """
    return read_studies(Path(path), overrides)[0]


def read_studies(path: Path, overrides: dict[str, object] | None = None) -> list[Study]:
    """The study of a TOML file, and after it each of its variants; see :func:`points_of`.

    Args:
        path: The file.
        overrides: Values by dotted name, such as ``{"training.rounds": 10}``; they hold for
            the study and for all variants.

    Raises:
        BadInput: No such file, not TOML, or a wrong setting.
    """
    values = read_toml(path, "the study")
    return [one.study for one in points_of(values, Study, str(path), overrides)]


@dataclass(frozen=True)
class Point(Generic[Kind]):
    """A study, or one of its variants.

    Attributes:
        label: Of the variant or the point of a grid; empty for the study itself.
        changes: By dotted name, in which it differs from the study.
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
) -> list[Point[Kind]]:
    """A study, and after it each of its variants and of the points of its grid.

    A variant is a table ``[variants.NAME]`` of settings by dotted name that differ from the
    study's own; its study is named after both. Every point of a ``[grid]`` is a variant too.

    Args:
        values: Tables as they stand in a file.
        kind: What they are a study of.
        source: Where they come from, for refusals.
        overrides: Values by dotted name, for the study and all variants.

    Raises:
        BadInput: Variants that are none, or a wrong setting.
    """
    own = dict(values)
    variants = _variants(own.pop("variants", {}), own.pop("grid", None), source)
    found = []
    for label, changes in [("", dict[str, object]()), *variants.items()]:
        varied = _varied(own, label, {**changes, **(overrides or {})})
        where = f"{source} (variant {label!r})" if label else source
        study = settings_from(varied, kind, source=where, overrides=overrides or ())
        found.append(Point(label, changes, study))
    return found


def _variants(given: object, grid: object, source: str) -> dict[str, dict[str, object]]:
    """Changed settings by dotted name, of each variant and of each point of the grid."""
    if not isinstance(given, dict) or not all(isinstance(v, dict) for v in given.values()):
        raise BadInput(f"variants in {source} are tables, such as [variants.small]")
    if "" in given:
        raise BadInput(f"a variant in {source} has no name; give it one, as in [variants.small]")
    variants: dict[str, dict[str, object]] = dict(given)
    for label, changes in grid_points(grid, source) if grid is not None else ():
        if label in variants:
            raise BadInput(f"{source} has a variant and a point of its grid named {label!r}")
        variants[label] = changes
    if _ALL in variants:
        raise BadInput(
            f"a variant in {source} is named {_ALL!r}, and --variant {_ALL} runs the study with "
            "all of its variants; give the variant another name"
        )
    named = [label for label, changes in variants.items() if "name" in changes]
    if named:
        raise BadInput(
            f"the variant {named[0]!r} in {source} sets name, which is made of the study's name "
            "and the variant's own; leave it out"
        )
    return variants


def _varied(values: dict[str, object], label: str, changes: dict[str, object]) -> dict[str, object]:
    varied = copy.deepcopy(values)
    for name, value in changes.items():
        _set(varied, name, value)
    if label:
        varied["name"] = f"{varied.get('name', '')}-{label}"
    return varied


def chosen_studies(studies: list[Study], variant: str) -> list[Study]:
    """The study itself, one of its variants, or "all" of them.

    Raises:
        BadInput: There is no variant of that name.
    """
    if variant == _ALL:
        return studies
    labels = {study.name.removeprefix(f"{studies[0].name}-"): study for study in studies[1:]}
    if not variant:
        return studies[:1]
    if not labels:
        raise BadInput(f"{studies[0].name} has no variants; leave --variant={variant} out")
    if variant not in labels:
        raise unknown_name("variant", variant, [*labels, _ALL])
    return [labels[variant]]


def _set(values: dict[str, object], dotted: str, value: object) -> None:
    *sections, last = dotted.split(".")
    place = values
    for section in sections:
        inner = place.setdefault(section, {})
        if not isinstance(inner, dict):
            raise BadInput(f"{dotted!r} cannot be set: {section!r} is a value, not a table")
        place = inner
    place[last] = value


class GridPoint(NamedTuple):
    """One combination: its name, safe in a file name, and its settings by dotted name."""

    label: str
    changes: dict[str, object]


def grid_points(given: object, source: str) -> list[GridPoint]:
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


def _points(grid: Mapping[str, object]) -> Iterator[GridPoint]:
    varied = {name: values for name, values in grid.items() if isinstance(values, list)}
    short = _short_names(list(grid))
    for combination in product(*varied.values()):
        changes = {**grid, **dict(zip(varied, combination, strict=True))}
        parts = [
            _said(value) if _is_name(name, value) else f"{short[name]}={_said(value)}"
            for name, value in changes.items()
            if name in varied or _is_name(name, value)
        ]
        yield GridPoint(",".join(parts) or "grid", changes)


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
