"""Progress displays, and the remaining time of a whole run."""

import sys
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fedaudit.core import progress
from fedaudit.core.progress_display import NotebookProgress, TerminalProgress, TimeLeft


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_remaining_time_covers_announced_phases() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    for seed in (1, 2):
        left.announce(f"seed {seed}: training rounds", 10, 0.0)
        left.announce(f"seed {seed}: attacks", 5, 0.2)
    left.update("seed 1: training rounds", 0, 10)
    assert left.remaining() is None
    for done in range(1, 6):
        clock.now += 2
        left.update("seed 1: training rounds", done, 10)
    # 15 rounds of 2 s, and 10 attacks of 0.2 s.
    assert left.remaining() == pytest.approx(32)
    assert left.fraction() == pytest.approx(10 / 42)
    clock.now += 1
    assert left.remaining() == pytest.approx(31), "half of a round is done"
    clock.now += 100
    assert left.remaining() == pytest.approx(30), "a slow round counts as nearly done"


def test_measured_speed_replaces_the_announced_one() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    left.announce("seed 1: attacks", 4, 0.2)
    left.announce("seed 2: attacks", 4, 0.2)
    left.update("seed 1: attacks", 0, 4)
    clock.now = 3.0
    left.update("seed 1: attacks", 1, 4)
    assert left.remaining() == pytest.approx(21)


def test_steps_before_a_resumed_run_do_not_count_as_fast() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    left.update("training rounds", 90, 100)
    assert left.remaining() is None
    clock.now = 4.0
    left.update("training rounds", 91, 100)
    assert left.remaining() == pytest.approx(36)
    left.update("training rounds", 0, 0)
    assert left.remaining() == 0


def test_a_terminal_shows_the_whole_run_above_its_phases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = StringIO()
    console = Console(file=output, force_terminal=True, width=100)
    monkeypatch.setattr("fedaudit.core.progress_display.Console", lambda **settings: console)
    display = TerminalProgress()
    progress.announce_phase(display, "seed 1: attacks", 2, 0.2)
    for done in range(3):
        display("seed 1: training rounds", done, 2)
    for done in range(3):
        display("seed 1: attacks", done, 2)
    display.close()
    lines = [line for line in output.getvalue().splitlines() if "left" in line][-3:]
    assert ["in total" in lines[0], "training rounds" in lines[1], "attacks" in lines[2]] == [
        True
    ] * 3
    assert "100%" in lines[0]
    assert "2/2" in lines[1]


def test_a_notebook_shows_one_line_and_removes_it() -> None:
    pages: list[dict[str, str]] = []

    def show(content: dict[str, str], **settings: object) -> Any:
        pages.append(content)
        return SimpleNamespace(update=lambda content, raw: pages.append(content))

    display = NotebookProgress(show)
    display("seed 1: <training> rounds", 0, 3)
    display("seed 1: <training> rounds", 1, 3)
    display("seed 1: attacks", 0, 2)
    display.close()
    assert "seed 1: &lt;training&gt; rounds 0 of 3" in pages[0]["text/html"]
    assert "seed 1: attacks 0 of 2" in pages[-2]["text/html"]
    assert len(pages) == 3, "updates in quick succession are left out"
    assert pages[-1] == {"text/html": "", "text/plain": ""}


@pytest.mark.parametrize(
    ("wanted", "is_terminal", "shown"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
)
def test_progress_is_shown_in_terminals_or_if_wanted(
    monkeypatch: pytest.MonkeyPatch, wanted: bool | None, is_terminal: bool, shown: bool
) -> None:
    stream = StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.progress_for(wanted) as display:
        assert (display is not progress.ignore_progress) == shown


def test_a_kernel_is_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not progress.is_notebook()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert progress.is_notebook()
    with progress.progress_for(None) as display:
        assert isinstance(display, NotebookProgress)
