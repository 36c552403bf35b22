"""The digest of an object's source covers what the object uses, and nothing else."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
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
        ('"""Docstring."""', '"""Another\n\n    docstring."""'),
        ("return halved(helper(x)) *", "return halved(\n            helper(x)\n        ) *"),
        ("import torch", "import json\nimport torch"),
        ("halved, unused", "halved"),
        ("rule = Rule()", 'rule = Rule()\n\nif __name__ == "__main__":\n    print(rule)'),
        ('"""A module of a user."""', ""),
    ],
)
def test_what_an_object_does_not_use_leaves_its_digest_as_it_is(
    folder: Path, old: str, new: str
) -> None:
    assert old in MODULE
    assert digest(folder, MODULE) == digest(folder, MODULE.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y + 1", "y + 2"),  # a nested function of a helper
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
def test_what_an_object_uses_changes_its_digest(folder: Path, old: str, new: str) -> None:
    assert old in MODULE
    assert digest(folder, MODULE) != digest(folder, MODULE.replace(old, new, 1))


def test_a_decorator_of_the_module_is_part_of_what_it_decorates(folder: Path) -> None:
    decorated = MODULE.replace("@dataclass", "@logged\n@dataclass", 1)
    changed = decorated.replace("    return function", "    return lambda *x: function()")
    assert digest(folder, decorated) != digest(folder, changed)


def test_an_imported_module_of_the_user_is_followed_by_name(folder: Path) -> None:
    first = digest(folder, MODULE)
    assert digest(folder, MODULE, HELPERS.replace("return 0", "return 1")) == first
    assert digest(folder, MODULE, HELPERS.replace("SHARE = 2", "SHARE = 3")) != first
    whole = MODULE.replace("from own_helpers import halved, unused", "import own_helpers")
    whole = whole.replace("halved(", "own_helpers.halved(")
    assert digest(folder, whole) != digest(
        folder, whole, HELPERS.replace("return 0", "return 1")
    ), "all of a module that is imported whole"


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
        ("import torch", "import torch\n\n\ndef __getattr__(name):\n    raise AttributeError"),
    ],
)
def test_the_whole_file_counts_where_names_cannot_be_followed(
    folder: Path, old: str, new: str
) -> None:
    assert old in MODULE
    source = MODULE.replace(old, new, 1)
    extended = source + "\n\ndef more():\n    return 3\n"
    assert digest(folder, source) != digest(folder, extended)


def test_an_object_that_no_statement_names_has_the_digest_of_the_whole_file(folder: Path) -> None:
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
