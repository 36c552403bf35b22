"""Comparison pages."""

import re
import shutil
from pathlib import Path

import pytest

from fedaudit.formatting.grid import Grid
from fedaudit.formatting.wording import clean_texts
from fedaudit.report.comparison.screen import first_of_comparison, front_figure, membership_rows
from fedaudit.report.comparison.tables import (
    attack_tables,
    hypervolume_table,
    rows_table,
    usage_table,
)
from fedaudit.report.comparison.tradeoffs import cautions, labels_of, tradeoffs, users_text
from fedaudit.report.page import comparison_html, write_comparison
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.comparison import NOT_SET, STRONGEST_ATTACK, Comparison, Row, Source
from fedaudit.study.comparing import compare_records
from tests.estimates import changed
from tests.gate.parts import control
from tests.report.records import used
from tests.report.seen import cells, must, printed
from tests.report.test_browser import BROWSER, dom, is_sound, notes_of, on_phones
from tests.study.compare_records import PLAIN, STRONG, WEAK, make_record, noise

RECORDS = [PLAIN, WEAK, STRONG]
THREE = compare_records(RECORDS)


def headings(grid: Grid) -> list[tuple[str, str]]:
    return [(row[0].text, row[0].detail) for row in grid.rows]


def test_blocks_of_rows_start_with_the_undefended_row() -> None:
    (table,) = attack_tables(THREE)["unseen"]
    assert headings(table) == [
        ("no defense", ""),
        ("no defense", "on client 0"),
        ("gradient-noise (sigma 0.01)", "pair: clients 0, 1 of 6"),
        ("gradient-noise (sigma 0.1)", "pair: clients 0, 1 of 6"),
    ]
    assert [column.text for column in table.columns] == [
        "Defense",
        "Mean over attacks",
        "Strongest attack",
        "a",
        "b",
    ]


def test_a_cell_has_a_figure_and_its_change_with_their_intervals() -> None:
    (table,) = attack_tables(THREE)["unseen"]
    lead, weak, strong = (row[3] for row in table.rows[1:])
    assert lead.text == "▲ 0.820"
    assert strong.text == "0.550"
    # Two seeds say more than one: the defended row is as sure as the undefended one.
    assert weak.text == "▲ 0.730"
    assert weak.detail.split("\n")[0] == "strong"
    assert weak.detail.split("\n")[2:] == ["Δ −0.090 *", "(−0.110 to −0.070)"]
    assert "an interval over further runs needs 5 seeds, got 2" in table.remark
    assert strong.detail.split("\n")[1] == "Δ −0.270 *"
    strongest = table.rows[2][2]
    assert (strongest.text, strongest.detail.split("\n")[1]) == ("0.730", "a")
    assert "Mean: over the attacks that are above chance without a defense (a)" in table.remark


def test_a_mean_over_some_clients_names_them_and_stays_in_its_block() -> None:
    runs = {seed: {0: 0.8, 4: 0.5} for seed in (1, 2)}
    less = {seed: {0: 0.7, 4: 0.5} for seed in (1, 2)}
    accuracy = {1: 0.9, 2: 0.9}
    records = [
        make_record("plain", {"a": runs, "b": runs}, accuracy),
        make_record("x", {"a": less, "b": {1: less[1]}}, accuracy, defense=noise(0.1)),
    ]
    (table,) = attack_tables(compare_records(records))["unseen"]
    assert [text for text, _ in headings(table)] == ["no defense", "gradient-noise (sigma 0.1)"]
    plain, defended = (row[1] for row in table.rows)
    assert "only on client 0" in plain.detail.split("\n")
    assert "only on client 0" in defended.detail.split("\n")
    assert "only on" not in table.rows[0][3].detail
    assert plain.mark == ""
    assert dict(table.notes)[defended.mark] == "over 1 of 2 runs: the others lack it"


