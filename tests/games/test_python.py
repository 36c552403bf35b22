"""Games from Python objects."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedaudit as fa
from fedaudit.attacks.ami import GameRules, NeuronTraining
from fedaudit.attacks.ami.game import Contest, SampleSources
from fedaudit.attacks.ami.plant import plant
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.seeds import seeded
from fedaudit.defenses.ldp.additive import LdpLaplace
from fedaudit.fl.algorithms.base import Tampering
from fedaudit.games.run import read_points, run_games
from tests.games.test_games import STUDY

RULES = {
    "game": fa.Game(
        games=40,
        targets=8,
        batch=5,
        copies=4,
        background=12,
        validation=30,
        validation_copies=5,
        certified=1,
        certificate_copies=50,
    ),
    "neuron": fa.Neuron(hidden=20, epochs=20),
}
X = torch.randn(300, 30, generator=seeded(1, "x"))
Y = torch.randint(2, (300,), generator=seeded(1, "y"))


def games(**settings: object) -> fa.Games:
    return fa.Games((X, Y), **{**RULES, **settings})  # type: ignore[arg-type]


def first_half(samples: Tensor) -> Tensor:
    return samples.flatten(1)[:, :15]


@dataclass(frozen=True)
class Louder(LdpLaplace):
    """A custom mechanism."""


def test_objects_and_an_equal_file_give_the_same_record(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    by_name = run_games(read_points(tmp_path / "tiny.toml"), tmp_path / "file")
    mechanisms = [
        fa.defenses.BitRandPublished(nominal_epsilon=8.0, shared_mask=shared)
        for shared in (False, True)
    ]
    labels = [point.label for point in by_name.games[2:]]
    legacy: dict[str, dict[str, object]] = {"legacy": {"neuron.output": "two-sigmoids"}}
    variants = legacy | {
        label: {"mechanism": mechanism} for label, mechanism in zip(labels, mechanisms, strict=True)
    }
    of_objects = fa.Games("digits", **RULES, variants=variants)  # type: ignore[arg-type]
    run = fa.audit(
        of_objects,
        out=tmp_path / "objects",
        name="tiny",
        options=fa.AuditOptions(about="For tests."),
    )
    estimates = [point.estimates for point in run.record.games]
    assert estimates == [point.estimates for point in by_name.games]
    grid = {
        "mechanism.name": ["bitrand"],
        "mechanism.options.nominal_epsilon": [8.0],
        "mechanism.options.shared_mask": [False, True],
    }
    with_grid = fa.Games("digits", **RULES, variants=legacy, grid=grid)  # type: ignore[arg-type]
    # In the same folder, since a study may add or omit variants.
    repeated = fa.audit(with_grid, out=tmp_path / "objects", name="tiny")
    assert repeated.record.content_hash == by_name.content_hash


@pytest.mark.slow
def test_games_accept_custom_arrays_extractors_and_defenses(tmp_path: Path) -> None:
    variants = {
        "laplace": {"mechanism": Louder(epsilon=4.0, clip=1.0)},
        "noise": {"defense": fa.defenses.GradientNoise(sigma=0.5), "rounds.own_games": 10},
        "whole": {"features": "pixels"},
    }
    run = fa.audit(games(features=first_half, variants=variants), out=tmp_path, seeds=[3])
    plain, laplace, noise, pixels = run.record.games
    assert plain.samples.startswith("samples#")
    assert ", 15 features" in plain.samples
    assert ", 30 features" in pixels.samples
    assert laplace.mechanism == f"{__name__}:Louder"
    assert laplace.claimed_epsilon == 4.0
    assert noise.rounds is not None
    assert (noise.rounds.defense, noise.rounds.options) == ("gradient-noise", {"sigma": "0.5"})
    assert run.record.seeds == [3]
    assert {row["point"] for row in run.record.rows()} == {"", *variants}
    assert run.save_report() == tmp_path / "report.html"
    assert fa.Run(tmp_path).record == run.record
    with pytest.raises(BadInput, match="has security games, which store no rounds"):
        run.attack("fedmia-2")
    with pytest.raises(BadInput, match="has a study with other settings"):
        fa.audit(games(features=first_half), out=tmp_path, seeds=[4])


@pytest.mark.slow
def test_games_with_a_defense_are_played_in_rounds(
    tmp_path: Path,
) -> None:
    clipped = fa.defenses.DPSGD(clip=1.0, noise_multiplier=2.0)
    noisy = {"defense": fa.defenses.GradientNoise(sigma=0.5)}
    rounds = fa.Rounds(own_games=10)
    run = fa.audit(games(defense=clipped, rounds=rounds, variants={"n": noisy}), out=tmp_path)
    behind = [point.rounds.options for point in run.record.games if point.rounds]
    assert (behind[0]["clip"], behind[0]["noise_multiplier"]) == ("1.0", "2.0")
    assert behind[1] == {"sigma": "0.5"}


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {"attacks": ["fedmia-2"]}, "attacks= applies only to federations"),
        ({}, {"workers": 2}, "workers= applies only to federations"),
        ({}, {"seeds": [1, 2]}, "games have one seed"),
        ({"mechanism": fa.defenses.GradientNoise(sigma=1.0)}, {}, "no mechanism named 'gradient-"),
        ({"mechanism": 3}, {}, "a defense must be an object of fedaudit.defenses"),
        ({"mechanism": "bitrand"}, {}, "give it as mechanism.nominal_epsilon"),
        (
            {"features": 3},
            {},
            "an extractor must be a catalogue name, or .*; got an int",
        ),
        ({"variants": {"a": {"batch": 3}}}, {}, "variant 'a'.* named 'batch'"),
        ({"clients": 600}, {}, "lower clients or servers"),
    ],
)
def test_invalid_games_raise_with_python_names(
    settings: dict[str, object], options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FedauditError, match=message) as refused:
        fa.audit(games(**settings), out=tmp_path, **options)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_a_study_of_membership_can_name_the_server_that_plants_neurons(tmp_path: Path) -> None:
    training = NeuronTraining(hidden=16, epochs=20)
    rules = GameRules(
        copies=1, background=40, validation=50, validation_copies=1, batch=8, training=training
    )
    neuron = Contest(SampleSources(X[:100], X[100:]), rules, seed=1).neurons([0])
    server = Tampering({0: lambda model: plant(model, neuron).model})
    federation = fa.Federation(
        (X, Y),
        clients=3,
        model=fa.models.MLP(hidden="16,8"),
        algorithm=fa.algorithms.FedSGD(rounds=2, lr=0.1),
    )
    record = fa.audit(
        federation,
        attacks=["avg-cosine"],
        options=fa.AuditOptions(server=server),
        audit=fa.Audit(samples=30, background=0, every=1),
        figures=fa.Figures(permutations=20, blind_classifier=False),
        out=tmp_path,
    ).record
    server_config = record.config["server"]
    assert isinstance(server_config, dict)
    assert str(server_config["name"]).startswith("fedaudit.fl.algorithms.base:Tampering#")
    assert any("Other changes that a server can make" in topic for topic in record.untested)
