"""Error of the gradient signals if matrix products used bfloat16.

    python -m benchmarks.bfloat16

Ten clients overfit an MLP on samples of 600 bits. The inner product of every sample's gradient with
each update is computed as usual, and with both factors of the linear layers' products in bfloat16.
As in oneDNN, such products are summed in float32, and the result is rounded to bfloat16 once. The
table has the standard deviation of the error relative to that of the signal over samples, and the
signal's AUC (members are the client's samples). Below it is the speed of such a product.
"""

from collections.abc import Callable
from statistics import median
from time import process_time
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from fedaudit.core.seeds import seeded
from fedaudit.core.values import Params
from fedaudit.metrics.roc import auc
from fedaudit.models import architecture
from fedaudit.signals.gradients import cosine, gradient_products
from fedaudit.signals.kernels import product

CLIENTS, OWN, OTHERS, CLASSES, BITS = 10, 100, 1000, 100, 600
EPOCHS, RATE = 30, 0.1


def samples(count: int, rng: torch.Generator, centres: Tensor) -> tuple[Tensor, Tensor]:
    labels = torch.randint(CLASSES, (count,), generator=rng)
    flipped = torch.rand(count, BITS, generator=rng) < 0.25
    return (centres[labels] != flipped).float(), labels


def in_bfloat16(left: Tensor, right: Tensor) -> Tensor:
    result: Tensor = functional.linear(left.bfloat16(), right.bfloat16())
    return result.float()


def trained(base: Params, features: Tensor, labels: Tensor) -> Params:
    """Return a client's update after epochs of gradient descent on all its samples."""
    module = architecture("mlp", shape=(BITS,), classes=CLASSES, hidden="200").initial(0).module()
    params = dict(module.named_parameters())
    for _ in range(EPOCHS):
        loss = functional.cross_entropy(module(features), labels)
        grads = torch.autograd.grad(loss, list(params.values()))
        with torch.no_grad():
            for value, grad in zip(params.values(), grads, strict=True):
                value.sub_(RATE * grad)
    return {name: params[name].detach() - base[name] for name in base}


def milliseconds(run: Callable[[], Tensor]) -> float:
    times = []
    for _ in range(8):
        start = process_time()
        for _ in range(5):
            run()
        times.append((process_time() - start) / 5)
    return 1000 * median(times[1:])


def main() -> None:
    torch.set_num_threads(1)
    rng = seeded(0, "benchmark", "halves")
    model = architecture("mlp", shape=(BITS,), classes=CLASSES, hidden="200").initial(0)
    centres = torch.rand(CLASSES, BITS, generator=rng) < 0.5
    parts = [samples(OWN, rng, centres) for _ in range(CLIENTS)]
    others = samples(OTHERS, rng, centres)
    updates = [trained(model.params, *part) for part in parts]
    features = torch.cat([part[0] for part in (*parts, others)])
    labels = torch.cat([part[1] for part in (*parts, others)])
    exact = gradient_products(model, updates, features, labels)
    with patch("fedaudit.signals.kernels.product", in_bfloat16):
        rounded = gradient_products(model, updates, features, labels)
    print("| signal | error / std | AUC | AUC in bfloat16 |")
    print("|---|---|---|---|")
    show("inner product", -exact.dots, -rounded.dots)
    show("cosine", -cosine(exact), -cosine(rounded))
    differences = (-2 * each.dots - each.squared_norms for each in (exact, rounded))
    show("gradient difference", *differences)
    x, u = torch.randn(256, BITS), torch.randn(1000, BITS)
    factors = x.bfloat16(), u.bfloat16()
    in_single = milliseconds(lambda: product(x, u))
    in_half = milliseconds(lambda: functional.linear(*factors))
    print(
        f"\nproduct of 256 x 600 and 600 x 1000: {in_single:.3f} ms, in bfloat16 {in_half:.3f} ms"
    )


def show(name: str, exact: Tensor, rounded: Tensor) -> None:
    error = float(((rounded - exact).std(1) / exact.std(1)).mean())
    owner = torch.arange(exact.shape[1]) // OWN
    means = []
    for values in (exact, rounded):
        aucs = []
        for client in range(CLIENTS):
            compared = (owner == client) | (owner >= CLIENTS)
            aucs.append(auc(values[client][compared], owner[compared] == client))
        means.append(sum(aucs) / CLIENTS)
    print(f"| {name} | {error:.1e} | {means[0]:.5f} | {means[1]:.5f} |")


if __name__ == "__main__":
    main()
