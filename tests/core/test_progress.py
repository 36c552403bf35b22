import re

import pytest

from fedaudit.core.progress import Pace, ignore_progress, progress_bars


class Clock:
    """A clock that changes only on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_phase_that_takes_days_gives_one_warning() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.warning("training", 0, 10**9) == ""
    clock.now += 10
    warning = pace.warning("training", 1, 10**9)
    assert warning.startswith("training: about 115,741 days at this speed; press Ctrl-C to stop")
    clock.now += 10
    assert pace.warning("training", 2, 10**9) == ""


@pytest.mark.parametrize(
    ("before", "total", "seconds", "message"),
    [(500_000, 10**6, 10, "about 58 days"), (0, 10**9, 1, ""), (0, 100, 36, "")],
    ids=["without rounds of an earlier start", "after a first step of no time", "of an hour"],
)
def test_speed_is_measured_from_the_current_start(
    before: int, total: int, seconds: int, message: str
) -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.warning("training", before, total)
    clock.now += seconds
    warning = pace.warning("training", before + 1, total)
    assert message in warning
    assert bool(warning) is bool(message)


def test_every_phase_has_its_bar_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as progress:
        for phase in ("seed [1]: training", "seed [1]: controls"):
            progress(phase, 0, 2)
            progress(phase, 2, 2)
        progress("done before", 0, 5)
        progress("done before", 0, 0)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("2/2") == 2
    assert "seed [1]: controls" in output.err
    assert re.search(r"2/2 +0:00:00 elapsed, 0:00:00 left", output.err)
    assert "done before" not in output.err


def test_a_command_that_is_refused_at_once_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars():
        ignore_progress("nothing", 0, 1)
    assert capsys.readouterr().err == ""
