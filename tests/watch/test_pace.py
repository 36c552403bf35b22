"""The speed of a training from the times of its rounds, and the time that is left."""

from fedaudit.watch.pace import Milestone, is_silent, seconds_left, seconds_per_round
from fedaudit.watch.state import RunState
from fedaudit.watch.text import format_duration


def test_a_round_takes_the_time_between_files_divided_by_the_rounds_between_them() -> None:
    assert seconds_per_round([Milestone(10, 100.0), Milestone(20, 150.0)]) == 5.0


def test_the_pause_of_a_stopped_run_does_not_count() -> None:
    milestones = [Milestone(1, 0.0), Milestone(2, 3.0), Milestone(3, 9000.0), Milestone(4, 9003.0)]
    assert seconds_per_round(milestones) == 3.0


def test_one_round_or_equal_rounds_give_no_speed() -> None:
    assert seconds_per_round([]) is None
    assert seconds_per_round([Milestone(3, 5.0)]) is None
    assert seconds_per_round([Milestone(3, 5.0), Milestone(3, 9.0)]) is None


def test_time_left_is_over_all_runs() -> None:
    runs = [RunState("a", 10, 10), RunState("b", 4, 10), RunState("c", 0, 10)]
    assert seconds_left(2.0, runs) == 32.0
    assert seconds_left(None, runs) is None
    assert seconds_left(2.0, [RunState("open", 4, None)]) is None


def test_silence_is_relative_to_the_usual_interval() -> None:
    assert not is_silent(0.0, 59.0, None, every=1)
    assert is_silent(0.0, 61.0, None, every=1)
    assert not is_silent(0.0, 1000.0, 30.0, every=10), "a file every 300 seconds"
    assert is_silent(0.0, 3100.0, 30.0, every=10)


def test_durations_are_rounded_for_a_glance() -> None:
    expected = {0.04: "0.0 s", 0.4: "0.4 s", 5: "5 s", 89: "89 s", 200: "3 min", 7200: "2 h"}
    expected |= {8000: "2 h 13 min", 400_000: "5 days"}
    assert {seconds: format_duration(seconds) for seconds in expected} == expected
