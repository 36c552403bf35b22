"""The start of a program or of a process of it: mostly imports."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Inside, what a command needs is imported, and nobody looks for garbage.

    There is hardly any, and to go through all that stays, again and again, took a seventh of a
    small study's start. Nor is it gone through afterwards.
    """
    before, looked_for = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        if looked_for:
            gc.enable()
