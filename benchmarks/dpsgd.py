"""CPU time of DP-SGD, compared with plain training and with other implementations.

    python -m benchmarks.dpsgd [--case A B ...]

Prints a table in Markdown, in about three minutes. Each variant is one epoch of a client on one
thread. All variants run alternately in one process. The first turn is dropped, and the table has
medians. *Plain* and *ours* are fedaudit's training with its hooks and Poisson batches. *vmap*
differs from ours in the clipped sum, which it computes from whole per-sample gradients with
``torch.func``. *Opacus ghost* is Opacus' ghost clipping, if installed. It trains with torch's
optimizer in Opacus' wrappers, on the same number of samples in batches of fixed size.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.training import CASES, HOW, Case, medians
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Batch, Params, Samples, chunks
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.fl.hooks import UNDEFENDED, ClientContext, Defense, Objective, TrainingContext
from fedaudit.fl.training.local import train

CLIP, NOISE = 1.0, 1.0
RESNET = Case("ResNet-18, width 32", "resnet18", (3, 32, 32), 10, 1, 64, 3, {"width": 32})
ALEXNET = Case("AlexNet, 32x32", "alexnet", (3, 32, 32), 100, 1, 256, 4)


@dataclass(frozen=True)
class WholeGradients(DPSGD):
    """DP-SGD that computes the whole gradient of every sample."""

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        module = objective.module
        params = {name: value.detach() for name, value in objective.params.items()}

        def loss(values: Params, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional_call(module, values, (x[None],)), y[None]).sum()

        gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(
            params, batch.x, batch.y
        )
        norms = sum(value.flatten(1).square().sum(1) for value in gradients.values()).sqrt()
        factors = (self.clip / norms).clamp(max=1.0)
        rng = context.rng("per-sample noise")
        std = self.noise_multiplier * self.clip
        return {
            name: torch.tensordot(factors, value, 1)
            .add_(torch.randn(value.shape[1:], generator=rng), alpha=std)
            .div_(HOW.batch_size)
            for name, value in gradients.items()
        }


def epoch(case: Case, data: Samples, defense: Defense) -> Callable[[], None]:
    model = case.architecture.initial(0)
    client_context = ClientContext(
        round=1, rounds=1, client=0, cohort=(0,), weights={0: 1.0}, seed=0
    )

    def run() -> None:
        train(model, data, HOW, defense, client_context.with_model(model))

    return run


def ghost(case: Case, data: Samples) -> Callable[[], None] | None:
    """Return an epoch with Opacus' ghost clipping, or None if Opacus is not installed."""
    try:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers.optimizer_fast_gradient_clipping import (
            DPOptimizerFastGradientClipping,
        )
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    except ImportError:
        return None
    module = GradSampleModuleFastGradientClipping(
        case.architecture.build().train(),
        max_grad_norm=CLIP,
        use_ghost_clipping=True,
        loss_reduction="mean",
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(module.parameters(), lr=HOW.lr),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=HOW.batch_size,
    )
    criterion = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss(), "mean")

    def run() -> None:
        order = torch.randperm(len(data))
        for part in chunks(len(data), HOW.batch_size):
            x, y = data.features[order[part]], data.labels[order[part]]
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()

    return run


def row(case: Case) -> str:
    data = case.data(case.samples)
    variants = {
        "plain": epoch(case, data, UNDEFENDED),
        "ours": epoch(case, data, DPSGD(CLIP, NOISE)),
        "vmap": epoch(case, data, WholeGradients(CLIP, NOISE)),
    }
    by_opacus = ghost(case, data)
    if by_opacus is not None:
        variants["ghost"] = by_opacus
    seconds = medians(variants, process_time, case.turns)
    cells = [f"{1000 * seconds['plain'] / len(data):.3g}"]
    for name in ("ours", "ghost", "vmap"):
        ratio = seconds.get(name, float("nan")) / seconds["plain"]
        cells.append(f"{ratio:.2f}x")
    return f"| {case.name} | " + " | ".join(cells) + " |"


def main() -> None:
    cases = {case.name.split(":")[0]: case for case in (*CASES, ALEXNET, RESNET)}
    parser = argparse.ArgumentParser(description="Cost of DP-SGD.")
    parser.add_argument("--case", nargs="+", choices=cases, default=list(cases))
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="opacus|torch")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n")
    print("| CPU time, one thread | plain, ms a sample | ours | Opacus ghost | vmap |")
    print("|---|---|---|---|---|")
    for name in args.case:
        print(row(cases[name]), flush=True)


if __name__ == "__main__":
    main()
