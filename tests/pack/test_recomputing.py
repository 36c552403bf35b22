"""The content hash of a packed record, recomputed from its run folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.pack.manifest import Manifest, digest_of, manifest_text
from fedaudit.pack.packing import write_pack
from fedaudit.pack.recomputing import compare_with_run, recompute_record
from fedaudit.pack.verifying import verify
from fedaudit.study.running.run import run_study
from tests.digests import write_with_digest
from tests.observe.test_tensors import shuffle_readers
from tests.programs import exit_code
from tests.report.games import NONE, played
from tests.study.studies import quick_study

Json = dict[str, Any]

POLICY = 'name = "x"\n[membership]\nauc = 0.6\n[controls]\nrequired = []\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_study(quick_study(), folder)
    return folder


@pytest.fixture
def pack(run: Path, tmp_path: Path) -> Path:
    (tmp_path / "policy.toml").write_text(POLICY)
    write_pack(run / "record.json", tmp_path / "policy.toml", tmp_path / "pack")
    return tmp_path / "pack"


def verified(*words: object) -> int:
    return exit_code("verify", *words)


def test_a_packed_record_has_the_hash_of_its_run(
    run: Path, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in run.iterdir())
    assert verified(pack, "--recording", run) == 0
    assert "verified: every estimate, control and count of the record" in capsys.readouterr().out
    assert sorted(path.name for path in run.iterdir()) == before
    assert verified(pack) == 0
    assert "not checked: whether every estimate, control and count" in capsys.readouterr().out


def test_the_record_of_another_run_has_another_hash(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(quick_study(training={"lr": 0.05}), tmp_path / "other")
    assert verified(pack, "--recording", tmp_path / "other") == 1
    assert "wrong: the digest of the result (content_hash) is not that" in capsys.readouterr().out


def forged(pack: Path, run: Path, change: Callable[[Json], None], policy: Path) -> Path:
    """Write a pack of a record with changed figures by the command that packs records."""
    record = json.loads((run / "record.json").read_text())
    change(record)
    write_with_digest(record, pack.parent / "forged.json")
    write_pack(pack.parent / "forged.json", policy, pack.parent / "forged")
    return pack.parent / "forged"


def harmless(record: Json) -> None:
    # Without a recording, AUCs that do not fit their curves are found.
    record["curves"] = []
    for entry in record["estimates"]:
        for figure in entry.get("figures", [entry]):
            if figure["metric"] == "auc" and "by" not in entry:
                figure.update(value=0.5, low=0.48, high=0.52)


def passed(record: Json) -> None:
    record["controls"][0]["passed"] = not record["controls"][0]["passed"]


def other_source(record: Json) -> None:
    record["attacks"][0]["source"] = "unknown"


def less_seen(record: Json) -> None:
    record["curves"].pop()


def fitted_better(record: Json) -> None:
    record["accuracies"][0]["accuracy"] = [0.9] * len(record["accuracies"][0]["rounds"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (harmless, "estimates of the record are not what the run gives, such as that of "),
        (passed, "controls of the record are not what the run gives"),
        (other_source, "such as that of loss-series: source is 'unknown' instead of "),
        (less_seen, "curves, and the run gives"),
        (fitted_better, "accuracies of the record are not what the run gives"),
    ],
)
def test_a_recording_reveals_a_record_forged_before_packing(
    change: Callable[[Json], None],
    message: str,
    run: Path,
    pack: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    false = forged(pack, run, change, pack.parent / "policy.toml")
    assert verified(false) == 0, "hashes alone do not show it"
    capsys.readouterr()
    assert verified(false, "--recording", run) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert message in out
    assert "the pack is not sound" in out


def commit(record: Json) -> None:
    record["environment"]["commit"] = "beef"


def device(record: Json) -> None:
    record["environment"]["device"] = "H100"


def versions(record: Json) -> None:
    record["environment"]["versions"]["torch"] = "9"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (commit, "commit is 'beef' instead of"),
        (device, "device is 'H100' instead of"),
        (versions, "versions is "),
    ],
)
def test_the_environment_is_compared_with_the_record_in_the_folder(
    change: Callable[[Json], None], message: str, run: Path, pack: Path
) -> None:
    false = forged(pack, run, change, pack.parent / "policy.toml")
    assert any(message in problem for problem in compare_with_run(verify(false), run).problems)


def test_a_different_start_time_is_reported(run: Path, pack: Path) -> None:
    def earlier(record: Json) -> None:
        record["environment"]["started"] = "1999-01-01"

    comparison = compare_with_run(
        verify(forged(pack, run, earlier, pack.parent / "policy.toml")), run
    )
    assert comparison.problems == []
    note = next(text for text in comparison.unchecked if "started 1999-01-01" in text)
    assert "the record in the folder was made at another time" in note


def test_the_recording_reveals_forged_counts(
    run: Path, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = Manifest.model_validate_json((pack / "manifest.json").read_text())
    manifest = manifest.model_copy(update={"suppressed": {**manifest.suppressed, "exposed": 0}})
    manifest = manifest.model_copy(update={"digest": digest_of(manifest)})
    (pack / "manifest.json").write_text(manifest_text(manifest))
    assert verified(pack) == 0
    assert verified(pack, "--recording", run) == 1
    assert "the manifest says that 0 of exposed were suppressed" in capsys.readouterr().out


def test_a_folder_that_is_no_run_is_refused(
    run: Path, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "record.json", tmp_path)
    assert verified(pack, "--recording", tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_games_need_no_recording(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="omit the recording"):
        recompute_record(played(NONE), tmp_path)


@pytest.fixture(scope="module")
def many_clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose clients' training accuracies differ, so that their sum has rounding errors."""
    folder = tmp_path_factory.mktemp("many")
    study = quick_study(
        partition={"clients": 12, "scheme": "dirichlet", "options": {"beta": 1.0}},
        audit={"fair": 60, "every": 4},
    )
    run_study(study, folder)
    return folder


@pytest.mark.slow
def test_verification_does_not_depend_on_reading_order(many_clients: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    write_pack(many_clients / "record.json", tmp_path / "policy.toml", tmp_path / "pack")
    verification = verify(tmp_path / "pack")
    for seed in range(8):
        with pytest.MonkeyPatch.context() as patch:
            shuffle_readers(patch, seed)
            assert compare_with_run(verification, many_clients).problems == []


def test_sentences_of_a_record_of_another_version_are_not_compared(
    run: Path, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = pack / "policy.toml"

    def reword(record: Json) -> None:
        record["untested"] = ["Other words of an earlier version."]
        record["controls"][0]["note"] = "other words"

    def reword_of_version_0_1(record: Json) -> None:
        record["environment"]["versions"]["fedaudit"] = "0.1.0"
        reword(record)

    def with_another_value(record: Json) -> None:
        reword_of_version_0_1(record)
        record["controls"][0]["value"] = 0.123

    def without_a_note(record: Json) -> None:
        reword_of_version_0_1(record)
        record["controls"][0]["note"] = ""

    for change, code in (
        (reword, 1),
        (reword_of_version_0_1, 0),
        (with_another_value, 1),
        (without_a_note, 1),
    ):
        changed = forged(pack, run, change, policy)
        # The record in the folder states the versions and is compared with the pack.
        folder = pack.parent / change.__name__
        shutil.copytree(run, folder)
        shutil.copy(pack.parent / "forged.json", folder / "record.json")
        assert verified(changed, "--recording", folder) == code, capsys.readouterr().out
        printed = capsys.readouterr().out
        assert ("not checked: notes and the list" in printed) == (change is not reword)
        shutil.rmtree(changed)