def test_clients_outside_the_coalition_have_a_separate_table() -> None:
    (table,) = attack_tables(THREE, part="outside")["unseen"]
    assert headings(table)[0] == ("no defense", "on client 4")
    assert [row[3].text for row in table.rows] == ["▲ 0.710", "▲ 0.730", "▲ 0.800"]
    assert attack_tables(compare_records([PLAIN, PLAIN]), part="outside") == {}


@pytest.mark.parametrize(
    ("coalition", "clients", "words"),
    [
        (None, 6, "all 6 clients"),
        ([3], 6, "one client: client 3 of 6"),
        ([0, 5], 6, "pair: clients 0, 5 of 6"),
        ([0, 1, 2], 6, "half: clients 0–2 of 6"),
        ([0, 1, 4], 10, "3 clients: clients 0, 1, 4 of 10"),
    ],
)
def test_a_coalition_has_the_papers_name(
    coalition: list[int] | None, clients: int, words: str
) -> None:
    row = Row(source=0, defense="x", family="x", coalition=coalition, clients=clients)
    assert users_text(row) == words


def test_equal_rows_are_labelled_with_their_records() -> None:
    labels = labels_of(compare_records([PLAIN, WEAK, changed(WEAK, name="again")]))
    assert labels[0] == "no defense"
    assert labels[1].startswith("weak · gradient-noise")
    assert labels[2].startswith("again · gradient-noise")


def comparison(*rows: tuple[str, dict[str, str]]) -> Comparison:
    return Comparison.model_construct(
        sources=[Source.model_construct(name="study") for _ in rows],
        rows=[
            Row(source=place, defense=name, family=name, clients=10, settings=settings)
            for place, (name, settings) in enumerate(rows)
        ],
    )


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        (
            (
                {
                    "algorithm.name": "fedavg",
                    "algorithm.options": "{}",
                    "algorithm.options.mu": NOT_SET,
                },
                {
                    "algorithm.name": "fedprox",
                    "algorithm.options": NOT_SET,
                    "algorithm.options.mu": "0.1",
                },
            ),
            ["algorithm fedavg", "algorithm fedprox, mu 0.1"],
        ),
        (
            ({"audit.fair": "10", "shadow.fair": "0"}, {"audit.fair": "20", "shadow.fair": "10"}),
            ["audit fair 10, shadow fair 0", "audit fair 20, shadow fair 10"],
        ),
        (
            ({"partition.scheme": "iid"}, {"partition.scheme": "shards"}),
            ["partition iid", "partition shards"],
        ),
    ],
)
def test_undefended_rows_are_labelled_by_their_differing_settings(
    settings: tuple[dict[str, str], ...], labels: list[str]
) -> None:
    assert labels_of(comparison(*(("none", item) for item in settings))) == labels


def test_an_undefended_row_is_labelled_if_another_row_has_a_defense() -> None:
    rows = comparison(("none", {"model.name": "mlp"}), ("mixup", {"model.name": "mlp"}))
    assert labels_of(rows) == ["no defense · model mlp", "mixup · all 10 clients · model mlp"]


def test_settings_that_vary_have_columns() -> None:
    long = make_record("long", {"a": {1: {0: 0.7}}}, {1: 0.9}, rounds=30)
    grid = rows_table(compare_records([PLAIN, long]), ["leak", "no leak shown"])
    assert [column.text for column in grid.columns][1] == "training.rounds"
    assert [row[1].text for row in grid.rows] == ["10", "30"]


def test_a_comparison_of_defenses_asks_for_tuned_dp_sgd() -> None:
    answer = "Tuned DP-SGD is not among the defenses"
    assert any(answer in caution for caution in cautions(THREE, RECORDS))
    assert not any(
        answer in caution for caution in cautions(compare_records([PLAIN] * 2), [PLAIN] * 2)
    )


