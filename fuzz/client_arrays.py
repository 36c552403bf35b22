"""Readers of arrays and state dicts that clients send to a recorder."""

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
def _layout() -> ModelLayout:
    network = module()
    return ModelLayout(Model.of(Architecture("net", module), network), network)


def module() -> nn.Module:
    """Return a network with parameters, and with buffers of integers and of floats."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def record_upload(upload: Weights) -> None:
    """Convert arrays from a client as a recorder does, for every kind of upload."""
    sent = _layout().model
    entry = round_entry(1, (0,), (0,), 0)
    refusals = list[FedauditError]()
    for kind in get_args(UploadKind):
        try:
            data = RoundData(sent, {0: upload}, {0: 1.0}, None)
            result = round_of_uploads(entry, data, _layout(), kind, {})
            if result.round is None:
                refusals.append(BadInput(result.excluded[0]))
        except FedauditError as error:
            refusals.append(error)
    if len(refusals) == len(get_args(UploadKind)):
        raise refusals[0]


def arrays(content: bytes) -> None:
    """Read consecutive arrays in NumPy's format, as Flower's messages contain them."""
    stream, values = BytesIO(content), list[np.ndarray]()
    while stream.tell() < len(content):
        values.append(read_array(lambda: np.load(stream, allow_pickle=False)))
    record_upload(values)


def arrays_seeds() -> list[bytes]:
    """Return arrays with the module's number types, and with other types."""
    seeds = []
    for kind in (None, ">f4", "<f8", "<f2", "<i8", "|b1", "<c8", "<U3"):
        stream = BytesIO()
        for value in module().state_dict().values():
            np.save(stream, value.numpy() if kind is None else value.numpy().astype(kind))
        seeds.append(stream.getvalue())
    return seeds


def state(content: bytes) -> None:
    """Read tensors by name, in the format of safetensors."""
    tensors, _ = read_tensors(file("state.safetensors", content))
    record_upload(tensors)


def state_seeds() -> list[bytes]:
    tensors = {name: value.clone() for name, value in module().state_dict().items()}
    params = ("0.weight", "0.bias", "1.weight", "1.bias")
    dtypes = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.int64)
    return [
        save(tensors),
        save({name: tensors[name] for name in params}),
        save({f"module.{name}": value for name, value in tensors.items()}),
        *(save({name: value.to(dtype) for name, value in tensors.items()}) for dtype in dtypes),
    ]
