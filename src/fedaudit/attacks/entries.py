"""Entries of the attack catalogue: typed functions, each of which constructs one attack.

:func:`with_rule_settings` and :func:`with_signal_settings` define an entry in one line. The entry
takes the settings of its rule or of its signal as keyword arguments, with their types and defaults,
so that a type checker and ``help()`` know them.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import ParamSpec

from fedaudit.attacks.base import Attack, Rule, SourceRule
from fedaudit.signals.base import Signal

Settings = ParamSpec("Settings")

ENTRIES: dict[str, Callable[..., Attack]] = {}
"""Every entry by its catalogue name, in the order of definition."""


def with_rule_settings(
    name: str,
    signals: tuple[Signal, ...],
    rule: Callable[Settings, Rule | SourceRule],
    source: str,
    about: str,
    /,
    *values: Settings.args,
    **defaults: Settings.kwargs,
) -> Callable[Settings, Attack]:
    """Define an attack whose constructor takes the settings of its rule.

    Args:
        name: Name in the catalogue.
        signals: What is measured. Their settings are changed by :meth:`Attack.with_settings`.
        rule: Class of the rule.
        source: Paper, with equation or section.
        about: The attack in one sentence.
        values: None; settings are given by name.
        defaults: Settings of the rule that this attack sets to something else.
    """
    adapted: Callable[Settings, Rule | SourceRule] = partial(rule, *values, **defaults)

    def construct(*arguments: Settings.args, **settings: Settings.kwargs) -> Attack:
        return Attack(signals, adapted(*arguments, **settings), source, about, name)

    return _documented(
        construct, name, rule, Attack(signals, rule(*values, **defaults), source, about, name)
    )


def with_signal_settings(
    name: str,
    signal: Callable[Settings, Signal],
    rule: Rule,
    source: str,
    about: str,
    /,
    *values: Settings.args,
    **defaults: Settings.kwargs,
) -> Callable[Settings, Attack]:
    """Define an attack on one signal whose constructor takes the settings of that signal.

    Args:
        name: Name in the catalogue.
        signal: Class of the signal.
        rule: Rule without settings of its own.
        source: Paper, with equation or section.
        about: The attack in one sentence.
        values: None; settings are given by name.
        defaults: Settings of the signal that this attack sets to something else.
    """
    adapted: Callable[Settings, Signal] = partial(signal, *values, **defaults)

    def construct(*arguments: Settings.args, **settings: Settings.kwargs) -> Attack:
        return Attack((adapted(*arguments, **settings),), rule, source, about, name)

    return _documented(
        construct, name, signal, Attack((signal(*values, **defaults),), rule, source, about, name)
    )


def name_entries(namespace: Mapping[str, object]) -> list[str]:
    """Name each entry after its variable in a module, for ``help()``, and return these names.

    Args:
        namespace: Variables of the module that defines the entries.
    """
    names = []
    for variable, value in namespace.items():
        if any(value is entry for entry in ENTRIES.values()):
            assert inspect.isfunction(value)
            value.__name__ = value.__qualname__ = variable
            value.__module__ = "fedaudit.attacks"
            value.__doc__ = f"{value.__doc__}".replace("NAME(", f"{variable}(")
            names.append(variable)
    return names


def _documented(
    construct: Callable[Settings, Attack],
    name: str,
    part: Callable[Settings, object],
    attack: Attack,
) -> Callable[Settings, Attack]:
    """Give a constructor the signature and the documentation of its entry, and list it."""
    ENTRIES[name] = construct
    defaults = attack.settings()
    settings = [
        one.replace(default=defaults[one.name], kind=one.KEYWORD_ONLY)
        for one in inspect.signature(part).parameters.values()
        if one.name in defaults
    ]
    construct.__signature__ = inspect.Signature(settings, return_annotation=Attack)  # type: ignore[attr-defined]
    meanings = [f"    {one.name}: {_meaning(part, one.name)}" for one in settings]
    construct.__doc__ = "\n\n".join(
        [
            attack.about,
            *(["\n".join(["Args:", *meanings])] if meanings else []),
            f"Examples:\n    >>> NAME().name\n    {name!r}",
            f"Source: {attack.source}.",
        ]
    )
    return construct


def _meaning(part: Callable[..., object], setting: str) -> str:
    """Return what the docstring of a class, or of one that it inherits from, says of a setting."""
    for kind in inspect.getmro(part) if inspect.isclass(part) else ():
        attribute = rf"^    {setting}: (.*?)(?=^ {{0,4}}\S|\n\n|\Z)"
        found = re.search(attribute, inspect.cleandoc(kind.__doc__ or ""), re.DOTALL | re.MULTILINE)
        if found:
            return found[1].rstrip()
    raise LookupError(f"{part} does not document its setting {setting}")
