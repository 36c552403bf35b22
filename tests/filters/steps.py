"""Correct and faulty steps of DP-SGD: fedaudit's, Opacus's and others."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Batch, Params, Samples
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.fl.hooks import Objective
from fedaudit.models import architecture
from tests.defenses.turns import context

CLIP, SIGMA, EXPECTED_BATCH_SIZE = 1.0, 0.8, 8
Step = Callable[[Tensor, Tensor], Params]


def batch() -> tuple[Tensor, Tensor]:
    rng = seeded(0, "batch")
    return torch.randn(EXPECTED_BATCH_SIZE, 6, generator=rng), torch.randint(
        3, (EXPECTED_BATCH_SIZE,), generator=rng
    )


class FedauditStep:
    """Steps of fedaudit's DP-SGD, all at one model."""

    def __init__(self) -> None:
        self.net = architecture("mlp", shape=(6,), classes=3, hidden="16")
        self.defense = DPSGD(clip=CLIP, noise_multiplier=SIGMA)
        self.round = 0

    def __call__(self, x: Tensor, y: Tensor) -> Params:
        self.round += 1
        training_context = context(self.round, seed=int(torch.randint(2**62, ())), net=self.net)
        everything = Samples(*batch(), ids=torch.arange(EXPECTED_BATCH_SIZE))
        # The defense stores the expected number of samples.
        next(iter(self.defense.batches(everything, EXPECTED_BATCH_SIZE, training_context)))
        goal = Objective(
            training_context.received.module().train(),
            lambda outputs, b: cross_entropy(outputs, b.y).mean(),
            cross_entropy,
        )
        return self.defense.gradient(goal, Batch(x, y, torch.arange(len(x))), training_context)


def opacus() -> Step:
    """Return a step with the gradient that Opacus's optimizer computes at one model."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GradSampleModule(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        expected_batch_size=EXPECTED_BATCH_SIZE,
    )

    def step(x: Tensor, y: Tensor) -> Params:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.pre_step()
        return {
            name: value.grad.clone()
            for name, value in model.named_parameters()
            if value.grad is not None
        }

    return step


def _net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def _clipped_sum(x: Tensor, y: Tensor) -> tuple[list[str], list[Tensor]]:
    model = _net()
    names, params = zip(*model.named_parameters(), strict=True)
    total = [torch.zeros_like(param) for param in params]
    for sample, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(sample[None]), label[None])
        grads = torch.autograd.grad(loss, params)
        length = torch.cat([grad.flatten() for grad in grads]).norm()
        for part, grad in zip(total, grads, strict=True):
            part += grad * min(1.0, CLIP / (float(length) + 1e-6))
    return list(names), total


def noise_by_batch(x: Tensor, y: Tensor) -> Params:
    """Sum and noise are divided by the number of drawn samples, which is private."""
    names, total = _clipped_sum(x, y)
    return {
        name: (part + SIGMA * CLIP * torch.randn(part.shape)) / len(x)
        for name, part in zip(names, total, strict=True)
    }


def noise_of_a_mean(x: Tensor, y: Tensor) -> Params:
    """The noise is divided twice by the batch size."""
    names, total = _clipped_sum(x, y)
    return {
        name: part / EXPECTED_BATCH_SIZE
        + SIGMA * CLIP / EXPECTED_BATCH_SIZE**2 * torch.randn(part.shape)
        for name, part in zip(names, total, strict=True)
    }


def clips_the_batch(x: Tensor, y: Tensor) -> Params:
    """The gradient of the batch is clipped instead of each sample's gradient."""
    model = _net()
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    length = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    assert length >= 0
    return {
        name: param.grad + SIGMA * CLIP / EXPECTED_BATCH_SIZE * torch.randn(param.shape)
        for name, param in model.named_parameters()
        if param.grad is not None
    }
