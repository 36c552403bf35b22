"""Digests of the source code that defines an object of a custom module.

The source is parsed, not run. The definition of an object is the top-level statement that binds its
name, together with everything that this statement uses: helpers, constants, base classes,
decorators and imports, including objects of other custom modules. Other parts of a module do not
change the digest.

This works only if names show everything that an object uses. It is therefore limited to
*declarative* modules, in which every top-level statement only binds names (definitions, imports,
assignments of values without side effects). Their code must not look up objects by reflection, such
as by ``globals()``. If any of the modules is not declarative, the digest covers the complete files
of all modules.
"""

import ast
import hashlib
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path

from fedaudit.core.importing import KNOWN_PACKAGES

_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
"""Names of folders of installed packages. Python may search several of them: an environment can
include the packages of the system, and Debian and Colab use the second name."""

_REFLECTION = re.compile(
    "FunctionType|attrgetter|builtins|cloudpickle|ctypes|currentframe|dill|dir|eval|exec|f_back|"
    "f_builtins|f_globals|f_locals|gc|get_annotations|get_type_hints|gi_frame|globals|import_module|"
    "importlib|inspect|locals|marshal|methodcaller|pickle|pkgutil|pydoc|runpy|sys|tb_frame|vars|"
    "_getframe|zipimport"
)
"""Names by which code can access objects other than by their names (reflection)."""

_SPECIAL_NAMES = re.compile(
    "__(abs|add|aenter|aexit|aiter|all|and|anext|author|bool|call|class|complex|contains|copy|"
    "deepcopy|delitem|enter|eq|exit|file|float|floordiv|format|future|ge|getitem|gt|hash|iadd|imul|"
    "index|init|int|invert|isub|iter|itruediv|le|len|lt|main|match_args|matmul|mod|mul|name|ne|neg|new|"
    "next|or|pos|post_init|pow|qualname|radd|repr|reversed|rmatmul|rmul|round|rsub|rtruediv|"
    "setattr|setitem|slots|str|sub|truediv|version|xor)__"
)
"""Special names that give no access to other objects and are not called at class creation."""

_SPECIAL_CONSTANTS = {"__all__", "__author__", "__match_args__", "__slots__", "__version__"}
"""Special names that a declarative module may assign."""

_DECORATORS = {
    *("abc.abstractmethod", "builtins.classmethod", "builtins.property", "builtins.staticmethod"),
    *("contextlib.contextmanager", "dataclasses.dataclass", "functools.cache"),
    *("functools.cached_property", "functools.lru_cache", "functools.total_ordering"),
    *("functools.wraps", "torch.inference_mode", "torch.no_grad", "typing.final"),
    *("typing.override", "typing.runtime_checkable"),
}
"""Decorators that a declarative module may use, since they run no custom code."""

_CALLS = {
    *(f"builtins.{name}" for name in ("dict", "float", "frozenset", "int", "list", "range")),
    *(f"builtins.{name}" for name in ("set", "slice", "str", "tuple")),
    *("collections.namedtuple", "dataclasses.field", "enum.auto", "functools.partial"),
    *("logging.getLogger", "math.exp", "math.log", "math.sqrt", "numpy.array", "pathlib.Path"),
    *("re.compile", "torch.device", "torch.tensor", "types.MappingProxyType", "typing.NewType"),
    *("typing.ParamSpec", "typing.TypeVar"),
}
"""Callables that a declarative module may call at the top level, in addition to fedaudit's classes.

They have no side effects and do not call their arguments."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Reference:
    """Reference to an object by name; an empty ``name`` refers to the whole module."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class _Statement:
    """Top-level statement, or the part of a top-level import that binds one name.

    Attributes:
        text: The syntax tree as text; it does not depend on comments and layout.
        binds: Names that the statement binds.
        uses: Names that occur anywhere in the statement, and modules that it imports.
    """

    text: str
    binds: frozenset[str]
    uses: frozenset[_Reference]


