"""Settings of catalogue entries, held against what the entry's function takes."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import Parameter, signature
from types import UnionType
from typing import NamedTuple, get_args

from fedaudit.core.errors import BadInput, setting, unknown_name
from fedaudit.core.values import Setting
from fedaudit.plan.base import Settings

_GIVEN = {"coalition", "members", "task"}
"""Parameters that the rest of the study gives."""


def check_options(
    kind: str,
    name: str,
    make: object,
    options: Settings,
    *,
    complete: bool = True,
    section: str | None = None,
    set_elsewhere: Collection[str] = (),
) -> None:
    """Refuses options that a function does not take, of the wrong type, or left out.

    Args:
        kind: Of the catalogue, for refusals.
        name: Of the entry.
        make: Its function, whose parameters and their annotations are what is taken.
        options: As the study gives them.
        complete: Whether every parameter without a default must be among them.
        section: Of the study, in which the options stand; the kind's own name if left out.
        set_elsewhere: Parameters that other settings decide; a refusal does not offer them.

    Raises:
        BadInput: The first option that is wrong, or those that are missing.
    """
    if not callable(make):
        raise TypeError(f"{name} cannot be made")
    parameters = {n: p for n, p in _parameters(make).items() if n not in _GIVEN}
    for option in options:
        if option not in parameters:
            raise _unknown_option(kind, name, option, parameters.keys() - {*set_elsewhere})
        _check_type(f"{option} of the {kind} {name!r}", options[option], parameters[option])
    if complete:
        refuse_missing([Entry(kind, name, make, options, section or kind)])


def _unknown_option(kind: str, name: str, option: str, offered: Collection[str]) -> BadInput:
    """Return the refusal of an option that an entry does not take."""
    if not offered:
        return BadInput(f"the {kind} {name!r} has no options; leave {option!r} out")
    return unknown_name(f"setting of the {kind} {name!r}", option, offered)


class Entry(NamedTuple):
    """A catalogue entry as a study names it.

    Attributes:
        kind: Of the catalogue.
        name: Of the entry.
        make: Its function.
        options: As the study gives them.
        section: Of the study, in which the options are.
        set_elsewhere: Parameters that other settings decide.
    """

    kind: str
    name: str
    make: Callable[..., object]
    options: Settings
    section: str
    set_elsewhere: Collection[str] = ()


def refuse_missing(entries: Iterable[Entry]) -> None:
    """Refuse entries without a setting that they must have; all such settings are named at once.

    Args:
        entries: All that a study names.

    Raises:
        BadInput: A required setting is missing. Values that papers give for it are quoted. An
            option that such an entry does not take is named first: it may be the missing one.
    """
    found = []
    for kind, name, make, options, section, set_elsewhere in entries:
        missing = [
            one.name
            for one in _parameters(make).values()
            if one.default is one.empty
            and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
            and one.name not in options
            and one.name not in _GIVEN
        ]
        given = [setting(f"{section}.options.{one}") + _published(make, one) for one in missing]
        if missing:
            taken = _parameters(make).keys() - _GIVEN
            unknown = [one for one in options if one not in taken]
            found += [
                str(_unknown_option(kind, name, one, taken - {*set_elsewhere})) for one in unknown
            ]
            found.append(
                f"the {kind} {name!r} needs {', '.join(missing)}; give it as {' and '.join(given)}"
            )
    if found:
        raise BadInput("; ".join(found))


_PUBLISHED = re.compile(r"Published: (.*?)\.(?: [A-Z]|$)")


def _published(make: object, parameter: str) -> str:
    """Return the values of a setting that papers use, in brackets, if its docstring names any."""
    text = inspect.getdoc(make) or ""
    meaning = re.search(rf"^ +{parameter}: (.*?)(?=^ +\w+: |^$|\Z)", text, re.DOTALL | re.MULTILINE)
    said = meaning and _PUBLISHED.search(" ".join(meaning[1].split()))
    return f" (published: {said[1]})" if said else ""


def _parameters(make: Callable[..., object]) -> Mapping[str, Parameter]:
    """Parameters of a function; annotations that are text, as in some files all are, are read."""
    try:
        return signature(make, eval_str=True).parameters
    except NameError:  # some of them speak of names that are only there for a type checker
        return signature(make).parameters


def _check_type(what: str, value: Setting, parameter: Parameter) -> None:
    """Whole numbers may stand for floats; nothing else may stand for another type."""
    annotation = parameter.annotation
    if annotation is parameter.empty:  # a part of the user's own need not say
        return
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    taken = [kind for kind in _IN_WORDS if kind in kinds]
    if not taken:
        raise BadInput(f"{what} cannot be set in a study; leave it out")
    if type(value) not in taken and not (float in taken and type(value) is int):
        names = " or ".join(_IN_WORDS[kind] for kind in taken)
        raise BadInput(f"{what} takes {names}, got {value!r}")


_IN_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}
