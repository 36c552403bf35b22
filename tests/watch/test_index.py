"""The index of results: what it lists, and what it says about results that cannot be read."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from fedaudit.cli import index as index_command
from fedaudit.core.errors import BadInput
from fedaudit.report.first import screen_of
from fedaudit.results.record import Record, write_record
from fedaudit.watch.collection import CollectionSite
from fedaudit.watch.index import Index, ResultRow
from fedaudit.watch.index_page import index_page
from tests.report.games import played
from tests.report.records import HOSTILE, HOSTILE_TAG, STRENGTH, record
from tests.watch.small import at_round, finished
from tests.watch.test_recording import record_rounds


def write(folder: Path, written: Record, date: str = "") -> Record:
    folder.mkdir(parents=True)
    if date:
        environment = written.environment.model_copy(update={"started": f"{date}T10:00:00+00:00"})
        written = written.model_copy(update={"environment": environment})
    write_record(written, folder / "record.json")
    return written


def rows_of(root: Path) -> dict[str, ResultRow]:
    return {row.result.folder.relative_to(root).as_posix(): row for row in Index(root).rows()}


def test_a_result_has_the_verdict_and_the_main_figure_of_its_report(tmp_path: Path) -> None:
    for name, made in (("study", record(strengths=STRENGTH[:3])), ("games", played())):
        written = write(tmp_path / name, made)
        result = rows_of(tmp_path)[name].result
        screen = screen_of(written)
        assert (result.status, result.main_tile) == (screen.status, screen.numbers[0])
        assert result.is_finished


def test_results_are_listed_from_new_to_old(tmp_path: Path) -> None:
    for name, date in (("b", "2026-01-05"), ("a", "2026-03-01"), ("deep/c", "2025-12-31")):
        write(tmp_path / name, record(name=name.replace("/", "-"), strengths=(0.5,)), date)
    assert [row.result.date for row in Index(tmp_path).rows()] == [
        "2026-03-01",
        "2026-01-05",
        "2025-12-31",
    ]


def test_results_of_one_study_have_a_trend(tmp_path: Path) -> None:
    for month, strength in enumerate((2.0, 1.0, 0.4), 1):
        write(tmp_path / f"m{month}", record(strengths=(strength,)), f"2026-0{month}-01")
    write(tmp_path / "other", record(name="other", strengths=(1.0,)), "2026-02-02")
    rows = rows_of(tmp_path)
    assert rows["other"].trend is None
    trend = rows["m1"].trend
    assert trend is not None
    marks = [rows[name].trend.mark[0] for name in ("m1", "m2", "m3")]  # type: ignore[union-attr]
    assert marks == [0.0, 0.5, 1.0], "each row marks its own result"
    assert re.findall(r"2026-0\d-01", trend.text) == ["2026-01-01", "2026-02-01", "2026-03-01"]
    values = [float(part.split()[1]) for part in re.findall(r"2026-\S+ [\d.]+", trend.text)]
    assert values == sorted(values, reverse=True)
    heights = [float(point.split()[1]) for point in trend.path.removeprefix("M").split("L")]
    assert heights == sorted(heights), "the line falls: y grows downwards"


def test_what_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path / "good", record(strengths=(0.5,)))
    shutil.copytree(tmp_path / "good", tmp_path / "damaged")
    path = tmp_path / "damaged" / "record.json"
    path.write_text(path.read_text(encoding="utf-8")[:-50], encoding="utf-8")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "record.json").write_text('{"some": "other program"}')
    (tmp_path / "nonsense").mkdir()
    (tmp_path / "nonsense" / "study.json").write_bytes(b"\xff\x00")
    rows = rows_of(tmp_path)
    for name in ("damaged", "foreign", "nonsense"):
        assert rows[name].result.status == "cannot be read"
        file = "study.json" if name == "nonsense" else "record.json"
        assert file in rows[name].result.reason
        assert not rows[name].result.is_finished


def test_open_audits_are_listed_without_a_verdict(tmp_path: Path) -> None:
    at_round(tmp_path / "small", {1: 3, 2: 1})
    record_rounds(tmp_path / "live")
    rows = rows_of(tmp_path)
    assert set(rows) == {"small", "live"}
    assert rows["small"].result.status == "not finished"
    assert rows["small"].result.reason == "4 rounds measured in 2 seeds"
    assert rows["live"].result.status == "attacks not run"
    assert "4 rounds measured" in rows["live"].result.reason


def test_links_and_subfolders_of_runs_are_not_searched(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside / "result", record(strengths=(0.5,)))
    root = tmp_path / "root"
    root.mkdir()
    shutil.copytree(finished(), root / "small")
    (root / "link").symlink_to(outside)
    (root / "loop").symlink_to(root)
    assert set(rows_of(root)) == {"small"}


def test_an_unchanged_record_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one", record(strengths=(0.5,)))
    index = Index(tmp_path)
    first = index.rows()
    monkeypatch.setattr("fedaudit.watch.index.read_record", None)
    assert index.rows() == first


def test_names_of_strangers_are_escaped(tmp_path: Path) -> None:
    write(tmp_path / "hostile", record(name=HOSTILE + HOSTILE_TAG, strengths=(0.5,)))
    folder = tmp_path / (HOSTILE_TAG.replace("/", "_") + "'")
    folder.mkdir()
    (folder / "study.json").write_text(
        json.dumps({"name": HOSTILE + "\ud800\u202e"}), encoding="utf-8"
    )
    rows = Index(tmp_path).rows()
    html = index_page(tmp_path, rows, links=[""] * len(rows)).html
    visible = re.sub(r"(?s)<script>.*?</script>", "", html)
    assert "<img" not in visible
    assert "<script" not in visible
    assert "&lt;/script&gt;" in visible


def test_a_folder_whose_name_is_no_text_is_listed_and_compared(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path / "root") + b"\xff"))
    write(folder / os.fsdecode(b"one\xff"), record(name="one"))
    write(folder / "two", record(name="two", strengths=(0.5,)))
    (folder / os.fsdecode(b"one\xff") / "report.html").write_text("<!doctype html>", "utf-8")
    index_command(folder)
    html = (folder / "index.html").read_text(encoding="utf-8")
    assert 'href="one%FF/report.html"' in html
    assert "one\ufffd/record.json" in html
    site = CollectionSite(folder)
    index = site.answer("", "")
    assert index is not None
    numbers = re.findall(r'data-number="(\w+)"', index.html)
    compared = site.answer("compare", "&".join(numbers))
    assert compared is not None
    for answer in (index, compared):
        answer.html.encode("utf-8")


def test_the_command_writes_an_offline_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "one", record(strengths=(0.5,)))
    (tmp_path / "one" / "report.html").write_text("<!doctype html>", encoding="utf-8")
    index_command(tmp_path)
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="one/report.html"' in html
    assert not re.search(r'(src|href)="(https?:)?//', html)
    assert "Content-Security-Policy" in html
    assert "index of 1 result:" in capsys.readouterr().out


def test_the_command_replaces_no_other_file(tmp_path: Path) -> None:
    write(tmp_path / "one", record(strengths=(0.5,)))
    (tmp_path / "index.html").write_text("my notes", encoding="utf-8")
    with pytest.raises(BadInput, match="is not an HTML file"):
        index_command(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="contains no result"):
        index_command(tmp_path / "empty")


def test_the_server_compares_two_results_by_their_numbers(tmp_path: Path) -> None:
    write(tmp_path / "one", record(name="one"))
    write(tmp_path / "two", record(name="two", strengths=(0.5,)))
    site = CollectionSite(tmp_path)
    page = site.answer("", "")
    assert page is not None
    numbers = re.findall(r'data-number="(\w+)"', page.html)
    assert len(numbers) == 2
    comparison = site.answer("compare", "&".join(numbers))
    assert comparison is not None
    assert "Comparison of 2 audits" in comparison.html
    for query in ("", numbers[0], "&".join([*numbers, "0" * 16]), "../one&../two"):
        assert site.answer("compare", query) is None
    games = write(tmp_path / "games", played())
    site.answer("", "")
    (number,) = {*site._rows} - {*numbers}
    refusal = site.answer("compare", f"{numbers[0]}&{number}")
    assert refusal is not None
    assert f"&#39;{games.name}&#39; is a record of games" in refusal.html


def test_the_server_shows_each_audit_and_no_other_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    at_round(root / "small", {1: 2})
    write(tmp_path / "secret", record(name="secret", strengths=(0.5,)))
    site = CollectionSite(root)
    page = site.answer("", "")
    assert page is not None
    (link,) = re.findall(r'<th scope="row"><a href="(\w+)/"', page.html)
    audit = site.answer(f"{link}/", "")
    assert audit is not None
    assert "Round 2 of 4" in audit.html
    assert site.answer(f"{link}/report", "") is None, "there is no record yet"
    for path in (link, "small/", "../secret/", f"{link}/../../secret", f"{link}/record.json"):
        assert site.answer(path, "") is None


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="contains no study"):
        CollectionSite(tmp_path)
    with pytest.raises(BadInput, match="does not exist"):
        Index(tmp_path / "missing")
