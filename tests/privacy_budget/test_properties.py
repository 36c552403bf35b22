"""Epsilon is monotone in every setting that changes the privacy loss."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.plan.values import settings_from
from fedaudit.privacy_budget.losses import Losses
from fedaudit.privacy_budget.setup import PrivacySetup, Unit
from tests.privacy_budget.setups import client, coarse_grid, sample, setup

UNITS: tuple[Unit, ...] = ("sample", "person", "client")
NOISE = st.floats(0.4, 20.0)
RATES = st.floats(0.001, 0.9)
ROUNDS = st.integers(1, 300)

GRID = 1 + 2e-3
"""Relative error of a grid of losses, which may be finer for one of two settings."""


@pytest.fixture(autouse=True, scope="module")
def _coarse_grid() -> Iterator[None]:
    with coarse_grid():
        yield


def epsilon(values: dict[str, object], unit: Unit = "client") -> float:
    resolved = settings_from(values, PrivacySetup)
    return Losses(resolved, unit).epsilon(resolved.rounds)


@st.composite
def phases(draw: st.DrawFn) -> dict[str, object]:
    kind = draw(st.sampled_from(["all", "poisson", "fixed"]))
    common: dict[str, Any] = {"noise_multiplier": draw(NOISE), "rounds": draw(ROUNDS)}
    if kind == "poisson":
        return client(**common, sampling=kind, rate=draw(RATES))
    if kind == "fixed":
        return client(**common, sampling=kind, clients_per_round=draw(st.integers(1, 1000)))
    return client(**common)


def replaced(phase: dict[str, object], **changes: object) -> dict[str, object]:
    return setup(phase | changes, adjacency="replace")


@settings(max_examples=6, deadline=None)
@given(phases(), st.integers(1, 300))
def test_more_rounds_never_lower_epsilon(phase: dict[str, Any], more: int) -> None:
    longer = replaced(phase, rounds=phase["rounds"] + more)
    assert epsilon(replaced(phase)) <= epsilon(longer) * GRID


@settings(max_examples=6, deadline=None)
@given(phases(), st.floats(1.0, 10.0))
def test_more_noise_never_raises_epsilon(phase: dict[str, Any], factor: float) -> None:
    quieter = replaced(phase, noise_multiplier=phase["noise_multiplier"] * factor)
    assert epsilon(quieter) <= epsilon(replaced(phase)) * GRID


@settings(max_examples=6, deadline=None)
@given(phases(), st.floats(1.0, 1e5))
def test_a_larger_delta_never_raises_epsilon(phase: dict[str, Any], factor: float) -> None:
    strict, loose = replaced(phase) | {"delta": 1e-9}, replaced(phase) | {"delta": 1e-9 * factor}
    assert epsilon(loose) <= epsilon(strict) * GRID


@settings(max_examples=5, deadline=None)
@given(NOISE, RATES, st.floats(0.0, 1.0), ROUNDS)
def test_a_higher_rate_never_lowers_epsilon(
    noise: float, rate: float, further: float, rounds: int
) -> None:
    low, high = (
        client(noise_multiplier=noise, rounds=rounds, sampling="poisson", rate=value)
        for value in (rate, rate + further * (1 - rate))
    )
    assert epsilon(setup(low)) <= epsilon(setup(high)) * GRID


@settings(max_examples=5, deadline=None)
@given(st.floats(0.5, 10.0), st.integers(1, 200), st.integers(1, 30), st.integers(0, 30))
def test_a_larger_group_never_has_a_lower_epsilon(
    noise: float, batch: int, members: int, further: int
) -> None:
    phase = sample(noise_multiplier=noise, batch_size=batch)
    small, large = (
        epsilon(setup(phase, person_samples=count), "person")
        for count in (members, members + further)
    )
    # Above 64 members in a step, numbers are rounded up.
    assert small <= large * 1.05


@settings(max_examples=5, deadline=None)
@given(phases())
def test_a_sample_is_at_most_as_exposed_as_a_person(phase: dict[str, Any]) -> None:
    values = replaced(phase) | {"person_clients": 2}
    assert epsilon(values, "sample") <= epsilon(values, "person") * GRID


@settings(max_examples=5, deadline=None)
@given(phases(), phases())
def test_two_phases_cost_at_least_as_much_as_either(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    both = epsilon(setup(first, second, adjacency="replace"))
    assert max(epsilon(replaced(first)), epsilon(replaced(second))) <= both * GRID


@settings(max_examples=6, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*client(), "sampling", "rate", "order"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        max_size=4,
    )
)
def test_any_value_is_taken_or_refused(changes: dict[str, object]) -> None:
    with suppress(BadInput):
        settings_from(setup(client() | changes), PrivacySetup)
