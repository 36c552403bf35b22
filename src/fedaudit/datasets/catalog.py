"""Loading a data set by name."""

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.arguments import parameters, refuse_unfit
from fedaudit.core.errors import BadInput, nearest, option, type_of, unknown_name
from fedaudit.core.importing import called, installed, is_own, named
from fedaudit.core.lazy import Catalogue
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.core.values import Setting
from fedaudit.datasets.dataset import Dataset, of_task, some_classes
from fedaudit.datasets.source import DataFile, DataSource

DATA_DIR_VARIABLE = "FEDAUDIT_DATA"


GENERATED: Catalogue[type[DataSource]] = Catalogue("fedaudit.datasets", "generated")
"""Data sets that need no file of the user's."""

FORMATS: Catalogue[type[DataFile]] = Catalogue("fedaudit.datasets", "formats")
"""File formats, in the order in which a data set is looked for in them."""

HUBS: Catalogue[Callable[..., DataSource]] = Catalogue("fedaudit.datasets", "hubs")
"""Hubs that load a data set by its name there."""

SOURCES: Catalogue[type[DataSource]] = Catalogue(
    "fedaudit.datasets", "generated", "formats", "hubs"
)

READERS = (*FORMATS, *HUBS)
"""What is written before the colon of a data set in a format or on a hub; any other is a module."""


def data_directory(given: Path | None = None) -> Path | None:
    """The folder of data sets: that given, else that of ``FEDAUDIT_DATA``, else None."""
    if given is not None:
        return given
    stated = os.environ.get(DATA_DIR_VARIABLE)
    return Path(stated) if stated else None


def load(
    name: str,
    task: Task = CLASSIFICATION,
    classes: Sequence[int] = (),
    first_class: int = 0,
    /,
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    **options: Setting,
) -> Dataset:
    """A data set by name, ready for training.

    ``digits`` and ``synthetic`` need no file. Any other name is looked for in the data
    directory, in each known format in turn; ``FORMAT:NAME`` names the format as well,
    ``hf:NAME`` asks Hugging Face, and ``module:function`` is a source of the user's own.

    Args:
        name: Name of the data set.
        task: What a model is to be trained for on it.
        classes: Only samples of these are kept, and they are numbered in this order; all if empty.
        first_class: Number of the first of them.
        data_dir: Folder that data sets lie in; by default what ``FEDAUDIT_DATA`` says.
        seed: Decides everything random about the data: generation, and splits that the files
            do not settle.
        options: Settings of the source; see its class in ``SOURCES``.

    Raises:
        BadInput: No such data set, an option its source does not have, or data that are of no use
            for the task.
        Damaged: A file is cut off or not what its name says.
    """
    whole = _loaded(name, data_dir, seed, options)
    return of_task(some_classes(whole, classes, first=first_class), task)


def _loaded(name: str, data_dir: Path | None, seed: int, options: Mapping[str, Setting]) -> Dataset:
    kind, colon, rest = name.partition(":")
    if name in GENERATED:
        generated = GENERATED[name]
        _check_options(name, generated, options)
        return generated(**options).read(seed)
    if is_own(name, READERS) or (not colon and name in installed("data set")):
        return _own(name, data_dir, seed, options)
    if kind in HUBS and colon:
        hub = HUBS[kind]
        _check_options(f"{kind} data", hub, options)
        return hub(rest, **options).read(seed)
    found = _found(rest if colon else name, [kind] if colon else list(FORMATS), data_dir)
    _check_options(f"{found.kind} data", FORMATS[found.kind], options)
    return FORMATS[found.kind](found.path, **options).read(seed)


def _own(name: str, data_dir: Path | None, seed: int, options: Mapping[str, Setting]) -> Dataset:
    """A data set of a function of the user's own, which takes ``seed``, and may ``data_dir``."""
    source = custom_source(name)
    taken = inspect.signature(source).parameters
    given = {"seed": seed, "data_dir": data_directory(data_dir)}
    passed = {key: value for key, value in given.items() if key in taken}
    _refuse_unknown(f"the data set {name!r}", options, taken.keys() - given.keys())
    made: object = called("data set", name, source, **passed, **options)
    if not isinstance(made, Dataset):
        raise BadInput(
            f"the data set {name!r} is made as {type_of(made)}; return a "
            "fedaudit.datasets.dataset.Dataset"
        )
    return made


def custom_source(name: str) -> Callable[..., object]:
    """Return a custom function that makes a data set.

    Raises:
        BadInput: There is none; a format of a similar name is suggested.
    """
    wanted = "a function that makes a Dataset"
    try:
        return named("data set", name, GENERATED, wanted=wanted, fits=callable)
    except BadInput as error:
        close = nearest(name.partition(":")[0], READERS, most=1)
        hint = f"; or did you mean {close[0]!r}, which is a format?" if close else ""
        raise BadInput(f"{error}{hint}") from error


class _Found(NamedTuple):
    """Path and format of a data set."""

    kind: str
    path: Path


def _found(name: str, kinds: Sequence[str], data_dir: Path | None) -> _Found:
    if not name or name != Path(name).name or name.startswith("."):
        raise BadInput(
            f"{name!r} is no name of a data set; give a plain name, and the folder as data_dir"
        )
    folder = data_directory(data_dir)
    if folder is None or not folder.is_dir():
        raise _nowhere(name, folder)
    for kind in kinds:
        path = FORMATS[kind].find(folder, name)
        if path is not None:
            return _Found(kind, path)
    raise _missing(name, folder, kinds)


def _check_options(
    what: str, source: Callable[..., DataSource], options: Mapping[str, Setting]
) -> None:
    """Raise if an option is none of the source's or of another type."""
    known = {name: one for name, one in parameters(source).items() if one.kind is one.KEYWORD_ONLY}
    _refuse_unknown(what, options, known)
    for name, value in options.items():
        refuse_unfit(f"{name} of {what}", value, known[name].annotation, known[name].default)


def _refuse_unknown(what: str, options: Iterable[str], known: Collection[str]) -> None:
    for name in options:
        if name not in known:
            raise unknown_name(f"option of {what}", name, known)


def _nowhere(name: str, folder: Path | None) -> BadInput:
    state = (
        f"no data directory is set ({DATA_DIR_VARIABLE} is empty)"
        if folder is None
        else f"the data directory {folder} is not a folder"
    )
    return BadInput(
        f"data set {name!r} must come from a file and {state}; set {DATA_DIR_VARIABLE} or give "
        f"{option('data-dir')}, or use a data set that needs no file: {', '.join(GENERATED)}"
    )


def _missing(name: str, folder: Path, kinds: Sequence[str]) -> BadInput:
    looked = ", ".join(FORMATS[kind].looks_for.replace("NAME", name) for kind in kinds)
    elsewhere = f"put it there, or point data_dir or {DATA_DIR_VARIABLE} at the folder that has it"
    if len(kinds) == 1:
        return BadInput(f"{folder} holds no {looked}; {elsewhere}")
    entries = [path for path in folder.iterdir() if path.is_dir() or path.suffix == ".npz"]
    there = {path.name.removesuffix(".npz") for path in entries} | set(GENERATED)
    unknown = unknown_name(f"data set in {folder}", name, there)
    return BadInput(f"{unknown}; looked for {looked}; {elsewhere}")
