"""Differences between the settings of two policies or studies."""

import json
from collections.abc import Iterator, Mapping

from fedaudit.formatting.grid import shorten

ABSENT = object()
"""Placeholder for the value of a missing setting."""


def differing_paths(
    first: object, second: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield paths of settings that differ in value or type; 1, 1.0 and true all differ."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            pair = first.get(key, ABSENT), second.get(key, ABSENT)
            yield from differing_paths(*pair, (*path, key))
    elif ABSENT in (first, second) or _text(first) != _text(second):
        yield path


def setting_at(config: object, path: tuple[str, ...]) -> object:
    """Return the value at a path of keys; ``ABSENT`` if the path does not exist."""
    for key in path:
        config = config.get(key, ABSENT) if isinstance(config, Mapping) else ABSENT
    return config


def change_at(path: tuple[str, ...], config: object, expected: object, table: str = "") -> str:
    """Describe a difference between settings: the dotted name and both values."""
    values = (setting_at(config, path) for config in (config, expected))
    first, second = ("absent" if value is ABSENT else repr(value) for value in values)
    name = ".".join([*([table] if table else []), *path])
    return f"{shorten(name)} is {shorten(first, 80)} instead of {shorten(second, 80)}"


def dict_or_empty(value: object) -> dict[str, object]:
    """Return a table of settings; an empty table for any other value."""
    return dict(value) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
