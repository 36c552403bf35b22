"""RMIA and LiRA compared with their papers."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from fedaudit.attacks.base import Reference, Tuning
from fedaudit.attacks.references import (
    OFFLINE_COEFFICIENTS,
    LikelihoodRatio,
    ReferenceCalibrated,
    RelativeLikelihood,
)
from fedaudit.core.errors import BadInput
from fedaudit.core.values import NO_CLIENT
from fedaudit.observe.measurements import Measurements

few = settings(max_examples=40)
SAMPLES = 12


def measurements_of(values: np.ndarray, rounds: tuple[int, ...] = ()) -> Measurements:
    """Return measurements of one client, of shape (rounds, samples)."""
    tensor = torch.as_tensor(values, dtype=torch.float64)[:, None]
    bases = torch.zeros(len(tensor), 1, dtype=torch.int64)
    return Measurements(tensor, rounds or tuple(range(1, len(tensor) + 1)), (0,), bases)


def scores(
    rule: ReferenceCalibrated,
    target: np.ndarray,
    others: np.ndarray,
    trained_on: np.ndarray | None = None,
) -> np.ndarray:
    """Return scores for a target (rounds, samples) and references (references, rounds, samples)."""
    masks = (
        np.zeros((len(others), target.shape[1]), dtype=bool) if trained_on is None else trained_on
    )
    references = [
        Reference((measurements_of(other),), 0, torch.from_numpy(mask))
        for other, mask in zip(others, masks, strict=True)
    ]
    target_scores: np.ndarray = rule.with_references(references)(
        measurements_of(target), target=0
    ).numpy()
    return target_scores


def losses(seed: int, references: int, rounds: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return negative losses of a target and of references; hard samples are hard for all."""
    rng = np.random.default_rng(seed)
    hard = rng.exponential(size=SAMPLES)
    target = -hard * rng.uniform(0.2, 1.2, (rounds, SAMPLES))
    return target, -hard * rng.uniform(0.2, 1.2, (references, rounds, SAMPLES))


def halves(seed: int, references: int) -> np.ndarray:
    rng = np.random.default_rng(seed + 1)
    order = rng.random((references, SAMPLES)).argsort(0)
    mask: np.ndarray = order < references // 2
    return mask


def rmia(
    target: np.ndarray,
    others: np.ndarray,
    trained_on: np.ndarray,
    population: tuple[np.ndarray, np.ndarray],
    gamma: float,
    a: float = 0.3,
) -> list[float]:
    """Return the fraction of population samples z with LR(x, z) of at least gamma."""

    def ratio(p: float, outs: list[float], ins: list[float]) -> float:
        if not ins:
            return float(p / (((1 + a) * np.mean(outs) + (1 - a)) / 2))
        return float(p / ((np.mean(ins) + np.mean(outs)) / 2))

    z_target, z_others = np.exp(population[0][0]), np.exp(population[1][:, 0])
    of_population = [ratio(p, list(z_others[:, z]), []) for z, p in enumerate(z_target)]
    shares = []
    for x in range(SAMPLES):
        values = np.exp(others[:, 0, x])
        sample_ratio = ratio(
            float(np.exp(target[0, x])),
            list(values[~trained_on[:, x]]),
            list(values[trained_on[:, x]]),
        )
        shares.append(float(np.mean([sample_ratio / other >= gamma for other in of_population])))
    return shares


@few
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 5]), st.floats(1.0, 2.0))
def test_rmia_offline_ranks_like_the_population_share(
    seed: int, references: int, gamma: float
) -> None:
    target, others = losses(seed, references)
    never = np.zeros((references, SAMPLES), dtype=bool)
    published = rmia(target, others, never, losses(seed + 1, references), gamma)
    ours = scores(RelativeLikelihood(), target, others)
    for first in range(SAMPLES):
        for second in range(SAMPLES):
            if published[first] > published[second]:
                assert ours[first] > ours[second]


@few
@given(st.integers(0, 10_000), st.sampled_from([4, 8]))
def test_rmia_online_ranks_like_the_population_share(seed: int, references: int) -> None:
    target, others = losses(seed, references)
    trained_on = halves(seed, references)
    published = rmia(target, others, trained_on, losses(seed + 1, references), 1.0)
    ours = scores(RelativeLikelihood(), target, others, trained_on)
    for first in range(SAMPLES):
        for second in range(SAMPLES):
            if published[first] > published[second]:
                assert ours[first] > ours[second]


