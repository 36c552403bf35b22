from fedaudit.formatting.grid import Footnotes, Grid
from fedaudit.report.deciding.caveats import independence
from fedaudit.report.evidence import SIZES
from fedaudit.report.page import report_html
from fedaudit.report.tables.membership import (
    attack_tables,
    classes_table,
    estimate_cell,
    exposed_table,
    other_estimates_table,
    signs_of,
)
from fedaudit.report.tables.run import clients_table, controls_table, utility_table
from fedaudit.report.terminal import MOST_LINES
from fedaudit.report.text.verdict import describe_audit, summarise_verdict
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ClientRow, ExposedSample, OtherClients, Record
from tests.estimates import changed, estimate
from tests.gate.parts import control
from tests.report.records import CONTROLS, record
from tests.report.seen import must, printed, words


def texts(grid: Grid, column: int) -> list[str]:
    return [row[column].text for row in grid.rows]


def only(*figures: Estimate) -> Record:
    base = record(strengths=(1.0,), defenses=(("none", 1.0),), details=False)
    estimates = [*figures, *base.where(topic="utility")]
    return changed(base, estimates=estimates)


def auc(value: float | None, **options: object) -> Estimate:
    where = {"attack": "fedmia-1", "contrast": "unseen", "metric": "auc", "value": value}
    return estimate({**where, **options})


def test_a_rate_with_too_few_nonmembers_has_only_an_upper_limit() -> None:
    figure = estimate(
        attack="a",
        metric="tpr@0.001",
        seed=1,
        value=0.02,
        high=0.05,
        method="order statistics and Clopper-Pearson 95%",
        n_members=1000,
        n_nonmembers=1000,
        realised_fpr=0.001,
        note="20 true and 1 false positives; a lower limit needs 2748 more non-members",
    )
    notes = Footnotes()
    cell = must(estimate_cell(figure, notes))
    assert "≤ 5.0%" in cell.detail
    assert (cell.mark, notes.listed()) == ("", ())
    (table,) = attack_tables(only(figure, changed(figure, attack="b")))
    assert "≤: too few non-members for a lower limit." in table.remark
    expected = "Intervals: TPR at 0.1% by order statistics and Clopper-Pearson 95%."
    assert table.remark.startswith(expected), "each method has its metrics"


def test_attacks_are_rows_and_metrics_by_contrast_are_columns() -> None:
    (grid, defended) = attack_tables(record())
    assert [(heading.text, heading.detail) for heading in grid.headings] == [
        ("", ""),
        ("Unseen", "1,000 v. 1,000"),
        ("Other clients' samples", "1,000 v. 1,000"),
        ("Mixed", "1,000 v. 2,000"),
    ]
    assert [column.text for column in grid.columns] == ["Attack"] + [
        "AUC",
        "TPR at 1%",
        "TPR at 0.1%",
    ] * 3
    assert texts(grid, 0)[:2] == ["fedmia-2", "fedmia-1"]
    assert defended.caption == "Attacks by group of non-members: cofedmid"


def test_a_cell_carries_value_size_interval_and_the_counts_behind_it() -> None:
    figure = auc(
        0.412,
        metric="tpr@0.001",
        low=0.38,
        high=0.445,
        realised_fpr=0.002,
        n_nonmembers=1000,
        n_members=1000,
        significant=True,
    )
    (grid,) = attack_tables(only(figure))
    cell = grid.rows[0][1]
    assert cell.text == "▲ 41.2%"
    assert cell.detail == "strong\n38.0–44.5%\n412/1,000\nFP 2/1,000"


def test_refused_estimates_show_a_dash_and_a_footnote() -> None:
    (grid,) = attack_tables(only(auc(0.6), auc(None, metric="tpr@0.001", note="needs 1,000 more")))
    cell = grid.rows[0][2]
    assert (cell.text, cell.mark) == ("–", "a")
    assert grid.notes == (("a", "needs 1,000 more"),)


def test_figures_over_seeds_replace_those_of_single_seeds() -> None:
    audit = only(auc(0.6, seed=1), auc(0.8, seed=2), auc(0.7, low=0.6, high=0.8, seed=None))
    (grid,) = attack_tables(audit)
    assert texts(grid, 1) == ["▲ 0.700"]


