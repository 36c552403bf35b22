import pytest
import torch
from torch import Tensor

from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch
from fedaudit.defenses.hamp import Hamp
from tests.defenses.turns import context


def example(classes: int, samples: int = 6) -> tuple[Tensor, Batch]:
    rng = seeded(0, "hamp", classes)
    outputs = 3 * torch.randn(samples, classes, generator=rng, dtype=torch.float64)
    labels = torch.randint(classes, (samples,), generator=rng)
    batch = Batch(torch.zeros(samples, 4), labels, torch.arange(samples))
    return outputs.requires_grad_(), batch


def by_loops(outputs: Tensor, batch: Batch, own_probability: float, weight: float) -> Tensor:
    """Return the published loss: KL divided by samples times classes, minus mean entropy."""
    samples, classes = outputs.shape
    divergence, doubt = outputs.new_zeros(()), outputs.new_zeros(())
    for sample in range(samples):
        predicted = outputs[sample].exp() / outputs[sample].exp().sum()
        for label in range(classes):
            p = predicted[label]
            target = (
                own_probability
                if label == int(batch.y[sample])
                else (1 - own_probability) / (classes - 1)
            )
            divergence = divergence + target * (torch.log(torch.tensor(target)) - p.log())
            doubt = doubt - p * p.log()
    return divergence / (samples * classes) - weight * doubt / samples


@pytest.mark.parametrize(
    ("classes", "threshold", "own_probability", "weight"),
    [(10, 0.95, 0.26, 0.001), (100, 0.5, 0.64, 0.005)],
)
def test_loss_and_gradient_are_the_published_ones(
    classes: int, threshold: float, own_probability: float, weight: float
) -> None:
    outputs, batch = example(classes)
    ours = Hamp(threshold, weight).loss(outputs, batch, context(classes=classes))
    slow = by_loops(outputs, batch, own_probability, weight)
    torch.testing.assert_close(ours, slow, rtol=1e-6, atol=1e-8)
    gradient, expected = (torch.autograd.grad(loss, outputs)[0] for loss in (ours, slow))
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-9)


def test_without_division_the_loss_is_scaled_by_the_class_count() -> None:
    outputs, batch = example(7)
    training_context = context(classes=7)
    published = Hamp(0.6, 0.01).loss(outputs, batch, training_context)
    undivided = Hamp(0.6, 0.01, divide_by_classes=False).loss(outputs, batch, training_context)
    torch.testing.assert_close(undivided, 7 * published)


def test_tiny_settings_equal_scaled_cross_entropy() -> None:
    outputs, batch = example(5)
    training_context = context(classes=5)
    plain = torch.nn.functional.cross_entropy(outputs, batch.y)
    torch.testing.assert_close(Hamp(0.0, 0.0).loss(outputs, batch, training_context), plain / 5)
    near = Hamp(0.0, 1e-12, divide_by_classes=False).loss(outputs, batch, training_context)
    torch.testing.assert_close(near, plain)


def test_zero_settings_without_division_have_no_effect() -> None:
    assert not Hamp(0.0, 0.0, divide_by_classes=False).acts_in("loss")
    assert Hamp(0.0, 0.0).acts_in("loss")
    assert Hamp(0.0, 0.1, divide_by_classes=False).acts_in("loss")
