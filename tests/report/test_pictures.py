"""The first chart of each kind of record."""

import re

import pytest

from fedaudit.core.metric_names import (
    CLAIMED_CLIENT_EPSILON,
    CLIENT_EPSILON,
    FORMAL_EPSILON,
    SECURE_SUM_EPSILON,
    SECURE_SUM_EPSILON_IF_GAUSSIAN,
)
from fedaudit.report.figures.forest import DOUBTED
from fedaudit.report.page import report_html
from fedaudit.report.pictures import first_picture
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.report.unlearning import unlearning_section, unlearning_tile
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import Record
from tests.estimates import changed, estimate
from tests.report.clustered import with_clusters
from tests.report.records import record, unlearned
from tests.report.seen import must
from tests.report.test_cluster_report import tiny

CANARIES = {"audit": {"draw": "canaries"}}


def bound(metric: str, value: float, **options: object) -> Estimate:
    fields = {"metric": metric, "value": value, "contrast": "unseen", "seed": None}
    return estimate({**fields, "method": "Renyi accountant, delta 1e-05", **options})


def audit_of(*figures: Estimate, **config: object) -> Record:
    plain = record(strengths=(1.0,), details=False, defenses=(("none", 1.0),))
    others = [item for item in plain.estimates if item.metric != "epsilon"]
    return changed(plain, estimates=[*others, *figures], config=config)


def test_deletion_models_share_an_axis_with_the_margin() -> None:
    audit = audit_of(*unlearned("not forgotten"), unlearning={"method": "ascent", "margin": 0.05})
    forest = first_picture(audit)[0]
    assert forest.title == "Deleted samples before and after deletion"
    (line,) = forest.lines
    assert [mark.value for mark in line.cells[0].marks] == [0.52, 0.5, 0.7]
    assert line.band == pytest.approx((0.45, 0.55))
    band = re.search(r'class="band" x="([\d.]+)%" width="([\d.]+)%"', report_html(audit))
    assert band is not None
    low, high = forest.tracks[0].low, forest.tracks[0].high
    assert float(band[1]) == pytest.approx(100 * (0.45 - low) / (high - low), abs=0.01)
    assert [key.name for key in forest.keys] == ["after", "retrained", "before"]
    assert "Deleted samples before and after deletion" in report_html(audit)


def failing(audit: Record) -> Record:
    """Return a record whose controls failed, for all attacks."""
    controls = [changed(item, passed=False, attack="") for item in record(details=False).controls]
    return changed(audit, controls=controls)


def test_a_failed_control_marks_the_picture_and_table_of_a_deletion() -> None:
    audit = failing(
        audit_of(*unlearned("forgotten"), unlearning={"method": "ascent", "margin": 0.05})
    )
    deletion = [item for item in first_picture(audit) if item.title.startswith("Deleted")]
    cell = deletion[0].lines[0].cells[0]
    assert cell.value.startswith("✗")
    assert cell.limits == "not relied on"
    assert {mark.look.color for mark in cell.marks} == {DOUBTED.color}
    assert [key.name for key in deletion[0].keys] == [
        "after, ✗ not relied on",
        "retrained, ✗ not relied on",
        "before, ✗ not relied on",
    ]
    table = must(unlearning_section(audit)).tables[0]
    assert all("not relied on" in c.detail for c in table.rows[0] if "0." in c.text)
    (tile,) = unlearning_tile(audit)
    assert tile.detail == NOT_RELIED_ON


def test_a_failed_control_marks_the_picture_of_clusters() -> None:
    forests = first_picture(failing(with_clusters(tiny([0, 0, 0, 0, 1, 1]))))
    (forest,) = (item for item in forests if item.title == "Membership risk by model")
    for line in forest.lines:
        assert line.cells[0].value.startswith("✗")
        assert line.cells[0].limits == "not relied on"
        assert line.tone == ""
        assert "triangle-down" not in {mark.look.symbol for mark in line.cells[0].marks}


def test_canary_samples_have_measured_and_proven_epsilon_on_one_axis() -> None:
    measured = bound("epsilon", 1.4, attack="fedmia-2", seed=1, ceiling=5.6)
    audit = audit_of(measured, bound(FORMAL_EPSILON, 8.0), **CANARIES)
    forest = first_picture(audit)[0]
    assert [(line.label, line.cells[0].value) for line in forest.lines] == [
        ("Measured", "≥ 1.400"),
        ("Proven", "≤ 8.000"),
    ]
    assert "at most 5.600 could be shown" in forest.lines[0].cells[0].limits
    lower, upper = (line.cells[0].marks[0] for line in forest.lines)
    assert (lower.low, lower.high) == (1.4, None)
    assert (upper.low, upper.high) == (None, 8.0)
    assert forest.tracks[0].high > 8.0


def test_charts_show_epsilons_of_canary_clients_and_sums() -> None:
    clients = audit_of(bound(CLIENT_EPSILON, 1.5), bound(CLAIMED_CLIENT_EPSILON, 2.0))
    names = [line.label for line in first_picture(clients)[0].lines]
    assert names == ["Measured", "Claimed"]
    sums = first_picture(audit_of(bound(SECURE_SUM_EPSILON, 3.9)))[0]
    assert [line.label for line in sums.lines] == ["Measured"]
    audit = audit_of(bound(SECURE_SUM_EPSILON, 0.0), bound(SECURE_SUM_EPSILON_IF_GAUSSIAN, 1.8))
    expected = "epsilon at least 1.800 if the noise is normal (0.000 without an assumption)"
    assert expected in summarise_verdict(audit).headline, "a bound of 0 hides no other"
    assert [line.cells[0].value for line in first_picture(audit)[0].lines] == ["≥ 1.800", "≥ 0.000"]
    title = "Epsilon of one client's update in one round's sum: lower bounds"
    assert (sums.title, sums.keys) == (title, ()), "nothing is claimed"


def test_a_record_without_epsilon_bounds_opens_with_its_attacks() -> None:
    assert first_picture(audit_of())[0].title == "Attacks against guessing"


def test_a_models_risk_is_drawn_with_its_clients_accepted_risks() -> None:
    (forest,) = first_picture(with_clusters(tiny([0, 0, 0, 0, 1, 1])))
    majority = forest.lines[0]
    small = [mark for mark in majority.cells[0].marks if mark.size < 9]
    assert [mark.value for mark in small] == [0.51, 0.6, 0.7, 0.8]
    looks = [mark.look.symbol for mark in small]
    assert looks == ["triangle-down", "circle", "circle", "circle"]
    assert forest.keys[3].name == "accepts less than the risk of its model: a violation"
    assert majority.cells[0].limits.endswith("1 of 4 clients above")


def test_clients_are_compared_with_the_model_that_they_use() -> None:
    (forest,) = first_picture(with_clusters(tiny([0, 0, 1, 0, 1, 1])))
    cell = forest.lines[0].cells[0]
    looks = {mark.value: mark.look.symbol for mark in cell.marks if mark.size < 9}
    assert looks == {0.51: "triangle-down", 0.6: "circle", 0.7: "circle-open", 0.8: "circle"}
    (forest,) = first_picture(with_clusters(tiny([0, 1, 0, 0, 1, 1])))
    cell = forest.lines[0].cells[0]
    marks = [mark for mark in cell.marks if mark.look.symbol == "triangle-down"]
    assert [mark.value for mark in marks] == [0.51, 0.6], "client 1 uses a model of risk 0.7"
    assert cell.limits.endswith("2 of 4 clients above")
