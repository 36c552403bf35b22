"""Networks that a recorder accepts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedaudit
from fedaudit.core.errors import BadInput
from fedaudit.core.task_catalogue import task_named
from fedaudit.datasets.dataset import prepare_samples
from fedaudit.datasets.draws.audit_set import AuditSet
from fedaudit.live.network import network_of
from fedaudit.live.record import record

RNG = torch.Generator().manual_seed(4)
FEATURES = torch.rand(80, 6, generator=RNG)
TOKENS = torch.randint(1, 9, (80, 5), generator=RNG)
CLASSES = torch.arange(80) % 2


class Ends(nn.Module):
    """A linear layer, and a last function."""

    def __init__(self, last: Callable[[Tensor], Tensor], outputs: int, start: float | None) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(6, outputs), last
        if start is not None:
            for value in self.parameters():
                nn.init.constant_(value, start)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.linear(x))


class Words(nn.Module):
    def __init__(self, last: Callable[[Tensor], Tensor], outputs: int, *, pooled: bool) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(9, 4), nn.Linear(4, outputs)
        self.last, self.pooled = last, pooled

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.embedding(x)
        return self.last(self.linear(embedded.mean(1) if self.pooled else embedded))


def softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def as_it_is(logits: Tensor) -> Tensor:
    return logits


def flat(logits: Tensor) -> Tensor:
    return logits[:, 0]


LABELS = torch.stack([CLASSES, 1 - CLASSES, CLASSES], 1)
Network = Callable[[], nn.Module]
GIVES: dict[str, tuple[str, Tensor, Tensor, Callable[[Any], Network]]] = {
    "binary": ("binary", FEATURES, CLASSES, lambda last: lambda: Ends(last, 1, None)),
    "one output": ("classification", FEATURES, CLASSES, lambda last: lambda: Ends(last, 1, None)),
    "labels": ("multi-label", FEATURES, LABELS, lambda last: lambda: Ends(last, 3, None)),
    "classes": ("classification", FEATURES, CLASSES, lambda last: lambda: Ends(last, 2, None)),
    "binary of words": ("binary", TOKENS, CLASSES, lambda f: lambda: Words(f, 1, pooled=True)),
    "classes of words": (
        "classification",
        TOKENS,
        CLASSES,
        lambda f: lambda: Words(f, 2, pooled=True),
    ),
    "next token": ("next-token", TOKENS, TOKENS, lambda f: lambda: Words(f, 9, pooled=False)),
    "zeros": ("binary", FEATURES, CLASSES, lambda last: lambda: Ends(last, 1, 0.0)),
    "two zeros": ("classification", FEATURES, CLASSES, lambda last: lambda: Ends(last, 2, 0.0)),
    "halves": ("classification", FEATURES, CLASSES, lambda last: lambda: Ends(last, 1, 0.5)),
}


def audit_of(features: Tensor, targets: Tensor) -> AuditSet:
    return fedaudit.fair_split({0: (features, targets)}, audited=40).audit


def described(kind: str, last: Callable[[Tensor], Tensor]) -> None:
    name, features, targets, make = GIVES[kind]
    task, audit = task_named(name, {}), audit_of(features, targets)
    samples = replace(audit, samples=prepare_samples(audit.samples, task))
    network_of(make(last), samples, task)


@pytest.mark.parametrize("kind", GIVES)
def test_logits_are_recognised_for_any_initial_network(kind: str) -> None:
    described(kind, as_it_is)


@pytest.mark.parametrize("kind", GIVES)
def test_probabilities_are_refused_for_every_task(kind: str) -> None:
    with pytest.raises(BadInput, match=r"returns probabilities; .* omits the sigmoid"):
        described(kind, torch.sigmoid)


@pytest.mark.parametrize("kind", ["classes", "two zeros", "classes of words", "next token"])
def test_rows_that_sum_to_one_are_refused(kind: str) -> None:
    with pytest.raises(BadInput, match=r"returns probabilities; .* omits the softmax"):
        described(kind, softmax)


def test_flat_probabilities_and_logits_are_distinguished() -> None:
    described("binary", flat)
    with pytest.raises(BadInput, match="probabilities"):
        described("binary", lambda logits: flat(logits).sigmoid())


@pytest.mark.parametrize(
    "last", [lambda z: 0 * z, lambda z: 0 * z + 0.5, lambda z: z.log_softmax(-1)]
)
def test_outputs_that_could_be_logits_are_accepted(last: Callable[[Tensor], Tensor]) -> None:
    described("classes", last)


def test_a_custom_loss_of_probabilities_accepts_probabilities(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return -outputs.gather(1, labels[:, None])[:, 0].clamp_min(1e-9).log()

    audit = audit_of(FEATURES, CLASSES)
    record(tmp_path, lambda: Ends(softmax, 2, None), audit, loss=loss).close()


class Own(nn.Module):
    """Parameters that no reset reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x @ self.weight)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.out(self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0])
        return output


def token() -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)


TRAINED: dict[str, Network] = {
    "a raw parameter": Own,
    "attention": Attending,
    "a transformer layer": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), token(), nn.Flatten(), nn.Linear(6, 3)
    ),
    "weight normalisation": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))
    ),
    "batch normalisation": lambda: nn.Sequential(
        nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
    ),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_the_untrained_control_has_no_trained_parameter(kind: str) -> None:
    module = TRAINED[kind]()
    with torch.no_grad():
        for value in module.parameters():
            value.add_(torch.randn(value.shape, generator=RNG))
    audit = audit_of(FEATURES, torch.arange(80) % 3)
    control = network_of(module, audit, fedaudit.tasks.classification()).architecture.initial(1)
    trained = dict(module.named_parameters())
    unchanged = [
        name for name, v in control.params.items() if torch.equal(v, trained[name].detach())
    ]
    assert unchanged == []


def test_frozen_layers_and_their_statistics_stay_in_the_control() -> None:
    module = TRAINED["batch normalisation"]().train()
    module(FEATURES)
    module[:2].requires_grad_(False)  # type: ignore[index]
    audit = audit_of(FEATURES, torch.arange(80) % 3)
    built = network_of(module, audit, fedaudit.tasks.classification()).architecture.build_module(1)
    control_state, before = built.state_dict(), module.state_dict()
    assert [n for n in control_state if not torch.equal(control_state[n], before[n])] == [
        "2.weight",
        "2.bias",
    ]
