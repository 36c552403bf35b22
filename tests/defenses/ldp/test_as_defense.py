from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Samples
from fedaudit.defenses.augment import Augmentation
from fedaudit.defenses.dpsgd import DPSGD
from fedaudit.defenses.ldp import LocalDP
from fedaudit.defenses.ldp.additive import LdpGaussian, LdpLaplace
from fedaudit.defenses.ldp.bit_mechanisms import BitRandPublished, BitwiseRR, OmePublished
from fedaudit.fl.chain import Chain
from fedaudit.fl.hooks import ClientContext, DataUse, Defense, Guarantee, Plan

WORK = DataUse(rounds=3, epochs=1, batch_size=4, samples=40, features=12)
EACH = [
    BitRandPublished(5.0),
    OmePublished(5.0),
    BitwiseRR(20.0),
    LdpLaplace(epsilon=5.0, clip=2.0),
    LdpGaussian(epsilon=5.0, clip=2.0),
]
every = pytest.mark.parametrize("defense", EACH, ids=repr)


def client_context(client: int = 0) -> ClientContext:
    return ClientContext(round=0, rounds=3, client=client, cohort=(client,), weights={}, seed=3)


def images() -> Samples:
    features = torch.randn(6, 3, 2, 2, generator=seeded(0, "images"))
    return Samples(features, torch.arange(6) % 2, torch.arange(6) + 10)


@every
def test_only_features_are_perturbed_with_the_same_shape(
    defense: LocalDP,
) -> None:
    samples = images()
    perturbed = defense.prepare(samples, client_context())
    assert perturbed.features.shape == samples.features.shape
    assert not torch.equal(perturbed.features, samples.features)
    assert torch.equal(perturbed.labels, samples.labels)
    assert torch.equal(perturbed.ids, samples.ids)
    assert torch.equal(samples.features, images().features)
    rng = client_context().rng("local differential privacy")
    assert torch.equal(perturbed.features.flatten(1), defense(samples.features.flatten(1), rng))


@every
def test_scalar_features_and_empty_data_are_supported(defense: LocalDP) -> None:
    data = Samples(torch.ones(4), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    assert defense.prepare(data, client_context()).features.shape == (4,)
    none = images().take(slice(0))
    assert defense.prepare(none, client_context()).features.shape == (0, 3, 2, 2)


@every
def test_integer_features_raise(defense: LocalDP) -> None:
    data = Samples(torch.ones(4, 2).long(), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    with pytest.raises(
        BadInput, match="needs real-valued features, but the features are whole numbers"
    ):
        defense.prepare(data, client_context())


@every
def test_the_guarantee_states_actual_and_nominal_epsilon(defense: LocalDP) -> None:
    guarantee = defense.guarantee(WORK, delta=1e-5)
    assert guarantee.epsilon == pytest.approx(defense.actual_epsilon(12))
    assert guarantee.unit.startswith("one sample's features against any other features")
    assert guarantee.unit.endswith("labels are not protected")
    assert f"claimed epsilon {defense.nominal:g}" in guarantee.method


def test_published_mechanisms_have_a_much_larger_actual_epsilon() -> None:
    assert BitRandPublished(5.0).guarantee(WORK, delta=1e-5).epsilon > 200
    assert OmePublished(5.0).guarantee(WORK, delta=1e-5).epsilon > 800


def test_the_gaussian_epsilon_depends_on_the_requested_delta() -> None:
    defense = LdpGaussian(epsilon=5.0, clip=2.0, delta=1e-3)
    assert defense.guarantee(WORK, delta=1e-3).epsilon == pytest.approx(5.0)
    assert defense.guarantee(WORK, delta=1e-5).epsilon > 5.5


@every
def test_without_the_number_of_features_there_is_no_guarantee(defense: LocalDP) -> None:
    if isinstance(defense, LdpGaussian):  # It does not depend on that number.
        return
    unknown = DataUse(rounds=3, epochs=1, batch_size=4, samples=40)
    with pytest.raises(BadInput, match="number of features per sample"):
        defense.guarantee(unknown, delta=1e-5)
    empty = Plan(architecture=NET, shape=(3, 0), classes=2, rounds=1)
    with pytest.raises(BadInput, match="number of features per sample"):
        defense.raise_if_misfit(empty)


NET = Architecture("net", partial(nn.Linear, 2, 2))


def chained(*parts: Defense) -> Guarantee | None:
    return Chain(parts).guarantee(WORK, delta=1e-5)


def test_a_chain_keeps_a_feature_guarantee_if_perturbed_first() -> None:
    local, images_too = BitwiseRR(2.0), Augmentation(padding=1)
    alone = local.guarantee(WORK, delta=1e-5)
    assert chained(local, images_too) == alone
    assert chained(images_too, local) is None
    assert chained(OmePublished(1.0), local) == alone


def test_sample_wise_perturbation_keeps_the_dp_sgd_guarantee() -> None:
    private = DPSGD(clip=1.0, noise_multiplier=2.0)
    alone = private.guarantee(WORK, delta=1e-5)
    assert chained(OmePublished(1.0), private) == alone
    assert chained(private, OmePublished(1.0)) == alone


def test_several_mechanisms_in_a_chain_draw_independently() -> None:
    twice = Chain((LdpGaussian(5.0, 2.0), LdpGaussian(5.0, 2.0)))

    def noise(defense: Defense) -> Tensor:
        data = Samples(torch.zeros(1, 500), torch.zeros(1).long(), torch.zeros(1).long())
        return defense.prepare(data, client_context()).features[0]

    once = noise(LdpGaussian(5.0, 2.0))
    second_noise = noise(twice) - once.double().mul(2 / float(once.norm())).float()
    assert abs(float(torch.corrcoef(torch.stack([once, second_noise]))[0, 1])) < 0.3
