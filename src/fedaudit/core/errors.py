"""Refusals: what fedaudit says when it will not go on.

Every refusal tells what was given, what is allowed and what to do. All are ``ValueError``s,
so that a caller who knows nothing of fedaudit can still catch them; the command line prints
them as one sentence and exits with code 2.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches

FAULT = 70
"""Exit code for a fault of the program (EX_SOFTWARE of BSD's sysexits), which no verdict has."""


class Refusal(ValueError):
    """The request cannot be carried out as it stands; the message says what would help."""


class BadInput(Refusal):
    """A value, file or setting given by the user is unusable."""


class NotVisible(Refusal):
    """An attack needs something that the chosen adversary does not see."""


class Unsupported(Refusal):
    """Two sound parts do not work together (a model and a kernel, a defense and an upload)."""


class Damaged(Refusal):
    """A file on disk is not what fedaudit wrote: cut off, altered or from another run."""


_on_command_line: ContextVar[bool] = ContextVar("on_command_line", default=False)


@contextmanager
def on_command_line() -> Iterator[None]:
    """Inside, refusals speak of options as a command has them, and not as Python does."""
    token = _on_command_line.set(True)
    try:
        yield
    finally:
        _on_command_line.reset(token)


def option(name: str) -> str:
    """An option in the words of who asks: ``--data-dir`` of a command, ``data_dir=`` in Python."""
    return f"--{name}" if _on_command_line.get() else f"{name.replace('-', '_')}="


def unknown_name(kind: str, given: str, known: Iterable[str]) -> BadInput:
    """A refusal for a misspelt catalogue name, naming the nearest entry that exists."""
    names = sorted(known)
    close = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return BadInput(f"there is no {kind} named {given!r}; {hint}known: {', '.join(names)}")
