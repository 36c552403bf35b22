"""Settings from a TOML file that anybody may have written."""

import tomllib
from pathlib import Path

from fedaudit.errors import BadInput
from fedaudit.files import SHORT, TooLarge, read_text
from fedaudit.study.text import MAX_DEPTH, deeper_than


def read_toml(path: Path, what: str) -> dict[str, object]:
    """The tables of a TOML file, which is short and nests no deeper than settings do.

    Args:
        path: The file.
        what: What it is, for refusals: "the study".

    Raises:
        BadInput: No such file, not TOML, or too large or too deep for settings.
    """
    if path.exists() and not path.is_file():
        raise BadInput(f"{what} {path} is not a regular file; give the path of a TOML file")
    try:
        text = read_text(path, max_bytes=SHORT)
    except TooLarge as error:
        raise BadInput(f"{error}; {what} is a short file") from error
    except OSError as error:
        raise BadInput(f"{what} {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise BadInput(f"{what} {path} is not valid TOML: {error}") from error
    return parsed_toml(text, f"{what} {path}")


def parsed_toml(text: str, source: str) -> dict[str, object]:
    """The tables of a TOML text.

    Args:
        text: The text.
        source: Where it is from, for refusals: "the study x.toml".

    Raises:
        BadInput: It is not TOML, or nests deeper than settings do.
    """
    try:
        values: dict[str, object] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} is not valid TOML: {error}") from error
    if deeper_than(values, MAX_DEPTH):
        raise BadInput(f"{source} nests over {MAX_DEPTH} levels deep, and no setting does")
    return values
