import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import norm

from fedaudit.attacks.rules import OneSidedLikelihood
from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.values import ClientId
from fedaudit.observe.measurements import Measurements

nan = float("nan")
fewer_examples = settings(max_examples=40)
NOT_A_FILTER = 1e6

# Multiples of 0.001, so that no square of a difference is rounded to zero.
signals = st.integers(-2_000, 2_000).map(lambda thousandths: thousandths / 1000)


def measurements_of(values: object) -> Measurements:
    """Return measurements of shape (rounds, clients, samples); all clients received one model."""
    tensor = torch.as_tensor(values, dtype=torch.float64)
    rounds, clients, _ = tensor.shape
    bases = torch.zeros(rounds, clients, dtype=torch.int64)
    return Measurements(tensor, tuple(range(1, rounds + 1)), tuple(range(clients)), bases)


def one_sample(*clients: float) -> Measurements:
    """Return measurements of one round and one sample; the first client is the target."""
    return measurements_of(np.array(clients).reshape(1, -1, 1))


def score(m: Measurements, rule: OneSidedLikelihood | None = None, target: ClientId = 0) -> float:
    return float((rule or OneSidedLikelihood())(m, target=target)[0])


def value_arrays(
    clients: st.SearchStrategy[int], samples: int = 3
) -> st.SearchStrategy[np.ndarray]:
    shapes = st.tuples(st.integers(1, 4), clients, st.just(samples))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float64, shape, elements=signals))


