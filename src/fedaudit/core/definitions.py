"""Digests of the source that defines one object of a module, and of nothing else in that module.

A module's source is read, not run. The definition of an object is the top-level statement that
binds its name, with all that this statement names in turn: helpers, constants, bases, decorators
and imports, also those of other modules of the user. Statements that act when the module is
imported (registrations, changed attributes) belong to every definition. Where names cannot be
followed, the whole file stands for the definition.
"""

import ast
import hashlib
import io
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

KNOWN = {*sys.stdlib_module_names, "fedaudit", "torch", "numpy", "scipy", "sklearn"} - {"__main__"}
"""Packages whose version an environment states; the source of others is digested."""

_UNFOLLOWED_NAMES = {"globals", "locals", "vars", "eval", "exec", "compile", "__import__"}
_UNFOLLOWED_ATTRIBUTES = {
    "__globals__",
    "__init_subclass__",
    "__subclasses__",
    "_getframe",
    "currentframe",
    "import_module",
    "modules",
}
"""What reaches objects by other ways than their names."""

_INERT_DECORATORS = {
    "abstractmethod",
    "cache",
    "cached_property",
    "classmethod",
    "contextmanager",
    "dataclass",
    "final",
    "lru_cache",
    "no_grad",
    "override",
    "property",
    "runtime_checkable",
    "staticmethod",
    "total_ordering",
    "wraps",
}
"""Decorators that change what they decorate and nothing else."""


@dataclass(frozen=True)
class _Import:
    """One name that a statement imports.

    Attributes:
        module: The full name of the module.
        name: Of its object; empty for the module itself.
    """

    module: str
    name: str


@dataclass(frozen=True)
class _Statement:
    """A top-level statement, or one name of a top-level import.

    Attributes:
        text: Its tokens without comments, docstrings and layout.
        binds: Names that it gives a value to.
        uses: Names that it mentions anywhere within.
        imports: Its imports, wherever within.
        acts: Whether importing the module makes it change something other than its names.
        called_with: Names in what it calls while the module is imported.
        passes: Names whose values it may change or pass on, and not only read.
        is_state: Whether it binds values that functions may change.
        is_unfollowed: Whether it reaches objects by other ways than names.
    """

    text: str
    binds: frozenset[str]
    uses: frozenset[str]
    imports: tuple[_Import, ...]
    acts: bool = False
    called_with: frozenset[str] = frozenset()
    passes: frozenset[str] = frozenset()
    is_state: bool = False
    is_unfollowed: bool = False


@dataclass(frozen=True)
class _Source:
    """The statements of a module; ``is_whole`` if they cannot be told from each other."""

    statements: tuple[_Statement, ...] = ()
    is_whole: bool = False


def definition_digest(module: str, attribute: str) -> str:
    """Return the SHA-256 of the source that defines an object of an imported module.

    Args:
        module: Its full name.
        attribute: Dotted name of the object in the module.

    Returns:
        The same for every definition with the same tokens: comments, docstrings and layout do not
        count, nor do other objects of the module. The digest of the whole file where names cannot
        be followed, and of nothing where a module has no file of Python source.
    """
    parts: dict[str, list[str]] = {}
    waiting = [_Import(module, attribute.partition(".")[0])]
    package = module.partition(".")[0]
    asked: dict[str, set[str]] = {}
    while waiting:
        one = waiting.pop()
        names = asked.setdefault(one.module, set())
        if one.name in names or "" in names:
            continue
        names.add(one.name)
        data = _bytes_of(one.module)
        source = _read(data, one.module, _is_package(one.module))
        found = None if not one.name else _reachable(source, names)
        if found is None:
            names.add("")
            parts[one.module] = [hashlib.sha256(data).hexdigest()]
            found = list(source.statements)
        else:
            parts[one.module] = [statement.text for statement in found]
        for imported in (entry for statement in found for entry in statement.imports):
            waiting += _followed(imported, package)
    listed = [f"{name}\n" + "\n".join(texts) for name, texts in sorted(parts.items())]
    return hashlib.sha256("\n\n".join(listed).encode()).hexdigest()


def _reachable(source: _Source, names: set[str]) -> list[_Statement] | None:
    """Return the statements behind some names, in their order; None if names do not tell."""
    if source.is_whole:
        return None
    bound = {name for statement in source.statements for name in statement.binds}
    if not names <= bound:
        return None
    chosen = _closure(source, names, {s for s in source.statements if s.acts})
    while more := [s for s in source.statements if s not in chosen and _changes(source, s, chosen)]:
        chosen = _closure(source, set(), chosen | set(more))
    if any(statement.is_unfollowed for statement in chosen):
        return None
    return [statement for statement in source.statements if statement in chosen]


def _closure(source: _Source, names: set[str], chosen: set[_Statement]) -> set[_Statement]:
    """Return the chosen statements and those that bind the names, with all that they use."""
    chosen, wanted = set(chosen), set(names)
    for statement in chosen:
        wanted |= statement.uses
    while more := {s for s in source.statements if s.binds & wanted} - chosen:
        chosen |= more
        for statement in more:
            wanted |= statement.uses
    return chosen


