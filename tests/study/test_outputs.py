"""Existing files are not overwritten."""

import json
import os
import shutil
from pathlib import Path

import pytest

from fedaudit import cli
from fedaudit.core.errors import BadInput, Damaged, called_by
from fedaudit.observe.tensors import read_tensors
from fedaudit.plan.sections import Study
from fedaudit.report.page import write_report
from fedaudit.results.read import read_record
from fedaudit.results.record import write_record
from fedaudit.study.running.folder import replaceable_record_or_raise
from fedaudit.study.running.outputs import raise_if_page_not_replaceable
from fedaudit.study.running.reattack import reattack
from fedaudit.study.running.run import run_study
from tests.programs import exit_code
from tests.study.compare_records import make_record
from tests.study.studies import Carried, quick_study

PAGE = "<!DOCTYPE html>\n<title>an older page</title>"
REDRAW = {"figures.evaluation": "redraw"}


@pytest.fixture
def recording(quick: Carried) -> Path:
    return quick.folder


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(*words: object) -> None:
    assert exit_code(*words) == 2


def records(folder: Path, *names: str) -> list[Path]:
    paths = []
    for name in names:
        path = folder / name / "record.json"
        path.parent.mkdir(exist_ok=True)
        write_record(make_record(name, {"fedmia-1": {1: {0: 0.7}}}, {1: 0.8}), path)
        paths.append(path)
    return paths


def test_an_attack_never_replaces_a_record_of_other_settings(
    recording: Path, tmp_path: Path
) -> None:
    first = reattack(recording, [], tmp_path)
    before = files_in(tmp_path)
    with pytest.raises(BadInput, match=r"figures.evaluation was 'aligned'.*out="):
        reattack(recording, [], tmp_path, figures=REDRAW)
    assert files_in(tmp_path) == before
    record = reattack(recording, [], tmp_path)
    assert record.content_hash == first.content_hash


def test_an_attack_replaces_the_record_of_other_attacks_with_a_note(
    recording: Path, tmp_path: Path
) -> None:
    stderr: list[str] = []
    two_attacks, one_attack, other = (
        ["loss-series", "blackbox-loss"],
        ["loss-series"],
        ["blackbox-loss"],
    )
    result = reattack(recording, two_attacks, tmp_path / "both")
    reattack(recording, one_attack, tmp_path / "grown", log=stderr.append)
    assert not any("replaced" in line for line in stderr)
    assert reattack(recording, two_attacks, tmp_path / "grown").content_hash == result.content_hash
    record = reattack(recording, other, tmp_path / "grown", log=stderr.append)
    assert [row.name for row in record.attacks] == other, "the family is that of the attacks now"
    assert "the record of loss-series, by the record of blackbox-loss; name all" in stderr[-1]


def test_a_study_can_be_attacked_repeatedly(recording: Path, tmp_path: Path) -> None:
    hashes = {reattack(recording, ["loss-series"], tmp_path).content_hash for _ in range(3)}
    assert len(hashes) == 1


def test_an_attack_never_replaces_the_record_of_a_study(recording: Path) -> None:
    before = files_in(recording)
    for figures in ({}, REDRAW):
        with pytest.raises(BadInput, match=r"folder of a study.*another folder with out="):
            reattack(recording, [], recording, figures=figures)
    assert files_in(recording) == before


def test_a_study_never_replaces_the_record_of_an_attack(recording: Path, tmp_path: Path) -> None:
    reattack(recording, [], tmp_path, figures=REDRAW)
    before = files_in(tmp_path)
    with pytest.raises(BadInput, match="has a record with other settings"):
        run_study(quick_study(), tmp_path)
    assert files_in(tmp_path) == before


def test_unreadable_records_and_foreign_pages_are_not_replaced(
    tmp_path: Path,
) -> None:
    study: Study = quick_study()
    replaceable_record_or_raise(tmp_path / "nothing there yet", study)
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(BadInput, match=r"cannot be read as a record of this study.*out="):
        replaceable_record_or_raise(tmp_path, study)
    (tmp_path / "record.json").unlink()
    (tmp_path / "report.html").write_text("my notes")
    with pytest.raises(BadInput, match=r"report.html exists and is not an HTML file"):
        replaceable_record_or_raise(tmp_path, study)