def published_scores(values: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """Return scores by Eqs. (5) and (9)-(12) for the first client, without an outlier filter."""
    scores = []
    for sample in range(values.shape[2]):
        rounds = []
        for round in values:
            others = [round[client, sample] for client in range(1, len(round))]
            mean = sum(others) / len(others)
            variance = sum((other - mean) ** 2 for other in others) / len(others) + floor
            rounds.append(norm.cdf(round[0, sample], loc=mean, scale=variance**0.5))
        scores.append(sum(rounds) / len(rounds))
    return np.array(scores)


def test_score_of_one_standard_deviation_is_minus_the_upper_tail() -> None:
    # The others have mean 2 and standard deviation 1.
    assert score(one_sample(3.0, 1.0, 3.0)) == pytest.approx(-(1 - 0.8413), abs=1e-4)


@fewer_examples
@given(value_arrays(st.integers(3, 8)))
def test_scores_equal_the_papers_mean_cdf_minus_one(values: np.ndarray) -> None:
    spreads = values[:, 1:].std(axis=1)
    values[:, 1] += np.where(spreads == 0, 0.5, 0.0)  # the paper divides by this deviation
    ours = OneSidedLikelihood(outlier_sigmas=NOT_A_FILTER)(
        measurements_of(values), target=0
    ).numpy()
    np.testing.assert_allclose(ours + 1, published_scores(values), atol=1e-9)


def test_variance_floor_reproduces_the_published_constant() -> None:
    values = np.random.default_rng(0).normal(scale=1e-4, size=(3, 6, 50))
    ours = OneSidedLikelihood(variance_floor=1e-8)(measurements_of(values), target=0).numpy()
    np.testing.assert_allclose(ours + 1, published_scores(values, floor=1e-8), atol=1e-9)
    # The floor equals the variance, which doubles: z falls from 1 to 1 / sqrt(2).
    m = one_sample(1e-4, -1e-4, 1e-4)
    assert score(m) == pytest.approx(-norm.sf(1.0), abs=1e-9)
    floored = score(m, OneSidedLikelihood(variance_floor=1e-8))
    assert floored == pytest.approx(-norm.sf(2**-0.5), abs=1e-9)


@fewer_examples
@given(value_arrays(st.integers(3, 11)))
def test_the_published_filter_never_acts_with_ten_others(values: np.ndarray) -> None:
    m = measurements_of(values)
    unfiltered = OneSidedLikelihood(outlier_sigmas=NOT_A_FILTER)
    assert torch.equal(OneSidedLikelihood()(m, target=0), unfiltered(m, target=0))


def test_the_published_filter_acts_with_eleven_others() -> None:
    # Ten others have mean 0 and standard deviation 0.1; the last one trained on the sample.
    m = one_sample(0.1, *[-0.1, 0.1] * 5, 10.0)
    assert score(m) == pytest.approx(-norm.sf(1.0), abs=1e-9)
    assert score(m, OneSidedLikelihood(outlier_sigmas=NOT_A_FILTER)) < -0.5


def test_the_filter_removes_only_high_outliers() -> None:
    m = one_sample(0.1, *[-0.1, 0.1] * 5, -10.0)
    assert score(m) == score(m, OneSidedLikelihood(outlier_sigmas=NOT_A_FILTER))


def test_leave_one_out_filters_with_three_others() -> None:
    # The value 10 is removed. The other two have mean and standard deviation 0.05, so z = 1.
    m = one_sample(0.1, 0.0, 0.1, 10.0)
    assert score(m, OneSidedLikelihood(leave_one_out=True)) == pytest.approx(-norm.sf(1.0))
    assert score(m) < -0.5


def test_leave_one_out_changes_nothing_with_two_others() -> None:
    m = one_sample(3.0, 1.0, 3.0)
    assert score(m, OneSidedLikelihood(leave_one_out=True)) == score(m)


@fewer_examples
@given(value_arrays(st.integers(3, 14)), st.floats(0.01, 5), st.booleans())
def test_scores_are_between_minus_one_and_zero(
    values: np.ndarray, sigmas: float, leave_one_out: bool
) -> None:
    rule = OneSidedLikelihood(outlier_sigmas=sigmas, leave_one_out=leave_one_out)
    scores = rule(measurements_of(values), target=0)
    assert bool(((scores >= -1) & (scores <= 0)).all())


@pytest.mark.parametrize("level", [0.0, 0.1, -1 / 3, 1e6])
@pytest.mark.parametrize("count", [2, 3, 7, 11])
@pytest.mark.parametrize("sigmas", [0.5, 3.0])
def test_identical_others_leave_only_the_sign(level: float, count: int, sigmas: float) -> None:
    rule = OneSidedLikelihood(outlier_sigmas=sigmas)
    others = [level] * count
    assert score(one_sample(level + 1e-3, *others), rule) == 0.0
    assert score(one_sample(level, *others), rule) == -0.5
    assert score(one_sample(level - 1e-3, *others), rule) == -1.0


def test_scores_distinguish_nine_and_twelve_standard_deviations() -> None:
    nine, twelve = (score(one_sample(z, -1.0, 1.0)) for z in (9.0, 12.0))
    assert norm.cdf(9.0) == norm.cdf(12.0) == 1.0, "where the published score has a tie"
    assert nine < twelve < 0.0


@fewer_examples
@given(value_arrays(st.integers(3, 12)))
def test_a_mean_above_a_threshold_implies_a_round_above_it(values: np.ndarray) -> None:
    # This is Theorem 1.
    rule = OneSidedLikelihood()
    single = [rule(measurements_of(values[row : row + 1]), target=0) for row in range(len(values))]
    highest = torch.stack(single).max(0).values
    assert bool((rule(measurements_of(values), target=0) <= highest + 1e-12).all())


def test_rounds_without_the_target_are_excluded() -> None:
    present, missing = [[3.0], [1.0], [3.0]], [[nan], [5.0], [6.0]]
    assert score(measurements_of([present, missing])) == score(measurements_of([present]))


def test_rounds_with_fewer_than_two_others_are_excluded() -> None:
    present, too_few = [[3.0], [1.0], [3.0]], [[3.0], [nan], [6.0]]
    assert score(measurements_of([too_few, present])) == score(measurements_of([present]))


def test_unmeasured_others_are_excluded_from_a_round() -> None:
    assert score(one_sample(3.0, 1.0, nan, 3.0)) == score(one_sample(3.0, 1.0, 3.0))


def test_others_that_received_another_model_are_excluded() -> None:
    m = one_sample(3.0, 1.0, 100.0, 3.0)
    m.bases[0, 2] = 1
    assert score(m) == score(one_sample(3.0, 1.0, 3.0))
    with pytest.raises(NotVisible):
        score(m, target=2)


def test_one_other_client_raises_and_suggests_another_attack() -> None:
    with pytest.raises(NotVisible, match=r"other clients.*got 1 at most.*loss-series"):
        score(one_sample(3.0, 1.0))


@pytest.mark.parametrize(
    "settings",
    [{"outlier_sigmas": 0.0}, {"outlier_sigmas": nan}, {"variance_floor": -1e-8}],
)
def test_invalid_training_settings_raise(settings: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=r"of OneSidedLikelihood takes a .*number"):
        OneSidedLikelihood(**settings)  # type: ignore[arg-type]
