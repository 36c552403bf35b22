"""Table, verdict and rounds left."""

import doctest
import json
from dataclasses import replace
from pathlib import Path

import pytest

import fedaudit as fa
from fedaudit.core.errors import BadInput
from fedaudit.privacy_budget import budget as module
from tests.privacy_budget.setups import client, sample, setup

TOML = """
name = "keyboard"
delta = 1e-6
clients = 1000

[[phase]]
rounds = 20
protects = "client"
clip = 0.5
noise_multiplier = 8.0

[[phase]]
rounds = 5
protects = "client"
clip = 0.5
noise_multiplier = 4.0
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "budget.toml"
    path.write_text(TOML)
    return path


def test_examples_run() -> None:
    assert doctest.testmod(module).failed == 0


def test_short_trainings_have_a_row_for_each_round() -> None:
    result = fa.budget(setup(client(rounds=12)))
    assert [row.round for row in result.rows] == list(range(1, 13))


def test_long_trainings_have_about_ten_rows_and_the_ends_of_phases(path: Path) -> None:
    assert [row.round for row in fa.budget(path).rows] == [1, 3, 6, 9, 12, 15, 18, 20, 21, 24, 25]
    result = fa.budget(path, every=10)
    assert [(row.round, row.phase) for row in result.rows] == [(1, 1), (10, 1), (20, 1), (25, 2)]


def test_epsilon_grows_with_rounds_for_every_unit(path: Path) -> None:
    rows = fa.budget(path).rows
    for unit in ("sample", "person", "client"):
        values = [getattr(row, unit) for row in rows]
        assert values == sorted(values)


def test_rounds_left_are_the_last_within_the_target() -> None:
    result = fa.budget(setup(client(noise_multiplier=20.0)), target=3.0)
    assert result.verdict is module.BudgetVerdict.WITHIN
    assert result.rounds_left is not None
    longer = 100 + result.rounds_left
    at_limit = fa.budget(setup(client(noise_multiplier=20.0, rounds=longer)), every=longer)
    above = fa.budget(setup(client(noise_multiplier=20.0, rounds=longer + 1)), every=longer)
    assert at_limit.epsilon <= 3.0 < above.epsilon


def test_above_the_target_the_last_round_within_it_is_stated() -> None:
    result = fa.budget(setup(client(noise_multiplier=20.0)), target=1.0)
    assert (result.verdict, result.rounds_left) == (module.BudgetVerdict.ABOVE, 0)
    assert result.last_round is not None
    assert f"up to round {result.last_round} of 100" in str(result)
    shorter = setup(client(noise_multiplier=20.0, rounds=result.last_round))
    assert fa.budget(shorter, every=1000).epsilon <= 1.0


def test_a_target_that_one_round_exceeds() -> None:
    result = fa.budget(setup(client()), target=0.5)
    assert result.last_round == 0
    assert "above the target of 0.5 after the first round" in str(result)


def test_participations_in_rounds_left_are_those_of_one_client() -> None:
    capped = setup(client(noise_multiplier=20.0, participations=10))
    result = fa.budget(capped, target=3.0)
    everywhere = fa.budget(setup(client(noise_multiplier=20.0, rounds=10)), target=3.0)
    assert result.rounds_left == everywhere.rounds_left


def test_the_epsilon_of_the_unit_is_compared_with_the_target() -> None:
    full_batches = sample(sampling="all", batch_size=None, noise_multiplier=10.0)
    settings = setup(full_batches, person_samples=4)
    result = fa.budget(settings, target=5.0, unit="person", every=10)
    assert result.epsilon == result.rows[-1].person > result.rows[-1].sample


def test_json_has_all_rows_and_the_set_up(path: Path) -> None:
    result = fa.budget(path, target=5.0)
    document = json.loads(result.to_json())
    assert document["rows"][-1]["client"] == document["epsilon"] == result.epsilon
    assert document["verdict"] == "within the target"
    rebuilt = fa.budget(document["setup"])
    assert rebuilt.rows == result.rows


def test_a_set_up_object_is_accepted(path: Path) -> None:
    result = fa.budget(path)
    assert fa.budget(result.setup).rows == result.rows


def test_arguments_replace_settings(path: Path) -> None:
    assert fa.budget(path, delta=1e-4).epsilon < fa.budget(path).epsilon


@pytest.mark.parametrize("every", [0, -1])
def test_consecutive_rows_differ_by_at_least_one_round(path: Path, every: int) -> None:
    with pytest.raises(BadInput, match="every= is a number of rounds of at least 1"):
        fa.budget(path, every=every)


def test_the_table_states_delta_adjacency_and_sampling() -> None:
    text = str(fa.budget(setup(client(sampling="poisson", rate=0.1, rounds=1))))
    assert "at delta 1e-06" in text
    assert "Adjacency: one client is added or removed." in text
    assert "who takes part in a round, or which samples are in a batch." in " ".join(text.split())
    assert "replaces the update of its client" in text
    assert max(map(len, text.split("\n"))) <= 80


def test_an_epsilon_without_a_guarantee_has_no_size() -> None:
    full_batches = sample(sampling="all", batch_size=None)
    text = str(fa.budget(setup(full_batches, most_samples=10_000)))
    assert text.count("> 1,000") == 10


def test_an_infinite_epsilon_is_null_in_json() -> None:
    row = module.BudgetRow(1, 1, 1.0, 2.0, float("inf"))
    infinite = replace(fa.budget(setup(client())), rows=(row,))
    document = json.loads(infinite.to_json(), parse_constant=pytest.fail)
    assert (document["epsilon"], document["rows"][0]["client"]) == (None, None)
    assert document["rows"][0]["person"] == 2.0


def test_an_epsilon_is_rounded_up() -> None:
    row = module.BudgetRow(1, 1, 1.0001, 2.0, 3.0)
    assert "       1.001       2.000       3.000" in str(
        replace(fa.budget(setup(client())), rows=(row,))
    )
