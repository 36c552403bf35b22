"""A grid from its file to a comparison, on the command line."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fedaudit.results.read import read_comparison, read_record
from tests.programs import exit_code

GRID = """
name = "front"
seeds = [1, 2]
[partition]
clients = 4
samples_per_client = 100
[training]
rounds = 2
epochs = 1
batch_size = 20
[audit]
fair = 90
targets = [0, 3]
every = 2
[figures]
permutations = 20
blind_classifier = false
fprs = [0.05]
[attacks.loss-series]
[attacks.avg-cosine]
[grid]
"defense.name" = "gradient-noise"
"defense.options.sigma" = [0.01, 0.1]
"defense.clients" = [[0, 1]]
[variants.again]
"figures.alpha" = 0.1
"""
POINTS = [
    "front",
    "front-again",
    "front-gradient-noise,sigma=0.01,clients=0+1",
    "front-gradient-noise,sigma=0.1,clients=0+1",
]


@pytest.mark.slow
def test_a_grid_ends_in_one_comparison_that_can_be_updated(tmp_path: Path) -> None:
    study, out = tmp_path / "front.toml", tmp_path / "out"
    study.write_text(GRID)
    assert exit_code("run", study, "--variant", "all", "--out", out, "--workers", "1") == 0

    comparison = read_comparison(out / "comparison.json")
    assert [source.name for source in comparison.sources] == POINTS
    for source in comparison.sources:
        assert read_record(out / source.path).content_hash == source.content_hash
    # Two seeds of three settings: the variant that only prints other figures trains nothing.
    assert len(list((out / "pool").iterdir())) == 6
    assert [row.base for row in comparison.rows] == [None, 0, 0, 0]
    assert {entry.part for entry in comparison.entries} == {"inside", "outside", "reference"}
    assert {front.family for front in comparison.fronts} == {"none", "gradient-noise"}
    # Two seeds say nothing of further runs, and a front has no other interval.
    assert all(
        front.low is None and "needs 10 seeds" in front.method for front in comparison.fronts
    )
    assert read_record(out / POINTS[2] / "record.json").usage

    page = (out / "comparison.html").read_text(encoding="utf-8")
    moved = tmp_path / "moved"
    shutil.move(out, moved)
    (moved / "comparison.html").unlink()
    assert exit_code("compare", moved) == 0
    assert (moved / "comparison.html").read_text(encoding="utf-8") == page
    assert read_comparison(moved / "comparison.json") == comparison

    words = ("--variant", "again", "--out", moved / "one", "--pool", moved / "pool")
    assert exit_code("run", study, *words) == 0
    assert len(list((moved / "pool").iterdir())) == 6
    assert json.loads((moved / "one" / "runs.json").read_text())["1"].startswith("../pool/")


@pytest.mark.parametrize(
    ("point", "sentence"),
    [
        ('"defense.clients" = [[0], []]', "front-.*clients=.*: no client uses"),
        ('"training.rounds" = [4, 1]', "front-.*rounds=1.*: audit.every is 2"),
        ('"defense.options.sigmas" = [0.1]', "named 'sigmas'; did you mean 'sigma'"),
        ('"partition.scheme" = ["iid", "id"]', "no partition named 'id'"),
    ],
)
def test_a_point_that_cannot_run_is_refused_before_any_other_is_trained(
    point: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = tmp_path / "front.toml", tmp_path / "out"
    study.write_text(GRID.replace('"defense.clients" = [[0, 1]]', point))
    assert exit_code("run", study, "--variant", "all", "--out", out, "--workers", "1") == 2
    assert re.search(sentence, " ".join(capsys.readouterr().err.split()))
    assert not out.exists()


def test_one_record_is_no_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("compare", tmp_path) == 2
    assert "at least two records or a comparison.json" in capsys.readouterr().err
