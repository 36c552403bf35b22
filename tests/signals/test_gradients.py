import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.task_catalogue import of_loss
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Architecture, Model, Params, Setting, flat
from fedaudit.models import MODELS, architecture
from fedaudit.signals.gradients import (
    GradientProducts,
    cosine,
    gradient_products,
    products_centred_in_tail,
    products_without_tail,
)
from fedaudit.signals.kernels import Layer, LayerKernel, LayerProducts, plan
from tests.networks import CASES, CLASSES, FAST, GENERIC, WHOLE, Case, Twice
from tests.rounding import RoundedByPlace


class Truth(NamedTuple):
    dots: Tensor
    squared_norms: Tensor


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Inputs(NamedTuple):
    model: Model
    updates: list[Params]
    features: Tensor
    labels: Tensor


_number = itertools.count()


def make_inputs(case: Case, clients: int = 2, count: int = 7) -> Inputs:
    """Return inputs for a network with a new name, since warnings appear once per name."""
    labels = torch.randint(CLASSES, (count,), generator=rng(1))
    features = torch.randn(count, *case.shape, generator=rng(2))
    if case.tokens:
        features = torch.randint(9, (count, *case.shape), generator=rng(2))
    model = Architecture(f"net {next(_number)}", case.build).initial(0)
    return Inputs(model, updates_for(model, clients), features, labels)


def updates_for(model: Model, clients: int) -> list[Params]:
    source = rng(3)
    return [
        {name: 0.1 * torch.randn(v.shape, generator=source) for name, v in model.params.items()}
        for _ in range(clients)
    ]


