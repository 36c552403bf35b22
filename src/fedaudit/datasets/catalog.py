"""Loading of data sets by name."""

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedaudit.core.arguments import parameters
from fedaudit.core.errors import BadInput, format_option, similar_names, type_of, unknown_name
from fedaudit.core.importing import (
    call_reporting_errors,
    installed_entry_points,
    is_custom,
    look_up,
)
from fedaudit.core.lazy import Catalogue
from fedaudit.core.naming import DataSetting
from fedaudit.core.options import check_values
from fedaudit.core.tasks import CLASSIFICATION, Task
from fedaudit.datasets.dataset import (
    DataFile,
    Dataset,
    DataSource,
    prepare_for_task,
    select_classes,
)

if TYPE_CHECKING:
    from fedaudit.datasets.tables.table import StoredTable

DATA_DIR_VARIABLE = "FEDAUDIT_DATA"


GENERATED: Catalogue[type[DataSource]] = Catalogue("fedaudit.datasets", "generated")
"""Data sets that need no file."""

FORMATS: Catalogue[type[DataFile]] = Catalogue("fedaudit.datasets", "formats")
"""File formats, in the order in which the data directory is searched for them."""

HUBS: Catalogue[Callable[..., DataSource]] = Catalogue("fedaudit.datasets", "hubs")
"""Hubs that load a data set by its name."""

SOURCES: Catalogue[type[DataSource]] = Catalogue(
    "fedaudit.datasets", "generated", "formats", "hubs"
)

DATA_SET_PREFIXES = (*FORMATS, *HUBS)
"""Prefixes that select a format or hub: ``FORMAT:NAME`` and ``HUB:NAME``.

Any other prefix is the module of a custom function: ``module:function``.
"""


def data_directory(folder: Path | None = None) -> Path | None:
    """Return the folder of data sets: ``folder``, or by default ``FEDAUDIT_DATA`` if it is set."""
    if folder is not None:
        return folder
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None


def load(
    name: str,
    task: Task = CLASSIFICATION,
    classes: Sequence[int] = (),
    first_class: int = 0,
    /,
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    **options: DataSetting,
) -> Dataset:
    """Load a data set by name, ready for training.

    Names of generated data sets, such as ``digits``, need no file. Any other name is searched for
    in the data directory, in each known format in turn. ``FORMAT:NAME`` limits the search to a
    format, ``hf:NAME`` loads from Hugging Face, and ``module:function`` calls a custom function.

    Args:
        name: Name of the data set.
        task: Task that models are trained for.
        classes: Classes whose samples are kept, renumbered in this order; all if empty.
        first_class: New number of the first of these classes.
        data_dir: Folder of data sets; ``FEDAUDIT_DATA`` by default.
        seed: Seed of generated data, and of splits that the files do not define.
        options: Settings of the data set; see its class in ``SOURCES``.

    Raises:
        BadInput: The data set or an option does not exist, or the data do not fit the task.
        Damaged: A file is truncated or has another format than its name says.
    """
    dataset = _load_all_classes(name, data_dir, seed, options)
    return prepare_for_task(select_classes(dataset, classes, first=first_class), task)


def _load_all_classes(
    name: str, data_dir: Path | None, seed: int, options: Mapping[str, DataSetting]
) -> Dataset:
    source = _source(name, data_dir, options)
    return _load_custom(name, data_dir, seed, options) if source is None else source.read(seed)


def client_names_of(
    name: str, data_dir: Path | None, options: Mapping[str, DataSetting]
) -> tuple[str, ...]:
    """Return the names of the clients in a data set, in the order of their numbers."""
    return _load_all_classes(name, data_dir, 0, options).client_names


def _source(
    name: str, data_dir: Path | None, options: Mapping[str, DataSetting]
) -> DataSource | None:
    """Return the source of a data set; None for a custom function.

    Raises:
        BadInput: The data set does not exist, or an option is unknown or has another type.
    """
    prefix, colon, local_name = name.partition(":")
    source: Callable[..., DataSource]
    location: tuple[str | Path, ...] = ()
    if name in GENERATED:
        subject, source = name, GENERATED[name]
    elif is_custom(name, DATA_SET_PREFIXES) or (
        not colon and name in installed_entry_points("data set")
    ):
        return None
    elif prefix in HUBS and colon:
        subject, source, location = f"{prefix} data", HUBS[prefix], (local_name,)
    else:
        formats = [prefix] if colon else list(FORMATS)
        format_name, path = _locate(local_name if colon else name, formats, data_dir)
        subject, source, location = f"{format_name} data", FORMATS[format_name], (path,)
    accepted = {n: p for n, p in parameters(source).items() if p.kind is p.KEYWORD_ONLY}
    check_values(subject, options, accepted, partial(_unknown_option, subject, accepted))
    return source(*location, **options)


