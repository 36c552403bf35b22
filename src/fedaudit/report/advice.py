"""Comparison of a federation with the leak ladder, and changes that reduced leaks on the ladder.

The leak ladder is a series of federations that were measured once, from little to much leakage.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.report import wording
from fedaudit.report.deciding.caveats import unit_of
from fedaudit.report.evidence import grouped
from fedaudit.report.fixed import fixed_texts
from fedaudit.report.wording import attack_code, defense_name, interval, number, percent
from fedaudit.results import ladder
from fedaudit.results.ladder import Auc, Change, ProbitLine
from fedaudit.results.record import Record

LEAST_LOWERED = 0.03
"""A change is suggested if it decreased an AUC by at least this much, and to at least this much
below the AUC of the audited federation."""

_USABLE = 0.2
"""Test accuracy below which a model is useless on the ladder's data, which have ten classes."""
_CHEAP = 0.05  # largest loss of test accuracy of a change that is preferred to costlier changes
_DEFENSES = ("clipping", "dp-sgd")
_SMALLEST = {"epochs": 1, "rounds": 1}  # settings that cannot be reduced any further
_FIXED = fixed_texts("ladder")
_KINDS: Mapping[str, str] = _FIXED["changes"]


class Advice(NamedTuple):
    """Sentences on a federation's place on the ladder, changes that lowered leaks, and a step."""

    place: str
    lowered: tuple[str, ...]
    step: str = ""


def advice(record: Record) -> Advice | None:
    """Compare a federation with the leak ladder; None if the ladder has no similar federations.

    All federations of the ladder train classifiers with honest clients, and single samples of
    theirs were audited.
    """
    view, rungs = record.view.name, ladder.ladder()
    not_covered = (
        record.evaluation != "aligned" or record.null_members,
        unit_of(record) != "sample" or record.clusters,
        record.config.get("attacker") is not None,
        wording.setting(record, "task", "name") not in (None, "classification"),
        len({estimate.defense for estimate in record.where(topic="utility")}) > 1,
        view not in _FIXED["place"],
    )
    if any(not_covered):
        return None
    # The ladder knows attacks by their catalogue names.
    coded = [f.model_copy(update={"attack": attack_code(f.attack)}) for f in record.estimates]
    record = record.model_copy(update={"estimates": coded})
    if view == "uploads":
        rule, gap, auc = rungs.uploads, ladder.loss_gap(record), ladder.strongest(record)
        distance = number(gap or 0.0)
    else:
        rule, gap = rungs.final, ladder.generalisation_gap(record)
        auc = next(iter(ladder.aucs(record, [ladder.FINAL_ATTACK], "unseen")), None)
        distance = f"{percent(abs(gap or 0.0))} {'lower' if gap and gap < 0 else 'higher'}"
    if gap is None or auc is None or not rule.covers(gap):
        return None
    expected = rule.at(gap)
    place = place_on_ladder(view, gap, distance)
    helpful = _helpful(record, rungs.changes, auc) if view == "uploads" else []
    by_kind = grouped(helpful, lambda change: change.kind)
    lowered = [
        f"{name}: {'; '.join(map(_figures, by_kind[kind]))}."
        for kind, name in _KINDS.items()
        if kind in by_kind
    ]
    compared = _compared(record, auc, expected, rule)
    return Advice(f"{place} {compared}", tuple(lowered), _step(helpful))


def place_on_ladder(view: str, gap: float, distance: str) -> str:
    """Return the sentence on the AUCs that federations of the ladder have at a gap.

    Args:
        view: The adversary's view.
        gap: The gap, which the view's rule must cover.
        distance: The gap as a text.
    """
    rungs = ladder.ladder()
    low, high = (rungs.uploads if view == "uploads" else rungs.final).range_at(gap)
    return str(
        _FIXED["place"][view].format(
            gap=distance,
            rungs=f"{len(rungs.rungs):,}",
            sets=len({rung.data for rung in rungs.rungs}),
            range=f"{low:.2f} to {high:.2f}",
        )
    )


def _compared(record: Record, auc: Auc, expected: float, rule: ProbitLine) -> str:
    measured = f"Here it is {number(auc.value)} ({interval(auc.low, auc.high, AUC)})"
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
    training = {kind: wording.setting(record, "training", kind) for kind in _KINDS}
    excluded = {kind for kind in _KINDS if training[kind] == _SMALLEST.get(kind, "")}
    excluded |= set(_DEFENSES if _defenses_used(record) else ())
    return [
        change
        for change in changes
        if change.kind in _KINDS
        and change.kind not in excluded
        and change.auc[0] - change.auc[1] >= LEAST_LOWERED
        and change.auc[1] <= auc.value - LEAST_LOWERED
        and change.accuracy[1] >= _USABLE
        and auc.low > 0.5
    ]


def _step(helpful: Sequence[Change]) -> str:
    cheap = [change for change in helpful if change.accuracy[0] - change.accuracy[1] <= _CHEAP]
    best = max(cheap or helpful, key=lambda change: change.auc[0] - change.auc[1], default=None)
    if best is None:
        return ""
    return f"{_KINDS[best.kind]} {_FIXED['step']}: {_figures(best)}."


def _figures(change: Change) -> str:
    setting = "" if change.before == "none" else f" ({change.before} → {change.after})"
    return (
        f"{change.data}{setting} AUC {number(change.auc[0])} → {number(change.auc[1])}, test "
        f"accuracy {percent(change.accuracy[0])} → {percent(change.accuracy[1])}"
    )
