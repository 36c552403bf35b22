"""Digests of the source that defines one object of a module, and of nothing else in that module.

A module's source is read, not run. The definition of an object is the top-level statement that
binds its name, with all that this statement names in turn: helpers, constants, bases, decorators
and imports, also those of other modules of the user. This holds only if all these modules are
plain: what they do when they are imported is on a list of what changes nothing but the names it
binds, and they reach objects by names alone. Otherwise all their files stand for the definition.
"""

import ast
import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path

from fedaudit.core.importing import KNOWN_PACKAGES

_REFLECTION = re.compile(
    "FunctionType|attrgetter|builtins|cloudpickle|ctypes|currentframe|dill|dir|eval|exec|f_back|"
    "f_builtins|f_globals|f_locals|gc|get_annotations|get_type_hints|gi_frame|globals|import_module|"
    "importlib|inspect|locals|marshal|methodcaller|pickle|pkgutil|pydoc|runpy|sys|tb_frame|vars|"
    "_getframe|zipimport"
)
"""Names that reach objects by other ways than their names, wherever they are written."""

_SPECIAL_NAMES = re.compile(
    "__(abs|add|aenter|aexit|aiter|all|and|anext|author|bool|call|class|complex|contains|copy|"
    "deepcopy|delitem|enter|eq|exit|file|float|floordiv|format|future|ge|getitem|gt|hash|iadd|imul|"
    "index|init|int|invert|isub|iter|itruediv|le|len|lt|main|match_args|matmul|mod|mul|name|ne|neg|new|"
    "next|or|pos|post_init|pow|qualname|radd|repr|reversed|rmatmul|rmul|round|rsub|rtruediv|"
    "setattr|setitem|slots|str|sub|truediv|version|xor)__"
)
"""Special names that neither reach other objects nor are called while a class is made."""

_SPECIAL_CONSTANTS = {"__all__", "__author__", "__match_args__", "__slots__", "__version__"}

_DECORATORS = {
    *("abc.abstractmethod", "builtins.classmethod", "builtins.property", "builtins.staticmethod"),
    *("contextlib.contextmanager", "dataclasses.dataclass", "functools.cache"),
    *("functools.cached_property", "functools.lru_cache", "functools.total_ordering"),
    *("functools.wraps", "torch.inference_mode", "torch.no_grad", "typing.final"),
    *("typing.override", "typing.runtime_checkable"),
}
_CALLS = {
    *(f"builtins.{name}" for name in ("dict", "float", "frozenset", "int", "list", "range")),
    *(f"builtins.{name}" for name in ("set", "slice", "str", "tuple")),
    *("collections.namedtuple", "dataclasses.field", "enum.auto", "functools.partial"),
    *("logging.getLogger", "math.exp", "math.log", "math.sqrt", "numpy.array", "pathlib.Path"),
    *("re.compile", "torch.device", "torch.tensor", "types.MappingProxyType", "typing.NewType"),
    *("typing.ParamSpec", "typing.TypeVar"),
}
"""What changes nothing else and calls none of its arguments; classes of fedaudit are like it."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Name:
    """A name of a module; empty for the module as a whole."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class _Statement:
    """A top-level statement, or one name of a top-level import.

    Attributes:
        text: Its content without comments and layout.
        binds: Names that it gives a value to.
        uses: Names that it mentions anywhere within, and what it imports.
    """

    text: str
    binds: frozenset[str]
    uses: frozenset[_Name]


