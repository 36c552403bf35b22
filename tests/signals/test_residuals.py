"""The projection residual, compared with singular vectors."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.engines.local import LOCAL
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.metrics import auc
from fedaudit.models import CNN, MLP, Transformer
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals.measure import measure_on_engine, measure_round
from fedaudit.signals.updates import ProjectionResidual
from tests.rounding import RoundedByPlace
from tests.samples import random_samples
from tests.signals.test_signals import make_round

LINEAR = Architecture("linear", MLP(hidden="").for_samples((3,), 2))
WIDE = Architecture("wide", MLP(hidden="30").for_samples((40,), 4))


def client_with_update(architecture: Architecture, updates: dict[str, Tensor]) -> ObservedModels:
    """Return a client whose update changes only the given parameters."""
    base = architecture.initial(0)
    return ObservedModels(
        base, base, {n: updates.get(n, torch.zeros_like(v)) for n, v in base.params.items()}
    )


def residuals(seen: ObservedModels, samples: Samples, signal: ProjectionResidual) -> Tensor:
    """Return the residual of each sample for one client's update."""
    return -measure_round(make_round({0: seen}), [signal], samples).signals[signal.name][0]


def test_residuals_of_parallel_and_orthogonal_gradients() -> None:
    seen = client_with_update(LINEAR, {"1.weight": torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]])})
    samples = Samples(torch.tensor([[2.0, 0, 0], [0, 3, 0], [3, 0, 4], [0, 0, 0]]), [0, 1, 0, 1])
    residual = residuals(seen, samples, ProjectionResidual(ridge=1e-3))
    # The scaled update has the singular value 1, so the residual is 1e-6 / (1 + 1e-6).
    expected = torch.tensor([1e-6 / (1 + 1e-6), 1.0, 0.8, 1.0]).double()
    torch.testing.assert_close(residual, expected, rtol=1e-6, atol=1e-9)


def test_an_update_of_zeros_gives_the_maximum_residual() -> None:
    residual = residuals(
        client_with_update(LINEAR, {}), random_samples(seeded(0, "x"), 5, 3, classes=2), SIGNAL
    )
    torch.testing.assert_close(residual, torch.ones(5).double())


SIGNAL = ProjectionResidual()


@pytest.mark.parametrize(("outputs", "inputs"), [(4, 9), (9, 4), (6, 6)])
def test_the_residual_matches_weighted_singular_vectors(outputs: int, inputs: int) -> None:
    net = Architecture("one", MLP(hidden="").for_samples((inputs,), outputs))
    rng = seeded(1, "singular", outputs)
    update = torch.randn(outputs, inputs, generator=rng) * 10.0 ** -torch.arange(inputs)
    samples = random_samples(rng, 7, inputs, classes=outputs)
    residual = residuals(
        client_with_update(net, {"1.weight": update}), samples, ProjectionResidual(ridge=0.01)
    )
    rows = update.double()
    _, strengths, directions = torch.linalg.svd(rows / rows.norm(), full_matrices=True)
    shares = torch.zeros(inputs).double()
    shares[: len(strengths)] = strengths.square() / (strengths.square() + 0.01**2)
    along = samples.features.double() @ directions.T
    expected = (along * (1 - shares)).norm(dim=1) / along.norm(dim=1)
    torch.testing.assert_close(residual, expected, rtol=1e-6, atol=1e-9)


def test_the_residual_is_stable_under_rounding() -> None:
    rng = seeded(2, "rounding")
    update = torch.randn(6, 3, generator=rng) @ torch.randn(3, 20, generator=rng)
    update[:, :3] += 1e-3 * torch.randn(6, 3, generator=rng)
    net = Architecture("one", MLP(hidden="").for_samples((20,), 6))
    samples = random_samples(rng, 9, 20, classes=6)
    plain = residuals(client_with_update(net, {"1.weight": update}), samples, SIGNAL)
    with RoundedByPlace():
        other = residuals(client_with_update(net, {"1.weight": update}), samples, SIGNAL)
    torch.testing.assert_close(other, plain, rtol=1e-6, atol=1e-9)


def trained_round(
    architecture: Architecture, members: int, *, steps: int = 1
) -> tuple[Round, Samples]:
    """Return a round in which a client trained on the first half of the samples."""
    samples = random_samples(seeded(3, "trained"), 2 * members, 40, classes=4)
    clients = {
        0: samples.take(slice(0, members)),
        1: random_samples(seeded(4), members, 40, classes=4),
    }
    local = LocalTraining(epochs=steps, batch_size=8, lr=0.1)
    rounds = tuple(simulate(FedAvg(architecture, local), clients, rounds=1, seed=1))
    return rounds[-1], samples


@pytest.mark.parametrize("steps", [1, 4])
def test_members_are_in_the_span_if_fewer_than_outputs(steps: int) -> None:
    round, samples = trained_round(WIDE, 15, steps=steps)
    residual = -measure_round(round, [SIGNAL], samples).signals[SIGNAL.name][0]
    assert float(residual[:15].max()) < 0.05
    assert float(residual[15:].min()) > 0.5


def test_more_members_than_outputs_are_partly_in_the_span() -> None:
    area = {}
    for members in (15, 60, 240):
        round, samples = trained_round(WIDE, members)
        scores = measure_round(round, [SIGNAL], samples).signals[SIGNAL.name][0]
        area[members] = auc(scores.numpy(), (torch.arange(2 * members) < members).numpy())
    assert area[15] == 1.0
    assert area[15] > area[60] > area[240]
    assert 0.5 < area[240] < 0.8


