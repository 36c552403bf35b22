"""Section on unlearning: how well attacks distinguish deleted samples from unseen samples.

Three models are compared: before deletion, after deletion, and retrained without these samples.
"""

from typing import NamedTuple

from fedaudit.core.metric_names import DESTROYED, INCONCLUSIVE, NOT_FORGOTTEN, OVERCORRECTED
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import Cell, Content, Tile, name_cell, tile
from fedaudit.report.deciding.caveats import units_of
from fedaudit.report.evidence import outcomes_of
from fedaudit.report.tables.cells import Section, estimate_table, table_section, value_cell
from fedaudit.results import unlearning
from fedaudit.results.estimate import TEST_ACCURACY, Estimate
from fedaudit.results.guessing import HIDES_LEAKS, NOT_RELIED_ON
from fedaudit.results.record import Record

WITHHELD = "withheld: a control failed"  # shown instead of a verdict on unlearning


class Deletion(NamedTuple):
    """Verdict over all attacks, the strongest attack, and the largest AUC with both models."""

    verdict: str
    strongest: unlearning.UnlearningRow
    both_models: Estimate

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        if self.verdict == WITHHELD:
            return f"The verdict after deletion is {WITHHELD}"
        words = verdict_text(self.verdict)
        return f"These figures are for the model before deletion; verdict after deletion: {words}"


def deletion_result(record: Record) -> Deletion | None:
    """Return the verdict on deletion and its main estimates; None if no samples were deleted."""
    rows = unlearning.unlearning_rows(record)
    if not rows:
        return None
    verdict = deletion_verdict(record, unlearning.unlearning_verdict_of(rows))
    both_models = max((row.both for row in rows), key=lambda estimate: estimate.number)
    return Deletion(verdict, unlearning.row_with_largest_auc(rows), both_models)


def deletion_verdict(record: Record, figures_verdict: str) -> str:
    """Return the verdict of the estimates, corrected for failed controls and destroyed models.

    A destroyed model predicts no better than guessing, so it reveals nothing about any sample.
    """
    verdict = figures_verdict or INCONCLUSIVE
    failed = outcomes_of(record.controls).failed
    may_hide_leaks = all(result.control in HIDES_LEAKS for result in failed)
    # If such a control fails, AUCs may be too low. The verdict "not forgotten" is still valid.
    if failed and not (verdict == NOT_FORGOTTEN and may_hide_leaks):
        return WITHHELD
    shows_change = verdict.startswith((NOT_FORGOTTEN, OVERCORRECTED))
    return DESTROYED if not shows_change and unlearning.is_model_destroyed(record) else verdict


def verdict_text(verdict: str) -> str:
    """Replace the name of a verdict in a text by the words that pages print."""
    for name, words in fixed_texts("deletion_verdicts").items():
        verdict = verdict.replace(name, words)
    return verdict


_POINTS = (unlearning.BEFORE, unlearning.AFTER, unlearning.RETRAINED)
_HEADINGS = {point: wording.capitalise(point) for point in _POINTS} | {
    unlearning.BOTH: "Both models"
}
_EXCESS, _VERDICT = "After minus retrained", "Verdict"


def unlearning_section(record: Record) -> Section | None:
    """Return the section with each attack's AUCs and the utility; None without unlearning."""
    rows, deletion = unlearning.unlearning_rows(record), deletion_result(record)
    if deletion is None:
        return None
    has_several_targets = len({row.after.target for row in rows}) > 1
    estimates = record.where(topic=unlearning.UNLEARNING, seed=None)
    estimates = [estimate for estimate in estimates if estimate.is_of_attack or estimate.value]
    cells = [
        (_EXCESS if estimate.against else _HEADINGS[estimate.point], estimate)
        for estimate in estimates
    ]
    cells += [(_VERDICT, estimate) for estimate in estimates if estimate.against]

    def heading(estimate: Estimate) -> Cell:
        if not estimate.attack:
            return Cell(wording.capitalise(wording.metric_name(estimate.metric)))
        target = "all" if estimate.target is None else wording.client_name(estimate.target)
        return name_cell(estimate.attack, target * has_several_targets)

    def content(column: str, estimate: Estimate) -> Content:
        if column == _VERDICT:
            return verdict_text(deletion_verdict(record, estimate.note))
        with_doubt = estimate.is_of_attack and deletion.verdict == WITHHELD
        return value_cell(
            estimate.with_doubt(NOT_RELIED_ON) if with_doubt else estimate, unbounded=""
        )

    table = estimate_table(
        f"AUC of deleted against unseen {units_of(record)}, and utility",
        cells,
        rows=lambda cell: heading(cell[1]),
        columns=lambda cell: cell[0],
        cell=lambda cell: content(*cell),
        order=(*(_HEADINGS[point] for point in _POINTS), _EXCESS, _VERDICT),
        remark=fixed_text("unlearning.remark"),
    )
    return table_section("unlearning", "Unlearning", table, _sentence(record, deletion.verdict))


def unlearning_tile(record: Record) -> list[Tile]:
    """Return a tile with the verdict, and the AUCs of the strongest attack after unlearning."""
    deletion = deletion_result(record)
    if deletion is None:
        return []
    row, both_models = deletion.strongest, deletion.both_models
    points = dict(zip(_POINTS, (row.before, row.after, row.retrained), strict=True))
    aucs = ", ".join(f"{name} {_with_range(estimate)}" for name, estimate in points.items())
    details = [
        f"{row.after.attack}, AUC {aucs}",
        f"adversary with both models {_with_range(both_models)}, {both_models.attack}",
    ]
    utilities = record.where(topic=unlearning.UNLEARNING, seed=None, metric=TEST_ACCURACY)
    accuracies = {estimate.point: estimate.value for estimate in utilities}
    if texts := [
        f"{name} {wording.format_value(accuracies[name], TEST_ACCURACY)}"
        for name in points
        if name in accuracies
    ]:
        details.append(f"test accuracy {', '.join(texts)}")
    if deletion.verdict == WITHHELD:
        details = [NOT_RELIED_ON]
    tone = "" if deletion.verdict in (*unlearning.WITHOUT_EVIDENCE, WITHHELD) else "alarm"
    verdict = verdict_text(deletion.verdict)
    return [tile(f"Unlearning by {_method(record)}", verdict, *details, tone=tone)]


def _with_range(estimate: Estimate) -> str:
    limits = wording.interval_text(estimate)
    return wording.value_text(estimate) + f" ({limits})" * bool(limits)


def _method(record: Record) -> str:
    method = wording.study_setting(record, "unlearning", "method")
    return wording.MISSING if method is None else str(method)


def _sentence(record: Record, verdict: str) -> str:
    rows = unlearning.unlearning_rows(record)
    by_target = {row.after.target: row.after for row in rows}.values()
    deleted = f"{sum(estimate.n_members for estimate in by_target):,}"
    return fixed_text(
        f"unlearning.{'destroyed' if verdict == DESTROYED else 'verdict'}",
        verdict=wording.capitalise(verdict_text(verdict)),
        attacks=wording.format_count(len({row.after.attack for row in rows}), "attack"),
        what=f"unlearning by {_method(record)!r} of {deleted} {units_of(record)}",
        unseen=f"{max(estimate.n_nonmembers for estimate in by_target):,}",
    )
