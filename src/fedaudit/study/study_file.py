"""A TOML file as a study, its variants and the points of its grid."""

import copy
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.study.config import Study
from fedaudit.study.grid import grid_points
from fedaudit.study.toml import read_toml
from fedaudit.study.values import study_from


def read_study(path: Path, overrides: dict[str, object] | None = None) -> Study:
    """The study of a TOML file without its variants; see :func:`read_studies`."""
    return read_studies(path, overrides)[0]


def read_studies(path: Path, overrides: dict[str, object] | None = None) -> list[Study]:
    """The study of a TOML file, and after it each of its variants.

    A variant is a table ``[variants.NAME]`` of settings by dotted name that differ from the
    study's own; its study is named after both. Every point of a ``[grid]`` is a variant too.

    Args:
        path: The file.
        overrides: Values by dotted name, such as ``{"training.rounds": 10}``; they hold for
            the study and for all variants.

    Raises:
        BadInput: No such file, not TOML, or a wrong setting.
    """
    return [study_from(one.values, source=str(path)) for one in read_variants(path, overrides)]


class Variant(NamedTuple):
    """A study of a file as plain values.

    Attributes:
        label: Of the variant or the point of a grid; empty for the study itself.
        changes: By dotted name, in which it differs from the study.
        values: All of it.
    """

    label: str
    changes: dict[str, object]
    values: dict[str, object]


def read_variants(path: Path, overrides: dict[str, object] | None = None) -> list[Variant]:
    """The settings of a study in a TOML file, of any kind, and of each of its variants.

    Args:
        path: The file.
        overrides: Values by dotted name, for the study and all variants.

    Raises:
        BadInput: No such file, not TOML, or variants that are none.
    """
    values = read_toml(path, "the study")
    variants = _variants(values.pop("variants", {}), values.pop("grid", None), path)
    return [
        Variant(label, changes, _varied(values, label, {**changes, **(overrides or {})}))
        for label, changes in [("", {}), *variants.items()]
    ]


def _variants(given: object, grid: object, path: Path) -> dict[str, dict[str, object]]:
    """Changed settings by dotted name, of each variant and of each point of the grid."""
    if not isinstance(given, dict) or not all(isinstance(v, dict) for v in given.values()):
        raise BadInput(f"variants in {path} are tables, such as [variants.small]")
    if "" in given:
        raise BadInput(f"a variant in {path} has no name; give it one, as in [variants.small]")
    variants: dict[str, dict[str, object]] = dict(given)
    for label, changes in grid_points(grid, str(path)) if grid is not None else ():
        if label in variants:
            raise BadInput(f"{path} has a variant and a point of its grid named {label!r}")
        variants[label] = changes
    named = [label for label, changes in variants.items() if "name" in changes]
    if named:
        raise BadInput(
            f"the variant {named[0]!r} in {path} sets name, which is made of the study's name and "
            "the variant's own; leave it out"
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
    if variant == "all":
        return studies
    labels = {study.name.removeprefix(f"{studies[0].name}-"): study for study in studies[1:]}
    if not variant:
        return studies[:1]
    if variant not in labels:
        raise unknown_name("variant", variant, [*labels, "all"])
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
