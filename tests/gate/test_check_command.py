"""The command that audits, evaluates a policy and packs the evidence."""

import json
from pathlib import Path

import pytest

from fedaudit.cli import automating
from fedaudit.results.record import write_record
from tests.gate.parts import POLICY, auc, record_of
from tests.programs import exit_code


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    write_record(record_of(auc(0.48, 0.52)), path)
    return path


def test_a_record_is_judged_summarised_and_packed_again(
    record: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("check", record, "--policy", policy, "--out", tmp_path / "out")
    assert exit_code(*command) == 0
    policy.write_text(POLICY.replace("0.6", "0.4"))
    assert exit_code(*command) == 1
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"gate.xml", "verdict.json", "summary.md", "evidence"}
    assert exit_code("verify", tmp_path / "out" / "evidence", "--policy", policy) == 0
    assert "verdict of its policy: fail" in capsys.readouterr().out
    assert "FAIL" in (tmp_path / "out" / "summary.md").read_text()


def test_a_pack_with_a_signature_is_not_replaced(
    record: Path, policy: Path, tmp_path: Path
) -> None:
    command = ("check", record, "--policy", policy, "--out", tmp_path / "out")
    assert exit_code(*command) == 0
    (tmp_path / "out" / "evidence" / "manifest.sig").write_bytes(b"signed")
    assert exit_code(*command) == 2


def test_the_pack_of_the_last_release_is_a_baseline(
    record: Path, policy: Path, tmp_path: Path
) -> None:
    assert exit_code("check", record, "--policy", policy, "--out", tmp_path / "last") == 0
    write_record(record_of(auc(0.55, 0.59)), record)
    last = tmp_path / "last" / "evidence"
    command = ("check", record, "--policy", policy, "--baseline", last, "--out", tmp_path / "new")
    assert exit_code(*command) == 1
    evidence = tmp_path / "new" / "evidence"
    outcome = json.loads((evidence / "manifest.json").read_text())["baseline_outcome"]
    assert outcome == "fail"
    assert exit_code("verify", evidence) == 0
    # Without a baseline, the pack that replaces this one has no record of the last release.
    assert exit_code("check", record, "--policy", policy, "--out", tmp_path / "new") in (0, 3)
    assert not (evidence / "baseline.json").exists()
    assert exit_code("verify", evidence) == 0


def test_policy_and_baseline_are_read_before_the_study_runs(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automating, "run_command", lambda *_, **__: pytest.fail("it was run"))
    study = tmp_path / "study.toml"
    study.write_text('name = "study"\n')
    out = ("--out", tmp_path / "out")
    assert exit_code("check", study, "--policy", tmp_path / "missing.toml", *out) == 2
    without_ceiling = tmp_path / "no-ceiling.toml"
    without_ceiling.write_text('name = "none"\n[baseline]\n')
    assert exit_code("check", study, "--policy", without_ceiling, *out) == 2
    absent = ("--baseline", tmp_path / "missing")
    assert exit_code("check", study, "--policy", policy, *absent, *out) == 2


def test_a_study_is_run_and_a_recording_is_attacked(
    record: Path, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Path]] = []

    def finish(name: str, audited: Path, out: Path) -> None:
        calls.append((name, audited))
        out.mkdir(parents=True)
        (out / "record.json").write_bytes(record.read_bytes())

    for name in ("run_command", "attack"):
        monkeypatch.setattr(
            automating, name, lambda path, *, out, name=name, **_: finish(name, path, out)
        )
    study, recording = tmp_path / "study.toml", tmp_path / "recording"
    study.write_text('name = "study"\n')
    recording.mkdir()
    (recording / "recording.json").write_text("{}")
    for number, audited in enumerate((study, recording)):
        out = tmp_path / f"out-{number}"
        assert exit_code("check", audited, "--policy", policy, "--out", out) == 0
        assert (out / "audit" / "record.json").is_file()
    assert calls == [("run_command", study), ("attack", recording)]


def test_no_verdict_is_left_if_custom_code_ends_the_process(
    record: Path, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, study = tmp_path / "out", tmp_path / "study.toml"
    assert exit_code("check", record, "--policy", policy, "--out", out) == 0
    assert (out / "verdict.json").is_file()

    def end(*args: object, **kwargs: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(automating, "run_command", end)
    study.write_text('name = "study"\n')
    assert exit_code("check", study, "--policy", policy, "--out", out) == 0
    assert not (out / "verdict.json").exists()
