"""Plain values, of a TOML file that anybody may have written or of Python, as a checked study."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from fedaudit.core.errors import BadInput, option, unknown_name
from fedaudit.results.text import MAX_DEPTH, deeper_than

if TYPE_CHECKING:
    from fedaudit.study.settings.sections import Study
import re
import tomllib
from itertools import islice
from pathlib import Path
from typing import cast

from fedaudit.core.errors import nearest
from fedaudit.core.files import LARGEST, SHORT, TooLarge, parsed_json, read_text
from fedaudit.results.older import settled
from fedaudit.results.text import keys, whole_numbers

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
        there = islice(path.parent.glob("*.toml"), _MOST_LOOKED_AT)
        near = [str(path.with_name(name)) for name in nearest(path.name, (p.name for p in there))]
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
        return _checked(settled(_parsed_object(text, source)), source)
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


Kind = TypeVar("Kind", bound=BaseModel)

_LONGEST = 80


def study_from(
    values: dict[str, object], *, source: str = "the study", overrides: Collection[str] = ()
) -> "Study":
    """A checked study from plain values; see :func:`settings_from`.

    Examples:
        >>> study_from({"name": "mine", "data": {"name": "digits"}}).data.name
        'digits'
    """
    # Not at the top: a policy is checked here too, by a gate that loads nothing that trains.
    from fedaudit.study.settings.sections import Study

    return settings_from(values, Study, source=source, overrides=overrides)


def settings_from(
    values: dict[str, object],
    kind: type[Kind],
    *,
    source: str = "the study",
    overrides: Collection[str] = (),
) -> Kind:
    """Checked settings of some kind of study from plain values.

    Args:
        values: As they stand in a file.
        kind: What they are to be.
        source: Where they are from, for refusals.
        overrides: Settings by dotted name that are not from there, but were given beside it.

    Raises:
        BadInput: One sentence naming the first setting that is wrong, and what is allowed.
    """
    if deeper_than(values, MAX_DEPTH):
        raise BadInput(f"{source} nests over {MAX_DEPTH} levels deep, and no setting does")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise refusal_of(error, kind, source, overrides) from error


def refusal_of(
    error: ValidationError, kind: type[BaseModel], source: str, overrides: Collection[str] = ()
) -> BadInput:
    """The fault that pydantic found, in one sentence of who wrote the settings."""
    faults = error.errors()
    first = faults[0]
    where = ".".join(str(part) for part in first["loc"])
    beside = next((name for name in overrides if _is_within(name, where)), "")
    if first["type"] == "extra_forbidden":
        *path, key = (str(part) for part in first["loc"])
        what = "setting" if beside else f"setting in {source}"
        return unknown_name(what, ".".join([*path, key]), _known(path, kind))
    # A list whose entries are refused is also called too short, which is no fault of its own.
    others = [fault for fault in faults[1:] if fault["loc"] != first["loc"][:-1]]
    more = f" (and {len(others)} more)" if others else ""
    wanted = _IN_WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    wanted = wanted.replace("Input should be", "it should be", 1)
    typed = option(beside)
    # In Python a setting stands in a mapping, under the very name that is given.
    name = typed if typed.startswith("--") else beside
    place = name if beside and where else f"{where} in {source}" if where else source
    # What refuses a whole table says itself what it was given.
    of_table = first["type"] == "value_error" and isinstance(first["input"], Mapping | BaseModel)
    return BadInput(f"{place}: {wanted}{'' if of_table else _got(first['input'])}{more}")


def _got(value: object) -> str:
    given = repr(value)
    if len(given) > _LONGEST:
        given = f"{given[:_LONGEST]}... ({len(given)} characters)"
    return f", got {given}"


def _is_within(one: str, other: str) -> bool:
    """True if either of two dotted names is of a setting, and the other of it or of a part."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


_IN_WORDS = {
    "tuple_type": "it should be a list",
    "too_short": "it should have at least one entry",
    "dict_type": "it should be a table of settings",
    "model_type": "it should be a table of settings",
    "float_parsing": "it should be a number",
    "string_type": "it should be a text",
    "bool_parsing": "it should be true or false",
    "bool_type": "it should be true or false",
    "int_type": "it should be a whole number",
    "string_pattern_mismatch": "it should be of letters, digits and '._=,+-' (at most 200), "
    "beginning with a letter or digit",
}
"""What pydantic's messages mean to somebody who writes TOML."""


def _known(path: list[str], section: type[BaseModel]) -> list[str]:
    for part in path:
        if part.isdigit():  # a place in a list of tables
            continue
        kind = section.model_fields[part].annotation
        # A table that may be left out is a section or None.
        kind = next((k for k in get_args(kind) if k is not type(None)), kind)
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return []
        section = kind
    return [".".join([*path, name]) for name in section.model_fields]
