"""Conversion of third-party arrays to tensors."""

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.live.weights import ModelLayout, as_cpu_tensor, read_array
from tests.live.federation import NET, network

HERE = np.arange(6.0, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "array",
    [
        HERE,
        HERE.astype(">f4"),
        HERE.astype(">f8"),
        np.asfortranarray(HERE),
        HERE[::-1][::-1],
        HERE.astype(np.float16),
        HERE.astype(np.uint16),
        HERE.astype(np.int64),
        torch.from_numpy(HERE),
        torch.from_numpy(HERE).bfloat16().requires_grad_(),
        torch.from_numpy(HERE.T.copy()).t(),
    ],
)
def test_arrays_are_read_in_any_memory_layout(array: np.ndarray | Tensor) -> None:
    tensor = as_cpu_tensor(array, "it")
    assert tensor.double().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not tensor.requires_grad


def test_read_only_arrays_and_scalars_are_read() -> None:
    still = np.broadcast_to(np.float32(2), (2, 2))
    assert as_cpu_tensor(still, "it").tolist() == [[2, 2], [2, 2]]
    backwards = np.arange(3)[::-1]
    assert as_cpu_tensor(backwards, "it").tolist() == [2, 1, 0]
    assert as_cpu_tensor(np.array(7), "it").shape == ()


ODD: dict[str, Callable[[], object]] = {
    "an int": lambda: 3,
    "a list": lambda: [1.0],
    "text": lambda: np.array(["a"]),
    "objects": lambda: np.array([None]),
    "dates": lambda: np.zeros(2, "M8[s]"),
    "records": lambda: np.zeros(2, [("a", "f4")]),
    "records of many": lambda: np.zeros(2, [(f"column {n}", "f4") for n in range(500)]),
    "wide": lambda: np.zeros(2, np.longdouble),
    "complex": lambda: np.zeros(2, ">c8"),
    "complex tensor": lambda: torch.zeros(2, dtype=torch.complex64),
    "sparse": lambda: torch.zeros(2).to_sparse(),
    "without memory": lambda: torch.zeros(2, device="meta"),
}


@pytest.mark.parametrize("kind", ODD)
def test_arrays_without_plain_numbers_raise(kind: str) -> None:
    with pytest.raises(BadInput, match=r"^the upload's 'w' ") as refused:
        as_cpu_tensor(ODD[kind](), "the upload's 'w'")
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


KINDS = [kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)]


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_models_of_every_torch_dtype_are_read_or_refused(kind: torch.dtype) -> None:
    shape = ModelLayout(NET.initial(1), network())
    state = dict(network().state_dict())
    try:
        state["1.weight"] = torch.empty(state["1.weight"].shape, dtype=kind)
    except (RuntimeError, TypeError):
        pytest.skip("torch itself makes none")
    try:
        model = shape.model_of(state, subject="it")
    except BadInput:
        return
    assert model.params["1.weight"].dtype == torch.float32


@settings(deadline=None, max_examples=200)
@given(st.data())
@pytest.mark.slow
def test_arrays_of_every_dtype_and_shape_are_read_or_refused(data: st.DataObject) -> None:
    kinds = npst.array_dtypes(max_size=3) | npst.scalar_dtypes() | npst.complex_number_dtypes()
    kind, axes = data.draw(kinds), data.draw(npst.array_shapes(min_dims=0, min_side=0))
    array = np.zeros(axes, kind)
    try:
        tensor = as_cpu_tensor(array, "it")
    except BadInput:
        return
    assert tuple(tensor.shape) == axes


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00(((("])
def test_bytes_that_encode_no_array_are_refused(content: bytes) -> None:
    with pytest.raises(BadInput, match=r"an array (is|cannot be read)"):
        read_array(lambda: np.load(io.BytesIO(content), allow_pickle=False))
