"""Parts by name: of a catalogue, of an installed package, or the user's own ``module:object``.

A folder that somebody else made may name any module of this machine, and importing one runs it.
:func:`named` and :func:`imported` are the only ways from a name to code, and :func:`code_named_in`
says whether what names it is trusted. Packages bring parts of their own through entry points
(:data:`GROUPS`), and Python hands over objects that nothing imports (:func:`objects_given`).
"""

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from inspect import signature
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, cast

from fedaudit.core.errors import (
    BadInput,
    FedauditError,
    an,
    folded_name,
    nearest,
    type_of,
    unknown_name,
)

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

Entry = TypeVar("Entry")

OWN = "module:object"
"""How a part of the user's own is spelt, beside a catalogue's names."""

GROUPS: Mapping[str, str] = {
    "attack": "fedaudit.attacks",
    "defense": "fedaudit.defenses",
    "algorithm": "fedaudit.algorithms",
    "model": "fedaudit.models",
    "data set": "fedaudit.datasets",
    "partition": "fedaudit.partitions",
    "view": "fedaudit.views",
    "server": "fedaudit.servers",
    "task": "fedaudit.tasks",
    "metric": "fedaudit.metrics",
    "extractor": "fedaudit.extractors",
}
"""Entry points through which an installed package brings parts, by what they are."""

KNOWN_PACKAGES = {*sys.stdlib_module_names, "fedaudit", "torch", "numpy", "scipy", "sklearn"} - {
    "__main__"
}
"""Packages that are identified by a version. The source code of any other module is hashed."""

_PREFIX = "fedaudit."


@dataclass(frozen=True)
class GivenObject:
    """An object that is handed over in Python, where settings have its name.

    Attributes:
        value: The object, or what makes it: what importing the name would give.
        code_key: The name of its source in a study, as of :func:`code_key`.
        digest: SHA-256 of that source.
    """

    value: object
    code_key: str
    digest: str


@dataclass(frozen=True)
class _Namer:
    """An object that names code.

    Attributes:
        distrusted: It, for the refusal, where its code must not be run; None where it may be.
        folder: Where its modules may lie, beside those that are installed.
        given: Objects that need no import, by name.
    """

    distrusted: str | None = None
    folder: Path | None = None
    given: Mapping[str, GivenObject] = field(default_factory=dict)


_TRUSTED = _Namer()
_namer: ContextVar[_Namer] = ContextVar("namer", default=_TRUSTED)


@contextmanager
def code_named_in(source: object, *, trusted: bool, folder: Path | None = None) -> Iterator[None]:
    """Inside, code that a file or folder names is imported only if that is trusted.

    Contexts nest, and the innermost holds; objects of :func:`objects_given` stay. In Python
    outside of any, code is imported: the command line is inside of one that trusts nothing, and
    only the commands that carry out a study file, or are given ``--trust``, open another.

    Args:
        source: What names the code, for the refusal: a path.
        trusted: Whether whoever asks trusts it.
        folder: Where its modules may lie, beside those that are installed. They come last, so that
            no file in there takes the place of an installed module that nobody has named.
    """
    distrusted = None if trusted else str(source)
    now = replace(_namer.get(), distrusted=distrusted, folder=folder if trusted else None)
    token = _namer.set(now)
    try:
        yield
    finally:
        _namer.reset(token)


@contextmanager
def objects_given(objects: Mapping[str, GivenObject]) -> Iterator[None]:
    """Inside, these names stand for these objects, and nothing is imported for them.

    Args:
        objects: By the names that settings have them under.
    """
    now = _namer.get()
    token = _namer.set(replace(now, given={**now.given, **objects}))
    try:
        yield
    finally:
        _namer.reset(token)


_looked_in: list[str] = []


def look_in(folders: Iterable[str]) -> None:
    """Has modules looked for in these folders too, after all other places."""
    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
            _looked_in.append(folder)
            importlib.invalidate_caches()


def looked_in() -> tuple[str, ...]:
    """The folders that :func:`look_in` has added, for processes that unpack what is from there."""
    return tuple(_looked_in)


