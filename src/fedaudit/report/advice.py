"""Place of a federation on the leak ladder, and changes that lowered the leak of others there."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.report.evidence import grouped
from fedaudit.report.verdict import unit_of
from fedaudit.report.wording import count, defense_name, number, percent
from fedaudit.results.ladder import (
    FINAL_ATTACK,
    Auc,
    Change,
    ProbitLine,
    aucs,
    generalisation_gap,
    ladder,
    loss_gap,
    strongest,
)
from fedaudit.results.record import Record

LEAST_LOWERED = 0.03
"""By how much a change must have lowered an AUC, and end below what is found here, to be named."""

_USABLE = 0.2
"""Test accuracy below which a model is of no use on the ladder's data (ten classes and more)."""
_LITTLE = 0.05
"""What a change may cost in test accuracy."""
_DEFENSES = ("clipping", "dp-sgd")
_KINDS = {
    "epochs": "Fewer local epochs",
    "rounds": "Fewer rounds",
    "samples": "More samples a client",
    "lr": "A smaller learning rate",
    "decay": "Weight decay",
    "width": "A narrower network",
    "clipping": "Clipping each sample's gradient",
    "dp-sgd": "DP-SGD",
}
_ONE_ALREADY = {"epochs": 1, "rounds": 1}


class Advice(NamedTuple):
    """A block of the report.

    Attributes:
        stands: Which rung this is, what is to be expected there and what was found.
        lowered: What took it down there, each with its figures; empty where nothing did.
        step: The change that took most off an AUC there, as something to do: of those that cost
            hardly any accuracy, where there are such; empty where none helped.
    """

    stands: str
    lowered: tuple[str, ...]
    step: str = ""


_STANDS = {
    "uploads": "The models that clients send have a mean loss on their own samples {gap} standard "
    "deviations below that on fresh ones. From {rungs} federations on {sets} data sets an AUC of "
    "{range} is to be expected of the strongest of four attacks there.",
    "final": "The final model is {gap} on what it was trained on than on fresh samples. An AUC of "
    "{range} is to be expected of its loss there, against samples that nobody trained on.",
}


def advice(record: Record) -> Advice | None:
    """Return the place of a federation on the ladder; None for all else than what is on it.

    That is classifiers, ordinary samples one by one, and clients that train as they should.
    """
    task, view, known = record.config.get("task"), record.view.name, ladder()
    elsewhere = (
        record.evaluation != "aligned" or record.nobody_is_a_member,
        unit_of(record) != "sample" or record.clusters,
        record.config.get("attacker") is not None,
        isinstance(task, dict) and task.get("name", "classification") != "classification",
        len({one.defense for one in record.where(topic="utility")}) > 1,
        view not in _STANDS,
    )
    if any(elsewhere):
        return None
    if view == "uploads":
        rule, gap, found = known.uploads, loss_gap(record), strongest(record)
        distance = "" if gap is None else number(gap)
    else:
        rule, gap = known.final, generalisation_gap(record)
        found = next(iter(aucs(record, [FINAL_ATTACK], "unseen")), None)
        worse = "worse" if gap and gap < 0 else "better"
        distance = f"{percent(abs(gap or 0.0))} {worse}"
    if gap is None or found is None or not rule.covers(gap):
        return None
    expected = rule.at(gap)
    low, high = max(expected - rule.spread, 0.5), min(expected + rule.spread, 1.0)
    stands = _STANDS[view].format(
        gap=distance,
        rungs=count(len(known.rungs)),
        sets=len({one.data for one in known.rungs}),
        range=f"{low:.2f} to {high:.2f}",
    )
    helped = _helped(record, known.changes, found) if view == "uploads" else []
    by_kind = grouped(helped, lambda one: one.kind)
    return Advice(
        f"{stands} {_compared(record, found, expected, rule)}",
        tuple(
            f"{_KINDS[kind]}: {'; '.join(map(_figures, by_kind[kind]))}."
            for kind in _KINDS
            if kind in by_kind
        ),
        _step(helped),
    )


def _compared(record: Record, found: Auc, expected: float, rule: ProbitLine) -> str:
    here = f"Here it is {number(found.value)} ({number(found.low)}–{number(found.high)})"
    if abs(found.value - expected) <= rule.spread:
        return f"{here}, as expected."
    if found.value > expected:
        partition = record.config.get("partition")
        alike = not isinstance(partition, Mapping) or partition.get("scheme") == "iid"
        unlike = " Clients there have alike label distributions, unlike here." * (not alike)
        return f"{here}, more than nine of ten federations there have.{unlike}"
    defenses = [f", with {defense_name(name)}" for name in _in_force(record)[:1]]
    return f"{here}, less than expected{''.join(defenses)}."


def _in_force(record: Record) -> list[str]:
    return sorted({one.defense for one in record.where(topic="utility")} - {"none"})


def _helped(record: Record, changes: Sequence[Change], found: Auc) -> list[Change]:
    """Return the changes that lowered a leak there to less than is found here, and can be made."""
    training = record.config.get("training")
    now = training if isinstance(training, Mapping) else {}
    refused = {kind for kind in _KINDS if now.get(kind) == _ONE_ALREADY.get(kind, "")}
    refused |= set(_DEFENSES if _in_force(record) else ())
    return [
        one
        for one in changes
        if one.kind in _KINDS
        and one.kind not in refused
        and one.auc[0] - one.auc[1] >= LEAST_LOWERED
        and one.auc[1] <= found.value - LEAST_LOWERED
        and one.accuracy[1] >= _USABLE
        and found.low > 0.5
    ]


def _step(helped: Sequence[Change]) -> str:
    """Return the change that lowered the AUC most, of those that cost little if there are any."""
    cheap = [one for one in helped if one.accuracy[0] - one.accuracy[1] <= _LITTLE]
    best = max(cheap or helped, key=lambda one: one.auc[0] - one.auc[1], default=None)
    if best is None:
        return ""
    return f"{_KINDS[best.kind]} lowered the leak on the leak ladder: {_figures(best)}."


def _figures(one: Change) -> str:
    setting = "" if one.before == "none" else f" ({one.before} → {one.after})"
    return (
        f"{one.data}{setting} AUC {number(one.auc[0])} → {number(one.auc[1])}, test accuracy "
        f"{percent(one.accuracy[0])} → {percent(one.accuracy[1])}"
    )
