from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm as normal

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Params, flat, norm
from fedaudit.defenses.clip import ClientDP, clip_norm
from fedaudit.defenses.noise import GradientNoise
from fedaudit.fl.accounting import gaussian_mechanism_epsilon
from fedaudit.fl.hooks import TrainingContext
from fedaudit.observe.round import Update
from tests.defenses.turns import context

INFINITE = float("inf")


def values(size: int = 40_000, scale: float = 1.0) -> Params:
    rng = seeded(0, "values", size)
    return {
        "w": scale * torch.randn(size // 2, 2, generator=rng),
        "b": scale * torch.randn(3, generator=rng, dtype=torch.float64),
    }


def update(params: Params | None = None) -> Update:
    return Update(params or values(), {"mean": torch.ones(2)}, choice=1)


def added(
    defense: GradientNoise | ClientDP,
    upload: Update,
    training_context: TrainingContext | None = None,
) -> torch.Tensor:
    sent = defense.upload(upload, training_context or context())
    return flat(sent.values) - flat(upload.values)


@pytest.mark.parametrize("sigma", [1e-3, 0.5, 20.0])
def test_noise_is_normal_with_mean_zero_and_standard_deviation_sigma(sigma: float) -> None:
    noise = added(GradientNoise(sigma), update()) / sigma
    count = len(noise)
    assert abs(float(noise.mean())) < 4 / count**0.5
    assert float(noise.std()) == pytest.approx(1.0, abs=4 / (2 * count) ** 0.5)
    # The Kolmogorov-Smirnov distance is below its 0.1% critical value.
    ranks = torch.arange(1, count + 1, dtype=torch.float64) / count
    distance = (torch.special.ndtr(noise.double().sort().values) - ranks).abs().max()
    assert float(distance) < 1.95 / count**0.5


@pytest.mark.parametrize(
    "make",
    [partial(GradientNoise, 0.1), partial(ClientDP, clip=1.0, noise_multiplier=0.1)],
    ids=["gradient noise", "client-level"],
)
def test_noise_depends_on_round_and_client(
    make: Callable[[], GradientNoise | ClientDP],
) -> None:
    upload = update()
    same = added(make(), upload)
    assert torch.equal(added(make(), upload), same)
    for other in (context(round=2), context(client=1), context(seed=1)):
        assert not torch.equal(added(make(), upload, other), same)


@settings(max_examples=40)
@example(share=0.999, scale=1.0)
@example(share=1.001, scale=1.0)
@given(share=st.floats(1e-3, 1e3), scale=st.floats(1e-4, 1e4))
def test_the_norm_of_a_clipped_upload_is_at_most_the_clipping_norm(
    share: float, scale: float
) -> None:
    upload = values(20, scale)
    limit = share * norm(upload)
    sent = clip_norm(upload, limit)
    assert norm(sent) <= limit * (1 + 1e-6)
    if norm(upload) <= limit:
        assert sent is upload
    else:
        assert norm(sent) == pytest.approx(limit, rel=1e-6)
        assert float(torch.cosine_similarity(flat(sent), flat(upload), 0)) > 1 - 1e-6


def test_the_whole_upload_is_clipped_and_not_each_layer() -> None:
    # The norm 5 is clipped to 1.
    sent = clip_norm({"w": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 1.0)
    assert float(sent["w"]) == pytest.approx(0.6)
    assert float(sent["b"]) == pytest.approx(0.8)


def test_client_level_noise_has_the_standard_deviation_clip_times_multiplier() -> None:
    defense = ClientDP(clip=0.5, noise_multiplier=3.0)
    sent = defense.upload(update(), context())
    noise = flat(sent.values) - flat(clip_norm(values(), 0.5))
    assert float(noise.std()) == pytest.approx(1.5, rel=0.02)


def analytic_epsilon(sigma: float, delta: float) -> float:
    """Return the exact epsilon of one Gaussian release (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        lost = normal.cdf(0.5 / sigma - epsilon * sigma)
        return float(lost - torch.e**epsilon * normal.cdf(-0.5 / sigma - epsilon * sigma) - delta)

    return float(brentq(excess, 0.0, 100.0))


def test_epsilon_of_one_release_with_noise_multiplier_one() -> None:
    assert analytic_epsilon(1.0, 1e-5) == pytest.approx(4.377, abs=0.001)
    # The Renyi accountant gives an upper bound slightly above the exact value.
    assert 4.377 < gaussian_mechanism_epsilon(1.0, 1, delta=1e-5) < 4.9


@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("rounds", [1, 10, 300])
def test_epsilon_is_a_tight_upper_bound_on_the_exact_one(sigma: float, rounds: int) -> None:
    # Several releases of one upload are equivalent to one release with less noise.
    exact = analytic_epsilon(sigma / rounds**0.5, 1e-5) if sigma / rounds**0.5 > 0.1 else None
    ours = gaussian_mechanism_epsilon(sigma, rounds, delta=1e-5)
    if exact is not None:
        assert exact < ours < 1.25 * exact


def test_epsilon_grows_with_rounds_and_falls_with_noise_and_delta() -> None:
    base = gaussian_mechanism_epsilon(2.0, 10, delta=1e-5)
    assert gaussian_mechanism_epsilon(2.0, 20, delta=1e-5) > base
    assert gaussian_mechanism_epsilon(3.0, 10, delta=1e-5) < base
    assert gaussian_mechanism_epsilon(2.0, 10, delta=1e-4) < base


def test_without_noise_there_is_no_epsilon() -> None:
    assert gaussian_mechanism_epsilon(0.0, 1, delta=1e-5) == INFINITE


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5])
def test_a_delta_outside_zero_to_one_is_refused(delta: float) -> None:
    with pytest.raises(BadInput, match="probability in"):
        gaussian_mechanism_epsilon(1.0, 1, delta=delta)