def _unknown_option(subject: str, accepted: Collection[str], name: str) -> BadInput:
    return unknown_name(f"option of {subject}", name, accepted)


def stored_table(
    name: str, *, data_dir: Path | None = None, options: Mapping[str, DataSetting]
) -> "StoredTable":
    """Return the table of a data set by name; see :func:`load`.

    Raises:
        BadInput: The data set is not a table, or cannot be read.
        Damaged: A file is truncated or has another format than its name says.
    """
    from fedaudit.datasets.tables.table import TableSource  # Few data sets are tables.

    source = _source(name, data_dir, options) or custom_source(name)
    if not isinstance(source, TableSource):
        raise BadInput(
            f"lines and column values select rows of a table, but the data set {name!r} is not "
            f"read as a table; select the sample with {format_option('row')}"
        )
    return source.load_table()


def _load_custom(
    name: str, data_dir: Path | None, seed: int, options: Mapping[str, DataSetting]
) -> Dataset:
    """Call a custom function, with ``seed`` and ``data_dir`` if it has these parameters."""
    source = custom_source(name)
    parameter_names = inspect.signature(source).parameters.keys()
    available = {"seed": seed, "data_dir": data_directory(data_dir)}
    arguments = {key: value for key, value in available.items() if key in parameter_names}
    accepted = parameter_names - available.keys()
    for option in options:
        if option not in accepted:
            raise _unknown_option(f"the data set {name!r}", accepted, option)
    dataset: object = call_reporting_errors("data set", name, source, **arguments, **options)
    if not isinstance(dataset, Dataset):
        raise BadInput(
            f"the function of the data set {name!r} returns {type_of(dataset)}; return a "
            "fedaudit.datasets.dataset.Dataset"
        )
    return dataset


def custom_source(name: str) -> Callable[..., object]:
    """Return a custom function that returns a data set.

    Raises:
        BadInput: The function does not exist; the message suggests a format of a similar name.
    """
    expected = "a function that returns a Dataset"
    try:
        return look_up("data set", name, GENERATED, expected=expected, is_valid=callable)
    except BadInput as error:
        close = similar_names(name.partition(":")[0], DATA_SET_PREFIXES, limit=1)
        hint = f"; or did you mean {close[0]!r}, which is a format?" if close else ""
        raise BadInput(f"{error}{hint}") from error


class _Location(NamedTuple):
    """Format and path of a data set."""

    format: str
    path: Path


def _locate(name: str, formats: Sequence[str], data_dir: Path | None) -> _Location:
    if not name or name != Path(name).name or name.startswith("."):
        raise BadInput(
            f"{name!r} is not a name of a data set; give a name without folders, and the folder as "
            f"{format_option('data-dir')}"
        )
    folder = data_directory(data_dir)
    if folder is None or not folder.is_dir():
        raise _missing_directory(name, folder)
    for format_name in formats:
        path = FORMATS[format_name].find(folder, name)
        if path is not None:
            return _Location(format_name, path)
    raise _missing_dataset(name, folder, formats)


def _missing_directory(name: str, folder: Path | None) -> BadInput:
    state = (
        f"no data directory is set ({DATA_DIR_VARIABLE} is empty)"
        if folder is None
        else f"the data directory {folder} is not a folder"
    )
    here = [f for f, kind in FORMATS.items() if name.endswith(kind.suffix or "/")]
    remedy = f"set {DATA_DIR_VARIABLE} or give {format_option('data-dir')}"
    if here and Path(name).is_file():
        remedy = (
            f"for {name} in this folder, give fedaudit.datasets.{here[0]}({name!r}), or {remedy}"
        )
    return BadInput(
        f"data set {name!r} needs a file and {state}; {remedy}, or use a data set without files: "
        f"{', '.join(GENERATED)}"
    )


def _missing_dataset(name: str, folder: Path, formats: Sequence[str]) -> BadInput:
    patterns = [FORMATS[format_name].expected_layout for format_name in formats]
    paths = ", ".join(pattern.replace("NAME", name) for pattern in patterns)
    remedy = f"put it there, or set data_dir or {DATA_DIR_VARIABLE} to the folder that has it"
    if len(formats) == 1:
        return BadInput(f"{folder} has no {paths}; {remedy}")
    entries = [path for path in folder.iterdir() if path.is_dir() or path.suffix == ".npz"]
    names = {path.name.removesuffix(".npz") for path in entries} | set(GENERATED)
    unknown = unknown_name(f"data set in {folder}", name, names)
    return BadInput(f"{unknown}; looked for {paths}; {remedy}")
