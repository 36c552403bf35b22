"""Signals compared with their definitions, for one sample and client at a time."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.modules import CHUNK
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, ClientId, Model, Samples, add_scaled, flat, plus_tail
from fedaudit.engines.local import LOCAL
from fedaudit.models import CNN
from fedaudit.observe.measurements import MeasuredRound
from fedaudit.observe.round import ObservedModels, Round
from fedaudit.signals.base import Signal, VisibleRound
from fedaudit.signals.kernels.capture import VMAP_CHUNK
from fedaudit.signals.kernels.plan import _MAX_CHUNK, _MAX_CHUNK_LARGE_MAPS
from fedaudit.signals.measure import BLOCK, measure, measure_on_engine, measure_round
from fedaudit.signals.outputs import Confidence, Loss
from fedaudit.signals.updates import (
    CentredTailCosine,
    ControlVariateCosine,
    GradientCosine,
    GradientDifference,
    GradientNorm,
    WithoutTailCosine,
)
from tests.output_kinds import EVERY_OUTPUT_KIND


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


NET = Architecture("net with dropout", partial(net), task=EVERY_OUTPUT_KIND)
RNG = seeded(0, "samples")
SAMPLES = Samples(
    torch.randn(7, 4, generator=RNG), torch.randint(0, 3, (7,), generator=RNG), torch.arange(7)
)
ALL: tuple[Signal, ...] = (
    Loss(),
    Confidence(),
    GradientCosine(),
    GradientNorm(),
    GradientDifference(),
    GradientDifference("sum"),
    CentredTailCosine(0.5),
    WithoutTailCosine(0.5),
    ControlVariateCosine(),
)


def observed(client: ClientId, base: Model, scale: float | None = 3.0) -> ObservedModels:
    rng = seeded(1, client)
    step = {n: 0.1 * torch.randn(v.shape, generator=rng) for n, v in base.params.items()}
    control = {n: torch.randn(v.shape, generator=rng) for n, v in base.params.items()}
    return ObservedModels(
        base, Model(base.architecture, add_scaled(base.params, step)), step, scale, control
    )


def make_round(exposures: dict[ClientId, ObservedModels]) -> Round:
    clients = tuple(exposures)
    weights = dict.fromkeys(clients, 1 / len(clients))
    return Round(
        index=1,
        observed=exposures,
        sent={},
        uploads={},
        weights=weights,
        selected=clients,
        answered=clients,
    )


# Clients 2 and 9 received the same model, and client 5 another one.
SHOWN = {
    9: observed(9, NET.initial(0)),
    2: observed(2, NET.initial(0)),
    5: observed(5, NET.initial(1)),
}
ROUND = make_round(SHOWN)


def gradient(model: Model, sample: int) -> Tensor:
    module = model.module()
    row = slice(sample, sample + 1)
    loss = functional.cross_entropy(module(SAMPLES.features[row]), SAMPLES.labels[row])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])


def centred(vector: Tensor) -> Tensor:
    first, last = vector[:-25], vector[-25:]
    return torch.cat([first, last - last.mean()])


def by_definition(name: str, seen: ObservedModels, sample: int) -> float:
    assert seen.base is not None
    assert seen.local is not None
    g, towards = gradient(seen.base, sample), -flat(seen.update or {})
    outputs = seen.local.module()(SAMPLES.features[sample]).softmax(0)
    confidence = outputs[SAMPLES.labels[sample]].detach()
    return float(
        {
            "loss": confidence.log(),
            "confidence": confidence,
            "gradient-cosine": torch.cosine_similarity(g, towards, 0),
            "gradient-cosine-centred-tail-0.5": torch.cosine_similarity(
                centred(g), centred(towards), 0
            ),
            "gradient-cosine-without-tail-0.5": torch.cosine_similarity(g[:-25], towards[:-25], 0),
            "control-variate-cosine": torch.cosine_similarity(
                g, flat(seen.control_variate or {}), 0
            ),
            "gradient-norm": -g.square().sum(),
            "gradient-difference-raw": towards.norm() ** 2 - (towards - g).norm() ** 2,
            "gradient-difference-sum": (3 * towards).norm() ** 2 - (3 * towards - g).norm() ** 2,
        }[name]
    )


@pytest.mark.parametrize("signal", ALL, ids=lambda signal: str(signal.name))
def test_signals_match_their_definitions(signal: Signal) -> None:
    measured = measure_round(ROUND, [signal], SAMPLES)
    assert measured.clients == (2, 5, 9)
    expected = [[by_definition(signal.name, SHOWN[c], i) for i in range(7)] for c in (2, 5, 9)]
    torch.testing.assert_close(
        measured.signals[signal.name], torch.tensor(expected).double(), rtol=1e-4, atol=1e-5
    )


def test_signals_measured_together_equal_those_measured_separately() -> None:
    together = measure_round(ROUND, ALL, SAMPLES).signals
    for signal in ALL:
        alone = measure_round(ROUND, [signal], SAMPLES).signals[signal.name]
        assert torch.equal(together[signal.name], alone)
        assert alone.dtype == torch.float64


def test_clients_that_received_the_same_model_have_the_same_base() -> None:
    first, second, third = measure_round(ROUND, [Loss()], SAMPLES).bases.tolist()
    assert first == third != second


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    single = measure_round(ROUND, ALL, SAMPLES, workers=1).signals
    parallel = measure_round(ROUND, ALL, SAMPLES, workers=2).signals
    assert all(torch.equal(single[name], parallel[name]) for name in single)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 100])
def test_blocks_measured_elsewhere_give_the_same_bits(count: int) -> None:
    round, many, together = in_blocks()
    with measure_on_engine(LOCAL, ALL, many, count=count) as measuring:
        apart = measuring(round)
    assert apart.signals.keys() == together.signals.keys()
    for name, values in together.signals.items():
        assert torch.equal(values, apart.signals[name]), name
    assert (apart.index, apart.clients) == (together.index, together.clients)
    assert torch.equal(apart.bases, together.bases)


@cache
def in_blocks() -> tuple[Round, Samples, MeasuredRound]:
    """Return a round, samples of several blocks, and their signals measured at once."""
    build = CNN(channels="4,8", hidden="16", padding=2).for_samples((1, 16, 16), 3)
    architecture, rng = Architecture("small cnn", build), seeded(0, "many samples")
    total = 3 * BLOCK + 17
    features = torch.randn(total, 1, 16, 16, generator=rng)
    labels = torch.randint(0, 3, (total,), generator=rng)
    many = Samples(features, labels, torch.arange(total))
    round = make_round(
        {client: observed(client, architecture.initial(base)) for client, base in ((9, 0), (2, 0))}
    )
    return round, many, measure_round(round, ALL, many)


def test_chunked_outputs_are_bitwise_equal() -> None:
    round, many, measured = in_blocks()
    assert len(many) > BLOCK
    for signal in (Loss(), Confidence()):
        assert torch.equal(measured.signals[signal.name], signal(VisibleRound(round, many)))


def test_no_chunk_of_any_kind_is_cut_by_a_block() -> None:
    for size in (CHUNK, VMAP_CHUNK, _MAX_CHUNK, _MAX_CHUNK_LARGE_MAPS):
        assert BLOCK % size == 0


def test_measuring_keeps_the_global_generator_and_the_thread_count() -> None:
    torch.manual_seed(0)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    measure_round(ROUND, ALL, SAMPLES)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_an_update_of_zeros_has_no_direction_and_cosine_zero() -> None:
    base = NET.initial(0)
    still = ObservedModels(
        base, base, {name: torch.zeros_like(v) for name, v in base.params.items()}
    )
    measured = measure_round(make_round({0: still, 1: SHOWN[2]}), [GradientCosine()], SAMPLES)
    values = measured.signals["gradient-cosine"]
    assert values[0].tolist() == [0.0] * 7
    assert bool((values[1] != 0).all())


@pytest.mark.parametrize("form", ["published", "vector"])
def test_known_noise_can_be_excluded_from_signals(form: str) -> None:
    signal = CentredTailCosine(0.5) if form == "published" else WithoutTailCosine(0.5)
    added = torch.randn(25, generator=RNG) if form == "vector" else torch.full((25,), 0.7)
    plain = SHOWN[2]
    exposures = {2: plain, 5: replace(plain, update=plus_tail(plain.update or {}, added))}
    values = measure_round(make_round(exposures), [signal, GradientCosine()], SAMPLES).signals
    torch.testing.assert_close(values[signal.name][1], values[signal.name][0], rtol=0, atol=1e-6)
    assert float((values["gradient-cosine"][1] - values["gradient-cosine"][0]).abs().max()) > 0.1


@pytest.mark.parametrize("signal", [CentredTailCosine, WithoutTailCosine])
def test_a_tail_outside_zero_to_one_is_refused(
    signal: type[CentredTailCosine | WithoutTailCosine],
) -> None:
    for tail in (0.0, -0.5, 1.5):
        with pytest.raises(BadInput, match=r"tail of \w+ takes a number"):
            signal(tail)


def test_the_sum_scale_without_a_known_gradient_scale_is_refused() -> None:
    unknown = make_round({0: observed(0, NET.initial(0), scale=None)})
    with pytest.raises(Unsupported, match='use scale "raw"'):
        measure_round(unknown, [GradientDifference("sum")], SAMPLES)


def test_a_signal_that_is_not_finite_is_refused_with_its_name_and_round() -> None:
    broken = replace(SAMPLES, features=SAMPLES.features.clone())
    broken.features[3, 0] = float("inf")
    with pytest.raises(BadInput, match=r"'loss' is not finite for 1 of 7 .* round 1"):
        measure_round(make_round({2: SHOWN[2]}), [Loss()], broken)


def test_rounds_are_measured_lazily() -> None:
    started = []

    def rounds() -> Iterator[Round]:
        for index in (1, 2, 3):
            started.append(index)
            yield replace(ROUND, index=index)

    stream = measure(rounds(), [Loss()], SAMPLES)
    assert next(stream).index == 1
    assert started == [1]
