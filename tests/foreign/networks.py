"""Typical third-party networks, with suitable samples."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 4


class Tutorial(nn.Module):
    """Convolutions, pooling and a flattening view, as in PyTorch's first tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc1 = nn.Linear(8 * 3 * 3, 20)
        self.fc2 = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 8 * 3 * 3)
        x = F.relu(self.fc1(x))
        out: Tensor = self.fc2(x)
        return out


class Normalised(nn.Module):
    """Batch normalisation in images and vectors, dropout of maps and numbers, log-softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.bn1 = nn.BatchNorm2d(6)
        self.drop1 = nn.Dropout2d(0.25)
        self.fc1 = nn.Linear(6 * 4 * 4, 16)
        self.bn2 = nn.BatchNorm1d(16)
        self.fc2 = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.drop1(F.relu(self.bn1(self.conv(x)))), 2)
        x = torch.flatten(x, 1)
        x = F.dropout(F.relu(self.bn2(self.fc1(x))), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        result: Tensor = self.relu(out)
        return result


class Residual(nn.Module):
    """Two residual blocks that add and rectify in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.Sequential(Block(8), Block(8))
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.stem(x), inplace=True))
        x = F.adaptive_avg_pool2d(x, 1)
        out: Tensor = self.fc(x.view(x.size(0), -1))
        return out


class Tied(nn.Module):
    """Two layers with one weight, and a third that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)
        self.second.weight = self.first.weight
        self.again = nn.Linear(12, 12)
        self.out = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        x = F.relu(self.again(F.relu(self.again(x))))
        out: Tensor = self.out(x)
        return out


class Recurrent(nn.Module):
    """Layers with a memory, of which the last step counts."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.cells = kind(5, 6, num_layers=2, batch_first=True, dropout=0.1)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.cells(x)
        out: Tensor = self.fc(steps[:, -1, :])
        return out


class Attentive(nn.Module):
    """A class token, positions as a bare parameter, and a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 7, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.size(0), -1, -1), self.embed(x)], dim=1)
        out: Tensor = self.head(self.layer(x + self.positions)[:, 0])
        return out


class ByHand(nn.Module):
    """Parameters outside layers, and a layer with a weight that is also used elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(8, 12))
        self.inner = nn.Linear(8, 12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(F.linear(x, self.weight))
        out: Tensor = self.head(F.relu(self.inner(h))) + (h @ self.inner.weight.t())[:, :CLASSES]
        return out


class UsedBeside(nn.Module):
    """Layers alone, of which one lends its weight to the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.inner(x))
        out: Tensor = self.head(h) + (h @ self.inner.weight)[:, :CLASSES]
        return out


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        slope: Tensor = grads[0] * (x.abs() < 1)
        return slope


class Binarised(nn.Module):
    """A function with a custom gradient, and samples that are modified in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        x /= 2
        signs: Tensor = _Sign.apply(self.inner(x))  # type: ignore[no-untyped-call]
        out: Tensor = self.head(signs)
        return out


class Partly(nn.Module):
    """Frozen layers, layers that nothing uses, and buffers of every kind."""

    mean: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.inner = nn.Linear(12, 8)
        self.head = nn.Linear(8, CLASSES)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.full((12,), 0.1))
        self.register_buffer("table", torch.linspace(0.5, 1, 12), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.frozen((x - self.mean) * self.table))
        out: Tensor = self.head(F.relu(self.inner(x)))
        return out


class Embedded(nn.Module):
    """Tokens that come as floating-point numbers, since that is what samples are."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6, padding_idx=0)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(tokens.long()).mean(1))
        return out


class Reparametrised(nn.Module):
    """Weights that are worked out of others, by both of torch's ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(12, 8))
        self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.relu(self.second(F.relu(self.first(x)))))
        return out


class Dense(nn.Module):
    """The least that there is; the tests below return its outputs in other ways."""

    outputs = CLASSES

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 8)
        self.head = nn.Linear(8, self.outputs)

    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.relu(self.inner(x)))
        return out

    def forward(self, x: Tensor) -> object:
        return self.logits(x)


class InDictionary(Dense):
    def forward(self, x: Tensor) -> object:
        return {"logits": self.logits(x), "hidden": self.inner(x)}


class InObject(Dense):
    def forward(self, x: Tensor) -> object:
        return SimpleNamespace(loss=None, logits=self.logits(x))


class InTuple(Dense):
    def forward(self, x: Tensor) -> object:
        return self.inner(x), self.logits(x)


