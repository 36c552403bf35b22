"""What optional tables add to a run: one extension a table, with hooks from set-up to record."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fedaudit.attacks.catalog import attack_named
from fedaudit.core.progress import Progress
from fedaudit.datasets.dataset import Dataset
from fedaudit.observe.round import Round
from fedaudit.observe.views import view_named
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ControlResult
from fedaudit.study.running.identity import run_key
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from fedaudit.study.settings.optional import OPTIONAL
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup import build
from fedaudit.study.setup.build import EXTENSIONS, setup
from fedaudit.study.setup.parts import Conclusion, Extension, Means, MeasuredRun, Scores, Setup
from tests.study.studies import quick_study


def test_every_optional_table_has_one_extension_and_a_study_a_place_for_it() -> None:
    named = [kind.table for kind in EXTENSIONS if kind.table]
    assert sorted(named) == sorted(OPTIONAL)
    for name in OPTIONAL:
        assert Study.model_fields[name].default is None


@pytest.mark.parametrize("kind", EXTENSIONS, ids=lambda kind: kind.__name__)
def test_without_its_table_an_extension_changes_nothing(kind: type[Extension]) -> None:
    study, view = quick_study(), view_named("uploads")
    run = setup(study, 1, None)
    assert run.extensions == ()
    assert kind.added(run, run.dataset) is run
    assert kind.seen(study, view) is view
    attack = attack_named("fedmia-2")
    assert kind.informed(study, attack) is attack
    assert kind.measured_in(study) == set()


@dataclass(frozen=True)
class Counted(Extension):
    """Counts the rounds of a run, and how often it was asked to fit anything."""

    fits: int = 0

    @classmethod
    def added(cls, run: Setup, dataset: Dataset) -> Setup:
        return run.extended(cls())

    def watching(
        self, rounds: Iterator[Round], run: Setup, folder: Path, key: str, progress: Progress
    ) -> Iterator[Round]:
        for round in rounds:
            with (folder / "counted.txt").open("a") as file:
                file.write(f"{key} {round.index}\n")
            yield round

    def fitted(self, run: Setup, means: Means) -> Setup:
        return run.extended(replace(self, fits=self.fits + 1))

    @classmethod
    def concluded(cls, found: Sequence[MeasuredRun], scores: Scores) -> Conclusion:
        figures = []
        for one in found:
            lines = (one.place / "counted.txt").read_text().splitlines()
            assert {line.split()[0] for line in lines} == {one.key}
            figures.append(Estimate(metric="rounds", seed=one.run.seed, value=len(lines)))
        fits = {one.extension(Counted).fits for one in found}
        attacks = {name for _, _, name in scores}
        note = f"{len(found)} runs, {len(attacks)} attacks"
        passed = ControlResult(
            control="counted", expected="one fit a run", value=None, passed=fits == {1}, note=note
        )
        return Conclusion(figures, [passed])

    def untested(self) -> str:
        return "Rounds that nobody counted."


def test_an_extension_is_asked_from_the_first_round_to_the_record_and_again_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = quick_study(seeds=(1, 2))
    plain = run_study(study, tmp_path / "plain")
    monkeypatch.setattr(build, "EXTENSIONS", (*EXTENSIONS, Counted))
    assert [type(one) for one in setup(study, 1, None).extensions] == [Counted]
    found = run_study(study, tmp_path / "counted")
    again = reattack(tmp_path / "counted", ["blackbox-loss"], tmp_path / "again")
    for record, attacks in ((found, 2), (again, 1)):
        counted = [one for one in record.estimates if one.metric == "rounds"]
        assert [(one.seed, one.value) for one in counted] == [(1, 4), (2, 4)]
        (control,) = (one for one in record.controls if one.control == "counted")
        assert (control.passed, control.note) == (True, f"2 runs, {attacks} attacks")
        assert "Rounds that nobody counted." in record.untested
    others = [one for one in found.estimates if one.metric != "rounds"]
    assert others == plain.estimates
    assert run_key(study, 1) == run_key(setup(study, 1, None).study, 1)


def test_a_second_extension_of_a_kind_takes_the_place_of_the_first() -> None:
    run = setup(quick_study(), 1, None).extended(Counted()).extended(Counted(fits=3))
    assert run.extensions == (Counted(fits=3),)
    assert run.extension(Counted) == Counted(fits=3)


def test_attacks_are_taken_out_with_a_reason() -> None:
    run = setup(quick_study(), 1, None).without_attacks({"loss-series": "not today"})
    assert list(run.attacks) == ["blackbox-loss"]
    assert run.refused["loss-series"] == "not today"