def test_the_front_draws_every_row_with_intervals_on_both_axes() -> None:
    worse = make_record(
        "worse",
        {"a": {1: {0: 0.9}, 2: {0: 0.9}}},
        {1: 0.5, 2: 0.5},
        defense=noise(0.2, 0, 1),
    )
    figure = must(front_figure(compare_records([*RECORDS, worse])))
    assert [choice.label for choice in figure.choices] == [
        "Leakage to the strongest attack (v. unseen)"
    ]
    panel = figure.choices[0].panels[0]
    assert not panel.curves, "no line joins the marks"
    assert len(panel.points) == 4
    limits = [limit for point in panel.points for limit in (point.x_limits, point.y_limits)]
    assert all(must(limit).low is not None for limit in limits)
    assert [point.look.symbol for point in panel.points] == ["cross", "circle", "star", "circle"]
    assert [key.name for key in figure.keys] == [
        "gradient-noise · pair: clients 0, 1 of 6",
        "no defense, same clients",
        "best trade-off: gradient-noise (sigma 0.1) · pair: clients 0, 1 of 6",
    ]


def test_no_row_is_best_if_no_undefended_attack_is_above_guessing() -> None:
    quiet = [
        make_record("plain", {"a": {1: {0: 0.55}}}, {1: 0.9}, reach=0.06),
        make_record("x", {"a": {1: {0: 0.5}}}, {1: 0.8}, reach=0.06, defense=noise(0.1)),
        make_record("y", {"a": {1: {0: 0.52}}}, {1: 0.7}, reach=0.06, defense=noise(0.2)),
    ]
    figure = must(front_figure(compare_records(quiet)))
    assert "is good" not in figure.caption
    assert not any("best" in key.name for key in figure.keys)
    for choice in figure.choices:
        for panel in choice.panels:
            assert not panel.curves, "no line joins a front"
            assert panel.y.high - panel.y.low >= 0.2


def test_no_row_is_best_if_the_headline_shows_no_trade_off() -> None:
    plain = make_record("plain", {"a": {1: {0: 0.80}}}, {1: 0.9}, reach=0.1)
    less = make_record("less", {"a": {1: {0: 0.78}}}, {1: 0.9}, reach=0.1, defense=noise(0.1))
    figure = must(front_figure(compare_records([plain, less])))
    assert "is good" not in figure.caption
    assert [key.name for key in figure.keys] == [
        "gradient-noise · all 6 clients",
        "no defense, same clients",
    ]


def test_a_failed_control_leaves_no_best_trade_off() -> None:
    failing = changed(PLAIN, controls=[control("untrained model", passed=False)])
    records = [failing, WEAK, STRONG]
    result = compare_records(records)
    answer = first_of_comparison(result, records, [summarise_verdict(item) for item in records])
    assert (answer.look, answer.status, answer.numbers) == ("control failed", "control failed", ())
    assert answer.headline == "A control failed, so no trade-off can be concluded"
    page = comparison_html(result, records)
    assert "best trade-off: " not in page
    assert "Low and to the left is good" not in page


def test_rows_of_a_record_with_a_failed_control_are_marked_everywhere() -> None:
    failing = clean_texts(changed(PLAIN, controls=[control("untrained model", passed=False)]))
    long = make_record("long", {"a": {1: {0: 0.7}}}, {1: 0.9}, rounds=30)
    result = compare_records([failing, long])
    (table,) = attack_tables(result, [failing, long])["unseen"]
    first, other = cells(table, "a")
    assert (first.text[0], first.detail.split("\n")[0]) == ("✗", "not relied on")
    assert other.text[0] == "▲"
    assert "Δ" not in other.detail, "against a figure that is not relied on"
    assert "✗ not relied on: a control failed." in table.remark
    (forest,) = membership_rows(result, [failing, long])
    with_doubt, relied_on = (line.cells[0] for line in forest.lines)
    assert (with_doubt.value[0], with_doubt.limits) == ("✗", "not relied on")
    assert relied_on.value[0] == "▲"
    assert "✗ not relied on: a control failed" in [key.name for key in forest.keys]
    assert "not relied on" in printed(failing, long)

    records = [failing, WEAK, STRONG]
    figure = must(front_figure(compare_records(records), records, ranked=False))
    assert figure.keys[-1].name == "not relied on: a control failed"
    assert figure.choices[0].panels[0].points[0].look.symbol == "circle-open"
    area = must(hypervolume_table(compare_records(records), records)).rows[0][1]
    assert area.text[0] == "✗"


