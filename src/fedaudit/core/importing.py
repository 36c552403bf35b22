"""Look-up of parts by name: in a catalogue, an installed package, or as ``module:object``.

Importing a module runs its code, and a file from another person may name any module. Only
:func:`look_up` and :func:`import_callable` import parts, and only if the context
:func:`code_named_in` states that the file is trusted. Packages register parts as entry points
(:data:`GROUPS`). Objects that the caller passes in Python need no import (:func:`with_registered`).
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
    folded_name,
    suggest_names,
    type_of,
    unknown_name,
    with_article,
)

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

Entry = TypeVar("Entry")

CUSTOM_NAME = "module:object"
"""Form of the name of a custom part."""

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
"""Maps each kind of part to the group of entry points in which packages register such parts."""

KNOWN_PACKAGES = {*sys.stdlib_module_names, "fedaudit", "torch", "numpy", "scipy", "sklearn"} - {
    "__main__"
}
"""Packages that a record identifies by their version. It identifies other modules by a digest of
their source code."""

_PREFIX = "fedaudit."


@dataclass(frozen=True)
class RegisteredObject:
    """Object that the caller passed in Python; settings refer to it by a generated name.

    Attributes:
        value: The object, or a function that returns it.
        code_key: Name of its source in a study; see :func:`code_key`.
        digest: SHA-256 of that source.
    """

    value: object
    code_key: str
    digest: str


@dataclass(frozen=True)
class _ImportTrust:
    """Whether code that a file names may be imported, and from where.

    Attributes:
        distrusted: Path of the file if it is not trusted, for the message; None if it is trusted.
        folder: Folder in which modules are searched after the installed modules.
        registered: Objects that need no import, by name.
    """

    distrusted: str | None = None
    folder: Path | None = None
    registered: Mapping[str, RegisteredObject] = field(default_factory=dict)


_TRUSTED = _ImportTrust()
_import_trust: ContextVar[_ImportTrust] = ContextVar("import_trust", default=_TRUSTED)


@contextmanager
def code_named_in(source: object, *, trusted: bool, folder: Path | None = None) -> Iterator[None]:
    """Allow or forbid, within the context, the import of code that a file or folder names.

    The innermost of nested contexts applies. Outside any context, as in Python, all code is
    trusted. The command line opens a context that forbids imports of custom code. Commands that run
    a study file, or are called with ``--trust``, open a context that allows these imports. Objects
    of :func:`with_registered` stay registered in all contexts.

    Args:
        source: Path of the file or folder that names the code, for the message.
        trusted: Whether the user trusts the file or folder.
        folder: Folder of the file's modules. It is searched last, so that no file in it replaces
            an installed module.
    """
    distrusted = None if trusted else str(source)
    trust = replace(_import_trust.get(), distrusted=distrusted, folder=folder if trusted else None)
    token = _import_trust.set(trust)
    try:
        yield
    finally:
        _import_trust.reset(token)


@contextmanager
def with_registered(objects: Mapping[str, RegisteredObject]) -> Iterator[None]:
    """Resolve names to these objects within the context, without any import."""
    trust = _import_trust.get()
    token = _import_trust.set(replace(trust, registered={**trust.registered, **objects}))
    try:
        yield
    finally:
        _import_trust.reset(token)


_added_folders: list[str] = []


def add_module_folders(folders: Iterable[str]) -> None:
    """Add folders to the end of the search path of modules."""
    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
            _added_folders.append(folder)
            importlib.invalidate_caches()


def added_module_folders() -> tuple[str, ...]:
    """Return the folders that :func:`add_module_folders` added, for worker processes."""
    return tuple(_added_folders)


def is_custom(name: str, formats: Collection[str] = ()) -> bool:
    """Return whether a name refers to custom code (``module:object``) or an object from Python.

    Args:
        name: Name in a study.
        formats: Prefixes before a colon that are not modules, such as "npz" of a data set.
    """
    prefix, colon, _ = name.partition(":")
    return (bool(colon) and prefix not in formats) or "#" in name


def look_up(
    kind: str,
    name: str,
    catalogue: Mapping[str, Entry],
    *,
    expected: str,
    is_valid: Callable[[object], bool],
) -> Entry:
    """Look up a part in a catalogue, an installed package or custom code.

    Args:
        kind: Kind of part, for the message ("defense").
        name: A key of the catalogue, a name that an installed package registers, or
            ``package.module:object``.
        catalogue: All entries by name.
        expected: What a custom object must be, for the message.
        is_valid: Function that returns whether an object is what ``expected`` describes.

    Raises:
        BadInput: There is no such entry, or the object cannot be imported, is not trusted, or is
            not what ``expected`` describes.
    """
    name = known_name(kind, name, catalogue)
    if name in catalogue:
        return catalogue[name]
    part = _resolve(name, kind)
    if not is_valid(part):
        raise BadInput(
            f"a custom {kind} must be {expected}, but {name!r} is {_describe(part)}; name another "
            "object"
        )
    return cast(Entry, part)


def catalogue_spelling(kind: str, name: str, catalogue: Iterable[str]) -> str:
    """Return a name in the spelling of the catalogue or of an installed package.

    Case is ignored, and hyphens equal underscores. Unknown and ambiguous names are returned
    unchanged.
    """
    names = {*catalogue, *installed_entry_points(kind)}
    if name in names or is_custom(name):
        return name
    spellings = [candidate for candidate in names if folded_name(candidate) == folded_name(name)]
    return spellings[0] if len(spellings) == 1 else name


def known_name(
    kind: str, name: str, catalogue: Collection[str], *, allows_custom: bool = True
) -> str:
    """Return a name in its catalogue spelling, or raise if no part has the name.

    Custom names are returned unchanged, and the custom code is not imported.

    Args:
        kind: Kind of part ("defense").
        name: A key of the catalogue, a name of an installed package, or ``module:object``.
        catalogue: All names of the catalogue.
        allows_custom: Whether such a part can be custom code, for the message.

    Raises:
        BadInput: No such part exists.
    """
    name = catalogue_spelling(kind, name, catalogue)
    if is_custom(name) or name in catalogue or name in installed_entry_points(kind):
        return name
    if allows_custom:
        raise unknown_part(kind, name, catalogue)
    raise unknown_name(kind, name, catalogue)


def unknown_part(kind: str, name: str, catalogue: Iterable[str]) -> BadInput:
    """Return the error for a name that neither the catalogue nor an installed package has."""
    message = str(unknown_name(kind, name, [*catalogue, *installed_entry_points(kind)]))
    parts = [message, f"a custom {kind} is named as {CUSTOM_NAME}", *unknown_group_warnings()[:1]]
    return BadInput("; ".join(parts))


@cache
def _entry_points() -> "tuple[EntryPoint, ...]":
    """Return all entry points of fedaudit's groups, without importing them."""
    # Imported here, since the import is slow and the help of the command line does not need it.
    from importlib.metadata import distributions

    packages: dict[str, Distribution] = {}
    for package in distributions():
        # Checked before parsing: parsing the entry points of a hundred packages takes 0.2 seconds.
        if f"[{_PREFIX}" in (package.read_text("entry_points.txt") or ""):
            packages.setdefault(package.name, package)
    points = [point for package in packages.values() for point in package.entry_points]
    return tuple(point for point in points if point.group.startswith(_PREFIX))


