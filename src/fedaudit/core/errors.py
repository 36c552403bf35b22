"""Errors that fedaudit raises, and functions that compose their messages.

Every message says what was given, what is allowed and what to do. It names options and settings in
the form in which the user writes them. All errors are subclasses of ``ValueError``. The command
line prints the message and exits with code 2.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import SequenceMatcher, get_close_matches
from typing import Literal

BUG_EXIT_CODE = 70
"""Exit code for a bug in fedaudit (EX_SOFTWARE in BSD's sysexits). No verdict uses this code."""


class FedauditError(ValueError):
    """Base class of all errors that fedaudit raises on purpose; the message says what to do.

    Examples:
        >>> import fedaudit as fa
        >>> try:
        ...     fa.audit(fa.Federation("digits"), attacks=["fedmia2"])
        ... except fa.errors.FedauditError as error:
        ...     "did you mean 'fedmia-2'" in str(error)
        True
    """


class BadInput(FedauditError):
    """A value, file or setting of the user cannot be used."""


class BadArgument(BadInput, TypeError):
    """An argument is unknown or missing, or its type or range is not allowed."""


class NotVisible(FedauditError):
    """An attack needs information that the adversary does not see."""


class TooFewRounds(BadInput):
    """A client was measured in too few rounds for an attack. Other clients may have enough."""


class TooFewPeers(NotVisible):
    """Too few other clients were measured in a client's rounds for an attack that compares them."""


class Unsupported(FedauditError):
    """Two valid parts cannot be combined, such as a defense and an upload."""


class Damaged(FedauditError):
    """A file is not as fedaudit wrote it: it is truncated, altered or from another run."""


@contextmanager
def custom_code(refusal: Callable[[Exception, str], FedauditError | None]) -> Iterator[None]:
    """Convert errors that custom code raises within the context.

    Errors of fedaudit and out-of-memory errors are not converted.

    Args:
        refusal: Function of an error and its short description. It returns the error to raise
            instead, or None to raise the original error.
    """
    try:
        yield
    # Custom code may raise anything.
    except Exception as error:
        if isinstance(error, FedauditError | MemoryError) or "memory" in str(error):
            raise
        message = " ".join(str(error).split())[:200]
        refused = refusal(error, f"{type(error).__name__}: {message}")
        if refused is None:
            raise
        raise refused from error


Caller = Literal["file", "command", "objects"]
"""Where the user writes settings: in a study file, a shell command, or Python objects."""

_caller: ContextVar[Caller] = ContextVar("caller", default="file")


@contextmanager
def called_by(caller: Caller) -> Iterator[None]:
    """Within the context, write options and settings in messages in this caller's form."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


def format_option(name: str) -> str:
    """Return an option in the caller's form: ``--data-dir`` in a command, else ``data_dir=``."""
    return f"--{name}" if _caller.get() == "command" else f"{name.replace('-', '_')}="


def format_assignment(name: str, value: str) -> str:
    """Return an option with a value: ``--workers 0`` in a command, else ``workers=0``."""
    return f"{format_option(name)}{' ' if _caller.get() == 'command' else ''}{value}"


_PYTHON_ARGUMENTS = {
    "algorithm.name": "algorithm",
    "algorithm.options": "algorithm",
    "data.classes": "classes",
    "data.first_class": "first_class",
    "data.name": "data",
    "data.options": "data",
    "defense.also": "defenses",
    "defense.clients": "defenses.clients",
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
    "rounds.defense": "defense",
    "rounds.options": "defense",
    "samples": "",
    "task.name": "task",
    "task.options": "task",
    "training": "",
}
"""Maps settings in study files to arguments in Python, if their names differ.

A key applies to a setting and to all settings below it."""


def format_setting(name: str) -> str:
    """Return the name of a setting in the caller's form.

    Args:
        name: Dotted name in a study file. For audits of Python objects, it is converted to an
            argument and its attribute: ``partition.samples_per_client`` becomes
            ``clients.samples_per_client``.
    """
    if _caller.get() == "objects":
        for prefix, argument in _PYTHON_ARGUMENTS.items():
            if f"{name}.".startswith(f"{prefix}."):
                return f"{argument}{name.removeprefix(prefix)}".removeprefix(".") or name
    return name


def format_table(name: str) -> str:
    """Return a table in the caller's form: ``[shadow]`` in a study file, ``shadow=`` in Python."""
    return f"{name}=" if _caller.get() == "objects" else f"[{name}]"


CATALOGUE_NAMES = {
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
"""Maps each kind of part to the name of its catalogue in ``fedaudit list``."""

_MAX_LISTED = 12
"""Number of names up to which a message lists all of them."""
_SIMILARITY_GAP = 0.1
"""Further names are suggested if their similarity is at most this much below the best."""


def unknown_name(
    kind: str, name: str, names: Iterable[str], *, list_command: str = "", present_name: str = ""
) -> BadInput:
    """Return the error for an unknown name, with the nearest names, or all names if they are few.

    Args:
        kind: Kind of part that has the name, such as "defense".
        name: The unknown name.
        names: All names that exist.
        list_command: Command that lists them; by default the command for the kind's catalogue.
        present_name: Name to suggest, if ``name`` is a former name; otherwise, similar names are
            suggested.
    """
    names = sorted({*names})
    hint = suggest_names(present_name or name, [present_name] if present_name else names)
    command = list_command or (
        f"fedaudit list {CATALOGUE_NAMES[kind]}" if kind in CATALOGUE_NAMES else ""
    )
    if names and (len(names) <= _MAX_LISTED or not (hint or command)):
        ending = f"known: {', '.join(names)}"
    elif names and command:
        ending = f"`{command}` lists all {len(names)}"
    else:
        ending = ""
    return BadInput(f"there is no {kind} named {name!r}; {hint}{ending}".rstrip("; "))


def suggest_names(name: str, names: Iterable[str], *, limit: int = 3) -> str:
    """Return a question that suggests the most similar names; empty if no name is similar."""
    near = similar_names(name, names, limit=limit)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def similar_names(name: str, names: Iterable[str], *, limit: int = 3) -> list[str]:
    """Return similar names, the most similar first; case, hyphens and underscores are ignored."""
    folded: dict[str, list[str]] = {}
    for candidate in names:
        folded.setdefault(folded_name(candidate), []).append(candidate)
    target = folded_name(name)
    first = get_close_matches(target, folded, n=1, cutoff=0.5)
    if not first:
        return []
    cutoff = SequenceMatcher(None, first[0], target).ratio() - _SIMILARITY_GAP
    close = (
        first if first[0] == target else get_close_matches(target, folded, limit, max(0.5, cutoff))
    )
    return [candidate for spelling in close for candidate in folded[spelling]][:limit]


def folded_name(name: str) -> str:
    """Return a name in lower case with hyphens, so that all its spellings become equal."""
    return name.lower().replace("_", "-")


def with_article(noun: str) -> str:
    """Return a noun with its article: "an attack"."""
    return f"an {noun}" if noun[:1] in "aeiouAEIOU" else f"a {noun}"


def type_of(value: object) -> str:
    """Return the type of a value for a message: "an int", "None", "the class Net"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else with_article(type(value).__name__)
