"""Security games of AMI."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedaudit.attacks.ami import GameRules, NeuronTraining
from fedaudit.attacks.ami.game import (
    NO_RANDOMISERS,
    Contest,
    GameOutcomes,
    Randomiser,
    Randomisers,
    SampleSources,
)
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded

RULES = GameRules(
    batch=10,
    copies=1,
    background=30,
    validation=200,
    validation_copies=1,
    training=NeuronTraining(hidden=50, epochs=60),
)


def pools(clients: int = 300, servers: int = 400, features: int = 20) -> SampleSources:
    rng = seeded(3, "pools")
    return SampleSources(
        torch.randn(clients, features, generator=rng), torch.randn(servers, features, generator=rng)
    )


def contest(
    sample_pools: SampleSources | None = None,
    rules: GameRules = RULES,
    randomiser: Randomiser | None = None,
) -> Contest:
    both = NO_RANDOMISERS if randomiser is None else Randomisers(randomiser, randomiser)
    return Contest(sample_pools or pools(), rules, seed=5, randomisers=both)


def played(
    sample_pools: SampleSources | None = None,
    rules: GameRules = RULES,
    targets: int = 20,
    games: int = 200,
    randomiser: Randomiser | None = None,
) -> GameOutcomes:
    return GameOutcomes.concatenate(
        contest(sample_pools, rules, randomiser).play(targets=targets, games=games)
    )


def test_without_a_randomiser_all_games_are_won() -> None:
    outcome = played()
    assert bool(outcome.by_target[outcome.contains_target].all())
    assert bool(outcome.inferred_in[outcome.contains_target].all())
    assert float((outcome.inferred_in == outcome.contains_target).float().mean()) > 0.95


def test_the_contest_reports_neuron_training() -> None:
    trained = contest().train_targets(range(3))
    assert trained.fit.tolist() == [1, 1, 1]
    assert trained.epochs.tolist() == [60, 60, 60]
    training = replace(RULES.training, check=1)
    early = contest(rules=replace(RULES, training=training)).train_targets(range(3))
    assert bool(early.separated.all())
    assert int(early.epochs.max()) < 60
    # With far too large a learning rate, units die and all values are equal.
    wild = replace(RULES.training, lr=1e5)
    assert contest(rules=replace(RULES, training=wild)).train_targets([0]).fit.tolist() == [0.5]


def test_memorised_neurons_fail_on_held_out_copies() -> None:
    def hide(samples: Tensor, rng: torch.Generator) -> Tensor:
        return torch.randn(samples.shape, generator=rng)

    plain, hidden = (contest(randomiser=how).train_targets(range(4)) for how in (None, hide))
    assert plain.fit.tolist() == hidden.fit.tolist() == [1, 1, 1, 1]
    assert plain.held_out.min() > 0.99
    # Copies are only noise. The AUC of 200 x 200 pairs then has standard deviation 0.03.
    assert hidden.held_out.mean().item() == pytest.approx(0.5, abs=0.06)


def test_without_validation_samples_the_trained_threshold_is_kept() -> None:
    trained = contest(rules=replace(RULES, validation=0, validation_copies=0)).train_targets([0])
    placed = contest().train_targets([0])
    assert torch.equal(trained.neurons.first_weights, placed.neurons.first_weights)
    assert not torch.equal(trained.neurons.second_bias, placed.neurons.second_bias)
    assert torch.equal(trained.held_out, placed.held_out)


def test_early_stopping_needs_validation_samples() -> None:
    how = replace(RULES.training, check=1)
    with pytest.raises(BadInput, match=r"set neuron\.check to 0"):
        replace(RULES, training=how, validation=0, validation_copies=0)


def test_without_a_randomiser_distinct_samples_are_always_identified() -> None:
    outcome = played(pools(features=300), targets=50, games=500)
    assert torch.equal(outcome.inferred_in, outcome.contains_target)
    assert int(outcome.by_others.sum()) == 0


def test_full_noise_gives_chance_level() -> None:
    def hide(samples: Tensor, rng: torch.Generator) -> Tensor:
        return torch.randn(samples.shape, generator=rng)

    outcome = played(
        rules=replace(RULES, copies=8, validation_copies=50), games=400, randomiser=hide
    )
    tpr = float(outcome.inferred_in[outcome.contains_target].float().mean())
    tnr = float((~outcome.inferred_in[~outcome.contains_target]).float().mean())
    assert (tpr + tnr) / 2 == pytest.approx(0.5, abs=0.08)


def test_games_of_a_target_do_not_depend_on_the_number_of_targets() -> None:
    few, many = played(targets=3, games=30), played(targets=20, games=200)
    for name in ("contains_target", "by_target", "by_others"):
        assert torch.equal(getattr(few, name), getattr(many, name)[:30])
    assert many.target.tolist() == [n for n in range(20) for _ in range(10)]


def test_targets_are_members_in_half_of_the_games() -> None:
    outcome = played(targets=50, games=500, rules=replace(RULES, training=NeuronTraining(5, 1)))
    assert 0.4 < float(outcome.contains_target.float().mean()) < 0.6
    assert len({contest().target(number) for number in range(50)}) > 40


def test_the_client_randomises_every_sample_of_a_batch_once() -> None:
    sample_pools, seen = pools(clients=12), []

    def mark(samples: Tensor, rng: torch.Generator) -> Tensor:
        seen.append(samples)
        return samples

    outcome = played(sample_pools, targets=1, games=9, randomiser=mark)
    batches = [samples for samples in seen if len(samples) == RULES.batch]
    target = sample_pools.clients[contest(sample_pools).target(0)]
    assert len(batches) == 9
    for contains_target, batch in zip(outcome.contains_target.tolist(), batches, strict=True):
        assert all(bool((sample_pools.clients == sample).all(1).any()) for sample in batch)
        assert int((batch == target).all(1).sum()) == contains_target, "once, or not at all"
    server_samples = torch.cat([r for r in seen if len(r) in (31, 201)])
    is_target = (server_samples == target).all(1)
    assert int(is_target.sum()) == 2, "a copy to train on, a copy to validate on"
    server_pool = {tuple(sample) for sample in sample_pools.servers.tolist()}
    assert all(tuple(sample) in server_pool for sample in server_samples[~is_target].tolist())
    (train,), (check,) = ([r for r in seen if len(r) == n] for n in (31, 201))
    assert not {tuple(r) for r in train[1:].tolist()} & {tuple(r) for r in check[1:].tolist()}


def test_a_shared_mask_is_applied_to_a_whole_batch() -> None:
    sizes = []

    def shared(samples: Tensor, rng: torch.Generator) -> Tensor:
        sizes.append(len(samples))
        return samples + torch.randn(1, samples.shape[1], generator=rng)

    played(targets=1, games=5, randomiser=shared)
    assert sizes.count(RULES.batch) == 5


def test_server_and_clients_may_use_different_randomisers() -> None:
    seen: dict[str, set[int]] = {"client": set(), "server": set()}

    def noting(who: str) -> Randomiser:
        def note(samples: Tensor, rng: torch.Generator) -> Tensor:
            seen[who].add(len(samples))
            return samples

        return note

    both = Randomisers(noting("client"), noting("server"))
    list(Contest(pools(), RULES, seed=5, randomisers=both).play(targets=1, games=3))
    assert seen == {"client": {RULES.batch}, "server": {31, 201, 400}}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sample_pools": pools(clients=10)}, "got 10 and 400"),
        ({"sample_pools": pools(servers=229)}, "got 300 and 229"),
    ],
)
def test_impossible_games_raise(how: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        played(**how)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"validation": 0}, {"validation_copies": 0}])
def test_validation_needs_members_and_nonmembers(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="at least"):
        replace(RULES, **wrong)  # type: ignore[arg-type]


def test_diverging_neuron_training_raises() -> None:
    wild = NeuronTraining(hidden=50, epochs=300, lr=1e30, momentum=0.99)
    with pytest.raises(BadInput, match=r"lower neuron\.lr"):
        played(rules=replace(RULES, training=wild), targets=1, games=1)
