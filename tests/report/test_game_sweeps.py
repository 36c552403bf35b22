"""Which points of a study of games are drawn as a sweep of one setting."""

from fedaudit.report.figures.drawing import Figures
from fedaudit.report.figures.games import game_figures
from fedaudit.report.figures.sweeps import Sweep, sweep_figure, sweeps
from fedaudit.report.page import report_html
from fedaudit.results.games import PointPlayed
from fedaudit.results.record import Record
from tests.estimates import changed
from tests.report.games import NONE, hostile_games, played, point
from tests.report.seen import lines, must


def turned(right: int = 60, **settings: object) -> PointPlayed:
    """A point without a mechanism at these settings, written as ``section__name``."""
    told = {name.replace("__", "."): str(value) for name, value in settings.items()}
    return changed(
        point("none", None, None, right=right), label=",".join(told.values()), settings=told
    )


def record(*points: PointPlayed) -> Record:
    config = {"name": "t", "seed": 1, "data": {"name": "digits"}, "neuron": {"hidden": 200}}
    return played(*points, config=config)


def found_in(one: Record) -> list[Sweep]:
    return sweeps(one.games, one.config)


def drawn(one: Record) -> Figures | None:
    return sweep_figure(one.games, one.config)


def places(one: Sweep) -> dict[str, list[float]]:
    return {words: [placed.at for placed in line] for words, line in one.lines.items()}


def test_points_that_differ_in_one_setting_make_a_line_with_the_study_itself() -> None:
    found = found_in(record(NONE, turned(neuron__hidden=500), turned(neuron__hidden=5)))
    assert [(one.setting, places(one)) for one in found] == [("neuron.hidden", {"": [5, 200, 500]})]


def test_lines_are_told_apart_by_the_other_settings() -> None:
    several = [
        turned(neuron__hidden=hidden, game__batch=batch)
        for hidden in (5, 50, 500)
        for batch in (10, 100)
    ]
    (found,) = found_in(record(NONE, *several))
    assert places(found) == {"batch=10": [5, 50, 500], "batch=100": [5, 50, 500]}


def test_two_values_names_and_epsilons_are_no_sweep() -> None:
    assert drawn(record(NONE, turned(neuron__hidden=5))) is None
    outputs = [turned(neuron__output=name) for name in ("a", "b", "c", True, False)]
    assert drawn(record(NONE, *outputs)) is None
    assert drawn(record(*(point(named=e) for e in (1.0, 2.0, 3.0)))) is None


def test_one_line_shows_both_kinds_of_games_and_several_the_success_alone() -> None:
    one = record(NONE, turned(70, neuron__hidden=5), turned(80, neuron__hidden=50))
    figure = must(drawn(one))
    drawn_lines = lines(figure.choices[0].panels[0])
    assert list(drawn_lines) == ["TNR", "TPR", "Adv"]
    assert drawn_lines["Adv"].y == [0.7, 0.8, NONE.adv.value]
    assert [choice.label for choice in figure.choices] == ["Success against hidden"]


def test_without_any_epsilon_sweeps_stand_for_the_curves_against_it() -> None:
    one = record(NONE, turned(neuron__hidden=5), turned(neuron__hidden=50))
    assert set(game_figures(one)) == {"games-sweeps"}
    assert 'data-figure="games-sweeps"' in report_html(one)
    with_epsilon = record(NONE, point(), turned(neuron__hidden=5), turned(neuron__hidden=50))
    assert set(game_figures(with_epsilon)) == {"games-success"}


def test_settings_of_a_stranger_make_no_figure_and_no_failure() -> None:
    assert drawn(hostile_games()) is None
    odd = [turned(neuron__hidden=value) for value in ("nan", "inf", "1e999", "[1]", "5")]
    assert drawn(record(NONE, *odd)) is None
