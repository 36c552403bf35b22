"""Parts of the user's own: what a name means that may be a catalogue's or ``module:object``.

A folder that somebody else made may name any module of this machine, and importing one runs it.
:func:`named` and :func:`imported` are the only ways from a name to code, and :func:`code_named_in`
says whether what names it is trusted.
"""

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

from fedaudit.errors import BadInput, Refusal, unknown_name

Entry = TypeVar("Entry")

OWN = "module:object"
"""How a part of the user's own is spelt, beside a catalogue's names."""


@dataclass(frozen=True)
class _Namer:
    """What names code.

    Attributes:
        distrusted: It, for the refusal, where its code must not be run; None where it may be.
        folder: Where its modules may lie, beside those that are installed.
    """

    distrusted: str | None = None
    folder: Path | None = None


_TRUSTED = _Namer()
_namer: ContextVar[_Namer] = ContextVar("namer", default=_TRUSTED)


@contextmanager
def code_named_in(source: object, *, trusted: bool, folder: Path | None = None) -> Iterator[None]:
    """Inside, code that a file or folder names is imported only if that is trusted.

    Contexts nest, and the innermost holds. In Python outside of any, code is imported: the
    command line is inside of one that trusts nothing, and only the commands that carry out a study
    file, or are given ``--trust``, open another.

    Args:
        source: What names the code, for the refusal: a path.
        trusted: Whether whoever asks trusts it.
        folder: Where its modules may lie, beside those that are installed. They come last, so that
            no file in there takes the place of an installed module that nobody has named.
    """
    token = _namer.set(_Namer(None if trusted else str(source), folder if trusted else None))
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
    """Whether a name is ``module:object`` of the user's own.

    Args:
        name: As a study gives it.
        formats: What stands before a colon with another meaning, such as "npz" of a data set.
    """
    first, colon, _ = name.partition(":")
    return bool(colon) and first not in formats


def named(
    kind: str,
    name: str,
    catalogue: Mapping[str, Entry],
    *,
    wanted: str,
    fits: Callable[[object], bool],
) -> Entry:
    """What a name means: an entry of a catalogue, or an object of the user's own.

    Args:
        kind: What it is wanted as, for the message ("defense").
        name: A key of the catalogue, or ``package.module:object``.
        catalogue: All entries by name.
        wanted: What an object of the user's own is, for the message.
        fits: Whether it is that.

    Raises:
        BadInput: There is no such entry; or the object cannot be imported, must not be, or is
            something else.
    """
    if name in catalogue:
        return catalogue[name]
    if not is_own(name):
        raise unknown_name(kind, name, [*catalogue, OWN])
    found = _found(name, kind)
    if not fits(found):
        raise BadInput(
            f"{name!r} is {_said(found)}, and {_an(kind)} of your own is {wanted}; name one"
        )
    return cast(Entry, found)


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
        raise BadInput(f"{path!r} is a {type(found).__name__}, not a class or function")
    return found


def called(
    kind: str, name: str, make: Callable[..., object], *given: object, **settings: object
) -> object:
    """What a part of the user's own gives; that it fails is said, with the place in its file.

    Args:
        kind: What it is, for the message.
        name: As the study has it.
        make: To be called.
        given: Passed on.
        settings: Passed on.

    Raises:
        Refusal: It says so itself.
        BadInput: It does not take these settings, or fails otherwise.
    """
    if not is_own(name):
        return make(*given, **settings)
    try:
        signature(make).bind(*given, **settings)
    except TypeError as error:
        raise BadInput(f"the {kind} {name!r} could not be called: {error}") from error
    try:
        return make(*given, **settings)
    except Refusal:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        shapes = [tuple(one.shape) for one in given if hasattr(one, "shape")]
        raise BadInput(
            f"the {kind} {name!r} failed{f' on samples of shape {shapes[0]}' if shapes else ''} "
            f"({type(error).__name__}: {error}, in "
            f"{Path(last.filename).name}, line {last.lineno}); try it by itself"
        ) from error


def sources_of(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """SHA-256 of the source file of each module that is named, by the module's name.

    What these modules import in turn is not looked into.

    Args:
        names: Kind and ``module:object`` of each part.

    Raises:
        BadInput: As :func:`imported`.
    """
    found = {}
    for kind, path in names:
        _found(path, kind)
        module = path.partition(":")[0]
        found[module] = source_digest(module)
    return dict(sorted(found.items()))


def source_digest(module: str) -> str:
    """SHA-256 of the file of a module that has been imported; of nothing where it has none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()


def _found(path: str, kind: str) -> object:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise BadInput(f"{_an(kind)} of your own is named 'package.module:callable', got {path!r}")
    namer = _namer.get()
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
    close = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}? " if close else ""


def _said(found: object) -> str:
    if isinstance(found, type):
        return f"the class {found.__qualname__}"
    if inspect.isroutine(found):
        return f"the function {getattr(found, '__name__', repr(found))}"
    return _an(type(found).__name__)


def _an(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiouAEIOU" else f"a {noun}"
