"""Reading of settings from a TOML file or a dictionary, with errors that explain what is wrong."""

import re
import tomllib
from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError

from fedaudit.core.errors import (
    BadInput,
    format_option,
    format_setting,
    similar_names,
    unknown_name,
)
from fedaudit.core.files import MAX_INTEGER, MAX_USER_FILE_BYTES, TooLarge, parse_json, read_text
from fedaudit.results.older import resolve_older_settings
from fedaudit.results.text import MAX_DEPTH, deeper_than, iterate_keys, whole_numbers

if TYPE_CHECKING:
    from fedaudit.plan.sections import Study

Kind = TypeVar("Kind", bound=BaseModel)

_MAX_SHOWN = 80
"""Maximum number of characters of an invalid value in an error message."""

_STRING_OR_COMMENT = re.compile(
    r'''"{3}(?:[^"\\]++|\\.|"(?!""))*+"{3,5}|"(?:[^"\\\n]++|\\.)*+"'''
    r"""|'{3}(?:[^']++|'(?!''))*+'{3,5}|'[^'\n]*+'|\#[^\n]*+""",
    re.DOTALL,
)
"""A string or comment in TOML, in which dots do not separate parts of a key."""

_MANY_DOTS = re.compile(rf"(?<![\w-])[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++){{{MAX_DEPTH},}}")
"""Key with more parts than any setting has. The parser's run time is quadratic in the number."""

_BYTE_ORDER_MARK = "\ufeff"
_CHECKOUT_FOLDERS = ("studies", "examples")
_MAX_NEAR_FILES = 1000
"""Maximum number of files in a folder that are compared with a misspelt name."""


