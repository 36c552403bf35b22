"""Options of parts: checks of the settings with which a study names a part.

A *part* is a class or function that a study names, such as a defense or a partition. Its options
are the parameters that no other setting determines.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import Parameter
from typing import NamedTuple, get_args

from fedaudit.core.arguments import parameters, raise_if_invalid
from fedaudit.core.errors import BadInput, format_setting, unknown_name
from fedaudit.core.naming import Setting

_SET_BY_STUDY = frozenset({"coalition", "task"})
"""Parameters of parts that are not options, since other settings determine them."""
_DEFENSES = ("defense", "mechanism")
"""Kinds of parts that are defenses, whose clients other settings determine."""


class ConfiguredPart(NamedTuple):
    """Part that a study names, with its options.

    Attributes:
        kind: Kind of the part, such as "defense".
        name: Name of the part.
        factory: Function or class that constructs the part.
        options: Options in the study.
        section: Table of the study that has the options.
        set_elsewhere: Parameters that other settings determine; error messages do not suggest them.
    """

    kind: str
    name: str
    factory: Callable[..., object]
    options: Mapping[str, Setting]
    section: str
    set_elsewhere: Collection[str] = ()


def check_options(
    kind: str,
    name: str,
    factory: Callable[..., object],
    options: Mapping[str, Setting],
    *,
    complete: bool = True,
    section: str | None = None,
    set_elsewhere: Collection[str] = (),
) -> None:
    """Raise if an option of a part is unknown or missing, or has a wrong type.

    Args:
        kind: Kind of the part, such as "defense", for error messages.
        name: Name of the part.
        factory: Function or class of the part, whose parameters are its options.
        options: Options in the study.
        complete: Whether the options must include every parameter without a default.
        section: Table of the study with the options; by default, the table is named like the kind.
        set_elsewhere: Parameters that other settings determine; error messages do not suggest them.
    """
    part = ConfiguredPart(kind, name, factory, options, section or kind, set_elsewhere)
    accepted = _accepted(kind, factory)
    for option in options:
        if option in accepted and not _is_settable(accepted[option].annotation):
            raise BadInput(f"{option} of the {kind} {name!r} cannot be set in a study; remove it")
    check_values(
        f"the {kind} {name!r}", options, accepted, lambda option: _unknown_option(part, option)
    )
    if complete:
        raise_if_missing_options([part])


def check_values(
    subject: str,
    options: Mapping[str, object],
    accepted: Mapping[str, Parameter],
    unknown: Callable[[str], BadInput],
) -> None:
    """Raise if an option has no parameter, or a value that the parameter does not allow.

    Args:
        subject: What has the options, for the message.
        options: Values by name.
        accepted: Parameters by name. Those of custom parts may lack annotations.
        unknown: Returns the error for a name without a parameter.
    """
    for name, value in options.items():
        parameter = accepted.get(name)
        if parameter is None:
            raise unknown(name)
        if parameter.annotation is not parameter.empty:
            default = ... if parameter.default is parameter.empty else parameter.default
            raise_if_invalid(f"{name} of {subject}", value, parameter.annotation, default)


def raise_if_missing_options(parts: Iterable[ConfiguredPart]) -> None:
    """Raise one error that lists all missing options of all parts.

    Raises:
        BadInput: A required option is missing. The message contains published values of the
            option. It first lists unknown options of the same part, which may be misspellings.
    """
    messages = []
    for part in parts:
        missing = missing_options(part.kind, part.factory, part.options)
        if not missing:
            continue
        accepted = _accepted(part.kind, part.factory)
        unknown = [name for name in part.options if name not in accepted]
        messages += [str(_unknown_option(part, name)) for name in unknown]
        settings = [
            format_setting(f"{part.section}.options.{name}") + _published_values(part.factory, name)
            for name in missing
        ]
        messages.append(
            f"the {part.kind} {part.name!r} needs {', '.join(missing)}; give it as "
            f"{' and '.join(settings)}"
        )
    if messages:
        raise BadInput("; ".join(messages))


def missing_options(
    kind: str, factory: Callable[..., object], options: Collection[str]
) -> list[str]:
    """Return the required options of a part that are not given.

    Args:
        kind: Kind of the part.
        factory: Function or class of the part.
        options: Names of the given options.
    """
    return [
        parameter.name
        for parameter in _accepted(kind, factory).values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in options
    ]


def _accepted(kind: str, factory: Callable[..., object]) -> dict[str, Parameter]:
    """Return the parameters of a part that are its options."""
    set_by_study = _SET_BY_STUDY | {"clients"} if kind in _DEFENSES else _SET_BY_STUDY
    return {n: p for n, p in parameters(factory).items() if n not in set_by_study}


def _unknown_option(part: ConfiguredPart, option: str) -> BadInput:
    names = _accepted(part.kind, part.factory).keys() - {*part.set_elsewhere}
    if not names:
        return BadInput(f"the {part.kind} {part.name!r} has no options; remove {option!r}")
    return unknown_name(f"setting of the {part.kind} {part.name!r}", option, names)


_PUBLISHED = re.compile(r"Published: (.*?)\.(?: [A-Z]|$)")


def _published_values(factory: object, parameter: str) -> str:
    """Return the published values of an option from the part's docstring, in brackets."""
    text = inspect.getdoc(factory) or ""
    meaning = re.search(rf"^ +{parameter}: (.*?)(?=^ +\w+: |^$|\Z)", text, re.DOTALL | re.MULTILINE)
    published = meaning and _PUBLISHED.search(" ".join(meaning[1].split()))
    return f" (published: {published[1]})" if published else ""


def _is_settable(annotation: object) -> bool:
    """Return True if a study file can contain a value of a type, which custom parts may omit."""
    if annotation in (Parameter.empty, bool, int, float, str) or isinstance(annotation, Setting):
        return True
    return any(map(_is_settable, get_args(annotation)))
