"""Clipped gradient sums compared with one backward pass per sample."""

import logging
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedaudit.core.errors import Unsupported
from fedaudit.core.modules import in_fastest_layout
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Batch, Params, add_scaled, norm, scaled
from fedaudit.defenses.dpsgd import clipped_sum
from fedaudit.fl.hooks import Objective
from fedaudit.models import architecture
from tests.networks import CASES, CLASSES, Twice

NETS = ("mlp-in-place", "conv", "residual", "tokens", "conv-1d", "twice")
every_net = pytest.mark.parametrize("name", NETS)


def net(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return CASES[name].build().double().train()


def draw_batch(purpose: str | int, shape: tuple[int, ...], count: int = 7) -> Batch:
    rng = seeded(0, purpose)
    x = 2 * torch.randn(count, *shape, generator=rng, dtype=torch.float64)
    return Batch(x, torch.randint(CLASSES, (count,), generator=rng), torch.arange(count))


def batch(name: str, count: int = 7) -> Batch:
    drawn = draw_batch(name, CASES[name].shape, count)
    if CASES[name].tokens:
        tokens = torch.randint(9, (count, *CASES[name].shape), generator=seeded(1, name))
        return Batch(tokens, drawn.y, drawn.ids)
    return drawn


def objective(module: nn.Module, *, has_sample_losses: bool = True) -> Objective:
    return Objective(
        module,
        lambda outputs, rows: cross_entropy(outputs, rows.y).mean(),
        per_sample=cross_entropy if has_sample_losses else None,
    )


def one_by_one(module: nn.Module, samples: Batch, clip: float, copies: int = 1) -> Params:
    params = dict(module.named_parameters())
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for start in range(0, len(samples), copies):
        rows = slice(start, start + copies)
        loss = cross_entropy(module(samples.x[rows]), samples.y[rows]).mean()
        values = torch.autograd.grad(loss, list(params.values()))
        gradient = dict(zip(params, values, strict=True))
        total = add_scaled(total, gradient, min(1.0, clip / norm(gradient)))
    return total


def same(left: Params, right: Params) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], rtol=1e-9, atol=1e-12)


@every_net
@pytest.mark.parametrize(
    ("clip", "copies"), [(0.05, 1), (1.0, 1), (1e6, 1), (0.3, 2), (1e6, 2), (0.3, 3), (1e6, 3)]
)
def test_sum_of_clipped_gradients_averaged_over_copies(name: str, clip: float, copies: int) -> None:
    module, samples = net(name), batch(name, 7 if copies == 1 else 4 * copies)
    total = clipped_sum(objective(module), samples, clip=clip, copies=copies)
    same(total, one_by_one(module, samples, clip, copies))


@every_net
def test_clipping_supports_custom_losses_and_soft_labels(name: str) -> None:
    module, samples = net(name), batch(name)
    total = clipped_sum(objective(module, has_sample_losses=False), samples, clip=0.3)
    same(total, one_by_one(module, samples, 0.3))
    soft = torch.nn.functional.one_hot(samples.y, CLASSES).double() * 0.7 + 0.06
    samples = Batch(samples.x, soft, samples.ids)
    same(clipped_sum(objective(module), samples, clip=0.3), one_by_one(module, samples, 0.3))


@every_net
def test_no_samples_have_no_gradient(name: str) -> None:
    total = clipped_sum(objective(net(name)), batch(name, 0), clip=1.0)
    assert all(not value.any() for value in total.values())


@every_net
@settings(max_examples=6, deadline=None)
@given(clip=st.floats(1e-4, 1e2), row=st.integers(0, 6))
def test_one_sample_changes_the_sum_by_at_most_the_clipping_norm(
    name: str, clip: float, row: int
) -> None:
    module, samples = net(name), batch(name)
    alone = Batch(samples.x[row : row + 1], samples.y[row : row + 1], samples.ids[row : row + 1])
    length = norm(clipped_sum(objective(module), alone, clip=clip))
    unclipped_length = norm(one_by_one(module, alone, 1e9))
    assert length <= clip * (1 + 1e-9)
    assert length == pytest.approx(min(clip, unclipped_length), rel=1e-9)


@every_net
def test_without_a_clip_the_sum_is_the_gradient_of_the_sum(name: str) -> None:
    module, samples = net(name), batch(name)
    plain = torch.autograd.grad(objective(module)(samples), list(module.parameters()))
    bare = dict(zip(dict(module.named_parameters()), plain, strict=True))
    same(
        clipped_sum(objective(module), samples, clip=float("inf")),
        scaled(bare, float(len(samples))),
    )


def test_clipping_keeps_a_zero_gradient_zero() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, CLASSES, bias=False)).double()
    with torch.no_grad():
        next(module.parameters()).fill_(-1.0)
    sample = Batch(torch.ones(1, 2).double(), torch.tensor([0]), torch.tensor([0]))
    total = clipped_sum(objective(module), sample, clip=1.0)
    assert all(value.isfinite().all() and not value.any() for value in total.values())


