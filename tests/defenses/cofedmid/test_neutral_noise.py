"""Neutral noise, which cancels in the average."""

from math import floor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.core.values import Params, flat, plus_tail, tail_of, tail_size
from fedaudit.defenses.cofedmid.neutral import NeutralNoise, neutral_noise
from fedaudit.fl.hooks import TrainingContext
from fedaudit.observe.round import Update
from tests.defenses import turns


def context(
    client: int, weights: dict[int, float], round: int = 1, seed: int = 0
) -> TrainingContext:
    return turns.context(round, client, seed, weights=weights)


def zeros(size: int = 40) -> Params:
    return {"w": torch.zeros(size // 2, 2), "b": torch.zeros(7, dtype=torch.float64)}


def sent(
    defense: NeutralNoise, training_context: TrainingContext, values: Params | None = None
) -> torch.Tensor:
    return flat(defense.upload(Update(values or zeros()), training_context).values)


coalitions = st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=9)


@settings(max_examples=60)
@given(
    shares=coalitions,
    others=st.floats(0.0, 3.0),
    kind=st.sampled_from(["vector", "published"]),
    ratio=st.floats(0.01, 1.0),
    seed=st.integers(0, 50),
)
def test_neutral_noise_cancels_for_the_actual_weights(
    shares: list[float], others: float, kind: str, ratio: float, seed: int
) -> None:
    coalition = tuple(range(3, 3 + len(shares)))
    total = sum(shares) + others
    weights = {c: share / total for c, share in zip(coalition, shares, strict=True)}
    everybody = {**weights, 99: others / total}
    defense = NeutralNoise(clients=coalition, sigma=1.0, ratio=ratio, noise=kind)  # type: ignore[arg-type]
    parts = [weights[c] * sent(defense, context(c, everybody, seed=seed)) for c in coalition]
    assert float(torch.stack(parts).sum(0).abs().max()) < 1e-6


def test_neutral_noise_matches_hand_calculation() -> None:
    draws = {0: torch.tensor([1.0]), 1: torch.tensor([3.0])}
    # |w|^2 = .05 and sum w d' = .1 + .6 = .7: 1 - .1 / .05 * .7 and 3 - .2 / .05 * .7
    weights = {0: 0.1, 1: 0.2}
    assert float(neutral_noise(draws, weights, 0)) == pytest.approx(-0.4)
    assert float(neutral_noise(draws, weights, 1)) == pytest.approx(0.2)


def test_only_the_last_parameters_get_noise_and_buffers_get_none() -> None:
    weights = {0: 0.5, 1: 0.5}
    size = 47
    noisy = sent(NeutralNoise(clients=(0, 1), sigma=1.0, ratio=0.25), context(0, weights))
    touched = floor(0.25 * size)
    assert torch.equal(noisy[:-touched], torch.zeros(size - touched, dtype=torch.float64))
    assert bool((noisy[-touched:] != 0).all())
    given_update = Update(zeros(), {"mean": torch.ones(2)})
    update = NeutralNoise(clients=(0, 1), sigma=1.0, ratio=1.0).upload(
        given_update, context(0, weights)
    )
    assert isinstance(update, Update)
    assert torch.equal(update.buffers["mean"], torch.ones(2))
    assert update.values["w"].dtype == torch.float32
    assert torch.equal(given_update.values["w"], torch.zeros(20, 2))


def test_published_noise_is_one_scalar_and_default_noise_a_vector() -> None:
    weights = {0: 0.5, 1: 0.5}
    published = sent(
        NeutralNoise(clients=(0, 1), sigma=1.0, ratio=1.0, noise="published"), context(0, weights)
    )
    vector = sent(
        NeutralNoise(clients=(0, 1), sigma=1.0, ratio=1.0, noise="vector"), context(0, weights)
    )
    assert float(published.max() - published.min()) < 1e-6
    assert float(vector.std()) > 0.1
    older = sent(
        NeutralNoise(clients=(0, 1), sigma=1.0, ratio=1.0, noise="scalar"), context(0, weights)
    )
    assert torch.equal(older, published)


def test_neutral_noise_differs_by_round_and_coalition() -> None:
    weights = {0: 0.5, 1: 0.3, 2: 0.2}
    noise = [
        sent(NeutralNoise(clients=(0, 1), sigma=1.0, ratio=1.0), context(0, weights)),
        sent(NeutralNoise(clients=(0, 1), sigma=1.0, ratio=1.0), context(0, weights, round=2)),
        sent(NeutralNoise(clients=(0, 1), sigma=1.0, ratio=1.0), context(0, weights, seed=1)),
        sent(NeutralNoise(clients=(0, 2), sigma=1.0, ratio=1.0), context(0, weights)),
    ]
    for i, vector in enumerate(noise):
        assert all(not torch.equal(vector, other) for other in noise[i + 1 :])


def test_the_noise_std_before_projection_is_sigma() -> None:
    # For two equal members, d_0 = (d'_0 - d'_1) / 2 has standard deviation sigma / sqrt(2).
    noise = sent(
        NeutralNoise(clients=(0, 1), sigma=0.3, ratio=1.0),
        context(0, {0: 0.1, 1: 0.1}),
        zeros(20_000),
    )
    assert float(noise.std()) == pytest.approx(0.3 / 2**0.5, rel=0.03)


def test_noise_of_participating_members_cancels() -> None:
    defense = NeutralNoise(clients=(0, 1, 2), sigma=1.0, ratio=1.0)
    weights = {0: 0.25, 2: 0.35, 5: 0.4}
    parts = [weights[c] * sent(defense, context(c, weights)) for c in (0, 2)]
    assert float((parts[0] + parts[1]).abs().max()) < 1e-6
    assert float(parts[0].abs().max()) > 0.01


def test_a_single_participating_member_adds_no_noise() -> None:
    given_update = Update(zeros())
    assert (
        NeutralNoise(clients=(0, 1)).upload(given_update, context(0, {0: 0.5, 5: 0.5}))
        is given_update
    )


def test_noise_may_start_within_a_parameter() -> None:
    values = {"a": torch.zeros(2, 2), "b": torch.zeros(3)}
    added = plus_tail(values, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert added["a"].tolist() == [[0, 0], [0, 1]]
    assert added["b"].tolist() == [2, 3, 4]
    assert plus_tail(values, torch.zeros(0))["a"] is values["a"]
    assert tail_of(added, 5).tolist() == [0, 1, 2, 3, 4]
    assert tail_of(added, 0).numel() == 0
    assert [tail_size(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 3, 6, 7]


def test_a_client_outside_the_coalition_raises() -> None:
    with pytest.raises(BadInput, match="is not in it"):
        NeutralNoise(clients=(0, 1)).upload(Update(zeros()), context(2, {0: 0.5, 2: 0.5}))


def test_a_single_member_adds_noise_that_does_not_cancel() -> None:
    weights = {0: 0.5, 1: 0.5}
    alone = [
        sent(
            NeutralNoise(clients=(0, 1), sigma=0.3, ratio=1.0, independent=True),
            context(c, weights),
            zeros(20_000),
        )
        for c in (0, 1)
    ]
    # Independent noise is not projected, so its standard deviation is sigma.
    assert [float(noise.std()) for noise in alone] == pytest.approx([0.3, 0.3], rel=0.03)
    correlation = torch.corrcoef(torch.stack(alone))[0, 1]
    assert abs(float(correlation)) < 0.03
    # A client's noise does not depend on the other members.
    other = NeutralNoise(clients=(0, 2), sigma=0.3, ratio=1.0, independent=True)
    assert torch.equal(alone[0], sent(other, context(0, {0: 0.5, 2: 0.5}), zeros(20_000)))
    assert not NeutralNoise(clients=(0, 1), independent=True).cancels


def test_a_single_member_sends_no_extra_bytes() -> None:
    for independent in (False, True):
        client_context = context(0, {0: 0.5, 1: 0.5})
        NeutralNoise(clients=(0, 1), sigma=0.3, ratio=1.0, independent=independent).upload(
            Update(zeros()), client_context
        )
        assert ("extra_bytes" in client_context.facts) is not independent
