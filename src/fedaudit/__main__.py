"""Entry point of ``python -m fedaudit``, the same program as the command ``fedaudit``."""

import sys
import traceback
from contextlib import suppress

from fedaudit.core.errors import BUG_EXIT_CODE
from fedaudit.core.progress import without_garbage_collection


def main() -> None:
    """Run the program. If it cannot be imported, exit with the code for an error in fedaudit."""
    try:
        with without_garbage_collection():
            from fedaudit.cli import main as run_command_line
    except Exception:
        with suppress(OSError, ValueError):
            traceback.print_exc()
        sys.exit(BUG_EXIT_CODE)
    run_command_line()


if __name__ == "__main__":
    main()
