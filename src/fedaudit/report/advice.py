"""Comparison of a federation with the leak ladder, and changes that reduced leaks on the ladder.

The leak ladder is a series of federations that were measured once, from little to much leakage.
Each is a *rung*. A *rule* predicts the AUC of attacks from a gap between training and held-out
samples (see :mod:`fedaudit.results.ladder`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_texts
from fedaudit.formatting.wording import (
    attack_code,
    defense_name,
    format_interval,
    format_number,
    format_percent,
)
from fedaudit.report.deciding.caveats import unit_of
from fedaudit.report.evidence import group_by
from fedaudit.results import ladder
from fedaudit.results.ladder import Auc, Change, ProbitLine
from fedaudit.results.record import Record

_MIN_AUC_DECREASE = 0.03
"""A change is suggested if it decreased an AUC by at least this much, and to at least this much
below the AUC of the audited federation."""

_MIN_ACCURACY = 0.2
"""Test accuracy below which a model is useless on the ladder's data, which have ten classes."""
_MAX_ACCURACY_LOSS = 0.05
"""Largest loss of test accuracy of a change that is preferred to costlier changes."""
_DEFENSES = ("clipping", "dp-sgd")
_SMALLEST = {"epochs": 1, "rounds": 1}  # settings that cannot be reduced any further
_FIXED = fixed_texts("ladder")
_KINDS: Mapping[str, str] = _FIXED["changes"]
_UNITS: Mapping[str, str] = _FIXED["units"]


class Advice(NamedTuple):
    """Sentences that compare a federation with the ladder.

    Attributes:
        place: Sentences on the AUCs of similar federations on the ladder, and on the measured AUC.
        changes: A sentence for each kind of change that lowered leaks on the ladder.
        step: Sentence on the change to try next; empty if no change helped.
    """

    place: str
    changes: tuple[str, ...]
    step: str = ""


def advice(record: Record) -> Advice | None:
    """Compare a federation with the leak ladder; None if the ladder has no similar federations.

    All federations of the ladder train classifiers with honest clients, and were audited for single
    samples.
    """
    view, leak_ladder = record.view.name, ladder.read_ladder()
    not_covered = (
        record.evaluation != "aligned" or record.null_members,
        unit_of(record) != "sample" or record.clusters,
        record.config.get("attacker") is not None,
        wording.study_setting(record, "task", "name") not in (None, "classification"),
        len({estimate.defense for estimate in record.where(topic="utility")}) > 1,
        view not in _FIXED["place"],
    )
    if any(not_covered):
        return None
    # The ladder knows attacks by their catalogue names.
    estimates = [
        estimate.model_copy(update={"attack": attack_code(estimate.attack)})
        for estimate in record.estimates
    ]
    record = record.model_copy(update={"estimates": estimates})
    if view == "uploads":
        rule, gap, auc = (
            leak_ladder.uploads,
            ladder.loss_gap(record),
            ladder.strongest_upload_attack(record),
        )
        gap_text = format_number(gap or 0.0)
    else:
        rule, gap = leak_ladder.final, ladder.generalisation_gap(record)
        auc = next(iter(ladder.mean_aucs(record, [ladder.FINAL_ATTACK], "unseen")), None)
        gap_text = f"{format_percent(abs(gap or 0.0))} {'lower' if gap and gap < 0 else 'higher'}"
    if gap is None or auc is None or not rule.covers(gap):
        return None
    expected = rule.at(gap)
    place = place_on_ladder(view, gap, gap_text)
    helpful = _helpful(record, leak_ladder.changes, auc) if view == "uploads" else []
    by_kind = group_by(helpful, lambda change: change.kind)
    changes = [
        f"{name}: {'; '.join(map(_describe_change, by_kind[kind]))}."
        for kind, name in _KINDS.items()
        if kind in by_kind
    ]
    comparison = _comparison(record, auc, expected, rule)
    return Advice(f"{place} {comparison}", tuple(changes), _step(helpful))


def place_on_ladder(view: str, gap: float, gap_text: str) -> str:
    """Return the sentence on the AUCs that federations of the ladder have at a gap.

    Args:
        view: The adversary's view.
        gap: The gap, which the view's rule must cover.
        gap_text: The gap as a text.
    """
    leak_ladder = ladder.read_ladder()
    rule = leak_ladder.uploads if view == "uploads" else leak_ladder.final
    low, high = rule.range_at(gap)
    return str(
        _FIXED["place"][view].format(
            gap=gap_text,
            rungs=f"{len(leak_ladder.rungs):,}",
            sets=len({rung.data for rung in leak_ladder.rungs}),
            range=f"{low:.2f} to {high:.2f}",
        )
    )


def _comparison(record: Record, auc: Auc, expected: float, rule: ProbitLine) -> str:
    measured = f"Here it is {format_number(auc.value)} ({format_interval(auc.low, auc.high, AUC)})"
    if abs(auc.value - expected) <= rule.spread:
        return f"{measured}, as expected."
    if auc.value > expected:
        partition = record.config.get("partition")
        is_iid = not isinstance(partition, Mapping) or partition.get("scheme") == "iid"
        caveat = " Unlike here, all clients of a federation there have equal label distributions."
        more = (
            f"{measured}, more than expected: in nine of ten federations of the ladder, the "
            "prediction was closer."
        )
        return more if is_iid else more + caveat
    defenses = [f", with {defense_name(name)}" for name in _defenses_used(record)[:1]]
    return f"{measured}, less than expected{''.join(defenses)}."


def _defenses_used(record: Record) -> list[str]:
    return sorted({estimate.defense for estimate in record.where(topic="utility")} - {"none"})


def _helpful(record: Record, changes: Sequence[Change], auc: Auc) -> list[Change]:
    training = {kind: wording.study_setting(record, "training", kind) for kind in _KINDS}
    excluded = {kind for kind in _KINDS if training[kind] == _SMALLEST.get(kind, "")}
    excluded |= set(_DEFENSES if _defenses_used(record) else ())
    return [
        change
        for change in changes
        if change.kind in _KINDS
        and change.kind not in excluded
        and _auc_decrease(change) >= _MIN_AUC_DECREASE
        and change.auc[1] <= auc.value - _MIN_AUC_DECREASE
        and change.accuracy[1] >= _MIN_ACCURACY
        and auc.low > 0.5
    ]


def _step(helpful: Sequence[Change]) -> str:
    cheap = [
        change
        for change in helpful
        if change.accuracy[0] - change.accuracy[1] <= _MAX_ACCURACY_LOSS
    ]
    best = max(cheap or helpful, key=_auc_decrease, default=None)
    if best is None:
        return ""
    return f"{_KINDS[best.kind]} {_FIXED['step']}: {_describe_change(best)}."


def _auc_decrease(change: Change) -> float:
    before, after = change.auc
    return before - after


def _describe_change(change: Change) -> str:
    unit = _UNITS.get(change.kind, "")
    before, after = (
        f"{int(value):,}" if value.isdecimal() else value for value in (change.before, change.after)
    )
    setting = "" if change.before == "none" else f" ({before} → {after}{f' {unit}' * bool(unit)})"
    return (
        f"{change.data}{setting} AUC {format_number(change.auc[0])} → "
        f"{format_number(change.auc[1])}, test accuracy {format_percent(change.accuracy[0])} → "
        f"{format_percent(change.accuracy[1])}"
    )
