import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.core.errors import BadInput
from fedaudit.plan.file import MAX_POINTS, chosen_studies, grid_points, read_studies

FRONT = """
name = "front"
[grid]
"defense.name" = "gradient-noise"
"defense.options.sigma" = [0.001, 0.01]
"defense.clients" = [[0, 1], [0, 1, 2]]
"""


def studies(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "study.toml"
    path.write_text(text)
    return [study.name for study in read_studies(path)]


def test_every_combination_is_a_labelled_variant(tmp_path: Path) -> None:
    assert studies(tmp_path, FRONT) == [
        "front",
        "front-gradient-noise,sigma=0.001,clients=0+1",
        "front-gradient-noise,sigma=0.001,clients=0+1+2",
        "front-gradient-noise,sigma=0.01,clients=0+1",
        "front-gradient-noise,sigma=0.01,clients=0+1+2",
    ]


def test_a_point_has_its_settings_and_is_found_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(FRONT)
    name = "gradient-noise,sigma=0.01,clients=0+1"
    (point,) = chosen_studies(read_studies(path), name)
    assert (point.defense.name, point.defense.clients) == ("gradient-noise", (0, 1))
    assert point.defense.options == {"sigma": 0.01}


def test_several_grids_can_be_combined_with_variants(tmp_path: Path) -> None:
    text = """
    name = "two"
    [variants.short]
    "training.rounds" = 3
    [[grid]]
    "training.rounds" = [5, 7]
    [[grid]]
    "partition.clients" = [2, 4]
    """
    assert studies(tmp_path, text) == [
        "two",
        "two-short",
        "two-rounds=5",
        "two-rounds=7",
        "two-clients=2",
        "two-clients=4",
    ]


def test_settings_with_the_same_last_name_keep_their_sections() -> None:
    points = grid_points({"a.options.x": [1], "b.options.x": [2]}, "here")
    assert points[0].label == "a.options.x=1,b.options.x=2"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("grid = 3", "must be a table of settings with lists"),
        ("[grid]", "must be a table of settings with lists"),
        ('[grid]\n"training.rounds" = []', "has no values"),
        ('[grid]\n"training.rounds" = [3, 3]', "repeats a value"),
        ('[grid]\n"training.lr" = [0.1]\n[variants."lr=0.1"]', "variant and a point"),
        ('[[grid]]\n"training.lr"=[0.1]\n[[grid]]\n"training.lr"=[0.1]', "the same name .lr=0.1."),
        (
            '[grid]\n"training.rounds" = 2\ntraining = {rounds = [3, 4]}',
            "grid.training.rounds in .* is given twice",
        ),
        ('[grid]\n"training.round" = [3]', r"did you mean 'training\.rounds'"),
    ],
)
def test_invalid_grids_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=sentence):
        studies(tmp_path, f'name = "a"\n{text}')


def test_too_many_points_are_counted_and_refused_before_they_are_made() -> None:
    grid = {f"a.x{place}": list(range(10)) for place in range(9)}
    with pytest.raises(BadInput, match=f"has 1,000,000,000 points, but at most {MAX_POINTS}"):
        grid_points(grid, "here")


@pytest.mark.slow
@given(st.lists(st.text(max_size=60), min_size=1, max_size=8, unique=True))
def test_variant_names_are_unique_and_safe_in_file_names(values: list[str]) -> None:
    labels = [point.label for point in grid_points({"audit.note": list[object](values)}, "here")]
    assert len(set(labels)) == len(values)
    assert all(re.fullmatch(r"[A-Za-z0-9._=,+-]{1,60}", label) for label in labels)