def test_without_figures_over_seeds_each_seed_has_its_table() -> None:
    grids = attack_tables(only(auc(0.6, seed=1), auc(0.8, seed=2)))
    assert [grid.caption for grid in grids] == [
        "Attacks by group of non-members: seed 1",
        "Attacks by group of non-members: seed 2",
    ]


def test_the_triangle_follows_the_corrected_test() -> None:
    (grid,) = attack_tables(only(auc(0.6, low=0.55, high=0.65, significant=False)))
    assert texts(grid, 1) == ["0.600"]
    (grid,) = attack_tables(only(auc(0.6, low=0.55, high=0.65)))
    assert texts(grid, 1) == ["▲ 0.600"]


def test_epsilon_is_shown_with_its_ceiling() -> None:
    grid = must(other_estimates_table(record()))
    assert grid.rows[0][1].detail == "≥ 1.420\nof at most 5.610"


def test_utility_over_seeds_is_their_mean_with_the_lowest_and_highest() -> None:
    grid = must(utility_table(record(seeds=(1, 2, 3), defenses=(("none", 1.0),))))
    assert texts(grid, 0) == ["No defense"]
    assert texts(grid, 1) == ["86.3%"]
    assert grid.rows[0][1].detail.endswith("mean of 3 seeds")


def test_the_explained_thresholds_are_those_of_the_verdict() -> None:
    expected = signs_of([])
    for item in SIZES[1:]:
        for part in (item.word, f"{item.auc:g}", f"{item.percent_rate:.0%}"):
            assert part in expected
        assert f"{100 * item.thousandth_rate:g}%" in expected


def test_failed_controls_come_first_with_value_and_interval() -> None:
    failed = control("late", passed=False, value=0.7, low=0.6, high=0.8)
    grid = controls_table(record(controls=(*CONTROLS, failed)))
    assert texts(grid, 0)[0] == "late"
    assert texts(grid, 1) == ["✗ failed", "✓ passed", "✓ passed", "✓ passed", "– not run"]
    assert grid.rows[0][4].detail.endswith("0.700 (0.600–0.800)")
    assert grid.rows[-1][4].detail == "Not requested for this study."


def test_controls_are_summarised_by_kind_with_every_expectation() -> None:
    controls = [
        control(
            "blind classifier",
            value < 0.6,
            attack="inputs",
            expected=f"no better than chance on {against}",
            value=value,
        )
        for against, value in (("unseen", 0.5), ("others", 0.5), ("unseen", 0.7))
    ]
    (row,) = controls_table(changed(record(), controls=controls)).rows
    cells_shown = ["blind classifier", "✗ failed", "2 of 3", "0.500–0.700; 0.500"]
    assert [cell.text for cell in row[:4]] == cells_shown
    assert row[4].text == "no better than chance on unseen; no better than chance on others"
    assert row[4].detail.startswith("failed: inputs: 0.700")


def test_an_exposed_sample_has_the_attacks_that_list_it() -> None:
    grid = must(exposed_table(record()))
    assert [column.text for column in grid.columns] == [
        "Sample",
        "Class",
        "Attacks that list it",
        "Non-members as high or higher",
    ]


def test_the_terminal_prints_every_attack_without_reading_markup() -> None:
    audit = changed(record(strengths=(1.0,)), estimates=[auc(0.61, attack="[red]sly[/red]")])
    text = printed(audit, width=100)
    assert all(part in text for part in ("[red]sly[/red]", "0.610", "INCONCLUSIVE"))


def test_terminal_output_starts_with_the_conclusion() -> None:
    text = printed(record())
    lines = text.splitlines()
    assert lines[0].startswith(summarise_verdict(record()).status.upper())
    assert "▲ 0.9" in text
    assert "Next: " in text
    assert max(map(len, lines)) <= 80
    assert len(lines) <= MOST_LINES < 40


def seeds_of_a_rate(*values: float) -> list[Estimate]:
    counts = {"n_members": 500, "n_nonmembers": 3000, "metric": "tpr@0.001", "realised_fpr": 0.001}
    return [auc(value, seed=seed, **counts) for seed, value in enumerate(values, 1)]