def test_the_legend_of_fronts_lists_only_drawn_items() -> None:
    records = [WEAK, STRONG]
    figure = must(front_figure(compare_records(records)))
    assert [key.name for key in figure.keys] == ["gradient-noise · pair: clients 0, 1 of 6"]


def test_all_outputs_show_the_same_strongest_attack() -> None:
    # Attack a has the larger mean, b the larger figure in the second run.
    values = {"a": {1: {0: 0.9}, 2: {0: 0.6}}, "b": {1: {0: 0.5}, 2: {0: 0.8}}}
    accuracy = {1: 0.9, 2: 0.9}
    result = compare_records([PLAIN, make_record("x", values, accuracy, defense=noise(0.1))])
    (table,) = attack_tables(result)["unseen"]
    strongest = [row[2].text for row in table.rows if row[0].text.startswith("gradient")]
    (forest,) = membership_rows(result, [])
    (front,) = (f for f in result.fronts if f.attack == STRONGEST_ATTACK and f.gain is not None)
    point = front.points[1]
    assert strongest == ["0.750"]
    assert forest.lines[1].cells[0].value == "▲ 0.750"
    assert point.leakage == pytest.approx(2 * 0.75 - 1)
    (item,) = tradeoffs(result)
    assert item.undefended + item.leakage == pytest.approx(point.leakage)
    assert must(front_figure(result)).choices[0].label.startswith("Leakage to the strongest attack")


def test_terminal_and_chart_compare_on_defended_clients() -> None:
    (forest,) = membership_rows(THREE, RECORDS)
    # Client 0 alone, not the mean of clients 0 and 4.
    assert forest.lines[0].cells[0].value == "▲ 0.820"
    (item, _) = tradeoffs(THREE)
    assert (item.undefended + 1) / 2 == pytest.approx(0.82)


def test_attacks_that_no_defended_row_has_draw_nothing() -> None:
    extended = make_record("more", {"c": {1: {0: 0.7}, 2: {0: 0.7}}}, {1: 0.9, 2: 0.9}, rounds=20)
    comparison = compare_records([*RECORDS, extended])
    figure = must(front_figure(comparison))
    assert {front.attack for front in comparison.fronts} >= {"a", "c"}
    assert not [choice.label for choice in figure.choices if ", c," in choice.label]
    assert comparison_html(comparison, [*RECORDS, extended])
    bare = [front for front in comparison.fronts if front.family == "none"]
    assert front_figure(changed(comparison, fronts=bare)) is None


def test_a_front_of_nearly_equal_points_does_not_fill_the_picture() -> None:
    flat = [
        changed(
            front,
            points=[
                changed(point, error=0.1, leakage=0.2 + 0.0001 * place)
                for place, point in enumerate(front.points)
            ],
        )
        for front in THREE.fronts
    ]
    figure = must(front_figure(changed(THREE, fronts=flat)))
    panel = figure.choices[0].panels[0]
    assert panel.x.high - panel.x.low >= 0.1
    assert panel.y.high - panel.y.low >= 0.2
    assert panel.y.low <= 0 < panel.y.high, "guessing is in the picture"


def test_hypervolumes_have_the_gain_of_the_defense() -> None:
    table = must(hypervolume_table(THREE))
    assert [row[0].text for row in table.rows] == [
        "no defense",
        "gradient-noise · pair: clients 0, 1 of 6",
    ]
    assert "gain 0.4" in table.rows[1][1].detail


