"""Errors that fedaudit raises, and functions that word them.

Every message says what was given, what is allowed and what to do. Options and settings are named
as their caller writes them. All errors are ``ValueError``s, so that any caller can catch them. The
command line prints the message and exits with code 2.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import SequenceMatcher, get_close_matches
from typing import Literal

FAULT = 70
"""Exit code for a fault of the program (EX_SOFTWARE of BSD's sysexits), which no verdict has."""


class FedauditError(ValueError):
    """Base of all errors that fedaudit raises on purpose; the message says what would help.

    Examples:
        >>> import fedaudit as fa
        >>> try:
        ...     fa.audit(fa.Federation("digits"), attacks=["fedmia2"])
        ... except fa.errors.FedauditError as error:
        ...     "did you mean 'fedmia-2'" in str(error)
        True
    """


class BadInput(FedauditError):
    """A value, file or setting given by the user is unusable."""


class BadArgument(BadInput, TypeError):
    """An argument is unknown, missing, or of another type or range than is allowed."""


class NotVisible(FedauditError):
    """An attack needs something that the chosen adversary does not see."""


class TooFewRounds(BadInput):
    """A client was measured in too few rounds for an attack; it may be run on other clients."""


class TooFewPeers(NotVisible):
    """A client was measured with too few others for an attack that compares clients."""


class Unsupported(FedauditError):
    """Two sound parts do not work together (a model and a kernel, a defense and an upload)."""


class Damaged(FedauditError):
    """A file on disk is not what fedaudit wrote: cut off, altered or from another run."""


@contextmanager
def custom_code(refusal: Callable[[Exception, str], FedauditError | None]) -> Iterator[None]:
    """Inside, turn the errors of custom code into refusals.

    Errors of fedaudit and errors for want of memory pass unchanged.

    Args:
        refusal: Called with an error and its type and message in short. Returns the error to raise
            instead; None to let the error pass.
    """
    try:
        yield
    # A network, loss or defense may raise anything.
    except Exception as error:
        if isinstance(error, FedauditError | MemoryError) or "memory" in str(error):
            raise
        message = " ".join(str(error).split())[:200]
        refused = refusal(error, f"{type(error).__name__}: {message}")
        if refused is None:
            raise
        raise refused from error


Caller = Literal["file", "command", "objects"]
"""Who wrote what is refused: a study file, a shell command, or Python with objects."""

_caller: ContextVar[Caller] = ContextVar("caller", default="file")


@contextmanager
def called_by(caller: Caller) -> Iterator[None]:
    """Inside, refusals name options and settings as their caller writes them."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


def option(name: str) -> str:
    """Return an option as its caller writes it: ``--data-dir`` of a command, else ``data_dir=``."""
    return f"--{name}" if _caller.get() == "command" else f"{name.replace('-', '_')}="


def assignment(name: str, value: str) -> str:
    """Return an option with a value: ``--workers 0`` of a command, else ``workers=0``."""
    return f"{option(name)}{' ' if _caller.get() == 'command' else ''}{value}"


_ARGUMENTS = {
    "algorithm.name": "algorithm",
    "algorithm.options": "algorithm",
    "audit.fair": "audit.samples",
    "data.classes": "classes",
    "data.first_class": "first_class",
    "data.name": "data",
    "data.options": "data",
    "defense.also": "defenses",
    "defense.clients": "defenses.members",
    "defense.name": "defenses",
    "defense.options": "defenses",
    "mechanism.name": "mechanism",
    "mechanism.options": "mechanism",
    "model.name": "model",
    "model.options": "model",
    "partition.clients": "clients",
    "partition.options": "clients",
    "partition.samples_per_client": "clients.samples_per_client",
    "partition.scheme": "clients",
    "records": "",
    "rounds.defense": "defense",
    "rounds.options": "defense",
    "task.name": "task",
    "task.options": "task",
    "training": "",
}
"""Settings of study files that arguments of another name give in Python, by their beginning."""


def setting(name: str) -> str:
    """Return a setting as its caller writes it.

    Args:
        name: Its dotted name in a study file. Where objects are audited, it becomes the argument
            and what that holds: ``clients.samples_per_client`` for
            ``partition.samples_per_client``. Most settings have one name in both:
            ``audit.view`` is ``view`` of the argument ``audit``.
    """
    if _caller.get() == "objects":
        for start, argument in _ARGUMENTS.items():
            if f"{name}.".startswith(f"{start}."):
                return f"{argument}{name.removeprefix(start)}".removeprefix(".") or name
    return name


def table(name: str) -> str:
    """Return a table as its caller writes it: ``[shadow]`` of a study file, else ``shadow=``."""
    return f"{name}=" if _caller.get() == "objects" else f"[{name}]"


LISTED = {
    "attack": "attacks",
    "signal": "signals",
    "view": "views",
    "algorithm": "algorithms",
    "defense": "defenses",
    "model": "models",
    "task": "tasks",
    "data set": "data",
    "partition": "partitions",
    "draw": "draws",
    "metric": "metrics",
    "schedule": "schedules",
}
"""Name of each catalogue in ``fedaudit list``, by what one of its entries is."""

_FEW = 12
_AS_NEAR = 0.1
"""How much less similar than the nearest name another may be, to be suggested too."""


def unknown_name(kind: str, given: str, known: Iterable[str], *, listed: str = "") -> BadInput:
    """Return the refusal of an unknown name, with the nearest names, or all if they are few.

    Args:
        kind: What it should name ("defense").
        given: The unknown name.
        known: All names that exist.
        listed: Command that lists them; that of the kind's catalogue by default.
    """
    names = sorted({*known})
    near = nearest(given, names)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    command = listed or (f"fedaudit list {LISTED[kind]}" if kind in LISTED else "")
    if len(names) <= _FEW or not (near or command):
        rest = f"known: {', '.join(names)}"
    elif command:
        rest = f"`{command}` lists all {len(names)}"
    else:
        rest = ""
    return BadInput(f"there is no {kind} named {given!r}; {hint}{rest}".rstrip())


def nearest(given: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Return similar names, nearest first; case, hyphens and underscores make no difference."""
    folded: dict[str, list[str]] = {}
    for name in known:
        folded.setdefault(folded_name(name), []).append(name)
    typed = folded_name(given)
    first = get_close_matches(typed, folded, n=1, cutoff=0.5)
    if not first:
        return []
    least = SequenceMatcher(None, first[0], typed).ratio() - _AS_NEAR
    close = first if first[0] == typed else get_close_matches(typed, folded, most, max(0.5, least))
    return [name for one in close for name in folded[one]][:most]


def folded_name(name: str) -> str:
    """Return a name in lower case with hyphens, which all its spellings share."""
    return name.lower().replace("_", "-")


def an(noun: str) -> str:
    """Return a noun with its article: "an attack"."""
    return f"an {noun}" if noun[:1] in "aeiouAEIOU" else f"a {noun}"


def type_of(value: object) -> str:
    """Return the type of a value for a message: "an int", "None", "the class Net"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else an(type(value).__name__)
