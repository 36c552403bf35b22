import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.params import flat
from fedaudit.core.tasks import cross_entropy, of_loss
from fedaudit.core.values import Architecture, Model, Params, Setting
from fedaudit.models import MODELS, architecture
from fedaudit.signals.gradients import (
    GradientProducts,
    cosine,
    gradient_norms,
    gradient_products,
    products_centred_in_tail,
    products_without_tail,
)
from fedaudit.signals.kernels import layers, plan
from fedaudit.signals.kernels.base import Layer, LayerKernel, LayerProducts
from tests.rounding import RoundedByPlace

CLASSES = 5


class Case(NamedTuple):
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: bool = False


class Truth(NamedTuple):
    dots: Tensor
    squared_norms: Tensor


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def samples(case: Case, count: int = 7) -> tuple[Tensor, Tensor]:
    labels = torch.randint(CLASSES, (count,), generator=rng(1))
    if case.tokens:
        return torch.randint(9, (count, *case.shape), generator=rng(2)), labels
    return torch.randn(count, *case.shape, generator=rng(2)), labels


def updates_for(model: Model, clients: int) -> list[Params]:
    source = rng(3)
    return [
        {name: 0.1 * torch.randn(v.shape, generator=source) for name, v in model.params.items()}
        for _ in range(clients)
    ]


def model_of(name: str, build: Callable[[], nn.Module]) -> Model:
    return Architecture(name, build).initial(0)


def truth_of(
    model: Model,
    updates: list[Params],
    features: Tensor,
    labels: Tensor,
    projected: Callable[[Tensor], Tensor] = lambda vector: vector,
) -> Truth:
    """One backward pass a sample, in double precision; all vectors are written out."""
    module = model.module().double()
    params = [dict(module.named_parameters())[name] for name in model.params]
    targets = [
        projected(flat({name: update[name] for name in model.params}).double())
        for update in updates
    ]
    dots, norms = [], []
    for x, y in zip(features, labels, strict=True):
        entered = x[None].double() if x.is_floating_point() else x[None]
        loss = model.architecture.loss(module(entered), y[None]).sum()
        found = torch.autograd.grad(loss, params, allow_unused=True)
        gradient = torch.cat(
            [
                (torch.zeros_like(p) if part is None else part).flatten()
                for p, part in zip(params, found, strict=True)
            ]
        )
        gradient = projected(gradient)
        dots.append([float(target @ gradient) for target in targets])
        norms.append(float(gradient @ gradient))
    each = torch.tensor(dots, dtype=torch.float64).reshape(len(labels), len(updates)).t()
    return Truth(each, torch.tensor(norms, dtype=torch.float64))


def without_last(vector: Tensor, last: int) -> Tensor:
    return vector * (torch.arange(len(vector)) < len(vector) - last)


def centred_in_last(vector: Tensor, last: int) -> Tensor:
    projected = vector.clone()
    projected[len(vector) - last :] -= vector[len(vector) - last :].mean()
    return projected


def assert_exact(products: GradientProducts, truth: Truth) -> None:
    lengths = products.update_norms[:, None] * truth.squared_norms.sqrt()
    torch.testing.assert_close(products.dots / lengths, truth.dots / lengths, atol=1e-5, rtol=0)
    torch.testing.assert_close(products.squared_norms, truth.squared_norms, rtol=1e-4, atol=1e-12)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6, padding_idx=0)
        self.inner = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.out(functional.gelu(self.norm(self.inner(self.table(tokens)))).mean(1))
        return out


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.GroupNorm(3, 6)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first(x)))
        x = self.relu(x + self.second(x))
        out: Tensor = self.out(x.mean((2, 3)))
        return out


