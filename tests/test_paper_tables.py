"""Pages of the papers: each cell has the paper's value and our figure."""

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest

from docs.claims import table_pages, tables
from docs.claims.comparing import Figure
from docs.claims.data import Term, papers
from docs.claims.tables import Cell, Column, PaperTable, Place, Row

ALL = [(paper, table) for paper in papers() for table in tables.tables_of(paper)]


def test_tables_have_existing_claims_and_rows_or_a_reason() -> None:
    for paper, table in ALL:
        assert {*table.claims, *tables.main_claims_of(paper)} <= {claim.id for claim in paper.claim}
        assert bool(table.row) is not bool(table.no_cells), table.id
    assert len({table.id for _, table in ALL}) == len(ALL)


@pytest.mark.slow
def test_every_row_has_a_figure_or_a_reason() -> None:
    for _, table in ALL:
        for row, cells in zip(table.row, tables.cells_of(table), strict=True):
            has_figure = [cell.ours is not None for cell in cells]
            assert any(has_figure) is (not row.not_run), (table.id, row.title)


def test_a_table_like_another_has_its_columns_and_states_the_rest_itself() -> None:
    by_id = {table.id: table for _, table in ALL}
    redrawn, fixed = by_id["fedmia-table-1-tpr-redrawn"], by_id["fedmia-table-1-tpr"]
    assert (redrawn.columns, redrawn.unit) == (fixed.columns, fixed.unit)
    assert (redrawn.variant, fixed.variant) == ("redraw", None)


def table(best: str = "largest", along: str = "row", **second: object) -> PaperTable:
    """Return a table with two columns and two rows; `second` adds settings to its second row."""
    row = {"title": "a", "theirs": [0.5, 0.9], "regime": "x"}
    return PaperTable.model_validate(
        {
            "id": "t",
            "title": "T",
            "claims": [],
            "best": best,
            "along": along,
            "columns": [{"title": "one"}, {"title": "two"}],
            "row": [row, {**row, "theirs": [0.7, 0.2], **second}],
        }
    )


def cell(theirs: float, ours: float | None) -> Cell:
    figure = None if ours is None else Figure(ours, ours - 0.05, ours + 0.05, "", 1)
    return Cell(theirs, figure, "not run")


CELLS = [[cell(0.5, 0.6), cell(0.9, 0.55)], [cell(0.7, 0.8), cell(0.2, None)]]


@pytest.mark.parametrize(
    ("best", "along", "expected"),
    [
        ("largest", "row", {("theirs", 0, 1), ("theirs", 1, 0), ("ours", 0, 0)}),
        ("smallest", "row", {("theirs", 0, 0), ("theirs", 1, 1), ("ours", 0, 1)}),
        ("largest", "column", {("theirs", 1, 0), ("theirs", 0, 1), ("ours", 1, 0)}),
        ("", "row", set()),
    ],
)
def test_best_values_compete_in_rows_or_columns(
    best: str, along: str, expected: set[Place]
) -> None:
    assert tables.best_cells(table(best, along), CELLS) == expected


@pytest.mark.parametrize(("values", "n_best"), [([1, 1, 0, 0], 2), ([1, 1, 1, 0], 0)])
def test_equal_values_are_the_best_unless_they_are_most(values: list[float], n_best: int) -> None:
    wide = table().model_copy(update={"columns": (Column(title="a"),) * 4})
    assert len(tables.best_cells(wide, [[cell(value, None) for value in values]])) == n_best


def test_rows_below_different_headings_do_not_compete() -> None:
    assert not tables.best_cells(table(along="column", block="B"), CELLS)


