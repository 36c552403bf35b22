"""Data sets, how they are dealt to clients, and which samples are audited.

``fedaudit.datasets.npz("bc.npz")``: a file or folder in any format, by its path, or by its name in
the data directory; ``digits()`` and ``synthetic()`` need no file, ``hf(name)`` asks Hugging Face,
and ``samples(x, y)`` takes what is in memory.
"""

from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.core.errors import BadInput, type_of, unknown_name
from fedaudit.core.naming import DataPart

if TYPE_CHECKING:
    from fedaudit.datasets.dataset import Dataset
    from fedaudit.datasets.in_memory import samples

__all__ = ["Dataset", "cifar", "digits", "hf", "idx", "images", "npz", "samples", "synthetic"]


def _of_file(kind: str, path: object, options: dict[str, object]) -> DataPart:
    if not isinstance(path, Path | str):
        raise BadInput(f"{kind} data are named by a path, got {type_of(path)}")
    given = Path(path)
    if kind == "npz":
        # The data directory's names are without it.
        given = given.with_suffix("") if given.suffix == ".npz" else given
    is_there = given.exists() or given.with_suffix(".npz").exists()
    folder = given.absolute().parent if is_there or given.name != str(path) else None
    return DataPart(f"{kind}:{given.name}", options, folder)


def _maker(name: str) -> Callable[..., DataPart]:
    """The maker of a part of a source of the catalogue."""
    from fedaudit.datasets.catalog import FORMATS, MADE, SOURCES

    source = SOURCES[name]

    def check(options: dict[str, object]) -> None:
        known = [
            one.name
            for one in signature(source).parameters.values()
            if one.kind is Parameter.KEYWORD_ONLY and one.name != "seed"
        ]
        for option in options:
            if option not in known:
                raise unknown_name(f"setting of fedaudit.datasets.{name}", option, known)

    def made(**options: object) -> DataPart:
        check(options)
        return DataPart(name, options)

    def of_path(path: Path | str, /, **options: object) -> DataPart:
        check(options)
        if name in FORMATS:
            return _of_file(name, path, options)
        return DataPart(f"{name}:{path}", options)

    make: Callable[..., DataPart] = made if name in MADE else of_path
    make.__name__ = make.__qualname__ = name
    make.__doc__ = source.__doc__
    return make


def __getattr__(name: str) -> Callable[..., object]:
    if name == "samples":
        from fedaudit.datasets.in_memory import samples

        return samples
    if name == "Dataset":
        from fedaudit.datasets.dataset import Dataset

        return Dataset
    if name not in __all__:
        raise AttributeError(f"module 'fedaudit.datasets' has no attribute {name!r}")
    return _maker(name)
