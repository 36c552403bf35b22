from collections.abc import Callable

import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Params, scaled
from fedaudit.defenses.custom import CustomUploadDefense, imported_filter
from fedaudit.observe.round import Update
from tests.defenses.turns import context

RAW = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}


def swapped(update: Params) -> dict[str, torch.Tensor]:
    return {"b": update["b"] * 2, "w": torch.zeros(2, dtype=torch.float64)}


def noisy(update: Params) -> Params:
    return {name: value + torch.randn(value.shape) for name, value in update.items()}


def spoilt(update: Params) -> Params:
    for value in update.values():
        value.zero_()
    update.pop("b")
    return {**update, "b": torch.ones(1)}


def sent(function: Callable[[Params], object], round: int = 1) -> Params:
    return CustomUploadDefense(function).upload(Update(dict(RAW)), context(round)).values


def test_filtered_uploads_keep_order_and_dtype() -> None:
    filtered = sent(swapped)
    assert list(filtered) == ["w", "b"]
    assert filtered["w"].dtype == torch.float32
    assert filtered["w"].tolist() == [0.0, 0.0]
    assert filtered["b"].tolist() == [8.0]


def test_in_place_filters_change_a_copy() -> None:
    settings = {name: value.clone() for name, value in RAW.items()}
    CustomUploadDefense(spoilt).upload(Update(settings), context())
    assert all(torch.equal(settings[name], RAW[name]) for name in RAW)


def test_filters_draw_from_the_run_generator() -> None:
    before = torch.get_rng_state()
    first, second, later = sent(noisy), sent(noisy), sent(noisy, round=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first["w"], second["w"])
    assert not torch.equal(first["w"], later["w"])


def test_the_cosine_of_raw_and_filtered_update_is_recorded() -> None:
    training_context = context()
    CustomUploadDefense(swapped).upload(Update(dict(RAW)), training_context)
    # The cosine of (3, 0, 4) and (0, 0, 8) is 32 / (5 * 8).
    assert training_context.facts["filter_cosine"].tolist() == pytest.approx([0.8])
    CustomUploadDefense(lambda update: scaled(update, -2.0)).upload(
        Update(dict(RAW)), training_context
    )
    assert training_context.facts["filter_cosine"].tolist() == pytest.approx([0.8, -1.0])


def test_a_zero_update_records_no_cosine() -> None:
    training_context = context()
    CustomUploadDefense(lambda update: scaled(update, 0.0)).upload(
        Update(dict(RAW)), training_context
    )
    assert "filter_cosine" not in training_context.facts


def failing(update: Params) -> Params:
    raise ZeroDivisionError("by the norm")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (failing, "'failing' failed on client 0's upload of round 1: ZeroDivisionError: by the"),
        (lambda update: None, "returned None; a filter receives tensors by name"),
        (lambda update: {"w": update["w"]}, "missing or added: b$"),
        (lambda update: {**update, "c": update["b"]}, "missing or added: c$"),
        (lambda update: {**update, "b": torch.ones(2)}, r"of shape \(2,\) as 'b'.*of shape \(1,\)"),
        (lambda update: {**update, "b": 4.0}, "returned a float as 'b'"),
        (lambda update: {**update, "b": torch.ones(1) * 1j}, "complex64 tensor .* a real tensor"),
        (lambda update: scaled(update, float("nan")), "'w' that are not finite"),
    ],
)
def test_invalid_filter_outputs_raise(function: Callable[[Params], object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        sent(function)


def test_a_filter_is_imported_by_path() -> None:
    filter = imported_filter(path=f"{__name__}:swapped")
    assert filter.upload(Update(dict(RAW)), context()).values["b"].tolist() == [8.0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("swapped", "a custom filter is named 'package.module:callable', got 'swapped'"),
        ("no_such_package:f", "cannot import 'no_such_package:f'.*PYTHONPATH"),
        ("math:nothing", "cannot import 'math:nothing'"),
        ("math:pi", "is a float"),
    ],
)
def test_a_path_without_callable_raises(path: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        imported_filter(path=path)
