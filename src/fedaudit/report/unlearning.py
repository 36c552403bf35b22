"""Unlearning in a report: forgotten against unseen samples, before, after, and retrained."""

from fedaudit.core.metric_names import DESTROYED
from fedaudit.report import wording
from fedaudit.report.deciding.deletion import WITHHELD, deletion, deletion_verdict
from fedaudit.report.fixed import fixed
from fedaudit.report.grid import Cell, Content, Tile, named
from fedaudit.report.section import Section, of_table
from fedaudit.report.tables.cells import estimate_table, measured
from fedaudit.results import unlearning
from fedaudit.results.estimate import TEST_ACCURACY, Estimate
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import Record

_POINTS = (unlearning.BEFORE, unlearning.AFTER, unlearning.RETRAINED)
_HEADINGS = {point: wording.capital(point) for point in _POINTS} | {unlearning.BOTH: "Both models"}
_EXCESS, _VERDICT = "After less retrained", "Verdict"


def unlearning_section(record: Record) -> Section | None:
    """Return the section on unlearning: AUCs of each attack and utility; None without it."""
    rows, left = unlearning.unlearning_rows(record), deletion(record)
    if left is None:
        return None
    several = len({row.after.target for row in rows}) > 1
    figures = record.where(topic=unlearning.UNLEARNING, seed=None)
    figures = [figure for figure in figures if figure.attack or figure.value]
    cells = [(_EXCESS if figure.against else _HEADINGS[figure.point], figure) for figure in figures]
    cells += [(_VERDICT, figure) for figure in figures if figure.against]

    def heading(figure: Estimate) -> Cell:
        if not figure.attack:
            return Cell(wording.capital(wording.metric_name(figure.metric)))
        target = "all" if figure.target is None else wording.client_name(figure.target)
        return named(figure.attack, target * several)

    def content(column: str, figure: Estimate) -> Content:
        if column == _VERDICT:
            return deletion_verdict(record, figure.note)
        if figure.attack and left.verdict == WITHHELD:
            figure = figure.doubted(NOT_RELIED_ON)
        return measured(figure, unbounded="")

    table = estimate_table(
        f"AUC of forgotten against unseen {_units(record)}, and utility",
        cells,
        rows=lambda cell: heading(cell[1]),
        columns=lambda cell: cell[0],
        cell=lambda cell: content(*cell),
        order=(*(_HEADINGS[point] for point in _POINTS), _EXCESS, _VERDICT),
        remark=fixed("unlearning.remark"),
    )
    return of_table("unlearning", "Unlearning", table, _sentence(record, left.verdict))


def unlearning_tile(record: Record) -> list[Tile]:
    """Return the gravest verdict, with the attack that finds most after unlearning."""
    left = deletion(record)
    if left is None:
        return []
    most, both = left.most, left.both
    points = dict(zip(_POINTS, (most.before, most.after, most.retrained), strict=True))
    aucs = ", ".join(f"{name} {_with_range(figure)}" for name, figure in points.items())
    detail = f"{most.after.attack}, AUC {aucs}; "
    detail += f"adversary with both models {_with_range(both)}, {both.attack}"
    utilities = record.where(topic=unlearning.UNLEARNING, seed=None, metric=TEST_ACCURACY)
    if accuracies := [
        f"{name} {wording.shown(figure.value, TEST_ACCURACY)}"
        for name in points
        for figure in utilities
        if figure.point == name
    ]:
        detail += f"; test accuracy {', '.join(accuracies)}"
    if left.verdict == WITHHELD:
        detail = NOT_RELIED_ON
    tone = "" if left.verdict in (*unlearning.NOT_TOLD, WITHHELD) else "alarm"
    return [Tile(f"Unlearning by {_method(record)}", left.verdict, detail, tone)]


def _with_range(figure: Estimate) -> str:
    limits = wording.interval_of(figure)
    return wording.value_of(figure) + f" ({limits})" * bool(limits)


def _method(record: Record) -> str:
    settings = record.config.get("unlearning")
    method = settings.get("method") if isinstance(settings, dict) else None
    return wording.MISSING if method is None else str(method)


def _units(record: Record) -> str:
    return "people" if record.unit == "person" else "samples"


def _sentence(record: Record, verdict: str) -> str:
    rows = unlearning.unlearning_rows(record)
    of_target = {row.after.target: row.after for row in rows}.values()
    forgotten, unseen = sum(o.n_members for o in of_target), max(o.n_nonmembers for o in of_target)
    what = f"unlearning by {_method(record)!r} of {forgotten} {_units(record)}"
    attacks = wording.plural(len({row.after.attack for row in rows}), "attack")
    said = "unlearning.destroyed" if verdict == DESTROYED else "unlearning.said"
    return fixed(said, verdict=wording.capital(verdict), attacks=attacks, what=what, unseen=unseen)
