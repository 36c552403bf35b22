"""Settings on the command line: any of a study's, by its dotted name."""

import tomllib
from collections.abc import Sequence

from fedaudit.core.errors import BadInput, unknown_name
from fedaudit.study.settings.toml import parsed_toml, refuse_many_dots

RUN_OPTIONS = ("variant", "out", "pool", "data-dir", "workers", "device", "engine")
"""What ``fedaudit run`` takes beside settings; a misspelt one is no setting either."""


def settings_from(words: Sequence[str], *, games: bool = False) -> dict[str, object]:
    """``--a.b=1`` or ``--a.b 1`` as ``{"a.b": 1}``; values are read as TOML, else as text.

    Args:
        words: The rest of a command line.
        games: Whether they are settings of games.

    Raises:
        BadInput: A word that is no setting, or a setting without a value or without a section.
    """
    found: dict[str, object] = {}
    waiting = list(words)
    while waiting:
        option, equals, text = waiting.pop(0).partition("=")
        if not option.startswith("--"):
            raise BadInput(f"{option!r} is no setting; write it as --section.setting=value")
        refuse_many_dots(option, "the command line")
        name = _setting_name(option, games=games)
        if not equals:
            if not waiting:
                raise BadInput(f"{option} needs a value; write it as {option}=value")
            text = waiting.pop(0)
        _refuse_bytes(option, text)
        found[name] = _value(option, text)
    return found


def _refuse_bytes(option: str, text: str) -> None:
    """Refuses what Python keeps of bytes that are no text in the terminal's encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the value of {option} has bytes that are no text ({text[error.start]!r} at character "
            f"{error.start}); write it in UTF-8"
        ) from error


def _value(option: str, text: str) -> object:
    try:
        return parsed_toml(f"value = {text}", f"the value of {option}")["value"]
    except BadInput as error:
        # What is no TOML is a text; what is too deep or too large is refused.
        if isinstance(error.__cause__, tomllib.TOMLDecodeError):
            return text
        raise


def _setting_name(option: str, *, games: bool) -> str:
    """The dotted name behind ``--training.batch-size``; names of attacks keep their hyphens."""
    # Not above: the command line's help must not wait for pydantic.
    from fedaudit.study.settings.games import GameStudy
    from fedaudit.study.settings.sections import Study

    sections = (GameStudy if games else Study).model_fields
    section, dot, rest = option.removeprefix("--").partition(".")
    if not dot and section not in sections:
        options = [f"--{name}" for name in (*RUN_OPTIONS, *sections)]
        within = [
            f"--{one}.{section}"
            for one, field in sections.items()
            if section.replace("-", "_") in getattr(field.annotation, "model_fields", {})
        ]
        if within:
            raise BadInput(
                f"there is no option of fedaudit run named {option!r}; settings are named "
                f"with their section: {' or '.join(within)}"
            )
        raise unknown_name("option of fedaudit run", option, options)
    if section != "attacks":
        return f"{section}{dot}{rest.replace('-', '_')}"
    attack, dot_too, setting = rest.partition(".")
    return f"{section}{dot}{attack}{dot_too}{setting.replace('-', '_')}"
