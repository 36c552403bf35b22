"""Text from a record made safe to show, all of it in one place."""

from typing import TypeVar

from pydantic import BaseModel

from fedaudit.report.grid import clean
from fedaudit.report.names import in_words

Model = TypeVar("Model", bound=BaseModel)

_AS_IT_IS = {"config"}
"""A study's settings are shown as a study file, which escapes what it must."""


def cleaned(model: Model) -> Model:
    """A copy of a record or comparison without control or direction characters in any text.

    Notes, which readers of all kinds see, get words in the place of the program's own names.

    Names that a page or a terminal shows must not turn round the text beside them, whichever
    field they stand in, so nothing of a record is shown before it went through here.
    """
    fields = [name for name in type(model).model_fields if name not in _AS_IT_IS]
    update = {name: _cleaned(getattr(model, name)) for name in fields}
    if isinstance(note := update.get("note"), str):
        update["note"] = in_words(note)
    return model.model_copy(update=update)


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, BaseModel):
        return cleaned(value)
    if isinstance(value, list):
        return [_cleaned(part) for part in value]
    if isinstance(value, tuple):
        return tuple(_cleaned(part) for part in value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(part) for key, part in value.items()}
    return value
