"""Trained linear layers of a model, and their inputs for samples."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedaudit.core.devices import CPU, computing_on
from fedaudit.core.errors import Unsupported
from fedaudit.core.modules import CHUNK, in_model_dtype, load_module
from fedaudit.core.values import Model, chunks


class LinearLayer(NamedTuple):
    """Path and weight shape of a trained linear layer."""

    path: str
    outputs: int
    inputs: int

    @property
    def weight(self) -> str:
        """Name of the weight among the model's parameters."""
        return _name_at(self.path, "weight")

    @property
    def bias(self) -> str:
        """Name of the bias among the model's parameters, if the layer has one."""
        return _name_at(self.path, "bias")


def _name_at(path: str, name: str) -> str:
    # If the whole network is a single layer, its path is empty.
    return f"{path}.{name}" if path else name


def linear_layers(model: Model, device: torch.device) -> Iterator[LinearLayer]:
    """Yield the trained linear layers of a model, in the order of its modules."""
    for path, module in load_module(model, "evaluation", device).named_modules():
        weight = model.params.get(_name_at(path, "weight"))
        if isinstance(module, nn.Linear) and weight is not None:
            yield LinearLayer(path, *weight.shape)


def layer_inputs(
    model: Model, layer: LinearLayer, features: Tensor, device: torch.device
) -> list[Tensor]:
    """Return a layer's inputs in batches of samples.

    If the network calls the layer several times, the inputs of all calls are positions of a sample.
    """
    batches, call_inputs = list[Tensor](), list[Tensor]()

    def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        call_inputs.append(args[0].detach().clone())

    with computing_on(device), torch.no_grad():
        module = load_module(model, "evaluation", device).eval()
        handle = module.get_submodule(layer.path).register_forward_pre_hook(record)
        try:
            for rows in chunks(len(features), CHUNK):
                x = in_model_dtype(features[rows].detach(), model).to(device, copy=True)
                model.architecture.task.outputs(module, x)
                if not call_inputs or any(inputs.shape[0] != len(x) for inputs in call_inputs):
                    raise Unsupported(
                        f"the layer {layer.path!r} of model {model.architecture.name!r} is not "
                        "called with one row for each sample; set 'layer' to another layer"
                    )
                positions = [
                    inputs.reshape(len(x), -1, layer.inputs).to(CPU) for inputs in call_inputs
                ]
                batches.append(torch.cat(positions, dim=1))
                call_inputs.clear()
        finally:
            handle.remove()
    return batches
