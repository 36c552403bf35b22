"""A record's configuration as the TOML file that ``fedaudit run`` takes."""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def study_file(config: Mapping[str, object]) -> str:
    """The configuration of a study as TOML.

    Settings without a value are left out: TOML has no null, and a study takes what is left out
    at its default. Characters that would not show as they are become escapes.

    Args:
        config: Plain values as JSON has them.
    """
    return "\n".join(_table(config, ())).strip() + "\n"


def _table(values: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """A table's settings first, then the tables inside it, as TOML wants them."""
    for key, value in values.items():
        if value is not None and not _stands_alone(value):
            yield f"{_key(key)} = {_inline(value)}"
    for key, value in values.items():
        inside = (*path, key)
        name = ".".join(_key(part) for part in inside)
        if isinstance(value, dict):
            yield from ("", f"[{name}]", *_table(value, inside))
        elif isinstance(value, list) and _stands_alone(value):
            for entry in value:
                yield from ("", f"[[{name}]]", *_table(entry, inside))


def _stands_alone(value: object) -> bool:
    """Whether a value gets headings of its own: a table, or a list of tables only."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(entry, dict) for entry in value)
    return isinstance(value, dict)


def _inline(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_inline(entry) for entry in value if entry is not None) + "]"
    if isinstance(value, dict):
        pairs = (f"{_key(k)} = {_inline(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    return repr(value) if isinstance(value, (int, float)) else _text(str(value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(_escaped(char) for char in quoted)


def _escaped(char: str) -> str:
    """Control, direction and unassigned characters by number; TOML has no half surrogates."""
    kind = unicodedata.category(char)
    if kind == "Cs":
        return "\\ufffd"
    if kind[0] == "C" or kind in ("Zl", "Zp"):
        return f"\\U{ord(char):08x}"
    return char
