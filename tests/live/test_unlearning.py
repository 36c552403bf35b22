"""Unlearning of models that were trained elsewhere."""

import copy

import pytest
import torch
from torch import Tensor, nn

import fedaudit
from fedaudit.core.errors import BadInput

Pair = tuple[Tensor, Tensor]


def drawn(samples: int, seed: int) -> Pair:
    """Points whose class is random: all that can be learned of one is the point itself."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 60, generator=rng), torch.randint(3, (samples,), generator=rng)


FORGOTTEN, KEPT, UNSEEN, TEST = (drawn(each, seed) for seed, each in enumerate((60, 60, 60, 50)))


def fitted(*parts: Pair, start: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(1)
    fresh = nn.Sequential(nn.Linear(60, 100), nn.ReLU(), nn.Linear(100, 3))
    model = copy.deepcopy(start) if start is not None else fresh
    x, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
    return model.eval()


def test_the_unchanged_model_is_not_forgotten() -> None:
    before, retrained = fitted(FORGOTTEN, KEPT), fitted(KEPT)
    result = fedaudit.unlearning(
        before, before, retrained, deleted=FORGOTTEN, held_out=UNSEEN, test=TEST
    )
    assert result.figures.before.value > 0.95
    assert result.figures.verdict == "not forgotten"
    assert result.figures.both.value == 0.5
    assert result.utility["before"] == result.utility["after"]
    text = str(result)
    assert "not forgotten" in text
    assert "test accuracy" in text


def test_a_retrained_model_is_forgotten_but_both_models_reveal_deletion() -> None:
    before, retrained = fitted(FORGOTTEN, KEPT), fitted(KEPT)
    result = fedaudit.unlearning(
        before, retrained, retrained, deleted=FORGOTTEN, held_out=UNSEEN, margin=0.2
    )
    assert result.figures.excess.value == 0
    # Equal scores have no variance of their own: limits are those of both apart, which are wide.
    assert result.figures.verdict in ("forgotten", "inconclusive")
    assert result.figures.both.value > 0.7
    assert result.utility == {}


def clustered(samples: int, seed: int) -> Pair:
    """Points around a centre for each class, so that a model predicts unseen ones."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (samples,), generator=rng)
    return torch.randn(samples, 60, generator=rng) + 3 * torch.eye(3, 60)[labels], labels


@pytest.mark.parametrize("with_test", [True, False])
def test_a_destroyed_model_is_not_called_forgotten(with_test: bool) -> None:
    forgotten, trained_samples, unseen, test = (clustered(60, seed) for seed in range(4))
    before, wrecked = fitted(forgotten, trained_samples), fitted(trained_samples)
    torch.manual_seed(0)
    for value in wrecked.parameters():
        torch.nn.init.normal_(value.data, std=0.01)
    result = fedaudit.unlearning(
        before,
        wrecked,
        deleted=forgotten,
        held_out=unseen,
        test=test if with_test else None,
        margin=0.3,
    )
    assert result.figures.verdict == "model destroyed"
    assert "no longer predicts better than guessing" in str(result)
    sound = fedaudit.unlearning(before, fitted(trained_samples), deleted=forgotten, held_out=unseen)
    assert sound.figures.verdict != "model destroyed"


def test_utility_is_the_test_accuracy() -> None:
    before = fitted(FORGOTTEN, KEPT)
    result = fedaudit.unlearning(before, before, deleted=FORGOTTEN, held_out=UNSEEN, test=TEST)
    right = (before(TEST[0]).argmax(1) == TEST[1]).double().mean()
    assert result.utility["after"] == pytest.approx(float(right))


def test_unlearning_does_not_modify_models() -> None:
    before = fitted(FORGOTTEN, KEPT)
    values = copy.deepcopy(before.state_dict())
    fedaudit.unlearning(before, before, deleted=FORGOTTEN, held_out=UNSEEN)
    assert all(torch.equal(value, values[name]) for name, value in before.state_dict().items())


def test_invalid_models_and_margins_raise() -> None:
    before = fitted(FORGOTTEN, KEPT)
    with pytest.raises(BadInput, match="margin"):
        fedaudit.unlearning(before, before, deleted=FORGOTTEN, held_out=UNSEEN, margin=0.0)
    with pytest.raises(BadInput, match="class indices"):
        fedaudit.unlearning(before, before, deleted=FORGOTTEN, held_out=(TEST[0], TEST[1] - 1))
