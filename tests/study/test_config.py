from pathlib import Path

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.plan.base import Section
from fedaudit.plan.file import chosen_studies, read_studies
from fedaudit.plan.games import GameStudy
from fedaudit.plan.sections import Study
from fedaudit.plan.values import study_from

TWO = """
name = "sizes"
[training]
rounds = 5
[variants.small]
"training.rounds" = 2
[variants.large]
"training.rounds" = 50
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.toml"
    path.write_text(TWO)
    return path


def test_a_variant_changes_its_settings_and_its_name(file: Path) -> None:
    rounds_by_name = {study.name: study.training.rounds for study in read_studies(file)}
    assert rounds_by_name == {"sizes": 5, "sizes-small": 2, "sizes-large": 50}


def test_variants_are_found_after_renaming_the_study(file: Path) -> None:
    studies = read_studies(file, {"name": "mine"})
    (small,) = chosen_studies(studies, "small")
    assert (small.name, small.training.rounds) == ("mine-small", 2)


def test_an_unknown_variant_raises_with_the_known_ones(file: Path) -> None:
    with pytest.raises(BadInput, match="known: all, large, small"):
        chosen_studies(read_studies(file), "tiny")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"attacks": {"fedmia-1": {"x": 10**400}}}, r"from -1e15 to 1e15.*\(401 characters\)"),
        ({"attacks": {"fedmia-1": {"x": [1]}}}, r"a number from -1e15.*got \[1\]"),
        ({"model": {"options": {"hidden": float("inf")}}}, "model.options.hidden .*got inf"),
        ({"seeds": [-1]}, "seeds.0 .*greater than or equal to 0, got -1$"),
        ({"seeds": [1, -1, -2]}, r"got -1 \(and 1 more\)$"),
        ({"seeds": "x"}, "should be a list, got 'x'"),
        ({"seeds": []}, "at least one entry"),
        ({"training": {"lr": "x"}}, "should be a number, got 'x'"),
        ({"defense": 3}, "a table of settings, got 3"),
        ({"audit": {"keep": "all"}}, "'signals', 'snapshots' or 'full', got 'all'"),
        ({"name": "a/b"}, "letters, digits.*got 'a/b'"),
        ({"trainig": {}}, "did you mean 'training'"),
        ({"defense": {"clients": [0, 0]}}, r"a client is repeated; give each once, got \[0, 0\]"),
        ({"figures": {"fprs": [0.1, 0.2, 0.1]}}, "two false-positive rates agree"),
        ({"figures": {"fprs": [0.1, 0.10000000001]}}, "agree to six digits"),
        ({"figures": {"fprs": [k / 200 for k in range(1, 102)]}}, r"figures\.fprs .*at most 100"),
        ({"figures": {"metrics": ["average_precision"] * 2}}, "a metric is repeated"),
        ({"figures": {"metrics": [f"m:f{k}" for k in range(101)]}}, r"figures\.metrics .* 100"),
        (
            {"defense": {"also": [{"name": "mixup", "clients": [2, 1, 2]}]}},
            r"defense.also.0.clients .*a client is repeated; give each once, got \[2, 1, 2\]",
        ),
    ],
)
def test_invalid_settings_raise_with_readable_messages(
    values: dict[str, object], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        study_from({"name": "a", **values})


def test_deeply_nested_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text('name = "x"\n[a' + ".a" * 2000 + "]\n")
    with pytest.raises(BadInput, match="more than 32 levels of tables"):
        read_studies(path)
    path.write_text('name = "x"\n')
    with pytest.raises(BadInput, match="more than 32 levels of tables"):
        read_studies(path, {"data.options" + ".a" * 2000: 1})


def test_a_variant_cannot_be_called_all(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('name = "x"\n[variants.all]\n"training.rounds" = 2\n')
    with pytest.raises(BadInput, match=r"is named 'all', but --variant all runs .*another name"):
        read_studies(path)


def test_a_variant_without_name_raises(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('name = "x"\n[variants.""]\n"training.rounds" = 2\n')
    with pytest.raises(BadInput, match=r"a variant in .* has no name"):
        read_studies(path)


@pytest.mark.parametrize(
    "table", ['[variants.b]\nname = "c"\n', '[grid]\nname = ["b", "c"]\n'], ids=["variant", "grid"]
)
def test_a_variant_cannot_name_itself(table: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(f'name = "x"\n{table}')
    with pytest.raises(BadInput, match=r"the variant .* sets name, .*remove it"):
        read_studies(path)


def test_too_many_rounds_raise() -> None:
    with pytest.raises(BadInput, match=r"training\.rounds .* less than or equal to 999999"):
        study_from({"name": "x", "training": {"rounds": 1_000_000}})


def test_options_keep_their_types() -> None:
    given_options: dict[str, object] = {"a": True, "b": 1, "c": 1.5, "d": "s"}
    options = study_from({"name": "a", "attacks": {"x": given_options}}).attacks["x"]
    assert [(type(value), value) for value in options.values()] == [
        (bool, True),
        (int, 1),
        (float, 1.5),
        (str, "s"),
    ]


def test_selecting_a_variant_of_a_plain_study_raises(tmp_path: Path) -> None:
    file = tmp_path / "plain.toml"
    file.write_text('name = "plain"\n', encoding="utf-8")
    with pytest.raises(BadInput, match="plain has no variants; remove --variant=tiny"):
        chosen_studies(read_studies(file), "tiny")


@pytest.mark.parametrize("plan", [Study, GameStudy])
def test_omitted_sections_equal_empty_ones(plan: type[Section]) -> None:
    # It is made without being checked, since a schema of its own takes time to build.
    default = [field.default for field in plan.model_fields.values()]
    left_out = [section for section in default if isinstance(section, Section)]
    assert len(left_out) > 5
    for section in left_out:
        empty = type(section).model_validate({})
        assert (section, section.model_fields_set) == (empty, empty.model_fields_set)
        assert section.model_dump() == empty.model_dump()


@pytest.mark.parametrize("name", ["samples", "fair", "people"])
def test_overrides_accept_old_names_of_settings(name: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('name = "x"\n[audit]\nfair = 50\n', encoding="utf-8")
    (study,) = read_studies(path, {f"audit.{name}": 60})
    assert study.audit.samples == 60
    assert study.model_dump()["audit"]["fair"] == 60
