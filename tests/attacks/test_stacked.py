"""The stacked attack: evidence and learned weights."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fedaudit.attacks.learned import FittedStack, Stacked, _features
from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.seeds import seeded, seeded_numpy
from fedaudit.observe.measurements import Measurements

SAMPLES = 80


def measurements_of(values: torch.Tensor) -> Measurements:
    """Return measurements of shape (rounds, clients, samples); all clients received one model."""
    rounds, clients, _ = values.shape
    bases = torch.zeros(rounds, clients, dtype=torch.int64)
    return Measurements(values.double(), tuple(range(1, rounds + 1)), tuple(range(clients)), bases)


def draw_signals(seed: int, lift: float) -> tuple[Measurements, Measurements]:
    """Return a signal that is higher for the target's members, and one of noise only."""
    rng = seeded(seed, "signals")
    telling, idle = (
        torch.randn(3, 5, SAMPLES, generator=rng),
        torch.randn(3, 5, SAMPLES, generator=rng),
    )
    telling[:, 0, : SAMPLES // 2] += lift
    return measurements_of(telling), measurements_of(idle)


IS_MEMBER = torch.arange(SAMPLES) < SAMPLES // 2


def fitted(**settings: float) -> FittedStack:
    rule = Stacked(**settings)  # type: ignore[arg-type]
    return rule.fitted(*draw_signals(1, 1.5), is_member=IS_MEMBER, target=0, seed=3)


def test_stacked_evidence_has_last_value_mean_and_z_score() -> None:
    # The others have mean 2 and deviation 1 in the first round, 0 and 2 in the second.
    m = measurements_of(torch.tensor([[[3.0], [1.0], [3.0]], [[4.0], [-2.0], [2.0]]]))
    assert _features((m,), 0)[0].tolist() == [4.0, 3.5, ((3 - 2) / 1 + (4 - 0) / 2) / 2]


def test_identical_others_leave_only_the_sign_as_evidence() -> None:
    m = measurements_of(torch.tensor([[[3.0, 0.0, 2.0], [2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]]))
    assert _features((m,), 0)[:, 2].tolist() == [1.0, -1.0, 0.0]


def test_stacked_scores_are_logistic_regression_log_odds() -> None:
    raw = _features(draw_signals(1, 1.5), 0)
    standardised = ((raw - raw.mean(0)) / raw.std(0, correction=0)).numpy()
    rng = seeded_numpy(3, "bags")
    members, others = np.arange(SAMPLES // 2), np.arange(SAMPLES // 2, SAMPLES)
    chosen = np.concatenate([rng.choice(part, len(part)) for part in (members, others)])
    model = LogisticRegression(C=0.5, max_iter=1000).fit(
        standardised[chosen], IS_MEMBER.numpy()[chosen]
    )
    new = draw_signals(2, 1.5)
    unseen = ((_features(new, 0) - raw.mean(0)) / raw.std(0, correction=0)).numpy()
    scores = fitted(bags=1, penalty=2.0)(*new, target=0)
    np.testing.assert_allclose(scores.numpy(), model.decision_function(unseen), atol=1e-9)


def test_informative_signals_have_the_largest_weight() -> None:
    weights = fitted().weights[:-1].abs()
    assert float(weights[:3].max()) > 3 * float(weights[3:].max())
    scores = fitted()(*draw_signals(2, 1.5), target=0)
    members = scores[: SAMPLES // 2]
    assert float((members[:, None] > scores[SAMPLES // 2 :]).double().mean()) > 0.9


def test_extreme_evidence_is_clipped_to_the_fitted_range() -> None:
    telling, idle = draw_signals(2, 1.5)
    far = measurements_of(telling.values.clone().index_fill_(1, torch.tensor([0]), 1e9))
    assert bool(fitted()(far, idle, target=0).isfinite().all())
    further = measurements_of(telling.values.clone().index_fill_(1, torch.tensor([0]), 1e12))
    assert torch.equal(fitted()(far, idle, target=0), fitted()(further, idle, target=0))


def test_a_constant_signal_has_weight_zero() -> None:
    informative, _ = draw_signals(1, 1.5)
    constant = measurements_of(torch.ones(3, 5, SAMPLES))
    stack = Stacked().fitted(informative, constant, is_member=IS_MEMBER, target=0, seed=3)
    assert stack.weights[3:6].abs().max() < 1e-6


def test_too_few_others_and_invalid_settings_raise() -> None:
    with pytest.raises(NotVisible, match="at least 2 other clients"):
        _features((measurements_of(torch.zeros(2, 2, 4)),), 0)
    with pytest.raises(BadInput, match="bags of Stacked takes a whole number from 1"):
        Stacked(bags=0)
