"""Contract of every signal in the catalogue."""

from dataclasses import replace

import pytest
import torch

from fedaudit.attacks import ATTACKS, SOURCE_ATTACKS
from fedaudit.signals.base import Signal
from fedaudit.signals.measure import measure_round
from tests.signals.test_signals import NET, ROUND, SAMPLES

SIGNALS: dict[str, Signal] = {
    signal.name: signal
    for attack in (*ATTACKS.values(), *SOURCE_ATTACKS.values())
    for signal in attack.signals
}
EACH = pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)


def values(signal: Signal, which: torch.Tensor) -> torch.Tensor:
    """Return the signal of these samples, in this order, for every client."""
    round = replace(ROUND, after={"global": NET.initial(2)})
    return measure_round(round, [signal], SAMPLES.take(which)).signals[signal.name]


@EACH
def test_signals_do_not_depend_on_sample_order(signal: Signal) -> None:
    everything = torch.arange(len(SAMPLES))
    order = torch.randperm(len(SAMPLES), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        values(signal, order), values(signal, everything)[..., order], rtol=1e-4, atol=1e-6
    )


@EACH
def test_signals_do_not_depend_on_other_samples(signal: Signal) -> None:
    everything = values(signal, torch.arange(len(SAMPLES)))
    for sample in range(len(SAMPLES)):
        torch.testing.assert_close(
            values(signal, torch.tensor([sample])), everything[..., [sample]], rtol=1e-4, atol=1e-6
        )


@EACH
def test_signals_are_finite_and_differ_between_samples(signal: Signal) -> None:
    measured = values(signal, torch.arange(len(SAMPLES)))
    assert measured.isfinite().all()
    assert (measured.std(dim=-1) > 0).all(), "the signal is equal for all samples"