@dataclass(frozen=True, eq=False)
class _Source:
    """Source code of a module.

    Attributes:
        name: Full name of the module.
        data: Content of the module's file.
        body: Top-level statements without ``if __name__ == "__main__"`` blocks; None if the file
            cannot be parsed.
        package: Package to which relative imports refer.
    """

    name: str
    data: bytes
    body: Sequence[ast.stmt] | None
    package: str

    @cached_property
    def imports(self) -> frozenset[_Reference]:
        return frozenset(name for node in self.body or () for name in _imports(node, self.package))

    @cached_property
    def mentions(self) -> frozenset[str]:
        """Return string constants of a reflective module that could be names of modules."""
        if not _is_reflective(self.body or ()):
            return frozenset()
        nodes = (child for node in self.body or () for child in ast.walk(node))
        constants = (node.value for node in nodes if isinstance(node, ast.Constant))
        return frozenset(
            value
            for value in constants
            if isinstance(value, str) and all(part.isidentifier() for part in value.split("."))
        )

    @cached_property
    def statements(self) -> list[_Statement]:
        return [statement for node in self.body or () for statement in _split(node, self)]

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.body or () if isinstance(node, ast.ClassDef)}

    @cached_property
    def origins(self) -> dict[str, str]:
        """Return the dotted name of the object to which each name is bound; empty if uncertain."""
        origins: dict[str, str] = {}
        for node in self.body or ():
            for name, origin in list(self._bindings(node, origins)):
                # A name that is bound to several objects is uncertain.
                origins[name] = origin if origins.get(name, origin) == origin else ""
        return origins

    def _bindings(self, node: ast.stmt, bound: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield each name that a statement binds, with the dotted name of the object."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = _top(alias.name)
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, self.package)
            for alias in node.names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"
        else:
            for name in _bound_by(node):
                yield name, "" if name in bound else f"{self.name}.{name}"
            for name in _bound_in_classes(node):
                yield name, ""

    def origin(self, node: ast.expr) -> str:
        """Return the dotted name of the object that an expression refers to; empty if uncertain."""
        if isinstance(node, ast.Name):
            return self.origins.get(node.id, f"builtins.{node.id}")
        if not isinstance(node, ast.Attribute):
            return ""
        parent = self.origin(node.value)
        return f"{parent}.{node.attr}" if parent else ""


def definition_digest(module: str, attribute: str) -> str:
    """Return the SHA-256 of the source code that defines an object of an imported module.

    Returns:
        A digest that does not depend on comments, layout, and unused objects of the module. If a
        module is not declarative, the digest covers the modules' files. For an object of a known
        package such as torch, it is the digest of the object's name. For any other module without a
        file, it is the digest of an empty text.
    """
    if _is_of_known_package(module):
        # Records state the versions of packages. Digesting all of torch would take a minute.
        return hashlib.sha256(f"{module}:{attribute}".encode()).hexdigest()
    sources = _reachable_sources(module)
    name = attribute.partition(".")[0]
    check = _DeclarativeCheck(sources)
    statements = sources[module].statements if module in sources else []
    is_bound = any(name in statement.binds for statement in statements)
    if is_bound and all(check.is_declarative(source) for source in sources.values()):
        used_statements = _closure(sources, _Reference(module, name))
        texts = {
            source.name: "\n".join(s.text for s in source.statements if s in used_statements)
            for source in sources.values()
        }
        texts = {name: text for name, text in texts.items() if text}
    else:
        texts = {name: hashlib.sha256(source.data).hexdigest() for name, source in sources.items()}
    paragraphs = [f"{name}\n{text}" for name, text in sorted(texts.items())]
    return hashlib.sha256("\n\n".join(paragraphs).encode()).hexdigest()