class Calibrated(nn.Module):
    """A net with batch norms whose running statistics are not those of a fresh one."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(4 * 36, 6),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Linear(6, CLASSES),
        )
        for part in self.parts:
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                part.running_mean = torch.linspace(-1, 1, part.num_features)
                part.running_var = torch.linspace(0.5, 2, part.num_features)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts(x)
        return out


FAST = {
    "linear": Case(lambda: nn.Linear(6, CLASSES), (6,)),
    "no-bias": Case(lambda: nn.Linear(6, CLASSES, bias=False), (6,)),
    "mlp-in-place": Case(
        lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, CLASSES)), (6,)
    ),
    "conv": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 5, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Conv2d(5, 7, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(7 * 16, CLASSES),
        ),
        (2, 16, 16),
    ),
    "deep-conv": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 32, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 40, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(40, 32, 3, padding=1),
            nn.Flatten(),
            nn.Linear(128, CLASSES),
        ),
        (2, 8, 8),
    ),
    "residual": Case(Residual, (2, 8, 8)),
    "frozen-batch-norm": Case(Calibrated, (2, 8, 8)),
    "tokens": Case(Tokens, (6,), tokens=True),
    "long-tokens": Case(Tokens, (24,), tokens=True),
    "sequence-of-two-axes": Case(
        lambda: nn.Sequential(
            nn.Linear(4, 6),
            nn.LayerNorm((3, 6)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * 18, CLASSES),
        ),
        (2, 3, 4),
    ),
}
GENERIC = {
    "grouped": Case(
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(32, CLASSES)),
        (4, 4, 4),
    ),
    "circular": Case(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
            nn.Flatten(),
            nn.Linear(48, CLASSES),
        ),
        (2, 4, 4),
    ),
    "conv-1d": Case(
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.PReLU(), nn.Flatten(), nn.Linear(9, CLASSES)),
        (2, 5),
    ),
    "transposed": Case(
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Flatten(), nn.Linear(75, CLASSES)),
        (2, 4, 4),
    ),
}


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(self.inner(x).tanh()))
        return out


class Functional(Twice):
    def forward(self, x: Tensor) -> Tensor:
        inner = functional.linear(x, self.inner.weight, self.inner.bias)
        out: Tensor = self.out(inner.tanh())
        return out


class CalledAndFunctional(Twice):
    """The watched call alone looks sound; only the check of two samples can tell."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(functional.linear(x, self.inner.weight).tanh()))
        return out


class Tied(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 6)
        self.other.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.other(self.inner(x).tanh()))
        return out


class Raw(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(x) * self.scale)
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.cell(x)[0][:, -1])
        return out


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.look(x, x, x, need_weights=False)[0].mean(1))
        return out


class TimeFirst(Twice):
    def forward(self, x: Tensor) -> Tensor:
        rows = self.inner(x.transpose(0, 1)).transpose(0, 1)
        out: Tensor = self.out(rows.tanh().mean(1))
        return out


WHOLE = {
    "twice": Case(Twice, (6,)),
    "functional": Case(Functional, (6,)),
    "called-and-functional": Case(CalledAndFunctional, (6,)),
    "tied": Case(Tied, (6,)),
    "raw": Case(Raw, (6,)),
    "recurrent": Case(Recurrent, (4, 3)),
    "attending": Case(Attending, (4, 4)),
    "time-first": Case(TimeFirst, (3, 6)),
    "weight-norm": Case(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), nn.Linear(4, CLASSES)
        ),
        (6,),
    ),
}


@pytest.mark.parametrize("clients", [0, 1, 3])
@pytest.mark.parametrize("name", FAST)
def test_fast_kernels_agree_with_a_backward_pass_a_sample_in_double_precision(
    name: str, clients: int, caplog: pytest.LogCaptureFixture
) -> None:
    case = FAST[name]
    model = model_of(f"fast-{name}-{clients}", case.build)
    features, labels = samples(case)
    updates = updates_for(model, clients)
    with caplog.at_level(logging.INFO, "fedaudit"):
        products = gradient_products(model, updates, features, labels)
    assert not caplog.records
    assert_exact(products, truth_of(model, updates, features, labels))


@pytest.mark.parametrize("name", FAST)
def test_many_clients_take_other_routes_to_the_same_numbers(name: str) -> None:
    case = FAST[name]
    model = model_of(name, case.build)
    features, labels = samples(case, 3)
    updates = updates_for(model, 40)
    products = gradient_products(model, updates, features, labels)
    assert_exact(products, truth_of(model, updates, features, labels))


