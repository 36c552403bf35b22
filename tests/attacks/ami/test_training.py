"""Training of planted neurons."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedaudit.attacks.ami import NeuronTraining
from fedaudit.attacks.ami.plant import Neurons, best_shift
from fedaudit.attacks.ami.train import LabelledRows, Standardisation, TrainedNeurons, train_neurons
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from tests.rounding import RoundedByPlace

HOW = NeuronTraining(hidden=20, epochs=30)


def rows(neurons: int = 2, count: int = 12, features: int = 30) -> Tensor:
    return torch.randn(neurons, count, features, generator=seeded(1, "rows")) * 3 + 1


def first_two(samples: Tensor) -> Tensor:
    return (torch.arange(samples.shape[1]) < 2).expand(len(samples), -1)


def trained(samples: Tensor, how: NeuronTraining = HOW) -> Neurons:
    standard = Standardisation.of(samples.flatten(0, 1))
    data = LabelledRows(samples, first_two(samples))
    return train_neurons(data, how, standardise=standard, rng=seeded(2, "w")).neurons


def by_autograd(samples: Tensor, how: NeuronTraining) -> Tensor:
    """Return values of the first neuron's rows after training with torch's optimizers."""
    standard = Standardisation.of(samples.flatten(0, 1))
    x, y = standard(samples[0]), first_two(samples)[0].float()
    outputs = 2 if how.output == "two-sigmoids" else 1
    rng = seeded(2, "w")
    first, second = nn.Linear(x.shape[1], how.hidden), nn.Linear(how.hidden, outputs)
    with torch.no_grad():
        first.weight.uniform_(-1, 1, generator=rng)
        second.weight.uniform_(-1, 1, generator=rng).div_(how.hidden**0.5)
        first.bias.zero_(), second.bias.zero_()
    steps: list[torch.optim.Optimizer] = [
        torch.optim.SGD(layer.parameters(), lr=lr, momentum=how.momentum)
        for layer, lr in ((first, how.lr), (second, how.lr / how.hidden))
    ]
    if how.optimizer == "adam":
        steps = [torch.optim.Adam([*first.parameters(), *second.parameters()], lr=how.lr)]
    weight = torch.where(y > 0, how.target_share / 2, (1 - how.target_share) / (len(y) - 2))
    for _ in range(how.epochs):
        out = second(first(x).relu())
        if outputs == 1:
            losses = nn.functional.binary_cross_entropy_with_logits(out[:, 0], y, reduction="none")
        else:
            losses = nn.functional.cross_entropy(out.sigmoid(), 1 - y.long(), reduction="none")
        for step in steps:
            step.zero_grad()
        torch.autograd.backward((losses * weight).sum())
        for step in steps:
            step.step()
    with torch.no_grad():
        values: Tensor = second(first(x).relu())[:, 0]
    return values


@pytest.mark.parametrize("output", ["one-logit", "two-sigmoids"])
@pytest.mark.parametrize(
    ("features", "optimizer", "lr"),
    [(3, "momentum", 3.0), (30, "momentum", 3.0), (30, "adam", 0.01)],
    ids=["by weights", "by coefficients", "Adam"],
)
def test_training_is_descent_as_torch_does_it(
    features: int,
    optimizer: Literal["adam", "momentum"],
    lr: float,
    output: Literal["one-logit", "two-sigmoids"],
) -> None:
    data = rows(features=features)
    how = replace(HOW, output=output, optimizer=optimizer, lr=lr)
    ours = trained(data, how).values(data)[0]
    torch.testing.assert_close(ours, by_autograd(data, how), rtol=1e-3, atol=1e-4)


def test_a_neuron_fires_only_for_its_target() -> None:
    data = rows(neurons=3, count=20, features=50)
    fires = trained(data, NeuronTraining(hidden=100, epochs=200)).fires(data)
    assert torch.equal(fires, first_two(data))


def test_joint_training_equals_separate_training_of_each_neuron() -> None:
    data = rows(neurons=3)
    standard = Standardisation.of(data.flatten(0, 1))
    rng = seeded(2, "w")
    alone = [
        train_neurons(
            LabelledRows(neuron_rows[None], first_two(data)[:1]), HOW, standardise=standard, rng=rng
        ).neurons
        for neuron_rows in data
    ]
    together = trained(data)
    for number, neuron in enumerate(alone):
        mine = data[number][None]
        ours, theirs = together.only(number).values(mine), neuron.values(mine)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("count", "offset"), [(12, 1.0), (70, 2.0)], ids=["by coefficients", "by weights"]
)
def test_training_stops_once_validation_rows_are_separated(count: int, offset: float) -> None:
    data = rows(neurons=3, count=count)
    data[:, :2] += offset
    standard = Standardisation.of(data.flatten(0, 1))
    training = LabelledRows(data[:, : count // 2], first_two(data)[:, : count // 2])
    watched = LabelledRows(data[:, 1:], first_two(data)[:, 1:])

    def train(epochs: int, check: int) -> TrainedNeurons:
        how = NeuronTraining(hidden=60, epochs=epochs, lr=0.3, check=check)
        return train_neurons(training, how, standardise=standard, rng=seeded(2), validation=watched)

    result = train(300, 3)
    assert result.separated.all()
    for number, epochs in enumerate(result.epochs.tolist()):
        assert 3 < epochs < 300
        assert epochs % 3 == 0
        ended, before = (train(n, 0).neurons.only(number) for n in (epochs, epochs - 3))
        torch.testing.assert_close(ended.first_weights, result.neurons.only(number).first_weights)
        rows_, is_target = watched.at(number)
        assert ended.values(rows_)[is_target].min() > ended.values(rows_)[~is_target].max()
        assert before.values(rows_)[is_target].min() <= before.values(rows_)[~is_target].max()


@pytest.fixture(params=[nullcontext, RoundedByPlace], ids=["this processor", "rounded by place"])
def _processor(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param():
        yield


@pytest.mark.usefixtures("_processor")
def test_inseparable_rows_use_all_epochs() -> None:
    data = rows()
    standard = Standardisation.of(data.flatten(0, 1))
    training, how = LabelledRows(data, first_two(data)), NeuronTraining(20, 30, check=10)
    impossible = LabelledRows(data[:, :1].expand(-1, 2, -1), torch.tensor([[True, False]] * 2))
    result = train_neurons(
        training, how, standardise=standard, rng=seeded(2, "w"), validation=impossible
    )
    assert result.epochs.tolist() == [30, 30]
    assert not result.separated.any()
    torch.testing.assert_close(
        result.neurons.first_weights, trained(data, replace(how, check=0)).first_weights
    )
    with pytest.raises(BadInput, match="needs validation rows"):
        train_neurons(training, how, standardise=standard, rng=seeded(2))


@pytest.mark.slow
@pytest.mark.usefixtures("_processor")
@pytest.mark.parametrize("count", [12, 70], ids=["by coefficients", "by weights"])
@pytest.mark.parametrize(
    ("which", "is_target"),
    [([0, 4, 4], [True, True, False]), ([0, 4, 0], [True, False, False])],
    ids=["of the target", "of the others"],
)
def test_one_inseparable_validation_row_prevents_early_stopping(
    which: list[int], is_target: list[bool], count: int
) -> None:
    data = rows(count=count)
    training, how = LabelledRows(data, first_two(data)), NeuronTraining(60, 100, check=10)
    standard, watched = Standardisation.of(data.flatten(0, 1)), data[:, which]

    def separated(selected: list[int]) -> bool:
        validation = LabelledRows(watched[:, selected], torch.tensor([is_target] * 2)[:, selected])
        result = train_neurons(
            training, how, standardise=standard, rng=seeded(2), validation=validation
        )
        return bool(result.separated.all())

    assert separated([0, 1 if not is_target[1] else 2])
    assert not separated([0, 1, 2])


@pytest.mark.usefixtures("_processor")
def test_equal_samples_have_equal_values_at_any_position() -> None:
    neuron = trained(rows(neurons=1))
    samples = rows(neurons=1, count=9)[:, [0, 1, 1, 2, 1, 0, 0, 3, 3]]
    values = neuron.consistent_values(samples)
    assert len(set(values.flatten().tolist())) == 4
    assert torch.equal(values[:, [1, 2, 4]], values[:, 1:2].expand(-1, 3))
    torch.testing.assert_close(values, neuron.values(samples))


def test_neuron_values_match_hand_calculation() -> None:
    neuron = Neurons(
        torch.tensor([[[1.0, 0.0], [0.0, -2.0]]]),
        torch.tensor([[0.5, 1.0]]),
        torch.tensor([[3.0, -1.0]]),
        torch.tensor([0.25]),
    )
    # ReLU(1 + 0.5) * 3 - ReLU(-4 + 1) + 0.25, and ReLU(-1 + 0.5) * 3 - ReLU(2 + 1) + 0.25
    samples = torch.tensor([[[1.0, 2.0], [-1.0, -1.0]]])
    assert neuron.values(samples).tolist() == [[4.75, -2.75]]
    assert neuron.fires(samples).tolist() == [[True, False]]
    assert neuron.shifted(torch.tensor([-4.75])).fires(samples).tolist() == [[False, False]]


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 50), st.integers(0, 10**6))
def test_best_shift_maximises_the_won_games(
    copies: int, samples: int, batch: int, seed: int
) -> None:
    rng = seeded(seed, "values")
    target, others = torch.randn(1, copies, generator=rng), torch.randn(1, samples, generator=rng)
    shift = float(best_shift(target, others, batch=batch))

    def won(zero: float) -> float:
        return float((target > zero).float().mean() + (others <= zero).float().mean() ** batch) / 2

    every = torch.cat([target, others], dim=1)[0].sort().values
    between = ((every[1:] + every[:-1]) / 2).tolist()
    assert won(-shift) >= max(map(won, between)) - 1e-6


def test_best_shift_is_the_midpoint_of_separable_values() -> None:
    shift = best_shift(torch.tensor([[5.0, 6.0]]), torch.tensor([[1.0, -3.0]]), batch=10)
    assert shift.tolist() == [-3.0]


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(BadInput, match="one-logit"):
        NeuronTraining(output="softmax")  # type: ignore[arg-type]


def test_training_on_one_class_raises() -> None:
    data = rows()
    standard = Standardisation.of(data.flatten(0, 1))
    for nothing in (torch.zeros(2, 12).bool(), torch.ones(2, 12).bool()):
        with pytest.raises(BadInput, match="of its target and of other samples"):
            train_neurons(LabelledRows(data, nothing), HOW, standardise=standard, rng=seeded(1))
    with pytest.raises(BadInput, match="identical samples"):
        Standardisation.of(torch.ones(4, 3))
    with pytest.raises(BadInput, match="batches of at least one sample"):
        best_shift(torch.zeros(1, 2), torch.zeros(1, 0), batch=3)
