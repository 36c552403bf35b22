"""Impossible variants raise before any training."""

from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.core.tasks import Task
from fedaudit.datasets.dataset import Dataset
from fedaudit.plan.sections import DataSection
from fedaudit.study.build import dataset_of, raise_if_misfits
from tests.programs import exit_code
from tests.study.studies import small_study

COFEDMID = {"name": "cofedmid", "clients": [0, 1], "options": {"m_max": 12}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audit": {"draw": "siaa"}}, "did you mean 'sia'"),
        (
            {"audit": {"draw": "sia", "options": {"per_client": 0}}},
            "per_client is 0; give at least 1",
        ),
        ({"audit": {"targets": [9]}}, "9"),
        ({"partition": {"clients": 4, "samples_per_client": 10**6}}, "samples"),
        ({"defense": COFEDMID}, "m_max is a number of classes from 1 to 10"),
        (
            {"defense": {"name": "relaxloss", "options": {"target_los": 0.5}}},
            "no setting of the defense 'relaxloss' named 'target_los'; did you mean 'target_loss'.*"
            "needs target_loss",
        ),
        ({"algorithm": {"name": "fedsgd"}}, "needs epochs 1"),
        ({"algorithm": {"name": "legacy-fedsgd"}}, "one local epoch in mini-batches"),
        ({"data": {"name": "digits", "classes": [3]}}, "give at least two classes"),
        ({"attacks": {"projres": {"layer": "9"}}}, "attack 'projres': there is no trained linear"),
    ],
)
def test_settings_that_do_not_fit_the_data_raise_with_the_variant(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=f"^wrong: .*{message}"):
        raise_if_misfits([small_study(), small_study(name="wrong", **changes)])


def test_data_that_points_share_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(section: DataSection, task: Task, seed: int, data_dir: Path | None) -> Dataset:
        read.append(section.name)
        return dataset_of(section, task, seed, data_dir)

    monkeypatch.setattr("fedaudit.study.build.dataset_of", counted)
    raise_if_misfits([small_study(), small_study(training={"rounds": 5}), small_study()])
    assert read == ["digits"]


def test_an_impossible_variant_prevents_all_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text('name = "some"\n[variants.bad]\n"partition.clients" = 5000\n')
    assert exit_code("run", study, "--variant", "all", "--out", out) == 2
    assert "some-bad: " in capsys.readouterr().err
    assert not out.exists()
