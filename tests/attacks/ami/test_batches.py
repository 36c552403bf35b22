"""Batched training of planted neurons."""

from collections import Counter
from dataclasses import replace
from math import exp

import pytest
import torch
from torch import Tensor

from fedaudit.attacks.ami import GameRules, NeuronTraining, train
from fedaudit.attacks.ami.game import (
    Contest,
    Randomiser,
    Randomisers,
    SampleSources,
    TrainedTargets,
)
from fedaudit.attacks.ami.train import Batches, LabelledRows, Standardisation, train_neurons
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.games.playing import rules_of
from fedaudit.plan.games import GameStudy
from fedaudit.plan.values import settings_from

TRAINING = NeuronTraining(hidden=20, epochs=4, lr=3.0, batch_size=16)
RULES = GameRules(
    batch=10,
    copies=13,
    background=30,
    background_copies=3,
    validation=40,
    validation_copies=20,
    training=TRAINING,
)
POOLS = SampleSources(
    torch.randn(60, 8, generator=seeded(3, "clients")),
    torch.randn(80, 8, generator=seeded(3, "servers")),
)


def noisy(samples: Tensor, rng: torch.Generator) -> Tensor:
    return samples + 0.3 * torch.randn(samples.shape, generator=rng)


def contest(rules: GameRules = RULES, randomiser: Randomiser = noisy) -> Contest:
    return Contest(POOLS, rules, seed=5, randomisers=Randomisers(randomiser, randomiser))


def trained_targets(rules: GameRules = RULES, randomiser: Randomiser = noisy) -> TrainedTargets:
    return contest(rules, randomiser).train_targets([0])


def assert_same(left: TrainedTargets, right: TrainedTargets) -> None:
    for left_part, right_part in zip(
        (*left.neurons, *left[1:]), (*right.neurons, *right[1:]), strict=True
    ):
        assert torch.equal(left_part, right_part)


def labelled(target: list[float], others: list[float]) -> LabelledRows:
    """Return labelled rows with one feature."""
    rows = torch.tensor([*target, *others])[None, :, None]
    return LabelledRows(rows, (torch.arange(rows.shape[1]) < len(target))[None])


def test_steps_on_two_batches_match_hand_calculation() -> None:
    parts = [labelled([2.0], [1.0, -1.0]), labelled([], [3.0])]
    data = Batches(2, parts.__getitem__, targets=1, others=3)
    how = NeuronTraining(hidden=1, epochs=1, lr=0.5, momentum=0.0, target_share=0.6, batch_size=3)
    standard = Standardisation(torch.zeros(1), torch.ones(1))
    neurons = train_neurons(data, how, standardise=standard, rng=seeded(18)).neurons

    rng = seeded(18)
    first, second = (torch.empty(1).uniform_(-1, 1, generator=rng).item() for _ in range(2))
    w, c, h, b = first, 0.0, second, 0.0
    assert w > 0, "the unit is active, so that the step is not zero"
    # Weights of rows in the loss, times two batches: 2 x 0.6 / 1 and 2 x 0.4 / 3.
    by_hand = [[(2.0, 1, 1.2), (1.0, 0, 0.8 / 3), (-1.0, 0, 0.8 / 3)], [(3.0, 0, 0.8 / 3)]]
    for number in torch.randperm(2, generator=rng).tolist():
        steps = [0.0, 0.0, 0.0, 0.0]
        for x, label, weight in by_hand[number]:
            inner = w * x + c
            active = max(inner, 0.0)
            slope = weight * (1 / (1 + exp(-(h * active + b))) - label)
            down = slope * h * (inner > 0)
            for index, part in enumerate((down * x, down, slope * active, slope)):
                steps[index] += 0.5 * part
        w, c, h, b = (old - step for old, step in zip((w, c, h, b), steps, strict=True))
    assert [part.item() for part in neurons] == pytest.approx([w, c, h, b], rel=1e-5)


def test_a_full_batch_equals_full_gradient_descent() -> None:
    rows = torch.randn(1, 30, 4, generator=seeded(1, "rows"))
    data = LabelledRows(rows, (torch.arange(30) < 5)[None])
    standard = Standardisation.of(rows[0])
    how = replace(TRAINING, batch_size=0)
    alone = train_neurons(data, how, standardise=standard, rng=seeded(2)).neurons
    batches = Batches(1, lambda number: data, targets=5, others=25)
    # Weights are drawn before the order of batches, so they are equal with and without batches.
    batched = train_neurons(batches, how, standardise=standard, rng=seeded(2)).neurons
    for ours, theirs in zip(batched, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [103, 104, 10**6])
def test_a_batch_size_of_all_rows_gives_identical_results(size: int) -> None:
    assert RULES.rows == 13 + 3 * 30
    full_batch = replace(RULES, training=replace(TRAINING, batch_size=0))
    assert_same(
        trained_targets(replace(RULES, training=replace(TRAINING, batch_size=size))),
        trained_targets(full_batch),
    )


