"""The report in a browser: it renders, and no injected script runs."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedaudit.core.files import RECORDING_FILE
from fedaudit.live.attack import attack_recording
from fedaudit.live.record import record as start_recording
from fedaudit.live.recording import LOG_FILE
from fedaudit.report.page import report_html, write_comparison, write_report
from fedaudit.results.read import read_record
from fedaudit.results.record import Record
from fedaudit.study.comparing import compare_records
from tests.live.federation import data, network, rounds
from tests.report.clustered import clustered, hostile_clusters, with_clusters
from tests.report.games import hostile_games, played
from tests.report.records import (
    HOSTILE,
    HOSTILE_LINK,
    HOSTILE_TAG,
    STRENGTH,
    hostile,
    record,
    source,
    with_sources,
)

BROWSER = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=10000",
    "--window-size=1280,1200",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on the PATH"),
]


FRAME = '<iframe data-page="{}" style="width: 380px; height: 800px; border: 0"></iframe>'
PHONES = """<!DOCTYPE html><title>Windows of a phone's width</title>
{}
<script>
for (const frame of document.querySelectorAll("iframe")) {{
  frame.addEventListener("load", () => {{
    const notes = document.createElement("p");
    Object.assign(notes.dataset, frame.contentDocument.documentElement.dataset);
    frame.replaceWith(notes);
  }});
  // Assigned after the listener, since a page may load before the script runs.
  frame.srcdoc = frame.dataset.page;
}}
</script>
"""


def dom(page: Path, profile: Path) -> str:
    """The page as the browser has it once everything is drawn."""
    answer = subprocess.run(
        [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    return answer.stdout.decode("utf-8")


def on_phones(documents: Sequence[str], folder: Path) -> list[dict[str, str]]:
    """Notes of pages in frames 380 pixels wide: no window of a headless browser gets below 500."""
    inside = [document.replace("&", "&amp;").replace('"', "&quot;") for document in documents]
    page = folder / "phones.html"
    page.write_text(PHONES.format("\n".join(map(FRAME.format, inside))), encoding="utf-8")
    # A busy Chromium at times blocks the script of a framed page, whose hash it accepts at the
    # next try; a page that is really unsound fails every time.
    for attempt in range(4):
        notes = all_notes_of(dom(page, folder / f"profile{attempt}"), "p")
        if len(notes) == len(documents) and all(map(is_sound, notes)):
            break
    assert len(notes) == len(documents)
    return notes


def notes_of(document: str) -> dict[str, str]:
    """The notes that the page's own script left on the document element."""
    return all_notes_of(document, "html")[0]


def all_notes_of(document: str, element: str) -> list[dict[str, str]]:
    elements = re.findall(rf"<{element}( [^>]*)?>", document)
    return [dict(re.findall(r'data-([\w-]+)="([^"]*)"', element)) for element in elements]


def is_sound(notes: dict[str, str]) -> bool:
    """Whether nothing went wrong, and only the inside of scrolling boxes exceeds the window."""
    expected_notes = {"script-errors": "0", "blocked": "0", "overflow": "0", "ready": "true"}
    return expected_notes.items() <= notes.items()


def opened(record: Record, folder: Path) -> tuple[str, dict[str, str]]:
    """A record's page as the browser has it, and the notes of its script: nothing went wrong."""
    page = folder / "report.html"
    write_report(record, page)
    document = dom(page, folder / "profile")
    notes = notes_of(document)
    assert is_sound(notes), notes
    return document, notes


def is_harmless(document: str) -> bool:
    """Return whether no injected text ran as a script or became an element."""
    visible = re.sub(r"(?s)<script.*?</script>", "", document)
    return (
        "hacked" not in notes_of(document)
        and "<img" not in visible
        and not re.search(r"<a[^>]*href=.http", visible)
    )


PAGES: dict[str, tuple[Callable[[], Record], int]] = {
    # The first picture, and two contrasts of a ROC.
    "members": (lambda: record(strengths=STRENGTH[:3]), 3),
    # The first picture alone.
    "sources": (lambda: with_sources(source(), source(seed=2)), 1),
    "both": (lambda: with_sources(source(), source(seed=2), membership=True), 1),
    "clusters": (lambda: with_clusters(clustered(), clustered(seed=2)), 1),
    "games": (played, 1),
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_report_draws_every_panel_without_a_script_error(tmp_path: Path, kind: str) -> None:
    make, figures = PAGES[kind]
    _, notes = opened(make(), tmp_path)
    assert notes["figures"] == str(figures)
    assert int(notes["width"]) > 1200


@pytest.mark.parametrize("make", [hostile, hostile_clusters, hostile_games])
def test_hostile_names_run_nothing_and_break_nothing(
    tmp_path: Path, make: Callable[[], Record]
) -> None:
    assert is_harmless(opened(make(), tmp_path)[0])


def test_a_hostile_recording_runs_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    with start_recording(folder, network, data().split.audit, attacks=("blackbox-loss",)) as live:
        for live_round in rounds():
            live.round(live_round.number, sent=live_round.sent, uploads=live_round.uploads)
    bad = HOSTILE + HOSTILE_TAG + HOSTILE_LINK + "\x1b[2J" + "\u202e"
    settings = json.loads((folder / RECORDING_FILE).read_text())
    settings |= {"model": bad, "started": HOSTILE[:40], "refused": {"seqmia": bad}}
    (folder / RECORDING_FILE).write_text(json.dumps(settings))
    lines = (folder / LOG_FILE).read_text().splitlines()
    lines = [json.dumps(json.loads(line) | {"note": bad}) for line in lines]
    (folder / LOG_FILE).write_text("\n".join(lines) + "\n")
    document, _ = opened(attack_recording(folder, (), tmp_path / "out"), tmp_path)
    assert read_record(tmp_path / "out" / "record.json").watched, "and the record can be read"
    assert is_harmless(document)


def test_on_a_phone_nothing_sticks_out_of_a_page(tmp_path: Path) -> None:
    records = (
        record(strengths=STRENGTH[:3]),
        record(strengths=STRENGTH[:3], seeds=(1, 2, 3), over_seeds=True),
        hostile(),
        hostile_clusters(),
        played(),
        hostile_games(),
    )
    for notes in on_phones([report_html(each) for each in records], tmp_path):
        assert is_sound(notes), notes
        assert "hacked" not in notes
        assert int(notes["width"]) <= 380


def test_a_comparison_draws_its_figure(tmp_path: Path) -> None:
    page = tmp_path / "comparison.html"
    records = [record(name="one"), record(name="two", strengths=(0.5,))]
    write_comparison(compare_records(records), records, page)
    notes = notes_of(dom(page, tmp_path / "profile"))
    assert is_sound(notes), notes
    assert notes["figures"] == "1", "one contrast at a time, by choice"
