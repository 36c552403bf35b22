"""Unlearning in a report: forgotten against unseen samples, before, after, and retrained."""

from typing import NamedTuple

from fedaudit.core.metric_names import DESTROYED
from fedaudit.report import words
from fedaudit.report.grid import Cell, Filled, Grid, below, named, tabled
from fedaudit.report.verdict import unlearning_verdict
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from fedaudit.results.unlearning import (
    UNLEARNING,
    UnlearningRow,
    unlearning_rows,
)


class UnlearningSection(NamedTuple):
    """The part of a report on unlearning.

    Attributes:
        said: The verdict in a sentence.
        attacks: The AUCs of each attack.
        utility: What the three models are good for; None where that was not counted.
    """

    said: str
    attacks: Grid
    utility: Grid | None


def unlearning_section(record: Record) -> UnlearningSection | None:
    """The part on unlearning; None of a record without it."""
    rows = unlearning_rows(record)
    if not rows:
        return None
    several = len({row.after.target for row in rows}) > 1
    return UnlearningSection(
        _said(record, rows),
        tabled(
            f"AUC of forgotten against unseen {'people' if record.unit == 'person' else 'samples'}",
            [_row(record, row, several) for row in rows],
            words=("Verdict",),
            remark="The yardstick is a federation with the same settings that never had the "
            "forgotten samples. After less retrained: paired on the same samples, with a 90% "
            "interval, which is two one-sided tests at 5% each. Both models: the score before less "
            "the score after, for whoever has the two; retraining leaves that open too.",
        ),
        _utility(record),
    )


def _points(row: UnlearningRow) -> dict[str, Estimate]:
    return {
        "before": row.before,
        "after": row.after,
        "retrained": row.retrained,
        "both models": row.both,
    }


def _method(record: Record) -> str:
    given = record.config.get("unlearning")
    return str(given.get("method", words.MISSING)) if isinstance(given, dict) else words.MISSING


def _said(record: Record, rows: list[UnlearningRow]) -> str:
    verdict, units = unlearning_verdict(record), "people" if record.unit == "person" else "samples"
    of_target = {row.after.target: row.after for row in rows}.values()
    forgotten, unseen = sum(o.n_members for o in of_target), max(o.n_nonmembers for o in of_target)
    attacks = words.plural(len({row.after.attack for row in rows}), "attack")
    if verdict == DESTROYED:
        return (
            f"Model destroyed: unlearning by {_method(record)!r} of {forgotten} {units} left a "
            "test accuracy near guessing. Such a model tells nothing of any sample."
        )
    return (
        f"{words.capital(verdict)}, as far as {attacks} of this study can tell: unlearning by "
        f"{_method(record)!r} of {forgotten} {units}, held against {unseen} unseen ones."
    )


def _row(record: Record, row: UnlearningRow, several: bool) -> Filled:
    found: dict[str, Cell | str | None] = {"Attack": named(row.after.attack)}
    if several:
        target = row.after.target
        found["Target"] = "all" if target is None else words.client_name(target)
    for name, one in _points(row).items():
        if name != "both models":
            found[words.capital(name)] = Cell(words.value_of(one), words.interval_of(one))
    excess = row.excess
    assert excess.low is not None
    assert excess.high is not None
    limits = words.span(excess.low, excess.high, excess.metric)
    found["After less retrained"] = Cell(words.signed(excess.number, excess.metric), f"({limits})")
    found["Verdict"] = unlearning_verdict(record, excess.note)
    found["Both models"] = Cell(words.value_of(row.both), words.interval_of(row.both))
    return found


def _of_models(record: Record, metric: str) -> dict[str, Estimate]:
    found = record.where(topic=UNLEARNING, seed=None, metric=metric)
    return {one.point: one for one in found}


def _utility(record: Record) -> Grid | None:
    figures = [
        one for one in record.where(topic=UNLEARNING, seed=None) if not one.attack and one.value
    ]
    metrics = list(dict.fromkeys(one.metric for one in figures))
    rows: list[Filled] = [
        {
            "Utility": words.capital(words.metric_name(metric)),
            **{
                words.capital(name): Cell(words.value_of(one), below(words.interval_of(one)))
                for name, one in _of_models(record, metric).items()
            },
        }
        for metric in metrics
    ]
    return tabled("What the models are good for", rows) if rows else None