def test_the_layer_with_the_largest_span_is_the_default() -> None:
    round, samples = trained_round(WIDE, 15)
    plain = measure_round(round, [SIGNAL], samples).signals[SIGNAL.name]
    for path, same in (("1", True), ("3", False)):
        named = ProjectionResidual(layer=path)
        assert named.name == f"projection-residual-at-{path}"
        measured = measure_round(round, [named], samples).signals[named.name]
        assert torch.equal(measured, plain) == same


def test_residuals_use_dense_layers_and_all_sequence_positions() -> None:
    build = CNN(channels="4", hidden="16", padding=2).for_samples((1, 8, 8), 3)
    picture = Architecture("cnn", build)
    pictures = random_samples(seeded(5), 4, 1, 8, 8, classes=3)
    weight = torch.randn(16, 64, generator=seeded(6))
    residual = residuals(client_with_update(picture, {"4.weight": weight}), pictures, SIGNAL)
    entered = picture.initial(0).module()[:4](pictures.features)  # type: ignore[index]
    torch.testing.assert_close(
        residual, by_projection(entered[:, None], weight), rtol=1e-4, atol=1e-6
    )

    text = Architecture("text", Transformer(layers=1, width=8, heads=2).for_samples((5,), 11))
    tokens = Samples(torch.randint(11, (4, 5), generator=seeded(7)), torch.zeros(4).long())
    weight = torch.randn(3, 32, generator=seeded(8)).repeat(3, 1)[:8]
    signal = ProjectionResidual(layer="blocks.0.hidden.2")
    module, captured = text.initial(0).module(), list[Tensor]()
    layer = module.get_submodule("blocks.0.hidden.2")
    layer.register_forward_pre_hook(lambda part, args: captured.append(args[0].detach()))
    module(tokens.features)
    residual = residuals(
        client_with_update(text, {"blocks.0.hidden.2.weight": weight}), tokens, signal
    )
    torch.testing.assert_close(residual, by_projection(captured[0], weight), rtol=1e-4, atol=1e-6)


def by_projection(entered: Tensor, weight: Tensor) -> Tensor:
    """Return the residual from an orthonormal basis of the update's rows."""
    _, strengths, directions = torch.linalg.svd(weight.double(), full_matrices=False)
    basis = directions[strengths > 0.1]
    h = entered.detach().double()
    remainder = h - h @ basis.T @ basis
    shares: Tensor = remainder.flatten(1).norm(dim=1) / h.flatten(1).norm(dim=1)
    return shares


def test_blocks_and_equal_clients_give_identical_residuals() -> None:
    round, _ = trained_round(WIDE, 15)
    round = replace(round, observed={**round.observed, 5: round.observed[0]})
    many = random_samples(seeded(9), 600, 40, classes=4)
    together = measure_round(round, [SIGNAL], many).signals[SIGNAL.name]
    assert torch.equal(together[0], together[2])
    assert not torch.equal(together[0], together[1])
    with measure_on_engine(LOCAL, [SIGNAL], many, count=3) as measuring:
        assert torch.equal(measuring(round).signals[SIGNAL.name], together)


def test_a_network_without_trained_linear_layer_raises_with_advice() -> None:
    net = Architecture("pooled", partial(nn.Sequential, nn.Conv2d(1, 2, 3), nn.Flatten()))
    with pytest.raises(Unsupported, match=r"no trained linear layer.*fedmia-1"):
        SIGNAL.raise_if_misfit(net.initial(0))
    with pytest.raises(BadInput, match=r"no trained linear layer named '2'.*known: 1, 3"):
        ProjectionResidual(layer="2").raise_if_misfit(WIDE.initial(0))
    with pytest.raises(BadInput, match=r"ridge of ProjectionResidual takes a number in \(0, 1\)"):
        ProjectionResidual(ridge=0.0)


class Transposed(nn.Module):
    """A network with a layer whose inputs have samples in the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(7, 7), nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.mix(x.T).T
        out: Tensor = self.out(mixed)
        return out


def test_a_layer_whose_inputs_have_no_row_per_sample_is_refused() -> None:
    net = Architecture("transposed", Transposed)
    samples = random_samples(seeded(10), 7, 40, classes=4)
    with pytest.raises(Unsupported, match=r"'mix'.*not called with one row for each sample"):
        residuals(client_with_update(net, {}), samples, ProjectionResidual(layer="mix"))


def test_non_finite_updates_raise() -> None:
    seen = client_with_update(LINEAR, {"1.weight": torch.full((2, 3), torch.nan)})
    with pytest.raises(BadInput, match="'projection-residual' is not finite"):
        residuals(seen, random_samples(seeded(11), 4, 3, classes=2), SIGNAL)


def test_frozen_layers_cannot_be_chosen_for_residuals() -> None:
    module = WIDE.build_module()
    module.get_submodule("1").requires_grad_(False)
    ProjectionResidual(layer="3").raise_if_misfit(Model.of(WIDE, module))
    with pytest.raises(BadInput, match="no trained linear layer named '1'"):
        ProjectionResidual(layer="1").raise_if_misfit(Model.of(WIDE, module))
