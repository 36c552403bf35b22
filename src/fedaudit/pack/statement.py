"""Reading of the packer's statement from a TOML file."""

from datetime import date
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.plan.values import read_toml, settings_from
from fedaudit.summary.statement import Statement

STATEMENT_FILE = "statement.toml"
"""Statement of the packer in a pack; packs without a statement do not have this file."""


def read_statement(path: Path) -> Statement:
    """Read a statement.

    Args:
        path: TOML file, which is not trusted.

    Raises:
        BadInput: The file does not exist or is not TOML, or a setting is wrong.
    """
    return settings_from(read_toml(path, "the statement"), Statement, source=str(path))


def read_valid_statement(path: Path, today: date) -> Statement:
    """Read a statement that has not expired.

    Raises:
        BadInput: As :func:`read_statement`, or the last day of validity has passed.
    """
    statement = read_statement(path)
    if statement.has_expired(today):
        raise BadInput(
            f"valid_until in {path} is {statement.last_day}, which has passed; give a later day"
        )
    return statement
