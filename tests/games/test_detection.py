"""The detector of planted neurons in studies of games."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedaudit.attacks.ami.plant import PlantedModel, PlantedRow
from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import RECORD_FILE
from fedaudit.core.values import Model
from fedaudit.defenses.planted import INDICATORS
from fedaudit.games.detection import HONEST, SERVERS, InspectedModels, TargetKnowledge, detector_roc
from fedaudit.games.run import read_points, run_games
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    DETECTION_RATE,
    FALSE_ALARMS,
    INDICATOR_AUC,
    OTHERS_AUC,
    OWN_AUC,
    Detection,
    Outline,
    WeightSpread,
)
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from tests.report.games import detector, indicator

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


def run(file: Path, out: Path, messages: list[str] | None = None, **changes: object) -> Record:
    points = read_points(file, {name.replace("__", "."): value for name, value in changes.items()})
    return run_games(points, out, log=(messages if messages is not None else []).append)


@pytest.mark.slow
def test_planted_models_are_detected_with_the_indicators_in_the_record(
    file: Path, tmp_path: Path
) -> None:
    messages: list[str] = []
    record = run(file, tmp_path / "out", messages)
    detection = record.detection
    assert detection is not None
    assert (detection.runs, detection.judged, detection.honest, detection.planted) == (
        10,
        5,
        10,
        20,
    )
    assert detection.own == 144
    assert "layers of 40 and 5 units" in detection.federation
    values = {
        key: {name: estimate.value for name, estimate in estimates.items()}
        for key, estimates in detection.indicators.items()
    }
    assert list(values) == [(server, name) for server in SERVERS for name in INDICATORS]
    zeros = values["planted", "zero-weights"]
    assert (zeros[INDICATOR_AUC], zeros[DETECTION_RATE], zeros[FALSE_ALARMS]) == (1.0, 1.0, 0.0)
    assert values["disguised", "zero-weights"][INDICATOR_AUC] == 0.5
    assert (values["one-row", "rewritten-row"][INDICATOR_AUC] or 0.0) > 0.9
    for estimates in detection.indicators.values():
        assert estimates[DETECTION_RATE].n_members == estimates[FALSE_ALARMS].n_nonmembers == 5
    assert all((detection.success(server) or 0.0) > 0.8 for server in SERVERS)
    assert detection.weights is not None
    assert {sum(outline.counts) for outline in detection.weights.outlines} == {20 * 64}
    assert read_record(tmp_path / "out" / RECORD_FILE) == record
    replayed = run(file, tmp_path / "out", messages)
    assert "tiny, detector: already played" in messages
    assert replayed.content_hash == record.content_hash
    (stored,) = (tmp_path / "out" / "points").glob("detector-*.json")
    stored.unlink()
    assert run(file, tmp_path / "out").content_hash == record.content_hash
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "runs": -1}))
    with pytest.raises(Damaged, match="delete it to play it again"):
        run(file, tmp_path / "out")
    with pytest.raises(BadInput, match="other settings"):
        run(file, tmp_path / "out", detector__runs=0)


@pytest.mark.slow
def test_a_server_that_changes_nothing_is_not_detected(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(model: Model, aim: TargetKnowledge) -> PlantedModel:
        return PlantedModel(model, (PlantedRow("3.weight", "3.bias", 0),))

    for name in list(SERVERS):
        monkeypatch.setitem(SERVERS, name, nothing)
    detection = run(file, tmp_path, detector__algorithm="fedavg").detection
    assert detection is not None
    for estimates in detection.indicators.values():
        assert [estimates[name].value for name in (INDICATOR_AUC, OWN_AUC, OTHERS_AUC)] == [
            0.5,
            0.5,
            0.5,
        ]


def test_a_record_without_a_detector_has_no_field_for_it(file: Path, tmp_path: Path) -> None:
    plain = run(file, tmp_path / "out", detector__runs=0)
    assert plain.detector is None
    assert "detector" not in plain.config
    assert "detector" not in json.loads((tmp_path / "out" / RECORD_FILE).read_text())


def test_indicators_are_judged_by_one_model_of_each_late_run() -> None:
    """Ten runs have two honest and two planted models each, with three kinds of indicators."""
    rng = np.random.default_rng(1)
    server = [HONEST, HONEST, "planted", "planted"] * 10
    run = np.repeat(np.arange(10), 4)
    is_own_target = np.array([False, False, True, False] * 10)
    values = rng.normal(size=(40, len(INDICATORS))) + 100.0 * np.array([0, 0, 1, 1] * 10)[:, None]
    values[:, 0] = 0.0
    # This indicator detects only models whose target is a record of the client.
    values[:, 1] = is_own_target
    by_indicator: dict[str, dict[str, Estimate]] = {}
    for estimate in detector_roc(InspectedModels(server, run, is_own_target, values), seed=3):
        assert estimate.attack == "planted"
        by_indicator.setdefault(estimate.group, {})[estimate.metric] = estimate
    assert list(by_indicator) == list(INDICATORS)
    nothing, mine, *others = by_indicator.values()
    assert (nothing[INDICATOR_AUC].value, nothing[INDICATOR_AUC].low) == (0.5, None)
    assert nothing[DETECTION_RATE].value == 0
    assert [mine[name].value for name in (OWN_AUC, OTHERS_AUC, INDICATOR_AUC)] == [1.0, 0.5, 0.75]
    for estimates in others:
        assert (
            estimates[INDICATOR_AUC].value,
            estimates[DETECTION_RATE].value,
            estimates[DETECTION_RATE].n_members,
        ) == (1.0, 1.0, 5)
        assert estimates[INDICATOR_AUC].method == "no spread over 10 runs"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"detector.runs": 9}, "at least 10 runs"),
        ({"detector.units": 19}, "a neuron takes neuron.hidden = 20 units"),
        ({"detector.rounds": 1}, "rounds"),
        ({"detector.algorithm": "fedmd"}, "algorithm"),
        ({"detector.clients": 500}, "too few for 500 clients"),
        ({"detector.lr": 1e6, "detector.rounds": 20}, "lower the learning rate"),
    ],
)
def test_invalid_detector_settings_raise(
    file: Path, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(FedauditError, match=says):
        run_games(read_points(file, changes), tmp_path)


def test_a_detector_has_every_figure_of_every_indicator() -> None:
    full_detection = detector(indicator("twins", "planted", 0.5))
    assert list(full_detection.indicators) == [("planted", "twins")]
    *leading, last = full_detection.estimates
    for wrong in (
        leading,
        full_detection.estimates[:2],
        [*leading, last.model_copy(update={"value": None})],
    ):
        with pytest.raises(ValueError, match=r"detector must have|has no"):
            Detection.model_validate({**dict(full_detection), "estimates": wrong})
    with pytest.raises(ValueError, match="number of counts"):
        WeightSpread(edges=[0.0, 1.0], outlines=[Outline(server="", counts=[1, 2])])