def test_undefended_rows_have_leakage_and_accuracy_with_intervals() -> None:
    long = make_record("long", {"a": {1: {0: 0.7}}}, {1: 0.9}, rounds=30)
    result = compare_records([PLAIN, long])
    assert front_figure(result) is None
    answer = first_of_comparison(
        result, [PLAIN, long], [summarise_verdict(PLAIN), summarise_verdict(long)]
    )
    (forest,) = answer.picture
    assert [line.label for line in forest.lines] == ["rounds 10", "rounds 30"]
    marks = [mark for line in forest.lines for cell in line.cells for mark in cell.marks]
    assert len(marks) == 4
    assert all(mark.low is not None and mark.high is not None for mark in marks)


def test_rows_of_models_without_an_accuracy_have_no_column_for_it() -> None:
    audits = []
    for rounds in (10, 30):
        audit = make_record("audit", {"a": {1: {0: 0.7}}}, {1: 0.9}, rounds=rounds)
        estimates = [e for e in audit.estimates if e.topic != "utility"]
        audits.append(changed(audit, estimates=estimates))
    result = compare_records(audits)
    answer = first_of_comparison(result, audits, [summarise_verdict(audit) for audit in audits])
    (forest,) = answer.picture
    assert [axis.title for axis in forest.tracks] == ["Strongest AUC"]
    assert all(len(line.cells) == 1 for line in forest.lines)
    assert "accuracy" not in forest.caption
    assert not any("accuracy" in step for step in answer.next)


NOISE = "gradient-noise"
WHOLE = used(distinct=(10, 10), times=(0, 0, 10))
"""Of a client that nothing defends: every sample in each of two rounds."""
LESS = used(defense=NOISE, defended=True, distinct=(5, 3), times=(4, 4, 2))


def test_use_of_data_is_measured_on_the_clients_that_defend() -> None:
    plain = changed(PLAIN, usage=[WHOLE])
    beside = changed(WHOLE, client=9, defense=NOISE)
    weak = changed(WEAK, usage=[LESS, beside])
    comparison = compare_records([plain, weak])
    table = must(usage_table(comparison, [plain, weak]))
    texts = [[cell.text for cell in row[1:]] for row in table.rows]
    assert texts[0] == ["100%", "2.000", "0", "2 s"]
    # Rounds of 5 and 3 of 10; 4 + 2 x 2 uses of 10; 40 bytes in two rounds.
    assert texts[1] == ["40.0%", "0.800", "20", "3 s"]
    assert table.rows[1][4].detail == "1.50 times"


def test_records_without_usage_have_no_section_on_it() -> None:
    assert usage_table(THREE, RECORDS) is None
    assert 'id="usage"' not in comparison_html(THREE, RECORDS)


def test_the_page_has_its_sections_and_every_change() -> None:
    text = comparison_html(THREE, RECORDS)
    for ident in ("rows", "tradeoff", "attacks", "outside", "utility", "reproduce"):
        assert f'<section id="{ident}"' in text
    changes = [e.change for e in THREE.entries if e.change is not None and e.part == "inside"]
    assert len(re.findall(r"Δ [−+]?\d", text)) >= len(changes)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on the PATH")
def test_fronts_are_drawn_and_fit_a_phone(tmp_path: Path) -> None:
    records = [changed(PLAIN, usage=[WHOLE]), WEAK, STRONG]
    page = tmp_path / "comparison.html"
    write_comparison(compare_records(records), records, page)
    notes = notes_of(dom(page, tmp_path / "profile"))
    assert is_sound(notes), notes
    assert notes["figures"] == "1"
    (notes,) = on_phones([page.read_text(encoding="utf-8")], tmp_path)
    assert is_sound(notes), notes
    shutil.rmtree(tmp_path / "profile", ignore_errors=True)
