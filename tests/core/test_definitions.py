"""Digests of custom objects cover the source that they use, and nothing else."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedaudit.core.definitions import definition_digest

MODULE = '''\
"""A module of a user."""

from dataclasses import dataclass

import torch

from own_helpers import halved, unused

SCALE = 2.0
TABLE = {"a": 1}


class Base:
    def factor(self) -> float:
        return SCALE


def helper(x):
    """Docstring."""
    def inner(y):
        return y + 1
    return inner(x)  # a comment


def logged(function):
    return function


@dataclass(frozen=True)
class Rule(Base):
    depth: int = 1

    def __call__(self, x):
        return halved(helper(x)) * self.factor() * TABLE["a"]


rule = Rule()
'''
HELPERS = "def halved(x):\n    return x / SHARE\n\n\nSHARE = 2\n\n\ndef unused():\n    return 0\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    torch.set_printoptions(profile="default")  # type: ignore[no-untyped-call]
    for name in [name for name in sys.modules if name.startswith(("own_", "this"))]:
        del sys.modules[name]


def digest(folder: Path, source: str, helpers: str = HELPERS, attribute: str = "rule") -> str:
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    (folder / "own_module.py").write_text(source)
    (folder / "own_helpers.py").write_text(helpers)
    importlib.invalidate_caches()
    importlib.import_module("own_module")
    return definition_digest("own_module", attribute)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rule = Rule()", "rule = Rule()\n\n\nother = Rule(depth=2)"),
        ("rule = Rule()", "class Other(Base):\n    depth = 3\n\n\nrule = Rule()"),
        ("# a comment", "# another comment"),
        ("return halved(helper(x)) *", "return halved(\n            helper(x)\n        ) *"),
        ("import torch", "import json\nimport torch"),
        ("halved, unused", "halved"),
        ("rule = Rule()", 'rule = Rule()\n\nif __name__ == "__main__":\n    print(rule)'),
        ('"""A module of a user."""', ""),
        ("rule = Rule()", "rule = Rule()\n\n\ndef scored(model):\n    model.eval()"),
        (
            "rule = Rule()",
            "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        object.__setattr__(self, 'x', 1)\n\n    @property\n    def y(self):\n"
            "        return getattr(self, 'x')\n\nrule = Rule()",
        ),
        (
            "import torch",
            "import torch\nfrom enum import Enum\nfrom functools import partial\n"
            "from typing import TYPE_CHECKING, Generic, TypeVar\n\nif TYPE_CHECKING:\n"
            "    from own_typed import Shape\n\nT = TypeVar('T')\n\n\nclass Kind(Enum):\n"
            "    A = -1\n\n\nclass Box(Generic[T]):\n    sizes: dict[str, int] = {}\n\n\n"
            "made = partial(Box, depth=lambda x, y=2: x)",
        ),
    ],
)
def test_unused_definitions_do_not_change_a_digest(folder: Path, old: str, new: str) -> None:
    assert old in MODULE
    assert digest(folder, MODULE) == digest(folder, MODULE.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y + 1", "y + 2"),  # a nested function of a helper
        ('"""Docstring."""', '"""Another\n\n    docstring."""'),
        ("SCALE = 2.0", "SCALE = 3.0"),  # a constant that a base class uses
        ("return SCALE", "return SCALE + 1"),  # a method of a base class
        ('{"a": 1}', '{"a": 2}'),
        ("@dataclass(frozen=True)", "@dataclass(frozen=True, eq=False)"),
        ("@dataclass", "@logged\n@dataclass"),
        ("depth: int = 1", "depth: int = 2"),
        ("from own_helpers import halved, unused", "from own_helpers import unused as halved"),
        ("rule = Rule()", 'TABLE["a"] = 5\nrule = Rule()'),
        ("rule = Rule()", "Rule.depth = 5\nrule = Rule()"),
        ("rule = Rule()", "rule = Rule()\nrule = logged(rule)"),
        ('"""A module of a user."""\n', "from __future__ import annotations\n"),
        ("rule = Rule()", "torch.set_printoptions(precision=4)\nrule = Rule()"),
        (
            "rule = Rule()",
            'def enter(x):\n    TABLE["a"] = x\n\n\nlast = enter(3)\n\nrule = Rule()',
        ),
    ],
)
def test_used_definitions_change_a_digest(folder: Path, old: str, new: str) -> None:
    assert old in MODULE
    assert digest(folder, MODULE) != digest(folder, MODULE.replace(old, new, 1))


def test_the_digest_covers_decorators_of_the_module(folder: Path) -> None:
    decorated = MODULE.replace("@dataclass", "@logged\n@dataclass", 1)
    changed = decorated.replace("    return function", "    return lambda *x: function()")
    assert digest(folder, decorated) != digest(folder, changed)


def test_an_imported_module_of_the_user_is_followed_by_name(folder: Path) -> None:
    first = digest(folder, MODULE)
    assert digest(folder, MODULE, HELPERS.replace("return 0", "return 1")) == first
    assert digest(folder, MODULE, HELPERS.replace("SHARE = 2", "SHARE = 3")) != first
    imports_module = MODULE.replace("from own_helpers import halved, unused", "import own_helpers")
    imports_module = imports_module.replace("halved(", "own_helpers.halved(")
    assert digest(folder, imports_module) != digest(
        folder, imports_module, HELPERS.replace("return 0", "return 1")
    ), "the digest covers all of an imported module"


@pytest.mark.parametrize("name", ["site-packages", "dist-packages", "projects"])
def test_packages_of_the_system_or_user_are_installed(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = folder / name
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    source = MODULE.replace("SCALE = 2.0", "from own_package import SCALE")
    digests = set()
    for scale in (2.0, 3.0):
        (packages / "own_package.py").write_text(f"SCALE = {scale}\n")
        digests.add(digest(folder, source))
    assert len(digests) == (2 if name == "projects" else 1)


def test_an_import_within_a_function_is_followed(folder: Path) -> None:
    lazy = MODULE.replace("from own_helpers import halved, unused", "").replace(
        "    def inner", "    from own_helpers import halved\n    def inner"
    )
    lazy = lazy.replace("halved(helper(x))", "helper(x)").replace("inner(x)", "halved(inner(x))")
    assert digest(folder, lazy) != digest(folder, lazy, HELPERS.replace("SHARE = 2", "SHARE = 3"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from own_helpers import halved, unused", "from own_helpers import *"),
        ("return inner(x)", 'return globals()["halved"](inner(x))'),
        ("return inner(x)", 'return eval("halved")(inner(x))'),
        ("return inner(x)", "global SCALE\n    return inner(x)"),
        ("import torch", "import sys\nimport torch\nME = sys.modules[__name__]\nME.more = 1"),
        ("import torch", "import inspect\nimport torch"),
        ("import torch", "import torch\nfrom builtins import dict as table"),
        ("import torch", "import torch\nlook = getattr"),
        ("rule = Rule()", "from torch import nn\n\nnet = nn.Linear(2, 2)\nrule = Rule()"),
        ("rule = Rule()", 'COPY = TABLE["a"]\nrule = Rule()'),
        ("import torch", "import torch\n\n\ndef __getattr__(name):\n    raise AttributeError"),
    ],
)
def test_the_digest_covers_the_whole_file_if_names_are_dynamic(
    folder: Path, old: str, new: str
) -> None:
    assert old in MODULE
    source = MODULE.replace(old, new, 1)
    extended = source + "\n\ndef more():\n    return 3\n"
    assert digest(folder, source) != digest(folder, extended)


BYPASSES: dict[str, tuple[str, dict[str, str]]] = {
    "state that a call sets": (
        "m",
        {"m": "class C:\n    s = 1\ndef act():\n    C.s = 5\n_x = act()\ndef part(): return C.s"},
    ),
    "append": ("m", {"m": "A = [1]\n_ = A.append(5)\ndef part(): return A[-1]"}),
    "call in a list": (
        "m",
        {"m": "A = {}\nx = [A.__setitem__('a', 5)]\ndef part(): return A['a']"},
    ),
    "alias": ("m", {"m": "A = [1]\nB = A\nB += [5]\ndef part(): return A[-1]"}),
    "default argument": (
        "m",
        {
            "m": "A = {}\ndef put(k, v): A[k] = v\n"
            "def other(x=put('a', 5)): pass\ndef part(): return A['a']"
        },
    ),
    "default of a lambda": (
        "m",
        {"m": "A = []\ndef put(v): A.append(v)\nf = lambda x=put(5): x\ndef part(): return A[0]"},
    ),
    "annotation": ("m", {"m": "A = []\ndef f(x: A.append(5)): pass\ndef part(): return A[0]"}),
    "function of the library": (
        "m",
        {"m": "import operator\nA = [1]\n_ = operator.iadd(A, [5])\ndef part(): return A[-1]"},
    ),
    "decorator of the library": (
        "m",
        {
            "m": "import operator\nA = []\n@operator.itemgetter(0)\n"
            "class K(list):\n    def __class_getitem__(cls, n): A.append(5)\n"
            "def part(): return A[0]"
        },
    ),
    "state of a library": (
        "m",
        {
            "m": "import torch\n_ = torch.set_printoptions(precision=5)\n"
            "def part(): return str(torch.tensor(1 / 3))"
        },
    ),
    "class body": (
        "m",
        {"m": "S = {'a': 1}\nclass K:\n    S['a'] = 5\ndef part(): return S['a']"},
    ),
    "call in a class body": (
        "m",
        {"m": "S = {'a': 1}\nclass K:\n    S.update(a=5)\ndef part(): return S['a']"},
    ),
    "metaclass": (
        "m",
        {
            "m": "class Meta(type):\n    known = {}\n    def __init__(cls, n, b, d):\n"
            "        Meta.known[n] = cls\nclass Base(metaclass=Meta): pass\n"
            "class Strong(Base):\n    amount = 5\n"
            "def part(): return Meta.known['Strong'].amount"
        },
    ),
    "subclass hook of another file": (
        "m",
        {
            "b": "class Base:\n    known = {}\n    def __init_subclass__(cls):\n"
            "        Base.known[cls.__name__] = cls",
            "m": "from own_b import Base\nclass Strong(Base):\n    amount = 5\n"
            "def part(): return Base.known['Strong'].amount",
        },
    ),
    "name hook": (
        "m",
        {
            "m": "A = {}\nclass D:\n    def __init__(s, v): s.v = v\n"
            "    def __set_name__(s, o, n): A[n] = s.v\n"
            "class K:\n    y = D(5)\ndef part(): return A['y']"
        },
    ),
    "method of an enumeration": (
        "m",
        {
            "m": "from enum import Enum\nA = []\nclass E(Enum): pass\n"
            "class F(E):\n    X = 5\n    def __init__(self, v): A.append(v)\n"
            "def part(): return A[0]"
        },
    ),
    "factory of a field": (
        "m",
        {
            "m": "from dataclasses import dataclass, field\nA = []\n"
            "def put(): A.append(5)\n@dataclass\nclass K:\n"
            "    x: object = field(default_factory=put)\nk = K()\ndef part(): return A[0]"
        },
    ),
    "import that acts": (
        "m",
        {
            "reg": "R = {}",
            "plug": "import own_reg\nown_reg.R['a'] = 5",
            "m": "import own_plug\nfrom own_reg import R\ndef part(): return R['a']",
        },
    ),
    "package that changes its module": (
        "p.m",
        {
            "p/__init__": "from . import c\nc.X = 5",
            "p/c": "X = 1",
            "p/m": "from .c import X\ndef part(): return X",
        },
    ),
    "lazy import of a neighbour": (
        "p.m",
        {
            "p/__init__": "",
            "p/h": "X = 5",
            "p/m": "def part():\n    from . import h\n    return h.X",
        },
    ),
    "lazy import from another package": (
        "m",
        {
            "q/__init__": "",
            "q/h": "X = 5",
            "m": "def part():\n    from own_q.h import X\n    return X",
        },
    ),
    "module that another one imported": (
        "m",
        {
            "q/__init__": "",
            "q/h": "X = 5",
            "n": "import own_q.h",
            "m": "import own_q\nimport own_n\ndef part(): return own_q.h.X",
        },
    ),
    "block of no main program": (
        "m",
        {"m": "A = 1\nif __name__ != '__main__':\n    A = 5\ndef part(): return A"},
    ),
    "import_module": (
        "m",
        {
            "h": "X = 5",
            "m": "from importlib import import_module\ndef part(): return import_module('own_h').X",
        },
    ),
    "modules of sys": (
        "m",
        {
            "m": "from sys import modules\nX_A = 5\n"
            "def part(): return getattr(modules[__name__], 'X_A')"
        },
    ),
    "globals of a function": (
        "m",
        {"m": "X_A = 5\ndef part(): return getattr(part, '__globals__')['X_A']"},
    ),
    "computed attribute": (
        "m",
        {"m": "X_A = 5\ndef part(): return getattr(part, '__glob' + 'als__')['X_A']"},
    ),
    "reflection in another file": (
        "m",
        {
            "h": "def look(f): return f.__globals__['X_' + 'A']",
            "m": "from own_h import look\nX_A = 5\ndef part(): return look(part)",
        },
    ),
    "builtins": (
        "m",
        {
            "m": "import builtins\nX_A = 5\n"
            "def part(): return builtins.eval('X_' + 'A', vars(part)['f'])\npart.f = {'X_A': X_A}"
        },
    ),
    "docstring": (
        "m",
        {"m": "def helper():\n    '5'\ndef part(): return float(helper.__doc__)"},
    ),
    "own decorator": (
        "m",
        {
            "m": "R = []\ndef cache(f):\n    R.append(f)\n    return f\n"
            "@cache\ndef helper(): return 5\ndef part(): return R[0]()"
        },
    ),
    "annotation as text": (
        "m",
        {
            "m": "import typing\nclass T:\n    v = 5\ndef f(x: 'T'): pass\n"
            "def part(): return typing.get_type_hints(f)['x'].v"
        },
    ),
    "name of a known package": (
        "m",
        {"m": "from this import X\ndef part(): return X", "../this": "X = 5"},
    ),
    "import that may fail": (
        "m",
        {
            "h": "X = 5",
            "m": "try:\n    import own_h\nexcept ImportError:\n    own_h = None\n"
            "def part(): return own_h.X",
        },
    ),
}
"""A module and its files, by test case; replacing 5 changes the value of the part."""


def value_and_digests(folder: Path, module: str, files: dict[str, str]) -> tuple[object, str]:
    for name in [name for name in sys.modules if name.startswith(("own_", "this"))]:
        del sys.modules[name]
    for name, text in files.items():
        file = folder / (name.removeprefix("../") if "../" in name else f"own_{name}")
        file.parent.mkdir(exist_ok=True)
        file.with_name(f"{file.name}.py").write_text(f"{text}\n")
    importlib.invalidate_caches()
    part = importlib.import_module(f"own_{module}").part
    before = definition_digest(f"own_{module}", "part")
    value = part()
    assert definition_digest(f"own_{module}", "part") == before, "it depends on what is imported"
    return value, before


@pytest.mark.parametrize("what", BYPASSES)
def test_changed_behaviour_changes_the_digest(folder: Path, what: str) -> None:
    module, files = BYPASSES[what]
    changed = {name: text.replace("5", "7") for name, text in files.items()}
    assert files != changed
    (first, digest), (second, other) = (
        value_and_digests(folder, module, contents) for contents in (files, changed)
    )
    assert first != second
    assert digest != other


def test_an_object_that_no_statement_binds_has_the_digest_of_the_file(folder: Path) -> None:
    source = MODULE + "\nvars()['made'] = rule\n"
    first = digest(folder, source, attribute="made")
    assert first != digest(folder, source + "# more\n", attribute="made")


def test_an_f_string_is_compared_by_its_text(folder: Path) -> None:
    source = MODULE.replace("return inner(x)", 'return f"{inner(x)!r:>{3}} and {{x}}"')
    assert digest(folder, source) == digest(folder, source.replace("return f", "return  f"))
    assert digest(folder, source) != digest(folder, source.replace("and {{x}}", "or {{x}}"))


def test_a_nested_class_has_the_digest_of_the_class_around_it(folder: Path) -> None:
    nested = MODULE + "\nclass Outer:\n    class Inner:\n        value = 1\n"
    first = digest(folder, nested, attribute="Outer.Inner")
    assert digest(folder, nested.replace("y + 1", "y + 2"), attribute="Outer.Inner") == first
    assert (
        digest(folder, nested.replace("value = 1", "value = 2"), attribute="Outer.Inner") != first
    )


def test_a_function_of_a_known_package_is_digested_by_its_name() -> None:
    digests = {
        definition_digest("torch.nn.functional", name) for name in ("mse_loss", "cross_entropy")
    }
    assert len(digests) == 2


def test_a_module_that_shadows_a_known_package_is_digested_by_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    digests = []
    for value in (1, 2):
        sys.modules.pop("this", None)
        (folder / "this.py").write_text(f"def part():\n    return {value}\n")
        importlib.invalidate_caches()
        assert importlib.import_module("this").part() == value
        digests.append(definition_digest("this", "part"))
    assert digests[0] != digests[1]