def _is_of_known_package(module: str) -> bool:
    """Return True if a module is part of a known package, not of a custom one with its name."""
    file = _loaded_file(module)
    if file is None or _top(module) not in KNOWN_PACKAGES:
        return False
    fedaudit_folder = Path(__file__).resolve().parents[1]
    return any(file.is_relative_to(folder) for folder in (fedaudit_folder, *_installed_folders()))


def _closure(sources: Mapping[str, _Source], first: _Reference) -> set[_Statement]:
    """Return the statements that bind a name, and all statements on which they depend."""
    statements: set[_Statement] = set()
    seen: set[_Reference] = set()
    pending = [first]
    while pending:
        target = pending.pop()
        if target in seen or target.module not in sources:
            continue
        seen.add(target)
        if not target.name:
            # A package gives access to each of its submodules that was imported anywhere.
            submodules = [name for name in sources if name.startswith(f"{target.module}.")]
            pending += [_Reference(name, "") for name in submodules]
        for statement in sources[target.module].statements:
            # Imports from __future__ change how the whole module is compiled.
            is_future = any(used.module == "__future__" for used in statement.uses)
            if is_future or not target.name or target.name in statement.binds:
                statements.add(statement)
                pending += statement.uses
    return statements


def _reachable_sources(module: str) -> dict[str, _Source]:
    """Return all custom modules by name that may run when a module is imported or used."""
    module_file = _loaded_file(module)
    roots: list[str] = []
    if module_file is not None:
        depth = module.count(".") + (module_file.stem == "__init__")
        roots = [str(folder) for folder in module_file.parents[depth : depth + 1]]
    sources: dict[str, _Source] = {}
    seen: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name in seen or not name:
            continue
        seen.add(name)
        pending.append(name.rpartition(".")[0])
        file = module_file if name == module else _file_of(name, roots, _top(module))
        if file is not None:
            sources[name] = _read(_bytes_of(file), name, file.stem == "__init__")
            for used in sources[name].imports:
                pending += [used.module, f"{used.module}.{used.name}" if used.name else ""]
            pending += sources[name].mentions
    return sources


