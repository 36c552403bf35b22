"""Ceilings on what a server that plants a neuron wins, held against a record of games."""

from collections.abc import Iterator, Sequence
from functools import partial

from fedaudit.gate.limits import Limits, check_limit
from fedaudit.gate.outcome import Outcome, bound_against
from fedaudit.gate.policy import GamesPolicy
from fedaudit.gate.sample_size import RequiredSamples, required_sample_size
from fedaudit.gate.settling import AGAIN
from fedaudit.gate.verdict import Check, Held, ceiling_check, demand
from fedaudit.metrics.balanced import counted_balanced_accuracy
from fedaudit.metrics.epsilon import Counts, clopper_pearson_epsilon
from fedaudit.report.grid import shortened
from fedaudit.results.games import SUCCESS, PointPlayed
from fedaudit.results.record import Record

ALPHA = 0.05
"""Error of a bound on epsilon, over all points that are judged together."""


def game_checks(record: Record, policy: GamesPolicy, confidence: float) -> Iterator[Check]:
    """One check for each ceiling, and one that all mechanisms asked for were played.

    Args:
        record: The record of games.
        policy: Its ceilings.
        confidence: That limits must have.
    """
    played = {point.mechanism for point in record.games}
    missing = [shortened(name) for name in policy.mechanisms if name not in played]
    points = [p for p in record.games if not policy.mechanisms or p.mechanism in policy.mechanisms]
    if policy.mechanisms:
        faults = [f"no game against {name}" for name in missing]
        yield demand("games", "every mechanism played", faults, Outcome.INCONCLUSIVE)
    if policy.success is not None:
        won = [_won(point, record, policy.success, confidence) for point in points]
        yield ceiling_check("games", "games won (Adv)", "adv_share", policy.success, won)
    if policy.epsilon is not None:
        bounds = [_bound(point, record, policy.epsilon, len(points)) for point in points]
        yield ceiling_check("games", "proven epsilon", "epsilon", policy.epsilon, bounds)
    if policy.true_epsilon is not None:
        given = [_true(point, record, policy.true_epsilon) for point in points]
        yield ceiling_check("games", "true epsilon", "epsilon", policy.true_epsilon, given)
    if policy.contradicted:
        yield from _contradictions(points, record)


def _won(point: PointPlayed, record: Record, ceiling: float, confidence: float) -> Held:
    adv = point.adv
    return check_limit(
        _name(point, record),
        Limits(adv.value, adv.low, adv.high, _method(point)),
        ceiling,
        confidence=confidence,
        more=partial(_more_games, point, ceiling),
    )


def _method(point: PointPlayed) -> str:
    found = point.estimate(SUCCESS)
    return found.method if found else ""


def _more_games(point: PointPlayed, ceiling: float) -> RequiredSamples:
    """More games by these rates, as many of each kind as there were."""

    def limits(times: int) -> tuple[float, float] | None:
        now, then = (
            counted_balanced_accuracy(
                k * point.tpr.hits, k * point.tpr.total, k * point.tnr.hits, k * point.tnr.total
            )
            for k in (1, times)
        )
        same = abs(now.low - point.adv.low) < 1e-6 and abs(now.high - point.adv.high) < 1e-6
        return (then.low, then.high) if same else None

    return required_sample_size(limits, 1, ceiling, what=AGAIN.replace("samples", "sets of games"))


def _bound(point: PointPlayed, record: Record, ceiling: float, points: int) -> Held:
    """The limit that the success proves, with the error shared by all points."""
    bound = _proven(point, points)
    return Held(
        what=_name(point, record),
        value=bound,
        low=bound,
        method=f"Clopper-Pearson {100 * (1 - ALPHA):g}%, error shared by {points} points",
        outcome=bound_against(bound, ceiling),
    )


def _true(point: PointPlayed, record: Record, ceiling: float) -> Held:
    """The limit that the mechanism's probabilities give; known, not estimated."""
    given = point.actual_epsilon
    within = given is not None and given <= ceiling
    return Held(
        what=_name(point, record),
        value=given,
        high=given,
        method="" if given is None else f"of the mechanism itself, delta {point.delta:g}",
        outcome=Outcome.PASS if within else Outcome.FAIL,
        reason="there is no bound" if given is None else "",
    )


def _contradictions(points: Sequence[PointPlayed], record: Record) -> Iterator[Check]:
    named = [point for point in points if point.claimed_epsilon is not None]
    faults, unsure = [], []
    for point in named:
        nominal = point.claimed_epsilon or 0.0
        if _proven(point, len(named)) > nominal:
            faults.append(f"{_name(point, record)} is named {nominal:g}, and the games refute it")
        elif point.refuted:
            unsure.append(f"{_name(point, record)} by its own test, not by one that is corrected")
    title = "named epsilons not contradicted"
    if not named:
        return
    if faults or not unsure:
        yield demand("games", title, faults, Outcome.FAIL)
    else:
        yield demand("games", title, unsure, Outcome.INCONCLUSIVE)


def _proven(point: PointPlayed, points: int) -> float:
    """The lower bound on epsilon from a point's counts, at its share of the error."""
    said_in, silent = point.tpr, point.tnr
    counts = Counts(said_in.hits, said_in.total, silent.total - silent.hits, silent.total)
    return clopper_pearson_epsilon(counts, delta=point.delta, alpha=ALPHA / max(1, points)).value


def _name(point: PointPlayed, record: Record) -> str:
    return shortened(point.label or f"{record.name} as it is", 120)
