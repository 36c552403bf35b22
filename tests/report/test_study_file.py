import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.api.target_names import read_study
from fedaudit.plan.sections import Study
from fedaudit.report.page import report_html
from fedaudit.report.reproducing import reproduction_steps, study_file
from tests.estimates import changed
from tests.report.records import hostile, record

PLAIN = st.booleans() | st.integers(-(10**12), 10**12) | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_study_files_restore_all_settings(settings: dict[str, object]) -> None:
    assert tomllib.loads(study_file(settings)) == settings


def test_settings_without_a_value_are_left_out() -> None:
    assert study_file({"a": None, "b": {"c": None, "d": [1, None]}}) == "[b]\nd = [1]\n"


def test_a_study_is_the_same_study_after_a_record_and_its_file(tmp_path: Path) -> None:
    study = Study.model_validate(
        {
            "name": "mine",
            "about": 'quotes " and \\ and \n lines',
            "seeds": (1, 2),
            "training": {"lr": 1e-5},
            "defense": {
                "name": "gradient-noise",
                "clients": (0,),
                "options": {"sigma": 0.1},
                "chain": [{"name": "sparsify", "options": {"drop": 0.5}}],
            },
            "attacks": {"fedmia-1": {}},
        }
    )
    path = tmp_path / "study.toml"
    path.write_text(study_file(study.model_dump(mode="json")), encoding="utf-8")
    assert read_study(path) == study


@pytest.mark.parametrize("char", ["\u202e", "\x00", "\ud800", "\u2028", "\u200f", "\x7f"])
def test_characters_that_would_not_show_become_escapes(char: str) -> None:
    text = study_file({f"k{char}": f"v{char}"})
    assert char not in text
    tomllib.loads(text)


def test_study_files_mention_a_required_data_folder() -> None:
    bundled = record(details=False)
    assert reproduction_steps(bundled).command == "fedaudit run study.toml"
    other = changed(bundled, config={"data": {"name": "mnist"}})
    assert reproduction_steps(other).command == "fedaudit run study.toml --data-dir FOLDER"
    assert reproduction_steps(other).data == "mnist"


def test_settings_of_a_hostile_record_are_still_a_toml_file() -> None:
    tomllib.loads(reproduction_steps(hostile()).study)


@pytest.mark.parametrize(
    ("section", "name"), [("data", "samples#e7693da4"), ("model", "__main__:Net")]
)
def test_objects_of_a_script_need_the_script(section: str, name: str) -> None:
    config = record().config | {section: {"name": name, "options": {}}}
    recipe = reproduction_steps(record().model_copy(update={"config": config}))
    assert recipe.of_script
    assert not recipe.study
    page = report_html(record().model_copy(update={"config": config}))
    assert "objects of a script or notebook" in page