@pytest.mark.parametrize("start", ["<!doctype html>", "<!DOCTYPE HTML>", "\ufeff\n <!doctype html"])
def test_a_page_may_be_replaced(start: str, tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text(start, encoding="utf-8")
    raise_if_page_not_replaceable(page)


@pytest.mark.parametrize("name", ["page.pdf", "page.json", "page.html.gz", "record.xml"])
def test_reports_require_a_html_file_name(name: str, recording: Path, tmp_path: Path) -> None:
    record = read_record(recording / "record.json")
    with pytest.raises(BadInput, match=r"would be an HTML page.*ends in \.html, such as"):
        write_report(record, tmp_path / name)
    refused("report", recording, "--out", tmp_path / name)
    refused("compare", *records(tmp_path, "a", "b"), "--out", tmp_path / name)
    assert not (tmp_path / name).exists()
    for right in ("page.HTML", "page.htm", "page"):
        write_report(record, tmp_path / right)
        assert (tmp_path / right).exists()


@pytest.mark.parametrize("content", ["", "{}", "<svg>", "x <!doctype html>"])
def test_another_file_is_not_replaced_by_a_page(content: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(BadInput, match="is not an HTML file"):
        raise_if_page_not_replaceable(tmp_path / "file")


def test_a_report_is_not_written_over_its_record_or_another_file(tmp_path: Path) -> None:
    (record,) = records(tmp_path, "a")
    (tmp_path / "link.html").symlink_to(record)
    (tmp_path / "notes.txt").write_text("notes")
    before = files_in(tmp_path)
    for target in (record, tmp_path / "link.html", tmp_path / "notes.txt", tmp_path):
        refused("report", record, "--out", target)
    assert files_in(tmp_path) == before


def test_a_missing_folder_is_reported_as_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, other = records(tmp_path, "a", "b")
    target = tmp_path / "nowhere" / "x.html"
    refused("report", first, "--out", target)
    refused("compare", first, other, "--out", target)
    stderr = capsys.readouterr().err
    assert stderr.count("nowhere is not a folder; create it") == 2
    assert "partial" not in stderr


def test_a_comparison_does_not_overwrite_other_results(tmp_path: Path) -> None:
    first, other, third = records(tmp_path, "a", "b", "c")
    out = tmp_path / "comparison.html"
    cli.compare(first, other, out=out)
    (tmp_path / "d.json").write_bytes(first.read_bytes())
    before = files_in(tmp_path)
    refused("compare", first, third, "--out", out)
    refused("compare", first, other, "--out", first)
    refused("compare", first, other, "--out", tmp_path / "d.html")
    refused("compare", first, other, "--out", tmp_path / "new.json")
    refused("compare", first, other, "--out", ".")
    for name in ("record.html", "study.html", "runs.html", "run.html"):
        refused("compare", first, other, "--out", tmp_path / name)
        assert not (tmp_path / name).exists()
    assert files_in(tmp_path) == before


def test_a_comparison_can_be_repeated_and_extended(tmp_path: Path) -> None:
    first, other, third = records(tmp_path, "a", "b", "c")
    out = tmp_path / "comparison.html"
    cli.compare(first, other, out=out)
    cli.compare(tmp_path)
    cli.compare(first, other, third, out=out)
    sources = json.loads(out.with_suffix(".json").read_text())["sources"]
    assert [source["name"] for source in sources] == ["a", "b", "c"]
    assert read_record(third).name == "c"


def test_an_attack_reports_progress(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.attack(recording, "fedmia-1", "blackbox-loss", out=tmp_path / "out")
    output = capsys.readouterr()
    assert "seed 1: attacks " in output.err
    assert "2/2" in output.err
    assert "seed 1: controls " in output.err
    assert "5/5" in output.err
    assert "seed 1: controls\n" in output.out


def test_special_files_raise_with_their_name(recording: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "study.json"
    os.mkfifo(fifo)
    with pytest.raises(BadInput, match=r"its study.json is not a regular file"):
        reattack(tmp_path, [], tmp_path / "out")
    with pytest.raises(BadInput, match="is not a regular file"):
        read_tensors(fifo)


@pytest.mark.slow
def test_progress_covers_every_phase_of_a_study(tmp_path: Path) -> None:
    progress_by_phase: dict[str, list[tuple[int, int]]] = {}

    def progress(phase: str, done: int, total: int) -> None:
        progress_by_phase.setdefault(phase, []).append((done, total))

    run_study(
        quick_study(attacks={}, figures={"planted_leak": True, "blind_classifier": True}),
        tmp_path,
        progress=progress,
    )
    phases = ("training rounds", "attacks", "source inference", "controls", "planted leak")
    assert list(progress_by_phase) == [f"seed 1: {phase}" for phase in phases]
    for steps in progress_by_phase.values():
        assert steps[0][0] == 0
        assert steps[-1][0] == steps[-1][1] == steps[0][1] > 0
        assert steps == sorted(steps)


def test_user_texts_do_not_make_a_record_unreadable(tmp_path: Path) -> None:
    study = quick_study(about="turned \u202e round\x1b[2J", hours="x" * 20_000)
    written = run_study(study, tmp_path)
    assert read_record(tmp_path / "record.json") == written
    assert written.config["about"] == "turned \ufffd round\ufffd[2J"
    assert run_study(study, tmp_path).content_hash == written.content_hash


def test_study_folders_are_not_written_through_symlinks(tmp_path: Path) -> None:
    foreign, out = tmp_path / "foreign", tmp_path / "out"
    foreign.write_text("precious")
    (out / "seed-1").mkdir(parents=True)
    for name in ("record.json.partial", "study.json.partial", "seed-1/lock"):
        (out / name).symlink_to(foreign)
    with pytest.raises(BadInput, match=r"seed-1 cannot be used .* a link, which is not followed"):
        run_study(quick_study(), out)
    (out / "seed-1" / "lock").unlink()
    run_study(quick_study(), out)
    assert foreign.read_text() == "precious"


@pytest.mark.parametrize("damage", ["no round", "no client", "a stranger"])
def test_new_signals_need_updates_of_the_same_rounds_and_clients(
    tmp_path: Path, damage: str
) -> None:
    study = quick_study(audit={"keep": "full"})
    run_study(study, tmp_path / "own")
    last = max((tmp_path / "own" / "seed-1" / "rounds").iterdir())
    client = min(last.glob("client-*"))
    if damage == "no round":
        shutil.rmtree(last)
    elif damage == "no client":
        client.unlink()
    else:
        shutil.copy(client, client.with_name("client-000077.safetensors"))
    with pytest.raises(Damaged, match="have other rounds or clients than the measurements"):
        reattack(tmp_path / "own", ["grad-norm"], tmp_path / "again")


@pytest.mark.parametrize("name", ["attacked", "seed-1", "seed-1/measured"])
def test_attacking_a_study_through_a_symlink_raises(
    name: str, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, elsewhere = tmp_path / "study", tmp_path / "elsewhere"
    shutil.copytree(recording, folder)
    (folder / "attacked").mkdir(exist_ok=True)
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    (elsewhere / "report.html").write_text(PAGE)
    before = files_in(elsewhere)
    refused("attack", folder)
    assert f"{name} is a link" in capsys.readouterr().err
    assert files_in(elsewhere) == before


def test_a_page_without_record_is_not_replaced(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.html").write_text(PAGE)
    refused("attack", recording, "--out", tmp_path)
    assert "exists without a record.json" in capsys.readouterr().err
    with pytest.raises(BadInput, match=r"report\.html exists without a record"):
        run_study(quick_study(), tmp_path)
    game = tmp_path / "game.toml"
    shutil.copy(Path(__file__).parents[2] / "studies" / "games" / "ami-digits.toml", game)
    refused("run", game, "--out", tmp_path)
    assert "exists without a record.json" in capsys.readouterr().err
    pair = records(tmp_path, "a", "b")
    (tmp_path / "comparison.html").write_text(PAGE)
    refused("compare", *pair, "--out", tmp_path / "comparison.html")
    assert "exists without a comparison.json" in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} >= {"report.html", "comparison.html"}
    assert (tmp_path / "report.html").read_text() == PAGE
    assert (tmp_path / "comparison.html").read_text() == PAGE


def test_scores_without_record_are_not_replaced(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scores.safetensors").write_text("MINE")
    refused("attack", recording, "--out", tmp_path)
    assert "has a scores.safetensors without a record.json" in capsys.readouterr().err
    assert (tmp_path / "scores.safetensors").read_text() == "MINE"


def test_distrusted_code_is_refused_with_its_source(recording: Path, tmp_path: Path) -> None:
    message = "names the attack 'evil:x'.*trust=True in Python"
    with pytest.raises(BadInput, match=f"^the call {message}"):
        reattack(recording, ["evil:x"], tmp_path)
    with called_by("command"), pytest.raises(BadInput, match=f"^the command line {message}"):
        reattack(recording, ["evil:x"], tmp_path)
