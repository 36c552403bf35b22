import logging
import warnings
from functools import partial
from math import ceil

import pytest
import torch
from torch import nn

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import cross_entropy
from fedaudit.core.values import Architecture, Batch, Model, Params, Samples, flat
from fedaudit.defenses.clip import ClientDP
from fedaudit.defenses.dpsgd import DPSGD, random_crops
from fedaudit.fl.accounting import gaussian_mechanism_epsilon, sampling_rate
from fedaudit.fl.hooks import UNDEFENDED, DataUse, Objective, TrainingContext
from fedaudit.fl.training.local import LocalTraining, train
from fedaudit.models import architecture
from tests.defenses.turns import context

INFINITE = float("inf")


def samples(count: int, shape: tuple[int, ...] = (4,)) -> Samples:
    rng = seeded(0, "samples", count)
    labels = torch.randint(3, (count,), generator=rng)
    return Samples(torch.randn(count, *shape, generator=rng), labels, torch.arange(count))


def objective(module: nn.Module) -> Objective:
    return Objective(module, lambda outputs, b: cross_entropy(outputs, b.y).mean(), cross_entropy)


def stepped(
    defense: DPSGD, data: Samples, batch_size: int, training_context: TrainingContext
) -> list[Params]:
    """Return the gradient of every step of an epoch, all at the received model."""
    goal = objective(training_context.received.module().train())
    return [
        defense.gradient(goal, defense.batch(batch, training_context), training_context)
        for batch in defense.batches(data, batch_size, training_context)
    ]


def test_a_step_draws_every_sample_independently() -> None:
    data, rate, sizes, times = samples(50), 0.2, [], torch.zeros(50)
    defense, training_context = DPSGD(clip=1.0, noise_multiplier=0.0), context()
    for _ in range(400):
        for batch in defense.batches(data, 10, training_context):
            sizes.append(float(len(batch)))
            times[batch.ids] += 1
            assert torch.equal(batch.x, data.features[batch.ids])
            assert torch.equal(batch.y, data.labels[batch.ids])
    steps = len(sizes)
    assert steps == 400 * 5
    drawn = torch.tensor(sizes)
    # The size is binomial with mean 10 and variance 8. Five standard errors are allowed.
    assert float(drawn.mean()) == pytest.approx(10, abs=5 * (8 / steps) ** 0.5)
    assert float(drawn.var()) == pytest.approx(8, rel=5 * (2 / steps) ** 0.5)
    spread = (steps * rate * (1 - rate)) ** 0.5
    assert float((times - steps * rate).abs().max()) < 5 * spread


@pytest.mark.parametrize(("count", "batch_size"), [(10, 3), (9, 3), (4, 9), (1, 1)])
def test_an_epoch_has_as_many_steps_as_with_shuffled_batches(count: int, batch_size: int) -> None:
    drawn = list(
        DPSGD(clip=1.0, noise_multiplier=0.0).batches(samples(count), batch_size, context())
    )
    assert len(drawn) == ceil(count / batch_size)
    if batch_size >= count:
        assert [len(batch) for batch in drawn] == [count]


def test_without_samples_no_training_step_is_taken() -> None:
    data, training_context = samples(5), context()
    no_samples = data.take(torch.zeros(5, dtype=torch.bool))
    defense = DPSGD(clip=1.0, noise_multiplier=1.0)
    assert list(defense.batches(no_samples, 2, training_context)) == []
    trained = train(
        training_context.received,
        no_samples,
        LocalTraining(batch_size=2),
        defense,
        training_context,
    )
    for name, value in trained.params.items():
        assert torch.equal(value, training_context.received.params[name])


def test_a_step_without_noise_and_clip_equals_sgd() -> None:
    data, training_context = samples(40), context()
    defense = DPSGD(clip=1e9, noise_multiplier=0.0)
    goal = objective(training_context.received.module().train())
    for batch in defense.batches(data, 8, training_context):
        places_found, plain = (
            defense.gradient(goal, batch, training_context),
            UNDEFENDED.gradient(goal, batch, training_context),
        )
        for name, value in plain.items():
            torch.testing.assert_close(places_found[name], value * len(batch) / 8)


