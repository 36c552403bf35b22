"""SeqMIA: training of the recurrent network and reproducibility."""

from functools import cache

import numpy as np
import pytest
import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedaudit.attacks import resolve_attack
from fedaudit.attacks.base import Attack
from fedaudit.attacks.learned import (
    FOLDS,
    PATIENCE,
    PUBLISHED_EPOCHS,
    FittedReader,
    SequenceReader,
    _assign_folds,
    _initial_network,
)
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.metrics import auc_interval
from fedaudit.observe.measurements import Measurements

CHOSEN = resolve_attack("seqmia")
ATTACK = CHOSEN.with_settings({"epochs": 40})
ROUNDS, TARGET, SAMPLES = 8, 1, 400
MEMBERS = torch.arange(SAMPLES) % 2 == 0


def draw_measurements(purpose: str, members: Bool[Tensor, " samples"]) -> dict[str, Measurements]:
    """Return noise; the target's members have a wave over the rounds with mean zero."""
    wave = torch.linspace(0, 6.28, ROUNDS).sin()[:, None]
    rounds = tuple(range(1, ROUNDS + 1))
    measurements = {}
    for signal in ATTACK.signals:
        values = torch.randn(ROUNDS, 2, len(members), generator=seeded(0, purpose, signal.name))
        values[:, 1, members] += wave - wave.mean()
        bases = torch.zeros((ROUNDS, 2), dtype=torch.int64)
        measurements[signal.name] = Measurements(values.double(), rounds, (0, TARGET), bases)
    return measurements


@cache
def fitted(seed: int = 3, *, shuffled: bool = False) -> Attack:
    order = torch.randperm(SAMPLES, generator=seeded(1, "labels"))
    labels = MEMBERS[order] if shuffled else MEMBERS
    return ATTACK.fitted(draw_measurements("shadow", MEMBERS), labels, TARGET, seed)


def area(attack: Attack) -> float:
    scores = attack.scores(draw_measurements("fresh", MEMBERS), TARGET).numpy()
    return auc_interval(scores, MEMBERS.numpy()).value


FEW = torch.arange(200) % 2 == 0


def draw_weak_leak(purpose: str) -> dict[str, Measurements]:
    """Return noise around a level per sample, which is slightly higher for members."""
    level = torch.randn(len(FEW), generator=seeded(0, purpose, "level")) + 0.7 * FEW
    noise = draw_measurements(purpose, torch.zeros_like(FEW))
    return {
        name: Measurements(0.3 * m.values + level, m.rounds, m.clients, m.bases)
        for name, m in noise.items()
    }


def test_a_learned_trajectory_is_detected_in_new_samples() -> None:
    assert area(fitted()) > 0.9


@pytest.mark.slow
def test_shuffled_labels_teach_nothing() -> None:
    assert abs(area(fitted(shuffled=True)) - 0.5) < 0.1


@pytest.mark.slow
def test_scores_are_invariant_to_affine_signal_changes() -> None:
    def moved(m: Measurements) -> Measurements:
        return Measurements(64 * m.values + 32, m.rounds, m.clients, m.bases)

    shadow = {name: moved(m) for name, m in draw_measurements("shadow", MEMBERS).items()}
    fresh = draw_measurements("fresh", MEMBERS)
    plain = fitted().scores(fresh, TARGET)
    scores = ATTACK.fitted(shadow, MEMBERS, TARGET, 3).scores(
        {name: moved(m) for name, m in fresh.items()}, TARGET
    )
    assert np.corrcoef(plain.numpy(), scores.numpy())[0, 1] > 0.95


def test_a_round_without_the_target_is_left_out() -> None:
    fresh = draw_measurements("fresh", MEMBERS)
    for m in fresh.values():
        m.values[4, 1] = torch.nan
    assert bool(fitted().scores(fresh, TARGET).isfinite().all())


@pytest.mark.slow
def test_constant_signals_give_finite_scores() -> None:
    flat = draw_measurements("shadow", MEMBERS)
    flat["loss"].values[:] = 1.0
    attack = ATTACK.fitted(flat, MEMBERS, TARGET, 3)
    assert bool(attack.scores(draw_measurements("fresh", MEMBERS), TARGET).isfinite().all())


def test_the_network_agrees_with_a_slow_reimplementation() -> None:
    rule = fitted().rule
    assert isinstance(rule, FittedReader)
    fresh = draw_measurements("fresh", MEMBERS)
    sequence = torch.stack([m.values[:, 1, 0] for m in fresh.values()], 1)
    x = (sequence - rule.scaling.mean) / rule.scaling.std
    (w,) = rule.weights
    h = c = torch.zeros(rule.hidden, dtype=torch.float64)
    states = []
    for now in x:
        gates = w["lstm.weight_ih_l0"] @ now + w["lstm.bias_ih_l0"]
        gates = gates + w["lstm.weight_hh_l0"] @ h + w["lstm.bias_hh_l0"]
        take, keep, new, out = gates.chunk(4)
        c = keep.sigmoid() * c + take.sigmoid() * new.tanh()
        h = out.sigmoid() * c.tanh()
        states.append(h)
    weights = torch.stack([h @ state for state in states]).softmax(0)
    context = sum((a * state for a, state in zip(weights, states, strict=True)), torch.zeros(()))
    logits = w["decide.weight"] @ torch.cat([h, context]) + w["decide.bias"]
    expected = float(logits[1] - logits[0])
    assert fitted().scores(fresh, TARGET)[0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"hidden": 0}, {"epochs": -1}, {"batch_size": 0}, {"lr": 0.0}, {"weight_decay": -1.0}],
)
def test_settings_that_cannot_be_learned_with_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="of this attack takes a"):
        resolve_attack("seqmia").with_settings(settings)


