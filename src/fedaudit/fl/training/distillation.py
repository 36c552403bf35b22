"""Students: models that learn to give the outputs that somebody else's model gave."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from fedaudit.core import ClientId, Model, chunks
from fedaudit.devices import CPU
from fedaudit.errors import BadInput, Unsupported
from fedaudit.fl.training.manual_backprop import written_out
from fedaudit.fl.training.optimizers import Adam
from fedaudit.fl.training.parallel import draws_as_it_trains, side_by_side
from fedaudit.modules import loaded


@dataclass(frozen=True)
class Distillation:
    """How a student is trained: Adam on the mean absolute difference of the outputs.

    Attributes:
        epochs: Passes over the public samples, at least 1.
        batch_size: Samples a step, at least 1.
        lr: Learning rate, above 0.

    Source: SIA, Algorithm 3, line 12; settings of its published code.
    """

    epochs: int = 30
    batch_size: int = 64
    lr: float = 1e-3

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.lr > 0:
            raise BadInput(
                "distillation needs epochs >= 1, batch_size >= 1 and lr > 0, got "
                f"{self.epochs}, {self.batch_size} and {self.lr}"
            )


def distilled(
    student: Model,
    features: Shaped[Tensor, "samples ..."],
    outputs: Mapping[ClientId, Float[Tensor, "samples outputs"]],
    how: Distillation,
    *,
    rng: torch.Generator,
    device: torch.device = CPU,
) -> dict[ClientId, Model]:
    """For each client a student of its outputs; all begin alike and see samples in one order.

    Students have nothing to do with each other, and are trained side by side, one a processor
    core; how many there are changes no result.

    Args:
        student: Where all of them begin.
        features: Public samples.
        outputs: What each client's model gave for them.
        how: Epochs, batches and learning rate.
        rng: Decides the order of the samples.
        device: Where to calculate; a GPU trains one student after another.

    Raises:
        Unsupported: The student draws at random as it trains (dropout), which cannot be done
            side by side.
    """
    if draws_as_it_trains(student):
        raise Unsupported("a student with dropout cannot be distilled; set its dropout to 0")
    orders = [torch.randperm(len(features), generator=rng) for _ in range(how.epochs)]
    learn = partial(_student, student, features.to(device), how=how, orders=orders)
    clients = sorted(outputs)
    taught = [outputs[client].to(device) for client in clients]
    models = side_by_side(learn, taught, device=device)
    return dict(zip(clients, models, strict=True))


def _student(
    start: Model,
    features: Tensor,
    targets: Tensor,
    *,
    how: Distillation,
    orders: list[Int[Tensor, " samples"]],
) -> Model:
    module = loaded(start, "student", features.device).train()
    optimizer = Adam(lr=how.lr)
    params = _trained(module)
    for order in orders:
        shuffled, wanted = features[order], targets[order]
        for part in chunks(len(order), how.batch_size):
            slope = partial(_toward, targets=wanted[part])
            optimizer.step(params, _gradients(module, shuffled[part], slope))
    return Model.of(start.architecture, module)


def _gradients(module: nn.Module, x: Tensor, slope: "partial[Tensor]") -> list[Tensor]:
    written = written_out(module)
    if written is not None:
        return written.gradients(x, slope)
    outputs = module(x)
    found = torch.autograd.grad(
        outputs,
        _trained(module),
        slope(outputs) / len(x),
        allow_unused=True,
        materialize_grads=True,
    )
    return list(found)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [value for value in module.parameters() if value.requires_grad]


def _toward(
    outputs: Float[Tensor, "samples outputs"], targets: Float[Tensor, "samples outputs"]
) -> Float[Tensor, "samples outputs"]:
    """The derivative of the sum over samples of the mean absolute difference."""
    return (outputs.detach() - targets).sign() / outputs.shape[1]
