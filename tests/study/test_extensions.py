"""Extensions: one per optional table of a study."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path

import pytest
from torch import nn

import fedaudit as fa
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.progress import Progress, ignore_progress
from fedaudit.core.seeds import seed_for
from fedaudit.datasets.dataset import Dataset
from fedaudit.extensions import extensions_of
from fedaudit.extensions.secure_sum import SUMS_FILE
from fedaudit.fl.canary import CANARIES_FILE
from fedaudit.fl.simulate import simulate
from fedaudit.observe.round import Round
from fedaudit.observe.views import view_named
from fedaudit.plan.identity import run_key
from fedaudit.plan.optional import OPTIONAL_SECTIONS
from fedaudit.plan.parts import Extension, ExtensionResults, FitContext, MeasuredRun, Scores, Setup
from fedaudit.plan.sections import Study
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ControlResult
from fedaudit.study import build
from fedaudit.study.build import build_setup, resolve, with_derived_settings
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.study.studies import quick_study

NOISE = {"name": "client-dp", "options": {"clip": 0.5, "noise_multiplier": 1.0}}


def test_every_optional_table_has_an_extension() -> None:
    kinds = [
        kind
        for name in OPTIONAL_SECTIONS
        for kind in resolve(quick_study(**TABLES[name])).extensions
    ]
    assert [kind.table for kind in kinds] == list(OPTIONAL_SECTIONS)
    for name, section in OPTIONAL_SECTIONS.items():
        assert Study.model_fields[name].default is None
        assert signature(fa.AuditOptions).parameters[name].default is None
        assert getattr(fa, section.python_name().removeprefix("fedaudit.")) is section


TABLES: dict[str, dict[str, object]] = {
    "attacker": {
        "attacker": {"first": 2}, "attacks": {"recovery": {}}, "audit": {"view": "globals"}
    },
    "canaries": {"canaries": {"count": 40}, "defense": NOISE},
    "label_inference": {
        "label_inference": {}, "attacks": {"blackbox-loss": {}},
        "partition": {"scheme": "dirichlet", "options": {"beta": 0.1}},
    },
    "references": {
        "references": {"count": 1}, "attacks": {"rmia": {}}, "audit": {"view": "final"}
    },
    "secure_sum": {
        "secure_sum": {"draws": 80}, "attacks": {"blackbox-loss": {}}, "audit": {"view": "sum"}
    },
    "shadow": {"shadow": {"mode": "known-split", "known": 40}, "attacks": {"seqmia": {}}},
    "unlearning": {
        "unlearning": {}, "attacks": {"blackbox-loss": {}}, "audit": {"view": "final"}
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("table", OPTIONAL_SECTIONS)
def test_an_extension_keeps_every_round_and_leaves_the_run_as_it_is(
    table: str, tmp_path: Path
) -> None:
    """What it does to rounds and clients, it does to them alone."""
    run = build_setup(quick_study(**TABLES[table]), 1, None)
    (extension,) = run.extensions
    assert extension.table == table
    everybody = run.all_clients
    rounds = simulate(
        everybody.algorithm,
        everybody.data,
        rounds=run.study.training.rounds,
        seed=seed_for(1, "federation"),
        defenses=everybody.defenses,
    )
    seen = list(
        extension.watch(iter(rounds), replace(run, folder=tmp_path), "a key", ignore_progress)
    )
    assert [round_seen.index for round_seen in seen] == list(
        range(1, run.study.training.rounds + 1)
    )
    for round_seen in seen:
        assert set(round_seen.uploads) == set(run.assignment.clients)
        assert sum(round_seen.weights.values()) == pytest.approx(1)
    assert set(everybody.data) == {*run.assignment.clients, *extension.clients}
    others = set(run.assignment.clients) - {getattr(extension, "client", None)}
    assert all(everybody.defenses.get(client) == run.defenses.get(client) for client in others)
    assert run_key(run.study, 1) != run_key(quick_study(), 1) or not extension.clients
    for federation in extension.federations:
        assert federation.is_auxiliary
        assert not federation.extensions
        assert not any(getattr(federation.study, name) for name in OPTIONAL_SECTIONS)


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        (fa.Canaries, r"fedaudit\.Canaries without \(\)"),
        (fa.Unlearning(), r"fedaudit\.Unlearning$"),
        ({"count": 50}, "a dict"),
    ],
)
def test_invalid_table_settings_raise(settings: object, got: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=rf"must be fedaudit\.Canaries\(\.\.\.\), got {got}"):
        fa.audit(fa.Federation("digits"), options=fa.AuditOptions(canaries=settings), out=tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1e7, float("inf"), -1.0])
def test_canaries_too_long_for_single_precision_are_refused(
    length: float,
) -> None:
    with pytest.raises(BadInput, match="length"):
        fa.Canaries(length=length)
    with pytest.raises(BadInput, match="at most 1e"):
        fa.CanaryClients(nn.Linear(2, 2), count=20, length=length)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "file"), [("canaries", CANARIES_FILE), ("secure_sum", SUMS_FILE)]
)
def test_missing_and_foreign_files_are_refused_with_a_rerun(
    table: str, file: str, tmp_path: Path
) -> None:
    study = quick_study(**TABLES[table])
    run_study(study, tmp_path)
    (stored_file,) = tmp_path.glob(f"*/{file}")
    stored_file.unlink()
    message = r"is missing, damaged or from another run; delete .*seed-1 and run"
    with pytest.raises(Damaged, match=message):
        run_study(study, tmp_path)
    with pytest.raises(Damaged, match=message):
        reattack(tmp_path, [], tmp_path / "again")


def test_a_study_without_tables_has_no_extension() -> None:
    parts = resolve(quick_study())
    assert parts.extensions == ()
    assert parts.view == view_named("uploads")
    assert build_setup(quick_study(), 1, None).extensions == ()


@pytest.mark.parametrize(
    ("changes", "table"),
    [
        ({"attacks": {"seqmia": {}}}, "shadow"),
        ({"attacks": {"rmia": {}}, "audit": {"view": "final"}}, "references"),
        ({"attacks": {}, "audit": {"view": "final"}}, "references"),
    ],
)
def test_attacks_ask_for_the_federations_that_they_need(
    changes: dict[str, object], table: str
) -> None:
    assert [kind.table for kind in resolve(quick_study(**changes)).extensions] == [table]


@dataclass(frozen=True)
class Counted(Extension):
    """Counts the rounds of a run, and how often it was asked to fit anything."""

    fits: int = 0

    @classmethod
    def add_to(cls, run: Setup, dataset: Dataset) -> Setup:
        return run.with_extension(cls())

    def watch(
        self, rounds: Iterator[Round], run: Setup, key: str, progress: Progress
    ) -> Iterator[Round]:
        for round in rounds:
            with (run.folder / "counted.txt").open("a") as file:
                file.write(f"{key} {round.index}\n")
            yield round

    def fit(self, run: Setup, context: FitContext) -> Setup:
        return run.with_extension(replace(self, fits=self.fits + 1))

    @classmethod
    def evaluate(cls, runs: Sequence[MeasuredRun], scores: Scores) -> ExtensionResults:
        figures = []
        for measured in runs:
            lines = (measured.run.folder / "counted.txt").read_text().splitlines()
            assert {line.split()[0] for line in lines} == {measured.key}
            figures.append(Estimate(metric="rounds", seed=measured.run.seed, value=len(lines)))
        fits = {measured.extension(Counted).fits for measured in runs}
        attacks = {name for _, _, name in scores}
        note = f"{len(runs)} runs, {len(attacks)} attacks"
        passed = ControlResult(
            control="counted", expected="one fit a run", value=None, passed=fits == {1}, note=note
        )
        return ExtensionResults(figures, [passed])

    def untested(self) -> str:
        return "Rounds that nobody counted."


@pytest.mark.slow
def test_extensions_are_called_in_every_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = quick_study(seeds=(1, 2))
    plain = run_study(study, tmp_path / "plain")
    monkeypatch.setattr(
        build, "extensions_of", lambda *arguments: (*extensions_of(*arguments), Counted)
    )
    assert [type(extension) for extension in build_setup(study, 1, None).extensions] == [Counted]
    result = run_study(study, tmp_path / "counted")
    reattacked = reattack(tmp_path / "counted", ["blackbox-loss"], tmp_path / "again")
    for record, attacks in ((result, 2), (reattacked, 1)):
        counted = [estimate for estimate in record.estimates if estimate.metric == "rounds"]
        assert [(extension.seed, extension.value) for extension in counted] == [(1, 4), (2, 4)]
        (control,) = (control for control in record.controls if control.control == "counted")
        assert (control.passed, control.note) == (True, f"2 runs, {attacks} attacks")
        assert "Rounds that nobody counted." in record.untested
    others = [estimate for estimate in result.estimates if estimate.metric != "rounds"]
    assert others == plain.estimates
    assert run_key(with_derived_settings(study), 1) == run_key(build_setup(study, 1, None).study, 1)


def test_a_second_extension_of_a_kind_replaces_the_first() -> None:
    run = (
        build_setup(quick_study(), 1, None)
        .with_extension(Counted())
        .with_extension(Counted(fits=3))
    )
    assert run.extensions == (Counted(fits=3),)
    assert run.extension(Counted) == Counted(fits=3)


def test_removed_attacks_are_listed_with_a_reason() -> None:
    run = build_setup(quick_study(), 1, None).without_attacks({"loss-series": "not today"})
    assert list(run.attacks) == ["blackbox-loss"]
    assert run.refused["loss-series"] == "not today"