def test_rmia_matches_hand_calculation() -> None:
    target, others = np.log([[0.8, 0.4]]), np.log([[[0.5, 0.4]], [[0.3, 0.4]]])
    log_ratios = scores(RelativeLikelihood(offline=1.0), target, others)
    np.testing.assert_allclose(log_ratios, np.log([0.8 / 0.4, 0.4 / 0.4]), atol=1e-12)
    log_ratios = scores(RelativeLikelihood(offline=0.0), target, others)
    np.testing.assert_allclose(log_ratios, np.log([0.8 / 0.7, 0.4 / 0.7]))
    # Each model was trained on one of the two samples.
    log_ratios = scores(RelativeLikelihood(), target, others, np.eye(2, dtype=bool))
    np.testing.assert_allclose(log_ratios, np.log([0.8 / 0.4, 0.4 / 0.4]), atol=1e-12)


def test_extreme_losses_give_finite_scores() -> None:
    log_ratios = scores(
        RelativeLikelihood(offline=1.0), np.array([[-5000.0]]), np.array([[[-6000.0]]])
    )
    np.testing.assert_allclose(log_ratios, [1000.0])
    assert np.isfinite(scores(RelativeLikelihood(), np.array([[-5000.0]]), np.array([[[-6e3]]])))


@few
@given(st.integers(0, 10_000), st.sampled_from([2, 3, 8]))
def test_lira_offline_ranks_like_the_published_probability(seed: int, references: int) -> None:
    target, others = losses(seed, references)
    mean, spread = others[:, 0].mean(0), others[:, 0].std(0, ddof=1)
    published = norm.cdf(target[0], mean, spread)
    ours = scores(LikelihoodRatio(variance="each"), target, others)
    np.testing.assert_allclose(norm.cdf(ours), published, atol=1e-12)
    pooled = np.sqrt(others[:, 0].var(0, ddof=1).mean())
    fixed = scores(LikelihoodRatio(), target, others)
    np.testing.assert_allclose(
        norm.cdf(fixed / pooled), norm.cdf(target[0], mean, pooled), atol=1e-12
    )


@few
@given(st.integers(0, 10_000), st.sampled_from(["each", "fixed"]))
def test_lira_online_is_the_published_ratio_of_densities(
    seed: int, variance: Literal["each", "fixed"]
) -> None:
    target, others = losses(seed, 8)
    trained_on = halves(seed, 8)
    inside = [others[trained_on[:, x], 0, x] for x in range(SAMPLES)]
    outside = [others[~trained_on[:, x], 0, x] for x in range(SAMPLES)]

    def spreads(parts: list[np.ndarray]) -> np.ndarray:
        each = np.array([part.var(ddof=1) for part in parts])
        deviations: np.ndarray = np.sqrt(
            each if variance == "each" else np.full(SAMPLES, each.mean())
        )
        return deviations

    with_it = norm.logpdf(target[0], [part.mean() for part in inside], spreads(inside))
    without = norm.logpdf(target[0], [part.mean() for part in outside], spreads(outside))
    ours = scores(LikelihoodRatio(variance=variance), target, others, trained_on)
    np.testing.assert_allclose(ours, with_it - without, rtol=1e-9, atol=1e-9)


def tuned_rmia(
    signals: list[list[float]], owners: list[list[int]], alike: dict[int, int] | None = None
) -> RelativeLikelihood:
    """Return RMIA tuned on references; ``owners`` states which client trained on each sample."""
    never = torch.zeros(1, dtype=torch.bool)
    references = [
        Reference(
            (measurements_of(np.zeros((1, 1))),),
            0,
            never,
            alike or {},
            Tuning((measurements_of(np.log([probabilities])),), torch.tensor(owner)),
        )
        for probabilities, owner in zip(signals, owners, strict=True)
    ]
    return RelativeLikelihood().with_references(references)