@dataclass(frozen=True, eq=False)
class _Source:
    """The source of a module.

    Attributes:
        data: The content of its file.
        body: Its statements except for the block of a main program; None if they cannot be read.
        package: The package that its relative imports start from.
    """

    name: str
    data: bytes
    body: Sequence[ast.stmt] | None
    package: str

    @cached_property
    def imports(self) -> frozenset[_Name]:
        return frozenset(one for node in self.body or () for one in _imports(node, self.package))

    @cached_property
    def mentions(self) -> frozenset[str]:
        """Texts that may be names of modules, if it imports them by other than statements."""
        if not _is_reflective(self.body or ()):
            return frozenset()
        within = [one for node in self.body or () for one in ast.walk(node)]
        texts = [one.value for one in within if isinstance(one, ast.Constant)]
        named = [one for one in texts if isinstance(one, str)]
        return frozenset(one for one in named if all(n.isidentifier() for n in one.split(".")))

    @cached_property
    def statements(self) -> list[_Statement]:
        return [one for node in self.body or () for one in _split(node, self)]

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.body or () if isinstance(node, ast.ClassDef)}

    @cached_property
    def origins(self) -> dict[str, str]:
        """By name, the module and object that it stands for; empty if that is not certain."""
        found: dict[str, str] = {}
        for node in self.body or ():
            if isinstance(node, ast.Import):
                pairs = [
                    (a.asname or _top(a.name), a.name if a.asname else _top(a.name))
                    for a in node.names
                ]
            elif isinstance(node, ast.ImportFrom):
                module = _absolute(node, self.package)
                pairs = [(a.asname or a.name, f"{module}.{a.name}") for a in node.names]
            else:
                pairs = [
                    (name, "" if name in found else f"{self.name}.{name}")
                    for name in _bound_by(node)
                ]
                pairs += [(name, "") for name in _bound_in_classes(node)]
            for name, origin in pairs:
                found[name] = origin if found.get(name, origin) == origin else ""
        return found

    def origin(self, node: ast.expr) -> str:
        """Return the module and object that an expression stands for; empty if not certain."""
        if isinstance(node, ast.Name):
            return self.origins.get(node.id, f"builtins.{node.id}")
        above = self.origin(node.value) if isinstance(node, ast.Attribute) else ""
        return f"{above}.{node.attr}" if isinstance(node, ast.Attribute) and above else ""


def definition_digest(module: str, attribute: str) -> str:
    """Return the SHA-256 of the source that defines an object of an imported module.

    Args:
        module: Its full name.
        attribute: Dotted name of the object in the module.

    Returns:
        The same for every definition with the same content: comments and layout do not count, nor
        do other objects of the module. The digest of the files of the module and of all modules
        of the user that it imports if one of them is not plain. The digest of the object's name
        for a module of a known package, and of nothing for any other module without a file.
    """
    if _is_of_known_package(module):
        # An environment states the version. Digesting all of torch would take a minute.
        return hashlib.sha256(f"{module}:{attribute}".encode()).hexdigest()
    sources = _reached(module)
    name = attribute.partition(".")[0]
    check = _Plainness(sources)
    is_bound = module in sources and any(name in s.binds for s in sources[module].statements)
    if is_bound and all(check.is_plain(source) for source in sources.values()):
        chosen = _closure(sources, _Name(module, name))
        parts = {
            source.name: "\n".join(s.text for s in source.statements if s in chosen)
            for source in sources.values()
        }
        parts = {name: text for name, text in parts.items() if text}
    else:
        parts = {one.name: hashlib.sha256(one.data).hexdigest() for one in sources.values()}
    listed = [f"{name}\n{text}" for name, text in sorted(parts.items())]
    return hashlib.sha256("\n\n".join(listed).encode()).hexdigest()


def _is_of_known_package(module: str) -> bool:
    """Return whether a module is of a known package, and not of a custom one of the same name."""
    file = _own_file(module)
    if file is None or _top(module) not in KNOWN_PACKAGES:
        return False
    own_package = Path(__file__).resolve().parents[1]
    return any(file.is_relative_to(folder) for folder in (own_package, *_installed_folders()))


def _closure(sources: Mapping[str, _Source], first: _Name) -> set[_Statement]:
    """Return the statements behind a name, with all that they use."""
    chosen: set[_Statement] = set()
    seen: set[_Name] = set()
    waiting = [first]
    while waiting:
        one = waiting.pop()
        if one in seen or one.module not in sources:
            continue
        seen.add(one)
        if not one.name:
            # Whoever has a package reaches all modules in it that anyone has imported.
            inner = [name for name in sources if name.startswith(f"{one.module}.")]
            waiting += [_Name(name, "") for name in inner]
        for statement in sources[one.module].statements:
            # Imports from __future__ change how the whole module is understood.
            is_future = any(used.module == "__future__" for used in statement.uses)
            if is_future or not one.name or one.name in statement.binds:
                chosen.add(statement)
                waiting += statement.uses
    return chosen