def _loaded_file(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file and Path(file).is_file() else None


def _file_of(module: str, roots: Sequence[str], package: str) -> Path | None:
    """Return the file of a custom module; None for installed modules of other packages."""
    # A custom module may have the name of a known package. It is then searched only in its folder.
    folders = roots if _top(module) in KNOWN_PACKAGES else [*roots, *sys.path]
    spec = _spec(module, folders)
    if spec is None or not spec.has_location or not spec.origin:
        return None
    file = Path(spec.origin).resolve()
    is_installed = any(file.is_relative_to(folder) for folder in _installed_folders())
    return file if not is_installed or _top(module) == package else None


def _spec(module: str, folders: Sequence[str]) -> ModuleSpec | None:
    # Unlike importlib.util.find_spec, this does not import the parent packages.
    parent, _, last = module.rpartition(".")
    if parent:
        parent_spec = _spec(parent, folders)
        if parent_spec is None or parent_spec.submodule_search_locations is None:
            return None
        folders = list(parent_spec.submodule_search_locations)
    return PathFinder.find_spec(last, folders)


def _installed_folders() -> tuple[Path, ...]:
    """Return the folders of installed packages, including those of the user and the system."""
    return _folders_on(tuple(sys.path))


@lru_cache(maxsize=4)
def _folders_on(search_path: tuple[str, ...]) -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    folders = [Path(paths[name]) for name in ("purelib", "platlib", "stdlib")]
    folders += [path for path in map(Path, search_path) if path.name in _PACKAGE_FOLDERS]
    return tuple(folder.resolve() for folder in folders)


def _bytes_of(file: Path) -> bytes:
    return file.read_bytes()


@lru_cache(maxsize=64)
def _read(data: bytes, module: str, is_package: bool) -> _Source:
    package = module if is_package else module.rpartition(".")[0]
    try:
        body = [node for node in ast.parse(data).body if not _is_main_block(node)]
        source = _Source(module, data, body, package)
        _ = source.statements  # Raises RecursionError for deeply nested code.
    except (SyntaxError, ValueError, RecursionError):
        return _Source(module, data, None, package)
    return source


def _is_main_block(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or node.orelse:
        return False
    return ast.unparse(node.test) == "__name__ == '__main__'"


def _top(module: str) -> str:
    return module.partition(".")[0]


def _absolute(node: ast.ImportFrom, package: str) -> str:
    try:
        return resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:
        return ""


def _imports(node: ast.AST, package: str) -> Iterator[_Reference]:
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                # "import a.b" also imports the package "a".
                parts = alias.name.split(".")
                yield from (_Reference(".".join(parts[: n + 1]), "") for n in range(len(parts)))
        elif isinstance(child, ast.ImportFrom):
            yield from (_Reference(_absolute(child, package), alias.name) for alias in child.names)


def _split(node: ast.stmt, source: _Source) -> Iterator[_Statement]:
    parts: list[tuple[ast.stmt, Iterable[str]]] = [(node, _bound_by(node))]
    if isinstance(node, ast.Import):
        parts = [(ast.Import([alias]), [alias.asname or _top(alias.name)]) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parts = [
            (ast.ImportFrom(node.module, [alias], node.level), [alias.asname or alias.name])
            for alias in node.names
        ]
    for part, bound in parts:
        names = {child.id for child in ast.walk(part) if isinstance(child, ast.Name)}
        names.update(_names_in_text_annotations(part))
        uses = {_Reference(source.name, name) for name in names}
        uses.update(_with_submodules(_imports(part, source.package)))
        yield _Statement(_text(part), frozenset(bound), frozenset(uses))


def _with_submodules(imports: Iterator[_Reference]) -> Iterator[_Reference]:
    """Yield imports; for ``from a import b``, also yield ``a.b``, since ``b`` may be a module."""
    for name in imports:
        yield name
        if name.name:
            yield _Reference(f"{name.module}.{name.name}", "")


def _text(node: object) -> str:
    """Format a syntax tree as a text that is the same in every version of Python."""
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={_text(value)}"
            for name, value in ast.iter_fields(node)
            if value is not None and value != [] and name not in ("ctx", "kind", "type_comment")
        ]
        return f"{type(node).__name__}({','.join(fields)})"
    return f"[{','.join(map(_text, node))}]" if isinstance(node, list) else repr(node)


def _bound_by(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, _Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        nodes = [child for target in targets for child in ast.walk(target)]
        yield from (child.id for child in nodes if isinstance(child, ast.Name))


def _bound_in_classes(node: ast.stmt) -> Iterator[str]:
    for child in node.body if isinstance(node, ast.ClassDef) else ():
        yield from _bound_by(child)
        yield from _bound_in_classes(child)


def _names_in_text_annotations(node: ast.stmt) -> Iterator[str]:
    for child in ast.walk(node):
        for annotation in (getattr(child, "annotation", None), getattr(child, "returns", None)):
            for inner in ast.walk(annotation) if annotation else ():
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield from re.findall(r"\w+", inner.value)


def _is_reflective(body: Sequence[ast.stmt]) -> bool:
    """Return True if a module may access objects other than by their names."""
    nodes = [child for node in body for child in ast.walk(node)]
    constant_getattr = [
        child.func
        for child in nodes
        if isinstance(child, ast.Call)
        and len(child.args) > 1
        and isinstance(child.args[1], ast.Constant)
    ]
    for child in nodes:
        if isinstance(child, ast.Global):
            return True
        words: list[str] = []
        for field in ("id", "attr", "name", "asname", "module", "value"):
            value = getattr(child, field, None)
            words += value.split(".") if isinstance(value, str) else []
        if isinstance(child, ast.Attribute) and child.attr in ("eval", "dir"):
            continue  # A method such as model.eval(). The builtins eval and dir are names.
        if "getattr" in words and child not in constant_getattr:
            return True
        special = [word for word in words if re.fullmatch(r"__\w+__", word)]
        if not all(map(_SPECIAL_NAMES.fullmatch, special)) or any(
            map(_REFLECTION.fullmatch, words)
        ):
            return True
    return False


@dataclass(frozen=True)
class _DeclarativeCheck:
    """Check of whether modules are declarative, as defined in the docstring of this module.

    Each private method returns True if a node of a module's syntax tree passes the check.

    Attributes:
        sources: Custom modules by name.
    """

    sources: Mapping[str, _Source]

    def is_declarative(self, source: _Source) -> bool:
        """Return True if the module is declarative."""
        if source.body is None or _is_reflective(source.body):
            return False
        try:
            return all(self._is_declarative_statement(node, source) for node in source.body)
        except RecursionError:
            return False

    def _is_declarative_statement(self, node: ast.stmt, source: _Source) -> bool:
        match node:
            case ast.Import() | ast.Pass() | ast.Expr(value=ast.Constant()):
                return True
            case ast.ImportFrom():
                return all(alias.name != "*" for alias in node.names)
            case ast.If():
                never_runs = source.origin(node.test) == "typing.TYPE_CHECKING" and not node.orelse
                return never_runs and self._is_known("typing")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._has_pure_decorators(node, source) and self._has_pure_signature(
                    node, source
                )
            case ast.ClassDef():
                return self._is_declarative_class(node, source)
            case ast.Assign() | ast.AnnAssign():
                names = node.targets if isinstance(node, ast.Assign) else [node.target]
                bound = set(_bound_by(node))
                values = [getattr(node, "annotation", None), node.value]
                return (
                    all(_are_names(target) for target in names)
                    and all(n in _SPECIAL_CONSTANTS for n in bound if n.startswith("__"))
                    and all(self._is_pure_value(value, source) for value in values)
                )
        return False

    def _is_declarative_class(self, node: ast.ClassDef, source: _Source) -> bool:
        bases = [source.origin(_unsubscripted(child)) for child in node.bases]
        has_functions = any(isinstance(child, _Function) for child in node.body)
        # The metaclass of enumerations calls methods of a class while it creates the class.
        runs_methods = has_functions and any(
            _top(base) == "enum" for base in self._ancestors(bases)
        )
        return (
            not node.keywords
            and not runs_methods
            and all(self._is_known(base) or self._class_of(base) for base in bases)
            and all(self._is_pure_value(base, source) for base in node.bases)
            and self._has_pure_decorators(node, source)
            and not any(
                isinstance(child, ast.Import | ast.ImportFrom | ast.If) for child in node.body
            )
            and all(self._is_declarative_statement(child, source) for child in node.body)
        )

    def _ancestors(self, bases: Sequence[str]) -> Iterator[str]:
        """Yield base classes, and recursively the base classes of custom classes."""
        for base in bases:
            yield base
            node, source = self._class_of(base), self.sources.get(base.rpartition(".")[0])
            if node and source:
                grandparents = [source.origin(_unsubscripted(base)) for base in node.bases]
                yield from self._ancestors(grandparents)

    def _has_pure_decorators(self, node: _Function | ast.ClassDef, source: _Source) -> bool:
        called = [
            decorator.func if isinstance(decorator, ast.Call) else decorator
            for decorator in node.decorator_list
        ]
        origins = [source.origin(decorator) for decorator in called]
        arguments = [
            value
            for decorator in node.decorator_list
            if isinstance(decorator, ast.Call)
            for value in (*decorator.args, *(keyword.value for keyword in decorator.keywords))
        ]
        # A property of the class (classmethod over property) would run code at every access.
        may_be_class_property = "builtins.classmethod" in origins and len(origins) > 1
        return (
            not may_be_class_property
            and all(origin in _DECORATORS and self._is_known(origin) for origin in origins)
            and all(self._is_pure_value(argument, source) for argument in arguments)
        )

    def _has_pure_signature(self, node: _Function | ast.Lambda, source: _Source) -> bool:
        args = node.args
        variadic = [argument for argument in (args.vararg, args.kwarg) if argument]
        arguments = [*args.posonlyargs, *args.args, *args.kwonlyargs, *variadic]
        values = [
            *args.defaults,
            *args.kw_defaults,
            *(argument.annotation for argument in arguments),
        ]
        return all(
            self._is_pure_value(argument, source)
            for argument in (*values, getattr(node, "returns", None))
        )

    def _is_pure_value(self, node: ast.expr | None, source: _Source) -> bool:
        """Return True if evaluating an expression runs no custom code and has no side effects."""
        match node:
            case None | ast.Constant() | ast.Name():
                return True
            case ast.Lambda():
                return self._has_pure_signature(node, source)
            case ast.Attribute():
                return self._is_pure_value(node.value, source)
            case ast.Subscript():
                origin = source.origin(node.value)
                return self._is_external(origin) and self._is_pure_value(node.slice, source)
            case ast.Call():
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                has_names = all(keyword.arg for keyword in node.keywords)
                may_be_called = has_names and self._may_call(source.origin(node.func))
                return may_be_called and all(
                    self._is_pure_value(child, source) for child in arguments
                )
            case (
                ast.Tuple() | ast.List() | ast.Set() | ast.Dict() | ast.Starred() | ast.Slice()
                | ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare() | ast.IfExp()
                | ast.JoinedStr() | ast.FormattedValue()
            ):  # fmt: skip
                children = [
                    child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
                ]
                return all(self._is_pure_value(child, source) for child in children)
        return False

    def _may_call(self, origin: str) -> bool:
        last = origin.rpartition(".")[2]
        if self._is_known(origin):
            is_class = _top(origin) == "fedaudit" and last[0].isupper()
            return origin in _CALLS or is_class
        return self._is_inert(origin)

    def _is_inert(self, origin: str) -> bool:
        """Return True if constructing an object of a custom class runs none of the class's code."""
        node, source = self._class_of(origin), self.sources.get(origin.rpartition(".")[0])
        if node is None or source is None:
            return False
        bases = [source.origin(_unsubscripted(child)) for child in node.bases]
        functions = [child for child in node.body if isinstance(child, _Function)]
        bound = [name for child in node.body for name in _bound_by(child)]
        special = [name for name in bound if name.startswith("__")]
        decorators = {source.origin(d) for child in functions for d in child.decorator_list}
        factories = [
            source.origin(child.value)
            for child in ast.walk(node)
            if isinstance(child, ast.keyword) and child.arg == "default_factory"
        ]
        return (
            all(name == "__call__" or name in _SPECIAL_CONSTANTS for name in special)
            and decorators <= {"builtins.staticmethod", "builtins.classmethod"}
            and all(child in _CALLS and self._is_known(child) for child in factories)
            and all(
                (_top(child) in ("fedaudit", "typing", "abc") and self._is_known(child))
                or self._is_inert(child)
                for child in bases
            )
        )

    def _class_of(self, origin: str) -> ast.ClassDef | None:
        module, _, name = origin.rpartition(".")
        source = self.sources.get(module)
        is_certain = source is not None and source.origins.get(name) == origin
        return source.classes.get(name) if source and is_certain else None

    def _is_external(self, origin: str) -> bool:
        """Return True if an object is not defined in a custom module."""
        return bool(origin) and _top(origin) not in {_top(name) for name in self.sources}

    def _is_known(self, origin: str) -> bool:
        return self._is_external(origin) and _top(origin) in KNOWN_PACKAGES


def _are_names(target: ast.expr) -> bool:
    """Return True if an assignment has only names as its targets, and no attribute or item."""
    if isinstance(target, ast.Tuple | ast.List):
        return all(_are_names(element) for element in target.elts)
    return isinstance(target, ast.Name)


def _unsubscripted(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node
