"""Options cannot replace arguments that the program passes itself."""

import re
from collections.abc import Iterator
from typing import cast

import pytest

from fedaudit.algorithms import ALGORITHMS
from fedaudit.catalogue import CATALOGUES
from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.core.importing import call_reporting_errors
from fedaudit.datasets.catalog import FORMATS, GENERATED, load
from fedaudit.datasets.draws.fair import DRAWS
from fedaudit.datasets.partitions.schemes import PARTITIONS
from fedaudit.defenses import DEFENSES
from fedaudit.models import MODELS
from fedaudit.plan.games import GameStudy
from fedaudit.plan.sections import Study
from fedaudit.plan.values import settings_from, study_from
from fedaudit.study.build import build_setup

NAMES = (
    *("seed", "data_dir", "shape", "classes", "task", "clients", "partition", "targets"),
    *("samples_per_client", "coalition", "n_fair", "kind", "name", "make", "given", "options"),
    *("self", "settings", "dataset", "path", "folder", "rest", "members", "unit", "background"),
)
"""Parameters of the functions by which options go from a study to a part, and what is beside."""

SMALL: dict[str, object] = {
    "name": "small",
    "data": {"name": "synthetic", "options": {"samples": 400}},
    "partition": {"clients": 4, "samples_per_client": 20},
    "training": {"rounds": 1},
    "audit": {"fair": 20},
    "attacks": {"blackbox-loss": {}},
}

PARTS = {
    "data": [*GENERATED, "hf:x", *(f"{kind}:x" for kind in FORMATS)],
    "partition": [*PARTITIONS],
    "model": [*MODELS],
    "algorithm": [*ALGORITHMS],
    "audit": [draw for draw in DRAWS if draw != "fair"],
    "defense": [*DEFENSES],
}
KEYS = {"partition": "scheme", "audit": "draw"}


def study(section: str, part: str, name: str, value: object = 1) -> dict[str, object]:
    base = dict(SMALL)
    section_settings = {
        **cast(dict[str, object], base.get(section, {})),
        KEYS.get(section, "name"): part,
    }
    return {**base, section: {**section_settings, "options": {name: value}}}


def passed_by_the_program() -> Iterator[tuple[str, str]]:
    sections = {field: info.annotation for field, info in Study.model_fields.items()}
    for field, section in sections.items():
        for name in getattr(section, "set_elsewhere", ()):
            yield field, name


@pytest.mark.parametrize(("section", "name"), [*passed_by_the_program()])
def test_an_option_with_its_own_setting_is_refused_with_advice(section: str, name: str) -> None:
    for part in PARTS[section]:
        with pytest.raises(BadInput, match=rf"options\.{name} is not allowed, .* set ") as refused:
            study_from(study(section, part, name))
        assert "\n" not in str(refused.value)
        assert section in str(refused.value)


@pytest.mark.parametrize("section", PARTS)
def test_a_refusal_offers_no_setting_that_would_be_refused(section: str) -> None:
    elsewhere = {name for field, name in passed_by_the_program() if field == section}
    for part in (part for part in PARTS[section] if ":" not in part and part != "none"):
        with pytest.raises(BadInput) as refused:
            build_setup(study_from(study(section, part, "nothing_such")), 0, None)
        offered = re.findall(r"\w+", str(refused.value).rpartition("known: ")[2])
        assert not elsewhere & set(offered), str(refused.value)


def test_sections_list_options_that_are_set_elsewhere() -> None:
    fields = {field for field, _ in passed_by_the_program()}
    assert fields == set(PARTS)


@pytest.mark.parametrize(
    "table",
    [
        {"mechanism": {"name": "bitrand", "options": {"coalition": 1}}},
        {"rounds": {"defense": "cofedmid", "options": {"coalition": 1}}},
        {"records": {"data": {"name": "synthetic", "options": {"seed": 1}}}},
        {"data": {"name": "synthetic", "options": {"seed": 1}}},
    ],
)
def test_games_refuse_options_that_are_set_elsewhere(table: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        settings_from({"name": "x", **table}, GameStudy)


@pytest.mark.parametrize(
    "table",
    [
        {"models": [{"name": "mlp", "options": {"classes": 3}}]},
        {"model": {"name": "mlp"}, "pretraining": {"data": {"options": {"seed": 1}}}},
        {"defense": {"also": [{"name": "mixup", "clients": [1], "options": {"coalition": 1}}]}},
        {"defense": {"chain": [{"name": "mixup", "options": {"coalition": 1}}]}},
    ],
)
def test_nested_tables_refuse_options_that_are_set_elsewhere(table: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=r"options\.\w+ is not allowed"):
        study_from({**SMALL, **table})


@pytest.mark.slow
@pytest.mark.parametrize("section", PARTS)
def test_any_option_name_of_any_part_is_refused_cleanly(section: str) -> None:
    """Every part of every catalogue, with every name of a parameter on the way to it."""
    build_setup(study_from(SMALL), 0, None)
    for part in PARTS[section]:
        for name in NAMES:
            try:
                build_setup(study_from(study(section, part, name)), 0, None)
            except FedauditError:
                continue


@pytest.mark.parametrize("name", ["kind", "name", "make", "given"])
def test_a_custom_part_may_have_settings_of_any_name(name: str) -> None:
    def own(**settings: int) -> dict[str, int]:
        return settings

    assert call_reporting_errors("model", "own:own", own, **{name: 3}) == {name: 3}


def test_the_catalogue_lists_no_setting_that_is_refused() -> None:
    kinds = {"model": "models", "algorithm": "algorithms", "defense": "defenses", "data": "data"}
    refused = {(kinds[s], name) for s, name in passed_by_the_program() if s in kinds}
    listed = {
        (kind, option.name)
        for kind in kinds.values()
        for entry in CATALOGUES[kind]()
        for option in entry.settings
    }
    assert not refused & listed


def test_a_data_set_by_name_still_takes_its_seed_in_python() -> None:
    assert len(load("synthetic", seed=3, samples=400).train) > 0
