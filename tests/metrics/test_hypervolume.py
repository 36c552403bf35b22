import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedaudit.core.errors import BadInput
from fedaudit.metrics import advantage, hypervolume, hypervolume_over_seeds, is_pareto_optimal
from fedaudit.metrics.utility import _areas

SHARES = st.floats(0, 1, width=32)
POINTS = arrays(np.float64, st.tuples(st.integers(1, 8), st.just(2)), elements=SHARES)


def points(*pairs: tuple[float, float]) -> np.ndarray:
    return np.array(pairs, dtype=np.float64)


def test_the_hypervolume_of_one_point_is_its_rectangle() -> None:
    assert hypervolume(points((0.25, 0.5))) == pytest.approx(0.75 * 0.5)


def test_the_hypervolume_of_two_points_is_the_union_of_rectangles() -> None:
    # 0.8 x 0.4 and 0.5 x 0.7, which share 0.5 x 0.4.
    assert hypervolume(points((0.2, 0.6), (0.5, 0.3))) == pytest.approx(0.32 + 0.35 - 0.2)


@pytest.mark.parametrize(("point", "area"), [((0.0, 0.0), 1.0), ((1.0, 0.0), 0.0), ((1, 1), 0.0)])
def test_hypervolume_is_one_for_the_best_and_zero_for_the_worst_point(
    point: tuple[float, float], area: float
) -> None:
    assert hypervolume(points(point)) == area


@given(POINTS)
def test_on_front_matches_pairwise_dominance(candidates: np.ndarray) -> None:
    beaten = [
        any((other <= point).all() and (other < point).any() for other in candidates)
        for point in candidates
    ]
    assert is_pareto_optimal(candidates).tolist() == [not lost for lost in beaten]


@pytest.mark.slow
@given(st.lists(POINTS, min_size=1, max_size=4), st.integers(0, 3))
def test_vectorised_hypervolumes_match_single_ones(fronts: list[np.ndarray], repeated: int) -> None:
    shortest = min(map(len, fronts))
    together = np.stack([front[:shortest] for front in fronts])
    together[:, repeated % shortest] = together[:, 0]
    alone = [hypervolume(front) for front in together]
    assert _areas(together) == pytest.approx(np.array(alone), abs=1e-12)


def test_fewer_than_ten_seeds_give_no_interval() -> None:
    """A bootstrap interval over so few seeds is too narrow to report."""
    runs = np.random.default_rng(3).uniform(0.2, 0.6, (9, 4, 2))
    area = hypervolume_over_seeds(runs, rng=np.random.default_rng(0))
    assert (area.low, area.high) == (None, None)
    assert area.method == "an interval over further runs needs 10 seeds here, got 9"


def test_the_reference_hypervolume_is_subtracted_in_every_draw() -> None:
    # No defense leaves 0.2 and 0.4; the defense adds 0.1 in every seed, and so in every draw.
    two = np.array([[[0.8, 0.0], [0.7, 0.0]], [[0.6, 0.0], [0.5, 0.0]]])
    gain = hypervolume_over_seeds(
        np.tile(two, (5, 1, 1)), rng=np.random.default_rng(0), n_baseline_points=1
    )
    assert [gain.value, gain.low, gain.high] == pytest.approx([0.1, 0.1, 0.1])


@pytest.mark.simulation
def test_the_hypervolume_interval_has_its_coverage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedaudit.metrics.utility._RESAMPLES", 400)
    truth = hypervolume(points((0.3, 0.4), (0.5, 0.2)))
    covered = 0
    for trial in range(60):
        rng = np.random.default_rng(trial)
        noise = rng.normal(0, 0.05, (20, 2, 2))
        runs = points((0.3, 0.4), (0.5, 0.2))[None] + noise
        area = hypervolume_over_seeds(runs.clip(0, 1), rng=rng)
        assert area.low is not None
        assert area.high is not None
        covered += area.low <= truth <= area.high
    assert covered >= 51


def test_one_seed_has_no_interval_and_equal_seeds_zero_width() -> None:
    single_seed = np.array([[[0.5, 0.5]]])
    assert hypervolume_over_seeds(single_seed, rng=np.random.default_rng(0)).low is None
    area = hypervolume_over_seeds(np.repeat(single_seed, 10, axis=0), rng=np.random.default_rng(0))
    assert [area.low, area.high, area.value] == pytest.approx([0.25] * 3)


@pytest.mark.parametrize("bad", [np.zeros((0, 2)), points((0.5, 1.01)), points((float("nan"), 0))])
def test_values_outside_zero_and_one_raise(bad: np.ndarray) -> None:
    with pytest.raises(BadInput, match=r"at least one point|must be in \[0, 1\]"):
        hypervolume(bad)


@pytest.mark.parametrize(("auc", "expected"), [(0.5, 0.0), (0.75, 0.5), (1.0, 1.0), (0.3, 0.0)])
def test_advantage_is_zero_at_or_below_chance(auc: float, expected: float) -> None:
    assert advantage(auc) == expected