def auc_by_hand(signals: np.ndarray, owners: np.ndarray, attacked: int, slope: float) -> float:
    """Return the AUC of an attack on one reference that uses all others, for a slope."""
    pairs = list[tuple[float, bool]]()
    for x in range(signals.shape[1]):
        others = [o for o in range(len(signals)) if o != attacked]
        without = [signals[o, x] for o in others if owners[o, x] == NO_CLIENT]
        if without:
            mean = ((1 + slope) * float(np.mean(without)) + 1 - slope) / 2
            pairs.append((signals[attacked, x] / mean, owners[attacked, x] == 0))
    scored, truth = zip(*pairs, strict=True)
    return float(roc_auc_score(truth, scored))


@pytest.mark.parametrize(
    ("member", "hard", "easy", "slope"),
    [
        # Only with a slope above 0, the ratio of the member exceeds that of an easy non-member.
        (0.5, 0.1, (0.9, 0.9), 0.1),
        # Only with a small slope, the ratio of an easy member exceeds that of a hard non-member.
        (0.9, 0.85, (0.2, 0.1), 0.0),
    ],
)
def test_the_offline_slope_is_tuned_on_members_of_references(
    member: float, hard: float, easy: tuple[float, float], slope: float
) -> None:
    # Sample 0 is a member of reference 0, sample 1 of reference 1, and sample 2 of none.
    signals = [[member, hard, easy[0]], [hard, member, easy[1]]]
    rule = tuned_rmia(signals, [[0, NO_CLIENT, NO_CLIENT], [NO_CLIENT, 0, NO_CLIENT]])
    if easy[0] != easy[1]:
        rule = tuned_rmia(
            [signals[0], [hard, 0.5, easy[1]]], [[0, NO_CLIENT, NO_CLIENT], [NO_CLIENT] * 3]
        )
    assert rule.choose_offline_coefficient(0) == slope

    def in_order(a: float) -> bool:
        ratios = [
            signal / (((1 + a) * other + 1 - a) / 2) for signal, other in ((member, hard), easy)
        ]
        return ratios[0] > ratios[1]

    assert [in_order(a) for a in OFFLINE_COEFFICIENTS].index(True) == OFFLINE_COEFFICIENTS.index(
        slope
    )
    fixed = RelativeLikelihood(offline=slope, references=rule.references)
    attacked = measurements_of(np.log([[0.3]]))
    assert torch.equal(rule(attacked, target=0), fixed(attacked, target=0))


@pytest.mark.slow
@few
@given(st.integers(0, 10**6))
def test_the_chosen_slope_has_the_largest_mean_auc_over_the_references(seed: int) -> None:
    rng = np.random.default_rng(seed)
    owners = np.full((3, 40), NO_CLIENT)
    for reference in range(3):
        owners[reference, 8 * reference : 8 * reference + 12] = 0
    hard = rng.uniform(0.05, 0.95, 40)
    signals = np.where(owners == 0, hard ** rng.uniform(0.1, 1, 40), hard)
    rule = tuned_rmia(signals.tolist(), owners.tolist())

    areas = [
        np.mean([auc_by_hand(signals, owners, reference, slope) for reference in range(3)])
        for slope in OFFLINE_COEFFICIENTS
    ]
    chosen = areas[OFFLINE_COEFFICIENTS.index(rule.choose_offline_coefficient(0))]
    assert chosen == pytest.approx(max(areas), abs=1e-9)


def test_the_slope_is_tuned_on_the_corresponding_reference_client() -> None:
    # The best slope is above 0 for client 0, and 0 for client 1.
    signals = [[0.5, 0.9, 0.9], [0.1, 0.2, 0.9]]
    owners = [[0, 1, NO_CLIENT], [NO_CLIENT] * 3]

    def of_two(values: list[float]) -> Measurements:
        tensor = torch.log(torch.tensor([[values, values]], dtype=torch.float64))
        return Measurements(tensor, (1,), (0, 1), torch.zeros(1, 2, dtype=torch.int64))

    references = [
        Reference(
            (of_two([1.0]),),
            0,
            torch.zeros(1, dtype=torch.bool),
            {0: 0, 5: 1},
            Tuning((of_two(values),), torch.tensor(owner)),
        )
        for values, owner in zip(signals, owners, strict=True)
    ]
    rule = RelativeLikelihood().with_references(references)
    assert rule.choose_offline_coefficient(0) == 0.1
    assert rule.choose_offline_coefficient(5) == 0.0


