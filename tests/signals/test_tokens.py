"""Signals of language models: known values, and gradients compared with autograd."""

import logging
import zlib
from functools import partial
from math import log

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.task_catalogue import task_named
from fedaudit.core.values import Architecture, Model
from fedaudit.models import architecture
from fedaudit.signals.gradients import gradient_products
from fedaudit.signals.outputs import MinK, MinKPlusPlus, ZlibRatio
from tests.networks import LowRank

TASK = task_named("next-token", {})
MODEL = architecture("transformer", TASK, shape=(5,), classes=4, width=8, heads=2).initial(0)

# The tokens to predict are 2, 3 and 1, and then padding.
TOKENS = torch.tensor([[1, 2, 3, 1, 0]])
CHANCES = torch.tensor(
    [[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.1, 0.6], [0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]
)
OUTPUTS = torch.cat([CHANCES, CHANCES[:1]])[None].log().clamp_min(-50)


def test_min_k_is_the_mean_log_probability_of_the_least_likely_tokens() -> None:
    logs = torch.tensor([0.3, 0.6, 0.25], dtype=torch.float64).log()
    for share, least_likely in ((0.34, logs[2:]), (0.67, logs[[0, 2]]), (1.0, logs)):
        signal = MinK(share=share).of(MODEL, OUTPUTS, TOKENS)
        torch.testing.assert_close(signal, least_likely.mean()[None], rtol=1e-6, atol=0)


def test_min_k_plus_plus_standardises_by_the_models_expectation() -> None:
    scores = []
    for row, token in zip(CHANCES[:2].double(), (2, 3), strict=True):
        mean = (row * row.log()).sum()
        spread = (row * row.log().square()).sum() - mean.square()
        scores.append((row[token].log() - mean) / spread.sqrt())
    # At the third position, all tokens are equally likely, so every token has the score 0.
    expected = torch.stack([*scores, torch.zeros((), dtype=torch.float64)]).sort().values
    signal = MinKPlusPlus(share=1.0).of(MODEL, OUTPUTS, TOKENS)
    torch.testing.assert_close(signal, expected.mean()[None], rtol=1e-5, atol=1e-5)


def test_min_k_uses_at_least_one_token_and_valid_shares() -> None:
    least = MinK(share=0.01).of(MODEL, OUTPUTS, TOKENS)
    assert float(least) == pytest.approx(torch.tensor(0.25).log().item())
    with pytest.raises(BadInput, match=r"share of MinK takes a number in \(0, 1\]"):
        MinK(share=0.0)


def test_zlib_ratio_divides_the_loss_by_the_compressed_size() -> None:
    repeated, varied = [7] * 96, [(31 * i) % 251 + 1 for i in range(96)]
    tokens = torch.tensor([[1, *repeated], [1, *varied], [1, *varied[:48], *[0] * 48]])
    outputs = torch.zeros(3, 97, 256)
    values = ZlibRatio().of(MODEL, outputs, tokens)
    texts = [repeated, varied, varied[:48]]
    for value, text in zip(values.tolist(), texts, strict=True):
        assert value == pytest.approx(-log(256) / len(zlib.compress(bytes(text))))
    assert values[0] < values[1]
    # Tokens of a larger vocabulary take four bytes each.
    (value,) = ZlibRatio().of(MODEL, torch.zeros(1, 97, 257), tokens[1:2])
    packed = b"".join(token.to_bytes(4, "little") for token in varied)
    assert float(value) == pytest.approx(-log(257) / len(zlib.compress(packed)))


def test_zlib_ratio_needs_tokens() -> None:
    model = architecture("mlp", task_named("classification", {}), shape=(2,), classes=2).initial(0)
    with pytest.raises(NotVisible, match="has no tokens, which 'zlib_ratio' needs"):
        ZlibRatio().of(model, torch.zeros(1, 2), torch.zeros(1))


class Adapted(nn.Module):
    """A frozen network whose trained parameters are adapters and normalisations."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8).requires_grad_(False)
        self.hidden, self.norm, self.out = LowRank(8, 12), nn.LayerNorm(12), LowRank(12, 11)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.norm(self.hidden(self.tokens(x)))))
        return out


TRANSFORMER = architecture("transformer", TASK, shape=(9,), classes=11, width=8, heads=2)


@pytest.mark.parametrize("net", [TRANSFORMER, Architecture("adapted", Adapted, task=TASK)])
def test_gradients_of_language_models_agree_with_float64_autograd(
    net: Architecture, caplog: pytest.LogCaptureFixture
) -> None:
    rng = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 11, (6, 9), generator=rng)
    tokens[2, 5:] = 0
    start = net.initial(0)
    model = Model(
        Architecture("double " + net.name, partial(doubled, net), task=TASK),
        {name: value.double() for name, value in start.params.items()},
    )
    updates = [
        {n: torch.randn(v.shape, generator=rng, dtype=v.dtype) for n, v in model.params.items()}
        for _ in range(3)
    ]
    with caplog.at_level(logging.INFO, "fedaudit"):
        products = gradient_products(model, updates, tokens, tokens)
    assert not caplog.records
    module = model.module()
    params = [value for value in module.parameters() if value.requires_grad]
    for sample, row in enumerate(tokens):
        loss = TASK.losses(module(row[None]), row[None]).sum()
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, params)])
        assert float(products.squared_norms[sample]) == pytest.approx(
            float(gradient @ gradient), 1e-10
        )
        for client, update in enumerate(updates):
            flat = torch.cat([value.flatten() for value in update.values()])
            assert float(products.dots[client, sample]) == pytest.approx(
                float(flat @ gradient), 1e-9
            )


def doubled(net: Architecture) -> nn.Module:
    return net.build().double()
