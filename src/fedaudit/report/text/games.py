"""Security games in sentences: the verdict, contradictions, warnings, and limits of the games."""

from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.report.evidence import Status, status_between
from fedaudit.report.grid import shortened
from fedaudit.report.text.membership import Sentence
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
    rounds_words,
    short,
    shown_points,
    times_named,
    times_text,
    without_mechanism,
)
from fedaudit.report.words import capital, count, from_to, listed, percent, plural
from fedaudit.results.games import CLAIMED_SUCCESS, DISTANCE, PointPlayed
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
            f"At {_named(poor)} neurons do not even tell apart what they were trained on: a low "
            "success there shows a server that trained them badly, or noise that hides all, and no "
            "more. More epochs (neuron.epochs), another step size (neuron.lr) or more copies of "
            "the target (game.copies) may do better."
        )
    if by_heart:
        warnings.append(
            f"At {_named(by_heart)} neurons tell apart what they were trained on and much less of "
            "what they were not: they have learned their rows by heart. A server with more copies "
            "of the target (game.copies) or more records of its own (game.background) may do "
            "better, so that a low success there is no sign of protection."
        )
    return warnings


def _named(shown: Sequence[ShownPoint]) -> str:
    names = [shortened(one.name, 60) for one in shown[:_MOST_NAMED]]
    more = len(shown) - len(names)
    return listed([*names, f"{count(more)} more"] if more else names)


MOST_SAID = 8
"""Of sentences of one kind; the tables have the others."""

CERTIFICATES = (
    (
        "Means, by the range that must hold",
        "Certifies, but for the failure probability given, that the neuron’s mean value is above "
        "zero over randomised copies of the target and at most zero over other records. It "
        "certifies no game: a mean may have the right sign while nearly every batch holds a record "
        "that makes the neuron fire. The range comes from interval bounds through the network.",
    ),
    (
        "Means, as printed in the AMI paper",
        "Says the same, with the range of the very sample that was drawn. It certifies nothing: "
        "values beyond that sample are possible, so the probability is too small. It stands here "
        "for the comparison alone.",
    ),
    (
        "Games",
        "Certifies with 95% confidence between which limits the success against this target lies, "
        "with this neuron and batches of independent records like those counted. It certifies "
        "neither other targets nor a neuron that is trained anew.",
    ),
    (
        "Played",
        "What was won of this target’s own games. It certifies nothing by itself: these are few "
        "games, so the share may lie outside of the certified limits by chance.",
    ),
)
"""Each certificate by name, with what it certifies and what it does not."""


class GameVerdict(NamedTuple):
    """The verdict of a report of games.

    Attributes:
        status: The verdict in two or three words.
        look: The verdict whose colour it has.
        headline: In one sentence.
        played: What was played.
        found: For each mechanism how surely the server tells.
        contradictions: Points whose success refutes an epsilon; the gravest warnings.
        claims: Mechanisms whose actual epsilon is not the claimed one.
        meaning: What follows.
        limits: What the games cannot show.
    """

    status: str
    look: Status
    headline: str
    played: str
    found: tuple[Sentence, ...]
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
        found=_found(shown),
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


def _found(shown: Sequence[ShownPoint]) -> tuple[Sentence, ...]:
    found = [
        Sentence(shortened(name, 80), _family_sentence(inside))
        for name, inside in families(shown).items()
    ]
    if len(found) > MOST_SAID:
        rest = f"{plural(len(found) - MOST_SAID, 'more row')} of points in the table below."
        found = [*found[:MOST_SAID], Sentence("Others", rest)]
    return tuple(found)


def _family_sentence(inside: Sequence[ShownPoint]) -> str:
    ends = [inside[0].point, inside[-1].point][: len(inside)]
    told = [right_in(point.adv) + _under(point) for point in ends]
    return f"right in {' and in '.join(told)}."


def _under(point: PointPlayed) -> str:
    """Under which epsilon, or after how many rounds."""
    if point.rounds is None:
        return "" if point.claimed_epsilon is None else f" at ε {epsilon(point.claimed_epsilon)}"
    most = f", where noise allows {percent(point.most)}" if point.figure(DISTANCE) else ""
    return f" after {rounds_words(point.rounds)}{most}"


def _meaning(shown: Sequence[ShownPoint]) -> str:
    if _status(behind_mechanism(shown) or shown) in ("no leak shown", "inconclusive"):
        return (
            "That the server tells who was in a batch is not shown here. Another neuron, another "
            "target or more rounds may do better."
        )
    return (
        "One tampered model and one answer are enough: a server with this success learns whose "
        "records a client trains on, whatever the model is said to be for. Clients that answer a "
        "server which they do not trust need a mechanism whose success here stays near 50%, and "
        "whose actual epsilon allows no more."
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
            "Points in rounds show one server’s plan. What noise allows is for any server: a "
            "neuron that is silent for all other records uses half of the distance that a record "
            "in another’s place can make. Where no bound is given, nothing is proven."
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