def is_own(name: str, formats: Collection[str] = ()) -> bool:
    """True if a name is ``module:object`` of the user's own, or of an object handed over.

    Args:
        name: As a study gives it.
        formats: What stands before a colon with another meaning, such as "npz" of a data set.
    """
    first, colon, _ = name.partition(":")
    return (bool(colon) and first not in formats) or "#" in name


def named(
    kind: str,
    name: str,
    catalogue: Mapping[str, Entry],
    *,
    wanted: str,
    fits: Callable[[object], bool],
) -> Entry:
    """The object of a name: an entry of a catalogue, of a package, or of the user's own.

    Args:
        kind: What it is wanted as, for the message ("defense").
        name: A key of the catalogue, a name that an installed package gives, or
            ``package.module:object``.
        catalogue: All entries by name.
        wanted: What an object of the user's own is, for the message.
        fits: Whether it is that.

    Raises:
        BadInput: There is no such entry; or the object cannot be imported, must not be, or is
            something else.
    """
    name = as_catalogued(kind, name, catalogue)
    if name in catalogue:
        return catalogue[name]
    if not is_own(name) and name not in installed(kind):
        raise unknown_part(kind, name, catalogue)
    found = _found(name, kind)
    if not fits(found):
        raise BadInput(
            f"{name!r} is {_said(found)}, and {an(kind)} of your own is {wanted}; name one"
        )
    return cast(Entry, found)


def as_catalogued(kind: str, name: str, catalogue: Iterable[str]) -> str:
    """A name as the catalogue or an installed package spells it, whichever way it was typed.

    Hyphens and underscores, and upper and lower case, are taken for each other; a name that is
    of nothing there, or of several things, stays as it is.
    """
    known = {*catalogue, *installed(kind)}
    if name in known or is_own(name):
        return name
    found = [one for one in known if folded_name(one) == folded_name(name)]
    return found[0] if len(found) == 1 else name


def refuse_unknown_part(kind: str, name: str, catalogue: Iterable[str]) -> None:
    """Raise if a name can be no part's; custom code that it names is not imported.

    Args:
        kind: Kind of part ("defense").
        name: A key of the catalogue, a name of an installed package, or ``module:object``.
        catalogue: All names of the catalogue.

    Raises:
        BadInput: No such part exists.
    """
    names = {*catalogue}
    if name in names or is_own(name):
        return
    if as_catalogued(kind, name, names) not in {*names, *installed(kind)}:
        raise unknown_part(kind, name, names) if kind in GROUPS else unknown_name(kind, name, names)


def unknown_part(kind: str, name: str, catalogue: Iterable[str]) -> BadInput:
    """A refusal for a name that neither a catalogue nor an installed package has."""
    refusal = unknown_name(kind, name, [*catalogue, *installed(kind)])
    strange = stray_groups()
    return BadInput("; ".join([f"{refusal}; one of your own is named as {OWN}", *strange[:1]]))


@cache
def _entry_points() -> "tuple[EntryPoint, ...]":
    """Every entry point of a group named after fedaudit; nothing is imported."""
    # Not at the top, as it takes long: the command line's help needs no parts.
    from importlib.metadata import distributions

    found: dict[str, Distribution] = {}
    for one in distributions():
        # Names and groups are parsed of few: of a hundred packages that would take a fifth of a
        # second.
        if f"[{_PREFIX}" in (one.read_text("entry_points.txt") or ""):
            found.setdefault(one.name, one)
    points = [point for one in found.values() for point in one.entry_points]
    return tuple(point for point in points if point.group.startswith(_PREFIX))


def installed(kind: str) -> "dict[str, EntryPoint]":
    """Names that installed packages give of a kind, by name, without importing any of it.

    Args:
        kind: A key of :data:`GROUPS`; nothing is there of others.

    Raises:
        BadInput: Two packages give different objects under one name.
    """
    found: dict[str, EntryPoint] = {}
    for one in _entry_points():
        if one.group != GROUPS.get(kind):
            continue
        other = found.setdefault(one.name, one)
        if other.value != one.value:
            raise BadInput(
                f"{package_of(other)} and {package_of(one)} both give {an(kind)} named "
                f"{one.name!r}; remove one of them, or name the object as {one.value!r}"
            )
    return found