@pytest.mark.parametrize(("along", "expected"), [("row", (0, 1)), ("column", (1, 1))])
def test_the_same_best_is_counted_where_two_of_ours_compete(
    along: str, expected: tuple[int, int]
) -> None:
    assert tables.same_best(table(along=along), CELLS) == expected


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all figures by 0.6 (0.56 to 0.64), and differences by -0.1."""
    monkeypatch.setattr(tables, "figure_of", lambda *_: Figure(0.6, 0.56, 0.64, "", 1))
    monkeypatch.setattr(tables, "gap_of", lambda *_: Figure(-0.1, None, None, "", 1))
    monkeypatch.setattr(tables, "regimes", lambda: {"x": None})


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize(
    ("theirs", "at_least", "agreement"),
    [
        (0.6, False, "agrees"),
        (0.659, False, "agrees"),
        (0.67, False, "lower"),
        (0.541, False, "agrees"),
        (0.53, False, "higher"),
        (0.53, True, "agrees"),
        (0.67, True, "lower"),
        (math.nan, False, "not stated"),
    ],
)
def test_values_agree_within_the_interval_and_the_tolerance(
    theirs: float, at_least: bool, agreement: str
) -> None:
    _, (first, _) = tables.cells_of(table(theirs=[theirs, 0.6], at_least=at_least))
    assert first.agreement == agreement


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize(
    ("theirs", "at_least", "agreement"),
    [
        (0.6, False, "unclear"),
        (0.66, False, "lower"),
        (0.54, False, "higher"),
        (0.57, True, "unclear"),
        (0.55, True, "agrees"),
    ],
)
def test_a_value_in_a_wide_interval_is_unclear(
    theirs: float, at_least: bool, agreement: str
) -> None:
    narrow = table(theirs=[theirs, 0.6], at_least=at_least)
    narrow = narrow.model_copy(update={"tolerance": 0.015})
    _, (first, _) = tables.cells_of(narrow)
    assert first.agreement == agreement


@pytest.mark.usefixtures("figures")
def test_a_column_can_have_another_figure_and_format() -> None:
    column = Column(title="change", change=True, unit="%", tolerance=3)
    stated = table(theirs=[-8, -14], variant="defense")
    changed = stated.model_copy(update={"columns": (column, column)})
    _, cells = tables.cells_of(changed)
    assert [cell.ours and cell.ours.value for cell in cells] == [-10, -10]
    assert [cell.agreement for cell in cells] == ["agrees", "higher"]


def test_values_that_were_not_run_or_stated_are_not_compared() -> None:
    cells = [[cell(0.5, 0.6)._replace(agreement="agrees"), cell(0.9, None)]]
    cells += [[cell(0.7, 0.8)._replace(agreement="higher")] * 2]
    cells += [[cell(math.nan, 0.7)._replace(agreement="not stated")] * 2]
    cells += [[cell(0.5, 0.5)._replace(agreement="unclear")] * 2]
    expected = "1 of 5 values agree; 2 unclear; 1 not run"
    assert table_pages.outcome(table(best=""), cells) == expected


def test_verdicts_on_a_table_are_counted() -> None:
    results: list[Any] = [
        SimpleNamespace(claim=SimpleNamespace(id=name), verdict=verdict)
        for name, verdict in [("a", "open"), ("b", "confirmed"), ("c", "open"), ("d", "not run")]
    ]
    stated = table()
    words = [
        table_pages.verdict_words(stated.model_copy(update={"claims": claims}), results)
        for claims in (["a", "b", "c"], ["a", "c"], [])
    ]
    assert words == ["2 **open**, 1 **confirmed**", "**open**", "no claim"]


def test_a_row_takes_precedence_and_can_refer_to_its_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terms: list[Term] = []
    monkeypatch.setattr(tables, "figure_of", lambda _regime, _test, term: terms.append(term))
    monkeypatch.setattr(tables, "regimes", lambda: {"x": None})
    columns = [Column(title="1", attack="loss", variant="few"), Column(title="2", attack="norm")]
    row = Row(title="a", theirs=[0, 0], regime="x")
    rows = [
        row,
        row.model_copy(update={"attack": "{},noisy", "variant": "late-{}"}),
        row.model_copy(update={"attack": "cosine", "variant": ""}),
    ]
    tables.cells_of(table().model_copy(update={"columns": columns, "row": rows}))
    assert [(term.attack, term.variant) for term in terms] == [
        ("loss", "few"),
        ("norm", None),
        ("loss,noisy", "late-few"),
        ("norm,noisy", "late-"),
        ("cosine", ""),
        ("cosine", ""),
    ]


def test_pages_link_to_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("figure_of", "gap_of"):
        monkeypatch.setattr(tables, name, lambda *_: None)
    monkeypatch.setattr(table_pages, "judge_paper", lambda _: [])
    monkeypatch.setattr(table_pages, "main_claims_of", lambda _: ())
    for name in ("leaks", "title_of"):
        monkeypatch.setattr(table_pages, name, lambda _: "")
    papers = table_pages.judged_papers()
    index = table_pages.index_page(papers)
    assert len(papers) == 5
    for judged in papers:
        name, text = judged.page, table_pages.paper_page(judged)
        targets = set(re.findall(r"\(([\w-]+)\)=", text))
        linked = set(re.findall(rf"papers/{name}#([\w-]+)", index))
        assert linked == targets
        assert text.count("<td") == sum(
            len(table.columns) * len(table.row)
            for paper, table in ALL
            if paper.name.lower() == name[:-3]
        )