@pytest.mark.parametrize(("optimizer", "batch_size"), [("sgd", 12), ("sgd", 100), ("adam", 12)])
def test_with_sampling_rate_one_training_equals_plain_training(
    optimizer: str, batch_size: int
) -> None:
    data, training_context = samples(12), context()
    how = LocalTraining(
        epochs=5,
        batch_size=batch_size,
        lr=0.1,
        momentum=0.5,
        weight_decay=0.01,
        optimizer=optimizer,  # type: ignore[arg-type]
    )
    ours = train(
        training_context.received,
        data,
        how,
        DPSGD(clip=1e9, noise_multiplier=0.0),
        training_context,
    )
    plain = train(training_context.received, data, how, UNDEFENDED, context())
    for name, value in plain.params.items():
        torch.testing.assert_close(ours.params[name], value)


def test_sensitivity_of_a_step_is_clip_over_batch_size() -> None:
    data, training_context = samples(20), context()
    goal = objective(training_context.received.module().double().train())
    for clip in (0.01, 0.5):
        defense = DPSGD(clip=clip, noise_multiplier=0.0)
        (epsilon,) = defense.batches(data, 20, training_context)
        epsilon = Batch(10 * epsilon.x.double(), epsilon.y, epsilon.ids)
        full = flat(defense.gradient(goal, epsilon, training_context))
        for row in range(20):
            is_kept = torch.arange(20) != row
            fewer = Batch(epsilon.x[is_kept], epsilon.y[is_kept], epsilon.ids[is_kept])
            moved = full - flat(defense.gradient(goal, fewer, training_context))
            assert float(moved.norm()) <= clip / 20 * (1 + 1e-9)


@pytest.mark.parametrize("drawn", [0, 5])
def test_noise_std_is_clip_times_multiplier_over_the_batch_size(drawn: int) -> None:
    wide = Architecture("wide", partial(nn.Linear, 200, 100))
    training_context = context(net=wide)
    defense = DPSGD(clip=0.5, noise_multiplier=3.0)
    quiet = DPSGD(clip=0.5, noise_multiplier=0.0)
    data = samples(20, (200,))
    goal = objective(training_context.received.module().train())
    for each_defense in (defense, quiet):
        next(each_defense.batches(data, 10, training_context))
    some = Batch(data.features[:drawn], data.labels[:drawn], data.ids[:drawn])
    noise = flat(defense.gradient(goal, some, training_context)) - flat(
        quiet.gradient(goal, some, training_context)
    )
    std = 0.5 * 3.0 / 10
    assert float(noise.std()) == pytest.approx(std, rel=4 / (2 * len(noise)) ** 0.5)
    assert abs(float(noise.mean())) < 4 * std / len(noise) ** 0.5
    second_noise = flat(defense.gradient(goal, some, training_context)) - flat(
        quiet.gradient(goal, some, training_context)
    )
    assert not torch.equal(noise, second_noise)


def test_the_gradient_of_an_empty_batch_is_noise_only() -> None:
    data, training_context = samples(3), context()
    tiny = next(
        batch for batch in DPSGD(1.0, 0.0).batches(data, 1, training_context) if len(batch) < 3
    )
    none = Batch(tiny.x[:0], tiny.y[:0], tiny.ids[:0])
    for noise in (0.0, 1.0):
        defense = DPSGD(clip=1.0, noise_multiplier=noise)
        next(defense.batches(data, 1, training_context))
        places_found = flat(
            defense.gradient(objective(training_context.received.module()), none, training_context)
        )
        assert bool(places_found.any()) == (noise > 0)


def test_draws_depend_on_round_and_seed() -> None:
    def epoch(training_context: TrainingContext) -> torch.Tensor:
        return torch.stack(
            [flat(p) for p in stepped(DPSGD(1.0, 1.0), samples(9), 3, training_context)]
        )

    assert torch.equal(epoch(context()), epoch(context()))
    for other in (context(round=2), context(seed=1)):
        assert not torch.equal(epoch(context()), epoch(other))


def test_group_norm_is_trained_and_batch_norm_refused() -> None:
    data, how = samples(6, (3, 8, 8)), LocalTraining(batch_size=3)
    for norm in ("group", "batch"):
        net = architecture("resnet18", shape=(3, 8, 8), classes=3, norm=norm, width=32)
        training_context, defense = context(net=net), DPSGD(clip=1.0, noise_multiplier=0.1)
        if norm == "group":
            assert isinstance(
                train(training_context.received, data, how, defense, training_context), Model
            )
        else:
            with pytest.raises(Unsupported, match="BatchNorm2d, whose statistics mix"):
                train(training_context.received, data, how, defense, training_context)


