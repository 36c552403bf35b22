from itertools import pairwise

from fedaudit.report.figures.charts import RESERVED, style
from fedaudit.report.tables.membership import roc_figure
from fedaudit.results.record import Curve
from tests.report.records import record
from tests.report.seen import figures_of, must


def test_a_roc_is_drawn_only_if_the_record_has_curves() -> None:
    assert set(figures_of(record())) == {"roc"}
    assert set(figures_of(record(details=False))) == set()


def test_a_roc_has_a_panel_per_contrast_and_a_choice_per_setting() -> None:
    roc = figures_of(record())["roc"]
    assert [choice.label for choice in roc.choices] == ["no defense", "cofedmid"]
    assert [panel.title for panel in roc.choices[0].panels] == [
        "Members v. unseen",
        "Members v. other clients' samples",
    ]
    assert len(roc.choices[0].panels[0].curves) == 1 + 8


def test_both_axes_of_a_roc_are_logarithmic_with_lines_at_low_fprs() -> None:
    panel = figures_of(record())["roc"].choices[0].panels[0]
    assert panel.x.log
    assert panel.y.log
    assert panel.uprights == (0.001, 0.01)


def test_points_at_zero_go_to_the_edge_of_a_logarithmic_axis() -> None:
    curve = Curve(
        attack="a", contrast="unseen", target=0, seed=1, fpr=[0, 0.001, 1], tpr=[0, 0.2, 1]
    )
    figure = must(roc_figure([curve]))
    chance, line = figure.choices[0].panels[0].curves
    assert line.x == [0.0005, 0.001, 0.001, 1, 1]
    assert line.y == [0.00005, 0.00005, 0.2, 0.2, 1], "steps go across before they go up"
    assert chance.x == chance.y


def test_chart_styles_are_distinct() -> None:
    looks = [style(place) for place in range(210)]
    assert len(set(looks)) == 210
    assert all(look.dash != other.dash for look, other in pairwise(looks))
    assert all(look.symbol != RESERVED for look in looks)


def test_only_the_strongest_curves_of_a_roc_have_a_colour() -> None:
    roc = figures_of(record())["roc"]
    curves = roc.choices[0].panels[0].curves[1:]
    assert curves[4].name == "fedmia-2"
    assert {curve.look.color for curve in curves[:4]} == {"#8A939E"}
    assert any(key.name.startswith("others: ") and "seqmia" in key.name for key in roc.keys)
