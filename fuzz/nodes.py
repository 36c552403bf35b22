"""Arrays and states that clients send to a recorder."""

from functools import cache
from io import BytesIO
from typing import get_args

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.values import Architecture, Model
from fedaudit.live.recording import round_entry
from fedaudit.live.rounds import RoundData, UploadKind, round_of_uploads
from fedaudit.live.weights import ModelLayout, Weights, read_array
from fedaudit.observe.tensors import read_tensors
from fuzz.target import file


@cache
def _shape() -> ModelLayout:
    made = module()
    return ModelLayout(Model.of(Architecture("net", module), made), made)


def module() -> nn.Module:
    """A network with parameters, and buffers that are whole numbers or not."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def recorded(came: Weights) -> None:
    """What a recorder makes of arrays that came of a client."""
    sent = _shape().model
    told = round_entry(1, (0,), (0,), 0)
    refusals = list[FedauditError]()
    for kind in get_args(UploadKind):
        try:
            given = RoundData(sent, {0: came}, {0: 1.0}, None)
            heard = round_of_uploads(told, given, _shape(), kind, {})
            if heard.round is None:
                refusals.append(BadInput(heard.excluded[0]))
        except FedauditError as error:
            refusals.append(error)
    if len(refusals) == len(get_args(UploadKind)):
        raise refusals[0]


def listed(content: bytes) -> None:
    """Arrays in NumPy's format one after another, as Flower's messages hold them."""
    stream, arrays = BytesIO(content), list[np.ndarray]()
    while stream.tell() < len(content):
        arrays.append(read_array(lambda: np.load(stream, allow_pickle=False)))
    recorded(arrays)


def listed_seeds() -> list[bytes]:
    """One with numbers as they are in the module, others with such as are elsewhere."""
    found = []
    for kind in (None, ">f4", "<f8", "<f2", "<i8", "|b1", "<c8", "<U3"):
        stream = BytesIO()
        for value in module().state_dict().values():
            np.save(stream, value.numpy() if kind is None else value.numpy().astype(kind))
        found.append(stream.getvalue())
    return found


def named(content: bytes) -> None:
    """Tensors by name, as safetensors."""
    tensors, _ = read_tensors(file("state.safetensors", content))
    recorded(tensors)


def named_seeds() -> list[bytes]:
    state = {name: value.clone() for name, value in module().state_dict().items()}
    some = ("0.weight", "0.bias", "1.weight", "1.bias")
    kinds = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.int64)
    return [
        save(state),
        save({name: state[name] for name in some}),
        save({f"module.{name}": value for name, value in state.items()}),
        *(save({name: value.to(kind) for name, value in state.items()}) for kind in kinds),
    ]
