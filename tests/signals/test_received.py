"""Computations before an update arrives do not change a bit of any signal."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from fedaudit.core.values import Model, Samples
from fedaudit.models import architecture
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals import gradients
from fedaudit.signals.base import PreparableSignal, ReceivedModelCache, Signal
from fedaudit.signals.gradients import cache_chunks, gradient_products
from fedaudit.signals.kernels import FormedGradients, LayerProducts
from fedaudit.signals.kernels.cache import ChunkCache
from fedaudit.signals.kernels.capture import Uncapturable
from fedaudit.signals.kernels.plan import measure_chunk
from fedaudit.signals.measure import measure_round
from fedaudit.signals.updates import (
    GradientCosine,
    GradientDifference,
    GradientNorm,
    ProjectionResidual,
)
from tests.networks import CASES, WHOLE
from tests.signals.test_gradients import make_inputs, rng, updates_for

SIGNALS: list[Signal] = [
    GradientNorm(),
    GradientCosine(),
    GradientDifference(),
    ProjectionResidual(),
]
ENOUGH = 1 << 30


def last(steps: Iterator[ChunkCache]) -> ChunkCache:
    return [*steps][-1]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", sorted(CASES.keys() - WHOLE.keys()))
def test_cached_chunks_give_the_same_bits(name: str, workers: int) -> None:
    inputs = make_inputs(CASES[name], 1, 70)
    base, updates, x, y = inputs
    expected = gradient_products(*inputs)
    cache = last(cache_chunks(base, x, y, ENOUGH))
    # An upload that a filter changes is measured twice.
    for update in (updates, updates_for(base, 1)):
        products = gradient_products(base, update, x, y, workers=workers, cache=cache)
        for actual, exact in zip(products, expected, strict=True):
            assert torch.equal(actual, exact)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_model_without_fast_kernels_is_measured_with_the_update(name: str) -> None:
    inputs = make_inputs(CASES[name], 1)
    cache = None
    # For one model, only the comparison with autograd shows that its fast kernels are wrong.
    with suppress(Uncapturable):
        cache = last(cache_chunks(inputs.model, inputs.features, inputs.labels, ENOUGH))
    products = gradient_products(*inputs, cache=cache)
    assert torch.equal(products.dots, gradient_products(*inputs).dots)


def cnn(count: int = 150) -> tuple[Model, Samples]:
    base = architecture("cnn", shape=(1, 28, 28), classes=10).initial(0)
    x = torch.randn(count, 1, 28, 28, generator=rng(2))
    return base, Samples(x, torch.arange(count) % 10)


def record_measured_chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the size of each chunk that is measured with the update."""
    passed = list[int]()

    def watch(capture: Any, kernels: Any, x: Tensor, y: Tensor, clients: int) -> LayerProducts:
        passed.append(len(x))
        return measure_chunk(capture, kernels, x, y, clients)

    monkeypatch.setattr(gradients, "measure_chunk", watch)
    return passed


def test_gradients_of_convolutions_are_written_before_the_update_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, samples = cnn()
    cache = last(cache_chunks(base, samples.features, samples.targets, ENOUGH))
    layers = cache.by_start(64, torch.channels_last, 1)[0]
    assert [isinstance(layer, FormedGradients) for layer in layers.values()] == [True] * 2 + [
        False
    ] * 3
    passed = record_measured_chunks(monkeypatch)
    gradient_products(base, updates_for(base, 1), samples.features, samples.targets, cache=cache)
    assert not passed


def test_chunks_beyond_the_memory_limit_are_measured_with_the_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, samples = cnn()
    inputs = base, updates_for(base, 1), samples.features, samples.targets
    expected = gradient_products(*inputs)
    # All steps yield one object, which grows.
    (first, *_) = [each.bytes for each in cache_chunks(base, *inputs[2:], ENOUGH)]
    cache = last(cache_chunks(base, *inputs[2:], first))
    passed = record_measured_chunks(monkeypatch)
    products = gradient_products(*inputs, cache=cache)
    assert passed == [64, 22]
    assert torch.equal(products.dots, expected.dots)
    assert cache.bytes == first


def test_cached_gradients_and_inputs_of_another_model_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, samples = cnn()
    other = base.architecture.initial(1)
    cache = last(cache_chunks(other, samples.features, samples.targets, ENOUGH))
    passed = record_measured_chunks(monkeypatch)
    gradient_products(base, updates_for(base, 1), samples.features, samples.targets, cache=cache)
    assert sum(passed) == len(samples)
    received = ReceivedModelCache(other, samples)
    assert [*ProjectionResidual().prepare(received)]
    assert received.inputs("7", base) is None


def test_signals_of_a_prepared_round_have_the_same_bits() -> None:
    base, samples = cnn()
    (update,) = updates_for(base, 1)
    seen = Round(
        index=1,
        observed={0: ObservedModels(base, None, update)},
        sent={},
        uploads={},
        weights={0: 1.0},
        selected=(0,),
        answered=(0,),
        after={},
    )
    received = ReceivedModelCache(base, samples)
    for signal in SIGNALS:
        assert isinstance(signal, PreparableSignal)
        for _ in signal.prepare(received):
            pass
    assert received.gradient_cache is not None
    assert received.inputs("7", base) is not None
    expected = measure_round(seen, SIGNALS, samples).signals
    measured = measure_round(seen, SIGNALS, samples, received=received).signals
    for name, values in expected.items():
        assert torch.equal(measured[name], values)


def test_nothing_is_cached_if_the_limit_is_too_small() -> None:
    base, samples = cnn(20)
    received = ReceivedModelCache(base, samples, max_bytes=100)
    for signal in SIGNALS:
        assert isinstance(signal, PreparableSignal)
        for _ in signal.prepare(received):
            pass
    assert received.gradient_cache is None
    assert received.inputs("7", base) is None


def test_cached_chunks_write_no_log_messages(caplog: pytest.LogCaptureFixture) -> None:
    base, samples = cnn(10)
    with caplog.at_level(logging.WARNING, "fedaudit"):
        cache = last(cache_chunks(base, samples.features, samples.targets, ENOUGH))
        gradient_products(
            base, updates_for(base, 1), samples.features, samples.targets, cache=cache
        )
    assert not caplog.records
