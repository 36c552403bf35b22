"""``python -m fedaudit`` is the program ``fedaudit``."""

import sys
import traceback
from contextlib import suppress

from fedaudit.core.errors import FAULT
from fedaudit.core.progress import importing


def main() -> None:
    """Runs the program; one that cannot be imported ends with an exit code of no verdict's."""
    try:
        with importing():
            from fedaudit.cli import main as carried_out
    except Exception:
        with suppress(OSError, ValueError):
            traceback.print_exc()
        sys.exit(FAULT)
    carried_out()


if __name__ == "__main__":
    main()
