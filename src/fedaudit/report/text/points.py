"""Points of security games: their names, the families they make, and what their figures say."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.report.evidence import grouped
from fedaudit.report.grid import shortened
from fedaudit.report.words import count, interval, number, percent, plural
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.games import FIT, HELD_OUT, InRounds, PointPlayed, Rate

IN_ROUNDS = "in rounds"

_SHORT = {"noise_multiplier": "noise"}
_OTHERS = {
    "honest": "others honest",
    "planted": "all sent the neuron",
    "dead": "others’ neuron dead",
}


def defended(rounds: InRounds) -> bool:
    """True where anything stands between a client's gradient and the server."""
    return rounds.defense != NO_DEFENSE or rounds.clients > 1


def defense_words(rounds: InRounds) -> str:
    """The defense with its settings: "dp-sgd, clip 1, noise 0.5"."""
    if rounds.defense == NO_DEFENSE:
        return "no defense"
    options = [
        f"{shortened(_SHORT.get(name, name), 30)} {_trimmed(value)}"
        for name, value in rounds.options.items()
    ]
    return ", ".join([shortened(rounds.defense), *options])


def plan_words(rounds: InRounds) -> str:
    """Plan of the server beside averaging: copies, louder neurons, sums."""
    parts = []
    if rounds.neurons > 1:
        parts.append(plural(rounds.neurons, "neuron"))
    if rounds.louder != 1:
        parts.append("louder")
    if rounds.clients > 1:
        parts.append(f"sum of {count(rounds.clients)}, {_OTHERS[rounds.others]}")
    return ", ".join(parts)


def round_family(point: PointPlayed, rounds: InRounds, points: Sequence[PointPlayed]) -> str:
    """The points that differ from it only in how many rounds are averaged, by name."""
    mixed = any(one.rounds is None for one in points)
    parts = [IN_ROUNDS * mixed, defense_words(rounds), plan_words(rounds)]
    # A study's own batch goes without saying.
    if point.batch != next(one.batch for one in points if one.rounds):
        parts.append(f"batch {count(point.batch)}")
    return ", ".join(part for part in parts if part)


def rounds_words(rounds: InRounds) -> str:
    """The number of rounds that are averaged."""
    return plural(rounds.averaged, "round")


def _trimmed(value: str) -> str:
    return shortened(value.removesuffix(".0"), 30)


NO_MECHANISM = "none"

FAR_ABOVE = 2.0
"""Times the claimed epsilon from which on a true one is far above it."""

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


class ShownPoint(NamedTuple):
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


def shown_points(points: Sequence[PointPlayed]) -> list[ShownPoint]:
    """Points with names that hold what differs between them and nothing else."""
    varying = _varying([point for point in points if point.rounds is None])
    found = []
    for point in points:
        if point.rounds is not None:
            found.append(_shown_in_rounds(point, point.rounds, points))
            continue
        family = _family(point, varying.get(point.mechanism, set()))
        budget = point.claimed_epsilon
        setting = family if budget is None else f"{family}, ε {epsilon(budget)}"
        found.append(ShownPoint(point, family, _own_label(point) or setting, setting))
    return found


Families = dict[str, list[ShownPoint]]
"""Points that one line joins, by the line's name."""


def families(shown: Sequence[ShownPoint]) -> Families:
    """Points by family, in the record's order; within one by claimed epsilon, or by rounds."""
    found = grouped(shown, lambda one: one.family)
    return {name: sorted(inside, key=_by_epsilon) for name, inside in found.items()}


def epsilon(value: float) -> str:
    """A privacy budget as a reader sees it: 3, 0.25, 668 or 35,342."""
    if 0 < value < 0.0005 or value >= 1e9:
        return number(value)
    return f"{value:.3g}" if value < 100 else count(round(value))


def times_named(point: PointPlayed) -> float | None:
    """Number of times the claimed epsilon the actual one is; None without both."""
    if point.actual_epsilon is None or not point.claimed_epsilon:
        return None
    return point.actual_epsilon / point.claimed_epsilon


def times_text(ratio: float) -> str:
    """Number of times as much: 1, 1.3 or 223."""
    return count(round(ratio)) if ratio >= 10 else f"{ratio:.2g}"


def far_above(point: PointPlayed) -> bool:
    """True where the actual epsilon is far above the claimed one, or has no bound at all."""
    if point.claimed_epsilon is None:
        return False
    if point.actual_epsilon is None:
        return True
    return point.actual_epsilon > FAR_ABOVE * point.claimed_epsilon


def overtaken(point: PointPlayed) -> bool:
    """True where the success refutes even what the mechanism's probabilities or noise allow."""
    if point.rounds is not None:
        return point.adv.low > point.most + 1e-9
    actual = point.actual_epsilon
    return actual is not None and point.proven_epsilon > actual * (1 + 1e-9)