def truth_of(
    model: Model,
    updates: list[Params],
    features: Tensor,
    labels: Tensor,
    projected: Callable[[Tensor], Tensor] = lambda vector: vector,
) -> Truth:
    """Return products from one backward pass per sample in double precision."""
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
        grads = torch.autograd.grad(loss, params, allow_unused=True)
        gradient = torch.cat(
            [
                (torch.zeros_like(p) if part is None else part).flatten()
                for p, part in zip(params, grads, strict=True)
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


def assert_measured_exactly(inputs: Inputs) -> None:
    assert_exact(gradient_products(*inputs), truth_of(*inputs))


@pytest.mark.parametrize(
    ("name", "clients", "count"),
    # Kernels use other algorithms for many clients.
    [(name, *how) for name in FAST for how in ((0, 7), (1, 7), (3, 7), (40, 3))],
)
def test_fast_kernels_agree_with_float64_autograd(
    name: str, clients: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fedaudit"):
        assert_measured_exactly(make_inputs(FAST[name], clients, count))
    assert not caplog.records


@pytest.mark.parametrize("tail", [0.04, 0.3, 0.6])
@pytest.mark.parametrize("name", ["linear", "conv", "tokens", "grouped", "twice"])
def test_products_of_projected_vectors_equal_explicit_ones(
    name: str, tail: float, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = make_inputs(CASES[name], 3)
    last = int(tail * sum(value.numel() for value in inputs.model.params.values()))
    with caplog.at_level(logging.WARNING, "fedaudit"):
        for products_of, projected in (
            (products_without_tail, without_last),
            (products_centred_in_tail, centred_in_last),
        ):
            assert_exact(
                products_of(*inputs, tail=tail), truth_of(*inputs, partial(projected, last=last))
            )
    assert all("a slower exact method" not in r.getMessage() for r in caplog.records) or (
        name in WHOLE
    )


def test_projected_products_match_hand_calculation() -> None:
    # The loss is the output, so the gradient is (x, 1), here (3, 5, 1).
    def output(outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs[:, 0]

    model = Architecture(
        "by hand", partial(nn.Linear, 2, 1), task=of_loss("output", output)
    ).initial(0)
    inputs = (
        model,
        [{"weight": torch.tensor([[1.0, 4.0]]), "bias": torch.tensor([2.0])}],
        torch.tensor([[3.0, 5.0]]),
        torch.tensor([0]),
    )
    # With a tail of two entries, (1, 4, 2) and (3, 5, 1) become (1, 1, -1) and (3, 2, -2).
    dots, squared, lengths = products_centred_in_tail(*inputs, tail=0.67)
    assert (float(dots), float(squared)) == pytest.approx((7, 17))
    assert float(lengths) == pytest.approx(3**0.5)
    dots, squared, lengths = products_without_tail(*inputs, tail=0.67)
    assert (float(dots), float(squared), float(lengths)) == pytest.approx((3, 9, 1))
    # With a tail of one entry, the entry becomes 0.
    dots, squared, lengths = products_centred_in_tail(*inputs, tail=0.34)
    assert (float(dots), float(squared)) == pytest.approx((23, 34))
    assert float(lengths) == pytest.approx(17**0.5)
    # With a tail of less than one entry, nothing is changed.
    for products_of in (products_centred_in_tail, products_without_tail):
        dots, squared, _ = products_of(*inputs, tail=0.2)
        assert (float(dots), float(squared)) == pytest.approx((25, 35))


@pytest.mark.parametrize("name", GENERIC | WHOLE)
def test_modules_without_fast_kernel_are_exact_and_logged_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = make_inputs(CASES[name])
    with caplog.at_level(logging.INFO, "fedaudit"):
        assert_measured_exactly(inputs)
        gradient_products(*inputs)
    messages = [record.getMessage() for record in caplog.records]
    if name in WHOLE:
        assert len(messages) == 1
        assert "slower exact method, per-sample gradients" in messages[0]
    else:
        kinds = [message.split()[2] for message in messages]
        assert kinds == sorted(set(kinds))
        assert all("uses the generic kernel" in message for message in messages)


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        entered = x * 1
        first: Tensor = self.inner(entered)
        return first + entered.mul_(2)


def test_an_input_that_a_layer_overwrites_is_detected(caplog: pytest.LogCaptureFixture) -> None:
    inputs = make_inputs(Case(Overwriting, (5,)), 1)
    with caplog.at_level(logging.INFO, "fedaudit"), pytest.raises(RuntimeError, match="inplace"):
        gradient_products(*inputs)
    assert "was overwritten after its use" in caplog.records[0].getMessage()


class Noisy(Twice):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(x) * torch.rand(6))
        return out


def test_a_model_that_is_random_in_evaluation_mode_is_refused() -> None:
    inputs = make_inputs(Case(Noisy, (6,)), 1)
    with torch.random.fork_rng(), pytest.raises(Unsupported, match="remove randomness"):
        gradient_products(*inputs)


def test_samples_that_a_loss_mixes_are_measured_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def mixed(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs - outputs.mean(0) * (len(outputs) > 1), targets)

    model = Architecture("mixing", FAST["linear"].build, task=of_loss("mixed", mixed)).initial(0)
    with caplog.at_level(logging.INFO, "fedaudit"):
        assert_measured_exactly(make_inputs(FAST["linear"])._replace(model=model))
    assert "differ from ordinary autograd" in caplog.records[0].getMessage()


def test_results_of_a_broken_kernel_are_detected_and_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(layer: Layer) -> LayerKernel | None:
        sound = plan.linear_kernel(layer)
        assert sound is not None

        def kernel(module: nn.Module, inputs: Tensor, grads: Tensor) -> LayerProducts:
            share = sound(module, inputs, grads)
            return share._replace(dots=share.dots * 1.01)

        return kernel

    monkeypatch.setitem(plan.KERNELS, nn.Linear, broken)
    with caplog.at_level(logging.INFO, "fedaudit"):
        assert_measured_exactly(make_inputs(FAST["linear"]))
    assert "differ from ordinary autograd" in caplog.records[0].getMessage()


@pytest.mark.parametrize("name", ["conv", "tokens", "grouped", "twice"])
def test_workers_and_reruns_give_the_same_bits(name: str) -> None:
    inputs = make_inputs(CASES[name], 3, 40)
    single, repeated, parallel = (
        gradient_products(*inputs, workers=workers, chunk=8) for workers in (1, 1, 3)
    )
    for first, second, third in zip(single, repeated, parallel, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first, third)


@pytest.mark.parametrize("name", ["linear", "conv", "twice"])
def test_equal_updates_have_equal_products_on_every_processor(name: str) -> None:
    inputs = make_inputs(CASES[name], 2, 20)
    update, other = inputs.updates
    same = {key: value.clone() for key, value in update.items()}
    mixed = inputs._replace(updates=[update, other, same, update, same])
    usual = gradient_products(*mixed)
    with RoundedByPlace():
        rounded = gradient_products(*mixed)
    for products in (usual, rounded):
        assert torch.equal(products.dots[[0, 0, 0]], products.dots[[2, 3, 4]])
        assert not torch.equal(products.dots[0], products.dots[1])
        assert torch.equal(products.update_norms[[0, 0, 0]], products.update_norms[[2, 3, 4]])
    assert_exact(rounded, truth_of(*mixed))


def test_threads_and_input_tensors_are_unchanged() -> None:
    model, updates, features, _ = inputs = make_inputs(FAST["residual"])
    before = (features.clone(), [flat(u) for u in updates], flat(model.params))
    threads = torch.get_num_threads()
    gradient_products(*inputs, workers=2)
    assert torch.get_num_threads() == threads
    assert torch.equal(features, before[0])
    assert not features.requires_grad
    assert all(torch.equal(flat(u), old) for u, old in zip(updates, before[1], strict=True))
    assert torch.equal(flat(model.params), before[2])


def test_the_callers_module_keeps_its_training_mode() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, CLASSES)).train()
    model = Model.of(Architecture("dropping", lambda: module), module)
    _, _, features, labels = make_inputs(FAST["linear"])
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
    inputs = make_inputs(FAST["conv"])
    usual = gradient_products(*inputs)
    with torch.no_grad():
        without = gradient_products(*inputs)
    with torch.inference_mode():
        inference = gradient_products(*inputs._replace(features=inputs.features.clone()))
    assert torch.equal(usual.dots, without.dots)
    assert torch.equal(usual.dots, inference.dots)


def half_frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    next(module.parameters()).requires_grad_(False)
    return module


class Unused(Twice):
    def forward(self, x: Tensor) -> Tensor:
        self.inner(x)
        out: Tensor = self.out(x)
        return out


@pytest.mark.parametrize(("build", "audited"), [(half_frozen, 3), (Unused, 4)])
def test_parameters_without_audit_or_effect_contribute_nothing(
    build: Callable[[], nn.Module], audited: int
) -> None:
    inputs = make_inputs(Case(build, (6,)))
    assert len(inputs.model.params) == audited
    assert_measured_exactly(inputs)


def test_the_inner_product_of_a_linear_model_matches_hand_calculation() -> None:
    # Outputs are (0, 0) and probabilities 1/2, so the gradient is the outer product of p - y and x.
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
    inputs = make_inputs(FAST["conv"], 0)
    norms = gradient_products(inputs.model, [], inputs.features, inputs.labels).squared_norms.sqrt()
    torch.testing.assert_close(norms, truth_of(*inputs).squared_norms.sqrt(), rtol=1e-4, atol=0)


def test_no_samples_give_empty_products() -> None:
    products = gradient_products(*make_inputs(FAST["linear"], count=0))
    assert products.dots.shape == (2, 0)
    assert products.squared_norms.shape == (0,)


def test_a_model_in_double_precision_is_measured_in_it() -> None:
    deep = FAST["deep-conv"]
    inputs = make_inputs(deep._replace(build=lambda: deep.build().double()), 3)
    inputs = inputs._replace(
        updates=[{n: v.double() for n, v in u.items()} for u in inputs.updates],
        features=inputs.features.double(),
    )
    dots = gradient_products(*inputs).dots
    torch.testing.assert_close(dots, truth_of(*inputs).dots, rtol=1e-9, atol=1e-12)


def test_updates_are_cast_to_the_dtype_of_the_model() -> None:
    inputs = make_inputs(FAST["linear"])
    finer = [{name: value.double() for name, value in update.items()} for update in inputs.updates]
    usual = gradient_products(*inputs)
    assert torch.equal(usual.dots, gradient_products(*inputs._replace(updates=finer)).dots)


def test_a_model_that_has_diverged_has_no_cosines_and_is_not_refused() -> None:
    inputs = make_inputs(FAST["linear"], 1)
    diverged = {name: value * float("inf") for name, value in inputs.model.params.items()}
    model = Model(inputs.model.architecture, diverged)
    assert gradient_products(*inputs._replace(model=model)).squared_norms.isnan().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"diffusion", "minilm", "transformer"}))
