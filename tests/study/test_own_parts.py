"""Custom parts of a study as module:object."""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import fedaudit as fa
from fedaudit.api.target_names import read_study
from fedaudit.attacks import ATTACKS
from fedaudit.core.definitions import definition_digest
from fedaudit.core.errors import BadInput
from fedaudit.core.importing import code_named_in
from fedaudit.fl.hooks import ConfiguredDefense, Defense, TrainingContext
from fedaudit.live.attack import attack_recording
from fedaudit.live.record import record
from fedaudit.observe.round import Upload
from fedaudit.plan.file import read_studies
from fedaudit.plan.identity import run_key, with_code
from fedaudit.plan.values import study_from
from fedaudit.results.read import read_record
from fedaudit.study.build import raise_if_misfits
from fedaudit.study.running.reattack import reattack
from tests.live.federation import data, network, rounds
from tests.programs import exit_code

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-parts"
SMALL = ("--training.rounds=2", "--figures.permutations=20", "--figures.blind_classifier=false")


def forget_parts() -> None:
    for name in [name for name in sys.modules if name == "parts" or name.startswith("parts_")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither modules of one test nor where they lay are there in the next."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget_parts()
    yield
    forget_parts()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the example's files and run its study with the custom-loss defense."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(EXAMPLE, folder / "files", ignore=shutil.ignore_patterns("__pycache__"))
    before = list(sys.path)
    try:
        study = folder / "files" / "study.toml"
        words = (study, "--variant", "entropy-bonus", "--out", folder / "out")
        assert exit_code("run", *words, "--workers", "1", *SMALL) == 0
    finally:
        sys.path[:] = before
    return folder


def test_every_custom_part_of_the_example_is_in_the_record(finished: Path) -> None:
    record = read_record(finished / "out" / "record.json")
    config = json.loads(json.dumps(record.config))
    assert config["data"]["name"] == "parts:tumours"
    assert config["model"]["name"] == "parts:Net"
    assert config["algorithm"]["name"] == "parts:partial_step"
    assert config["defense"]["name"] == "parts:EntropyBonus"
    assert {row.name: row.source for row in record.attacks}["parts:lowest_loss"] == "custom"
    assert {figure.attack for figure in record.findings} >= {"parts:lowest_loss", "loss-series"}
    parts = ["EntropyBonus", "Net", "lowest_loss", "partial_step", "tumours"]
    assert list(config["code"]) == [f"parts:{name}" for name in parts]
    assert len(set(config["code"].values())) == len(parts)


def test_every_variant_of_the_example_runs() -> None:

    studies = read_studies(EXAMPLE / "study.toml")
    defenses = ["none", "parts:EntropyBonus", "parts:Jitter"]
    assert [study.defense.name for study in studies] == defenses
    with code_named_in("the study", trusted=True, folder=EXAMPLE):
        raise_if_misfits(studies)


def test_reading_a_record_imports_no_custom_code(finished: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('name = "loose"\n[membership]\nauc = 1.0\n[controls]\nrequired = []\n')
    out = finished / "out"
    assert exit_code("report", out, "--out", tmp_path / "page.html") == 0
    assert exit_code("gate", out, "--policy", policy) == 0
    assert exit_code("pack", out, "--policy", policy, "--out", tmp_path / "pack") == 0
    assert exit_code("verify", tmp_path / "pack") == 0
    assert exit_code("compare", out, out, "--out", tmp_path / "both.html") == 0
    assert "parts:lowest_loss" in (tmp_path / "page.html").read_text()
    assert "parts" not in sys.modules


def test_custom_parts_of_a_recording_need_trust(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(finished / "files")
    assert exit_code("attack", finished / "out", "--out", tmp_path) == 2
    assert "pass --trust" in capsys.readouterr().err
    assert "parts" not in sys.modules
    assert exit_code("attack", finished / "out", "--out", tmp_path, "--trust") == 0
    first, second = (read_record(f / "record.json") for f in (finished / "out", tmp_path))
    assert second.content_hash == first.content_hash


def test_a_custom_attack_of_a_recording_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE)
    folder, audit = tmp_path / "recording", data().split.audit
    with (
        code_named_in("mine", trusted=True, folder=EXAMPLE),
        record(folder, network, audit, attacks=["parts:lowest_loss"]) as recorder,
    ):
        for live_round in rounds():
            recorder.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    forget_parts()
    few = {"blind_classifier": False, "permutations": 20}
    with pytest.raises(BadInput, match=r"names the attack 'parts:lowest_loss'.*pass --trust"):
        attack_recording(folder, [], tmp_path / "out", figures=few)
    assert "parts" not in sys.modules
    result = attack_recording(folder, [], tmp_path / "out", figures=few, trust=True)
    assert {figure.attack for figure in result.findings} == {"parts:lowest_loss"}
    digest = definition_digest("parts", "lowest_loss")
    assert result.config["code"] == {"parts:lowest_loss": digest}


def test_changed_custom_parts_are_refused(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = shutil.copytree(finished / "files", tmp_path / "files")
    source = (files / "parts.py").read_text()
    (files / "parts.py").write_text(source.replace(".double()", ".float()", 1))
    monkeypatch.chdir(files)
    with pytest.raises(BadInput, match="'parts:lowest_loss' has changed since"):
        reattack(finished / "out", [], tmp_path / "again", trust=True)
    (files / "parts.py").write_text(source.replace("hidden + self.middle", "self.middle", 1))
    words = ("--variant", "entropy-bonus", "--out", finished / "out", "--workers", "1", *SMALL)
    forget_parts()
    sys.path[:] = [place for place in sys.path if place != str(finished / "files")]
    assert exit_code("run", files / "study.toml", *words) == 2, "nor is a run continued with them"


def test_adding_an_attack_to_the_module_keeps_the_run(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = shutil.copytree(finished / "files", tmp_path / "files")
    added_code = '\nmore = Attack((Loss(),), LowestSignal(), "custom", "Copy.")  # added\n'
    with (files / "parts.py").open("a") as file:
        file.write(added_code)
    monkeypatch.chdir(files)
    names = ["parts:lowest_loss", "parts:more"]
    record = reattack(finished / "out", names, tmp_path / "again", trust=True)
    assert [row.name for row in record.attacks] == names
    config = json.loads(json.dumps(record.config))
    before = json.loads(json.dumps(read_record(finished / "out" / "record.json").config))
    assert before["code"].items() < config["code"].items()


def test_the_run_key_depends_on_the_source_of_training_code(tmp_path: Path) -> None:
    source = (EXAMPLE / "parts.py").read_text()
    settings: dict[str, object] = {
        "name": "x",
        "model": {"name": "parts_own:Net"},
        "attacks": {"parts_own:lowest_loss": {}},
    }
    keys, codes = [], []
    changed = [".double()", "hidden + self.middle"]
    with code_named_in("mine", trusted=True, folder=tmp_path):
        for text in (source, *(source.replace(key, key.upper(), 1) for key in changed)):
            (tmp_path / "parts_own.py").write_text(text)
            study = with_code(study_from(settings))
            keys.append(run_key(study, 1))
            codes.append(study.code)
    assert codes[0] != codes[1]
    assert keys[0] == keys[1], "another attack is no other run"
    assert keys[0] != keys[2], "another network is"


def test_module_digests_cover_the_whole_file(tmp_path: Path) -> None:
    source = EXAMPLE / "parts.py"
    shutil.copy(source, tmp_path / "parts_own.py")
    settings: dict[str, object] = {"name": "x", "model": {"name": "parts_own:Net"}}
    with code_named_in("mine", trusted=True, folder=tmp_path):
        pinned = settings | {"code": {"parts_own": hashlib.sha256(source.read_bytes()).hexdigest()}}
        assert with_code(study_from(pinned)).code == with_code(study_from(settings)).code
        with pytest.raises(BadInput, match="the module 'parts_own' has changed since"):
            with_code(study_from(settings | {"code": {"parts_own": "0" * 64}}))


def test_a_study_without_custom_parts_keeps_its_identity() -> None:
    study = with_code(study_from({"name": "x"}))
    assert run_key(with_code(study), 1) == run_key(study, 1)
    assert study.code == {}
    assert "loss-series" in ATTACKS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.name": "parts:Nett"}, "'Nett'; did you mean 'Net'"),
        ({"model.name": "part:Net"}, "No module named 'part'; did you mean 'parts'"),
        ({"model.name": "alexnett"}, "did you mean 'alexnet'.*module:object"),
        ({"model.name": "parts:tumours"}, "no setting of model 'parts:tumours' named 'width'"),
        ({"model.options.depth": 2}, "no setting of model 'parts:Net' named 'depth'"),
        ({"data.name": "parts:Net"}, "the data set 'parts:Net' .*missing"),
        (
            {"data.name": "nzp:mnist"},
            "No module named 'nzp'.*did you mean 'npz', which is a format",
        ),
        ({"data.options.test_share": 2.0}, "the data set 'parts:tumours' failed .*parts.py, line"),
        ({"data.options.share": 0.1}, "no option of the data set 'parts:tumours' named 'share'"),
        ({"algorithm.name": "parts:Net"}, "a custom algorithm must be .*, but .* is the class Net"),
        ({"algorithm.options.steps": 1.0}, "did you mean 'step'"),
        (
            {"defense.name": "parts:lowest_loss"},
            "a custom defense must be a class .*, but .* is an Attack",
        ),
        ({"defense.name": "parts:Jitter"}, "the defense 'parts:Jitter' needs sigma"),
        ({"attacks": {"parts:Net": {}}}, "a custom attack must be .*, but .* is the class Net"),
        ({"attacks": {"parts:lowest_loss": {"depth": 1}}}, "no setting of this attack"),
    ],
)
def test_invalid_custom_parts_are_refused_in_one_sentence(
    changes: dict[str, object], message: str
) -> None:

    study = read_study(EXAMPLE / "study.toml", changes)
    with (
        code_named_in("mine", trusted=True, folder=EXAMPLE),
        pytest.raises(BadInput, match=message) as refused,
    ):
        raise_if_misfits([study])
    assert "\n" not in str(refused.value)


def test_annotations_of_custom_parts_may_be_strings_or_missing(tmp_path: Path) -> None:
    future = "from __future__ import annotations\n\nfrom dataclasses"
    text = (EXAMPLE / "parts.py").read_text().replace("from dataclasses", future, 1)
    plain = "\n\ndef slow(task, *, step=0.5):\n    return partial_step(task, step=step)\n"
    (tmp_path / "parts_text.py").write_text(text + plain)
    settings: dict[str, object] = {
        "name": "x",
        "partition": {"clients": 4},
        "audit": {"fair": 100, "background": 0},
        "defense": {"name": "parts_text:Jitter", "options": {"sigma": 1}},
        "algorithm": {"name": "parts_text:slow", "options": {"step": 0.3}},
    }
    wrong = {"name": "parts_text:Jitter", "options": {"sigma": "1"}}
    with code_named_in("mine", trusted=True, folder=tmp_path):
        raise_if_misfits([study_from(settings)])
        with pytest.raises(BadInput, match="sigma of the defense 'parts_text:Jitter' takes a numb"):
            raise_if_misfits([study_from(settings | {"defense": wrong})])


def test_a_file_hidden_by_an_installed_module_is_reported(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("Net = 1\n")
    with (
        code_named_in("mine", trusted=True, folder=tmp_path),
        pytest.raises(BadInput, match=r"'colorsys' is a module next to the study, but "),
    ):
        with_code(study_from({"name": "x", "model": {"name": "colorsys:rgb_to_hsv"}}))


@dataclass(frozen=True)
class Misspelt(ConfiguredDefense):
    def uplaod(self, upload: Upload, context: TrainingContext) -> Upload:
        return upload


def test_a_defense_that_overrides_no_hook_is_refused(tmp_path: Path) -> None:
    federation = fa.Federation("digits", clients=3, defenses=[Misspelt()])
    with pytest.raises(BadInput, match=r"overrides no hook.*did you mean 'upload'"):
        fa.audit(federation, attacks=["loss-series"], out=tmp_path)


def fails(hook: str, result: object) -> Defense:
    """Return a defense one hook of which returns the same value for all arguments."""
    return cast(Defense, type("Broken", (Defense,), {hook: lambda self, *args: result})())


@pytest.mark.parametrize(
    ("hook", "result", "message"),
    [
        ("prepare", None, r"hook prepare of Broken returned NoneType instead of Samples"),
        ("select", [1], r"hook select of Broken returned list instead of Samples"),
        ("batches", None, r"hook batches of Broken returned NoneType instead of Iterable"),
        ("batches", [1], r"hook batches of Broken returned int instead of Batch"),
        ("batch", None, r"hook batch of Broken returned NoneType instead of Batch"),
        ("loss", None, r"Broken fails in a training step .* succeeds without the defense"),
        ("gradient", {}, r"Broken fails in a training step .* succeeds without the defense"),
        ("upload", None, r"hook upload of Broken returned NoneType instead of Update"),
    ],
)
def test_a_hook_that_returns_something_else_is_named(
    tmp_path: Path, hook: str, result: object, message: str
) -> None:
    defense = fails(hook, result)
    federation = fa.Federation("digits", clients=3, defenses=[defense])
    with pytest.raises(BadInput, match=message):
        fa.audit(federation, attacks=["loss-series"], out=tmp_path)


def test_a_hook_with_other_arguments_is_refused(tmp_path: Path) -> None:
    kind = cast(type[Defense], type("Short", (Defense,), {"batch": lambda self, batch: batch}))
    federation = fa.Federation("digits", clients=3, defenses=[kind()])
    with pytest.raises(BadInput, match=r"wrong arguments; define it as def batch\(self, batch, c"):
        fa.audit(federation, attacks=["loss-series"], out=tmp_path)


def misreads(scores: np.ndarray, is_member: np.ndarray) -> float:
    return float(scores["member"].mean())


def test_a_metric_that_fails_is_refused_before_training(tmp_path: Path) -> None:
    message = r"the metric '.*misreads' fails on 20 samples \(IndexError.*test_own_parts.py, line"
    with pytest.raises(BadInput, match=message):
        fa.audit(
            fa.Federation("digits", clients=3),
            attacks=["loss-series"],
            options=fa.AuditOptions(metrics=[misreads]),
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
