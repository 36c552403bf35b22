"""Points of a study of games as a report tells them apart: by mechanism, mask and epsilon."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.report.game_round_names import defended, round_family, rounds_words
from fedaudit.report.grid import shortened
from fedaudit.report.reading import InRounds, PointPlayed, Success
from fedaudit.report.words import count, interval, number, percent

NO_MECHANISM = "none"

FAR_ABOVE = 2.0
"""Times the named epsilon from which on a true one is far above it."""

_EPSILONS = {"mechanism.options.epsilon", "mechanism.options.nominal_epsilon"}
_TOLD = {"mechanism.name", "mechanism.options.shared_mask", *_EPSILONS}
"""Settings that a name has words for."""

_IN_WORDS = {
    ("mechanism.options.sign_lost", "True"): "sign lost",
    ("game.validation", "0"): "zero as trained",
    ("game.validation_copies", "0"): "",
}
"""Values that are said otherwise than by their setting's name; one goes without saying."""

_MISSED = 0.025
"""One side of an interval of 95%."""


class Shown(NamedTuple):
    """A point as a report names it.

    Attributes:
        point: What was played.
        family: The points that differ from it in epsilon only, by name.
        name: Its own.
        setting: The family with the epsilon; often the name itself.
    """

    point: PointPlayed
    family: str
    name: str
    setting: str


def shown_points(points: Sequence[PointPlayed]) -> list[Shown]:
    """Points with names that hold what differs between them and nothing else."""
    varying = _varying([point for point in points if point.rounds is None])
    found = []
    for point in points:
        if point.rounds is not None:
            found.append(_shown_in_rounds(point, point.rounds, points))
            continue
        family = _family(point, varying.get(point.mechanism, set()))
        budget = point.nominal_epsilon
        setting = family if budget is None else f"{family}, ε {epsilon(budget)}"
        found.append(Shown(point, family, _own_label(point) or setting, setting))
    return found


Families = dict[str, list[Shown]]
"""Points that one line joins, by the line's name."""


def families(shown: Sequence[Shown]) -> Families:
    """Points by family, in the record's order; within one by named epsilon, or by rounds."""
    found: Families = {}
    for one in shown:
        found.setdefault(one.family, []).append(one)
    return {name: sorted(inside, key=_by_epsilon) for name, inside in found.items()}


def epsilon(value: float) -> str:
    """A privacy budget as a reader sees it: 3, 0.25, 668 or 35,342."""
    if 0 < value < 0.0005 or value >= 1e9:
        return number(value)
    return f"{value:.3g}" if value < 100 else count(round(value))


def times_named(point: PointPlayed) -> float | None:
    """How many times the named epsilon the true one is; None without both."""
    if point.true_epsilon is None or not point.nominal_epsilon:
        return None
    return point.true_epsilon / point.nominal_epsilon


def times_text(ratio: float) -> str:
    """How many times as much: 1, 1.3 or 223."""
    return count(round(ratio)) if ratio >= 10 else f"{ratio:.2g}"


def far_above(point: PointPlayed) -> bool:
    """Whether the true epsilon is far above the named one, or has no bound at all."""
    if point.nominal_epsilon is None:
        return False
    if point.true_epsilon is None:
        return True
    return point.true_epsilon > FAR_ABOVE * point.nominal_epsilon


def overtaken(point: PointPlayed) -> bool:
    """Whether the success refutes even what the mechanism's probabilities or noise allow."""
    if point.rounds is not None:
        return point.adv.low > point.most + 1e-9
    return point.true_epsilon is not None and point.proven_epsilon > point.true_epsilon * (1 + 1e-9)


def provable(point: PointPlayed) -> float:
    """The epsilon that as many games prove where the server is never wrong."""
    right = [_MISSED ** (1 / rate.total) for rate in (point.tpr, point.tnr)]
    return max(0.0, *(math.log(r / -math.expm1(math.log(o))) for r, o in (right, right[::-1])))


def behind_mechanism(shown: Sequence[Shown]) -> list[Shown]:
    """Points at which clients did something to their records, or to what they send."""
    return [one for one in shown if _protected(one.point)]


def without_mechanism(shown: Sequence[Shown]) -> list[Shown]:
    """Points at which clients did nothing to their records, nor to what they send."""
    return [one for one in shown if not _protected(one.point)]


def _protected(point: PointPlayed) -> bool:
    return point.mechanism != NO_MECHANISM or (point.rounds is not None and defended(point.rounds))


def mechanism_name(mechanism: str) -> str:
    """A mechanism as a reader sees it."""
    return "no mechanism" if mechanism == NO_MECHANISM else mechanism


def _shown_in_rounds(point: PointPlayed, how: InRounds, points: Sequence[PointPlayed]) -> Shown:
    family = round_family(point, how, points)
    setting = f"{family}, {rounds_words(how)}" if how.averaged > 1 else family
    return Shown(point, family, _own_label(point) or setting, setting)


def _varying(points: Sequence[PointPlayed]) -> dict[str, set[str]]:
    """For each mechanism the settings in which its points differ."""
    values: dict[str, dict[str, set[str]]] = {}
    counts: dict[str, int] = {}
    seen: dict[str, dict[str, int]] = {}
    for point in points:
        counts[point.mechanism] = counts.get(point.mechanism, 0) + 1
        for name, value in point.settings.items():
            values.setdefault(point.mechanism, {}).setdefault(name, set()).add(value)
            times = seen.setdefault(point.mechanism, {})
            times[name] = times.get(name, 0) + 1
    return {
        mechanism: {
            name
            for name, held in given.items()
            # A setting that some points leave at the study's own differs as well.
            if name not in _TOLD and (len(held) > 1 or seen[mechanism][name] < counts[mechanism])
        }
        for mechanism, given in values.items()
    }


def _family(point: PointPlayed, varying: set[str]) -> str:
    rest = [
        _IN_WORDS.get(
            (name, value), f"{shortened(name.rpartition('.')[2], 30)}={shortened(value, 30)}"
        )
        for name, value in point.settings.items()
        if name in varying
    ]
    mask = ["shared mask"] if point.shared_mask else []
    return ", ".join(filter(None, [shortened(mechanism_name(point.mechanism)), *mask, *rest]))


def _own_label(point: PointPlayed) -> str:
    """What a study's author called a variant; empty for points of a grid, named by settings."""
    made = not point.label or point.label == point.mechanism or set("=,") & set(point.label)
    return "" if made else point.label


def _by_epsilon(one: Shown) -> float:
    if one.point.rounds is not None:
        return float(one.point.rounds.averaged)
    budget = one.point.nominal_epsilon
    return math.inf if budget is None else budget


def most_right(shown: Sequence[Shown]) -> Shown:
    """The point at which the server is right most often, by the lower limit as its word is."""
    return max(shown, key=lambda one: (one.point.adv.low, one.point.adv.value))


def least_right(shown: Sequence[Shown]) -> Shown:
    """The point at which the server is right least often, by the upper limit."""
    return min(shown, key=lambda one: (one.point.adv.high, one.point.adv.value))


def short(one: Shown) -> str:
    """A point's name in running text."""
    return shortened(one.name, 60)


def right_in(adv: Success) -> str:
    """Success in running text."""
    return f"{percent(adv.value)} (95% interval {interval(adv.low, adv.high, 'accuracy')})"
