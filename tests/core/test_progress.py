import pytest

from fedaudit.core.progress import Pace, bars, quiet


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_work_that_will_take_days_is_told_once_and_with_a_way_out() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.warning("training", 0, 10**9) == ""
    clock.now += 10
    said = pace.warning("training", 1, 10**9)
    assert said.startswith("training: about 115,741 days at this speed; Ctrl-C stops it")
    clock.now += 10
    assert pace.warning("training", 2, 10**9) == ""


def test_rounds_of_an_earlier_start_do_not_count_into_the_speed() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.warning("training", 500_000, 10**6)
    clock.now += 10
    assert "about 58 days" in pace.warning("training", 500_001, 10**6)


def test_a_first_step_of_no_time_says_nothing_yet() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.warning("training", 0, 10**9)
    clock.now += 1
    assert pace.warning("training", 1, 10**9) == ""


def test_work_of_an_hour_is_not_worth_a_word() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.warning("training", 0, 100)
    clock.now += 36
    assert pace.warning("training", 1, 100) == ""


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
    assert "done before" not in shown.err


def test_a_command_that_is_refused_at_once_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with bars():
        quiet("nothing", 0, 1)
    assert capsys.readouterr().err == ""
