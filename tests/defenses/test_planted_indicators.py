"""Indicators of planted neurons, on small models."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from torch import Tensor, nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Model, Samples
from fedaudit.defenses.planted import (
    INDICATORS,
    activations_on,
    distance_between,
    distance_from_others,
)
from fedaudit.models import MLP


def own_samples(*rows: list[float]) -> Samples:
    count = len(rows)
    return Samples(torch.tensor(rows), torch.zeros(count, dtype=torch.long), torch.arange(count))


POINTS = own_samples([1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [-1.0, -1.0])


def model(first: list[list[float]], second: list[list[float]], **biases: list[float]) -> Model:
    """Return a model with two hidden layers and one output."""
    sizes = len(first), len(second)
    net = Architecture(
        "net",
        MLP(hidden=",".join(map(str, sizes))).for_samples((len(first[0]),), 1),
        (("sizes", str((len(first[0]), *sizes))),),
    )
    initial = net.initial(0)
    values: dict[str, Tensor] = dict(
        zip(
            initial.params,
            [
                torch.tensor(first),
                torch.tensor(biases.get("first_bias", [0.0] * sizes[0])),
                torch.tensor(second),
                torch.tensor(biases.get("second_bias", [0.0] * sizes[1])),
                torch.ones(1, sizes[1]),
                torch.zeros(1),
            ],
            strict=True,
        )
    )
    return Model(net, values)


def indicator_value(
    name: str, after: Model, before: Model | None = None, samples: Samples = POINTS
) -> float:
    return INDICATORS[name](after, before, samples)


PLAIN = model([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, -1.0]])
"""For the four points, the first layer has the values (1, 0), (0, 1), (3, 0) and (-1, -1). After
ReLU, the second layer has the values (1, 1), (1, -1), (3, 3) and (0, 0)."""


def test_units_that_fire_for_at_most_one_sample_are_counted() -> None:
    assert indicator_value("lone-units", PLAIN) == 0.0
    shy = model([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, -1.0]], second_bias=[-2.0, 0.0])
    assert indicator_value("lone-units", shy) == 0.5
    never = model([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, -1.0]], second_bias=[-9.0, -2.0])
    assert indicator_value("lone-units", never) == 1.0


def test_one_stands_out_is_measured_in_standard_deviations() -> None:
    # The first unit has 3 after 1, 1 and 0, whose standard deviation is sqrt(2) / 3.
    assert indicator_value("one-stands-out", PLAIN) == pytest.approx(2 / (math.sqrt(2) / 3))
    same = model([[0.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, -1.0]])
    assert indicator_value("one-stands-out", same) == 0.0


def test_units_that_never_fire_are_dead() -> None:
    assert indicator_value("dead-units", PLAIN) == 0.0
    # One unit of the first layer and one unit of the second layer never fire.
    dead = model([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [-1.0, 0.0]], first_bias=[0.0, -1.0])
    assert indicator_value("dead-units", dead) == 0.5


def test_weight_lengths_are_relative_to_the_median_of_the_layer() -> None:
    rows = [[3.0, 4.0], [1.0, 0.0], [0.0, 1.0]]
    assert indicator_value("norm-ratio", model(rows, [[1.0, 0.0, 0.0]] * 3)) == pytest.approx(
        math.log(5)
    )
    rows = [[0.1, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert indicator_value("norm-ratio", model(rows, [[1.0, 0.0, 0.0]] * 3)) == pytest.approx(
        math.log(10)
    )
    without = model([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0, 0.0]] * 3)
    assert 60 < indicator_value("norm-ratio", without) < math.inf


def test_the_largest_bias_is_relative_to_the_median_of_the_layer() -> None:
    biases = {"first_bias": [0.5, -8.0, 2.0], "second_bias": [1.0, 1.0, -1.0]}
    with_bias = model([[1.0, 0.0]] * 3, [[1.0, 0.0, 0.0]] * 3, **biases)
    assert indicator_value("bias-ratio", with_bias) == pytest.approx(math.log(4))
    assert indicator_value("bias-ratio", PLAIN) == 0.0


def test_a_row_of_other_weights_is_found_by_its_distribution() -> None:
    # All weights of the last row are larger than all others. In the second layer, rows are equal.
    odd = model([[1.0, 2.0], [1.5, 2.5], [7.0, 8.0]], [[1.0, 2.0, 3.0]] * 2)
    assert indicator_value("odd-row", odd) == 1.0
    assert indicator_value("odd-row", model([[1.0, 2.0]] * 3, [[1.0, 2.0, 3.0]] * 2)) == 0.0


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 9), st.booleans())
def test_distances_agree_with_scipy(seed: int, rows: int, each: int, ties: bool) -> None:
    rng = seeded(seed, "weights")
    values = torch.randn(rows, each, generator=rng, dtype=torch.float64)
    values = values.round() if ties else values
    for row, distance in enumerate(distance_from_others(values)):
        others = values[torch.arange(rows) != row].flatten()
        expected = ks_2samp(values[row].numpy(), others.numpy(), method="asymp").statistic
        assert float(distance) == pytest.approx(expected)
        assert distance_between(values[row], others) == pytest.approx(expected)
        assert distance_between(others, values[row]) == pytest.approx(expected)


def test_twins_are_parallel_units_of_any_norm() -> None:
    assert indicator_value("twins", PLAIN) == pytest.approx(0.0, abs=1e-12)
    scaled = model([[1.0, 2.0], [10.0, 20.0]], [[1.0, 1.0], [1.0, -1.0]])
    assert indicator_value("twins", scaled) == pytest.approx(1.0)
    empty = model([[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]])
    assert indicator_value("twins", empty) == pytest.approx(-1.0)


def test_the_layer_with_most_zeros_counts() -> None:
    assert indicator_value("zero-weights", PLAIN) == 0.5
    none = model([[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [1.0, -1.0]])
    assert indicator_value("zero-weights", none) == 0.25


def test_indicators_of_movement_find_the_row_that_was_replaced() -> None:
    before = model([[3.0, 4.0], [1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0, 0.0]] * 3)
    after = model([[3.0, 6.0], [1.0, 0.1], [0.1, 1.0]], [[1.0, 0.0, 0.0]] * 3)
    # Rows of norms 5, 1 and 1 change by 2, 0.1 and 0.1.
    assert indicator_value("moved-row", after, before) == pytest.approx(math.log(20), abs=1e-5)
    assert indicator_value("rewritten-row", after, before) == pytest.approx(
        math.log(2 / 5), abs=1e-5
    )
    # The largest difference of the distributions is that two of six weights are no longer 0.
    assert indicator_value("moved-weights", after, before) == pytest.approx(2 / 6)
    assert indicator_value("moved-row", after, after) == 0.0
    assert indicator_value("moved-weights", after, after) == 0.0
    assert indicator_value("rewritten-row", after, after) < -10


@pytest.mark.parametrize("name", INDICATORS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_non_finite_weights_are_most_suspicious(name: str, bad: float) -> None:
    params = dict(PLAIN.params)
    first = next(iter(params))
    params[first] = torch.full_like(params[first], bad)
    suspicion = indicator_value(name, Model(PLAIN.architecture, params), PLAIN)
    assert suspicion == math.inf or (bad == 3e38 and math.isfinite(suspicion))


@pytest.mark.parametrize("name", INDICATORS)
def test_models_without_hidden_dense_layers_are_refused(name: str) -> None:
    net = Architecture("bare", partial(nn.Linear, 2, 3))
    with pytest.raises(Unsupported, match="'bare' has none"):
        indicator_value(name, net.initial(0), net.initial(1))


@pytest.mark.parametrize("name", INDICATORS)
def test_an_indicator_does_not_change_model_or_samples(name: str) -> None:
    before = {key: value.clone() for key, value in PLAIN.params.items()}
    assert indicator_value(name, PLAIN, PLAIN) == indicator_value(name, PLAIN, PLAIN)
    assert all(torch.equal(PLAIN.params[key], value) for key, value in before.items())


@pytest.mark.parametrize("name", ["moved-row", "rewritten-row", "moved-weights"])
def test_change_needs_the_round_before(name: str) -> None:
    with pytest.raises(Unsupported, match="use other indicators in the first round"):
        indicator_value(name, PLAIN)
    other = model([[1.0, 0.0]] * 3, [[1.0, 0.0, 0.0]] * 3)
    with pytest.raises(Unsupported, match="other layers"):
        indicator_value(name, PLAIN, other)


def test_indicators_of_activations_need_at_least_three_samples() -> None:
    with pytest.raises(BadInput, match=r"at least three samples of the client, got 2"):
        indicator_value("lone-units", PLAIN, samples=own_samples([1.0, 0.0], [0.0, 1.0]))


def test_units_are_seen_before_their_relu() -> None:
    first, second = activations_on(PLAIN, POINTS)
    assert first.tolist() == POINTS.features.tolist()
    assert second.tolist() == [[1.0, 1.0], [1.0, -1.0], [3.0, 3.0], [0.0, 0.0]]
