"""Checks of the settings of catalogue entries against what an entry's function takes."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable
from inspect import Parameter
from typing import NamedTuple, get_args

from fedaudit.core.arguments import parameters, refuse_unfit
from fedaudit.core.errors import BadInput, setting, unknown_name
from fedaudit.core.values import Setting
from fedaudit.plan.base import Settings

_GIVEN = {"coalition", "members", "task"}
"""Parameters that the rest of the study sets."""


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
    """Raise if a function does not take an option, or one has the wrong type or is missing.

    Args:
        kind: Catalogue, for refusals.
        name: Name of the entry.
        make: Its function, whose parameters and annotations are what is taken.
        options: Options in the study.
        complete: Whether every parameter without a default must be among them.
        section: Table of the study that has the options; that of the kind's name if left out.
        set_elsewhere: Parameters that other settings decide; a refusal does not offer them.

    Raises:
        BadInput: The first option that is wrong, or those that are missing.
    """
    if not callable(make):
        raise TypeError(f"{name} cannot be made")
    taken = {n: p for n, p in parameters(make).items() if n not in _GIVEN}
    for option in options:
        if option not in taken:
            raise _unknown_option(kind, name, option, taken.keys() - {*set_elsewhere})
        _check_type(f"{option} of the {kind} {name!r}", options[option], taken[option])
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
        kind: Catalogue.
        name: Name of the entry.
        make: Its function.
        options: Options in the study.
        section: Table of the study that has the options.
        set_elsewhere: Parameters that other settings decide.
    """

    kind: str
    name: str
    make: Callable[..., object]
    options: Settings
    section: str
    set_elsewhere: Collection[str] = ()


def refuse_missing(entries: Iterable[Entry]) -> None:
    """Raise if an entry lacks a setting that it needs; all such settings are named at once.

    Args:
        entries: All entries that a study names.

    Raises:
        BadInput: A required setting is missing. Values that papers give for it are quoted. An
            option that such an entry does not take is named first: it may be the missing one.
    """
    found = []
    for kind, name, make, options, section, set_elsewhere in entries:
        missing = [
            one.name
            for one in parameters(make).values()
            if one.default is one.empty
            and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
            and one.name not in options
            and one.name not in _GIVEN
        ]
        given = [setting(f"{section}.options.{one}") + _published(make, one) for one in missing]
        if missing:
            taken = parameters(make).keys() - _GIVEN
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


def _check_type(what: str, value: Setting, parameter: Parameter) -> None:
    annotation = parameter.annotation
    if annotation is parameter.empty:  # custom parts need no annotations
        return
    if not _is_plain(annotation):
        raise BadInput(f"{what} cannot be set in a study; leave it out")
    refuse_unfit(
        what,
        value,
        annotation,
        *([] if parameter.default is parameter.empty else [parameter.default]),
    )


def _is_plain(annotation: object) -> bool:
    """Return True if a study file can state a value of a type."""
    within = [annotation, *get_args(annotation)]
    return any(one in (bool, int, float, str) or isinstance(one, Setting) for one in within) or any(
        _is_plain(one) for one in within[1:]
    )
