"""Slope of a signal over rounds, compared with numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Identity

from fedaudit.attacks import resolve_attack
from fedaudit.attacks.rules import Slope
from fedaudit.core.errors import BadInput
from fedaudit.core.values import Architecture, Model
from fedaudit.observe.measurements import Measurements
from fedaudit.signals.outputs import OutputSignal


def over_rounds(values: torch.Tensor, rounds: tuple[int, ...]) -> Measurements:
    """Return measurements of one client, of shape (rounds, samples)."""
    bases = torch.zeros((len(rounds), 1), dtype=torch.int64)
    return Measurements(values[:, None].double(), rounds, (0,), bases)


def test_missing_rounds_are_skipped_in_the_slope() -> None:
    m = over_rounds(torch.tensor([[0.0], [torch.nan], [3.0]]), (10, 20, 40))
    assert Slope()(m, target=0).item() == pytest.approx(0.1)


def test_a_constant_signal_has_slope_zero() -> None:
    m = over_rounds(torch.full((7, 3), 0.1), tuple(range(3, 10)))
    assert Slope()(m, target=0).tolist() == [0.0, 0.0, 0.0]


@given(
    rounds=st.lists(st.integers(1, 500), min_size=2, max_size=12, unique=True).map(sorted),
    seed=st.integers(0, 1000),
)
def test_slopes_match_numpy_polyfit(rounds: list[int], seed: int) -> None:
    values = torch.randn(len(rounds), 5, generator=torch.Generator().manual_seed(seed))
    slopes = Slope()(over_rounds(values, tuple(rounds)), target=0)
    expected = np.polyfit(rounds, values.double().numpy(), 1)[0]
    assert slopes.numpy() == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["fta-c", "fta-l"])
def test_faster_learned_samples_score_higher(name: str) -> None:
    attack = resolve_attack(name)
    (signal,) = attack.signals
    assert isinstance(signal, OutputSignal)
    model = Model(Architecture("net", Identity), params={}, buffers={})
    # The logit of class 0 grows with the rounds, twice as fast for the first sample.
    rounds = [
        signal.of(model, torch.tensor([[2.0 * t, 0.0], [1.0 * t, 0.0]]), torch.tensor([0, 0]))
        for t in (0, 1)
    ]
    scores = attack.scores({signal.name: over_rounds(torch.stack(rounds), (1, 2))}, 0)
    assert scores[0] > scores[1] > 0


def test_one_round_raises_with_advice() -> None:
    with pytest.raises(BadInput, match=r"at least 2 measured rounds with client 0, got 1; .*every"):
        Slope()(over_rounds(torch.ones(1, 2), (10,)), target=0)


def test_slope_attacks_can_use_the_global_model() -> None:
    for name, signal in (("fta-c", "global_confidence"), ("fta-l", "global_loss")):
        attack = resolve_attack(name).with_settings({"snapshot": "global"})
        assert [s.name for s in attack.signals] == [signal]


def test_another_snapshot_is_refused() -> None:
    with pytest.raises(BadInput, match=r"takes 'local' or 'global' or 'received', got 'both'"):
        resolve_attack("fta-c").with_settings({"snapshot": "both"})