@pytest.mark.parametrize("size", [0, 16])
def test_other_samples_have_equally_many_independent_copies(size: int) -> None:
    clean, noise = list[Tensor](), list[Tensor]()

    def note(samples: Tensor, rng: torch.Generator) -> Tensor:
        randomised = noisy(samples, rng)
        clean.append(samples)
        noise.append(randomised - samples)
        return randomised

    contest_with_notes = contest(replace(RULES, training=replace(TRAINING, batch_size=size)), note)
    assert contest_with_notes.standard is not None
    clean.clear()
    noise.clear()
    contest_with_notes.train_targets([0])
    # Calls with 60 rows are for validation, and those with 400 for the held-out fit.
    rows = torch.cat([r for r in clean if len(r) not in (60, 400)])
    counts = Counter(tuple(row) for row in rows.tolist())
    target = tuple(POOLS.clients[contest_with_notes.target(0)].tolist())
    assert counts.pop(target) == 13
    assert len(counts) == 30
    assert set(counts.values()) == {3}
    assert len({tuple(row) for row in torch.cat(noise).tolist()}) == sum(map(len, noise))


def test_copies_of_the_target_are_spread_evenly_over_batches() -> None:
    training, _ = contest()._rows(0)
    assert isinstance(training, Batches)
    sizes = [(rows.shape[1], int(is_target.sum())) for rows, is_target in training.in_order()]
    assert len(sizes) == 7, "of 16 rows or fewer"
    assert {rows for rows, _ in sizes} <= {14, 15, 16}
    assert {copies for _, copies in sizes} == {1, 2}
    assert sum(copies for _, copies in sizes) == 13


def test_randomisation_is_done_by_batch_and_kept_within_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, sizes = trained_targets(), list[int]()

    def note(samples: Tensor, rng: torch.Generator) -> Tensor:
        sizes.append(len(samples))
        return noisy(samples, rng)

    for memory_limit in (0, 2 * 16 * 8 * 4):
        # Rows are regenerated with the same noise, so that caching does not change results.
        monkeypatch.setattr(train, "_MAX_BYTES_IN_MEMORY", memory_limit)
        assert_same(trained_targets(randomiser=note), usual)
        training, _ = contest()._rows(0)
        assert isinstance(training, Batches)
        list(training.in_order())
        assert sum(batch.rows.nbytes for batch in training._in_memory.values()) <= memory_limit
        assert (len(training._in_memory) > 0) == (memory_limit > 0)
    assert max(size for size in sizes if size not in (60, 80, 400)) <= 16


def test_neurons_do_not_depend_on_other_targets() -> None:
    both, alone = contest().neurons([0, 1]), contest().neurons([1])
    for ours, theirs in zip(both.only(1), alone, strict=True):
        assert torch.equal(ours, theirs)


def test_batched_training_stops_once_rows_are_separated() -> None:
    training = replace(TRAINING, hidden=100, epochs=200, check=2)
    quiet = replace(RULES, copies=7, training=training)
    targets = trained_targets(quiet, lambda samples, rng: samples)
    assert targets.separated.tolist() == [True]
    assert 0 < targets.epochs.item() < 200
    assert targets.epochs.item() % 2 == 0


@pytest.mark.parametrize(
    ("batches", "targets", "others"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)], ids=str
)
def test_batches_without_both_classes_raise(batches: int, targets: int, others: int) -> None:
    data = Batches(batches, lambda k: labelled([1.0], [2.0]), targets=targets, others=others)
    with pytest.raises(BadInput, match="pass both"):
        train_neurons(data, TRAINING, standardise=Standardisation.of(POOLS.servers), rng=seeded(1))


def study(**mechanism: object) -> GameStudy:
    values: dict[str, object] = {
        "name": "sized",
        "game": {"copies": 40, "background": 50, "background_copies": 3},
        "mechanism": mechanism,
    }
    return settings_from(values, GameStudy, source="a test")


def test_a_study_sets_copies_and_batches() -> None:
    behind = study(name="bitrand", options={"nominal_epsilon": 4.0})
    sized = behind.model_copy(
        update={"neuron": behind.neuron.model_copy(update={"batch_size": 25})}
    )
    rules = rules_of(sized)
    assert (rules.copies, rules.background, rules.background_copies) == (40, 50, 3)
    assert (rules.rows, rules.training.batch_size) == (190, 25)
    assert rules_of(behind).training.batch_size == 0


def test_without_a_mechanism_copies_are_used_only_for_batches() -> None:
    plain = study(name="none")
    assert rules_of(plain).rows == 1 + 50
    batched = plain.model_copy(
        update={"neuron": plain.neuron.model_copy(update={"batch_size": 25})}
    )
    assert rules_of(batched).rows == 40 + 50, "every batch holds some of the target's"
