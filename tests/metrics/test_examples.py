import doctest
import inspect
import sys

import pytest

from fedaudit import metrics

PUBLIC = {name: getattr(metrics, name) for name in dir(metrics)}
DOCUMENTED = {
    name: value
    for name, value in PUBLIC.items()
    if inspect.isclass(value) or inspect.isfunction(value)
}
MODULES = sorted({value.__module__ for value in DOCUMENTED.values()})


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_class_and_function_has_an_example(name: str) -> None:
    assert ">>> " in (DOCUMENTED[name].__doc__ or "")


@pytest.mark.parametrize("module", MODULES)
def test_every_example_gives_the_output_that_it_shows(module: str) -> None:
    results = doctest.testmod(sys.modules[module])
    assert results.attempted > 0
    assert results.failed == 0
