import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Setting
from fedaudit.models import architecture, architecture_from_path


class Own(nn.Linear):
    def __init__(self, classes: int, *, inputs: int = 3) -> None:
        super().__init__(inputs, classes)


def taking_anything(**settings: object) -> nn.Module:
    assert settings == {"shape": (4,), "classes": 2, "depth": 3}
    return nn.Linear(4, 2)


def not_a_module(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """The import path of this file, which the test runner does not put on ``sys.path``."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return Path(__file__).stem


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(BadInput, match="no model named 'alexnt'; did you mean 'alexnet'"):
        architecture("alexnt", shape=(3, 32, 32), classes=10)


def test_a_misspelt_setting_gets_the_nearest_one_and_all_allowed() -> None:
    with pytest.raises(BadInput, match="did you mean 'hidden'\\? known: dropout, hidden"):
        architecture("mlp", shape=(3,), classes=2, hiden="20")
    with pytest.raises(BadInput, match="model 'alexnet' has no settings, got 'norm'"):
        architecture("alexnet", shape=(3, 32, 32), classes=2, norm="group")


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("padding", "two", "padding of model 'cnn' is a whole number .*got 'two'"),
        ("padding", 2.0, "a whole number"),
        ("padding", True, "a whole number"),
        ("hidden", 1.5, "a text"),
        ("dropout", "half", "a number"),
    ],
)
def test_a_setting_of_another_type_is_refused(setting: str, value: Setting, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        architecture("cnn", shape=(1, 28, 28), classes=2, **{setting: value})


def test_fewer_than_two_classes_are_refused() -> None:
    with pytest.raises(BadInput, match="got classes=1"):
        architecture("mlp", shape=(3,), classes=1)


def test_two_spellings_of_one_network_are_the_same_architecture() -> None:
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


def test_an_architecture_travels_to_another_process_and_gives_the_same_model() -> None:
    made = architecture("cnn", shape=(1, 8, 8), classes=3, padding=2)
    there = pickle.loads(pickle.dumps(made))
    assert there == made
    mine, theirs = made.initial(5).params, there.initial(5).params
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_making_an_architecture_leaves_the_global_random_state_alone(here: str) -> None:
    before = torch.random.get_rng_state()
    architecture("mlp", shape=(3,), classes=2)
    architecture_from_path(f"{here}:Own", shape=(3,), classes=2)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_of_the_users_own_is_given_what_its_signature_takes(here: str) -> None:
    made = architecture_from_path(f"{here}:Own", shape=(5,), classes=4, inputs=5)
    assert made.build()(torch.zeros(2, 5)).shape == (2, 4)
    assert made.settings == (("classes", 4), ("inputs", 5), ("shape", "5"))
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_callable_with_open_keywords_is_given_everything(here: str) -> None:
    made = architecture_from_path(f"{here}:taking_anything", shape=(4,), classes=2, depth=3)
    assert isinstance(made.build(), nn.Linear)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mlp", "named 'package.module:callable', got 'mlp'; .*architecture\\(\\)"),
        ("no_such_package:Net", "cannot import .*PYTHONPATH"),
        ("torch.nn:Linnear", "cannot import 'torch.nn:Linnear'"),
        ("math:pi", "is a float, not a class or function"),
        ("torch.nn:Linear", "could not be called: .*missing"),
    ],
)
def test_a_path_that_leads_to_no_model_is_refused(path: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        architecture_from_path(path, shape=(3,), classes=2)


def test_a_setting_that_the_users_own_model_does_not_take_is_refused(here: str) -> None:
    with pytest.raises(BadInput, match="did you mean 'inputs'"):
        architecture_from_path(f"{here}:Own", shape=(3,), classes=2, input=3)


def test_a_callable_that_makes_something_else_is_refused(here: str) -> None:
    with pytest.raises(BadInput, match="made a str, not a torch"):
        architecture_from_path(f"{here}:not_a_module", shape=(3,), classes=2)
