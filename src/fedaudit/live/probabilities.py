"""Detection of networks that return probabilities where their task takes logits."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.core.modules import SUPPORTED, as_taken
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Model, Samples

_OF_LOGITS = ("classification", "binary", "multi-label", "next-token")
_TRIED = 8
_SCALES = (0.1, 1.0, 10.0)
"""Standard deviations of what is added to all parameters, one after the other."""

_SLACK = 1e-4


def refuse_probabilities(model: Model, samples: Samples) -> None:
    """Raise if a network ends in a sigmoid or a softmax, and its task takes logits.

    Logits leave [0, 1] for some parameters, and probabilities for none: the network is tried as it
    is and with other parameters. Outputs that are always the same prove nothing, such as those of
    a network that nothing reaches.

    Args:
        model: As it was given to the recorder.
        samples: Some that it takes.

    Raises:
        BadInput: It returns probabilities.
    """
    task = model.architecture.task
    if task.name not in _OF_LOGITS:
        return
    if task.name == "classification" and model.architecture.loss is not cross_entropy:
        return
    seen = list[Tensor]()
    for outputs in _tried(model, samples):
        finite = outputs[~outputs.isnan()]
        if bool(((finite < -_SLACK) | (finite > 1 + _SLACK)).any()):
            return
        seen.append(outputs)
    # The logits 0 and z of one logit z have a column that never changes.
    columns = torch.cat([one.reshape(-1, one.shape[-1]) for one in seen]).nan_to_num()
    if bool((columns == columns[0]).all()):
        return
    sums = columns.sum(-1)
    last = "softmax" if bool(((sums - 1).abs() < _SLACK).all()) else "sigmoid"
    raise BadInput(
        f"model {model.architecture.name!r} returns probabilities; {SUPPORTED}: give a subclass "
        f"whose forward leaves the {last} out"
    )


def _tried(model: Model, samples: Samples) -> Iterator[Tensor]:
    """Outputs on a few samples, of the network as it is and then with other parameters."""
    task, module = model.architecture.task, model.module()
    rows = as_taken(samples.features[:_TRIED], model)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        yield task.outputs(module, rows.clone())
        for scale in _SCALES:
            for value in _floating(module):
                value.add_(scale * torch.randn(value.shape, generator=rng, dtype=value.dtype))
            yield task.outputs(module, rows.clone())


def _floating(module: nn.Module) -> Iterator[Tensor]:
    return (value for value in module.parameters() if value.is_floating_point())
