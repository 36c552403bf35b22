import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaudit.attacks import RMIA
from fedaudit.benchmark.child import describe_failure, load_attack
from fedaudit.benchmark.suite import checked_scores
from fedaudit.core.errors import BadInput
from fedaudit.metrics import auc
from tests.benchmark.suites import SAMPLES, TARGET, signals


def file(tmp_path: Path, text: str, name: str = "mine") -> str:
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return str(path)


FUNCTION = "def attack(signals, target):\n    return signals['loss'].of(target).mean(0)\n"


def test_a_function_receives_signals_and_target(tmp_path: Path) -> None:
    seen, _ = signals(1)
    scores = load_attack(file(tmp_path, FUNCTION), tmp_path)(seen)
    assert isinstance(scores, torch.Tensor)
    assert torch.equal(scores, seen.measured["loss"].of(TARGET).mean(0))


def test_an_object_is_named_after_a_colon(tmp_path: Path) -> None:
    text = f"{FUNCTION}\ndef other(signals, target):\n    return [target] * 200\n"
    seen, _ = signals(1)
    assert load_attack(f"{file(tmp_path, text)}:other", tmp_path)(seen) == [TARGET] * SAMPLES


def test_the_only_function_of_a_file_needs_no_name(tmp_path: Path) -> None:
    text = (
        "from statistics import mean\n"
        "def _helper(x):\n    return x\n"
        "def lowest(signals, target):\n    return _helper(signals['loss'].of(target)[0])\n"
    )
    seen, _ = signals(1)
    scores = load_attack(file(tmp_path, text), tmp_path)(seen)
    assert isinstance(scores, torch.Tensor)
    assert torch.equal(scores, seen.measured["loss"].of(TARGET)[0])


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    file(tmp_path, "FACTOR = 3\n", "neighbour_of_mine")
    text = "import neighbour_of_mine\ndef attack(signals, target):\n"
    reference = file(tmp_path, f"{text}    return [neighbour_of_mine.FACTOR]\n")
    assert load_attack(reference, tmp_path)(signals(1)[0]) == [3]


def test_attacks_of_the_catalogue_and_of_modules_are_loaded(tmp_path: Path) -> None:
    seen, _ = signals(1)
    expected = seen.measured["loss"].of(TARGET).double().mean(0)
    assert torch.equal(torch.as_tensor(load_attack("loss-series", tmp_path)(seen)), expected)
    in_module = load_attack("tests.benchmark.suites:signals", tmp_path)
    assert callable(in_module)


def test_references_are_passed_to_a_function_that_takes_them(tmp_path: Path) -> None:
    text = "def attack(signals, target, references):\n    return [len(references)]\n"
    seen, _ = signals(1, references=3)
    assert load_attack(file(tmp_path, text), tmp_path)(seen) == [3]
    text = "def attack(signals, target, references=()):\n    return [len(references)]\n"
    assert load_attack(file(tmp_path, text, "optional"), tmp_path)(seen) == [3]


def test_attacks_with_reference_models_are_given_them(tmp_path: Path) -> None:
    seen, is_member = signals(1, references=2)
    scores = load_attack("rmia", tmp_path)(seen)
    never = torch.zeros(2, SAMPLES, dtype=torch.bool)
    expected = RMIA().with_references(seen.references, TARGET, never)
    assert isinstance(scores, torch.Tensor)
    assert torch.equal(scores, expected.scores(seen.measured, TARGET))
    assert scores[torch.from_numpy(is_member)].mean() > scores.mean()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "no function"),
        ("def a(): ...\ndef b(): ...\n", "a, b"),
        ("attack = 3\n", "is an int"),
    ],
)
def test_a_file_without_an_attack_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_attack(file(tmp_path, text), tmp_path)


def test_a_misspelt_object_is_suggested(tmp_path: Path) -> None:
    text = "def lowest(signals, target):\n    return 1\n"
    with pytest.raises(BadInput, match="did you mean 'lowest'"):
        load_attack(f"{file(tmp_path, text)}:lowst", tmp_path)


@pytest.mark.parametrize("name", ["sia", "seqmia", "loss-series-aware"])
def test_attacks_that_need_more_than_signals_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="recordings contain only"):
        load_attack(name, tmp_path)


@pytest.mark.parametrize(
    "scores", [[1, 2, 3], np.array([1.0, 2, 3], np.float32), torch.tensor([1, 2, 3])]
)
def test_scores_may_be_any_array(scores: object) -> None:
    checked = checked_scores(scores, 3)
    assert checked.dtype == np.float64
    assert checked.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1, 2], r"shape \(2,\), but there are 3"),
        ([[1], [2], [3]], r"shape \(3, 1\)"),
        ([1, np.nan, 3], "1 of 3 scores are NaN"),
        (["a", "b", "c"], "not a list of numbers"),
        (None, "None"),
        ([1, [2], 3], "not a list of numbers"),
    ],
)
def test_other_values_are_refused(scores: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        checked_scores(scores, 3)


def test_the_attack_of_the_documentation_is_scored(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")
    block = re.search(r"```python\n(# my_attack.py\n.*?)```", page, re.DOTALL)
    assert block is not None
    seen, is_member = signals(1)
    scores = checked_scores(load_attack(file(tmp_path, block[1]), tmp_path)(seen), SAMPLES)
    assert auc(scores, is_member) > 0.6


def test_a_failure_states_the_line_of_the_attack(tmp_path: Path) -> None:
    text = "import torch\ndef attack(signals, target):\n    return torch.zeros(2) + torch.ones(3)\n"
    attack = load_attack(file(tmp_path, text), tmp_path)
    with pytest.raises(RuntimeError) as caught:
        attack(signals(1)[0])
    described = describe_failure(caught.value, "mine")
    assert described.startswith("the attack raised RuntimeError: The size of tensor")
    assert "(mine.py, line 3)" in described
    assert "\n" not in described
