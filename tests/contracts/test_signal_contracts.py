"""Every signal of the catalogue says something of one sample, whatever is measured beside it."""

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
    """Of these samples, in this order; for every client."""
    round = replace(ROUND, after={"global": NET.initial(2)})
    return measure_round(round, [signal], SAMPLES.take(which)).signals[signal.name]


@EACH
def test_samples_in_another_order_have_the_numbers_they_had(signal: Signal) -> None:
    everything = torch.arange(len(SAMPLES))
    order = torch.randperm(len(SAMPLES), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        values(signal, order), values(signal, everything)[..., order], rtol=1e-4, atol=1e-6
    )


@EACH
def test_a_sample_alone_has_the_number_it_has_among_others(signal: Signal) -> None:
    everything = values(signal, torch.arange(len(SAMPLES)))
    for one in range(len(SAMPLES)):
        torch.testing.assert_close(
            values(signal, torch.tensor([one])), everything[..., [one]], rtol=1e-4, atol=1e-6
        )


@EACH
def test_signals_are_finite_and_differ_between_samples(signal: Signal) -> None:
    found = values(signal, torch.arange(len(SAMPLES)))
    assert found.isfinite().all()
    assert (found.std(dim=-1) > 0).all(), "it is the same for every sample"
