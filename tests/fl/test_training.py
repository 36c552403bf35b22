from collections.abc import Iterator
from functools import partial
from math import cos, pi

import pytest
import torch
from torch import Tensor, nn

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Architecture, Batch, Model, Params, Samples, flat
from fedaudit.fl.hooks import ClientContext, Defense, Objective, TrainingContext
from fedaudit.fl.training.local import SCHEDULES, LocalTraining, train
from fedaudit.observe.round import Update


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


DENSE = Architecture("dense for training", partial(dense))
DROPPING = Architecture("dropping", partial(dropping))
RNG = seeded(0, "data")
DATA = Samples(
    torch.randn(10, 4, generator=RNG), torch.randint(0, 3, (10,), generator=RNG), torch.arange(10)
)


def client_context(round: int = 1, client: int = 0, seed: int = 0) -> ClientContext:
    return ClientContext(
        round=round, rounds=10, client=client, cohort=(0,), weights={0: 1.0}, seed=seed
    )


def trained(
    architecture: Architecture = DENSE,
    how: LocalTraining | None = None,
    defense: Defense | None = None,
    context: ClientContext | None = None,
) -> Model:
    start = architecture.initial(0)
    how = how or LocalTraining(batch_size=4)
    return train(
        start, DATA, how, defense or Defense(), (context or client_context()).with_model(start)
    )


def test_the_constant_schedule_keeps_the_learning_rate() -> None:
    assert [LocalTraining(lr=0.2).rate(r, 10) for r in (1, 10)] == [0.2, 0.2]


def test_the_cosine_schedule_decays_to_almost_zero() -> None:
    how = LocalTraining(lr=0.2, schedule="cosine")
    assert how.rate(1, 10) == 0.2
    assert how.rate(6, 10) == pytest.approx(0.1)
    assert how.rate(10, 10) == pytest.approx(0.1 * (1 + cos(0.9 * pi)))
    assert how.rate(10, 10) > 0


def test_the_exponential_schedule_decays_by_one_per_cent() -> None:
    how = LocalTraining(lr=0.2, schedule="exponential")
    assert [how.rate(r, 10) for r in (1, 2, 3)] == pytest.approx([0.2, 0.198, 0.19602])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_training_steps_use_the_learning_rate_of_the_round(schedule: str) -> None:
    how = LocalTraining(batch_size=10, lr=0.2, schedule=schedule)  # type: ignore[arg-type]
    first = flat(trained(how=how).params) - flat(DENSE.initial(0).params)
    later = flat(trained(how=how, context=client_context(round=4)).params) - flat(
        DENSE.initial(0).params
    )
    torch.testing.assert_close(later, first * how.rate(4, 10) / how.rate(1, 10))


