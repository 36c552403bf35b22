"""Games in simulated rounds."""

from functools import cache
from pathlib import Path

import pytest
import torch

from fedaudit.attacks.ami import GameRules, NeuronTraining
from fedaudit.attacks.ami.game import Contest, SampleSources
from fedaudit.attacks.ami.plant import Neurons, average_uploads, target_gradient
from fedaudit.core.errors import FedauditError, NotVisible
from fedaudit.core.files import RECORD_FILE
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Samples
from fedaudit.fl.algorithms.base import Tampering
from fedaudit.fl.algorithms.fedsgd import FedSGD, as_gradient
from fedaudit.fl.simulate import simulate
from fedaudit.fl.training.local import LocalTraining
from fedaudit.games.rounds import ClientBatches, PlayedInRounds, RoundGames
from fedaudit.games.run import read_points, run_games
from fedaudit.games.samples import Labels
from fedaudit.metrics.games import gaussian_success
from fedaudit.observe.views import VIEWS
from fedaudit.plan.games import RoundsSection
from fedaudit.results.games import DISTANCE, EXPECTED_SUCCESS, FIT_AUC, SIGN_SUCCESS
from fedaudit.results.read import read_record

FEATURES, CLIENTS, SERVERS = 60, 120, 200
RULES = GameRules(
    batch=8,
    copies=1,
    background=80,
    validation=100,
    validation_copies=1,
    training=NeuronTraining(hidden=16, epochs=60),
)
POOLS = SampleSources(
    torch.randn(CLIENTS, FEATURES, generator=seeded(1, "clients")),
    torch.randn(SERVERS, FEATURES, generator=seeded(1, "servers")),
)
LABELS = Labels(
    torch.randint(3, (CLIENTS,), generator=seeded(1, "labels")),
    torch.randint(3, (SERVERS,), generator=seeded(2, "labels")),
    3,
)
CONTEST = Contest(POOLS, RULES, seed=1)


def dp_sgd(noise: float, **others: object) -> dict[str, object]:
    return {"defense": "dp-sgd", "options": {"clip": 1.0, "noise_multiplier": noise}, **others}


def games(**settings: object) -> RoundGames:
    section = RoundsSection.model_validate({"play": "rounds", **settings})
    return RoundGames(CONTEST, LABELS, section)


def played(targets: int, count: int, **settings: object) -> PlayedInRounds:
    round_games = games(**settings)
    parts = [round_games.play(number, neurons(number), count) for number in range(targets)]
    return PlayedInRounds(*(torch.cat(part) for part in zip(*parts, strict=True)))


@cache
def neurons(target: int) -> Neurons:
    """Train the neurons once for all tests, which must not modify them."""
    return CONTEST.neurons([target])


def adv(results: PlayedInRounds) -> float:
    right = (results.inferred_in == results.contains_target).double()
    return float(
        (right[results.contains_target].mean() + right[~results.contains_target].mean()) / 2
    )


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, dp_sgd(0.0), {"neurons": 3, "louder": 50.0}])
def test_without_noise_score_and_sign_give_the_same_verdicts(settings: dict[str, object]) -> None:
    results = played(6, 20, **settings)
    plain = CONTEST.play_some(dict.fromkeys(range(6), 20))
    assert torch.equal(results.contains_target, plain.contains_target)
    assert torch.equal(results.by_signs, plain.inferred_in)
    assert torch.equal(results.inferred_in, results.by_signs)
    assert 0 < int(results.inferred_in.sum()) < len(results.inferred_in)
    assert not results.by_others.any()


@pytest.mark.slow
def test_score_and_sign_differ_only_if_another_sample_fires() -> None:
    crowded = Contest(SampleSources(*(part[:, :8] for part in POOLS)), RULES, seed=1)
    crowded_games = RoundGames(crowded, LABELS, RoundsSection(play="rounds"))
    parts = [crowded_games.play(number, crowded.neurons([number]), 15) for number in range(4)]
    results = PlayedInRounds(*(torch.cat(part) for part in zip(*parts, strict=True)))
    differ = results.inferred_in != results.by_signs
    assert differ.any()
    assert (results.by_others[differ] > 0).all()


