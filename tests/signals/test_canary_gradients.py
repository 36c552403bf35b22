"""Planted gradients of canary samples."""

from dataclasses import replace

import pytest
import torch

from fedaudit.core.errors import NotVisible
from fedaudit.core.values import Samples
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals.base import VisibleRound
from fedaudit.signals.canary_gradients import CanaryCosine, canary_gradient

SAMPLES = Samples(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.tensor([5, 6, 9]))
PARAMETERS = 4000


def dense(sample_id: int) -> torch.Tensor:
    index, values = canary_gradient(sample_id, PARAMETERS)
    return torch.zeros(PARAMETERS, dtype=torch.float64).index_put((index,), values)


def visible(update: torch.Tensor | None) -> VisibleRound:
    params = None if update is None else {"a": update[:1000].view(10, 100), "b": update[1000:]}
    observed = {4: ObservedModels(update=params)}
    round = Round(
        index=1,
        observed=observed,
        sent={},
        uploads={},
        weights={4: 1.0},
        selected=(4,),
        answered=(4,),
        after={},
    )
    return VisibleRound(round, SAMPLES)


def test_planted_gradients_are_nearly_orthogonal_unit_vectors() -> None:
    vectors = torch.stack([dense(sample_id) for sample_id in range(100)])
    products = vectors @ vectors.T
    torch.testing.assert_close(products.diagonal(), torch.ones(100, dtype=torch.float64))
    off_diagonal = products - torch.eye(100)
    # The standard deviation of the cosines is 1/sqrt(4000) = 0.016.
    assert float(off_diagonal.abs().max()) < 5 * PARAMETERS**-0.5
    assert float(off_diagonal.square().sum() / 9900) == pytest.approx(1 / PARAMETERS, rel=0.1)


def test_a_small_model_has_dense_planted_gradients() -> None:
    index, values = canary_gradient(1, 10)
    assert sorted(index.tolist()) == list(range(10))
    assert float(values.square().sum()) == pytest.approx(1)


def test_the_cosine_is_that_of_the_negative_update() -> None:
    update = -3 * dense(6) + 0.5 * torch.randn(PARAMETERS, generator=torch.Generator()).double()
    (cosines,) = CanaryCosine()(visible(update))
    expected = [-float(dense(i) @ update / update.norm()) for i in (5, 6, 9)]
    torch.testing.assert_close(cosines, torch.tensor(expected, dtype=torch.float64))
    assert cosines.argmax() == 1


def test_the_cosine_of_a_zero_update_is_zero() -> None:
    assert CanaryCosine()(visible(torch.zeros(PARAMETERS))).tolist() == [[0.0] * 3]


def test_a_hidden_update_raises() -> None:
    with pytest.raises(NotVisible, match="hides the clients' updates"):
        CanaryCosine()(visible(None))


def test_a_value_does_not_depend_on_other_samples() -> None:
    round = visible(torch.arange(1.0, PARAMETERS + 1))
    alone = replace(round, samples=SAMPLES.take(slice(1, 2)))
    assert CanaryCosine()(alone)[0, 0] == CanaryCosine()(round)[0, 1]