def test_every_catalogue_model_of_images_has_fast_kernels_only(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    narrow: dict[str, dict[str, Setting]] = {"resnet18": {"width": 32}, "wide-resnet": {"width": 1}}
    shape, settings = (3, 32, 32), narrow.get(name, {})
    build = architecture(name, shape=shape, classes=CLASSES, **settings).build
    inputs = make_inputs(Case(build, shape), 1, 2)
    with caplog.at_level(logging.INFO, "fedaudit"):
        products = gradient_products(*inputs)
    assert not caplog.records
    truth = truth_of(*inputs)
    lengths = products.update_norms[:, None] * truth.squared_norms.sqrt()
    torch.testing.assert_close(products.dots / lengths, truth.dots / lengths, atol=1e-5, rtol=0)


def test_mismatched_arguments_raise() -> None:
    model, _, x, y = make_inputs(FAST["linear"])
    with pytest.raises(BadInput, match=r"update 0 has no entry .* 'weight'"):
        gradient_products(model, [{}], x, y)
    with pytest.raises(BadInput, match="at least 1, got 0"):
        gradient_products(model, [], x, y, workers=0)
    with pytest.raises(BadInput, match="no trainable parameters"):
        gradient_products(Model(Architecture("none", nn.Identity), {}), [], x, y)
