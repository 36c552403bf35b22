import re

import pytest

from fedaudit.core.progress import Pace, bars, quiet


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
    said = pace.warning("training", 1, 10**9)
    assert said.startswith("training: about 115,741 days at this speed; press Ctrl-C to stop")
    clock.now += 10
    assert pace.warning("training", 2, 10**9) == ""


@pytest.mark.parametrize(
    ("before", "total", "seconds", "said"),
    [(500_000, 10**6, 10, "about 58 days"), (0, 10**9, 1, ""), (0, 100, 36, "")],
    ids=["without rounds of an earlier start", "after a first step of no time", "of an hour"],
)
def test_speed_is_measured_from_the_current_start(
    before: int, total: int, seconds: int, said: str
) -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.warning("training", before, total)
    clock.now += seconds
    told = pace.warning("training", before + 1, total)
    assert said in told
    assert bool(told) is bool(said)


def test_every_phase_has_its_bar_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with bars() as progress:
        for phase in ("seed [1]: training", "seed [1]: controls"):
            progress(phase, 0, 2)
            progress(phase, 2, 2)
        progress("done before", 0, 5)
        progress("done before", 0, 0)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("2/2") == 2
    assert "seed [1]: controls" in shown.err
    assert re.search(r"2/2 0:00:00 elapsed, 0:00:00 left", shown.err)
    assert "done before" not in shown.err


def test_a_command_that_is_refused_at_once_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with bars():
        quiet("nothing", 0, 1)
    assert capsys.readouterr().err == ""
