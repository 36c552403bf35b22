"""Public names that are imported when they are first used, and catalogues of such names.

A package lists its public names once, as statements that only a type checker runs::

    if TYPE_CHECKING:
        from fedaudit.models.mlp import MLP as MLP
        from fedaudit.plan import sections as _sections

        Audit = _sections.AuditSection
    else:
        __getattr__, __dir__, __all__ = lazy_names(__name__)

The assignment gives a class another public name.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Generic, NamedTuple, TypeVar, cast

Entry = TypeVar("Entry")


class _Place(NamedTuple):
    """Where a public name is defined; a submodule has no attribute."""

    module: str
    attribute: str = ""

    def load(self) -> object:
        module = import_module(self.module)
        return getattr(module, self.attribute) if self.attribute else module


@cache
def _places(package: str) -> dict[str, _Place]:
    """Return where each name is defined that a package lists under ``TYPE_CHECKING``."""
    loader = getattr(find_spec(package), "loader", None)
    # The statements themselves are read: a table next to them would list every name again.
    tree = ast.parse(loader.get_source(package) if loader else "")
    places: dict[str, _Place] = {}
    renamed: dict[str, str] = {}
    for statement in (one for node in tree.body if isinstance(node, ast.If) for one in node.body):
        match statement:
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    submodule = f"{module}.{alias.name}"
                    if alias.asname == alias.name:
                        is_module = module == package
                        place = _Place(submodule) if is_module else _Place(module, alias.name)
                        places[alias.name] = place
                    elif alias.asname:
                        renamed[alias.asname] = submodule
            case ast.Assign([ast.Name(name)], ast.Attribute(ast.Name(module), attribute)):
                places[name] = _Place(renamed[module], attribute)
    return places


def lazy_names(
    package: str, *defined: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package of lazy names.

    Args:
        package: Its name, which lists these names under ``TYPE_CHECKING``.
        defined: Public names that the package defines itself.
    """
    places = _places(package)
    public = sorted([*places, *defined])

    def load(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return places[name].load()

    return load, lambda: public, public


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
            entry_name(place.module): place
            for folder in folders or [""]
            for place in _places(package).values()
            if place.module.startswith(".".join([package, folder]))
        }

    def __getitem__(self, name: str) -> Entry:
        return cast(Entry, self._places[name].load())

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
