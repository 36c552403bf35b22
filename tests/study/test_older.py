"""Settings of older studies keep their meaning."""

import json
import tomllib

import pytest

from fedaudit.attacks import ATTACK_SETS, ATTACKS
from fedaudit.core.values import Capability
from fedaudit.observe.views import VIEWS
from fedaudit.plan.identity import config_of, run_key, settings_of
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from
from fedaudit.report.reproducing import reproduction_steps
from fedaudit.results.older import (
    DEFAULT_REFERENCES,
    REFERENCE_ATTACKS,
    RMIA_ATTACKS,
    SHADOW_ATTACKS,
    resolve_older_settings,
)
from fedaudit.results.read import read_record
from fedaudit.study.build import with_derived_settings
from results.archives import unpacked
from tests.study.studies import small_study

RECORDS = unpacked()
NOISE = {"name": "gradient-noise", "options": {"sigma": 0.01}}
NAMED = {"loss-series": {}, "seqmia": {}, "rmia": {}, "lira": {}, "rmia-series": {"offline": 0.7}}


def older(study: Study) -> dict[str, object]:
    """Settings of a study as a version wrote them that knew no ``audit.sources``."""
    config = config_of(with_derived_settings(study))
    audit = config["audit"]
    assert isinstance(audit, dict)
    return {**config, "audit": {name: audit[name] for name in audit if name != "sources"}}


def test_older_reference_federations_are_undefended_by_default() -> None:
    restored = study_from(resolve_older_settings(older(small_study(defense=NOISE, attacks=NAMED))))
    assert restored.shadow is not None
    assert restored.references is not None
    assert (restored.shadow.defense, restored.references.defense) == ("none", "none")


def test_a_study_of_this_version_keeps_its_defaults() -> None:
    study = with_derived_settings(small_study(defense=NOISE, attacks=NAMED))
    assert study_from(resolve_older_settings(config_of(study))) == study


@pytest.mark.parametrize(
    ("attacks", "tables"),
    [
        ({"loss-series": {}}, set()),
        ({"seqmia": {}}, {"shadow"}),
        ({"stacked": {}, "loss-series": {}}, {"shadow"}),
        ({"lira-series": {}}, {"references"}),
        ({}, set()),
    ],
)
def test_only_tables_that_attacks_need_are_added(
    attacks: dict[str, object], tables: set[str]
) -> None:
    settings = resolve_older_settings(older(small_study(defense=NOISE, attacks=attacks)))
    assert {name for name in ("shadow", "references") if settings[name] is not None} == tables


def test_undefended_studies_of_older_versions_keep_settings_and_runs() -> None:
    for defense in ({}, {"name": "none"}):
        attacks: dict[str, object] = {"seqmia": {}, "lira": {}}
        study = small_study(defense=defense, attacks=attacks, audit={"sources": 0})
        back = study_from(resolve_older_settings(older(study)))
        assert settings_of(back) == settings_of(study)
        assert run_key(back, 1) == run_key(study, 1)


def test_default_references_of_older_versions_are_undefended() -> None:
    default_set, views = DEFAULT_REFERENCES
    for view in VIEWS:
        study = small_study(defense=NOISE, attacks={}, attack_set=default_set)
        study = study.model_copy(update={"audit": study.audit.model_copy(update={"view": view})})
        settings = resolve_older_settings(older(study))
        assert (settings["references"] == {"defense": "none"}) == (view in views)
    earlier = small_study(defense=NOISE, attacks={}, attack_set="2026-1")
    assert resolve_older_settings(older(earlier))["references"] is None


def test_rmia_of_older_versions_has_the_older_default_slope() -> None:
    attacks = resolve_older_settings(older(small_study(attacks=NAMED)))["attacks"]
    assert isinstance(attacks, dict)
    assert attacks["rmia"] == {"offline": 0.3}
    assert attacks["rmia-series"] == {"offline": 0.7}
    assert attacks["lira"] == attacks["seqmia"] == {}
    assert list(attacks) == list(NAMED)


def test_older_reference_attacks_still_need_references() -> None:
    assert {name for name, attack in ATTACKS.items() if attack.learns} == SHADOW_ATTACKS
    assert {
        name for name, attack in ATTACKS.items() if attack.needs_references
    } == REFERENCE_ATTACKS
    assert {
        name for name, attack in ATTACKS.items() if "offline" in attack.settings()
    } == RMIA_ATTACKS
    default_set, views = DEFAULT_REFERENCES
    assert set(ATTACK_SETS[default_set]) >= REFERENCE_ATTACKS
    assert {name for name, view in VIEWS.items() if Capability.UPLOADS not in view.offers} == set(
        views
    )


def test_the_study_file_of_a_committed_record_has_its_undefended_shadow() -> None:
    path = RECORDS / "cofedmid-adaptive" / "cofedmid-adaptive-cofedmid-half.json"
    values = tomllib.loads(reproduction_steps(read_record(path)).study)
    assert "seqmia" in values["attacks"]
    assert values["shadow"] == {"defense": "none"}


def test_the_study_file_of_a_committed_record_has_its_slope() -> None:
    path = RECORDS / "unlearning-location30" / "unlearning-location30.json"
    record = read_record(path)
    assert json.loads(json.dumps(record.config))["attacks"]["rmia"] == {}
    assert tomllib.loads(reproduction_steps(record).study)["attacks"]["rmia"] == {"offline": 0.3}