def installed_entry_points(kind: str) -> "dict[str, EntryPoint]":
    """Return the entry points of a kind of part by name, without importing them.

    Args:
        kind: A key of :data:`GROUPS`; other kinds have no entry points.

    Raises:
        BadInput: Two packages register different objects under one name.
    """
    entry_points: dict[str, EntryPoint] = {}
    for entry_point in _entry_points():
        if entry_point.group != GROUPS.get(kind):
            continue
        first = entry_points.setdefault(entry_point.name, entry_point)
        if first.value != entry_point.value:
            raise BadInput(
                f"{package_of(first)} and {package_of(entry_point)} both register "
                f"{with_article(kind)} named {entry_point.name!r}; remove one of them, or name the "
                f"object as {entry_point.value!r}"
            )
    return entry_points


def package_of(entry_point: "EntryPoint") -> str:
    """Return the package of an entry point, with its version."""
    return (
        f"{entry_point.dist.name} {entry_point.dist.version}"
        if entry_point.dist
        else "a package without a name"
    )


def unknown_group_warnings() -> list[str]:
    """Return messages about entry points in unknown groups, which are probably misspelt."""
    messages = {}
    for entry_point in _entry_points():
        if entry_point.group not in GROUPS.values():
            nearest_group, *_ = get_close_matches(entry_point.group, GROUPS.values(), 1, cutoff=0)
            messages[entry_point.group] = (
                f"{package_of(entry_point)} has entry points in the unknown group "
                f"{entry_point.group!r}; did it mean {nearest_group!r}?"
            )
    return list(messages.values())