def test_training_equals_adam_with_schedule_and_weight_decay() -> None:
    settings = {"epochs": 25, "batch_size": SAMPLES, "weight_decay": 0.1, "hidden": 4}
    attack = resolve_attack("seqmia").with_settings(settings)
    shadow = draw_measurements("shadow", MEMBERS)
    ours = attack.fitted(shadow, MEMBERS, TARGET, seed=3).rule
    assert isinstance(ours, FittedReader)

    x = torch.stack([m.values[:, 1] for m in shadow.values()], 2).transpose(0, 1)
    x = ((x - x.mean((0, 1))) / x.std((0, 1), correction=0)).float()
    reader = _initial_network(x.shape[2], 4, 3)
    decayed = [p for n, p in reader.named_parameters() if "weight" in n]
    others = [p for n, p in reader.named_parameters() if "bias" in n]
    optimizer = torch.optim.Adam(decayed, lr=0.01, weight_decay=0.1)
    optimizer.add_param_group({"params": others, "weight_decay": 0.0})
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    for _ in range(25):
        optimizer.zero_grad()
        cross_entropy(reader(x), MEMBERS.long()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        rate.step()
    for name, value in reader.state_dict().items():
        torch.testing.assert_close(ours.weights[0][name].float(), value, rtol=1e-3, atol=1e-4)


def test_signals_have_the_published_order() -> None:
    order = ["loss", "max_posterior", "posterior_std", "minus_entropy", "minus_modified_entropy"]
    assert [signal.name for signal in resolve_attack("seqmia").signals] == order


def test_defaults_are_published_values_except_epochs() -> None:
    assert SequenceReader() == SequenceReader(50, 0, 100, 0.01, 1e-4)
    assert PUBLISHED_EPOCHS == 150


def auc_of(attack: Attack, measured: dict[str, Measurements]) -> float:
    return auc_interval(attack.scores(measured, TARGET).numpy(), FEW.numpy()).value


@pytest.mark.slow
def test_early_stopping_detects_a_weak_leak_better() -> None:
    published = CHOSEN.with_settings({"epochs": PUBLISHED_EPOCHS})
    shadow, fresh = draw_weak_leak("shadow"), draw_weak_leak("fresh")
    overfitted = published.fitted(shadow, FEW, TARGET, 3)
    chosen = CHOSEN.fitted(shadow, FEW, TARGET, 3)
    assert auc_of(overfitted, shadow) > 0.97
    assert auc_of(chosen, fresh) > auc_of(overfitted, fresh) + 0.05


@pytest.mark.slow
def test_networks_keep_the_epoch_with_the_lowest_validation_loss() -> None:
    shadow = draw_weak_leak("shadow")
    rule = CHOSEN.fitted(shadow, FEW, TARGET, 3).rule
    assert isinstance(rule, FittedReader)
    assert len(rule.weights) == FOLDS
    raw = torch.stack([m.values[:, 1] for m in shadow.values()], 2).transpose(0, 1)
    x = ((raw - rule.scaling.mean) / rule.scaling.std).float().contiguous()
    is_held_out = _assign_folds(FEW, 3) == 0
    losses, states = [], []
    judge = _initial_network(x.shape[2], 50, 0)
    epochs = SequenceReader()._train_epochs(x[~is_held_out], FEW[~is_held_out].long(), 3)
    for _ in range(60):
        states.append({name: value.clone() for name, value in next(epochs).items()})
        judge.load_state_dict(states[-1])
        with torch.no_grad():
            losses.append(float(cross_entropy(judge(x[is_held_out]), FEW[is_held_out].long())))
        if len(losses) - 1 - int(np.argmin(losses)) == PATIENCE:
            break
    best_state = states[int(np.argmin(losses))]
    assert all(torch.equal(rule.weights[0][n].float(), value) for n, value in best_state.items())


def test_validation_parts_keep_the_share_of_members() -> None:
    is_member = torch.arange(90) % 3 == 0
    parts = _assign_folds(is_member, 3)
    assert [int((is_member & (parts == part)).sum()) for part in range(FOLDS)] == [8, 8, 7, 7]
    assert [int((parts == part).sum()) for part in range(FOLDS)] == [23, 23, 22, 22]
    assert torch.equal(parts, _assign_folds(is_member, 3))
    assert not torch.equal(parts, _assign_folds(is_member, 4))


def test_one_member_is_too_few_for_a_validation_part() -> None:
    alone = torch.arange(SAMPLES) == 5
    with pytest.raises(BadInput, match="got 1 and 399; pass more, or set the attack's epochs"):
        CHOSEN.fitted(draw_measurements("shadow", MEMBERS), alone, TARGET, 3)
