"""The linear layer that computes a model's logits, and what its update reveals about classes."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedaudit.core.devices import CPU
from fedaudit.core.errors import NotVisible, Unsupported
from fedaudit.core.modules import in_model_dtype, load_module
from fedaudit.core.values import Model
from fedaudit.observe.round import ObservedModels
from fedaudit.signals.linear_layers import LinearLayer, linear_layers


def output_layer(model: Model, features: Shaped[Tensor, "samples ..."]) -> LinearLayer:
    """Return the trained linear layer with a bias whose outputs are the model's logits.

    Args:
        model: Model of a classification task.
        features: Some samples, on which outputs of layers are compared with the model's outputs.

    Raises:
        Unsupported: The model does not end with such a layer.
    """
    layers = {layer.path: layer for layer in linear_layers(model, CPU)}
    outputs_of = dict[str, Tensor]()
    module = load_module(model, "evaluation").eval()
    handles = [
        module.get_submodule(path).register_forward_hook(_recorder(outputs_of, path))
        for path in layers
    ]
    try:
        with torch.no_grad():
            logits = model.architecture.task.outputs(module, in_model_dtype(features, model))
    finally:
        for handle in handles:
            handle.remove()
    for path, layer in layers.items():
        outputs = outputs_of.get(path)
        if layer.bias in model.params and outputs is not None and torch.equal(outputs, logits):
            return layer
    raise Unsupported(
        f"model {model.architecture.name!r} does not end with a trained linear layer with a bias, "
        "from whose update label inference computes the classes of a client; use another model, "
        "such as mlp or cnn"
    )


def _recorder(
    outputs_of: dict[str, Tensor], path: str
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def record(module: nn.Module, args: tuple[Tensor, ...], outputs: Tensor) -> None:
        outputs_of[path] = outputs.clone()

    return record


def class_scores(observed: ObservedModels, layer: LinearLayer) -> Float[Tensor, " classes"]:
    """Return the relative change of each logit's bias, which is larger for classes of the client.

    For one step on one batch, the gradient of the cross-entropy with respect to the bias of a class
    is the mean probability of the class minus its fraction of the batch. It is negative, and the
    bias grows, only if the class occurs in the batch. Each change is divided by the norm of all
    changes, so that clients with different step sizes are comparable. Without any change, all
    scores are 0.

    Raises:
        NotVisible: The view hides the client's update.

    Source: Zhao, Mopuri and Bilen 2020, iDLG: Improved Deep Leakage from Gradients (the sign for
        one sample); Wainakh et al. 2022, User-Level Label Leakage from Gradients in Federated
        Learning (batches and local training).
    Differs: The papers use rows of the weights and determine labels of single samples, or how often
        each label occurs. Here, the update of all local steps scores which classes occur at all.
    """
    if observed.update is None:
        raise NotVisible("this view hides the clients' updates, from which labels are inferred")
    change = observed.update[layer.bias].detach().double().cpu()
    scores: Tensor = change / change.norm().clamp_min(torch.finfo(torch.float64).tiny)
    return scores
