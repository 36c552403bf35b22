"""Studies of games: running, resuming, errors and reading."""

import json
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import RECORD_FILE
from fedaudit.core.seeds import seeded
from fedaudit.games import samples
from fedaudit.games.mechanism import resolve_mechanism
from fedaudit.games.run import read_points, result_key, run_games
from fedaudit.metrics.rate_limits import proportion
from fedaudit.plan.games import MechanismSection
from fedaudit.results.games import EPOCHS, FIT_AUC, HELD_OUT, SUCCESS, TRUE_POSITIVES
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from tests.programs import exit_code

STUDY = """
name = "tiny"
about = "For tests."
[data]
name = "digits"
[game]
games = 40
targets = 8
batch = 5
copies = 4
background = 12
validation = 30
validation_copies = 5
certified = 1
certificate_copies = 50
[neuron]
hidden = 20
epochs = 20
[[grid]]
"mechanism.name" = ["bitrand"]
"mechanism.options.nominal_epsilon" = [8.0]
"mechanism.options.shared_mask" = [false, true]
[variants.legacy]
"neuron.output" = "two-sigmoids"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(STUDY)
    return path


def run(file: Path, out: Path, messages: list[str] | None = None, **changes: object) -> Record:
    points = read_points(file, {name.replace("__", "."): value for name, value in changes.items()})
    return run_games(points, out, log=(messages if messages is not None else []).append)


class Played(NamedTuple):
    """The study, played once for all tests that only read it."""

    record: Record
    folder: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("played")
    (folder / "tiny.toml").write_text(STUDY)
    return Played(run(folder / "tiny.toml", folder / "out"), folder / "out")


@pytest.fixture
def out(played: Played, tmp_path: Path) -> Path:
    """Copy the folder of the study, so that a test can change it."""
    return Path(copytree(played.folder, tmp_path / "out"))


def test_a_study_plays_its_base_variants_and_grid(played: Played) -> None:
    record = played.record
    labels = [point.label for point in record.games]
    assert labels == [
        "",
        "legacy",
        "bitrand,nominal_epsilon=8.0,shared_mask=false",
        "bitrand,nominal_epsilon=8.0,shared_mask=true",
    ]
    for point in record.games:
        assert point.tpr.total + point.tnr.total == 40
        assert point.success.value == pytest.approx((point.tpr.value + point.tnr.value) / 2)
        assert point.by_others.total == 40 * 5 - point.tpr.total
        assert point.samples.startswith("digits, pixels, 64 features")
    plain, _, apart, shared = record.games
    assert (plain.claimed_epsilon, plain.actual_epsilon, plain.largest_success) == (None, None, 1.0)
    assert plain.by_target.value == 1.0
    assert apart.claimed_epsilon == shared.claimed_epsilon == 8.0
    assert apart.actual_epsilon is not None
    assert apart.actual_epsilon > 100
    assert shared.actual_epsilon is None
    assert [len(point.certificates) for point in record.games] == [0, 0, 1, 0]
    (certificate,) = apart.certificates
    assert certificate.delta_observed <= (certificate.delta_sound or 1.0)
    for mean in (certificate.of_target, certificate.of_others):
        assert mean is not None
        assert mean.values == 50
        assert mean.observed_width <= (mean.sound_width or 0.0)
    assert apart.spread is not None
    assert sum(apart.spread.of_target) == sum(apart.spread.of_others) == 50
    assert read_record(played.folder / RECORD_FILE) == record


def test_finished_points_are_reused_in_the_same_record(
    file: Path, tmp_path: Path, played: Played, out: Path
) -> None:
    messages: list[str] = []
    for path in sorted((out / "points").iterdir())[:2]:
        path.unlink()
    second = run(file, out, messages)
    assert sum("already played" in line for line in messages) == 2
    assert second.content_hash == played.record.content_hash
    assert run(file, tmp_path / "other").content_hash == played.record.content_hash


def test_a_record_written_by_another_process_is_kept(file: Path, tmp_path: Path) -> None:
    run_games(read_points(file, {"game.games": 44})[:1], tmp_path / "theirs")
    theirs = (tmp_path / "theirs" / RECORD_FILE).read_text()

    def log(text: str) -> None:
        (tmp_path / "ours" / RECORD_FILE).write_text(theirs)

    with pytest.raises(BadInput, match="other settings"):
        run_games(read_points(file)[:1], tmp_path / "ours", log=log)
    assert (tmp_path / "ours" / RECORD_FILE).read_text() == theirs


def test_changed_settings_do_not_reuse_games(
    file: Path, tmp_path: Path, played: Played, out: Path
) -> None:
    messages: list[str] = []
    with pytest.raises(BadInput, match=r"other settings \(neuron.epochs was 20 and is now 21\)"):
        run(file, out, messages, neuron__epochs=21)
    assert not messages
    other = run(file, tmp_path / "other", seed=2)
    assert other.content_hash != played.record.content_hash


def own_features(samples: Tensor) -> Tensor:
    return samples.flatten(1)[:, :7]


def no_rows(samples: Tensor) -> Tensor:
    return torch.zeros(3)


def not_finite(samples: Tensor) -> Tensor:
    return samples.flatten(1) / 0


def test_a_custom_feature_extractor_can_be_used(file: Path, tmp_path: Path) -> None:
    record = run(file, tmp_path, samples__features="tests.games.test_games:own_features")
    assert "7 features" in record.games[0].samples


def test_points_with_other_settings_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(
        'name = "tiny"\n[data]\nname = "digits"\n'
        '[mechanism]\nname = "bitrand"\noptions = {nominal_epsilon = 8.0}\n'
    )

    def digest(**changes: object) -> str:
        named = {name.replace("__", "."): value for name, value in changes.items()}
        (point,) = read_points(path, named)
        digest = samples.draw_samples(point.study, None).digest
        return result_key(point.study, digest, excluded=("detector",))

    assert digest(neuron__batch_size=0, game__background_copies=1) == digest()
    others = {digest(neuron__batch_size=1), digest(game__background_copies=2), digest()}
    assert len(others) == 3


def test_an_extractor_of_512_features_gives_the_first_of_1280(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = torch.arange(3 * 1280.0).view(3, 1280)
    monkeypatch.setattr(samples, "efficientnet_lite0", lambda pictures: features)
    reduced = samples.EXTRACTORS["efficientnet-lite0-512"](torch.zeros(3, 3, 32, 32))
    assert reduced.shape == (3, 512)
    assert reduced[:, -1].tolist() == [511, 1280 + 511, 2560 + 511]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mechanism.name": "hamp"}, "no mechanism named 'hamp'.*bitrand"),
        ({"mechanism.name": "none", "mechanism.options.x": 1}, "has no settings"),
        ({"mechanism.name": "bitwise-rr", "mechanism.options.epsilon": 0.0}, "epsilon"),
        ({"mechanism.name": "bitwise-rr"}, "needs epsilon"),
        ({"samples.features": "nothing"}, "no extractor named 'nothing'.*efficientnet-lite0"),
        (
            {"samples.features": "tests.games.test_games:no_rows"},
            "one row of features for each",
        ),
        ({"samples.features": "tests.games.test_games:not_finite"}, "not finite"),
        ({"samples.features": "no.such:thing"}, "cannot import"),
        ({"samples.clients": 10**6}, "training samples, but the clients need"),
        ({"samples.servers": 20}, "42 samples of the server .*got .* and 20"),
        ({"game.targets": 41}, "40 games for 41 targets"),
        ({"game.games": 1, "game.targets": 1}, "games with and without it"),
        ({"neuron.output": "softmax"}, "one-logit"),
        ({"game.validation": 0}, "or neither"),
        ({"game.colour": 1}, "no setting"),
        ({"records.clients": 100}, "no setting named 'records'; did you mean 'samples'\\? known"),
    ],
)
def test_invalid_game_settings_raise_in_one_sentence(
    changes: dict[str, object], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "one.toml"
    path.write_text(STUDY.split("[[grid]]")[0])
    with pytest.raises(FedauditError, match=says) as refused:
        run_games(read_points(path, changes), tmp_path / "out")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("grid", "point"),
    [
        (STUDY.split("[[grid]]")[1].replace("[8.0]", "[8.0, -1.0]"), r"bitrand,.*epsilon=-1\.0"),
        ('\n"game.batch" = [5, 800]', "batch=800: "),
        ('\n"data.name" = ["digits", "nothing"]', "nothing: "),
    ],
)
def test_an_invalid_point_raises_before_any_game(
    grid: str, point: str, file: Path, tmp_path: Path
) -> None:
    file.write_text(f"{STUDY.split('[[grid]]')[0]}[[grid]]{grid}")
    messages: list[str] = []
    with pytest.raises(BadInput, match=f"tiny-{point}"):
        run(file, tmp_path / "out", messages)
    assert not messages


def test_settings_that_distinguish_points_cannot_be_overridden(file: Path) -> None:
    with pytest.raises(BadInput, match="distinguishes the points of"):
        read_points(file, {"mechanism.options.nominal_epsilon": 5.0})


def test_a_mechanisms_delta_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    options = "{ epsilon = 0.01, clip = 1.0, delta = 0.4 }"
    path.write_text(
        STUDY.split("[[grid]]")[0] + f'[mechanism]\nname = "ldp-gaussian"\noptions = {options}'
    )
    (point,) = run_games(read_points(path), tmp_path / "out").games
    assert point.delta == 0.4
    assert point.largest_success == pytest.approx(0.7, abs=0.01)
    assert not point.refuted


def wrong_mean(point: str) -> str:
    """Return the point with an advantage that contradicts its TPR and TNR."""
    document = json.loads(point)
    adv, *others = document["estimates"]
    assert adv["metric"] == SUCCESS
    wrong = {**adv, "low": 0.0, "value": adv["value"] - 0.01}
    return json.dumps({**document, "estimates": [wrong, *others]})


def test_swapped_point_files_are_refused(file: Path, out: Path) -> None:
    paths = sorted((out / "points").iterdir())
    points = [path.read_text() for path in paths]
    by_mechanism = {(p["mechanism"], p["shared_mask"]): p for p in map(json.loads, points)}
    assert len(by_mechanism) == 3
    for path, text in zip(paths, [*points[1:], points[0]], strict=True):
        path.write_text(text)
    with pytest.raises(Damaged, match=r"other settings.*delete the file"):
        run(file, out)


def uncounted(point: dict[str, object]) -> dict[str, object]:
    """Return the point with a rate that has no lower limit."""
    figures = point["figures"]
    assert isinstance(figures, list)
    rates = [
        figure | ({"low": None} if figure["metric"] == TRUE_POSITIVES else {}) for figure in figures
    ]
    return {**point, "figures": rates}


def test_damaged_points_and_records_are_refused(file: Path, out: Path) -> None:
    point = next((out / "points").iterdir())
    good = point.read_text()
    for bad in ("", "[]", good[:-9], json.dumps({**json.loads(good), "most": 7}), wrong_mean(good)):
        point.write_text(bad)
        with pytest.raises(Damaged, match="delete it to play it again"):
            run(file, out)
    point.write_text(good)
    document = json.loads((out / RECORD_FILE).read_text())
    changes: list[dict[str, object]] = [
        {"points": []},
        {"points": document["points"][1:]},
        {"points": [document["points"][0], *document["points"]]},
        {"estimates": document["estimates"][1:]},
        {"version": 9},
        {"more": 1},
        {"estimates": [uncounted(document["estimates"][0]), *document["estimates"][1:]]},
    ]
    for change in changes:
        (out / RECORD_FILE).write_text(json.dumps({**document, **change}))
        with pytest.raises(FedauditError):
            read_record(out / RECORD_FILE)


@pytest.mark.slow
def test_the_command_plays_and_prints(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert exit_code("run", file, "--out", out, "--game.games=30", "--game.targets=30") == 0
    printed = capsys.readouterr().out
    assert "Server guesses correctly" in printed
    assert "guessing 50%" in " ".join(printed.split())
    assert exit_code("run", file, "--out", out, "--gamse.games=30") == 2
    assert "game" in capsys.readouterr().err


def test_sign_lost_applies_to_clients_and_server() -> None:
    section = MechanismSection(
        name="bitrand", options={"nominal_epsilon": 1.0, "sign_lost": True, "shared_mask": True}
    )
    for randomise in resolve_mechanism(section, 4).randomisers:
        randomised = randomise(-torch.ones(50, 4), seeded(1))
        assert float(randomised.min()) >= 0
        assert float(randomised.max()) > 0


def test_the_record_describes_neuron_training(file: Path, tmp_path: Path, played: Played) -> None:
    played_point = run(file, tmp_path / "out", neuron__check=1).games[0]
    assert (
        0.9 < (played_point.figure(HELD_OUT) or 0.0) <= (played_point.figure(FIT_AUC) or 0.0) <= 1
    )
    epochs = played_point.estimate(EPOCHS)
    assert played_point.training is not None
    assert epochs is not None
    assert epochs.value is not None
    assert 1 <= played_point.training.least <= epochs.value <= played_point.training.most <= 20
    assert epochs.samples == played_point.targets == 8
    fixed = played.record.games[0]
    assert (fixed.training, fixed.estimate(EPOCHS)) == (None, None)


def test_shared_noise_widens_the_limits_for_other_samples(file: Path, tmp_path: Path) -> None:
    *_, apart, together = run(file, tmp_path / "out", neuron__epochs=3).games
    for played_point, least in ((apart, 1.0), (together, 1.2)):
        rate = played_point.by_others
        exact = proportion(rate.hits, rate.total)
        assert (rate.high - rate.low) / (exact.high - exact.low) >= least


def fails(samples: Tensor) -> Tensor:
    raise KeyError("weights")


def test_a_failing_extractor_raises_with_its_name(file: Path, tmp_path: Path) -> None:
    name = "tests.games.test_games:fails"
    with pytest.raises(BadInput, match=f"{name}' failed on samples of shape .*KeyError: 'weights'"):
        run(file, tmp_path / "out", samples__features=name)


def test_changed_data_with_the_same_name_are_replayed(file: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    text = STUDY.replace('"digits"', '"mine"').replace("[game]", "[samples]\nclients = 100\n[game]")
    file.write_text(text)

    def store(shift: float) -> None:
        x, y = rng.random((300, 8)).astype(np.float32) + shift, np.arange(300) % 2
        np.savez(tmp_path / "mine.npz", x=x, y=y)

    points, messages = read_points(file)[:1], list[str]()
    for shift in (0.0, 0.0, 1.0):
        if shift or not messages:
            store(shift)
        run_games(points, tmp_path / "out", data_dir=tmp_path, log=messages.append)
    assert messages == ["tiny (1 of 1)", "tiny (1 of 1): already played", "tiny (1 of 1)"]
