"""The detector of a study of games: what it finds, and that it is resumed and read back."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedaudit.attacks.ami.plant import Place, Planted
from fedaudit.core.errors import BadInput, Damaged, Refusal
from fedaudit.core.files import GAMES_FILE
from fedaudit.core.values import Model
from fedaudit.defenses.planted.signs import SIGNS
from fedaudit.games.detection import HONEST, SERVERS, Aim, Looked, worths
from fedaudit.games.run import read_points, run_games
from fedaudit.results.detector import Detector
from fedaudit.results.games import GameRecord
from fedaudit.results.read import read_games

STUDY = """
name = "tiny"
about = "For tests."
[data]
name = "digits"
[game]
games = 20
targets = 4
batch = 5
background = 20
validation = 40
[neuron]
hidden = 20
epochs = 40
[detector]
runs = 10
rounds = 3
looks = 1
rows = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY)
    return path


def run(file: Path, out: Path, said: list[str] | None = None, **changes: object) -> GameRecord:
    points = read_points(file, {name.replace("__", "."): value for name, value in changes.items()})
    return run_games(points, out, log=(said if said is not None else []).append)


def test_planted_models_are_found_and_the_record_says_by_which_signs(
    file: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    record = run(file, tmp_path / "out", said)
    found = record.detector
    assert found is not None
    assert (found.runs, found.judged, found.honest, found.planted) == (10, 5, 10, 20)
    assert found.own == 144
    assert "layers of 40 and 5 units" in found.federation
    by = {(one.server, one.sign): one for one in found.signs}
    assert list(by) == [(server, sign) for server in SERVERS for sign in SIGNS]
    assert by["planted", "zero-weights"].auc == 1.0
    assert by["planted", "zero-weights"].tpr.hits == 5
    assert by["planted", "zero-weights"].fpr.hits == 0
    assert by["disguised", "zero-weights"].auc == 0.5
    assert by["one-row", "rewritten-row"].auc > 0.9
    assert all(one.tpr.total == one.fpr.total == 5 for one in found.signs)
    assert set(found.success) == set(SERVERS)
    assert min(found.success.values()) > 0.8
    assert found.weights is not None
    assert {sum(one.counts) for one in found.weights.outlines} == {20 * 64}
    assert read_games(tmp_path / "out" / GAMES_FILE) == record
    again = run(file, tmp_path / "out", said)
    assert "tiny, detector: measured before" in said
    assert again.content_hash == record.content_hash
    (kept,) = (tmp_path / "out" / "points").glob("detector-*.json")
    kept.unlink()
    assert run(file, tmp_path / "out").content_hash == record.content_hash
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "runs": -1}))
    with pytest.raises(Damaged, match="no detector of fedaudit's"):
        run(file, tmp_path / "out")
    with pytest.raises(BadInput, match="other settings"):
        run(file, tmp_path / "out", detector__runs=0)


def test_a_server_that_changes_nothing_is_not_found(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(model: Model, aim: Aim) -> Planted:
        return Planted(model, (Place("3.weight", "3.bias", 0),))

    for name in list(SERVERS):
        monkeypatch.setitem(SERVERS, name, nothing)
    found = run(file, tmp_path, detector__algorithm="fedavg").detector
    assert found is not None
    for one in found.signs:
        assert (one.auc, one.own, one.others) == (0.5, 0.5, 0.5)


def test_a_study_without_a_detector_is_as_it_was_before_there_was_one(
    file: Path, tmp_path: Path
) -> None:
    plain = run(file, tmp_path / "out", detector__runs=0)
    assert plain.detector is None
    assert "detector" not in plain.config
    document = json.loads((tmp_path / "out" / GAMES_FILE).read_text())
    del document["detector"]
    (tmp_path / "old.json").write_text(json.dumps(document))
    assert read_games(tmp_path / "old.json") == plain


def test_worths_judge_one_model_of_each_late_run() -> None:
    """Ten runs, each of two honest models and two planted ones, with signs of three kinds."""
    rng = np.random.default_rng(1)
    server = [HONEST, HONEST, "planted", "planted"] * 10
    run = np.repeat(np.arange(10), 4)
    own = np.array([False, False, True, False] * 10)
    values = rng.normal(size=(40, len(SIGNS))) + 100.0 * np.array([0, 0, 1, 1] * 10)[:, None]
    values[:, 0] = 0.0
    # A sign that finds own targets only.
    values[:, 1] = own
    found = worths(Looked(server, run, own, values), seed=3)
    assert [one.sign for one in found] == list(SIGNS)
    assert {one.server for one in found} == {"planted"}
    nothing, mine, *others = found
    assert (nothing.auc, nothing.low, nothing.tpr.hits) == (0.5, None, 0)
    assert (mine.own, mine.others, mine.auc) == (1.0, 0.5, 0.75)
    for one in others:
        assert (one.auc, one.tpr.hits, one.tpr.total) == (1.0, 5, 5)
        assert one.method == "no spread over 10 runs"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"detector.runs": 9}, "need 10 of them or more"),
        ({"detector.units": 19}, "a neuron reads neuron.hidden 20"),
        ({"detector.rounds": 1}, "rounds"),
        ({"detector.algorithm": "fedmd"}, "algorithm"),
        ({"detector.clients": 500}, "too few for 500 clients"),
        ({"detector.lr": 1e6, "detector.rounds": 20}, "lower the learning rate"),
    ],
)
def test_what_makes_no_detector_is_refused(
    file: Path, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(Refusal, match=says):
        run_games(read_points(file, changes), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"auc": 1.5},
        {"low": 0.9, "auc": 0.5},
        {"tpr": {"hits": 3, "total": 2, "low": 0.0, "high": 1.0}},
        {"tpr": {"hits": 1, "total": 2, "low": 0.6, "high": 1.0}},
        {"sign": "x" * 61},
    ],
)
def test_impossible_figures_are_refused(change: dict[str, object]) -> None:
    counted = {"hits": 1, "total": 2, "low": 0.1, "high": 0.9}
    sign = {
        "sign": "twins", "server": "planted", "auc": 0.5, "low": 0.4, "high": 0.6, "method": "m",
        "own": 0.5, "others": 0.5, "tpr": counted, "fpr": counted,
    }  # fmt: skip
    detector = {
        "federation": "f", "runs": 10, "judged": 5, "honest": 2, "planted": 2, "own": 9,
        "accuracy": 0.5, "success": {"planted": 0.9},
    }  # fmt: skip
    assert Detector.model_validate({**detector, "signs": [sign]}).signs[0].tpr.value == 0.5
    with pytest.raises(ValueError, match="validation error"):
        Detector.model_validate({**detector, "signs": [{**sign, **change}]})
    with pytest.raises(ValueError, match="bins"):
        Detector.model_validate(
            {
                **detector,
                "signs": [sign],
                "weights": {"edges": [0.0, 1.0], "outlines": [{"server": "", "counts": [1, 2]}]},
            }
        )
