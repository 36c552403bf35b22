"""Entry point of ``python -m fedaudit``, which is the program ``fedaudit``."""

import sys
import traceback
from contextlib import suppress

from fedaudit.core.errors import FAULT
from fedaudit.core.progress import importing


def main() -> None:
    """Run the program; exit with the code of an error in fedaudit if it cannot be imported."""
    try:
        with importing():
            from fedaudit.cli import main as run_command_line
    except Exception:
        with suppress(OSError, ValueError):
            traceback.print_exc()
        sys.exit(FAULT)
    run_command_line()


if __name__ == "__main__":
    main()
