"""Text from a record made safe to show, all of it in one place."""

from typing import TypeVar

from pydantic import BaseModel

from fedaudit.report.grid import clean
from fedaudit.report.names import in_words

Model = TypeVar("Model", bound=BaseModel)

_AS_IT_IS = {"config"}
"""A study's settings are shown as a study file, which escapes what it must."""
_NUMBERS = {float, int, bool, type(None)}
"""Most of a record, which needs no look at each."""


def cleaned(model: Model) -> Model:
    """A record or comparison without control or direction characters in any text.

    Notes, which readers of all kinds see, get words in the place of the program's own names.

    Names that a page or a terminal shows must not turn round the text beside them, whichever
    field they stand in, so nothing of a record is shown before it went through here. What is
    clean already is given back as it is: nearly all of a record, whose copy would take long.
    """
    update = {
        name: safe
        for name, value in vars(model).items()
        if type(value) not in _NUMBERS
        and name not in _AS_IT_IS
        and (safe := _in_words(value) if name == "note" else _cleaned(value)) is not value
    }
    return model.model_copy(update=update) if update else model


def _in_words(note: object) -> object:
    return in_words(clean(note)) if isinstance(note, str) else _cleaned(note)


def _cleaned(value: object) -> object:
    """The value itself where nothing in it changes."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, BaseModel):
        return cleaned(value)
    if isinstance(value, list | tuple):
        if _NUMBERS.issuperset(map(type, value)):
            return value
        parts = [_cleaned(part) for part in value]
        same = all(part is old for part, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(part) for key, part in value.items()}
    return value