def test_without_reference_members_the_default_slope_is_used() -> None:
    assert tuned_rmia([[0.5, 0.9]], [[0, NO_CLIENT]]).choose_offline_coefficient(0) == 0.3
    assert tuned_rmia([[0.5, 0.9]] * 2, [[NO_CLIENT] * 2] * 2).choose_offline_coefficient(0) == 0.3
    target, others = losses(5, 4)
    usual = scores(RelativeLikelihood(offline=0.3), target, others)
    np.testing.assert_array_equal(scores(RelativeLikelihood(), target, others), usual)


def test_only_four_references_are_used_for_tuning() -> None:
    rng = np.random.default_rng(0)
    owners = np.full((6, 40), NO_CLIENT)
    for reference in range(4):
        owners[reference, 10 * reference : 10 * reference + 10] = 0
    hard = rng.uniform(0.05, 0.95, 40)
    signals = np.where(owners == 0, hard**0.3, hard)
    # The fifth reference was trained on a single sample, which another one has by chance, too.
    signals[4] = np.minimum(2 * hard, 0.97)
    owners[4, hard.argmax()], signals[4, hard.argmax()] = 0, 0.99
    rule = tuned_rmia(signals.tolist(), owners.tolist())

    def best(attacked: int) -> float:
        areas = [
            [auc_by_hand(signals, owners, reference, a) for reference in range(attacked)]
            for a in OFFLINE_COEFFICIENTS
        ]
        return OFFLINE_COEFFICIENTS[int(np.argmax(np.mean(areas, axis=1)))]

    assert best(5) != best(4)
    assert rule.choose_offline_coefficient(0) == best(4)


def test_the_slope_does_not_depend_on_the_attacked_samples() -> None:
    rule = tuned_rmia(
        [[0.5, 0.1, 0.9], [0.1, 0.5, 0.9]], [[0, NO_CLIENT, NO_CLIENT], [NO_CLIENT, 0, NO_CLIENT]]
    )
    assert rule.on_samples(torch.tensor([0])).choose_offline_coefficient(
        0
    ) == rule.choose_offline_coefficient(0)


def test_offline_lira_needs_one_reference() -> None:
    target, others = losses(3, 1)
    np.testing.assert_allclose(scores(LikelihoodRatio(), target, others), target[0] - others[0, 0])
    with pytest.raises(BadInput, match="for every sample, at least 2 reference models"):
        scores(LikelihoodRatio(variance="each"), target, others)


def test_rounds_are_compared_with_equal_rounds_and_averaged() -> None:
    target, others = losses(4, 3, rounds=5)
    mean = scores(LikelihoodRatio(rounds="mean"), target, others)
    each = [scores(LikelihoodRatio(), target[[r]], others[:, [r]]) for r in range(5)]
    np.testing.assert_allclose(mean, np.mean(each, axis=0))
    np.testing.assert_array_equal(scores(LikelihoodRatio(), target, others), each[-1])


def test_missing_reference_rounds_use_the_last_one() -> None:
    rule = LikelihoodRatio(rounds="mean")
    target, others = np.array([[1.0], [2.0]]), np.array([[10.0], [20.0]])
    reference = Reference((measurements_of(others, (1, 9)),), 0, torch.zeros(1, dtype=torch.bool))
    score = rule.with_references([reference])(measurements_of(target, (1, 2)), target=0)
    assert float(score) == ((1 - 10) + (2 - 20)) / 2


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RelativeLikelihood(rounds="first"), "takes 'last' or 'mean', got 'first'"),  # type: ignore[arg-type]
        (
            lambda: RelativeLikelihood(offline=1.5),
            "a coefficient from 0 to 1, or -1 .* got 1.5",
        ),
        (lambda: LikelihoodRatio(variance="none"), "takes 'fixed' or 'each', got 'none'"),  # type: ignore[arg-type]
    ],
)
def test_invalid_reference_settings_raise(make: object, match: str) -> None:
    assert callable(make)
    with pytest.raises(BadInput, match=match):
        make()
