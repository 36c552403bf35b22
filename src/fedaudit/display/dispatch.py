"""Results in notebooks and as short texts: the functions for each class."""

from collections.abc import Callable
from typing import Any, cast

from fedaudit.display import audits, inputs
from fedaudit.display.cards import Card, card_html


def html_of(result: object) -> str:
    """Return a result as an HTML fragment, whose style applies only within it.

    The fragment loads nothing, has no scripts, and escapes all texts.
    """
    rendered: Callable[[Any], Card | str] = _renderer(result, audits.CARDS | inputs.CARDS)
    card = rendered(result)
    return card if isinstance(card, str) else card_html(card)


def text_of(result: object) -> str:
    """Return a result in one or two lines: what it is, its size, its verdict, and the next call."""
    return cast("str", _renderer(result, audits.TEXTS | inputs.TEXTS)(result))


def _renderer(result: object, functions: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    # By name, so that the modules of other results are not imported.
    names = (kind.__name__ for kind in type(result).__mro__)
    return next(functions[name] for name in names if name in functions)
