"""Signals from outputs, compared with their definitions."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import NotVisible
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals.measure import measure_round
from fedaudit.signals.outputs import (
    Confidence,
    Entropy,
    Loss,
    MaxPosterior,
    ModifiedEntropy,
    OutputSignal,
    PosteriorSpread,
)

ALL = (Loss, Confidence, MaxPosterior, PosteriorSpread, Entropy, ModifiedEntropy)
NET = Architecture("linear", partial(nn.Linear, 3, 3))


def scaling_model(scale: float) -> Model:
    """Return a model whose outputs are its scaled inputs."""
    return Model(NET, {"weight": scale * torch.eye(3), "bias": torch.zeros(3)})


def make_round(*scales: float, after: dict[str, Model] | None = None) -> Round:
    observed = {c: ObservedModels(local=scaling_model(scale)) for c, scale in enumerate(scales)}
    clients = tuple(observed)
    weights = dict.fromkeys(clients, 1 / len(clients))
    return Round(
        index=1,
        observed=observed,
        sent={},
        uploads={},
        weights=weights,
        selected=clients,
        answered=clients,
        after=after or {},
    )


def signal_of(signal: OutputSignal, probabilities: list[float], label: int) -> float:
    """Return the signal of a sample for which the model has these probabilities."""
    p = torch.tensor([probabilities])
    samples = Samples(p.log(), torch.tensor([label]), torch.tensor([0]))
    return measured(signal, make_round(1.0), samples).item()


def measured(signal: OutputSignal, round: Round, samples: Samples) -> Tensor:
    return measure_round(round, [signal], samples).signals[signal.name]


def test_output_signals_match_hand_calculation() -> None:
    p = [0.5, 0.25, 0.25]
    assert signal_of(Loss(), p, 1) == pytest.approx(math.log(0.25), abs=1e-6)
    assert signal_of(Confidence(), p, 1) == pytest.approx(0.25)
    assert signal_of(MaxPosterior(), p, 1) == pytest.approx(0.5)
    # The variance over the classes is 0.375 / 3 - (1 / 3) ** 2.
    assert signal_of(PosteriorSpread(), p, 1) == pytest.approx(math.sqrt(0.125 - 1 / 9), abs=1e-6)
    assert signal_of(Entropy(), p, 1) == pytest.approx(-1.5 * math.log(2), abs=1e-6)
    # The first term is that of the true class.
    modified = 0.75 * math.log(0.25) + 0.5 * math.log(0.5) + 0.25 * math.log(0.75)
    assert signal_of(ModifiedEntropy(), p, 1) == pytest.approx(modified, abs=1e-6)


def test_only_modified_entropy_distinguishes_correct_predictions() -> None:
    p = [0.98, 0.01, 0.01]
    assert signal_of(Entropy(), p, 0) == pytest.approx(signal_of(Entropy(), p, 1))
    assert signal_of(ModifiedEntropy(), p, 0) > -0.01
    assert signal_of(ModifiedEntropy(), p, 1) < -4


@pytest.mark.parametrize("kind", ALL)
def test_a_model_with_certain_predictions_gives_a_finite_signal(kind: type[OutputSignal]) -> None:
    sure = Samples(torch.tensor([[900.0, 0.0, 0.0]] * 2), torch.tensor([0, 1]), torch.arange(2))
    values = measured(kind(), make_round(1.0), sure)
    assert bool(values.isfinite().all())
    assert values[0, 0] >= values[0, 1]


def test_modified_entropy_of_a_confident_error_is_clamped() -> None:
    wrong = Samples(torch.tensor([[900.0, 0.0, 0.0]]), torch.tensor([1]), torch.tensor([0]))
    values = measured(ModifiedEntropy(), make_round(1.0), wrong)
    assert values.item() == pytest.approx(2 * math.log(1e-30))


@pytest.mark.parametrize("kind", ALL)
def test_a_member_like_sample_has_the_larger_signal(kind: type[OutputSignal]) -> None:
    assert signal_of(kind(), [0.9, 0.05, 0.05], 0) > signal_of(kind(), [0.5, 0.25, 0.25], 0)


@pytest.mark.parametrize("kind", ALL)
def test_every_client_gets_the_snapshot_of_the_global_model(
    kind: type[OutputSignal],
) -> None:
    samples = Samples(
        torch.linspace(-2, 2, 15).reshape(5, 3), torch.tensor([0, 1, 2, 0, 1]), torch.arange(5)
    )
    round = make_round(0.5, 2.0, after={"global": scaling_model(1.5)})
    values = measured(kind("global"), round, samples)
    alone = measured(kind(), make_round(1.5), samples)
    assert torch.equal(values, alone.expand(2, -1))
    assert kind("global").name == f"global_{kind().name}"


def test_without_one_global_model_its_snapshot_is_refused() -> None:
    samples = Samples(
        torch.linspace(-2, 2, 15).reshape(5, 3), torch.tensor([0, 1, 2, 0, 1]), torch.arange(5)
    )
    several = make_round(1.0, after={"one": scaling_model(1.0), "two": scaling_model(2.0)})
    with pytest.raises(NotVisible, match="single global model, but this round has 2"):
        measured(Loss("global"), several, samples)


def test_the_snapshot_of_received_models_has_one_row_per_client() -> None:
    samples = Samples(
        torch.linspace(-2, 2, 15).reshape(5, 3), torch.tensor([0, 1, 2, 0, 1]), torch.arange(5)
    )
    round = make_round(0.5, 2.0, 3.0)
    # Clients 0 and 2 received equal models.
    received = dict(enumerate((1.5, 4.0, 1.5)))
    observed = {c: ObservedModels(base=scaling_model(scale)) for c, scale in received.items()}
    values = measured(Loss("received"), replace(round, observed=observed), samples)
    for row, scale in zip(values, received.values(), strict=True):
        assert torch.equal(row[None], measured(Loss(), make_round(scale), samples))
    assert Loss("received").name == "received_loss"


def test_hidden_received_models_have_no_signal() -> None:
    samples = Samples(torch.ones(1, 3), torch.tensor([0]), torch.arange(1))
    with pytest.raises(NotVisible, match="models the clients were sent"):
        measured(Loss("received"), make_round(1.0), samples)
