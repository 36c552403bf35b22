"""Security games in sentences: the verdict, contradictions, warnings, and limits of the games."""

from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.report.evidence import Status, status_between
from fedaudit.report.grid import shortened
from fedaudit.report.text.points import (
    ShownPoint,
    behind_mechanism,
    contradicted,
    epsilon,
    families,
    far_above,
    in_rounds,
    is_by_heart,
    is_poor,
    least_right,
    most_right,
    overtaken,
    provable,
    right_in,
    short,
    shown_points,
    times_named,
    times_text,
    without_mechanism,
)
from fedaudit.report.words import capital, count, from_to, listed, percent, plural
from fedaudit.results.games import CLAIMED_SUCCESS, PointPlayed
from fedaudit.results.record import Record


def contradiction(one: ShownPoint) -> str:
    """Reason why a point's success and an epsilon cannot both be."""
    point = one.point
    told = f"{short(one)}: the server is right in {right_in(point.adv)} of games, which "
    if point.rounds is not None:
        return (
            f"{told}is more than the {percent(point.most)} that its noise allows any server. "
            "Either the defense does not do what it says, or that bound is worked out wrongly."
        )
    if overtaken(point) and point.actual_epsilon is not None:
        return (
            f"{told}proves an epsilon of at least {epsilon(point.proven_epsilon)}, more than "
            f"the {epsilon(point.actual_epsilon)} that its own probabilities give. Either the "
            "mechanism does not do what it says, or its epsilon is worked out wrongly."
        )
    named = point.claimed_epsilon or 0.0
    allowed = point.figure(CLAIMED_SUCCESS)
    most = "less" if allowed is None else percent(allowed)
    return (
        f"{told}proves an epsilon of at least {epsilon(point.proven_epsilon)}; "
        f"{epsilon(named)} is claimed. Under an honest ε of {epsilon(named)} no server is right in "
        f"more than {most} of games."
    )


def claims_of(shown: Sequence[ShownPoint]) -> list[str]:
    """Mechanisms whose actual epsilon is far above the claimed one, or is none."""
    found = []
    for name, inside in families(shown).items():
        far = [one.point for one in inside if far_above(one.point)]
        if not far:
            continue
        named = _epsilons([point.claimed_epsilon for point in far])
        true = [point.actual_epsilon for point in far]
        if None in true:
            why = (
                "all records of a batch get the same noise, so that one record tells of the "
                "noise on another"
                if far[0].shared_mask
                else "its probabilities have no bound"
            )
            said = f"claims ε {named} and gives no epsilon at all: {why}"
        else:
            times = [ratio for ratio in map(times_named, far) if ratio is not None]
            much = f"{times_text(min(times))} to {times_text(max(times))}" if times else "many"
            much = times_text(times[0]) if times and min(times) == max(times) else much
            said = (
                f"claims ε {named} and by its own probabilities gives ε {_epsilons(true)} for one "
                f"record, {much} times as much"
            )
        found.append(f"{shortened(name, 80)} {said}.")
    return found


def _epsilons(values: Sequence[float | None]) -> str:
    return from_to([value for value in values if value is not None], text=epsilon)


_MOST_NAMED = 4


def poor_fits(shown: Sequence[ShownPoint]) -> list[str]:
    """Warnings about points at which low success says nothing of protection; empty for none."""
    poor = [one for one in shown if is_poor(one.point)]
    by_heart = [one for one in shown if is_by_heart(one.point)]
    warnings = []
    if poor:
        warnings.append(
            f"At {_named(poor)} neurons do not even tell apart what they were trained on, so that "
            "a "
            "low success is no sign of protection. More epochs (neuron.epochs), another step size "
            "(neuron.lr) or more copies of the target (game.copies) may do better."
        )
    if by_heart:
        warnings.append(
            f"At {_named(by_heart)} neurons have memorised the rows that they were trained on, so "
            "that a low success is no sign of protection. More copies of the target (game.copies) "
            "or more records of the server (game.background) may do better."
        )
    return warnings


def _named(shown: Sequence[ShownPoint]) -> str:
    names = [shortened(one.name, 60) for one in shown[:_MOST_NAMED]]
    more = len(shown) - len(names)
    return listed([*names, f"{count(more)} more"] if more else names)


MOST_SAID = 8
"""Of sentences of one kind; the tables have the others."""


class GameVerdict(NamedTuple):
    """The verdict of a report of games.

    Attributes:
        status: The verdict in two or three words.
        look: The verdict whose colour it has.
        headline: In one sentence.
        played: What was played.
        contradictions: Points whose success refutes an epsilon; the gravest warnings.
        claims: Mechanisms whose actual epsilon is not the claimed one.
        meaning: What follows.
        limits: What the games cannot show.
    """

    status: str
    look: Status
    headline: str
    played: str
    contradictions: tuple[str, ...]
    claims: tuple[str, ...]
    meaning: str
    limits: tuple[str, ...]


