from pathlib import Path

import numpy as np
import pytest
import torch

from fedaudit.attacks import ATTACKS
from fedaudit.benchmark import building
from fedaudit.benchmark.building import build_suite, regime_names, regime_study
from fedaudit.benchmark.suite import NOT_APPLICABLE, read_answers, read_signals, read_suite
from fedaudit.core.errors import BadInput
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.study.build import resolve


def small_study(name: str, seed: int = 1) -> Study:
    """Return a study that takes seconds, with an attack on references."""
    return study_from(
        {
            "name": name,
            "about": "Small.",
            "seeds": [seed, seed + 1],
            "data": {"name": "synthetic", "options": {"samples": 900, "dimensions": 8}},
            "partition": {"clients": 3, "samples_per_client": 30},
            "model": {"name": "mlp", "options": {"hidden": "8"}},
            "training": {"rounds": 2},
            "audit": {"samples": 60, "extra_unseen": 10, "every": 1},
            "attacks": {"loss-series": {}, "fedmia-1": {}, "rmia": {"offline": 0.3}},
            "references": {"count": 2},
        }
    )


def test_every_regime_runs_all_attacks_that_apply() -> None:
    for name in regime_names():
        study = regime_study(name, 7)
        assert study.name == name
        assert study.about
        assert study.seeds == (7, 8, 9)
        left_out = {*ATTACKS} - {*study.attacks} - {*NOT_APPLICABLE}
        # These need a language model.
        assert all(name.startswith(("min-k", "zlib", "base-reference")) for name in left_out)
        assert "fedmia-2" in study.attacks
        resolve(study)
    assert {*NOT_APPLICABLE} < {*ATTACKS}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(building, "regime_study", small_study)
    monkeypatch.setattr(building, "regime_names", lambda: ["first"])
    build_suite(tmp_path / "suite")
    return tmp_path / "suite"


def test_a_suite_has_the_signals_from_which_its_scores_were_computed(built: Path) -> None:
    suite = read_suite(built)
    assert [entry.name for entry in suite.recordings] == ["first-1", "first-2"]
    assert not (built / "build").exists()
    for entry in suite.recordings:
        seen = read_signals(built / entry.signals.path)
        answers = read_answers(built / entry.answers.path)
        assert entry.samples == seen.samples == len(answers.is_member) == 70
        assert 5 < answers.is_member.sum() < 35
        assert {*answers.by_attack} == {"loss-series", "fedmia-1", "rmia"}
        for name in ("loss-series", "fedmia-1"):
            again = ATTACKS[name].scores(seen.measured, seen.target).numpy()
            np.testing.assert_allclose(again, answers.by_attack[name], rtol=1e-12)
        assert len(seen.references) == 2
        never = torch.zeros(2, 70, dtype=torch.bool)
        rmia = ATTACKS["rmia"].with_settings({"offline": 0.3})
        with_references = rmia.with_references(seen.references, seen.target, never)
        again = with_references.scores(seen.measured, seen.target).numpy()
        np.testing.assert_allclose(again, answers.by_attack["rmia"], rtol=1e-12)


def test_a_suite_is_extended_and_not_replaced(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_suite(built)
    lines: list[str] = []
    monkeypatch.setattr(building, "regime_names", lambda: ["first", "second"])
    stopped = built / "build" / "synthetic"
    stopped.mkdir(parents=True)
    after = build_suite(built, log=lines.append)
    # Another regime that was stopped can still be continued.
    assert stopped.is_dir()
    assert f"first: already in {built}" in lines
    assert after.recordings[:2] == before.recordings
    assert [regime.name for regime in after.regimes] == ["first", "second"]
    with pytest.raises(BadInput, match="has a benchmark with the seed 1"):
        build_suite(built, seed=5)


def test_another_seed_draws_membership_again(built: Path, tmp_path: Path) -> None:
    build_suite(tmp_path / "other", seed=101)
    first = read_answers(built / "answers" / "first-1.safetensors").is_member
    other = read_answers(tmp_path / "other" / "answers" / "first-101.safetensors").is_member
    assert not np.array_equal(first, other)


def test_regimes_without_data_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="mnist"):
        build_suite(tmp_path / "suite", ["mnist"], data_dir=tmp_path)


def test_a_folder_with_other_files_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"has other files, such as 'notes.txt'"):
        build_suite(tmp_path, ["digits"])
    assert [path.name for path in tmp_path.iterdir() if path.name != "lock"] == ["notes.txt"]