def import_callable(path: str, kind: str) -> Callable[..., object]:
    """Import a class or function by its path.

    Raises:
        BadInput: The path is invalid, cannot be imported or is not callable, or the file that names
            it is not trusted. In the last case, nothing is imported.
    """
    value = _resolve(path, kind)
    if not callable(value):
        raise BadInput(f"{path!r} is {type_of(value)}, not a class or function")
    return value


def call_reporting_errors(
    kind: str, name: str, make: Callable[..., object], /, *arguments: object, **settings: object
) -> object:
    """Call a part. For custom code, the message of an error states the line that caused it.

    Raises:
        FedauditError: The part raised this error.
        BadInput: The part does not accept these settings, or raised any other error.
    """
    if not is_custom(name) and name not in installed_entry_points(kind):
        return make(*arguments, **settings)
    try:
        signature(make).bind(*arguments, **settings)
    except TypeError as error:
        raise BadInput(f"the {kind} {name!r} could not be called: {error}") from error
    try:
        return make(*arguments, **settings)
    except FedauditError:
        raise
    except (Exception, SystemExit) as error:
        shapes = [tuple(argument.shape) for argument in arguments if hasattr(argument, "shape")]
        samples = f" on samples of shape {shapes[0]}" if shapes else ""
        raise BadInput(
            f"the {kind} {name!r} failed{samples} ({type(error).__name__}: {error}, "
            f"{location_of(error)}); call it in a script to debug it"
        ) from error


def raise_if_missing(*packages: str, needed_by: str, extra: str) -> None:
    """Raise if packages are not installed.

    Args:
        packages: Names of the packages.
        needed_by: What needs the packages, for the message.
        extra: Extra of fedaudit that installs the packages.
    """
    for package in packages:
        if find_spec(package) is None:
            raise BadInput(
                f"{needed_by} needs {package}, which is not installed; pip install "
                f"'fedaudit[{extra}]'"
            )


def location_of(error: BaseException) -> str:
    """Return where an error was raised, for a message: "in defense.py, line 12"."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "nowhere"


@contextmanager
def convert_exits_to_errors() -> Iterator[None]:
    """Convert exits of custom code, such as ``sys.exit(0)``, to errors within the context.

    Otherwise, custom code could end the process with any exit code, even 0 for success.

    Raises:
        BadInput: The code raised ``SystemExit`` or ``GeneratorExit``.
    """
    try:
        yield
    # These two are not subclasses of Exception, so other handlers do not catch them.
    except (SystemExit, GeneratorExit) as error:
        raise BadInput(
            f"custom code ended the process ({type(error).__name__}: {error}, "
            f"{location_of(error)}); a part may return a value or raise an Exception; remove the "
            "exit, and start again"
        ) from error


def source_digests(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the SHA-256 of the source that defines each part, by ``module:object``.

    Other objects of a part's module do not change the digest; see
    :func:`fedaudit.core.definitions.definition_digest`. The key of a registered object is its
    ``code_key``.

    Args:
        names: Kind and name of each part.

    Raises:
        BadInput: A part cannot be imported, or the file that names it is not trusted.
    """
    digests = {}
    for kind, name in names:
        _resolve(name, kind)
        registered = _import_trust.get().registered.get(name)
        key = code_key(kind, name)
        module, _, attribute = key.partition(":")
        if registered:
            digests[key] = registered.digest
        else:
            # Imported here, since only studies with custom code need it.
            from fedaudit.core.definitions import definition_digest

            digests[key] = definition_digest(module, attribute)
    return dict(sorted(digests.items()))