def test_games_in_one_federation_equal_separate_federations() -> None:
    round_games = games(clients=2)
    models = round_games.models(0, neurons(0))
    looked_for = target_gradient(models.target_client, round_games.target(0))
    _, batches = round_games.batches(0, 5)
    together = round_games.scores(models, looked_for, batches, 7)
    separate = [
        round_games.scores(
            models, looked_for, ClientBatches(*(part[game : game + 1] for part in batches)), 8
        )
        for game in range(5)
    ]
    torch.testing.assert_close(together, torch.cat(separate), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defense", "options", "spread"),
    [
        ("dp-sgd", {"clip": 0.5, "noise_multiplier": 3.0}, 0.5 * 3.0 / 8),
        ("gradient-noise", {"sigma": 0.7}, 0.7),
        ("client-dp", {"clip": 0.5, "noise_multiplier": 3.0}, 0.5 * 3.0),
    ],
)
def test_drawn_score_noise_matches_simulated_rounds(
    defense: str, options: dict[str, float], spread: float
) -> None:
    settings = {"defense": defense, "options": options, "averaged": 3, "neurons": 2}
    drawn, simulated = games(**settings), games(**settings, every_round=True)
    assert (drawn.simulated, simulated.simulated) == (1, 3)
    models = drawn.models(0, neurons(0))
    looked_for = target_gradient(models.target_client, drawn.target(0))
    _, batches = drawn.batches(0, 1)
    many = ClientBatches(*(part.expand(100, *part.shape[1:]) for part in batches))
    quiet = drawn.scores(models, looked_for, many, 7)
    noisy = simulated.scores(models, looked_for, many, 7)
    assert float(quiet.std()) < 1e-6
    expected = spread / 3**0.5
    assert float(noisy.std()) == pytest.approx(expected, rel=0.2)
    assert float(noisy.mean() - quiet[0]) == pytest.approx(0.0, abs=4 * expected / 100**0.5)
    drawn_noise = drawn._noise(looked_for, (4000,), seeded(1, "noise"))
    assert float(drawn_noise.std()) == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_a_scaled_neuron_reaches_the_gaussian_bound() -> None:
    expected = gaussian_success(1.0)  # sqrt(4) rounds over a noise of 2 clips
    for neurons in (1, 4):
        results = played(4, 100, **dp_sgd(2.0, averaged=4, neurons=neurons, louder=1e4))
        assert float(results.shares.min()) > 0.99
        assert float(results.distances.mean()) == pytest.approx(1.0, abs=0.01)
        assert adv(results) == pytest.approx(expected, abs=0.05)
        # A replaced sample may move the sum by two clips, of which a silent neuron uses one.
        assert adv(results) < gaussian_success(2.0) - 0.05


@pytest.mark.slow
def test_every_round_can_be_simulated() -> None:
    settings = dp_sgd(0.5, averaged=4, louder=1e4)
    simulated = played(2, 30, **settings, every_round=True, own_games=60)
    assert simulated.distances.isnan().all()
    assert adv(simulated) > 0.9
    assert adv(played(2, 30, **settings)) > 0.9


@pytest.mark.slow
def test_with_dead_neurons_the_sum_equals_the_targets_upload() -> None:
    alone, summed_up = (
        played(3, 20, **settings) for settings in ({}, {"clients": 4, "others": "dead"})
    )
    assert torch.equal(alone.inferred_in, summed_up.inferred_in)
    assert torch.equal(alone.by_others, summed_up.by_others)


@pytest.mark.slow
def test_with_a_planted_neuron_at_all_clients_any_sample_can_activate_it() -> None:
    results = played(3, 20, clients=4, others="planted")
    assert torch.equal(results.by_signs, results.by_target | (results.by_others > 0))
    assert adv(results) > 0.9


def federation(*lied_to: int) -> tuple[RoundGames, dict[int, Samples], Tampering]:
    round_games = games(clients=3, others="planted")
    model = round_games.models(0, neurons(0)).target_client.model
    _, batches = round_games.batches(0, 1)
    data = {
        client: Samples(batches.features[0, client], batches.labels[0, client], torch.arange(8))
        for client in range(3)
    }
    return round_games, data, Tampering(dict.fromkeys(lied_to, lambda honest: model))


