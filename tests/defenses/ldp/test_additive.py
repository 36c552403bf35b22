from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binomtest, kstest, norm
from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.defenses.ldp import Mechanism
from fedaudit.defenses.ldp.additive import (
    LdpGaussian,
    LdpLaplace,
    clip_samples,
    delta_of_gaussian,
    epsilon_of_gaussian,
    noise_of_gaussian,
)

INF = float("inf")
EACH = [LdpLaplace(epsilon=1.5, clip=2.0), LdpGaussian(epsilon=1.5, clip=2.0)]
every = pytest.mark.parametrize("mechanism", EACH, ids=repr)


def random_values(samples: int, features: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(samples, features, generator=seeded(seed, "features"))


@given(seed=st.integers(0, 10**6), radius=st.floats(1e-3, 1e3), order=st.sampled_from([1, 2]))
def test_samples_are_clipped_along_their_direction(seed: int, radius: float, order: int) -> None:
    x = random_values(6, 5, scale=radius, seed=seed)
    short = clip_samples(x, radius, order=order)
    lengths = torch.linalg.vector_norm(short, ord=order, dim=1)
    before = torch.linalg.vector_norm(x.double(), ord=order, dim=1)
    assert float(lengths.max()) <= radius
    torch.testing.assert_close(lengths, before.clamp_max(radius))
    torch.testing.assert_close(short / lengths[:, None], x.double() / before[:, None])


def test_zeros_and_unbounded_samples_are_unchanged() -> None:
    assert clip_samples(torch.zeros(1, 3), 2.0).tolist() == [[0.0, 0.0, 0.0]]
    assert torch.equal(clip_samples(random_values(2, 3), INF), random_values(2, 3).double())


def test_laplace_noise_has_the_scale_of_the_diameter_over_epsilon() -> None:
    mechanism = LdpLaplace(epsilon=1.5, clip=2.0)
    noise = mechanism(torch.zeros(20_000, 2), seeded(0, "noise")).flatten().numpy()
    assert mechanism.scale == 4 / 1.5
    assert kstest(noise, "laplace", args=(0, 4 / 1.5)).pvalue > 1e-3


def test_normal_noise_has_the_stated_spread() -> None:
    mechanism = LdpGaussian(epsilon=1.5, clip=2.0)
    noise = mechanism(torch.zeros(20_000, 2), seeded(0, "noise")).flatten().numpy()
    assert kstest(noise, "norm", args=(0, mechanism.sigma)).pvalue > 1e-3


@given(seed=st.integers(0, 10**6), epsilon=st.floats(0.01, 20))
def test_density_ratio_of_outputs_is_at_most_exp_epsilon(seed: int, epsilon: float) -> None:
    mechanism = LdpLaplace(epsilon=epsilon, clip=3.0)
    ball = clip_samples(random_values(8, 4, scale=5, seed=seed), 3.0, order=1)
    ball[0], ball[1] = torch.tensor([[3.0, 0, 0, 0], [-3.0, 0, 0, 0]])  # The farthest samples.
    outputs = torch.cat([ball, random_values(20, 4, scale=10, seed=seed + 1).double()])
    logs = -torch.cdist(outputs, ball, p=1) / mechanism.scale
    worst = float((logs[:, :, None] - logs[:, None, :]).max())
    assert worst <= epsilon * (1 + 1e-9)
    assert worst == pytest.approx(epsilon)


def test_sampled_outputs_of_the_farthest_samples_differ_by_epsilon() -> None:
    mechanism, draws = LdpLaplace(epsilon=1.0, clip=1.0), 200_000
    ends = torch.tensor([[5.0], [-5.0]])
    first, second = (
        int((mechanism(end.expand(draws, 1), seeded(int(end), "noise")) > 1).sum()) for end in ends
    )
    assert binomtest(first, draws, 0.5).pvalue > 1e-5
    assert binomtest(second, draws, 0.5 * np.exp(-1)).pvalue > 1e-5


@pytest.mark.parametrize(("noise", "epsilon"), [(0.5, 1.0), (1.0, 0.1), (4.0, 1.0), (0.1, 30.0)])
def test_exact_delta_equals_the_hockey_stick_divergence(noise: float, epsilon: float) -> None:
    def left(y: float) -> float:
        ours, theirs = norm.pdf(y, 1, noise), norm.pdf(y, 0, noise)
        return max(0.0, float(ours - np.exp(epsilon) * theirs))

    cut = 0.5 + epsilon * noise**2  # The integrand is positive from here on.
    expected, _ = quad(left, cut, cut + 40 * noise, epsabs=1e-13, epsrel=1e-10, limit=200)
    assert delta_of_gaussian(noise, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(epsilon=st.floats(1e-3, 1e3), delta=st.sampled_from([1e-10, 1e-5, 0.1, 0.9]))
def test_least_noise_multiplier_reaches_epsilon_tightly(epsilon: float, delta: float) -> None:
    noise = noise_of_gaussian(epsilon, delta)
    assert delta_of_gaussian(noise, epsilon) <= delta < delta_of_gaussian(0.999 * noise, epsilon)
    assert epsilon_of_gaussian(noise, delta) == pytest.approx(epsilon, rel=1e-4)


def test_the_smallest_noise_is_less_than_that_of_the_classical_bound() -> None:
    assert noise_of_gaussian(1.0, 1e-5) == pytest.approx(3.7306, abs=1e-3)
    assert noise_of_gaussian(1.0, 1e-5) < (2 * np.log(1.25e5)) ** 0.5


def test_epsilon_is_zero_with_enough_noise_for_delta() -> None:
    assert epsilon_of_gaussian(1e6, 1e-5) == 0


@every
def test_equal_seeds_give_equal_features_of_the_input_dtype(
    mechanism: Mechanism,
) -> None:
    for dtype in (torch.float32, torch.float64):
        x = random_values(5, 3).to(dtype)
        first, second = (mechanism(x, seeded(1, "noise")) for _ in range(2))
        assert torch.equal(first, second)
        assert (first.shape, first.dtype) == (x.shape, dtype)
        assert not torch.equal(first, mechanism(x, seeded(2, "noise")))


@every
def test_epsilon_is_as_asked_for_however_many_features(mechanism: Mechanism) -> None:
    assert isinstance(mechanism, Mechanism)
    assert mechanism.actual_epsilon(1) == mechanism.actual_epsilon(5_000) == 1.5


@pytest.mark.parametrize("make", [LdpLaplace, LdpGaussian])
def test_clipping_without_noise_has_no_guarantee(
    make: type[LdpLaplace | LdpGaussian],
) -> None:
    mechanism = make(epsilon=INF, clip=1.0)
    out = mechanism(torch.tensor([[3.0, 0.0], [0.5, 0.0]]), seeded(0, "noise"))
    torch.testing.assert_close(out, torch.tensor([[1.0, 0.0], [0.5, 0.0]]))
    assert mechanism.actual_epsilon(2) == INF
    assert not mechanism.off


@every
def test_features_that_are_not_finite_are_refused(mechanism: Mechanism) -> None:
    with pytest.raises(BadInput, match="needs finite features"):
        mechanism(torch.tensor([[float("nan")]]), seeded(0, "noise"))


@pytest.mark.parametrize("bad", [0.0, 1.0, 1e-13, float("nan")])
def test_failure_probabilities_out_of_range_are_refused(bad: float) -> None:
    for refused in (
        partial(noise_of_gaussian, 1.0, bad),
        partial(epsilon_of_gaussian, 1.0, bad),
    ):
        with pytest.raises(BadInput, match="delta must be a probability from 1e-12"):
            refused()


def test_an_infinite_epsilon_is_refused() -> None:
    with pytest.raises(BadInput, match="above 0 and finite"):
        noise_of_gaussian(INF, 1e-5)
