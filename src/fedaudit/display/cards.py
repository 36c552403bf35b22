"""Results as HTML fragments for notebooks: the first screen of a report without its sections."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.formatting import wording
from fedaudit.formatting.grid import Cells, Grid, Tile, grid_of, shorten
from fedaudit.report import evidence
from fedaudit.report.figures.charts import Axis, Figures
from fedaudit.report.figures.forest import (
    PLAIN,
    ForestRow,
    Picture,
    build_forest,
    mark_of,
    track_cell,
)
from fedaudit.report.first import FirstScreen, first_of_record
from fedaudit.report.page import embedded_css, templates
from fedaudit.report.text.verdict import summarise_verdict
from fedaudit.results.comparison import Comparison
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record

MEASURED = "measured"
"""Look of a card without a verdict; other looks are those of verdicts (:data:`evidence.Status`)."""
GOOD, BAD, OPEN = "no leak shown", "strong leak", "inconclusive"
"""Looks of the verdict of a check: passed, failed and undecided."""


MOST_ROWS = 12
"""Largest number of rounds and decisions in a notebook."""
LONGEST_NAME = 60
"""Largest length of a name."""


class Card(NamedTuple):
    """A result as a notebook displays it; all texts except ``status`` may be empty.

    The fields before ``table`` are those of :class:`fedaudit.report.first.FirstScreen`.

    Attributes:
        look: :data:`MEASURED`, or the verdict that decides the color.
        notes: Sentences below everything else.
    """

    status: str
    finding: str = ""
    look: str = MEASURED
    warning: str = ""
    caveat: str = ""
    caveats: tuple[str, ...] = ()
    picture: Picture = ()
    low: bool = False
    numbers: tuple[Tile, ...] = ()
    controls: str = ""
    sign: str = "?"
    next: tuple[str, ...] = ()
    table: Grid | None = None
    notes: tuple[str, ...] = ()


def card_html(card: Card | FirstScreen, front: Figures | None = None) -> str:
    """Return a card, or the first screen of a report, as HTML without scripts and links.

    Args:
        card: The card.
        front: Chart that replaces the picture; only its first choice is drawn.
    """
    if front is not None:
        front = front._replace(choices=front.choices[:1])
    page = templates().get_template("embedded.html.j2")
    return page.render(
        card=card,
        front=front,
        css=Markup(embedded_css()),
        table=card.table if isinstance(card, Card) else None,
        notes=card.notes if isinstance(card, Card) else (),
    )


def record_html(record: Record) -> str:
    """Return the first screen of a record's report as an HTML fragment."""
    return card_html(first_of_record(wording.printable_record(record)))


def comparison_html(comparison: Comparison, records: Sequence[Record]) -> str:
    """Return the first screen of a comparison as an HTML fragment, or its rows without records."""
    from fedaudit.report.comparison.screen import (
        first_of_comparison,
        front_figure,
        printable_comparison,
    )

    comparison, records = printable_comparison(comparison, records)
    if not records:
        return card_html(_rows_card(comparison))
    first = first_of_comparison(
        comparison, records, [summarise_verdict(record) for record in records]
    )
    front = front_figure(comparison, records, ranked=first.look != "control failed")
    return card_html(first, front)


def _rows_card(comparison: Comparison) -> Card:
    from fedaudit.report.comparison.tradeoffs import labels_of

    rows: list[Cells] = [
        {"row": label, "audit": shorten(comparison.sources[row.source].name, 60)}
        for label, row in zip(labels_of(comparison), comparison.rows, strict=True)
    ]
    return Card(
        "comparison",
        f"{wording.format_count(len(rows), 'row')} of "
        f"{wording.format_count(len(comparison.sources), 'audit')}",
        table=grid_of("Rows", rows, words=("audit",)),
        notes=("Pass the audits to fedaudit.compare to see their figures.",),
    )


def estimate_html(estimate: Estimate) -> str:
    """Return an estimate as an HTML fragment: value, interval, and a chart of both."""
    estimate = wording.clean_texts(estimate, clients={}, name_attack=wording.attack_name)
    name, marker = wording.metric_name(estimate.metric), evidence.marker_of(estimate)
    is_membership = estimate.topic == "membership"
    about = wording.join_parts(
        shorten(estimate.attack or estimate.topic, 60),
        shorten(estimate.group, 40),
        f"members {wording.nonmember_heading(estimate.contrast)}" if is_membership else "",
        f"client {estimate.target}" if estimate.target is not None else "",
        f"seed {estimate.seed}" if estimate.seed is not None else "",
    )
    rate, picture = rate_of(estimate.metric), Picture()
    if estimate.value is not None and (estimate.metric == AUC or rate is not None):
        track = Axis(name, form="" if rate is None else "%", guess=0.5 if rate is None else rate)
        cell = track_cell(estimate, [mark_of(estimate, PLAIN, name)], marker.sign)
        row = ForestRow(shorten(estimate.attack, 60), (cell,), marker.tone)
        picture = build_forest(about, about, "", [track], [row])
    sizes = f"{estimate.n_members} members, {estimate.n_nonmembers} non-members"
    has_sizes = estimate.n_members or estimate.n_nonmembers
    notes = ("" if picture else about, sizes if has_sizes else "", shorten(estimate.note, 300))
    return card_html(
        Card(
            marker.word or "estimate",
            f"{wording.capitalise(name)} {wording.with_interval(estimate)}",
            picture=picture,
            notes=tuple(filter(None, notes)),
        )
    )


def hidden_rows(total: int, what: str) -> tuple[str, ...]:
    """Return a note on the rows that a table omits, if any."""
    hidden = total - MOST_ROWS
    return (f"{wording.format_count(hidden, f'earlier {what}')} not shown.",) if hidden > 0 else ()