def package_of(one: "EntryPoint") -> str:
    """The package that an entry point is from, with its version."""
    return f"{one.dist.name} {one.dist.version}" if one.dist else "a package without a name"


def stray_groups() -> list[str]:
    """Sentences on entry points in groups that fedaudit does not read: most are misspelt."""
    found = {}
    for one in _entry_points():
        if one.group not in GROUPS.values():
            near = get_close_matches(one.group, GROUPS.values(), n=1, cutoff=0)
            found[one.group] = (
                f"{package_of(one)} has entry points in {one.group!r}, a group that is not read; "
                f"did it mean {near[0]!r}?"
            )
    return list(found.values())


def imported(path: str, kind: str) -> Callable[..., object]:
    """The class or function that stands at a path.

    Args:
        path: ``package.module:callable``.
        kind: What it is wanted as, for the message ("model", "filter").

    Raises:
        BadInput: The path is spelt otherwise, cannot be imported or is nothing to call, or what
            names it is not trusted; nothing is imported then.
    """
    found = _found(path, kind)
    if not callable(found):
        raise BadInput(f"{path!r} is {type_of(found)}, not a class or function")
    return found


def called(
    kind: str, name: str, make: Callable[..., object], /, *given: object, **settings: object
) -> object:
    """The result of a part of the user's own; a failure is told with the place in its file.

    Raises:
        FedauditError: It says so itself.
        BadInput: It does not take these settings, or fails otherwise.
    """
    if not is_own(name) and name not in installed(kind):
        return make(*given, **settings)
    try:
        signature(make).bind(*given, **settings)
    except TypeError as error:
        raise BadInput(f"the {kind} {name!r} could not be called: {error}") from error
    try:
        return make(*given, **settings)
    except FedauditError:
        raise
    except (Exception, SystemExit) as error:
        shapes = [tuple(one.shape) for one in given if hasattr(one, "shape")]
        raise BadInput(
            f"the {kind} {name!r} failed{f' on samples of shape {shapes[0]}' if shapes else ''} "
            f"({type(error).__name__}: {error}, {line_of(error)}); try it by itself"
        ) from error


def refuse_missing(what: str, extra: str, *packages: str) -> None:
    """Raise if packages are not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise BadInput(
                f"{what} needs {package}, which is not installed; pip install 'fedaudit[{extra}]'"
            )


def line_of(error: BaseException) -> str:
    """Return where an error was raised, for a message: "in defense.py, line 12"."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "nowhere"


@contextmanager
def refusing_exits() -> Iterator[None]:
    """Turn an exit of code that runs inside, such as ``sys.exit(0)``, into a refusal.

    Models, defenses, attacks and other parts may be custom code. An exit in one of them would end
    the program with an exit code that it chooses, which may be that of a success.

    Raises:
        BadInput: Code inside raised ``SystemExit`` or ``GeneratorExit``.
    """
    try:
        yield
    # No ``Exception``, and so caught by no handler of failures.
    except (SystemExit, GeneratorExit) as error:
        raise BadInput(
            f"custom code ended the program ({type(error).__name__}: {error}, {line_of(error)}); "
            "a part may return a value or raise an Exception; remove the exit, and start again"
        ) from error


