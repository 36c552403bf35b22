"""Section on label inference: which classes occur in the training data of each client."""

from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.grid import Cell, Content, Tile, tile
from fedaudit.report.evidence import is_uninformative
from fedaudit.report.tables.cells import Section, estimate_table, table_section, value_cell
from fedaudit.results.estimate import GUESSING, LABEL_INFERENCE, OTHER_CLIENT, Estimate
from fedaudit.results.record import Record

_NULLS = {GUESSING: "Permuted classes", OTHER_CLIENT: "Classes of another client"}


def label_section(record: Record) -> Section | None:
    """Return the section with the AUC and its two tests; None without label inference."""
    estimates = record.where(topic=LABEL_INFERENCE, seed=None)
    if not estimates:
        return None
    cells = [("AUC", estimate) for estimate in estimates]
    cells += [(null, estimate) for null in _NULLS for estimate in estimates]
    table = estimate_table(
        "AUC of label inference over pairs of a client and a class",
        cells,
        rows=lambda cell: wording.defense_name(cell[1].defense),
        columns=lambda cell: _NULLS.get(cell[0], cell[0]),
        cell=lambda cell: _content(*cell),
        first="Defense",
        remark=fixed_text("labels.remark"),
    )
    return table_section("labels", "Label inference", table, _sentence(estimates[0]))


def label_tile(record: Record) -> list[Tile]:
    """Return a tile with the AUC of label inference and its levels under the null hypotheses."""
    if is_uninformative(record):
        return []
    return [
        tile(
            "Label inference, AUC",
            wording.value_text(estimate),
            wording.limits_in_words(wording.interval_text(estimate)),
            *(
                f"{name.lower()} {wording.format_value(test.level, estimate.metric)}"
                for null, name in _NULLS.items()
                if (test := estimate.test(null)) and test.level is not None
            ),
            "unit: a client and a class",
            tone="raised" * (_verdict(estimate) == "shown"),
        )
        for estimate in record.where(topic=LABEL_INFERENCE, seed=None)[:1]
    ]


def _content(column: str, estimate: Estimate) -> Content:
    if column not in _NULLS:
        return value_cell(estimate)
    test = estimate.test(column)
    if test is None or test.level is None:
        return None
    p_value = "" if test.p_value is None else f"p = {test.p_value:.2g}"
    return Cell(wording.format_value(test.level, estimate.metric), p_value)


def _verdict(estimate: Estimate) -> str:
    """Return the key of the verdict's sentence."""
    guessing, other = (estimate.test(null) for null in _NULLS)
    if other is not None and other.significant:
        return "shown"
    return "only_frequent" if guessing is not None and guessing.significant else "not_shown"


def _sentence(estimate: Estimate) -> str:
    interval = wording.interval_text(estimate)
    return fixed_text(
        "labels.sentence",
        verdict=fixed_text(f"labels.{_verdict(estimate)}"),
        pairs=f"{estimate.n_members + estimate.n_nonmembers:,}",
        held=f"{estimate.n_members:,}",
        auc=wording.value_text(estimate) + f" ({interval})" * bool(interval),
    )