@pytest.mark.parametrize("tail", [0.04, 0.3, 0.6])
@pytest.mark.parametrize("name", ["linear", "conv", "tokens", "grouped", "twice"])
def test_products_of_projected_vectors_are_those_of_vectors_that_are_written_out(
    name: str, tail: float, caplog: pytest.LogCaptureFixture
) -> None:
    case = (FAST | GENERIC | WHOLE)[name]
    model = model_of(f"tail-{name}-{tail}", case.build)
    features, labels = samples(case)
    updates = updates_for(model, 3)
    last = int(tail * sum(value.numel() for value in model.params.values()))
    with caplog.at_level(logging.WARNING, "fedaudit"):
        for products_of, projected in (
            (products_without_tail, without_last),
            (products_centred_in_tail, centred_in_last),
        ):
            products = products_of(model, updates, features, labels, tail=tail)
            truth = truth_of(model, updates, features, labels, partial(projected, last=last))
            assert_exact(products, truth)
    assert all("taken the slower exact way" not in r.getMessage() for r in caplog.records) or (
        name in WHOLE
    )


def test_projected_products_worked_by_hand() -> None:
    # The output is its own loss: the gradient is (x, 1), here (3, 5, 1).
    def output(outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs[:, 0]

    model = Architecture(
        "by hand", partial(nn.Linear, 2, 1), task=of_loss("output", output)
    ).initial(0)
    given = (
        model,
        [{"weight": torch.tensor([[1.0, 4.0]]), "bias": torch.tensor([2.0])}],
        torch.tensor([[3.0, 5.0]]),
        torch.tensor([0]),
    )
    # The last two of three: (1, 4, 2) and (3, 5, 1) become (1, 1, -1) and (3, 2, -2).
    dots, squared, lengths = products_centred_in_tail(*given, tail=0.67)
    assert (float(dots), float(squared)) == pytest.approx((7, 17))
    assert float(lengths) == pytest.approx(3**0.5)
    dots, squared, lengths = products_without_tail(*given, tail=0.67)
    assert (float(dots), float(squared), float(lengths)) == pytest.approx((3, 9, 1))
    # The last one only: its mean is itself.
    dots, squared, lengths = products_centred_in_tail(*given, tail=0.34)
    assert (float(dots), float(squared)) == pytest.approx((23, 34))
    assert float(lengths) == pytest.approx(17**0.5)
    # Less than one entry: nothing is changed.
    for products_of in (products_centred_in_tail, products_without_tail):
        dots, squared, _ = products_of(*given, tail=0.2)
        assert (float(dots), float(squared)) == pytest.approx((25, 35))


@pytest.mark.parametrize("name", GENERIC)
def test_a_layer_without_a_fast_kernel_is_exact_and_named_once_in_the_log(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = GENERIC[name]
    model = model_of(f"generic-{name}", case.build)
    features, labels = samples(case)
    updates = updates_for(model, 2)
    with caplog.at_level(logging.INFO, "fedaudit"):
        products = gradient_products(model, updates, features, labels)
        gradient_products(model, updates, features, labels)
    kinds = [record.getMessage().split()[2] for record in caplog.records]
    assert kinds == sorted(set(kinds))
    assert all("has no fast kernel" in record.getMessage() for record in caplog.records)
    assert_exact(products, truth_of(model, updates, features, labels))


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_that_cannot_be_taken_apart_is_exact_and_announced_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = WHOLE[name]
    model = model_of(f"whole-{name}", case.build)
    features, labels = samples(case)
    updates = updates_for(model, 2)
    with caplog.at_level(logging.INFO, "fedaudit"):
        products = gradient_products(model, updates, features, labels)
        gradient_products(model, updates, features, labels)
    assert len(caplog.records) == 1
    assert "slower exact way, per-sample gradients" in caplog.records[0].getMessage()
    assert_exact(products, truth_of(model, updates, features, labels))


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        entered = x * 1
        first: Tensor = self.inner(entered)
        return first + entered.mul_(2)


def test_an_input_that_is_overwritten_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of("overwriting", Overwriting)
    features, labels = samples(Case(Overwriting, (5,)))
    with caplog.at_level(logging.INFO, "fedaudit"), pytest.raises(RuntimeError, match="inplace"):
        gradient_products(model, updates_for(model, 1), features, labels)
    assert "was overwritten after its use" in caplog.records[0].getMessage()


class Noisy(Twice):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(x) * torch.rand(6))
        return out


def test_a_model_that_is_random_in_evaluation_mode_is_refused() -> None:
    model = model_of("noisy", Noisy)
    features, labels = samples(Case(Noisy, (6,)))
    with torch.random.fork_rng(), pytest.raises(Unsupported, match="remove randomness"):
        gradient_products(model, updates_for(model, 1), features, labels)


def test_a_loss_that_mixes_samples_is_caught_and_measured_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def mixed(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs - outputs.mean(0) * (len(outputs) > 1), targets)

    model = Architecture(
        "mixing", lambda: nn.Linear(6, CLASSES), task=of_loss("mixed", mixed)
    ).initial(0)
    features, labels = samples(Case(Twice, (6,)))
    updates = updates_for(model, 2)
    with caplog.at_level(logging.INFO, "fedaudit"):
        products = gradient_products(model, updates, features, labels)
    assert "differ from ordinary autograd" in caplog.records[0].getMessage()
    assert_exact(products, truth_of(model, updates, features, labels))


def test_a_broken_kernel_is_caught_and_does_not_reach_the_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(layer: Layer) -> LayerKernel | None:
        sound = layers.linear_kernel(layer)
        assert sound is not None

        def kernel(module: nn.Module, inputs: Tensor, grads: Tensor) -> LayerProducts:
            share = sound(module, inputs, grads)
            return share._replace(dots=share.dots * 1.01)

        return kernel

    monkeypatch.setitem(plan.KERNELS, nn.Linear, broken)
    case = FAST["linear"]
    model = model_of("broken", case.build)
    features, labels = samples(case)
    updates = updates_for(model, 2)
    with caplog.at_level(logging.INFO, "fedaudit"):
        products = gradient_products(model, updates, features, labels)
    assert "differ from ordinary autograd" in caplog.records[0].getMessage()
    assert_exact(products, truth_of(model, updates, features, labels))


@pytest.mark.parametrize("name", ["conv", "tokens", "grouped", "twice"])
def test_workers_and_reruns_give_the_same_bits(name: str) -> None:
    case = {**FAST, **GENERIC, **WHOLE}[name]
    model = model_of(name, case.build)
    features, labels = samples(case, 40)
    updates = updates_for(model, 3)
    one, again, three = (
        gradient_products(model, updates, features, labels, workers=workers, chunk=8)
        for workers in (1, 1, 3)
    )
    for left, right, other in zip(one, again, three, strict=True):
        assert torch.equal(left, right)
        assert torch.equal(left, other)


@pytest.mark.parametrize("name", ["linear", "conv", "twice"])
def test_equal_updates_have_equal_products_on_every_processor(name: str) -> None:
    case = {**FAST, **GENERIC, **WHOLE}[name]
    model = model_of(name, case.build)
    features, labels = samples(case, 20)
    one, other = updates_for(model, 2)
    same = {key: value.clone() for key, value in one.items()}
    mixed = [one, other, same, one, same]
    usual = gradient_products(model, mixed, features, labels)
    with RoundedByPlace():
        found = gradient_products(model, mixed, features, labels)
    for products in (usual, found):
        assert torch.equal(products.dots[[0, 0, 0]], products.dots[[2, 3, 4]])
        assert not torch.equal(products.dots[0], products.dots[1])
        assert torch.equal(products.update_norms[[0, 0, 0]], products.update_norms[[2, 3, 4]])
    assert_exact(found, truth_of(model, mixed, features, labels))


def test_the_number_of_threads_and_the_callers_tensors_are_as_before() -> None:
    case = FAST["residual"]
    model = model_of("residual", case.build)
    features, labels = samples(case)
    updates = updates_for(model, 2)
    before = (features.clone(), [flat(u) for u in updates], flat(model.params))
    threads = torch.get_num_threads()
    gradient_products(model, updates, features, labels, workers=2)
    assert torch.get_num_threads() == threads
    assert torch.equal(features, before[0])
    assert not features.requires_grad
    assert all(torch.equal(flat(u), old) for u, old in zip(updates, before[1], strict=True))
    assert torch.equal(flat(model.params), before[2])


def test_the_callers_module_keeps_its_training_mode() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, CLASSES)).train()
    model = Model.of(Architecture("dropping", lambda: module), module)
    features, labels = samples(Case(Twice, (6,)))
    updates = updates_for(model, 1)
    module.train()
    fresh = Model(Architecture("fresh", FAST["linear"].build), _renamed(model.params))
    expected = truth_of(fresh, [_renamed(update) for update in updates], features, labels)
    rebuilt = Architecture(
        "dropping", lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, CLASSES))
    )
    products = gradient_products(Model(rebuilt, model.params), updates, features, labels)
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert_exact(products, expected)


