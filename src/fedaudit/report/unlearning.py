"""Unlearning in a report: forgotten against unseen samples, before, after, and retrained."""

from typing import NamedTuple

from fedaudit.core.metric_names import DESTROYED
from fedaudit.report import words
from fedaudit.report.deciding.deletion import WITHHELD, deletion, deletion_verdict
from fedaudit.report.evidence import Look
from fedaudit.report.grid import Cell, Grid, Tile, named
from fedaudit.report.tables.cells import estimate_table, measured
from fedaudit.results.estimate import Estimate
from fedaudit.results.metrics import TEST_ACCURACY
from fedaudit.results.record import Record
from fedaudit.results.unlearning import (
    AFTER,
    BEFORE,
    BOTH,
    NOT_TOLD,
    RETRAINED,
    UNLEARNING,
    unlearning_rows,
)


class UnlearningSection(NamedTuple):
    """The part of a report on unlearning.

    Attributes:
        said: The verdict in a sentence.
        table: AUCs of each attack and utility, before, after and retrained.
    """

    said: str
    table: Grid


_HEADINGS = {BEFORE: "Before", AFTER: "After", RETRAINED: "Retrained", BOTH: "Both models"}
_EXCESS, _VERDICT = "After less retrained", "Verdict"


def unlearning_section(record: Record) -> UnlearningSection | None:
    """Return the part on unlearning; None for a record without it."""
    rows, left = unlearning_rows(record), deletion(record)
    if left is None:
        return None
    several = len({row.after.target for row in rows}) > 1
    figures = [
        figure
        for figure in record.where(topic=UNLEARNING, seed=None)
        if figure.attack or figure.value
    ]
    cells = [(_EXCESS if figure.against else _HEADINGS[figure.point], figure) for figure in figures]
    cells += [(_VERDICT, figure) for figure in figures if figure.against]

    def heading(figure: Estimate) -> Cell:
        if not figure.attack:
            return Cell(words.capital(words.metric_name(figure.metric)))
        target = "all" if figure.target is None else words.client_name(figure.target)
        return named(figure.attack, target * several)

    table = estimate_table(
        f"AUC of forgotten against unseen {_units(record)}, and utility",
        cells,
        rows=lambda cell: heading(cell[1]),
        columns=lambda cell: cell[0],
        cell=lambda cell: (
            deletion_verdict(record, cell[1].note)
            if cell[0] == _VERDICT
            else measured(cell[1], Look(), unbounded="")
        ),
        order=("Before", "After", "Retrained", _EXCESS, _VERDICT),
        remark="The yardstick is a federation with the same settings that never had the forgotten "
        "samples. After less retrained: paired on the same samples, with a 90% interval, which is "
        "two one-sided tests at 5% each. Both models: the score before less the score after, for "
        "an adversary who has the two; retraining leaves that open too.",
    )
    return UnlearningSection(_sentence(record, left.verdict), table)


def unlearning_tile(record: Record) -> list[Tile]:
    """Return the gravest verdict, with the attack that finds most after unlearning."""
    left = deletion(record)
    if left is None:
        return []
    most, both = left.most, left.both
    aucs = ", ".join(
        f"{name} {_with_range(figure)}"
        for name, figure in (
            (BEFORE, most.before),
            (AFTER, most.after),
            (RETRAINED, most.retrained),
        )
    )
    utilities = record.where(topic=UNLEARNING, seed=None, metric=TEST_ACCURACY)
    accuracies = ", ".join(
        f"{figure.point} {words.shown(figure.value, TEST_ACCURACY)}"
        for name in (BEFORE, AFTER, RETRAINED)
        for figure in utilities
        if figure.point == name
    )
    detail = f"{most.after.attack}, AUC {aucs}; "
    detail += f"adversary with both models {_with_range(both)}, {both.attack}"
    detail += f"; test accuracy {accuracies}" if accuracies else ""
    tone = "" if left.verdict in (*NOT_TOLD, WITHHELD) else "alarm"
    return [Tile(f"Unlearning by {_method(record)}", left.verdict, detail, tone)]


def _with_range(figure: Estimate) -> str:
    limits = words.interval_of(figure)
    return words.value_of(figure) + f" ({limits})" * bool(limits)


def _method(record: Record) -> str:
    settings = record.config.get("unlearning")
    method = settings.get("method") if isinstance(settings, dict) else None
    return words.MISSING if method is None else str(method)


def _units(record: Record) -> str:
    return "people" if record.unit == "person" else "samples"


def _sentence(record: Record, verdict: str) -> str:
    rows = unlearning_rows(record)
    of_target = {row.after.target: row.after for row in rows}.values()
    forgotten, unseen = sum(o.n_members for o in of_target), max(o.n_nonmembers for o in of_target)
    what = f"unlearning by {_method(record)!r} of {forgotten} {_units(record)}"
    if verdict == DESTROYED:
        return (
            f"Model destroyed: {what} left a test accuracy near guessing. Such a model reveals "
            "nothing about any sample."
        )
    attacks = words.plural(len({row.after.attack for row in rows}), "attack")
    return (
        f"{words.capital(verdict)}, as far as {attacks} of this study can tell: {what}, compared "
        f"with {unseen} unseen ones."
    )
