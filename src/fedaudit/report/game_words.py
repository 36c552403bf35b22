"""What a report of security games says in words: the verdict, its warnings and its limits."""

from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.report.evidence import LEAKS, ROOM_FOR_DOUBT, Status
from fedaudit.report.found import Sentence
from fedaudit.report.game_claims import claims_of, contradiction
from fedaudit.report.game_points import (
    Shown,
    behind_mechanism,
    epsilon,
    families,
    least_right,
    most_right,
    overtaken,
    provable,
    right_in,
    short,
    shown_points,
    without_mechanism,
)
from fedaudit.report.game_round_names import rounds_words
from fedaudit.report.game_rounds import in_rounds
from fedaudit.report.game_training import poor_fits
from fedaudit.report.grid import shortened
from fedaudit.report.reading import GameRecord, PointPlayed
from fedaudit.report.sources import size_reached_by
from fedaudit.report.words import capital, count, listed, percent, plural

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
    """What a report of games says first.

    Attributes:
        status: The verdict in two or three words.
        look: The verdict whose colour it has.
        headline: In one sentence.
        played: What was played.
        found: For each mechanism how surely the server tells.
        contradictions: Points whose success refutes an epsilon; the gravest warnings.
        claims: Mechanisms whose true epsilon is not the named one.
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


def game_verdict(record: GameRecord) -> GameVerdict:
    """The verdict on a record of games."""
    shown = shown_points(record.points)
    status = _status(behind_mechanism(shown) or shown)
    refuted = [one for one in shown if one.point.refuted or overtaken(one.point)]
    return GameVerdict(
        status="claim contradicted" if refuted else status,
        look="strong leak" if refuted else status,
        headline=_headline(shown, refuted),
        played=_played(record.points),
        found=_found(shown),
        contradictions=_at_most_some([contradiction(one) for one in refuted]),
        claims=_at_most_some(claims_of(shown)),
        meaning=_meaning(shown),
        limits=tuple(_limits(shown)),
    )


def _status(shown: Sequence[Shown]) -> Status:
    """By the largest lower limit; by the largest upper one whether there is room for doubt."""
    size = size_reached_by(2 * max(one.point.adv.low for one in shown) - 1)
    if size is not None:
        return LEAKS[size]
    room = size_reached_by(2 * max(one.point.adv.high for one in shown) - 1)
    return "inconclusive" if room in ("strong", ROOM_FOR_DOUBT) else "no leak shown"


def _headline(shown: Sequence[Shown], refuted: Sequence[Shown]) -> str:
    behind, bare = behind_mechanism(shown), without_mechanism(shown)
    if refuted:
        first = max(refuted, key=lambda one: one.point.proven_epsilon)
        more = f", and {plural(len(refuted) - 1, 'more point')}" if len(refuted) > 1 else ""
        return f"Success contradicts the epsilon that is named: {short(first)}{more}"
    if not behind:
        said = f"{percent(most_right(bare).point.adv.value)} of games without a mechanism"
        return f"The server is right in {said}; guessing is right in 50%"
    best, least = most_right(behind), least_right(behind)
    nothing = "a defense" if in_rounds(shown) else "a mechanism"
    # The status is of what a mechanism leaves, so that this stands first.
    told = f"With {short(best)} the server is right in {percent(best.point.adv.value)} of games"
    if best.point.adv.low > least.point.adv.high:
        told += f", with {short(least)} in {percent(least.point.adv.value)}"
    if bare:
        told += f", without {nothing} in {percent(most_right(bare).point.adv.value)}"
    return f"{told}; guessing is right in 50%"


def _played(points: Sequence[PointPlayed]) -> str:
    games = _span([point.tpr.total + point.tnr.total for point in points])
    targets = _span([point.targets for point in points])
    batches = _span([point.batch for point in points])
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


def _found(shown: Sequence[Shown]) -> tuple[Sentence, ...]:
    found = [
        Sentence(shortened(name, 80), _family_sentence(inside))
        for name, inside in families(shown).items()
    ]
    if len(found) > MOST_SAID:
        rest = f"{plural(len(found) - MOST_SAID, 'more row')} of points in the table below."
        found = [*found[:MOST_SAID], Sentence("Others", rest)]
    return tuple(found)


def _family_sentence(inside: Sequence[Shown]) -> str:
    ends = [inside[0].point, inside[-1].point][: len(inside)]
    told = [right_in(point.adv) + _under(point) for point in ends]
    return f"right in {' and in '.join(told)}."


def _under(point: PointPlayed) -> str:
    """Under which epsilon, or after how many rounds."""
    if point.rounds is None:
        return "" if point.nominal_epsilon is None else f" at ε {epsilon(point.nominal_epsilon)}"
    most = f", where noise allows {percent(point.most)}" if point.rounds.distance else ""
    return f" after {rounds_words(point.rounds)}{most}"


def _meaning(shown: Sequence[Shown]) -> str:
    if _status(behind_mechanism(shown) or shown) in ("no leak shown", "inconclusive"):
        return (
            "That the server tells who was in a batch is not shown here. Another neuron, another "
            "target or more rounds may do better."
        )
    return (
        "One tampered model and one answer are enough: a server with this success learns whose "
        "records a client trains on, whatever the model is said to be for. Clients that answer a "
        "server which they do not trust need a mechanism whose success here stays near 50%, and "
        "whose true epsilon allows no more."
    )


def _limits(shown: Sequence[Shown]) -> list[str]:
    found = poor_fits(shown)
    claiming = [one for one in shown if one.point.nominal_epsilon is not None]
    beyond = [one for one in claiming if (one.point.nominal_epsilon or 0.0) >= provable(one.point)]
    if beyond:
        most = max(provable(one.point) for one in beyond)
        found.append(
            f"So many games prove an epsilon of at most {epsilon(most)}, even where the server is "
            f"never wrong. The epsilon named at {count(len(beyond))} of {count(len(claiming))} "
            "points is not below that, so these games could not have contradicted it."
        )
    if claiming:
        found.append(
            "That a named epsilon is not contradicted is no proof of it: another server may do "
            "better. What holds is the true epsilon, from the mechanism’s own probabilities."
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


def _span(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return count(least) if least == most else f"{count(least)} to {count(most)}"
