from itertools import pairwise

import pytest

from fedaudit.report.figures.drawing import RESERVED, Band, Series, style
from fedaudit.report.figures.membership import roc_figure
from fedaudit.report.page import figures_of
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Curve
from tests.estimates import changed, estimate
from tests.report.records import record
from tests.report.seen import must, of_kind


def test_every_kind_of_figure_is_drawn_where_the_record_has_its_data() -> None:
    assert set(figures_of(record())) == {
        "roc",
        "trajectories",
        "histograms",
        "client",
        "class",
        "accuracy",
    }
    assert set(figures_of(record(details=False))) == {"accuracy"}


def test_a_roc_has_a_panel_a_contrast_and_a_choice_a_setting() -> None:
    roc = figures_of(record())["roc"]
    assert [choice.label for choice in roc.choices] == ["no defense", "cofedmid"]
    assert [panel.title for panel in roc.choices[0].panels] == [
        "Members v. unseen",
        "Members v. other clients'",
        "Members v. mixed",
    ]
    assert len(roc.choices[0].panels[0].series) == 1 + 8


def test_both_axes_of_a_roc_are_logarithmic_and_0_1_and_1_per_cent_are_marked() -> None:
    panel = figures_of(record())["roc"].choices[0].panels[0]
    assert panel.x.log
    assert panel.y.log
    assert panel.uprights == (0.001, 0.01)


def test_points_at_zero_go_to_the_edge_of_a_logarithmic_axis() -> None:
    curve = Curve(
        attack="a", contrast="unseen", target=0, seed=1, fpr=[0, 0.001, 1], tpr=[0, 0.2, 1]
    )
    figure = must(roc_figure([curve]))
    chance, line = of_kind(figure.choices[0].panels[0], Series)
    assert line.x == [0.0005, 0.001, 1]
    assert line.y == [0.00005, 0.2, 1]
    assert chance.x == chance.y


def test_no_two_series_look_alike_and_no_defense_has_the_cross_to_itself() -> None:
    looks = [style(place) for place in range(210)]
    assert len(set(looks)) == 210
    assert all(one.dash != other.dash for one, other in pairwise(looks))
    assert all(look.symbol != RESERVED for look in looks)


def test_colour_is_never_the_only_cue_between_origins() -> None:
    panel = figures_of(record())["trajectories"].choices[0].panels[0]
    looks = [line.look for line in of_kind(panel, Series)]
    assert len({look.dash for look in looks}) == len({look.symbol for look in looks}) == 3
    assert len(of_kind(panel, Band)) == 3


def test_a_missing_mean_leaves_a_gap() -> None:
    panel = figures_of(record())["trajectories"].choices[0].panels[1]
    assert any(None in line.y for line in of_kind(panel, Series))


def test_the_strongest_attack_is_the_first_choice_of_the_map_of_clients() -> None:
    choices = figures_of(record())["client"].choices
    assert choices[0].label == "fedmia-2"


def test_a_histogram_shows_shares_that_add_up_to_one() -> None:
    panel = figures_of(record())["histograms"].choices[0].panels[0]
    for line in of_kind(panel, Series):
        assert sum(share for share in line.y if isinstance(share, float)) == pytest.approx(1)


def test_only_the_strongest_curves_of_a_roc_have_a_colour() -> None:
    roc = figures_of(record())["roc"]
    curves = of_kind(roc.choices[0].panels[0], Series)[1:]
    assert [curve.name for curve in curves[:5]] == ["other attacks"] * 4 + ["fedmia-2"]
    assert {curve.look.color for curve in curves[:4]} == {"#8A939E"}
    assert any("seqmia" in key.name for key in roc.keys if key.series == "other attacks")


def test_a_loss_is_drawn_as_what_it_is_minus_the_loss() -> None:
    panels = figures_of(record())["trajectories"].choices[0].panels
    assert panels[0].title == "Minus the loss"


def test_a_histogram_says_what_its_scores_are() -> None:
    panels = figures_of(record())["histograms"].choices[0].panels
    titles = {panel.title: panel.x.title for panel in panels}
    assert titles["loss-series"] == "Mean of minus the loss"
    assert titles["blackbox-loss"] == "Minus the loss, last round"
    assert titles["fedmia-1"] == "Score"


def test_several_audited_clients_have_a_map_with_the_strongest_attack_first() -> None:
    def of(attack: str, target: int, value: float) -> Estimate:
        where = {"attack": attack, "target": target, "seed": 1, "contrast": "unseen"}
        return estimate({"metric": "auc", "value": value, "low": 0.5, **where})

    figures = [of(a, t, v) for a, t, v in (("a", 3, 0.6), ("a", 0, 0.7), ("b", 0, 0.8))]
    drawn = figures_of(changed(record(details=False), estimates=figures))["target"]
    assert [choice.label for choice in drawn.choices] == ["b", "a"]
    (dots,) = of_kind(drawn.choices[1].panels[0], Series)
    assert (dots.y, dots.x) == (["Client 0", "Client 3"], [0.7, 0.6])
    assert "target" not in figures_of(record())


def test_the_map_of_other_clients_says_whose_members_it_is_of() -> None:
    panel = figures_of(record())["client"].choices[0].panels[0]
    assert "members of client 0 v. samples of each other client" in panel.title
    (dots,) = of_kind(panel, Series)
    assert dots.y[0] == "v. client 1"