def _changes(source: _Source, statement: _Statement, chosen: set[_Statement]) -> bool:
    """Return whether a statement calls code of the module that may change what others use."""
    if not statement.called_with:
        return False
    state = {name for s in chosen if s.is_state for name in s.binds}
    behind = _closure(source, set(statement.called_with), set())
    return any(s.passes & state for s in behind if not s.is_state)


def _followed(imported: _Import, package: str) -> list[_Import]:
    """Return what to read for an import: nothing of installed packages other than the object's."""
    if imported.module.partition(".")[0] in KNOWN:
        return []
    inner = f"{imported.module}.{imported.name}"
    if imported.name and inner in sys.modules:
        return _followed(_Import(inner, ""), package)
    file = _file_of(imported.module)
    if file is None:
        return []
    installed = any(file.is_relative_to(folder) for folder in _installed_folders())
    return [imported] if not installed or imported.module.partition(".")[0] == package else []


@lru_cache(maxsize=1)
def _installed_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(Path(paths[name]).resolve() for name in ("purelib", "platlib", "stdlib"))


def _file_of(module: str) -> Path | None:
    """Return the file of Python source of a module; that of one not imported yet is looked for."""
    file = getattr(sys.modules.get(module), "__file__", None)
    parent = module.rpartition(".")[0]
    if module not in sys.modules and (not parent or parent in sys.modules):
        try:
            spec = find_spec(module)
        except (ImportError, ValueError):
            spec = None
        file = spec.origin if spec else None
    path = Path(file).resolve() if file else None
    return path if path and path.suffix == ".py" and path.is_file() else None


def _bytes_of(module: str) -> bytes:
    file = _file_of(module)
    if file is not None:
        return file.read_bytes()
    other = getattr(sys.modules.get(module), "__file__", None)
    return Path(other).read_bytes() if other else b""


def _is_package(module: str) -> bool:
    return hasattr(sys.modules.get(module), "__path__")


@lru_cache(maxsize=64)
def _read(data: bytes, module: str, is_package: bool) -> _Source:
    """Return the statements of a module's source."""
    try:
        tree = ast.parse(data)
        tokens = _tokens(data)
    except (SyntaxError, ValueError, tokenize.TokenError):
        return _Source(is_whole=True)
    package = module if is_package else module.rpartition(".")[0]
    has_globals = any(isinstance(node, ast.Global) for node in ast.walk(tree))
    has_hook = any(isinstance(s, ast.FunctionDef) and s.name == "__getattr__" for s in tree.body)
    statements: list[_Statement] = []
    for node in tree.body:
        if _is_main_block(node):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            statements += _import_statements(node, package)
            continue
        statements.append(_statement(node, tokens, package))
    is_whole = has_globals or has_hook or any("*" in s.binds for s in statements)
    return _Source(tuple(statements), is_whole=is_whole)


def _is_main_block(node: ast.stmt) -> bool:
    test = node.test if isinstance(node, ast.If) and not node.orelse else None
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and [ast.unparse(one) for one in test.comparators] == ["'__main__'"]
    )


def _import_statements(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[_Statement]:
    for alias, one in zip(node.names, _imports(node, package), strict=True):
        bound = alias.asname or alias.name.partition(".")[0]
        if isinstance(node, ast.ImportFrom):
            bound = alias.asname or alias.name
        yield _Statement(
            text=f"import {one.module} {one.name} as {bound}",
            binds=frozenset({bound}),
            uses=frozenset(),
            imports=(one,),
            acts=one.module == "__future__",
        )


def _imports(node: ast.AST, package: str) -> list[_Import]:
    if isinstance(node, ast.Import):
        return [_Import(alias.name, "") for alias in node.names]
    assert isinstance(node, ast.ImportFrom)
    module = node.module or ""
    if node.level:
        try:
            module = resolve_name("." * node.level + module, package)
        except ImportError:
            module = ""
    return [_Import(module, alias.name) for alias in node.names]


def _statement(node: ast.stmt, tokens: Sequence["_Token"], package: str) -> _Statement:
    within = list(ast.walk(node))
    names = {one.id for one in within if isinstance(one, ast.Name)}
    attributes = {one.attr for one in within if isinstance(one, ast.Attribute)}
    attributes |= {one.name for one in within if isinstance(one, ast.FunctionDef)}
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    keeps_docstrings = "__doc__" in names | attributes
    listed = [
        token.text
        for token in tokens
        if first <= token.line <= (node.end_lineno or first)
        and (keeps_docstrings or not token.is_docstring)
    ]
    # The end of an indented block is told at the line of the statement after it.
    while listed and listed[0] == "DEDENT":
        listed = listed[1:]
    return _Statement(
        text="\n".join(listed),
        binds=frozenset(_bound_by(node)),
        uses=frozenset(names),
        imports=tuple(
            entry
            for one in within
            if isinstance(one, ast.Import | ast.ImportFrom)
            for entry in _imports(one, package)
        ),
        acts=_acts(node),
        called_with=frozenset(_called_with(node)),
        passes=frozenset(_passed_on(node)),
        is_state=not isinstance(node, _DEFINITIONS) and not _is_constant_assignment(node),
        is_unfollowed=bool(names & _UNFOLLOWED_NAMES or attributes & _UNFOLLOWED_ATTRIBUTES),
    )


def _passed_on(node: ast.stmt) -> Iterator[str]:
    """Yield names other than those that are only compared, calculated with or read an entry of."""
    above = {child: one for one in ast.walk(node) for child in ast.iter_child_nodes(one)}
    for one in above:
        if not isinstance(one, ast.Name):
            continue
        around = above[one]
        reads = isinstance(around, ast.Compare | ast.BinOp)
        if isinstance(around, ast.Subscript) and isinstance(around.ctx, ast.Load):
            # What stands in an entry may be changed through it.
            reads = not isinstance(above.get(around), ast.Attribute | ast.Subscript)
        if not reads:
            yield one.id


_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _bound_by(node: ast.stmt) -> Iterator[str]:
    """Yield names that a statement binds; names within functions too, which does no harm."""
    if isinstance(node, _DEFINITIONS):
        yield node.name
        return
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store | ast.Del):
            yield one.id
        elif isinstance(one, _DEFINITIONS):
            yield one.name
        elif isinstance(one, ast.Import | ast.ImportFrom):
            for alias in one.names:
                yield alias.asname or alias.name.partition(".")[0]


