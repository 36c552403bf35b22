"""Default attacks of studies, which do not depend on new catalogue entries."""

import json
from pathlib import Path

import pytest

from fedaudit.attacks import (
    ATTACK_SETS,
    ATTACKS,
    DEFAULT_SET,
    SET_SETTINGS,
    SOURCE_ATTACKS,
    attack_set,
)
from fedaudit.attacks.base import Attack
from fedaudit.attacks.rules import Mean
from fedaudit.core.errors import BadInput, NotVisible
from fedaudit.core.tasks import CLASSIFICATION
from fedaudit.live.setup import attacks_in
from fedaudit.observe.views import VIEWS
from fedaudit.plan import sections
from fedaudit.plan.identity import settings_of
from fedaudit.report.reproducing import reproduction_steps
from fedaudit.results.record import Record
from fedaudit.signals.outputs import Confidence
from fedaudit.study.build import build_setup
from fedaudit.study.comparing import rows_of
from fedaudit.study.running.folder import find_additions
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.study.studies import Carried, quick_study, small_study

NEW = Attack((Confidence(),), Mean(), "nobody", "A member's class is likely over the rounds.")


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue with one attack more."""
    monkeypatch.setitem(ATTACKS, "avg-confidence", NEW)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, longer: None) -> None:
    """A version whose default set has one attack more."""
    monkeypatch.setitem(ATTACK_SETS, "2030-1", ("loss-series", "avg-confidence"))
    monkeypatch.setattr(sections, "DEFAULT_SET", "2030-1")


def figures(record: Record) -> list[str]:
    return [figure.model_dump_json() for figure in record.findings]


@pytest.mark.slow
def test_new_attacks_do_not_change_default_studies(
    small: Carried, longer: None, tmp_path: Path
) -> None:
    record = run_study(small_study(), tmp_path)
    assert figures(record) == figures(small.record)
    assert record.attacks == small.record.attacks
    assert record.content_hash == small.record.content_hash


def test_new_attacks_run_on_request(longer: None, tmp_path: Path) -> None:
    record = run_study(quick_study(attacks={"avg-confidence": {}}), tmp_path)
    assert {figure.attack for figure in record.findings if figure.attack} == {"avg-confidence"}


@pytest.mark.usefixtures("longer")
def test_new_attacks_are_not_recorded_by_default() -> None:
    possible, refused = attacks_in(VIEWS["uploads"], (), CLASSIFICATION)
    assert {*possible, *refused} == set(ATTACK_SETS[DEFAULT_SET])


def test_global_model_attacks_are_refused_for_clustered_models() -> None:
    run = build_setup(quick_study(attacks={}, algorithm={"name": "ifca"}), 1, None)
    for name in ("fta-c-global", "fta-l-global"):
        assert "the next global model" in run.refused[name]
        assert "with one global model" in run.refused[name]
        assert name.removesuffix("-global") in run.attacks
    study = quick_study(attacks={"fta-l-global": {}}, algorithm={"name": "ifca"})
    with pytest.raises(NotVisible, match="'fta-l-global' needs the next global model"):
        build_setup(study, 1, None)


def test_global_model_attacks_run_in_every_view_of_rounds() -> None:
    for view in ("uploads", "sum", "globals"):
        possible, _ = attacks_in(VIEWS[view], (), CLASSIFICATION)
        assert {"fta-c-global", "fta-l-global"} <= possible.keys()
    _, refused = attacks_in(VIEWS["final"], (), CLASSIFICATION)
    assert "several rounds" in refused["fta-c-global"]


def test_published_attack_sets_are_fixed() -> None:
    membership = (
        "blackbox-loss grad-cosine grad-norm grad-diff loss-series avg-cosine fedmia-1 fedmia-2 "
        "fta-c fta-l seqmia loss-series-aware fedmia-2-aware"
    )
    sources = "sia sia-mean sia-product sia-likelihood sia-cosine"
    assert ATTACK_SETS["2026-1"] == tuple(f"{membership} {sources}".split())
    calibrated = "rmia rmia-series lira lira-series"
    assert ATTACK_SETS["2026-2"] == (*ATTACK_SETS["2026-1"], *calibrated.split())
    assert ATTACK_SETS["2026-3"] == (*ATTACK_SETS["2026-2"], "fta-c-global", "fta-l-global")


def test_attack_sets_fix_the_settings_of_attacks() -> None:
    for name in ("rmia", "rmia-series"):
        assert attack_set("2026-2")[name].settings()["offline"] == 0.3
        assert attack_set(DEFAULT_SET)[name].settings()["offline"] == -1
    assert attack_set("2026-2")["rmia-series"].settings()["rounds"] == "mean"
    # The default set uses the settings of the catalogue.
    assert DEFAULT_SET not in SET_SETTINGS


def test_a_study_can_add_attacks_only_with_the_settings_of_its_set() -> None:
    before = quick_study(attacks={}, attack_set="2026-2")
    every = {name: SET_SETTINGS["2026-2"].get(name, {}) for name in ATTACK_SETS["2026-2"]}
    same = quick_study(attacks={**every, "stacked": {}})
    other = quick_study(attacks={**every, "stacked": {}, "rmia": {}})
    grown = find_additions(before, same)
    assert grown is not None
    assert grown.attacks == ["stacked"]
    assert find_additions(before, other) is None


@pytest.mark.parametrize("name", ATTACK_SETS)
def test_attack_sets_list_catalogued_attacks_once(name: str) -> None:
    names = ATTACK_SETS[name]
    assert len(set(names)) == len(names)
    assert set(names) <= set(ATTACKS | SOURCE_ATTACKS)


def test_the_record_contains_the_default_attack_set(small: Carried) -> None:
    assert small.record.config["attack_set"] == DEFAULT_SET
    assert quick_study().attack_set == ""


def test_a_study_can_select_another_attack_set(later: None, tmp_path: Path) -> None:
    record = run_study(quick_study(attacks={}, attack_set="2030-1"), tmp_path)
    assert {row.name for row in record.attacks} == set(ATTACK_SETS["2030-1"])
    assert small_study().attack_set == "2030-1"


def test_an_unknown_set_or_a_set_with_single_attacks_raises(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"attack_set is '2026-1', but \[attacks\] lists"):
        quick_study(attack_set="2026-1")
    with pytest.raises(BadInput, match="no set of attacks named '2026-01'; did you mean '2026-1'"):
        run_study(quick_study(attacks={}, attack_set="2026-01"), tmp_path)


def test_older_studies_without_sets_keep_their_identity() -> None:
    assert "attack_set" not in settings_of(small_study(attack_set="2026-1"))
    assert settings_of(small_study())["attack_set"] == DEFAULT_SET
    assert "attack_set" not in settings_of(quick_study())
    assert settings_of(small_study(attack_set="2030-1"))["attack_set"] == "2030-1"


@pytest.mark.slow
def test_older_recordings_are_reattacked_with_their_attack_set(later: None, tmp_path: Path) -> None:
    recording = tmp_path / "run"
    before = run_study(small_study(attack_set="2026-1"), recording)
    document = json.loads((recording / "study.json").read_text())
    del document["attack_set"]
    (recording / "study.json").write_text(json.dumps(document))
    record = reattack(recording, [], tmp_path / "again")
    assert figures(record) == figures(before)
    assert record.content_hash == before.content_hash


def test_study_files_of_older_records_name_their_attack_set(small: Carried, later: None) -> None:
    older = {name: value for name, value in small.record.config.items() if name != "attack_set"}
    record = small.record.model_copy(update={"config": older})
    assert 'attack_set = "2026-1"' in reproduction_steps(record).study


def test_the_attack_set_is_no_setting_of_a_comparison(small: Carried) -> None:
    other = {**small.record.config, "attack_set": "2030-1"}
    rows = rows_of([small.record, small.record.model_copy(update={"config": other})])
    assert [row.settings for row in rows] == [{}, {}]
