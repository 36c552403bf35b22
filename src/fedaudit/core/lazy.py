"""Public names that are imported when they are first used, and catalogues of such names.

A package lists its public names once, as imports that only a type checker carries out::

    if TYPE_CHECKING:
        from fedaudit.models.mlp import MLP as MLP
    else:
        __getattr__, __dir__, __all__ = lazy_names(__name__)
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Generic, TypeVar, cast

Entry = TypeVar("Entry")


@cache
def _modules(package: str) -> dict[str, str]:
    """Return the module of each name that a package imports under ``TYPE_CHECKING``."""
    loader = getattr(find_spec(package), "loader", None)
    # The imports themselves are read: a table beside them would list every name again.
    tree = ast.parse(loader.get_source(package) if loader else "")
    blocks = [node.body for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: statement.module
        for block in blocks
        for statement in block
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
        if alias.asname == alias.name
    }


def lazy_names(
    package: str, *defined: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package of lazy names.

    Args:
        package: Its name, which imports these names under ``TYPE_CHECKING``.
        defined: Public names that the package defines itself.
    """
    modules = _modules(package)
    public = sorted([*modules, *defined])

    def imported(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return imported, lambda: public, public


def entry_name(module: str) -> str:
    """Return the catalogue name of what a module defines: that of its file, with hyphens."""
    return module.rpartition(".")[2].replace("_", "-")


class Catalogue(Mapping[str, Entry], Generic[Entry]):
    """Entries by catalogue name, in the order in which a package lists its lazy names.

    An entry is imported when it is looked up. The names alone need no import.

    Args:
        package: Package that lists the entries.
        folders: Folders in the package that hold their modules; the package itself if none.
    """

    def __init__(self, package: str, *folders: str) -> None:
        self._places = {
            entry_name(module): (module, name)
            for folder in folders or [""]
            for name, module in _modules(package).items()
            if module.startswith(".".join([package, folder]))
        }

    def __getitem__(self, name: str) -> Entry:
        module, attribute = self._places[name]
        return cast(Entry, getattr(import_module(module), attribute))

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def name_of(self, value: object) -> str | None:
        """Return the name of an entry, or None for anything else."""
        place = (getattr(value, "__module__", None), getattr(value, "__qualname__", None))
        return next((name for name, known in self._places.items() if known == place), None)