def _reached(module: str) -> dict[str, _Source]:
    """Return by name the modules of the user that importing or using a module may run."""
    own = _own_file(module)
    depth = module.count(".") + (own is not None and own.stem == "__init__")
    roots = [str(one) for one in own.parents[depth : depth + 1]] if own else []
    found: dict[str, _Source] = {}
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or not name:
            continue
        seen.add(name)
        waiting.append(name.rpartition(".")[0])
        file = own if name == module else _file_of(name, roots, _top(module))
        if file is not None:
            found[name] = _read(_bytes_of(file), name, file.stem == "__init__")
            for one in found[name].imports:
                waiting += [one.module, f"{one.module}.{one.name}" if one.name else ""]
            waiting += found[name].mentions
    return found


def _own_file(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).resolve() if file and Path(file).is_file() else None


def _file_of(module: str, roots: Sequence[str], package: str) -> Path | None:
    """Return the file of a module of the user: none is installed, except for the package's."""
    # Next to the module may lie one with the name of a known package.
    spec = _spec(module, [*roots, *(() if _top(module) in KNOWN_PACKAGES else sys.path)])
    if spec is None or not spec.has_location or not spec.origin:
        return None
    file = Path(spec.origin).resolve()
    installed = any(file.is_relative_to(folder) for folder in _installed_folders())
    return file if not installed or _top(module) == package else None