def _renamed(params: Params) -> Params:
    return {name.removeprefix("1."): value for name, value in params.items()}


def test_results_do_not_depend_on_the_callers_gradient_mode() -> None:
    case = FAST["conv"]
    model = model_of("modes", case.build)
    features, labels = samples(case)
    updates = updates_for(model, 2)
    usual = gradient_products(model, updates, features, labels)
    with torch.no_grad():
        without = gradient_products(model, updates, features, labels)
    with torch.inference_mode():
        inference = gradient_products(model, updates, features.clone(), labels)
    assert torch.equal(usual.dots, without.dots)
    assert torch.equal(usual.dots, inference.dots)


def test_a_parameter_that_is_not_audited_has_no_share() -> None:
    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES))
        next(module.parameters()).requires_grad_(False)
        return module

    model = model_of("half-frozen", build)
    assert list(model.params) == ["0.bias", "2.weight", "2.bias"]
    features, labels = samples(Case(build, (6,)))
    updates = updates_for(model, 2)
    products = gradient_products(model, updates, features, labels)
    assert_exact(products, truth_of(model, updates, features, labels))


class Unused(Twice):
    def forward(self, x: Tensor) -> Tensor:
        self.inner(x)
        out: Tensor = self.out(x)
        return out


def test_a_layer_without_effect_on_the_loss_has_gradient_zero() -> None:
    model = model_of("unused", Unused)
    features, labels = samples(Case(Unused, (6,)))
    updates = updates_for(model, 2)
    products = gradient_products(model, updates, features, labels)
    assert_exact(products, truth_of(model, updates, features, labels))


