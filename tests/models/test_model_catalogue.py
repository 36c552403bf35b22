import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedaudit.core.errors import BadInput
from fedaudit.models import architecture, architecture_from_path


class CustomLinear(nn.Linear):
    def __init__(self, classes: int, *, inputs: int = 3) -> None:
        super().__init__(inputs, classes)


def taking_anything(**settings: object) -> nn.Module:
    assert settings == {"shape": (4,), "classes": 2, "depth": 3}
    return nn.Linear(4, 2)


def not_a_module(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


@pytest.fixture
def this_module(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the import path of this file, which the test runner does not put on ``sys.path``."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return Path(__file__).stem


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("alexnt", {}, "no model named 'alexnt'; did you mean 'alexnet'"),
        ("mlp", {"hiden": "20"}, "did you mean 'hidden'\\? known: dropout, hidden"),
        ("alexnet", {"norm": "group"}, "model 'alexnet' has no settings, got 'norm'"),
        ("mlp", {"classes": 1}, "got classes=1"),
        ("cnn", {"padding": "two"}, "padding of CNN takes a whole number .*got 'two'"),
        ("cnn", {"padding": 2.0}, "a whole number"),
        ("cnn", {"padding": True}, "a whole number"),
        ("cnn", {"hidden": 1.5}, "a text"),
        ("cnn", {"dropout": "half"}, "a number"),
    ],
)
def test_unknown_names_and_settings_are_refused_with_the_existing_ones(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        architecture(name, **{"shape": (3, 32, 32), "classes": 2, **settings})


def test_equivalent_settings_give_the_same_architecture() -> None:
    plain = architecture("mlp", shape=(3,), classes=2)
    assert plain == architecture("mlp", shape=(3,), classes=2, hidden=200, dropout=0)
    assert plain != architecture("mlp", shape=(3,), classes=2, hidden="100")
    assert plain != architecture("mlp", shape=(4,), classes=2)


def test_all_settings_are_recorded_in_order_with_the_shape_as_text() -> None:
    recorded = architecture("mlp", shape=(1, 28, 28), classes=10, hidden="20,5").settings
    assert recorded == (
        ("classes", 10),
        ("dropout", 0.0),
        ("hidden", "20,5"),
        ("shape", "1x28x28"),
    )


def test_an_architecture_gives_the_same_model_in_another_process() -> None:
    created = architecture("cnn", shape=(1, 8, 8), classes=3, padding=2)
    unpickled = pickle.loads(pickle.dumps(created))
    assert unpickled == created
    mine, theirs = created.initial(5).params, unpickled.initial(5).params
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_architectures_keep_the_global_random_state(this_module: str) -> None:
    before = torch.random.get_rng_state()
    architecture("mlp", shape=(3,), classes=2)
    architecture_from_path(f"{this_module}:CustomLinear", shape=(3,), classes=2)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_custom_model_gets_the_arguments_of_its_signature(this_module: str) -> None:
    created = architecture_from_path(f"{this_module}:CustomLinear", shape=(5,), classes=4, inputs=5)
    assert created.build()(torch.zeros(2, 5)).shape == (2, 4)
    assert created.settings == (("classes", 4), ("inputs", 5), ("shape", "5"))
    assert pickle.loads(pickle.dumps(created)) == created


def test_a_callable_with_open_keywords_gets_all_arguments(this_module: str) -> None:
    created = architecture_from_path(
        f"{this_module}:taking_anything", shape=(4,), classes=2, depth=3
    )
    assert isinstance(created.build(), nn.Linear)


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        ("mlp", {}, "form 'package.module:callable', got 'mlp'; .*architecture\\(\\)"),
        ("no_such_package:Net", {}, "cannot import .*PYTHONPATH"),
        ("torch.nn:Linnear", {}, "cannot import 'torch.nn:Linnear'"),
        ("math:pi", {}, "is a float, not a class or function"),
        ("torch.nn:Linear", {}, "could not be called: .*missing"),
        ("here:CustomLinear", {"input": 3}, "did you mean 'inputs'"),
        ("here:not_a_module", {}, "returned a str, not a torch"),
    ],
)
def test_a_path_that_leads_to_no_model_is_refused(
    path: str, settings: dict[str, Any], message: str, this_module: str
) -> None:
    with pytest.raises(BadInput, match=message):
        architecture_from_path(path.replace("here", this_module), shape=(3,), classes=2, **settings)


class _Operations(TorchFunctionMode):
    """Record the names of torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("transformer", (8,)), ("mlp", (4,)), ("resnet18", (3, 8, 8)), ("alexnet", (3, 32, 32))],
)
def test_counting_parameters_draws_no_normal_values(name: str, shape: tuple[int, ...]) -> None:
    # torch would import its compiler to draw them, which takes seconds.
    with _Operations() as operations:
        architecture(name, shape=shape, classes=64)
    assert operations.names
    assert not [each for each in operations.names if "normal" in each]
