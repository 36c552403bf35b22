"""Poisoned uploads of a malicious client."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedaudit.core.seeds import seeded
from fedaudit.core.values import Samples, flat
from fedaudit.extensions.attacker import PoisonedUpload
from fedaudit.fl.algorithms.fedavg import FedAvg
from fedaudit.fl.hooks import UNDEFENDED, Defense, TrainingContext
from fedaudit.fl.training.local import LocalTraining
from fedaudit.models import architecture
from fedaudit.observe.round import Sent
from tests.defenses.turns import context

NET = architecture("mlp", shape=(4,), classes=3, hidden="")
LR = 0.1
ONE_STEP = LocalTraining(epochs=1, batch_size=100, lr=LR)


def draw_samples(name: str, count: int = 12, first: int = 0) -> Samples:
    rng = seeded(0, name)
    labels = torch.randint(3, (count,), generator=rng)
    return Samples(torch.randn(count, 4, generator=rng), labels, torch.arange(first, first + count))


OWN, PROBES = draw_samples("own"), draw_samples("probes", first=100)
MODEL = NET.initial(0)


def sent_by(
    defense: Defense, round: int, training: LocalTraining, data: Samples = OWN
) -> Mapping[str, Tensor]:
    client_context: TrainingContext = context(round, net=NET)
    local = FedAvg(NET, training).run_client(Sent((MODEL,)), data, {}, defense, client_context)
    return local.upload.values


def loss_of(params: Mapping[str, Tensor], samples: Samples) -> Tensor:
    outputs = torch.func.functional_call(NET.build(), dict(params), (samples.features,))
    return torch.nn.functional.cross_entropy(outputs, samples.targets, reduction="none")


def gradient_of(samples: Samples) -> Tensor:
    params = {n: v.clone().requires_grad_() for n, v in MODEL.params.items()}
    gradients = torch.autograd.grad(loss_of(params, samples).mean(), list(params.values()))
    return torch.cat([part.flatten() for part in gradients])


def test_a_poisoned_upload_is_the_scaled_update_on_the_probes() -> None:
    training = LocalTraining(epochs=2, batch_size=5, lr=LR)
    poison = PoisonedUpload(PROBES, frozenset({3}), strength=4.0)
    plain = sent_by(UNDEFENDED, 3, training, PROBES)
    torch.testing.assert_close(flat(sent_by(poison, 3, training)), 4 * flat(plain))


def test_in_other_rounds_the_client_is_honest_bit_for_bit() -> None:
    training = LocalTraining(epochs=2, batch_size=5, lr=LR)
    for max_loss in (0.0, 5.0):
        poison = PoisonedUpload(PROBES, frozenset({3}), max_loss, strength=4.0)
        honest = sent_by(UNDEFENDED, 2, training)
        if not max_loss:
            assert torch.equal(flat(sent_by(poison, 2, training)), flat(honest))
        # A defense with its own loss uses autograd, which differs in the last digits.
        torch.testing.assert_close(flat(sent_by(poison, 2, training)), flat(honest))


def test_one_step_of_ascent_is_the_learning_rate_times_the_gradient() -> None:
    poison = PoisonedUpload(PROBES, frozenset({1}), max_loss=100.0)
    moved = flat(sent_by(poison, 1, ONE_STEP))
    torch.testing.assert_close(moved, LR * gradient_of(PROBES), rtol=1e-4, atol=1e-6)


def test_ascent_stops_at_the_loss_limit() -> None:
    losses = loss_of(MODEL.params, PROBES)
    middle = float(losses.median()) + 1e-4
    poison = PoisonedUpload(PROBES, frozenset({1}), max_loss=middle)
    below = losses < middle
    share = float(below.double().mean())
    expected_step = LR * share * gradient_of(PROBES.take(below))
    moved = flat(sent_by(poison, 1, ONE_STEP))
    torch.testing.assert_close(moved, expected_step, rtol=1e-4, atol=1e-6)
    assert 0 < share < 1


def test_an_ascent_of_any_length_stays_finite() -> None:
    long = LocalTraining(epochs=200, batch_size=100, lr=1.0)
    poison = PoisonedUpload(PROBES, frozenset({1}), max_loss=2 * math.log(3))
    moved = sent_by(poison, 1, long)
    after = {name: value + moved[name] for name, value in MODEL.params.items()}
    assert bool(flat(after).isfinite().all())
    assert float(loss_of(after, PROBES).mean()) > float(loss_of(MODEL.params, PROBES).mean())


def test_a_poison_states_whether_it_changes_the_loss() -> None:
    poison = PoisonedUpload(PROBES, frozenset({1}))
    assert not poison.acts_in("loss")
    assert replace(poison, max_loss=1.0).acts_in("loss")
    assert poison.acts_in("select")
    assert not poison.acts_in("gradient")