def code_key(kind: str, name: str) -> str:
    """Return ``module:object`` of a part, or the name of an object from Python."""
    if name in _import_trust.get().registered:
        return _import_trust.get().registered[name].code_key
    return name if is_not_importable(name) else _import_path(name, kind)


def _import_path(name: str, kind: str) -> str:
    """Return ``module:object``, which an installed package may register under a short name."""
    entry_point = None if is_custom(name) else installed_entry_points(kind).get(name)
    return entry_point.value if entry_point else name


def module_digest(module: str) -> str:
    """Return the SHA-256 of an imported module's file, or of an empty text if it has no file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()


def _resolve(name: str, kind: str) -> object:
    """Return a registered object, or import the object that a name refers to."""
    trust = _import_trust.get()
    if name in trust.registered:
        return trust.registered[name].value
    path = _import_path(name, kind)
    if path != name:
        # The user trusts the parts of a package by installing it.
        trust = _TRUSTED
    if is_not_importable(path):
        raise BadInput(
            f"the {kind} {path!r} is an object of a script or notebook, which cannot be imported; "
            "pass it again to fedaudit.audit or fedaudit.Run"
        )
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise BadInput(f"a custom {kind} is named 'package.module:callable', got {path!r}")
    if trust.distrusted is not None:
        raise BadInput(
            f"{trust.distrusted} names the {kind} {path[:200]!r}, but importing the module "
            f"{module_name[:200]!r} would run its code; read the module first, and pass --trust "
            "(trust=True in Python) if you trust it"
        )
    module = _import_module(path, module_name, kind, trust.folder)
    try:
        value: object = attrgetter(attribute)(module)
    except AttributeError as error:
        names = [
            key
            for key, member in vars(module).items()
            if not key.startswith("_") and not isinstance(member, ModuleType)
        ]
        hint = suggest_names(attribute, sorted(names), limit=1)
        raise BadInput(f"cannot import {path!r}: {error}; {hint}check the spelling") from error
    return value


def is_not_importable(name: str) -> bool:
    """Return whether a name refers to an object that cannot be imported.

    The names of objects of the main script start with "__main__:". Generated names of instances
    contain "#" before a digest. The names of functions and classes that are defined inside
    functions contain "<locals>" or "<lambda>".
    """
    return name.startswith("__main__:") or "#" in name or "<" in name


def _import_module(path: str, name: str, kind: str, folder: Path | None) -> ModuleType:
    study_folder = None if folder is None else folder.absolute()
    if study_folder is not None:
        # Permanently, since the module may import others of its folder later.
        add_module_folders([str(study_folder)])
    try:
        module = importlib.import_module(name)
    except (ImportError, ValueError) as error:
        names = [] if study_folder is None else [file.stem for file in study_folder.glob("*.py")]
        hint = suggest_names(name, sorted(names), limit=1)
        raise BadInput(
            f"cannot import {path!r}: {error}; {hint}check the spelling, and that "
            "the package is installed, is next to the study, or its folder is on PYTHONPATH"
        ) from error
    # Importing a module runs its code, which may raise any error or exit.
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"the module {name!r} cannot be imported, since it raises "
            f"{type(error).__name__} ({error}); fix it, or name another {kind}"
        ) from error
    if study_folder is not None:
        _raise_if_shadowed(name, module, study_folder)
    return module


def _raise_if_shadowed(name: str, module: ModuleType, folder: Path) -> None:
    """Raise if an installed module was imported instead of the one with that name in the folder."""
    file = getattr(module, "__file__", None)
    expected = folder.joinpath(*name.split("."))
    if file is None or Path(file).is_relative_to(folder):
        return
    if expected.with_suffix(".py").is_file() or (expected / "__init__.py").is_file():
        raise BadInput(
            f"{name!r} is a module next to the study, but {file} has the same name and is imported "
            "first; rename the module next to the study"
        )


def _describe(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    if inspect.isroutine(value):
        return f"the function {getattr(value, '__name__', repr(value))}"
    return type_of(value)
