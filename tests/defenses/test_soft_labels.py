from collections.abc import Callable
from functools import partial
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch
from fedaudit.defenses.hamp import Hamp
from fedaudit.defenses.relaxloss import RelaxLoss
from fedaudit.defenses.soft_labels import (
    divergence_per_class,
    entropy,
    label_of_entropy,
    one_hot,
    soft_target,
    true_probability,
)
from fedaudit.fl.hooks import Defense
from tests.defenses.turns import context


@pytest.mark.parametrize(
    ("classes", "threshold", "own_probability", "other_probability"),
    [
        (100, 0.5, 0.64, 0.00364),
        (10, 0.95, 0.26, 0.08222),
        (4, 0.0, 1.0, 0.0),
        (3, 1.0, 1 / 3, 1 / 3),
    ],
)
def test_entropy_labels_match_hand_calculation(
    classes: int, threshold: float, own_probability: float, other_probability: float
) -> None:
    label = label_of_entropy(classes, threshold).tolist()
    assert label[0] == pytest.approx(own_probability)
    assert label[1:] == pytest.approx([other_probability] * (classes - 1), abs=5e-6)


@given(classes=st.integers(2, 300), threshold=st.floats(0, 1))
def test_entropy_labels_are_distributions_with_the_true_class_largest(
    classes: int, threshold: float
) -> None:
    label = label_of_entropy(classes, threshold).double()
    assert float(label.sum()) == pytest.approx(1)
    assert float(torch.special.entr(label).sum()) >= threshold * log(classes) - 1e-5
    assert float(label[0]) >= float(label.max()) - 1e-6


@pytest.mark.parametrize(
    ("classes", "threshold"), [(1, 0.5), (10, 1.1), (10, -0.1), (10, float("nan"))]
)
def test_a_label_of_an_impossible_entropy_is_refused(classes: int, threshold: float) -> None:
    with pytest.raises(BadInput, match="at least 2 classes and a threshold in"):
        label_of_entropy(classes, threshold)


def test_a_soft_target_shares_the_rest_among_other_classes() -> None:
    rows = soft_target(torch.tensor([0.7, 0.1]), torch.tensor([0, 2]), classes=4)
    expected = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.3, 0.3, 0.1, 0.3]])
    torch.testing.assert_close(rows, expected)
    with pytest.raises(BadInput, match="at least 2 classes, got 1"):
        soft_target(torch.ones(1), torch.tensor([0]), classes=1)


def test_a_label_that_is_no_class_is_an_error() -> None:
    assert one_hot(torch.tensor([1, 0]), classes=2).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    with pytest.raises(RuntimeError, match="out of bounds"):
        one_hot(torch.tensor([2]), classes=2)


def test_the_probability_of_a_soft_target_keeps_its_graph() -> None:
    outputs = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    own_probability = true_probability(outputs, torch.tensor([1]))
    torch.testing.assert_close(own_probability, outputs.softmax(dim=1)[:, 1])
    target = soft_target(own_probability, torch.tensor([1]), classes=3)
    (gradient,) = torch.autograd.grad(target[0, 0], outputs)
    # Another class has (1 - p) / 2, and dp / d(true output) = p (1 - p).
    probability = float(own_probability.detach())
    assert float(gradient[0, 1]) == pytest.approx(-probability * (1 - probability) / 2)


def test_entropy_is_that_of_the_prediction() -> None:
    outputs = torch.log(torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]))
    torch.testing.assert_close(entropy(outputs), torch.tensor([1.5 * log(2), log(3)]))
    assert entropy(torch.tensor([[1e4, 0.0, 0.0]])).tolist() == [0.0]


def test_mean_divergence_equals_torch_kl_div() -> None:
    rng = seeded(0, "divergence")
    outputs, other = torch.randn(6, 5, generator=rng), torch.randn(6, 5, generator=rng)
    targets = other.softmax(dim=1)
    with pytest.warns(UserWarning, match="batchmean"):
        expected = functional.kl_div(outputs.log_softmax(dim=1), targets)
    torch.testing.assert_close(divergence_per_class(outputs, targets).mean(), expected)


def test_divergence_from_a_hard_label_is_the_mean_cross_entropy() -> None:
    outputs, labels = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([2])
    targets = functional.one_hot(labels, 3).float()
    expected = functional.cross_entropy(outputs, labels) / 3
    torch.testing.assert_close(divergence_per_class(outputs, targets)[0], expected)


ASKING = {"hamp": Hamp(0.5, 0.01), "relaxloss": RelaxLoss(1.0)}


@pytest.mark.parametrize("name", ASKING)
def test_mixed_labels_raise_if_classes_are_needed(name: str) -> None:
    batch = Batch(torch.zeros(2, 4), torch.full((2, 3), 1 / 3), torch.arange(2))
    message = f"{name!r} needs the class of each sample.*remove the defense that mixes labels"
    with pytest.raises(Unsupported, match=message):
        ASKING[name].loss(torch.zeros(2, 3), batch, context())


@given(
    scale=st.sampled_from([0.0, 1.0, 1e3, 1e30]),
    round=st.integers(1, 2),
    make=st.floats(0, 1).map(lambda threshold: partial(Hamp, threshold, 0.01))
    | st.tuples(
        st.sampled_from([0.0, 1.0, log(5), 1e6]), st.sampled_from(["images", "tables"])
    ).map(lambda settings: partial(RelaxLoss, settings[0], form=settings[1])),  # type: ignore[arg-type]
)
def test_losses_and_gradients_are_finite_for_any_outputs(
    scale: float, round: int, make: Callable[[], Defense]
) -> None:
    # The defense is created here, since type checks draw random numbers, as strategies must not.
    defense = make()
    rng = seeded(0, "outputs")
    outputs = (scale * torch.randn(6, 5, generator=rng)).requires_grad_()
    labels = torch.randint(5, (6,), generator=rng)
    batch = Batch(torch.zeros(6, 4), labels, torch.arange(6))
    loss = defense.loss(outputs, batch, context(round, classes=5))
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert bool(loss.isfinite())
    assert bool(gradient.isfinite().all())