def contradicted(point: PointPlayed) -> bool:
    """True where the success refutes the claimed epsilon, the actual one or the noise."""
    return point.refuted or overtaken(point)


def provable(point: PointPlayed) -> float:
    """The epsilon that as many games prove where the server is never wrong."""
    right = [_MISSED ** (1 / rate.total) for rate in (point.tpr, point.tnr)]
    return max(0.0, *(math.log(r / -math.expm1(math.log(o))) for r, o in (right, right[::-1])))


def behind_mechanism(shown: Sequence[ShownPoint]) -> list[ShownPoint]:
    """Points at which clients did something to their records, or to what they send."""
    return [one for one in shown if _protected(one.point)]


def without_mechanism(shown: Sequence[ShownPoint]) -> list[ShownPoint]:
    """Points at which clients did nothing to their records, nor to what they send."""
    return [one for one in shown if not _protected(one.point)]


def _protected(point: PointPlayed) -> bool:
    return point.mechanism != NO_MECHANISM or (point.rounds is not None and defended(point.rounds))


def _shown_in_rounds(
    point: PointPlayed, how: InRounds, points: Sequence[PointPlayed]
) -> ShownPoint:
    family = round_family(point, how, points)
    setting = f"{family}, {rounds_words(how)}" if how.averaged > 1 else family
    return ShownPoint(point, family, _own_label(point) or setting, setting)


def _varying(points: Sequence[PointPlayed]) -> dict[str, set[str]]:
    found = {}
    for mechanism, same in grouped(points, lambda point: point.mechanism).items():
        names = {name for point in same for name in point.settings} - _TOLD
        # A setting that some points leave at the study's own differs as well.
        found[mechanism] = {
            name for name in names if len({point.settings.get(name) for point in same}) > 1
        }
    return found


def _family(point: PointPlayed, varying: set[str]) -> str:
    rest = [
        _IN_WORDS.get(
            (name, value), f"{shortened(name.rpartition('.')[2], 30)}={shortened(value, 30)}"
        )
        for name, value in point.settings.items()
        if name in varying
    ]
    name = "no mechanism" if point.mechanism == NO_MECHANISM else shortened(point.mechanism)
    mask = ["shared mask"] if point.shared_mask else []
    return ", ".join(filter(None, [name, *mask, *rest]))


def _own_label(point: PointPlayed) -> str:
    """Name that a study's author gave a variant; empty for points of a grid, named by settings."""
    made = not point.label or point.label == point.mechanism or set("=,") & set(point.label)
    return "" if made else point.label


def _by_epsilon(one: ShownPoint) -> float:
    if one.point.rounds is not None:
        return float(one.point.rounds.averaged)
    budget = one.point.claimed_epsilon
    return math.inf if budget is None else budget


def most_right(shown: Sequence[ShownPoint]) -> ShownPoint:
    """The point at which the server is right most often, by the lower limit as its word is."""
    return max(shown, key=lambda one: (one.point.adv.low, one.point.adv.value))


def least_right(shown: Sequence[ShownPoint]) -> ShownPoint:
    """The point at which the server is right least often, by the upper limit."""
    return min(shown, key=lambda one: (one.point.adv.high, one.point.adv.value))


def short(one: ShownPoint) -> str:
    """A point in running text: what is between client and server, as rows of a picture have it."""
    return shortened(one.setting, 80)


def right_in(adv: Rate) -> str:
    """Success in running text."""
    return f"{percent(adv.value)} (95% interval {interval(adv.low, adv.high, 'accuracy')})"


def in_rounds(shown: Sequence[ShownPoint]) -> list[ShownPoint]:
    """Points that were played in real rounds."""
    return [one for one in shown if one.point.rounds is not None]


def by_signs(shown: Sequence[ShownPoint]) -> list[ShownPoint]:
    """Points that were played by the neurons' signs."""
    return [one for one in shown if one.point.rounds is None]


POOR_FIT = 0.9
"""Below this a neuron does not even tell apart what it was trained on."""

BY_HEART = 0.25
"""A fit that is so much lower on what was held out is one to the rows that were trained on."""


def is_poor(point: PointPlayed) -> bool:
    """True where neurons do not even tell apart what they were trained on."""
    fit = point.figure(FIT)
    return fit is not None and fit < POOR_FIT


def is_by_heart(point: PointPlayed) -> bool:
    """True where they do, and much less what they were not trained on."""
    fit, held_out = point.figure(FIT), point.figure(HELD_OUT)
    if fit is None or held_out is None or is_poor(point):
        return False
    return fit - held_out > BY_HEART