def test_clipping_excludes_frozen_parameters() -> None:
    module, samples = net("conv"), batch("conv")
    for param in next(module.children()).parameters():
        param.requires_grad_(False)
    clipped = clipped_sum(objective(module), samples, clip=0.3)
    assert clipped.keys() == {n for n, p in module.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(value) for name, value in clipped.items()}
    for x, y in zip(samples.x, samples.y, strict=True):
        values = torch.autograd.grad(
            cross_entropy(module(x[None]), y[None]).sum(), list(objective(module).params.values())
        )
        gradient = dict(zip(total, values, strict=True))
        total = add_scaled(total, gradient, min(1.0, 0.3 / norm(gradient)))
    same(clipped, total)


def test_norms_and_sum_use_one_dropout_mask() -> None:
    module = nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5), nn.Linear(30, CLASSES)).double()
    samples = batch("mlp-in-place", 1)
    with torch.random.fork_rng(devices=[]):
        for seed in range(5):
            torch.manual_seed(seed)
            clipped = clipped_sum(objective(module), samples, clip=0.01)
            assert norm(clipped) == pytest.approx(0.01, rel=1e-9)
            torch.manual_seed(seed)
            loss = objective(module)(samples)
            values = torch.autograd.grad(loss, list(module.parameters()))
            bare = dict(zip(clipped, values, strict=True))
            same(clipped, scaled(bare, 0.01 / norm(bare)))


def test_clipping_leaves_no_hooks_on_the_network() -> None:
    for name in NETS:
        module = net(name)
        clipped_sum(objective(module), batch(name), clip=1.0)
        assert not any(part._forward_hooks for part in module.modules())


@pytest.mark.parametrize("copies", [1, 2])
def test_images_with_channels_last_have_the_same_clipped_sum(copies: int) -> None:
    for name in ("conv", "deep-conv"):
        module, samples = in_fastest_layout(net(name)), batch(name, 4 * copies)
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                assert part.weight.is_contiguous(memory_format=torch.channels_last)
        total = clipped_sum(objective(module), samples, clip=0.2, copies=copies)
        same(total, one_by_one(module, samples, 0.2, copies))


@pytest.mark.parametrize(("name", "width"), [("resnet18", 32), ("wide-resnet", 1)])
def test_residual_networks_are_clipped_over_copies_of_images(name: str, width: int) -> None:
    torch.manual_seed(0)
    build = architecture(name, shape=(3, 8, 8), classes=CLASSES, width=width).build
    module, samples = in_fastest_layout(build().double().train()), draw_batch(name, (3, 8, 8), 4)
    total = clipped_sum(objective(module), samples, clip=0.2, copies=2)
    same(total, one_by_one(module, samples, 0.2, copies=2))


def test_one_network_clips_batches_of_alternating_shapes() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
    ).double()
    for side in (6, 14, 6):
        samples = draw_batch(side, (1, side, side), 4)
        same(clipped_sum(objective(module), samples, clip=0.1), one_by_one(module, samples, 0.1))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True)]
)
def test_clipping_raises_for_layers_that_mix_samples(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), layer, nn.Flatten(), nn.Linear(300, CLASSES))
    samples = draw_batch("images", (1, 12, 12))
    with pytest.raises(Unsupported, match=r"mix the samples .* group normalisation"):
        clipped_sum(objective(module.double().train()), samples, clip=1.0)


def test_layers_without_fast_clipping_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Nameable(Twice):
        pass

    module = Nameable().double()
    with caplog.at_level(logging.WARNING, logger="fedaudit"):
        clipped_sum(objective(module), batch("twice"), clip=1.0)
    assert "Nameable" in caplog.text
    assert "called twice" in caplog.text


@pytest.mark.parametrize("name", ["mlp-in-place", "conv"])
def test_opacus_ghost_clipping_agrees(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grad_sample = pytest.importorskip("opacus.grad_sample")
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping

    plain = net(name)
    for part in plain.modules():
        if isinstance(part, nn.ReLU):
            part.inplace = False  # Opacus does not support it.
    samples, clip = batch(name), 0.4
    ours = clipped_sum(objective(plain), samples, clip=clip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = grad_sample.GradSampleModuleFastGradientClipping(
            plain, max_grad_norm=clip, use_ghost_clipping=True, loss_reduction="mean"
        )
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(plain.parameters(), lr=1.0),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=len(samples),
        )
        criterion = nn.CrossEntropyLoss()
        loss = DPLossFastGradientClipping(wrapped, optimizer, criterion, "mean")
        loss(wrapped(samples.x), samples.y).backward()
    for key, param in plain.named_parameters():
        assert param.grad is not None
        # Opacus adds 1e-6 to each norm before dividing by it.
        torch.testing.assert_close(param.grad, ours[key], rtol=1e-4, atol=1e-6)