def sources_of(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the SHA-256 of the source that defines each part, by ``module:object``.

    Other objects of a part's module do not count; see
    :func:`fedaudit.core.definitions.definition_digest`. Objects that no import brings back have
    their source under the whole name.

    Args:
        names: Kind and name of each part.

    Raises:
        BadInput: As :func:`imported`.
    """
    found = {}
    for kind, name in names:
        _found(name, kind)
        handed = _namer.get().given.get(name)
        key = code_key(kind, name)
        module, _, attribute = key.partition(":")
        if handed:
            found[key] = handed.digest
        else:
            # Not at the top: only studies with custom code need it.
            from fedaudit.core.definitions import definition_digest

            found[key] = definition_digest(module, attribute)
    return dict(sorted(found.items()))


def code_key(kind: str, name: str) -> str:
    """Return ``module:object`` of a part, or the name of an object that was handed over."""
    if name in _namer.get().given:
        return _namer.get().given[name].code_key
    return name if is_handed_over(name) else _path(name, kind)


def _path(name: str, kind: str) -> str:
    """``module:object`` of a name that is one, or that a package gives."""
    entry = None if is_own(name) else installed(kind).get(name)
    return entry.value if entry else name


def module_digest(module: str) -> str:
    """SHA-256 of the file of a module that has been imported; of nothing where it has none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()


def _found(name: str, kind: str) -> object:
    namer = _namer.get()
    if name in namer.given:
        return namer.given[name].value
    path = _path(name, kind)
    if path != name:
        # Whoever installed the package has said that its parts may be used.
        namer = _TRUSTED
    if is_handed_over(path):
        raise BadInput(
            f"the {kind} {path!r} was handed over as an object of a script or notebook, which no "
            "import brings back; hand it over again, to fedaudit.audit or fedaudit.Run"
        )
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise BadInput(f"{an(kind)} of your own is named 'package.module:callable', got {path!r}")
    if namer.distrusted is not None:
        raise BadInput(
            f"{namer.distrusted} names the {kind} {path[:200]!r}, and to import the module "
            f"{module_name[:200]!r} is to run it; read it first, and give --trust "
            "(trust=True in Python) if it is what you expect"
        )
    module = _module(path, module_name, kind, namer.folder)
    try:
        found: object = attrgetter(attribute)(module)
    except AttributeError as error:
        own = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and not isinstance(value, ModuleType)
        ]
        raise BadInput(
            f"cannot import {path!r}: {error}; {_nearest(attribute, own)}check the spelling"
        ) from error
    return found


def is_handed_over(name: str) -> bool:
    """True if a name is of an object that no import brings back, as by its spelling."""
    return name.startswith("__main__:") or "#" in name or "<" in name


def _module(path: str, name: str, kind: str, folder: Path | None) -> ModuleType:
    beside = None if folder is None else folder.absolute()
    if beside is not None:
        # For good: what is imported now may import more of its folder later.
        look_in([str(beside)])
    try:
        module = importlib.import_module(name)
    except (ImportError, ValueError) as error:
        there = [] if beside is None else [one.stem for one in beside.glob("*.py")]
        raise BadInput(
            f"cannot import {path!r}: {error}; {_nearest(name, there)}check the spelling, and that "
            "the package is installed, lies beside the study, or its folder is on PYTHONPATH"
        ) from error
    # A module that is imported runs, and can fail or even exit in any way at all.
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"the module {name!r} cannot be imported, since it raises "
            f"{type(error).__name__} ({error}); mend it, or name another {kind}"
        ) from error
    if beside is not None:
        _refuse_shadowed(name, module, beside)
    return module


def _refuse_shadowed(name: str, module: ModuleType, folder: Path) -> None:
    """A file beside the study that another module of its name stands before was meant, not that."""
    file = getattr(module, "__file__", None)
    meant = folder.joinpath(*name.split("."))
    if file is None or Path(file).is_relative_to(folder):
        return
    if meant.with_suffix(".py").is_file() or (meant / "__init__.py").is_file():
        raise BadInput(
            f"{name!r} is a module beside the study, and also {file}, which is found first; give "
            "yours another name"
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    near = nearest(name, sorted(known), most=1)
    return f"did you mean {near[0]!r}? " if near else ""


def _said(found: object) -> str:
    if isinstance(found, type):
        return f"the class {found.__qualname__}"
    if inspect.isroutine(found):
        return f"the function {getattr(found, '__name__', repr(found))}"
    return type_of(found)
