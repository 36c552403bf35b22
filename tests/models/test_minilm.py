"""MiniLM: trained parameters and gradients."""

import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Samples
from fedaudit.fl.algorithms.fedavg import FedEmbedding
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.models import architecture
from fedaudit.signals.gradients import gradient_products

TOKENS = torch.randint(1, 30_000, (6, 12), generator=torch.Generator().manual_seed(1))
TOKENS[::2, 7:] = 0
LABELS = torch.arange(6) % 3


@pytest.fixture(autouse=True)
def _installed() -> None:
    for package in ("all_minilm_l6_v2", "transformers", "peft"):
        pytest.importorskip(package, reason="pip install 'fedaudit[text]'")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "prompt", "numbers"),
    [(8, 0, 6 * 2 * 2 * 8 * 384), (0, 5, 5 * 384), (2, 3, 6 * 2 * 2 * 2 * 384 + 3 * 384)],
)
def test_only_adapters_prompt_and_head_are_trained(rank: int, prompt: int, numbers: int) -> None:
    net = architecture("minilm", shape=(12,), classes=3, rank=rank, prompt=prompt)
    model = net.initial(1)
    assert sum(value.numel() for value in model.params.values()) == numbers + 3 * 384 + 3
    update = {name: torch.randn_like(value) for name, value in model.params.items()}
    products = gradient_products(model, [update], TOKENS, LABELS)
    module = model.module()
    params = [value for value in module.parameters() if value.requires_grad]
    for i in range(6):
        loss = net.loss(module(TOKENS[i : i + 1]), LABELS[i : i + 1]).sum()
        grads = torch.autograd.grad(loss, params)
        pairs = zip(grads, update.values(), strict=True)
        dot = torch.stack([(grad * change).sum() for grad, change in pairs]).sum()
        torch.testing.assert_close(products.dots[0, i].float(), dot, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_algorithms_that_average_embeddings_average_prompts() -> None:
    net = architecture("minilm", shape=(12,), classes=3, rank=0, prompt=4)
    data = {k: Samples(TOKENS[2 * k : 2 * k + 2], LABELS[2 * k : 2 * k + 2]) for k in range(3)}
    (round,) = simulate(FedEmbedding(net, LocalTraining(lr=0.1)), data, rounds=1, seed=2)
    before = round.sent[0].model.params["prompt.weight"]
    moves = [round.uploads[client].values["prompt.weight"] for client in data]
    after = round.after["global"].params["prompt.weight"]
    torch.testing.assert_close(after - before, torch.stack(moves).mean(0))


def test_a_negative_rank_is_refused() -> None:
    with pytest.raises(BadInput, match="rank of MiniLM takes a whole number from 0"):
        architecture("minilm", shape=(12,), classes=3, rank=-1)