def test_a_gradient_without_poisson_batches_raises() -> None:
    training_context, data = context(), samples(3)
    batch = Batch(data.features, data.labels, data.ids)
    with pytest.raises(Unsupported, match="must draw the batches itself"):
        DPSGD(1.0, 1.0).gradient(
            objective(training_context.received.module()), batch, training_context
        )


def test_every_augmented_copy_is_a_crop_or_flipped_crop() -> None:
    images = torch.arange(2 * 36, dtype=torch.float32).view(2, 1, 6, 6)
    padded = nn.functional.pad(images, (2, 2, 2, 2), mode="reflect")
    seen = random_crops(
        images.repeat_interleave(60, 0), seeded(0, "windows"), padding=2, horizontal_flip=0.5
    )
    places_found = set()
    for copy, image in enumerate(seen):
        source = padded[copy // 60, 0]
        places = [
            (down, across, mirrored)
            for down in range(5)
            for across in range(5)
            for mirrored in (False, True)
            if torch.equal(
                source[down : down + 6, across : across + 6],
                image[0].flip(1) if mirrored else image[0],
            )
        ]
        assert len(places) == 1
        places_found |= set(places)
    assert len(places_found) > 30  # There are 50 places.


def test_without_padding_and_flip_augmentation_is_the_identity() -> None:
    images = torch.randn(3, 2, 5, 4, generator=seeded(0, "images"))
    assert torch.equal(random_crops(images, seeded(0), padding=0, horizontal_flip=0.0), images)
    mirrored = random_crops(images, seeded(0), padding=0, horizontal_flip=1.0)
    assert torch.equal(mirrored, images.flip(3))


def test_identical_copies_do_not_change_the_step() -> None:
    net = Architecture(
        "conv", lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    )
    data = samples(8, (1, 6, 6))
    single = stepped(DPSGD(0.2, 0.0), data, 8, context(net=net))
    with_copies = DPSGD(0.2, 0.0, multiplicity=3, padding=0, horizontal_flip=0.0)
    for actual, expected in zip(
        single, stepped(with_copies, data, 8, context(net=net)), strict=True
    ):
        for name, value in actual.items():
            torch.testing.assert_close(expected[name], value, rtol=1e-4, atol=1e-6)


CASES = [(1.0, 0.01, 1000), (0.7, 0.064, 800), (2.0, 0.2, 50), (0.5, 0.1, 10)]


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate", "steps"), CASES)
def test_epsilon_matches_opacus_and_is_at_least_the_prv_epsilon(
    noise: float, rate: float, steps: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountants = pytest.importorskip("opacus.accountants")
        ours = gaussian_mechanism_epsilon(noise, steps, rate=rate, delta=1e-5)
        renyi, tight = accountants.RDPAccountant(), accountants.PRVAccountant()
        for accountant in (renyi, tight):
            accountant.history = [(noise, rate, steps)]
        assert ours == pytest.approx(renyi.get_epsilon(1e-5), rel=0.03)
        assert ours >= tight.get_epsilon(1e-5)


def test_epsilon_reproduces_a_published_value() -> None:
    # Abadi et al. 2016, section 3.2, state 1.26.
    assert gaussian_mechanism_epsilon(4.0, 10_000, rate=0.01, delta=1e-5) < 1.26
    assert gaussian_mechanism_epsilon(4.0, 10_000, rate=0.01, delta=1e-5) == pytest.approx(
        1.26, rel=0.25
    )


def test_epsilon_at_rate_one_equals_the_gaussian_epsilon() -> None:
    assert gaussian_mechanism_epsilon(3.0, 20, rate=1.0, delta=1e-5) == gaussian_mechanism_epsilon(
        3.0, 20, delta=1e-5
    )


def test_epsilon_grows_with_sampling_rate_and_steps() -> None:
    base = gaussian_mechanism_epsilon(1.0, 100, rate=0.1, delta=1e-5)
    assert gaussian_mechanism_epsilon(1.0, 100, rate=0.2, delta=1e-5) > base
    assert gaussian_mechanism_epsilon(1.0, 200, rate=0.1, delta=1e-5) > base
    assert gaussian_mechanism_epsilon(2.0, 100, rate=0.1, delta=1e-5) < base
    assert gaussian_mechanism_epsilon(0.0, 100, rate=0.1, delta=1e-5) == INFINITE


def test_renyi_orders_that_do_not_converge_are_skipped(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    accounting = pytest.importorskip("dp_accounting")
    with caplog.at_level(logging.DEBUG):
        ours = gaussian_mechanism_epsilon(1.0, 100, rate=0.5, delta=1e-5)
    assert capfd.readouterr().err == ""
    assert {record.levelno for record in caplog.records} <= {logging.DEBUG}
    event = accounting.PoissonSampledDpEvent(0.5, accounting.GaussianDpEvent(1.0))
    whole_orders = accounting.rdp.RdpAccountant(orders=range(2, 64))
    whole_orders.compose(accounting.SelfComposedDpEvent(event, 100))
    assert ours <= whole_orders.get_epsilon(1e-5)
    assert ours == pytest.approx(whole_orders.get_epsilon(1e-5), rel=0.05)


def test_other_warnings_of_the_accountant_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rdp = pytest.importorskip("dp_accounting.rdp")

    def says(self: object, delta: float) -> float:
        logging.getLogger("absl").warning("Negative Renyi divergence")
        return 0.0

    epsilon = gaussian_mechanism_epsilon(1.0, 10, rate=1.0, delta=1e-5)
    monkeypatch.setattr(rdp.RdpAccountant, "get_epsilon", says)
    gaussian_mechanism_epsilon(1.0, 10, rate=1.0, delta=1e-5)
    assert "Negative Renyi divergence" in caplog.text
    monkeypatch.undo()
    assert gaussian_mechanism_epsilon(1.0, 10, rate=1.0, delta=1e-5) == epsilon


def test_zero_of_the_accountant_becomes_the_unsampled_epsilon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rdp = pytest.importorskip("dp_accounting.rdp")
    epsilon = gaussian_mechanism_epsilon(1.0, 10, rate=1.0, delta=1e-5)
    answers = iter([0.0, epsilon])
    monkeypatch.setattr(rdp.RdpAccountant, "get_epsilon", lambda self, delta: next(answers))
    assert gaussian_mechanism_epsilon(1.0, 10, rate=0.1, delta=1e-5) == epsilon > 0


@pytest.mark.parametrize("rate", [0.0, 1.1])
def test_an_invalid_sampling_rate_raises(rate: float) -> None:
    with pytest.raises(BadInput, match="sampling rate"):
        gaussian_mechanism_epsilon(1.0, 1, rate=rate, delta=1e-5)


def test_the_guarantee_composes_all_training_steps() -> None:
    data_use = DataUse(rounds=5, epochs=2, batch_size=30, samples=100)
    dpsgd_guarantee = DPSGD(clip=1.0, noise_multiplier=1.5).guarantee(data_use, delta=1e-5)
    assert dpsgd_guarantee.epsilon == gaussian_mechanism_epsilon(
        1.5, 5 * 2 * 4, rate=0.3, delta=1e-5
    )
    assert "40 steps" in dpsgd_guarantee.unit
    client_guarantee = ClientDP(clip=1.0, noise_multiplier=1.5).guarantee(data_use, delta=1e-5)
    assert client_guarantee.epsilon == gaussian_mechanism_epsilon(1.5, 5, delta=1e-5)
    assert UNDEFENDED.guarantee(data_use, delta=1e-5) is None


def test_a_batch_larger_than_the_data_has_sampling_rate_one() -> None:
    assert sampling_rate(100, 30) == 1.0
    assert sampling_rate(30, 100) == pytest.approx(0.3)


@pytest.mark.parametrize("shape", [(4,), (1, 4, 4)])
def test_augmented_copies_require_images_larger_than_the_padding(
    shape: tuple[int, ...],
) -> None:
    defense, training_context = DPSGD(1.0, 1.0, multiplicity=2), context()
    batch = next(defense.batches(samples(9, shape), 9, training_context))
    with pytest.raises(BadInput, match="multiplicity = 1 or a smaller padding"):
        defense.batch(batch, training_context)
