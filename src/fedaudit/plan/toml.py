"""Settings from a TOML file that anybody may have written."""

import re
import tomllib
from itertools import islice
from pathlib import Path
from typing import cast

from fedaudit.core.errors import BadInput, nearest
from fedaudit.core.files import LARGEST, SHORT, TooLarge, parsed_json, read_text
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.text import MAX_DEPTH, deeper_than, keys, whole_numbers

_WORDLESS = re.compile(
    r'''"{3}(?:[^"\\]++|\\.|"(?!""))*+"{3,5}|"(?:[^"\\\n]++|\\.)*+"'''
    r"""|'{3}(?:[^']++|'(?!''))*+'{3,5}|'[^'\n]*+'|\#[^\n]*+""",
    re.DOTALL,
)
"""A text or a comment, as TOML has them; dots in these separate nothing."""

_MANY_DOTS = re.compile(rf"(?<![\w-])[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++){{{MAX_DEPTH},}}")
"""A key of more parts than settings nest; the parser takes a time that grows with their square."""

_MARK = "\ufeff"
_OF_A_CHECKOUT = ("studies", "examples")

_MOST_LOOKED_AT = 1000
"""Files of a folder in which a misspelt name is looked for."""


def read_toml(path: Path, what: str) -> dict[str, object]:
    """The tables of a TOML file, which is short and nests no deeper than settings do.

    The ``study.json`` in the folder of a run is read too, with defaults as they were at its time.

    Args:
        path: The file.
        what: What it is, for refusals: "the study".

    Raises:
        BadInput: No such file, not TOML, or too large or too deep for settings.
    """
    if path.exists() and not path.is_file():
        raise BadInput(f"{what} {path} is not a regular file; give the path of a TOML file")
    try:
        text = read_text(path, max_bytes=SHORT)
    except TooLarge as error:
        raise BadInput(f"{error}; {what} is a short file") from error
    except FileNotFoundError as error:
        there = [file.stem for file in islice(path.parent.glob("*.toml"), _MOST_LOOKED_AT)]
        near = [str(path.with_name(f"{name}.toml")) for name in nearest(path.stem, there)]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        if not near and path.parts[0] in _OF_A_CHECKOUT:
            hint = f"the folder {path.parts[0]} is in a checkout of fedaudit, not in its package; "
        raise BadInput(f"{what} {path} is not there; {hint}give the path of a TOML file") from error
    except OSError as error:
        raise BadInput(f"{what} {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise BadInput(f"{what} {path} is not valid TOML: {error}") from error
    source = f"{what} {path}"
    if path.suffix == ".json" and text.lstrip(_MARK + " \t\r\n").startswith("{"):
        return _checked(resolve_older_settings(_parsed_object(text, source)), source)
    return parsed_toml(text, source)


def _parsed_object(text: str, source: str) -> dict[str, object]:
    try:
        return cast(dict[str, object], parsed_json(text.removeprefix(_MARK)))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not valid JSON: {error}") from error


def parsed_toml(text: str, source: str) -> dict[str, object]:
    """The tables of a TOML text.

    Args:
        text: The text.
        source: Where it is from, for refusals: "the study x.toml".

    Raises:
        BadInput: It is not TOML, nests deeper than settings do, or has a whole number of more
            than 64 bits.
    """
    # An editor's mark of UTF-8 is not part of the text.
    text = text.removeprefix(_MARK)
    deep = _MANY_DOTS.search(_WORDLESS.sub("_", text))
    if deep:
        refuse_many_dots(deep[0], source)
    try:
        values: dict[str, object] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not valid TOML: {error}") from error
    return _checked(values, source)


def _checked(values: dict[str, object], source: str) -> dict[str, object]:
    if deeper_than(values, MAX_DEPTH):
        raise BadInput(f"{source} nests over {MAX_DEPTH} levels deep, and no setting does")
    for key in keys(values):
        refuse_many_dots(key, source)
    if any(abs(number) > LARGEST for number in whole_numbers(values)):
        raise BadInput(f"{source} has a whole number of over 64 bits, and no setting is so large")
    return values


def refuse_many_dots(name: str, source: str) -> None:
    """Refuses a setting's dotted name that leads deeper than settings nest.

    Raises:
        BadInput: It does.
    """
    if name.count(".") >= MAX_DEPTH:
        raise BadInput(
            f"{source} nests over {MAX_DEPTH} levels deep, by the dots of {name[:40]!r}..., and no "
            "setting does"
        )