def game_verdict(record: Record) -> GameVerdict:
    """The verdict on a record of games."""
    shown = shown_points(record.games)
    status = _status(behind_mechanism(shown) or shown)
    refuted = [one for one in shown if contradicted(one.point)]
    return GameVerdict(
        status="claim contradicted" if refuted else status,
        look="strong leak" if refuted else status,
        headline=_headline(shown, refuted),
        played=_played(record.games),
        contradictions=_at_most_some([contradiction(one) for one in refuted]),
        claims=_at_most_some(claims_of(shown)),
        meaning=_meaning(shown),
        limits=tuple(_limits(shown)),
    )


def _status(shown: Sequence[ShownPoint]) -> Status:
    """By the largest lower limit; by the largest upper one whether there is room for doubt."""
    advs = [one.point.adv for one in shown]
    return status_between((2 * adv.low - 1 for adv in advs), (2 * adv.high - 1 for adv in advs))


def _headline(shown: Sequence[ShownPoint], refuted: Sequence[ShownPoint]) -> str:
    behind, bare = behind_mechanism(shown), without_mechanism(shown)
    if refuted:
        first = max(refuted, key=lambda one: one.point.proven_epsilon)
        more = f", and {plural(len(refuted) - 1, 'more point')}" if len(refuted) > 1 else ""
        return f"Success contradicts the claimed epsilon: {short(first)}{more}"
    if not behind:
        said = f"{percent(most_right(bare).point.adv.value)} of games without a mechanism"
        return f"The server is right in {said}; guessing is right in 50%"
    best, least = most_right(behind), least_right(behind)
    # The status is of what a mechanism leaves, and so is this: without one is a number beside it.
    told = f"With {short(best)} the server is right in {percent(best.point.adv.value)} of games"
    if best.point.adv.low > least.point.adv.high:
        told += f", with {short(least)} in {percent(least.point.adv.value)}"
    return f"{told}; guessing is right in 50%"


def _played(points: Sequence[PointPlayed]) -> str:
    games = from_to([point.tpr.total + point.tnr.total for point in points])
    targets = from_to([point.targets for point in points])
    batches = from_to([point.batch for point in points])
    where = listed(list(dict.fromkeys(shortened(point.records, 160) for point in points))[:3])
    rounds = sum(point.rounds is not None for point in points)
    which = "All" if rounds == len(points) else f"{count(rounds)} of them"
    apart = (
        f" {which} are played in real rounds, in which the server scores what clients send"
        + "; the others by the neuron’s sign, which a plain gradient shows" * (rounds < len(points))
        + "."
    )
    return (
        f"A server that plants one neuron in the model asks of a single gradient whether a record "
        f"was in the batch. {capital(plural(len(points), 'point'))}, {games} games each, {targets} "
        f"targets, batches of {batches} records ({where}). How often it is right is the mean "
        "of two shares, that of games with the record and that of games without it, so that "
        "guessing is right in 50%." + apart * bool(rounds)
    )


def _meaning(shown: Sequence[ShownPoint]) -> str:
    if _status(behind_mechanism(shown) or shown) in ("no leak shown", "inconclusive"):
        return "No server is shown to learn who was in a batch. Another neuron may do better."
    return (
        "A server with this success learns from one tampered model and one answer whose records a "
        "client trains on. Clients that do not trust the server need a mechanism whose success "
        "here stays near 50%, and whose actual epsilon allows no more."
    )


def _limits(shown: Sequence[ShownPoint]) -> list[str]:
    found = poor_fits(shown)
    claiming = [one for one in shown if one.point.claimed_epsilon is not None]
    beyond = [one for one in claiming if (one.point.claimed_epsilon or 0.0) >= provable(one.point)]
    if beyond:
        most = max(provable(one.point) for one in beyond)
        found.append(
            f"So many games prove an epsilon of at most {epsilon(most)}, even where the server is "
            f"never wrong. The epsilon named at {count(len(beyond))} of {count(len(claiming))} "
            "points is not below that, so these games could not have contradicted it."
        )
    if claiming:
        found.append(
            "That a claimed epsilon is not contradicted is no proof of it: another server may do "
            "better. What holds is the actual epsilon, from the mechanism’s own probabilities."
        )
    if in_rounds(shown):
        found.append(
            "Points in rounds show one server’s plan; what noise allows is for any server. Where "
            "no "
            "bound is given, nothing is proven."
        )
    again = [p for one in shown if (p := one.point).targets < p.tpr.total + p.tnr.total]
    those = ", and for these targets: each was asked about in several games" if again else ""
    found.append(
        f"The intervals are for games like these{those}. They are not corrected for "
        "the number of points; each proven epsilon is wrong with a probability of at most 5%."
    )
    return found


def _at_most_some(said: Sequence[str]) -> tuple[str, ...]:
    if len(said) <= MOST_SAID:
        return tuple(said)
    return (*said[:MOST_SAID], f"{plural(len(said) - MOST_SAID, 'more point')} in the table.")
