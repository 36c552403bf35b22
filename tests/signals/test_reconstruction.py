"""Reconstruction from the first layer, compared with samples that are known to be revealed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Samples
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.models import CNN, MLP
from fedaudit.observe.round import ObservedModels
from fedaudit.signals.measure import measure_round
from fedaudit.signals.reconstruction import NearestReconstruction
from tests.samples import random_samples
from tests.signals.test_signals import make_round

LINEAR = Architecture("linear", MLP(hidden="").for_samples((3,), 2))
NET = Architecture("net", MLP(hidden="50").for_samples((12,), 4))


def distances(weights: Tensor, biases: Tensor, features: Tensor) -> Tensor:
    """Return the distance of each sample for an update of a linear model."""
    base = LINEAR.initial(0)
    update = {"1.weight": weights, "1.bias": biases}
    samples = Samples(features, torch.zeros(len(features), dtype=torch.int64))
    round = make_round({0: ObservedModels(base, base, update)})
    return -measure_round(round, [NearestReconstruction()], samples).signals[SIGNAL][0]


SIGNAL = NearestReconstruction().name


def test_distances_to_the_nearest_candidate_match_hand_calculation() -> None:
    # The candidates are (1, 2, 2) and (0, 0, 5).
    weights = torch.tensor([[-0.5, -1.0, -1.0], [0.0, 0.0, 10.0]])
    biases = torch.tensor([-0.5, 2.0])
    features = torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 4.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    found = distances(weights, biases, features)
    expected = torch.tensor([0.0, 1 / 4, 1 / 12**0.5]).double()
    torch.testing.assert_close(found[:3], expected)
    assert bool(found.isfinite().all())


def test_neurons_without_an_update_give_no_candidate() -> None:
    features = torch.tensor([[1.0, 0.0, 0.0]])
    one = distances(
        torch.tensor([[0.0, 3.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([1.0, 0]), features
    )
    assert one.tolist() == [pytest.approx(10**0.5)]
    none = distances(torch.zeros(2, 3), torch.zeros(2), features)
    assert none.tolist() == [1.0]


def test_a_client_with_one_sample_reveals_it_and_no_other() -> None:
    data = random_samples(seeded(0, "x"), 40, 12, classes=4)
    clients = {0: data.take(slice(0, 1)), 1: data.take(slice(1, 2))}
    (round,) = simulate(FedAvg(NET, LocalTraining(batch_size=1)), clients, rounds=1, seed=1)
    found = -measure_round(round, [NearestReconstruction()], data).signals[SIGNAL]
    assert float(found[0, 0]) < 1e-4
    assert float(found[1, 1]) < 1e-4
    assert float(found[0, 1:].min()) > 0.1


def _network(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            CNN(channels="4", hidden="8", kernel=3).for_samples((1, 8, 8), 3),
            "are not the samples themselves",
        ),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3, bias=False)),
            "linear layer with a bias",
        ),
        (lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(64, 3)), "samples themselves"),
    ],
)
def test_other_models_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    architecture = Architecture("other", make)
    base = architecture.initial(0)
    features = torch.randn(5, 1, 8, 8, generator=seeded(0, "x"))
    samples = Samples(features, torch.zeros(5, dtype=torch.int64))
    observed = ObservedModels(
        base, base, {name: torch.ones_like(v) for name, v in base.params.items()}
    )
    with pytest.raises(Unsupported, match=message):
        measure_round(make_round({0: observed}), [NearestReconstruction()], samples)
