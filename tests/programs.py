"""Programs that tests start in order to stop them."""

import sys
from collections.abc import Sequence
from pathlib import Path

_HEEDING = """
import os, signal, sys
for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(each, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def heeding(command: Sequence[str | Path]) -> list[str]:
    """A command that heeds signals, in the process that is started.

    Whoever runs tests in the background has told all of its children to ignore some.
    """
    return [sys.executable, "-S", "-c", _HEEDING, *map(str, command)]