def test_a_mean_rate_has_the_sizes_of_all_seeds_and_no_counts() -> None:
    runs = seeds_of_a_rate(0.01, 0.02, 0.03)
    mean = auc(0.02, metric="tpr@0.001", low=0.0, high=0.05, n_members=1500, n_nonmembers=9000)
    audit = only(*runs, mean)
    (grid,) = attack_tables(audit)
    assert grid.headings[1].detail == "1,500 v. 9,000, all seeds"
    assert grid.rows[0][1].detail == "0–5.0%"


def test_samples_exposed_by_several_attacks_are_merged_and_first() -> None:
    audit = only(
        *(auc(0.6, attack=name, target=0, seed=1, n_nonmembers=2000) for name in "ab"),
        auc(0.5, low=0.45, high=0.55, attack="c", target=0, seed=1, n_nonmembers=2000),
    )
    audit = changed(
        audit,
        estimates=[changed(f, significant=f.attack != "c") for f in audit.findings],
        exposed=[
            exposed("a", 7, 0.9995),
            exposed("a", 8, 1.0),
            exposed("b", 7, 0.999),
            exposed("c", 9, 1.0),
        ],
    )
    grid = must(exposed_table(audit))
    assert [[row[place].text for place in (0, 2, 3)] for row in grid.rows] == [
        ["7", "2 of 2", "0.05%"],
        ["8", "1 of 2", "0%"],
    ]


def test_no_sample_is_called_exposed_if_no_attack_is_above_guessing() -> None:
    audit = only(auc(0.5, low=0.45, high=0.55, target=0, seed=1))
    audit = changed(audit, exposed=[exposed("fedmia-1", 3, 1.0)])
    assert exposed_table(audit) is None
    assert "are at chance level or cannot be relied on" in words(report_html(audit))


def exposed(attack: str, sample: int, share: float) -> ExposedSample:
    return ExposedSample(
        attack=attack, target=0, seed=1, sample=sample, label=0, above_nonmembers=share
    )


def test_a_class_too_small_for_a_figure_keeps_its_column() -> None:
    grid = must(classes_table(record()))
    assert [item.text for item in grid.columns[1:]] == [f"Class {place}" for place in range(10)]
    assert [(row[8].text, row[8].detail) for row in grid.rows] == [("–", "3 v. 100")] * 3
    assert "too few members or non-members" in grid.remark
    assert grid.rows[0][1].detail
    assert classes_table(record(details=False)) is None


def test_every_audited_client_has_its_rows_after_those_of_all_together() -> None:
    where = {"n_members": 10, "n_nonmembers": 20}
    figures = [auc(0.6, target=3, **where), auc(0.7, target=0, **where)]
    pooled = auc(0.55, target=None, within="client")
    (grid,) = attack_tables(only(*figures, pooled))
    names = ["pooled clients · fedmia-1", "client 0 · fedmia-1", "client 3 · fedmia-1"]
    assert texts(grid, 0) == names
    assert grid.rows[1][0].detail == "10 v. 20, all seeds"


def test_clients_without_a_row_share_the_last_row() -> None:
    rows = [ClientRow(client=700, samples=3, audited=2, class_counts=[1, 2])]
    others = OtherClients(
        clients=9_999, samples=30_000, fewest=1, most=7, audited=0, class_counts=[20_000, 10_000]
    )
    large = changed(record(), clients=rows, other_clients=others)
    grid = must(clients_table(large))
    assert [texts(grid, column)[-1] for column in range(4)] == [
        "9,999 others",
        "30,000",
        "0",
        "2/2",
    ]
    assert "10,000 clients with 1 to 7 samples each" in describe_audit(large)


def test_only_the_first_table_states_the_independence_of_samples() -> None:
    two = ("none", 1.0), ("clip", 0.5)
    first, *others = attack_tables(record(strengths=(1.0,), defenses=two, details=False))
    assert others
    expected = "Intervals and tests assume that audited samples are independent of each other."
    assert expected in first.remark
    assert "audit people (data.options.person" in first.remark
    assert not any(expected in other.remark for other in others)


def test_a_recording_is_not_advised_to_change_settings() -> None:
    watched = changed(only(), watched=True)
    assert independence(watched).endswith("are independent of each other.")


def test_people_with_one_sample_each_need_no_note_on_independence() -> None:
    audit = changed(only(), config={"data": {"options": {"person": "patient"}}})
    assert independence(audit) == ""
