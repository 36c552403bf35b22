"""Pages of running audits in a real browser, which sees figures change."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from fedaudit.watch.collection import CollectionSite
from fedaudit.watch.folder import AuditFolder
from fedaudit.watch.server import Site, WatchServer
from fedaudit.watch.site import AuditSite
from tests.guard import client
from tests.live.federation import recorder, rounds
from tests.report.records import HOSTILE, HOSTILE_TAG, record
from tests.report.test_browser import BROWSER
from tests.watch.test_index import write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on the PATH"),
]

STUDY = """
name = "watched"
[data]
name = "digits"
[partition]
clients = 4
[model]
name = "mlp"
[training]
rounds = 14
epochs = 25
batch_size = 10
lr = 0.1
[audit]
samples = 160
every = 1
[figures]
permutations = 20
[attacks.blackbox-loss]
[attacks.loss-series]
"""
SECONDS = 240_000
"""Longest time for a study on a busy machine, in milliseconds."""
SHOWN = """() => ({
  badge: document.querySelector(".status").textContent,
  headline: document.querySelector("#headline").textContent,
  auc: document.querySelector(".tile b")?.textContent,
  provisional: document.querySelectorAll(".provisional").length,
  reports: document.querySelectorAll("a[href=report]").length,
})"""
"""What the page shows at one moment, between two updates."""
GAP = ".tile:has-text('Loss gap') b"
AUC = ".tile:has-text('Strongest attack so far') b"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


def opened(browser: Browser, url: str, width: int = 1400) -> Page:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(60_000)
    page.goto(url)
    page.wait_for_function("Number(document.documentElement.dataset.updates ?? 1) > 0")
    return page


def is_sound(page: Page) -> bool:
    """Whether no script failed or was blocked, and nothing exceeds the window."""
    notes = page.evaluate("({...document.documentElement.dataset})")
    width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return (notes["scriptErrors"], notes["blocked"]) == ("0", "0") and width <= 0


@contextmanager
def serving(site: Site) -> Iterator[str]:
    server = WatchServer(site)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.stop()
        thread.join(10)


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A fedaudit command as a process, which is killed at the end if it is still running."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedaudit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A test that runs in the background ignores Ctrl-C, which its processes would inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wait_for_file(path: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        if path.exists():
            return
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.2)
    raise AssertionError(f"{path} does not appear")


def address_in(output: IO[str] | None) -> str:
    assert output is not None
    for line in output:
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise AssertionError("the command has printed no address")


def test_a_figure_changes_while_a_study_trains(browser: Browser, tmp_path: Path) -> None:
    study, folder = tmp_path / "study.toml", tmp_path / "run"
    study.write_text(STUDY, encoding="utf-8")
    with running("run", str(study), "--out", str(folder)) as training:
        wait_for_file(folder / "study.json", training)
        with running("watch", str(folder), "--no-browser") as watching:
            page = opened(browser, address_in(watching.stdout))
            page.locator(AUC).wait_for(timeout=SECONDS)
            figures, numbers = set[str](), set[str]()
            deadline = time.monotonic() + SECONDS / 1000
            while (len(figures) < 2 or len(numbers) < 3) and time.monotonic() < deadline:
                shown = page.evaluate(SHOWN)
                if shown["badge"] == "training":
                    numbers.add(shown["headline"].split(" of ")[0])
                    figures.add(shown["auc"])
                    assert (shown["provisional"], shown["reports"]) == (1, 0)
                page.wait_for_timeout(100)
            assert len(figures) >= 2, f"the AUC changes without a reload: {figures}, {numbers}"
            assert len(numbers) >= 3
            assert is_sound(page)
            for width in (1400, 420):
                page.set_viewport_size({"width": width, "height": 900})
                page.screenshot(path=tmp_path / f"watch-{width}.png", full_page=True)
                assert is_sound(page)
            page.locator("a[href=report]").wait_for(timeout=SECONDS)
            assert page.locator(".provisional").count() == 0
            page.locator("a[href=report]").click()
            page.wait_for_load_state()
            assert "watched" in page.title()
            assert page.evaluate("document.documentElement.dataset.ready") == "true"
            page.close()
            watching.send_signal(signal.SIGINT)
            assert watching.wait(60) == 0
        assert training.wait(120) == 0


def test_a_recording_and_its_missing_client_appear(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with recorder(folder, strict=False) as live, serving(AuditSite(AuditFolder(folder))) as url:
        page = opened(browser, url, width=420)
        assert page.locator("#headline").inner_text() == "No round is complete yet"
        figures = []
        for each in rounds():
            uploads = {c: upload for c, upload in each.uploads.items() if c or each.number < 4}
            live.round(each.number, sent=each.sent, uploads=uploads, selected=[0, 1, 2])
            page.locator(f"#headline:has-text('Round {each.number} ')").wait_for()
            figures.append(page.locator(GAP).inner_text())
        assert len(set(figures)) > 1, figures
        assert (
            "missing: client 0" in page.locator(".tile:has-text('Clients in round 4')").inner_text()
        )
        assert is_sound(page)
        page.close()


def test_the_decisions_of_a_guard_appear(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "guard"
    with client.guard(folder) as guard, serving(AuditSite(AuditFolder(folder))) as url:
        page = opened(browser, url, width=420)
        guard.check(1, sent=client.initial(), upload=client.honest())
        page.locator("#headline:has-text('1 upload checked: 1 sent')").wait_for()
        guard.check(2, sent=client.initial(), upload=client.memorising())
        page.locator("#headline:has-text('2 uploads checked: 1 sent, 1 withheld')").wait_for()
        assert page.locator(".tile:has-text('Uploads withheld') b").inner_text() == "1"
        assert is_sound(page)
        page.close()


def test_the_end_of_the_server_is_noticed(browser: Browser, tmp_path: Path) -> None:
    write(tmp_path / "one", record(strengths=(0.5,)))
    with serving(AuditSite(AuditFolder(tmp_path / "one"))) as url:
        page = opened(browser, url)
        assert page.locator("#lost").is_hidden()
    page.locator("#lost").wait_for(state="visible")
    page.close()


@pytest.mark.parametrize("width", [1400, 420])
def test_results_are_filtered_selected_and_compared(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    for name, strength in (("plain", 2.0), ("it's defended", 0.4), ("other", 1.0)):
        named = record(name=name.replace(" ", "-").replace("'", ""), strengths=(strength,))
        write(tmp_path / name, named)
    write(tmp_path / "hostile", record(name=HOSTILE + HOSTILE_TAG, strengths=(0.5,)))
    with serving(CollectionSite(tmp_path)) as url:
        page = opened(browser, url, width)
        assert page.locator("tbody tr:visible").count() == 4
        page.locator("#filter").fill("plain")
        assert page.locator("tbody tr:visible").count() == 1
        assert page.locator("#count").inner_text() == "1 of 4"
        page.locator("#filter").fill("")
        page.locator("input[data-path^=plain]").check()
        page.locator('input[data-path^="it\'s"]').check()
        command = page.locator("#command").inner_text()
        shell = subprocess.run(
            ["sh", "-c", f"set -- {command}; printf '%s\\n' \"$@\""],
            capture_output=True,
            text=True,
            check=True,
        )
        assert shell.stdout.splitlines() == [
            "fedaudit",
            "compare",
            os.fspath(tmp_path / "plain" / "record.json"),
            os.fspath(tmp_path / "it's defended" / "record.json"),
        ]
        assert page.evaluate("document.documentElement.dataset.hacked") is None
        assert is_sound(page)
        page.locator("#link a").click()
        page.wait_for_load_state()
        assert "Comparison of 2 audits" in page.title()
        assert page.evaluate("document.documentElement.dataset.ready") == "true"
        page.close()
