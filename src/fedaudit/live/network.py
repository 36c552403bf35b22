"""What clients of somebody's federation train, as fedaudit describes networks."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from fedaudit.core import Architecture, Model, PerSampleLoss
from fedaudit.data.audit_set import AuditSet
from fedaudit.errors import BadInput
from fedaudit.live.weights import Shape


class Network(NamedTuple):
    """A network that is trained elsewhere.

    Attributes:
        architecture: Makes untrained ones.
        shape: What its parameters are like.
        classes: Number of outputs, or of classes among the samples if these are more.
    """

    architecture: Architecture
    shape: Shape
    classes: int


def network_of(
    model: nn.Module | Callable[[], nn.Module], samples: AuditSet, loss: PerSampleLoss
) -> Network:
    """Describes a network; a module that is given is left as it is.

    Args:
        model: A module, or what makes one.
        samples: That it is to be run on.
        loss: Per-sample loss of (outputs, labels).

    Raises:
        BadInput: It is no network, or gives no logits of the samples.
    """
    module = _made(model)
    architecture = Architecture(type(module).__name__, _fresh(model), loss=loss)
    shape = Shape(Model.of(architecture, module), module)
    return Network(architecture, shape, _classes(module, samples))


def _made(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    made: object = model()
    if not isinstance(made, nn.Module):
        raise BadInput(f"model makes a {type(made).__name__}; give a torch.nn.Module, or its class")
    return made


def _fresh(model: nn.Module | Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Makes untrained modules: of one that is there a copy whose layers are drawn anew."""
    if not isinstance(model, nn.Module):
        return model
    like = copy.deepcopy(model).cpu()

    def drawn_anew() -> nn.Module:
        module = copy.deepcopy(like)
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
        return module

    return drawn_anew


def _classes(module: nn.Module, samples: AuditSet) -> int:
    """Outputs that the model has for one sample."""
    training = module.training
    first = next(module.parameters(), torch.zeros(()))
    try:
        with torch.no_grad():
            outputs = module.eval()(samples.samples.features[:1].to(first.device, first.dtype))
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadInput(
            f"the model cannot be run on an audited sample of shape "
            f"{tuple(samples.samples.features.shape[1:])} ({error}); give samples as the model "
            "takes them"
        ) from error
    finally:
        module.train(training)
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        raise BadInput("the model is to give one row of logits a sample")
    return max(2, int(outputs.shape[1]), int(samples.samples.labels.max()) + 1)