def read_toml(path: Path, what: str) -> dict[str, object]:
    """Return the tables of a TOML file.

    The file ``study.json`` in the folder of a run can also be read. Its missing settings get the
    defaults of the version of fedaudit that wrote it.

    Raises:
        BadInput: The file does not exist, is not TOML, or is too large or too deeply nested.
    """
    if path.exists() and not path.is_file():
        raise BadInput(f"{what} {path} is not a regular file; give the path of a TOML file")
    try:
        text = read_text(path, max_bytes=MAX_USER_FILE_BYTES)
    except TooLarge as error:
        raise BadInput(f"{error}; {what} should be a short file, so check the path") from error
    except FileNotFoundError as error:
        stems = [file.stem for file in islice(path.parent.glob("*.toml"), _MAX_NEAR_FILES)]
        near = [str(path.with_name(f"{name}.toml")) for name in similar_names(path.stem, stems)]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        if not near and path.parts[0] in _CHECKOUT_FOLDERS:
            hint = (
                f"the folder {path.parts[0]} is in a checkout of fedaudit, not in the installed "
                "package; "
            )
        raise BadInput(
            f"{what} {path} does not exist; {hint}give the path of a TOML file"
        ) from error
    except OSError as error:
        raise BadInput(
            f"{what} {path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from error
    except ValueError as error:
        raise BadInput(f"{what} {path} is not valid TOML: {error}") from error
    source = f"{what} {path}"
    if path.suffix == ".json" and text.lstrip(_BYTE_ORDER_MARK + " \t\r\n").startswith("{"):
        return _checked(resolve_older_settings(_parsed_object(text, source)), source)
    return parse_toml(text, source)


def _parsed_object(text: str, source: str) -> dict[str, object]:
    try:
        return cast(dict[str, object], parse_json(text.removeprefix(_BYTE_ORDER_MARK)))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not valid JSON: {error}") from error


def parse_toml(text: str, source: str) -> dict[str, object]:
    """Return the tables of a TOML text.

    Raises:
        BadInput: The text is not TOML, is too deeply nested, or has a whole number of over 64 bits.
    """
    # Some editors begin UTF-8 files with a byte order mark.
    text = text.removeprefix(_BYTE_ORDER_MARK)
    deep_key = _MANY_DOTS.search(_STRING_OR_COMMENT.sub("_", text))
    if deep_key:
        raise_if_many_dots(deep_key[0], source)
    try:
        values: dict[str, object] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not valid TOML: {error}") from error
    return _checked(values, source)


def _checked(values: dict[str, object], source: str) -> dict[str, object]:
    _raise_if_too_deep(values, source)
    for key in iterate_keys(values):
        raise_if_many_dots(key, source)
    if any(abs(number) > MAX_INTEGER for number in whole_numbers(values)):
        raise BadInput(
            f"{source} has a whole number of more than 64 bits, but no setting is so large; "
            "correct it"
        )
    return values


def _raise_if_too_deep(values: dict[str, object], source: str) -> None:
    if deeper_than(values, MAX_DEPTH):
        raise BadInput(
            f"{source} has more than {MAX_DEPTH} levels of tables, but no setting has so many; "
            "correct it"
        )


def raise_if_many_dots(name: str, source: str) -> None:
    """Raise if the dotted name of a setting has more parts than any setting."""
    if name.count(".") >= MAX_DEPTH:
        raise BadInput(
            f"{source} has the name {name[:40]!r}... with more than {MAX_DEPTH} levels of tables, "
            "but no setting has so many; correct it"
        )


def study_from(
    values: dict[str, object], *, source: str = "the study", overrides: Collection[str] = ()
) -> "Study":
    """Return a checked study from plain values.

    Args:
        values: Tables and settings, as in a study file.
        source: Origin of the values, for error messages.
        overrides: Dotted names of settings that do not come from this source.

    Raises:
        BadInput: A setting is invalid. The message names the first such setting and the allowed
            values.

    Examples:
        >>> import fedaudit as fa
        >>> fa.study_from({"name": "mine", "data": {"name": "digits"}}).data.name
        'digits'
    """
    # Imported here, since the gate checks policies with this module and must not load training
    # code.
    from fedaudit.plan.sections import Study

    return settings_from(values, Study, source=source, overrides=overrides)


def settings_from(
    values: dict[str, object],
    kind: type[Kind],
    *,
    source: str = "the study",
    overrides: Collection[str] = (),
) -> Kind:
    """Return checked settings from plain values.

    Args:
        values: Tables and settings, as in a file.
        kind: Class of the settings.
        source: Origin of the values, for error messages.
        overrides: Dotted names of settings that do not come from this source.

    Raises:
        BadInput: A setting is invalid. The message names the first such setting and the allowed
            values.
    """
    _raise_if_too_deep(values, source)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise refusal_of(error, kind, source, overrides) from error


def refusal_of(
    error: ValidationError, kind: type[BaseModel], source: str, overrides: Collection[str] = ()
) -> BadInput:
    """Convert pydantic's error to a one-sentence error for the author of the settings."""
    # Sort missing settings last, since they may be present under a misspelt name.
    errors = sorted(error.errors(), key=lambda detail: detail["type"] == "missing")
    first = errors[0]
    dotted = ".".join(str(part) for part in first["loc"])
    override = next((name for name in overrides if _is_within(name, dotted)), "")
    if first["type"] == "extra_forbidden":
        *path, key = (str(part) for part in first["loc"])
        what = "setting" if override else f"setting in {source}"
        section = _section_at(path, kind)
        names = [".".join([*path, name]) for name in section.model_fields] if section else []
        renamed = getattr(section, "former_names", {}).get(key, "")
        present_name = ".".join([*path, renamed]) if renamed else ""
        return unknown_name(what, ".".join([*path, key]), names, present_name=present_name)
    # Do not count that pydantic also reports a list with invalid entries as too short.
    others = [detail for detail in errors[1:] if detail["loc"] != first["loc"][:-1]]
    count = f" (and {len(others)} more)" if others else ""
    message = _IN_WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    message = message.replace("Input should be", "it should be", 1)
    # In Python, overrides are a dictionary from dotted names to values.
    override_name = format_option(override) if format_option("").startswith("--") else override
    where = source
    if dotted:
        where = override_name if override else f"{format_setting(dotted)} in {source}"
    # Messages of validators of a whole table already state the value.
    states_value = first["type"] in ("missing", "value_error") and isinstance(
        first["input"], Mapping | BaseModel
    )
    states_value = states_value or isinstance(first.get("ctx", {}).get("error"), BadInput)
    wrong_value = "" if states_value else _format_wrong_value(first["input"])
    return BadInput(f"{where}: {message}{wrong_value}{count}")


def _format_wrong_value(value: object) -> str:
    text = repr(value)
    if len(text) > _MAX_SHOWN:
        text = f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"
    return f", got {text}"


def _is_within(first: str, second: str) -> bool:
    """Return True if one of two dotted names begins with the other."""
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")


_IN_WORDS = {
    "missing": "it has no default; give a value",
    "tuple_type": "it should be a list",
    "too_short": "it should have at least one entry",
    "dict_type": "it should be a table of settings",
    "model_type": "it should be a table of settings",
    "float_parsing": "it should be a number",
    "string_type": "it should be a text",
    "bool_parsing": "it should be true or false",
    "bool_type": "it should be true or false",
    "int_type": "it should be a whole number",
    "string_pattern_mismatch": "it should consist of at most 200 letters, digits and '._=,+-', and "
    "start with a letter or digit",
}
"""Maps pydantic's types of errors to messages for the author of a TOML file."""


def _section_at(path: list[str], section: type[BaseModel]) -> type[BaseModel] | None:
    """Return the class of a table; None for a table of options, which has no fixed names."""
    for part in path:
        if part.isdigit():  # index in a list of tables
            continue
        kind = section.model_fields[part].annotation
        # The type of an optional table is a section or None.
        kind = next((k for k in get_args(kind) if k is not type(None)), kind)
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return None
        section = kind
    return section