def test_gradient_scale_converts_updates_to_summed_gradients() -> None:
    how = LocalTraining(batch_size=5, lr=1e-4)
    scale = how.gradient_scale(1, 10, samples=len(DATA))
    assert scale is not None
    assert scale == pytest.approx(len(DATA) / (-(-len(DATA) // 5) * 1e-4))
    module = DENSE.initial(0).module()
    loss = DENSE.loss(module(DATA.features), DATA.labels).sum()
    summed = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
    travelled = flat(DENSE.initial(0).params) - flat(trained(how=how).params)
    torch.testing.assert_close(scale * travelled, summed, rtol=0.02, atol=0.02)


def test_gradient_scale_includes_momentum_and_is_unknown_for_adam() -> None:
    how = LocalTraining(batch_size=8, lr=0.1, momentum=0.9, epochs=2)
    # 20 samples are 3 batches per epoch, so 6 steps of 0.1, which momentum makes 10 times as long.
    assert how.gradient_scale(1, 10, samples=20) == pytest.approx(20 / (6 * 0.1 / 0.1))
    assert LocalTraining(optimizer="adam").gradient_scale(1, 10, samples=20) is None


def test_a_batch_larger_than_the_data_is_one_step() -> None:
    how = LocalTraining(batch_size=1000, lr=0.5)
    assert how.gradient_scale(1, 10, samples=20) == pytest.approx(20 / 0.5)
    assert how.gradient_scale(1, 10, samples=0) is None


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_diverging_training_raises_with_client_and_round(optimizer: str) -> None:
    how = LocalTraining(lr=3e37, epochs=5, batch_size=2, optimizer=optimizer)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"client 0's training diverged in round 1: .*3e\+37"):
        trained(how=how)


def test_dropout_depends_on_seed_round_and_client() -> None:
    same = flat(trained(DROPPING).params)
    assert torch.equal(flat(trained(DROPPING).params), same)
    for other in (client_context(seed=1), client_context(client=1), client_context(round=2)):
        assert not torch.equal(flat(trained(DROPPING, context=other).params), same)


def test_training_twice_in_a_round_draws_new_dropout_masks() -> None:
    """Clients of federated distillation train twice in a round."""
    start = DROPPING.initial(0)
    full_batch = LocalTraining(batch_size=10)
    context = client_context().with_model(start)
    first = train(start, DATA, full_batch, Defense(), context)
    second = train(start, DATA, full_batch, Defense(), context)
    assert not torch.allclose(flat(first.params), flat(second.params))


@pytest.mark.parametrize("architecture", [DENSE, DROPPING], ids=["dense", "dropping"])
def test_training_does_not_use_the_global_generator(architecture: Architecture) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    expected = flat(trained(architecture).params)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(flat(trained(architecture).params), expected)


def test_training_does_not_modify_the_start_model_or_data() -> None:
    start, features = DENSE.initial(0), DATA.features.clone()
    train(start, DATA, LocalTraining(), Defense(), client_context().with_model(start))
    assert torch.equal(flat(start.params), flat(DENSE.initial(0).params))
    assert torch.equal(DATA.features, features)


class RecordingDefense(Defense):
    """A defense that only records which hooks are called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def select(self, data: Samples, context: TrainingContext) -> Samples:
        self.called.append("select")
        return super().select(data, context)

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        self.called.append("batches")
        yield from super().batches(data, batch_size, context)

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        self.called.append("batch")
        return super().batch(batch, context)

    def loss(self, outputs: Tensor, batch: Batch, context: TrainingContext) -> Tensor:
        self.called.append("loss")
        return super().loss(outputs, batch, context)

    def gradient(self, objective: Objective, batch: Batch, context: TrainingContext) -> Params:
        self.called.append("gradient")
        return super().gradient(objective, batch, context)

    def after(self, start: Model, end: Model, context: TrainingContext) -> None:
        self.called.append("after")


def test_hooks_are_called_in_the_order_of_a_round() -> None:
    telling = RecordingDefense()
    trained(how=LocalTraining(epochs=2, batch_size=5), defense=telling)
    step = ["batch", "gradient", "loss"]
    epoch = ["batches", *step, *step]
    assert telling.called == ["select", *epoch, *epoch, "after"]


class OneHotLabels(Defense):
    """A defense with one-hot labels."""

    def batch(self, batch: Batch, context: TrainingContext) -> Batch:
        return Batch(batch.x, torch.eye(3)[batch.y], batch.ids)


def test_one_hot_soft_labels_equal_hard_labels() -> None:
    torch.testing.assert_close(
        flat(trained(defense=OneHotLabels()).params), flat(trained().params), rtol=1e-5, atol=1e-7
    )


class EmptyBatches(Defense):
    """A defense with an empty batch in every second step, as with Poisson sampling."""

    def batches(self, data: Samples, batch_size: int, context: TrainingContext) -> Iterator[Batch]:
        for batch in super().batches(data, batch_size, context):
            yield batch
            yield Batch(batch.x[:0], batch.y[:0], batch.ids[:0])


def test_empty_batches_do_not_change_the_model() -> None:
    assert torch.equal(flat(trained(defense=EmptyBatches()).params), flat(trained().params))


def test_each_epoch_contains_every_sample_once() -> None:
    context = client_context().with_model(DENSE.initial(0))
    batches = list(Defense().batches(DATA, 4, context))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    ids = torch.cat([batch.ids for batch in batches])
    assert sorted(ids.tolist()) == list(range(10))
    assert not torch.equal(ids, DATA.ids)
    for batch in batches:
        assert torch.equal(batch.x, DATA.features[batch.ids])
        assert torch.equal(batch.y, DATA.labels[batch.ids])
    next_ids = torch.cat([batch.ids for batch in Defense().batches(DATA, 4, context)])
    assert not torch.equal(next_ids, ids), "the next epoch has another order"


def test_hooks_evaluate_losses_in_evaluation_mode() -> None:
    model = DROPPING.initial(0)
    expected = DROPPING.loss(model.module()(DATA.features), DATA.labels)
    torch.testing.assert_close(client_context().with_model(model).evaluate(DATA), expected.detach())


def test_the_default_upload_hook_returns_the_update() -> None:
    update = Update({"w": torch.ones(2)})
    assert Defense().upload(update, client_context().with_model(DENSE.initial(0))) is update


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs of LocalTraining takes a whole number from 1"),
        ({"batch_size": 0}, "batch_size of LocalTraining"),
        ({"lr": 0.0}, "lr of LocalTraining takes a finite number above 0"),
        ({"lr": float("nan")}, "lr of LocalTraining takes a finite number above 0"),
        ({"momentum": 1.0}, r"momentum of LocalTraining takes a number in \[0, 1\)"),
        ({"weight_decay": -1.0}, "weight_decay of LocalTraining"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"optimizer": "adamw"}, "did you mean 'adam'"),
    ],
)
def test_invalid_training_settings_raise(settings: dict[str, float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        LocalTraining(**settings)  # type: ignore[arg-type]