def test_the_inner_product_of_a_linear_model_is_the_one_worked_by_hand() -> None:
    # Outputs are (0, 0): both probabilities 1/2, so the gradient is (p - y) (x) x.
    model = Architecture("by-hand", lambda: nn.Linear(2, 2, bias=False)).initial(0)
    model = Model(model.architecture, {"weight": torch.zeros(2, 2)})
    update = {"weight": torch.tensor([[1.0, 0.0], [0.0, 2.0]])}
    products = gradient_products(model, [update], torch.tensor([[3.0, 4.0]]), torch.tensor([0]))
    # g = [[-1.5, -2], [1.5, 2]]; <u, g> = -1.5 + 4.
    assert products.dots.item() == pytest.approx(2.5)
    assert products.squared_norms.item() == pytest.approx(12.5)
    assert products.update_norms.item() == pytest.approx(5**0.5)
    assert cosine(products).item() == pytest.approx(2.5 / (12.5 * 5) ** 0.5)


def test_the_cosine_of_a_zero_gradient_or_update_is_zero() -> None:
    products = GradientProducts(
        torch.zeros(2, 2, dtype=torch.float64),
        torch.tensor([0.0, 4.0], dtype=torch.float64),
        torch.tensor([0.0, 3.0], dtype=torch.float64),
    )
    assert torch.equal(cosine(products), torch.zeros(2, 2, dtype=torch.float64))