def test_the_sum_view_requires_one_model_for_all_clients() -> None:
    round_games, data, server = federation(0, 1, 2)
    net = round_games.models(0, neurons(0)).others.architecture
    algorithm = FedSGD(net, LocalTraining(lr=0.5))
    (round,) = simulate(algorithm, data, rounds=1, seed=1, server=server)
    total = average_uploads([as_gradient(round.uploads[client]) for client in data])
    (seen,) = VIEWS["sum"].of([round])
    update = seen.observed[0].update
    assert update is not None
    for name, value in total.items():
        torch.testing.assert_close(update[name], -0.5 * value)
    _, _, liar = federation(0)
    (lied,) = simulate(algorithm, data, rounds=1, seed=1, server=liar)
    with pytest.raises(NotVisible, match="received different models"):
        list(VIEWS["sum"].of([lied]))


STUDY = """
name = "tiny"
[data]
name = "digits"
[game]
games = 24
targets = 4
batch = 5
background = 12
validation = 30
[neuron]
hidden = 12
epochs = 20
[rounds]
play = "rounds"
own_games = 10
[variants.noise]
"rounds.defense" = "dp-sgd"
"rounds.options" = { clip = 1.0, noise_multiplier = 2.0 }
"rounds.averaged" = 9
[variants.sum]
"rounds.defense" = "sparsification"
"rounds.options" = { ratio = 0.1 }
"rounds.averaged" = 2
"rounds.clients" = 2
[variants.signs]
"rounds.play" = "signs"
"rounds.own_games" = 40
"""


@pytest.mark.slow
def test_a_study_combines_points_in_rounds_and_by_sign(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    points = read_points(tmp_path / "tiny.toml")
    record = run_games(points, tmp_path / "out")
    assert read_record(tmp_path / "out" / RECORD_FILE) == record
    plain, noisy, total, signs = record.games
    assert signs.rounds is None
    assert signs.mechanism == plain.mechanism == "none"
    assert plain.rounds is not None
    assert (plain.largest_success, plain.figure(DISTANCE), plain.figure(EXPECTED_SUCCESS)) == (
        1.0,
        None,
        None,
    )
    assert plain.success == plain.rate(SIGN_SUCCESS) == signs.success
    assert plain.figure(FIT_AUC) == noisy.figure(FIT_AUC) == signs.figure(FIT_AUC)
    assert noisy.rounds is not None
    assert (noisy.rounds.averaged, noisy.rounds.simulated, noisy.figure(DISTANCE)) == (9, 1, 3.0)
    assert noisy.largest_success == pytest.approx(gaussian_success(3.0))
    assert 0.5 < (noisy.figure(EXPECTED_SUCCESS) or 0.0) < noisy.largest_success
    assert total.rounds is not None
    assert (total.rounds.clients, total.rounds.others, total.rounds.simulated) == (2, "honest", 2)
    assert run_games(points, tmp_path / "other").content_hash == record.content_hash


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rounds.defense": "dpsgd"}, "no defense named 'dpsgd'.*dp-sgd"),
        ({"rounds.defense": "dp-sgd"}, "needs clip.*rounds.options.clip"),
        ({"rounds.defense": "bitrand"}, "as mechanism.name"),
        ({"rounds.defense": "cofedmid"}, "is for a coalition"),
        ({"rounds.others": "kind"}, "honest"),
        ({"rounds.averaged": 0}, "averaged"),
        ({"mechanism.name": "bitwise-rr"}, "set rounds.play"),
        ({"rounds.play": "signs"}, r"no other setting of \[rounds\]"),
        ({"game.games": 1, "game.targets": 1}, "games with and without it"),
    ],
)
def test_invalid_round_settings_raise_in_one_sentence(
    changes: dict[str, object], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "one.toml"
    path.write_text(STUDY.split("[variants")[0])
    with pytest.raises(FedauditError, match=says) as refused:
        run_games(read_points(path, changes), tmp_path / "out")
    assert "\n" not in str(refused.value)


def test_records_of_rounds_are_validated(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(STUDY.split("[variants")[0])
    (point,) = run_games(read_points(path), tmp_path / "out").games
    assert point.rounds is not None
    changes: list[dict[str, object]] = [
        {"averaged": 0},
        {"simulated": 2},
        {"others": "x"},
        {"louder": 0.0},
    ]
    for change in changes:
        wrong = point.model_dump() | {"rounds": point.rounds.model_dump() | change}
        with pytest.raises(ValueError, match="validation error"):
            type(point).model_validate(wrong)
    with pytest.raises(ValueError, match="no mechanism"):
        type(point).model_validate(point.model_dump() | {"mechanism": "ome"})
