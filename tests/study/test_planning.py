"""Plans of studies: size, cost and the smallest detectable leak."""

from pathlib import Path

import pytest

import fedaudit as fa
from fedaudit.core.errors import BadInput
from fedaudit.plan.sections import Study
from tests.programs import exit_code

TEXT = """
name = "planned"
seeds = [1, 2]
partition.clients = 3
training = { rounds = 3, epochs = 1, batch_size = 50, lr = 0.1 }
audit = { samples = 120, background = 0, every = 2 }
figures = { fprs = [0.1], permutations = 20, blind_classifier = false }
attacks.loss-series = {}
"""


def study(**audit: object) -> Study:
    settings: dict[str, object] = {
        "name": "planned",
        "seeds": [1],
        "partition": {"clients": 3},
        "training": {"rounds": 3, "batch_size": 50},
        "audit": {"samples": 120, "background": 0, "every": 2, **audit},
        "figures": {"fprs": [0.1], "permutations": 20, "blind_classifier": False},
        "attacks": {"loss-series": {}},
    }
    return fa.study_from(settings)


def test_a_plan_counts_only_runs_that_are_not_trained_and_writes_nothing(tmp_path: Path) -> None:
    out, pool = tmp_path / "out", tmp_path / "pool"
    before = fa.plan_study(study(), out, pool=pool)
    assert not list(tmp_path.iterdir())
    assert (before.seeds, before.audited, before.attacks) == (1, 120, 1)
    assert (before.federations, before.trained, before.rounds) == (1, 0, 3)
    assert 0 < before.seconds < 600
    fa.run_study(study(), out, pool=pool)
    files = sorted(tmp_path.rglob("*"))
    after = fa.plan_study(study(), tmp_path / "other", pool=pool)
    assert sorted(tmp_path.rglob("*")) == files
    assert (after.trained, after.rounds) == (1, 0)
    assert after.seconds < before.seconds


def test_a_planted_leak_costs_time(tmp_path: Path) -> None:
    plain = study()
    figures = plain.figures.model_copy(update={"planted_leak": True})
    planted = plain.model_copy(update={"figures": figures})
    seconds = [fa.plan_study(each, tmp_path).seconds for each in (plain, planted)]
    assert seconds[0] < seconds[1]


def test_the_command_prints_size_cost_and_power(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.toml"
    path.write_text(TEXT)
    assert exit_code("plan", path, "--workers", 1, "--training.rounds=2") == 0
    printed = capsys.readouterr().out
    for part in (
        "study: planned, 2 seeds, 120 audited samples, 1 attacks",
        "training: 4 rounds; 0 of 2 federations",
        "time: about",
        "smallest leak that is detected with 80 % power: an AUC of 0.",
        "smallest TPR at 10% FPR that is detected with 80 % power:",
        "disk: about",
    ):
        assert part in printed
    assert list(tmp_path.iterdir()) == [path]
    assert exit_code("plan", path, "--training.rounds=0") == 2


def test_an_impossible_study_has_no_plan(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        fa.plan_study(study(samples=100_000), tmp_path)