def _spec(module: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Look for a module in folders, whatever has been imported by now."""
    parent, _, last = module.rpartition(".")
    if parent:
        above = _spec(parent, folders)
        if above is None or above.submodule_search_locations is None:
            return None
        folders = list(above.submodule_search_locations)
    return PathFinder.find_spec(last, folders)


@lru_cache(maxsize=1)
def _installed_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(Path(paths[name]).resolve() for name in ("purelib", "platlib", "stdlib"))


def _bytes_of(file: Path) -> bytes:
    return file.read_bytes()


@lru_cache(maxsize=64)
def _read(data: bytes, module: str, is_package: bool) -> _Source:
    package = module if is_package else module.rpartition(".")[0]
    try:
        body = [node for node in ast.parse(data).body if not _is_main_block(node)]
        source = _Source(module, data, body, package)
        _ = source.statements  # which may be nested too deeply
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


def _imports(node: ast.AST, package: str) -> Iterator[_Name]:
    """Yield what a node imports, wherever within."""
    for one in ast.walk(node):
        if isinstance(one, ast.Import):
            for alias in one.names:
                above = alias.name.split(".")
                yield from (_Name(".".join(above[: n + 1]), "") for n in range(len(above)))
        elif isinstance(one, ast.ImportFrom):
            yield from (_Name(_absolute(one, package), alias.name) for alias in one.names)


def _split(node: ast.stmt, source: _Source) -> Iterator[_Statement]:
    each: list[tuple[ast.stmt, Iterable[str]]] = [(node, _bound_by(node))]
    if isinstance(node, ast.Import):
        each = [(ast.Import([one]), [one.asname or _top(one.name)]) for one in node.names]
    elif isinstance(node, ast.ImportFrom):
        each = [
            (ast.ImportFrom(node.module, [one], node.level), [one.asname or one.name])
            for one in node.names
        ]
    for part, bound in each:
        names = {one.id for one in ast.walk(part) if isinstance(one, ast.Name)}
        names.update(_in_annotations(part))
        uses = {_Name(source.name, name) for name in names}
        uses.update(_with_submodules(_imports(part, source.package)))
        yield _Statement(_text(part), frozenset(bound), frozenset(uses))


def _with_submodules(imports: Iterator[_Name]) -> Iterator[_Name]:
    """Yield imports, and the modules that those of a name may stand for."""
    for one in imports:
        yield one
        if one.name:
            yield _Name(f"{one.module}.{one.name}", "")


def _text(node: object) -> str:
    """Return a syntax tree as text that is the same under every version of Python."""
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={_text(value)}"
            for name, value in ast.iter_fields(node)
            if value is not None and value != [] and name not in ("ctx", "kind", "type_comment")
        ]
        return f"{type(node).__name__}({','.join(fields)})"
    return f"[{','.join(map(_text, node))}]" if isinstance(node, list) else repr(node)


def _bound_by(node: ast.stmt) -> Iterator[str]:
    """Yield names that a statement binds in its module."""
    if isinstance(node, _Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        within = [one for target in targets for one in ast.walk(target)]
        yield from (one.id for one in within if isinstance(one, ast.Name))


def _bound_in_classes(node: ast.stmt) -> Iterator[str]:
    for one in node.body if isinstance(node, ast.ClassDef) else ():
        yield from _bound_by(one)
        yield from _bound_in_classes(one)


def _in_annotations(node: ast.stmt) -> Iterator[str]:
    """Yield words of annotations that are texts."""
    for one in ast.walk(node):
        for annotation in (getattr(one, "annotation", None), getattr(one, "returns", None)):
            for inner in ast.walk(annotation) if annotation else ():
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield from re.findall(r"\w+", inner.value)


def _is_reflective(body: Sequence[ast.stmt]) -> bool:
    """Return whether a module may reach objects by other ways than their names."""
    within = [one for node in body for one in ast.walk(node)]
    plain_getattr = [
        one.func
        for one in within
        if isinstance(one, ast.Call) and len(one.args) > 1 and isinstance(one.args[1], ast.Constant)
    ]
    for one in within:
        if isinstance(one, ast.Global):
            return True
        words: list[str] = []
        for field in ("id", "attr", "name", "asname", "module", "value"):
            value = getattr(one, field, None)
            words += value.split(".") if isinstance(value, str) else []
        if isinstance(one, ast.Attribute) and one.attr in ("eval", "dir"):
            continue  # methods of models and settings; those of builtins are found by its name
        if "getattr" in words and one not in plain_getattr:
            return True
        special = [word for word in words if re.fullmatch(r"__\w+__", word)]
        if not all(map(_SPECIAL_NAMES.fullmatch, special)) or any(
            map(_REFLECTION.fullmatch, words)
        ):
            return True
    return False


@dataclass(frozen=True)
class _Plainness:
    """Which modules do nothing on import except for binding names.

    Attributes:
        sources: The modules of the user.
    """

    sources: Mapping[str, _Source]

    def is_plain(self, source: _Source) -> bool:
        """Return whether names tell what an object of the module depends on."""
        if source.body is None or _is_reflective(source.body):
            return False
        try:
            return all(self._statement(node, source) for node in source.body)
        except RecursionError:
            return False

    def _statement(self, node: ast.stmt, source: _Source) -> bool:
        match node:
            case ast.Import() | ast.Pass() | ast.Expr(value=ast.Constant()):
                return True
            case ast.ImportFrom():
                return all(alias.name != "*" for alias in node.names)
            case ast.If():
                never_runs = source.origin(node.test) == "typing.TYPE_CHECKING" and not node.orelse
                return never_runs and self._is_known("typing")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._decorators(node, source) and self._signature(node, source)
            case ast.ClassDef():
                return self._class(node, source)
            case ast.Assign() | ast.AnnAssign():
                names = node.targets if isinstance(node, ast.Assign) else [node.target]
                bound = set(_bound_by(node))
                values = [getattr(node, "annotation", None), node.value]
                return (
                    all(_are_names(one) for one in names)
                    and all(n in _SPECIAL_CONSTANTS for n in bound if n.startswith("__"))
                    and all(self._value(one, source) for one in values)
                )
        return False

    def _class(self, node: ast.ClassDef, source: _Source) -> bool:
        bases = [source.origin(_unsubscripted(one)) for one in node.bases]
        functions = any(isinstance(one, _Function) for one in node.body)
        # Enumerations call methods of a class while they make it.
        is_called = functions and any(_top(one) == "enum" for one in self._ancestors(bases))
        return (
            not node.keywords
            and not is_called
            and all(self._is_known(base) or self._class_of(base) for base in bases)
            and all(self._value(base, source) for base in node.bases)
            and self._decorators(node, source)
            and not any(isinstance(one, ast.Import | ast.ImportFrom | ast.If) for one in node.body)
            and all(self._statement(one, source) for one in node.body)
        )

    def _ancestors(self, bases: Sequence[str]) -> Iterator[str]:
        """Yield base classes, and those of the user's classes among them."""
        for base in bases:
            yield base
            node, source = self._class_of(base), self.sources.get(base.rpartition(".")[0])
            if node and source:
                above = [source.origin(_unsubscripted(one)) for one in node.bases]
                yield from self._ancestors(above)

    def _decorators(self, node: _Function | ast.ClassDef, source: _Source) -> bool:
        called = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
        origins = [source.origin(one) for one in called]
        given = [
            value
            for one in node.decorator_list
            if isinstance(one, ast.Call)
            for value in (*one.args, *(keyword.value for keyword in one.keywords))
        ]
        # A property of the class itself would be read wherever the class is named with it.
        chained = "builtins.classmethod" in origins and len(origins) > 1
        return (
            not chained
            and all(one in _DECORATORS and self._is_known(one) for one in origins)
            and all(self._value(one, source) for one in given)
        )

    def _signature(self, node: _Function | ast.Lambda, source: _Source) -> bool:
        within = node.args
        variadic = [one for one in (within.vararg, within.kwarg) if one]
        listed = [*within.posonlyargs, *within.args, *within.kwonlyargs, *variadic]
        values = [*within.defaults, *within.kw_defaults, *(one.annotation for one in listed)]
        return all(self._value(one, source) for one in (*values, getattr(node, "returns", None)))

    def _value(self, node: ast.expr | None, source: _Source) -> bool:
        """Return whether an expression calls no code of the user and changes nothing."""
        match node:
            case None | ast.Constant() | ast.Name():
                return True
            case ast.Lambda():
                return self._signature(node, source)
            case ast.Attribute():
                return self._value(node.value, source)
            case ast.Subscript():
                origin = source.origin(node.value)
                return self._is_foreign(origin) and self._value(node.slice, source)
            case ast.Call():
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                named = all(keyword.arg for keyword in node.keywords)
                may = named and self._may_call(source.origin(node.func))
                return may and all(self._value(one, source) for one in given)
            case (
                ast.Tuple() | ast.List() | ast.Set() | ast.Dict() | ast.Starred() | ast.Slice()
                | ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare() | ast.IfExp()
                | ast.JoinedStr() | ast.FormattedValue()
            ):  # fmt: skip
                inner = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
                return all(self._value(one, source) for one in inner)
        return False

    def _may_call(self, origin: str) -> bool:
        last = origin.rpartition(".")[2]
        if self._is_known(origin):
            is_class = _top(origin) == "fedaudit" and last[0].isupper()
            return origin in _CALLS or is_class
        return self._is_inert(origin)

    def _is_inert(self, origin: str) -> bool:
        """Return whether an object of a user's class is made, and passed on, without its code."""
        node, source = self._class_of(origin), self.sources.get(origin.rpartition(".")[0])
        if node is None or source is None:
            return False
        bases = [source.origin(_unsubscripted(one)) for one in node.bases]
        functions = [one for one in node.body if isinstance(one, _Function)]
        bound = [name for one in node.body for name in _bound_by(one)]
        special = [name for name in bound if name.startswith("__")]
        decorators = {source.origin(d) for one in functions for d in one.decorator_list}
        factories = [
            source.origin(one.value)
            for one in ast.walk(node)
            if isinstance(one, ast.keyword) and one.arg == "default_factory"
        ]
        return (
            all(name == "__call__" or name in _SPECIAL_CONSTANTS for name in special)
            and decorators <= {"builtins.staticmethod", "builtins.classmethod"}
            and all(one in _CALLS and self._is_known(one) for one in factories)
            and all(
                (_top(one) in ("fedaudit", "typing", "abc") and self._is_known(one))
                or self._is_inert(one)
                for one in bases
            )
        )

    def _class_of(self, origin: str) -> ast.ClassDef | None:
        """Return a class of the user, if its name is bound once."""
        module, _, name = origin.rpartition(".")
        source = self.sources.get(module)
        is_certain = source is not None and source.origins.get(name) == origin
        return source.classes.get(name) if source and is_certain else None

    def _is_foreign(self, origin: str) -> bool:
        """Return whether an object is not of the user's own modules."""
        return bool(origin) and _top(origin) not in {_top(name) for name in self.sources}

    def _is_known(self, origin: str) -> bool:
        return self._is_foreign(origin) and _top(origin) in KNOWN_PACKAGES


def _are_names(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(_are_names(one) for one in target.elts)
    return isinstance(target, ast.Name)


def _unsubscripted(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node