def _acts(node: ast.stmt) -> bool:
    """Return whether a statement changes something other than the names it binds."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return not all(_is_inert(one) for one in node.decorator_list)
        case ast.ClassDef():
            return bool(node.keywords) or not all(_is_inert(one) for one in node.decorator_list)
        case ast.Assign():
            return not all(_are_names(target) for target in node.targets)
        case ast.AnnAssign() | ast.AugAssign():
            return not _are_names(node.target)
        case ast.Expr():
            return not isinstance(node.value, ast.Constant)
        case ast.If():
            return any(_acts(one) for one in (*node.body, *node.orelse))
        case ast.Try():
            handled = [one for handler in node.handlers for one in handler.body]
            parts = (*node.body, *handled, *node.orelse, *node.finalbody)
            return any(_acts(one) for one in parts)
        case ast.Import() | ast.ImportFrom() | ast.Pass():
            return False
    return True


def _is_inert(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    return ast.unparse(decorator).rpartition(".")[2] in _INERT_DECORATORS


def _are_names(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(_are_names(one) for one in target.elts)
    return isinstance(target, ast.Name)


def _is_constant_assignment(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    kinds = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.Load)
    return node.value is None or all(isinstance(one, kinds) for one in ast.walk(node.value))


def _called_with(node: ast.stmt) -> Iterator[str]:
    """Yield names in the calls that importing the module makes, not in those of functions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if isinstance(node, ast.ClassDef):
        for one in node.body:
            yield from _called_with(one)
        return
    within = list(ast.walk(node))
    if any(isinstance(one, ast.Call) for one in within):
        yield from (one.id for one in within if isinstance(one, ast.Name))


@dataclass(frozen=True)
class _Token:
    text: str
    line: int
    is_docstring: bool = False


def _tokens(data: bytes) -> list[_Token]:
    """Return the tokens of a source; an f-string is one token under every version of Python."""
    text = io.TextIOWrapper(
        io.BytesIO(data), tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    )
    lines = text.readlines()
    opening = {getattr(tokenize, f"{kind}STRING_START", -1) for kind in "FT"}
    closing = {getattr(tokenize, f"{kind}STRING_END", -1) for kind in "FT"}
    skipped = {tokenize.ENCODING, tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER}
    found: list[tuple[int, str, int]] = []
    begun: list[tuple[int, int]] = []
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        if token.type in opening:
            begun.append(token.start)
        elif token.type in closing:
            start = begun.pop()
            if not begun:
                found.append((tokenize.OP, _between(lines, start, token.end), start[0]))
        elif not begun and token.type not in skipped:
            layout = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            name = tokenize.tok_name[token.type] if layout else token.string
            found.append((token.type, name, token.start[0]))
    ends = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    kinds = [tokenize.NEWLINE, *(kind for kind, _, _ in found), tokenize.NEWLINE]
    # A text that is a whole statement, with the end of its line.
    alone = [
        before in ends and kind == tokenize.STRING and after == tokenize.NEWLINE
        for before, kind, after in zip(kinds, kinds[1:], kinds[2:], strict=False)
    ]
    is_docstring = [one or before for one, before in zip(alone, [False, *alone], strict=False)]
    return [
        _Token(name, line, is_docstring=docstring)
        for (_, name, line), docstring in zip(found, is_docstring, strict=True)
    ]


def _between(lines: Sequence[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the source from one place to another, each a line and a column."""
    whole = "".join(lines[start[0] - 1 : end[0]])
    return whole[start[1] : len(whole) - (len(lines[end[0] - 1]) - end[1])]
