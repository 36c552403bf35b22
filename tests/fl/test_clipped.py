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
from fedaudit.core.values import Batch, Params, norm, plus, scaled
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
    given = draw_batch(name, CASES[name].shape, count)
    if CASES[name].tokens:
        tokens = torch.randint(9, (count, *CASES[name].shape), generator=seeded(1, name))
        return Batch(tokens, given.y, given.ids)
    return given


def objective(module: nn.Module, *, known: bool = True) -> Objective:
    return Objective(
        module,
        lambda outputs, rows: cross_entropy(outputs, rows.y).mean(),
        per_sample=cross_entropy if known else None,
    )


def one_by_one(module: nn.Module, whole: Batch, clip: float, copies: int = 1) -> Params:
    params = dict(module.named_parameters())
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for at in range(0, len(whole), copies):
        rows = slice(at, at + copies)
        loss = cross_entropy(module(whole.x[rows]), whole.y[rows]).mean()
        values = torch.autograd.grad(loss, list(params.values()))
        found = dict(zip(params, values, strict=True))
        total = plus(total, found, min(1.0, clip / norm(found)))
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
    module, whole = net(name), batch(name, 7 if copies == 1 else 4 * copies)
    found = clipped_sum(objective(module), whole, clip=clip, copies=copies)
    same(found, one_by_one(module, whole, clip, copies))


@every_net
def test_clipping_supports_custom_losses_and_soft_labels(name: str) -> None:
    module, whole = net(name), batch(name)
    found = clipped_sum(objective(module, known=False), whole, clip=0.3)
    same(found, one_by_one(module, whole, 0.3))
    soft = torch.nn.functional.one_hot(whole.y, CLASSES).double() * 0.7 + 0.06
    whole = Batch(whole.x, soft, whole.ids)
    same(clipped_sum(objective(module), whole, clip=0.3), one_by_one(module, whole, 0.3))


@every_net
def test_no_samples_have_no_gradient(name: str) -> None:
    found = clipped_sum(objective(net(name)), batch(name, 0), clip=1.0)
    assert all(not value.any() for value in found.values())


@every_net
@settings(max_examples=6, deadline=None)
@given(clip=st.floats(1e-4, 1e2), row=st.integers(0, 6))
def test_one_sample_changes_the_sum_by_at_most_the_clipping_norm(
    name: str, clip: float, row: int
) -> None:
    module, whole = net(name), batch(name)
    alone = Batch(whole.x[row : row + 1], whole.y[row : row + 1], whole.ids[row : row + 1])
    length = norm(clipped_sum(objective(module), alone, clip=clip))
    whole_length = norm(one_by_one(module, alone, 1e9))
    assert length <= clip * (1 + 1e-9)
    assert length == pytest.approx(min(clip, whole_length), rel=1e-9)


@every_net
def test_without_a_clip_the_sum_is_the_gradient_of_the_sum(name: str) -> None:
    module, whole = net(name), batch(name)
    plain = torch.autograd.grad(objective(module)(whole), list(module.parameters()))
    bare = dict(zip(dict(module.named_parameters()), plain, strict=True))
    same(clipped_sum(objective(module), whole, clip=float("inf")), scaled(bare, float(len(whole))))


def test_clipping_keeps_a_zero_gradient_zero() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, CLASSES, bias=False)).double()
    with torch.no_grad():
        next(module.parameters()).fill_(-1.0)
    one = Batch(torch.ones(1, 2).double(), torch.tensor([0]), torch.tensor([0]))
    found = clipped_sum(objective(module), one, clip=1.0)
    assert all(value.isfinite().all() and not value.any() for value in found.values())


def test_clipping_excludes_frozen_parameters() -> None:
    module, whole = net("conv"), batch("conv")
    for param in next(module.children()).parameters():
        param.requires_grad_(False)
    found = clipped_sum(objective(module), whole, clip=0.3)
    assert found.keys() == {n for n, p in module.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(value) for name, value in found.items()}
    for x, y in zip(whole.x, whole.y, strict=True):
        values = torch.autograd.grad(
            cross_entropy(module(x[None]), y[None]).sum(), list(objective(module).params.values())
        )
        one = dict(zip(total, values, strict=True))
        total = plus(total, one, min(1.0, 0.3 / norm(one)))
    same(found, total)


def test_norms_and_sum_use_one_dropout_mask() -> None:
    module = nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5), nn.Linear(30, CLASSES)).double()
    whole = batch("mlp-in-place", 1)
    with torch.random.fork_rng(devices=[]):
        for seed in range(5):
            torch.manual_seed(seed)
            found = clipped_sum(objective(module), whole, clip=0.01)
            assert norm(found) == pytest.approx(0.01, rel=1e-9)
            torch.manual_seed(seed)
            loss = objective(module)(whole)
            values = torch.autograd.grad(loss, list(module.parameters()))
            bare = dict(zip(found, values, strict=True))
            same(found, scaled(bare, 0.01 / norm(bare)))


def test_clipping_leaves_no_hooks_on_the_network() -> None:
    for name in NETS:
        module = net(name)
        clipped_sum(objective(module), batch(name), clip=1.0)
        assert not any(part._forward_hooks for part in module.modules())


@pytest.mark.parametrize("copies", [1, 2])
def test_images_with_channels_last_are_clipped_alike(copies: int) -> None:
    for name in ("conv", "deep-conv"):
        module, whole = in_fastest_layout(net(name)), batch(name, 4 * copies)
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                assert part.weight.is_contiguous(memory_format=torch.channels_last)
        found = clipped_sum(objective(module), whole, clip=0.2, copies=copies)
        same(found, one_by_one(module, whole, 0.2, copies))


@pytest.mark.parametrize(("name", "width"), [("resnet18", 32), ("wide-resnet", 1)])
def test_residual_networks_are_clipped_over_copies_of_images(name: str, width: int) -> None:
    torch.manual_seed(0)
    build = architecture(name, shape=(3, 8, 8), classes=CLASSES, width=width).build
    module, whole = in_fastest_layout(build().double().train()), draw_batch(name, (3, 8, 8), 4)
    found = clipped_sum(objective(module), whole, clip=0.2, copies=2)
    same(found, one_by_one(module, whole, 0.2, copies=2))


def test_one_network_clips_batches_of_alternating_shapes() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
    ).double()
    for side in (6, 14, 6):
        whole = draw_batch(side, (1, side, side), 4)
        same(clipped_sum(objective(module), whole, clip=0.1), one_by_one(module, whole, 0.1))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True)]
)
def test_clipping_raises_for_layers_that_mix_samples(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Conv2d(1, 3, 3), layer, nn.Flatten(), nn.Linear(300, CLASSES))
    whole = draw_batch("images", (1, 12, 12))
    with pytest.raises(Unsupported, match=r"mix the samples .* group normalisation"):
        clipped_sum(objective(module.double().train()), whole, clip=1.0)


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
    whole, clip = batch(name), 0.4
    ours = clipped_sum(objective(plain), whole, clip=clip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = grad_sample.GradSampleModuleFastGradientClipping(
            plain, max_grad_norm=clip, use_ghost_clipping=True, loss_reduction="mean"
        )
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(plain.parameters(), lr=1.0),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=len(whole),
        )
        criterion = nn.CrossEntropyLoss()
        loss = DPLossFastGradientClipping(wrapped, optimizer, criterion, "mean")
        loss(wrapped(whole.x), whole.y).backward()
    for key, param in plain.named_parameters():
        assert param.grad is not None
        # Opacus adds 1e-6 to each norm before dividing by it.
        torch.testing.assert_close(param.grad, ours[key], rtol=1e-4, atol=1e-6)