def test_a_sample_with_zero_gradient_passes_the_check() -> None:
    model = Architecture("silent", lambda: nn.Linear(3, 2, bias=False)).initial(0)
    updates = updates_for(model, 2)
    products = gradient_products(model, updates, torch.zeros(3, 3), torch.zeros(3).long())
    assert torch.equal(products.squared_norms, torch.zeros(3, dtype=torch.float64))
    assert torch.equal(cosine(products), torch.zeros(2, 3, dtype=torch.float64))


def test_norms_alone_need_no_updates() -> None:
    case = FAST["conv"]
    model = model_of("norms", case.build)
    features, labels = samples(case)
    norms = gradient_norms(model, features, labels)
    expected = truth_of(model, [], features, labels).squared_norms.sqrt()
    torch.testing.assert_close(norms, expected, rtol=1e-4, atol=0)


def test_no_samples_give_empty_products() -> None:
    model = model_of("empty", FAST["linear"].build)
    products = gradient_products(
        model, updates_for(model, 2), torch.zeros(0, 6), torch.zeros(0).long()
    )
    assert products.dots.shape == (2, 0)
    assert products.squared_norms.shape == (0,)


def test_a_model_in_double_precision_is_measured_in_it() -> None:
    model = model_of("double", lambda: FAST["deep-conv"].build().double())
    features, labels = samples(FAST["deep-conv"])
    updates = [{n: v.double() for n, v in u.items()} for u in updates_for(model, 3)]
    products = gradient_products(model, updates, features.double(), labels)
    truth = truth_of(model, updates, features, labels)
    torch.testing.assert_close(products.dots, truth.dots, rtol=1e-9, atol=1e-12)


def test_updates_in_another_precision_are_taken_in_the_models() -> None:
    model = model_of("mixed", FAST["linear"].build)
    features, labels = samples(FAST["linear"])
    updates = updates_for(model, 2)
    finer = [{name: value.double() for name, value in update.items()} for update in updates]
    usual = gradient_products(model, updates, features, labels)
    assert torch.equal(usual.dots, gradient_products(model, finer, features, labels).dots)


def test_a_model_that_has_diverged_has_no_cosines_and_is_not_refused() -> None:
    model = model_of("diverged", FAST["linear"].build)
    diverged = Model(model.architecture, {n: v * float("inf") for n, v in model.params.items()})
    features, labels = samples(FAST["linear"])
    products = gradient_products(diverged, updates_for(model, 1), features, labels)
    assert products.squared_norms.isnan().all()


@pytest.mark.parametrize("name", MODELS)
def test_every_catalogue_model_has_fast_kernels_only(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    narrow: dict[str, dict[str, Setting]] = {"resnet18": {"width": 32}, "wide-resnet": {"width": 1}}
    settings = narrow.get(name, {})
    built = architecture(name, shape=(3, 32, 32), classes=CLASSES, **settings)
    model = built.initial(0)
    features, labels = samples(Case(Twice, (3, 32, 32)), 2)
    updates = updates_for(model, 1)
    with caplog.at_level(logging.INFO, "fedaudit"):
        products = gradient_products(model, updates, features, labels)
    assert not caplog.records
    truth = truth_of(model, updates, features, labels)
    lengths = products.update_norms[:, None] * truth.squared_norms.sqrt()
    torch.testing.assert_close(products.dots / lengths, truth.dots / lengths, atol=1e-5, rtol=0)


def test_ill_fitting_arguments_are_refused() -> None:
    model = model_of("refused", FAST["linear"].build)
    x, y = torch.zeros(3, 6), torch.zeros(3).long()
    with pytest.raises(BadInput, match=r"update 0 has no entry .* 'weight'"):
        gradient_products(model, [{}], x, y)
    with pytest.raises(BadInput, match="at least 1, got 0"):
        gradient_products(model, [], x, y, workers=0)
    with pytest.raises(BadInput, match="no trainable parameters"):
        gradient_products(Model(Architecture("none", nn.Identity), {}), [], x, y)
