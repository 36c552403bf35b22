"""Neurons that a malicious server plants in a model to detect a sample, in federated rounds."""

import pytest
import torch
from torch import nn

from fedaudit.attacks.ami import GameRules, NeuronTraining
from fedaudit.attacks.ami.game import Contest, SampleSources
from fedaudit.attacks.ami.plant import Neurons, PlantedModel, fired_in_batch, gradient_row, plant
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.fl.algorithms.base import Tampering
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.algorithms.fedsgd import FedSGD
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.models import MLP
from fedaudit.observe.round import Gradient, Round

FEATURES, UNITS, TARGETS = 12, 30, 3
NET = Architecture("net", MLP(hidden=f"{UNITS * TARGETS},6").for_samples((FEATURES,), 4))
TRAINING = NeuronTraining(hidden=UNITS, epochs=60)
# Copies are randomised versions of the target, in the neuron's training and validation data.
RULES = GameRules(
    batch=20, copies=1, background=20, validation=50, validation_copies=1, training=TRAINING
)
POOLS = SampleSources(
    torch.randn(100, FEATURES, generator=seeded(1, "clients")),
    torch.randn(200, FEATURES, generator=seeded(1, "server")),
)


def neurons() -> Neurons:
    """Train neurons for the first targets, as in a contest, which is a series of games."""
    return Contest(POOLS, RULES, seed=1).neurons(range(TARGETS))


def changed(model: Model) -> Model:
    return plant(model, neurons()).model


def honest() -> Model:
    return Model.of(NET, NET.build())


def clients(batch: int = 20) -> dict[int, Samples]:
    labels = torch.randint(4, (100,), generator=seeded(1, "labels"))
    order = torch.randperm(100, generator=seeded(2, "order"))
    return {
        client: Samples(POOLS.clients[part], labels[part], part)
        for client, part in enumerate(torch.split(order, batch))
    }


def run(*lied_to: int) -> Round:
    algorithm = FedSGD(NET, LocalTraining(lr=0.1))
    server = Tampering(dict.fromkeys(lied_to, changed))
    (round,) = simulate(algorithm, clients(), rounds=1, seed=3, server=server)
    return round


def test_gradient_reveals_whether_neuron_fired() -> None:
    data = clients()
    round = run(*data)
    planted_rows = plant(honest(), neurons()).rows
    verdicts = set()
    for client, samples in data.items():
        upload = round.uploads[client]
        fires = neurons().fires(samples.features.expand(TARGETS, -1, -1)).any(1)
        for planted_row, expected in zip(planted_rows, fires.tolist(), strict=True):
            verdicts.add(expected)
            assert fired_in_batch(upload, planted_row) is expected
    assert verdicts == {True, False}


def test_only_the_attacked_client_receives_the_neurons() -> None:
    round = run(2)
    planted_row = plant(honest(), neurons()).rows[0]
    for client, sent in round.sent.items():
        row = sent.model.params[planted_row.weight_name][planted_row.row, :UNITS]
        # The first planted neuron is row 0 of the second layer, and reads the first units.
        assert torch.equal(row, neurons().second_weights[0]) is (client == 2)


def test_a_malicious_server_changes_only_the_chosen_rounds() -> None:
    server = Tampering({0: changed}, frozenset({2}))
    algorithm = FedSGD(NET, LocalTraining(lr=0.1))
    rounds = simulate(algorithm, clients(), rounds=3, seed=3, server=server)
    lies = [
        not torch.equal(a.params["1.weight"], b.params["1.weight"])
        for a, b in ((r.sent[0].model, r.sent[1].model) for r in rounds)
    ]
    assert lies == [False, True, False]


def second_layer_values(planted_: PlantedModel, x: torch.Tensor) -> torch.Tensor:
    """Return the values of the second layer before its ReLU."""
    module = planted_.model.module()
    assert isinstance(module, nn.Sequential)
    values: torch.Tensor = module[:4](x)
    return values


def test_the_models_second_layer_is_the_neurons() -> None:
    model = plant(honest(), neurons())
    values = second_layer_values(model, POOLS.clients)[:, :TARGETS].T
    expected = neurons().values(POOLS.clients.expand(TARGETS, -1, -1))
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-4)
    assert [planted_row.row for planted_row in model.rows] == [0, 1, 2]


def test_planting_does_not_change_other_neurons() -> None:
    before = honest()
    after = plant(before, neurons().only(1)).model
    first, second = "1.weight", "3.weight"
    assert torch.equal(after.params[first][UNITS:], before.params[first][UNITS:])
    assert torch.equal(after.params[second][1:, UNITS:], before.params[second][1:, UNITS:])
    # Other units of the second layer do not read the planted units.
    assert not after.params[second][1:, :UNITS].any()
    assert torch.equal(after.params["5.weight"], before.params["5.weight"])


def test_a_gradient_row_matches_hand_calculation() -> None:
    planted_row = plant(honest(), neurons()).rows[1]
    values = {"3.weight": torch.zeros(6, 90), "3.bias": torch.zeros(6)}
    gradient = Gradient(values, samples=20)
    assert not fired_in_batch(gradient, planted_row)
    values["3.bias"][1] = -1e-30
    assert fired_in_batch(gradient, planted_row)
    assert gradient_row(values, planted_row).shape == (91,)
    values["3.bias"][1] = 0.0
    values["3.weight"][2] = 1.0
    assert not fired_in_batch(gradient, planted_row)


def test_uploads_whose_rows_change_for_other_reasons_are_refused() -> None:
    algorithm = FedAvg(NET, LocalTraining(lr=0.1, weight_decay=1e-3))
    server = Tampering({0: changed})
    (round,) = simulate(algorithm, clients(), rounds=1, seed=3, server=server)
    with pytest.raises(Unsupported, match="weight decay or momentum may have changed"):
        fired_in_batch(round.uploads[0], plant(honest(), neurons()).rows[0])


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            nn.Sequential(nn.Linear(FEATURES, 90), nn.ReLU(), nn.Linear(90, 4)),
            "Linear, ReLU, Linear;",
        ),
        (
            nn.Sequential(
                nn.Linear(FEATURES, 90, bias=False),
                nn.ReLU(),
                nn.Linear(90, 6),
                nn.ReLU(),
                nn.Linear(6, 4),
            ),
            "with biases",
        ),
        (nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(20, 4)), "Conv1d"),
    ],
)
def test_models_without_two_dense_layers_are_refused(net: nn.Module, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        plant(Model.of(Architecture("other", lambda: net), net), neurons())


def test_neurons_that_do_not_fit_are_refused() -> None:
    small = Architecture("small", MLP(hidden="80,6").for_samples((FEATURES,), 4))
    with pytest.raises(BadInput, match=r"need 90 units .* it has 80 and 6"):
        plant(Model.of(small, small.build()), neurons())
    wide = Architecture("wide", MLP(hidden="90,6").for_samples((FEATURES + 1,), 4))
    with pytest.raises(BadInput, match="reads 13 features, and the neurons 12"):
        plant(Model.of(wide, wide.build()), neurons())
