"""The denoising task."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import fedaudit as fa
from fedaudit.core.denoising import Denoising, denoising, signal_fraction
from fedaudit.core.errors import BadInput
from fedaudit.core.modules import outputs_of, raise_if_unusable_model
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.datasets.dataset import prepare_samples
from fedaudit.signals.gradients import gradient_products
from tests.networks import Denoiser

COUNT, CONCEPTS, WIDTH = 12, 4, 6
PICTURES = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(1))
SAMPLES = Samples({"sample": PICTURES, "concept": torch.arange(COUNT) % CONCEPTS}, [0] * COUNT)


def task(**settings: int | bool) -> Denoising:
    prepared = replace(denoising(**settings), inputs=SAMPLES.inputs)  # type: ignore[arg-type]
    assert isinstance(prepared, Denoising)
    return prepared


def model(**settings: int | bool) -> Model:
    build = partial(Denoiser, CONCEPTS, (WIDTH,))
    architecture = Architecture("denoiser", build, task=task(**settings))
    rng = torch.Generator().manual_seed(2)
    return Model(architecture, {"concepts.weight": torch.randn(CONCEPTS, WIDTH, generator=rng)})


def test_the_signal_fraction_matches_the_paper() -> None:
    fractions = signal_fraction()
    assert fractions[0] == pytest.approx(1 - 1e-4)
    # Ho et al. 2020, section 4: at the last step nearly nothing is left (KL about 1e-5).
    assert 1e-5 < float(fractions[-1]) < 1e-4
    assert bool((fractions[1:] < fractions[:-1]).all())


def test_a_loss_is_the_mean_squared_error_of_the_fixed_draws() -> None:
    fixed_model = model(draws=3, seed=5)
    noise = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(5))
    steps = [166, 500, 833]
    outputs = outputs_of(fixed_model, SAMPLES.features)
    for i in range(COUNT):
        for k in range(3):
            fraction = signal_fraction()[steps[k]].float()
            noisy = fraction.sqrt() * PICTURES[i] + (1 - fraction).sqrt() * noise[k]
            prediction = (
                noisy - fraction.sqrt() * fixed_model.params["concepts.weight"][i % CONCEPTS]
            )
            expected = (prediction - noise[k]).square().mean()
            torch.testing.assert_close(outputs[i, k], expected)
    losses = fixed_model.architecture.loss(outputs, SAMPLES.targets)
    torch.testing.assert_close(losses, outputs.mean(1))


def test_only_fixed_draws_are_the_same_for_all_samples_and_models() -> None:
    same = SAMPLES.features[:1].expand(3, -1)
    fixed, drawn = model(), model(fixed=False)
    fixed_outputs = outputs_of(fixed, same)
    assert torch.equal(fixed_outputs, fixed_outputs[:1].expand(3, -1))
    drawn_outputs = outputs_of(drawn, SAMPLES.features)
    # The result depends neither on other samples of the batch nor on the order of calls.
    torch.testing.assert_close(outputs_of(drawn, SAMPLES.features[5:6]), drawn_outputs[5:6])
    # The models differ only in the embedding of the second concept.
    other = Model(drawn.architecture, {"concepts.weight": drawn.params["concepts.weight"].clone()})
    other.params["concepts.weight"][1] += 1
    first_concept = torch.arange(COUNT) % CONCEPTS == 0
    assert not torch.isclose(
        outputs_of(other, SAMPLES.features)[first_concept], drawn_outputs[first_concept]
    ).any()
    other = Model(fixed.architecture, other.params)
    expected = outputs_of(fixed, SAMPLES.features)[first_concept]
    torch.testing.assert_close(outputs_of(other, SAMPLES.features)[first_concept], expected)


def test_training_draws_one_step_and_one_noise_per_sample() -> None:
    module = model().module().train()
    torch.manual_seed(3)
    first = task().outputs(module, SAMPLES.features)
    second = task().outputs(module, SAMPLES.features)
    assert first.shape == (COUNT, 1)
    assert not torch.isclose(first, second).any()
    torch.manual_seed(3)
    torch.testing.assert_close(task().outputs(module, SAMPLES.features), first)


@pytest.mark.parametrize("fixed", [True, False])
def test_gradients_by_the_embedding_match_autograd(fixed: bool) -> None:
    received = model(fixed=fixed)
    update = {"concepts.weight": torch.randn(CONCEPTS, WIDTH)}
    products = gradient_products(received, [update], SAMPLES.features, SAMPLES.targets)
    module = received.module().double()
    for i in range(COUNT):
        outputs = received.architecture.task.outputs(module, SAMPLES.features[i : i + 1].double())
        if not fixed:  # seeded by a model of other precision
            continue
        (grad,) = torch.autograd.grad(outputs.mean(), [module.get_parameter("concepts.weight")])
        dot = (grad * update["concepts.weight"]).sum()
        torch.testing.assert_close(products.dots[0, i], dot, rtol=1e-4, atol=1e-6)
    assert bool((products.squared_norms > 0).all())


class Narrow(Denoiser):
    def forward(self, noisy: Tensor, steps: Tensor, concept: Tensor) -> Tensor:
        return super().forward(noisy, steps, concept)[..., :2]


def test_a_model_that_does_not_predict_the_noise_is_refused() -> None:
    build = partial(Narrow, CONCEPTS, (WIDTH,))
    narrow = Architecture("narrow", build, task=task()).initial(0)
    with pytest.raises(BadInput, match=r"in the same shape; expected \(4, 8, 6\), got"):
        raise_if_unusable_model(narrow, SAMPLES)
    blind = Architecture("blind", partial(nn.Linear, WIDTH, WIDTH), task=task()).initial(0)
    with pytest.raises(BadInput, match=r"has forward\(noisy, steps, concept\)"):
        raise_if_unusable_model(blind, SAMPLES)


@pytest.mark.parametrize("draws", [0, -1, 1001])
def test_numbers_of_draws_out_of_range_are_refused(draws: int) -> None:
    with pytest.raises(BadInput, match="draws of denoising takes a whole number from 1 to 1,000"):
        fa.tasks.denoising(draws=draws)


class Numbered(nn.Module):
    """A network with an embedding of the first concepts only."""

    def __init__(self) -> None:
        super().__init__()
        self.concepts = nn.Embedding(CONCEPTS - 1, WIDTH)

    def forward(self, noisy: Tensor, steps: Tensor, concept: Tensor) -> Tensor:
        embedded: Tensor = self.concepts(concept)
        return noisy + embedded[:, None]


def test_an_embedding_with_too_few_rows_is_refused() -> None:
    few = Architecture("numbered", Numbered, task=task()).initial(0)
    with pytest.raises(BadInput, match=r"index out of range.*forward\(noisy, steps, concept\)"):
        raise_if_unusable_model(few, SAMPLES)


def test_integer_images_are_noised_and_concepts_are_integers() -> None:
    bytes_ = Samples(torch.arange(12).reshape(4, 3), [0, 1, 0, 1])
    prepared = prepare_samples(bytes_, denoising())
    assert prepared.inputs is not None
    inputs = prepared.inputs.unpack(prepared.features)
    assert inputs["sample"].is_floating_point()
    assert inputs["concept"].tolist() == [0, 1, 0, 1]
    with pytest.raises(BadInput, match=r"must be concepts \(whole numbers from 0.*from 0.5 to 1"):
        prepare_samples(Samples(torch.zeros(2, 3), [0.5, 1.0]), denoising())
