"""Plain values as a checked study; a refusal is worded for who wrote the values."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from fedaudit.core.errors import BadInput, option, setting, unknown_name
from fedaudit.results.text import MAX_DEPTH, deeper_than

if TYPE_CHECKING:
    from fedaudit.plan.sections import Study

Kind = TypeVar("Kind", bound=BaseModel)

_LONGEST = 80


def study_from(
    values: dict[str, object], *, source: str = "the study", overrides: Collection[str] = ()
) -> "Study":
    """Return a study from plain values, checked.

    Args:
        values: Tables and settings, as a study file has them.
        source: Where they are from, for refusals.
        overrides: Dotted names of settings that are from elsewhere.

    Raises:
        BadInput: One sentence naming the first setting that is wrong, and what is allowed.

    Examples:
        >>> import fedaudit as fa
        >>> fa.study_from({"name": "mine", "data": {"name": "digits"}}).data.name
        'digits'
    """
    # Not at the top: a policy is checked here too, by a gate that loads nothing that trains.
    from fedaudit.plan.sections import Study

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
    # A misspelt name is the reason for a missing one.
    faults = sorted(error.errors(), key=lambda fault: fault["type"] == "missing")
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
    place = name if beside and where else f"{setting(where)} in {source}" if where else source
    # What refuses a whole table says itself what it was given.
    of_table = first["type"] in ("missing", "value_error") and isinstance(
        first["input"], Mapping | BaseModel
    )
    of_table = of_table or isinstance(first.get("ctx", {}).get("error"), BadInput)
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
    fields = section.model_fields.items()
    return [".".join([*path, field.alias or name]) for name, field in fields]
