from math import log

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch
from fedaudit.defenses.relaxloss import RelaxLoss
from tests.defenses.turns import context

TOWARDS_TARGET, IN_TURN = 1, 2
"""Rounds of the two branches."""


def example(scale: float = 1.0) -> tuple[Tensor, Batch]:
    rng = seeded(0, "relaxloss")
    outputs = scale * torch.randn(8, 5, generator=rng, dtype=torch.float64)
    labels = torch.randint(5, (8,), generator=rng)
    # Half of the samples are classified correctly.
    outputs[:4] += 3 * functional.one_hot(labels[:4], 5)
    return outputs.requires_grad_(), Batch(torch.zeros(8, 4), labels, torch.arange(8))


def step(defense: RelaxLoss, round: int, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    loss = defense.loss(outputs, batch, context(classes=5, round=round))
    return loss.detach(), torch.autograd.grad(loss, outputs)[0]


def plain(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    loss = functional.cross_entropy(outputs, batch.y)
    return loss.detach(), torch.autograd.grad(loss, outputs)[0]


def flattened(
    outputs: Tensor, batch: Batch, upper: float, *, images: bool
) -> tuple[Tensor, Tensor]:
    """Return loss and gradient of the flattening branch, computed sample by sample."""
    total = outputs.new_zeros(())
    for row, label in zip(outputs, batch.y.tolist(), strict=True):
        predicted = row.exp() / row.exp().sum()
        own_probability = torch.minimum(predicted[label], torch.tensor(upper, dtype=row.dtype))
        other_probability = (1 - own_probability) / (len(row) - 1)
        soft = -sum(
            (own_probability if i == label else other_probability) * predicted[i].log()
            for i in range(len(row))
        )
        right = int(row.argmax()) == label
        total = total + ((0.0 if right else soft) + predicted[label].log() if images else soft)
    loss = total / len(outputs)
    return loss.detach(), torch.autograd.grad(loss, outputs)[0]


@pytest.mark.parametrize("sign", [1, -1], ids=["below", "above"])
def test_odd_rounds_move_the_mean_loss_towards_the_target(sign: int) -> None:
    outputs, batch = example()
    plain_loss, plain_gradient = plain(outputs, batch)
    target = float(plain_loss) + sign * 0.3
    loss, gradient = step(RelaxLoss(target), TOWARDS_TARGET, outputs, batch)
    assert float(loss) == pytest.approx(0.3)
    # The loss increases below the target, and decreases above it.
    torch.testing.assert_close(gradient, -sign * plain_gradient)


def test_even_rounds_descend_above_the_target_loss() -> None:
    outputs, batch = example()
    plain_loss, plain_gradient = plain(outputs, batch)
    loss, gradient = step(RelaxLoss(float(plain_loss) - 0.1), IN_TURN, outputs, batch)
    torch.testing.assert_close(loss, plain_loss)
    torch.testing.assert_close(gradient, plain_gradient)


@pytest.mark.parametrize("upper", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("form", ["images", "tables"])
def test_relaxloss_flattens_posteriors_in_even_rounds(form: str, upper: float) -> None:
    outputs, batch = example()
    ours = step(RelaxLoss(50.0, upper, form), IN_TURN, outputs, batch)  # type: ignore[arg-type]
    slow = flattened(outputs, batch, upper, images=form == "images")
    torch.testing.assert_close(ours[0], slow[0])
    torch.testing.assert_close(ours[1], slow[1])


def test_the_loss_of_a_misclassified_sample_matches_hand_calculation() -> None:
    # Probabilities 1/4 (true class), 1/2 and 1/4 give the soft label 1/4, 3/8 and 3/8.
    outputs = torch.log(torch.tensor([[0.25, 0.5, 0.25]]))
    batch = Batch(torch.zeros(1, 4), torch.tensor([0]), torch.arange(1))
    soft = 0.25 * log(4) + 0.375 * log(2) + 0.375 * log(4)
    loss = RelaxLoss(9.0).loss(outputs, batch, context(round=IN_TURN))
    assert float(loss) == pytest.approx(soft - log(4))
    loss = RelaxLoss(9.0, form="tables").loss(outputs, batch, context(round=IN_TURN))
    assert float(loss) == pytest.approx(soft)


def test_a_client_with_one_epoch_per_round_uses_both_branches() -> None:
    outputs, batch = example()
    losses = [float(step(RelaxLoss(5.0), round, outputs, batch)[0]) for round in (1, 2, 3, 4)]
    assert losses[0] == losses[2] > 0
    assert losses[1] == losses[3] != losses[0]


def test_a_target_of_zero_replaces_no_hook() -> None:
    outputs, batch = example()
    assert not RelaxLoss(0.0).acts_in("loss")
    assert RelaxLoss(0.1).acts_in("loss")
    for round in (1, 2):
        assert torch.equal(step(RelaxLoss(0.0), round, outputs, batch)[1], plain(outputs, batch)[1])
