"""Command lines in this process, and programs that tests start and stop."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedaudit import cli

_HEEDING = """
import os, signal, sys
for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(each, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def exit_code(*words: object) -> int:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return int(ended.value.code or 0)


def heeding(command: Sequence[str | Path]) -> list[str]:
    """Return a command whose process handles signals.

    Child processes of tests in the background otherwise ignore some signals.
    """
    return [sys.executable, "-S", "-c", _HEEDING, *map(str, command)]
