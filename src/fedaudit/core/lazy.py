"""Lazy imports: public names that are imported at their first use, and catalogues of such names.

A package lists its public names once, in statements that only a type checker runs::

    if TYPE_CHECKING:
        from fedaudit.models.mlp import MLP as MLP
        from fedaudit.plan import sections as _sections

        Audit = _sections.AuditSection
    else:
        __getattr__, __dir__, __all__ = lazy_names(__name__)

An assignment gives a class a public name that differs from its own.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Generic, NamedTuple, TypeVar, cast

Entry = TypeVar("Entry")


class _Definition(NamedTuple):
    """The definition of a public name; a submodule has no attribute."""

    module: str
    attribute: str = ""

    def load(self) -> object:
        module = import_module(self.module)
        return getattr(module, self.attribute) if self.attribute else module


@cache
def _definitions(package: str) -> dict[str, _Definition]:
    """Return the definitions of the names that a package lists under ``TYPE_CHECKING``."""
    loader = getattr(find_spec(package), "loader", None)
    # The source is parsed, since a table would list every name a second time.
    tree = ast.parse(loader.get_source(package) if loader else "")
    definitions: dict[str, _Definition] = {}
    renamed: dict[str, str] = {}
    statements = (child for node in tree.body if isinstance(node, ast.If) for child in node.body)
    for statement in statements:
        match statement:
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    submodule = f"{module}.{alias.name}"
                    if alias.asname == alias.name:
                        is_module = module == package
                        parts = (submodule,) if is_module else (module, alias.name)
                        definitions[alias.name] = _Definition(*parts)
                    elif alias.asname:
                        renamed[alias.asname] = submodule
            case ast.Assign([ast.Name(name)], ast.Attribute(ast.Name(module), attribute)):
                definitions[name] = _Definition(renamed[module], attribute)
    return definitions


def lazy_names(
    package: str, *defined: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package with lazy names.

    Args:
        package: Name of the package, which lists the lazy names under ``TYPE_CHECKING``.
        defined: Public names that the package defines itself.
    """
    definitions = _definitions(package)
    public = sorted([*definitions, *defined])

    def load(name: str) -> object:
        if name not in definitions:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return definitions[name].load()

    return load, lambda: public, public


def entry_name(module: str) -> str:
    """Return the catalogue name of a module's entry: the name of its file, with hyphens."""
    return module.rpartition(".")[2].replace("_", "-")


class Catalogue(Mapping[str, Entry], Generic[Entry]):
    """Entries by catalogue name, in the order in which a package lists its lazy names.

    An entry is imported when it is looked up. The names alone need no import.

    Args:
        package: Package that lists the entries.
        folders: Subfolders of the package that contain the entries' modules; by default, the
            package itself.
    """

    def __init__(self, package: str, *folders: str) -> None:
        self._definitions = {
            entry_name(definition.module): definition
            for folder in folders or [""]
            for definition in _definitions(package).values()
            if definition.module.startswith(".".join([package, folder]))
        }

    def __getitem__(self, name: str) -> Entry:
        return cast(Entry, self._definitions[name].load())

    def __contains__(self, name: object) -> bool:
        return name in self._definitions

    def __iter__(self) -> Iterator[str]:
        return iter(self._definitions)

    def __len__(self) -> int:
        return len(self._definitions)

    def name_of(self, value: object) -> str | None:
        """Return the name of an entry, or None for anything else."""
        definition = (getattr(value, "__module__", None), getattr(value, "__qualname__", None))
        return next(
            (name for name, entry in self._definitions.items() if entry == definition), None
        )