class OneLogit(Dense):
    outputs = 1


class OneFlatLogit(OneLogit):
    def forward(self, x: Tensor) -> object:
        return self.logits(x).squeeze(1)


class OneProbability(OneLogit):
    def forward(self, x: Tensor) -> object:
        return torch.sigmoid(self.logits(x))


class Probabilities(Dense):
    def forward(self, x: Tensor) -> object:
        return F.softmax(self.logits(x), dim=1)


class HardBatch(Dense):
    def forward(self, x: Tensor) -> object:
        return self.logits(x).view(8, -1)


class Mixing(Dense):
    def forward(self, x: Tensor) -> object:
        return self.head(F.relu(self.inner(x) - self.inner(x).mean(0)))


class Random(Dense):
    def forward(self, x: Tensor) -> object:
        return self.logits(F.dropout(x, 0.5))


class Counting(Dense):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> object:
        self.calls += 1
        return self.logits(x) * (1 + 0.1 * self.calls)


class Detached(Dense):
    @torch.no_grad()
    def forward(self, x: Tensor) -> object:
        return self.logits(x)


class ByMask(nn.Module):
    """A network with the inputs of a tokenizer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        out: Tensor = self.head((self.table(input_ids) * attention_mask[..., None]).mean(1))
        return out


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


class Case(NamedTuple):
    """A network, and the shape of one of its samples."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int = CLASSES
    tokens: bool = False


IMAGE, VECTOR, STEPS = (3, 20, 20), (12,), (6, 5)
SMALL = (3, 10, 10)
MEASURED: dict[str, Case] = {
    "the tutorial's": Case(Tutorial, IMAGE),
    "batch norm and dropout": Case(Normalised, SMALL),
    "residual, in place": Case(Residual, SMALL),
    "tied": Case(Tied, VECTOR),
    "lstm": Case(Recurrent, STEPS),
    "gru": Case(lambda: Recurrent(nn.GRU), STEPS),
    "transformer": Case(Attentive, STEPS),
    "weights by hand": Case(ByHand, VECTOR),
    "a weight used beside its layer": Case(UsedBeside, VECTOR),
    "a gradient of its own": Case(Binarised, VECTOR),
    "frozen and unused": Case(Partly, VECTOR),
    "tokens as numbers": Case(Embedded, (7,), tokens=True),
    "parametrized": Case(Reparametrised, VECTOR),
    "in double precision": Case(lambda: Tied().double(), VECTOR),
    "in parallel": Case(lambda: nn.DataParallel(Tutorial()), IMAGE),
    "a lambda's": Case(lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4)), VECTOR),
    "logits in a dictionary": Case(InDictionary, VECTOR),
    "logits in an object": Case(InObject, VECTOR),
    "one logit": Case(OneLogit, VECTOR, classes=2),
    "one logit, flat": Case(OneFlatLogit, VECTOR, classes=2),
}
REFUSED: dict[str, tuple[Case, str]] = {
    "a tuple": (Case(InTuple, VECTOR), "must return a tensor, .*got a tuple; wrap"),
    "a sigmoid": (Case(OneProbability, VECTOR, classes=2), "probabilities; .* omits the sigmoid"),
    "a softmax": (Case(Probabilities, VECTOR), "probabilities; .* omits the softmax"),
    "one logit of more classes": (
        Case(OneLogit, VECTOR),
        "1 logits per sample, but labels go up",
    ),
    "a size of batches": (Case(HardBatch, VECTOR), "cannot be run on 3 samples"),
    "what mixes samples": (Case(Mixing, VECTOR), "different outputs in different batches"),
    "what is random": (
        Case(Random, VECTOR),
        "different outputs for the same samples in a second run",
    ),
    "what counts": (
        Case(Counting, VECTOR),
        "different outputs for the same samples in a second run",
    ),
    "what has no gradient": (Case(Detached, VECTOR), "no gradient with respect to its parameters"),
    "what reads dictionaries": (
        Case(ByMask, VECTOR),
        "cannot be run on .*one tensor with one row per sample",
    ),
    "lazy layers without sizes": (Case(Lazy, VECTOR), "lazy layers whose sizes are not known yet"),
    "nothing to train": (Case(lambda: Dense().requires_grad_(False), VECTOR), "no trainable"),
    "a map": (Case(lambda: nn.Conv2d(3, 4, 3), SMALL), "of shape .*one row of logits per sample"),
}
