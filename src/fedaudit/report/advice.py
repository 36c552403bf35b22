"""Place of a federation on the leak ladder, and changes that lowered the leak of others there."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.report.verdict import unit_of
from fedaudit.report.words import count, defense_name, number, percent
from fedaudit.results.ladder import (
    FINAL_ATTACK,
    Auc,
    Change,
    Ladder,
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


def advice(record: Record) -> Advice | None:
    """The place of a federation on the ladder; None for all else than what is on it.

    That is classifiers, ordinary samples one by one, and clients that train as they should.
    """
    task = record.config.get("task")
    elsewhere = (
        record.evaluation != "aligned" or record.nobody_is_a_member,
        unit_of(record) != "sample" or record.clusters,
        record.config.get("attacker") is not None,
        isinstance(task, dict) and task.get("name", "classification") != "classification",
        len({one.defense for one in record.where(topic="utility")}) > 1,
    )
    of_view = {"uploads": _of_uploads, "final": _of_final}.get(record.view.name)
    return None if of_view is None or any(elsewhere) else of_view(record, ladder())


def _of_uploads(record: Record, known: Ladder) -> Advice | None:
    found, gap = strongest(record), loss_gap(record)
    if found is None or gap is None or not known.uploads.covers(gap):
        return None
    expected = known.uploads.at(gap)
    sets = len({one.data for one in known.rungs})
    stands = (
        f"The models that clients send have a mean loss on their own samples {number(gap)} "
        f"standard deviations below that on fresh ones. From {count(len(known.rungs))} federations "
        f"on {sets} data sets an AUC of {_range(known.uploads, expected)} is to be expected of the "
        f"strongest of four attacks there. {_compared(record, found, expected, known.uploads)}"
    )
    helped = _helped(record, known.changes, found)
    return Advice(stands, _lowered(helped), _step(helped))


def _of_final(record: Record, known: Ladder) -> Advice | None:
    gap, found = generalisation_gap(record), aucs(record, [FINAL_ATTACK], "unseen")
    if gap is None or not found or not known.final.covers(gap):
        return None
    expected = known.final.at(gap)
    stands = (
        f"The final model is {percent(abs(gap))} {'better' if gap >= 0 else 'worse'} on what it "
        "was trained on than on fresh samples. "
        f"An AUC of {_range(known.final, expected)} is to be expected of its loss there, against "
        f"samples that nobody trained on. {_compared(record, found[0], expected, known.final)}"
    )
    return Advice(stands, ())


def _range(rule: ProbitLine, expected: float) -> str:
    low, high = max(expected - rule.spread, 0.5), min(expected + rule.spread, 1.0)
    return f"{low:.2f} to {high:.2f}"


def _compared(record: Record, found: Auc, expected: float, rule: ProbitLine) -> str:
    here = f"Here it is {number(found.value)} ({number(found.low)}–{number(found.high)})"
    if abs(found.value - expected) <= rule.spread:
        return f"{here}, as expected."
    if found.value > expected:
        alike = (
            "" if _alike(record) else " Clients there have alike label distributions, unlike here."
        )
        return f"{here}, more than nine of ten federations there have.{alike}"
    defenses = [defense_name(name) for name in _in_force(record)]
    return f"{here}, less than expected{f', with {defenses[0]}' if defenses else ''}."


def _alike(record: Record) -> bool:
    """True if all clients have the same label distribution, as far as is known."""
    partition = record.config.get("partition")
    return not isinstance(partition, Mapping) or partition.get("scheme") == "iid"


def _in_force(record: Record) -> list[str]:
    return sorted({one.defense for one in record.where(topic="utility")} - {"none"})


def _helped(record: Record, changes: Sequence[Change], found: Auc) -> dict[str, list[Change]]:
    training = record.config.get("training")
    now = training if isinstance(training, Mapping) else {}
    helped: dict[str, list[Change]] = {}
    for one in changes:
        done = now.get(one.kind) == _ONE_ALREADY.get(one.kind, "")
        if done or (one.kind in _DEFENSES and _in_force(record)):
            continue
        lower = one.auc[0] - one.auc[1] >= LEAST_LOWERED
        usable = one.accuracy[1] >= _USABLE
        if lower and usable and found.low > 0.5 and one.auc[1] <= found.value - LEAST_LOWERED:
            helped.setdefault(one.kind, []).append(one)
    return {kind: helped[kind] for kind in _KINDS if kind in helped}


def _lowered(helped: Mapping[str, Sequence[Change]]) -> tuple[str, ...]:
    return tuple(
        f"{_KINDS[kind]}: {'; '.join(map(_figures, changes))}." for kind, changes in helped.items()
    )


def _step(helped: Mapping[str, Sequence[Change]]) -> str:
    every = [one for changes in helped.values() for one in changes]
    if not every:
        return ""
    cheap = [one for one in every if one.accuracy[0] - one.accuracy[1] <= _LITTLE]
    most = max(cheap or every, key=lambda one: one.auc[0] - one.auc[1])
    return f"{_KINDS[most.kind]} lowered it on the leak ladder: {_figures(most)}."


def _figures(one: Change) -> str:
    setting = "" if one.before == "none" else f" ({one.before} → {one.after})"
    return (
        f"{one.data}{setting} AUC {number(one.auc[0])} → {number(one.auc[1])}, test accuracy "
        f"{percent(one.accuracy[0])} → {percent(one.accuracy[1])}"
    )
