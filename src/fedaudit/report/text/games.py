"""Security games in words: the verdict, the first screen, contradictions and limits."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedaudit.report import evidence
from fedaudit.report.evidence import Status, status_between
from fedaudit.report.figures.games import games_picture
from fedaudit.report.first import First
from fedaudit.report.grid import shortened
from fedaudit.report.text.points import (
    ShownPoint,
    by_protection,
    contradicted,
    epsilon,
    families,
    far_above,
    fit_problem,
    game_tiles,
    least_right,
    most_right,
    overtaken,
    provable,
    ratio,
    shown_points,
    times,
)
from fedaudit.report.words import capital, count, from_to, interval, listed, percent, plural
from fedaudit.results.games import CLAIMED_SUCCESS, PointPlayed
from fedaudit.results.record import Record

MOST_CLAIMS = 2
"""Mechanisms whose claimed epsilon is far off that are named next to the headline."""

MOST_NAMED = 8
"""Sentences of one kind at most; the tables have the others."""

_NEXT: Mapping[str, tuple[str, ...]] = {
    "contradicted": (
        "Do not rely on the claimed ε: correct the mechanism or its accounting.",
        "Replace it by a mechanism whose actual ε is what it claims.",
    ),
    "far above": (
        "Do not rely on the claimed ε: the actual ε, from the mechanism’s own probabilities, "
        "is far above it.",
        "Choose a mechanism by its actual ε, and by a success here that stays near 50%.",
    ),
    "nothing shown": (
        "Play more games, targets or rounds: another neuron may do better.",
        "Rely on the actual ε, not on a success near 50%.",
    ),
    "leak": (
        "Let clients answer this server only behind a mechanism whose success stays near 50%.",
        "Choose it by its actual ε, from the mechanism’s own probabilities.",
    ),
}
_NOTHING_SHOWN = ("no leak shown", "inconclusive")


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
    """Return the verdict on a record of games."""
    shown = shown_points(record.games)
    behind, bare = by_protection(shown)
    advs = [item.point.adv for item in behind or bare]
    status = status_between((2 * adv.low - 1 for adv in advs), (2 * adv.high - 1 for adv in advs))
    refuted = [item for item in shown if contradicted(item.point)]
    return GameVerdict(
        status="claim contradicted" if refuted else status,
        look="strong leak" if refuted else status,
        headline=_contradiction_headline(refuted) if refuted else _headline(behind, bare),
        played=_played(record.games),
        contradictions=_at_most_some([_contradiction(item) for item in refuted]),
        claims=_at_most_some(_claims(shown)),
        meaning="No server is shown to learn who was in a batch. Another neuron may do better."
        if status in _NOTHING_SHOWN
        else "A server with this success learns from a tampered model and its answers whose "
        "records a client trains on. Clients that do not trust the server need a mechanism whose "
        "success here stays near 50%, and whose actual epsilon allows no more.",
        limits=tuple(_limits(shown)),
    )


def first_of_games(record: Record, verdict: GameVerdict) -> First:
    """Return the first screen of a record of games, which has no controls but its own bounds."""
    shown = shown_points(record.games)
    claiming = sum(item.point.claimed_epsilon is not None for item in shown)
    bounded = sum(item.point.rounds is not None and item.point.most < 1 for item in shown)
    wrong = sum(contradicted(item.point) for item in shown)
    far = sum(far_above(item.point) for item in shown)
    what = " or ".join(["claimed ε"] * bool(claiming) + ["noise bound"] * bool(bounded))
    checked = plural(claiming + bounded, "point")
    if far:
        controls = f"Claimed ε far below the actual ε at {far} of {plural(claiming, 'point')}"
        controls += f"; {plural(wrong, 'point')} contradicted by games" * bool(wrong)
    elif wrong:
        controls = f"{capital(what)} contradicted by games at {wrong} of {checked}"
    else:
        controls = f"No {what} contradicted by games ({checked})" if what else "No claim to check"
    situations = {
        "contradicted": bool(wrong),
        "far above": bool(far),
        "nothing shown": verdict.look in _NOTHING_SHOWN,
        "leak": True,
    }
    return First(
        verdict.look,
        verdict.status,
        verdict.headline,
        "",
        games_picture(record),
        tuple(game_tiles(record)[:3]),
        controls,
        "✗" if wrong or far else "✓" if what else "?",
        _NEXT[next(name for name, holds in situations.items() if holds)],
        verdict.claims[:MOST_CLAIMS],
    )


def _contradiction_headline(refuted: Sequence[ShownPoint]) -> str:
    first = max(refuted, key=lambda item: item.point.proven_epsilon)
    more = f", and {plural(len(refuted) - 1, 'more point')}" if len(refuted) > 1 else ""
    what = "claimed epsilon" if first.point.refuted else "actual epsilon"
    what = "bound of the noise" if first.point.rounds else what
    return f"Success contradicts the {what}: {first.name}{more}"


def _headline(behind: Sequence[ShownPoint], bare: Sequence[ShownPoint]) -> str:
    if not behind:
        share = percent(most_right(bare).point.adv.value)
        return (
            f"The server is right in {share} of games without a mechanism; guessing is right in 50%"
        )
    # The status is of what a mechanism leaves, and so is this: without one is a number beside it.
    best, least = most_right(behind), least_right(behind)
    text = f"With {best.name} the server is right in {percent(best.point.adv.value)} of games"
    if least and best.point.adv.low > least.point.adv.high:
        text += f", with {least.name} in {percent(least.point.adv.value)}"
    return f"{text}; guessing is right in 50%"


def _played(points: Sequence[PointPlayed]) -> str:
    games = from_to([point.adv.total for point in points])
    targets = from_to([point.targets for point in points])
    batches = from_to([point.batch for point in points])
    records = evidence.distinct(shortened(point.records, 160) for point in points)
    return (
        "A server that plants a neuron in the model infers from a client’s gradients whether a "
        f"record was in the batch. {capital(plural(len(points), 'point'))}, {games} games each, "
        f"{targets} targets, batches of {batches} records ({listed(records[:3])}). How often it is "
        "right is the mean of two shares, that of games with the record and that of games without "
        "it, so that guessing is right in 50%."
    )


def _contradiction(item: ShownPoint) -> str:
    """Return why a point's success and an epsilon, or a bound, cannot both hold."""
    point = item.point
    limits = interval(point.adv.low, point.adv.high, "accuracy")
    text = (
        f"{item.name}: the server is right in {percent(point.adv.value)} (95% interval {limits}) "
    )
    text += "of games, which "
    if point.rounds is not None:
        return (
            f"{text}is more than the {percent(point.most)} that its noise allows any server. "
            "Either the defense does not do what it says, or that bound is wrong."
        )
    text += f"proves an epsilon of at least {epsilon(point.proven_epsilon)}"
    if overtaken(point) and point.actual_epsilon is not None:
        return (
            f"{text}, more than the {epsilon(point.actual_epsilon)} that its own probabilities "
            "give. Either the mechanism does not do what it says, or its epsilon is wrong."
        )
    claimed, allowed = epsilon(point.claimed_epsilon or 0.0), point.figure(CLAIMED_SUCCESS)
    text += f"; {claimed} is claimed."
    if allowed is not None:
        text += f" Under an honest ε of {claimed} no server is right in more than "
        text += f"{percent(allowed)} of games."
    return text


def _claims(shown: Sequence[ShownPoint]) -> list[str]:
    """Return a sentence for each mechanism whose actual epsilon is far above the claimed one."""
    sentences = []
    for name, inside in families(shown).items():
        far = [item.point for item in inside if far_above(item.point)]
        if not far:
            continue
        text = f"{shortened(name, 80)} claims ε {_range([p.claimed_epsilon for p in far])} and "
        if any(point.actual_epsilon is None for point in far):
            text += "gives no epsilon at all: " + (
                "all records of a batch get the same noise, so that one record reveals the "
                "noise on another"
                if far[0].shared_mask
                else "its probabilities have no bound"
            )
        else:
            text += f"by its own probabilities gives ε {_range([p.actual_epsilon for p in far])} "
            text += "for one record"
            if ratios := [value for point in far if (value := ratio(point)) is not None]:
                text += f", {from_to(ratios, text=times)} times as much"
        sentences.append(f"{text}.")
    return sentences


def _range(values: Sequence[float | None]) -> str:
    return from_to([value for value in values if value is not None], text=epsilon)


_FIT_WARNINGS = {
    "poor": "neurons do not even separate the rows that they were trained on, so that a low "
    "success is no sign of protection. More epochs (neuron.epochs), another step size (neuron.lr) "
    "or more copies of the target (game.copies) may do better.",
    "memorised": "neurons have memorised the rows that they were trained on, so that a low success "
    "is no sign of protection. More copies of the target (game.copies) or more records of the "
    "server (game.background) may do better.",
}


def fit_warnings(shown: Sequence[ShownPoint]) -> list[str]:
    """Return warnings about points at which low success is no sign of protection."""
    warnings = []
    for problem, text in _FIT_WARNINGS.items():
        names = [shortened(item.name, 60) for item in shown if fit_problem(item.point) == problem]
        if names:
            more = [f"{count(len(names) - 4)} more"] * (len(names) > 4)
            warnings.append(f"At {listed([*names[:4], *more])} {text}")
    return warnings


def _limits(shown: Sequence[ShownPoint]) -> list[str]:
    """Return what the games cannot show."""
    points = [item.point for item in shown]
    claims = [
        (point, point.claimed_epsilon) for point in points if point.claimed_epsilon is not None
    ]
    beyond = [provable(point) for point, claimed in claims if claimed >= provable(point)]
    limits = fit_warnings(shown)
    if beyond:
        limits.append(
            f"So many games prove an epsilon of at most {epsilon(max(beyond))}, even where the "
            f"server is never wrong. The epsilon claimed at {count(len(beyond))} of "
            f"{count(len(claims))} points is not below that, so these games could not have "
            "contradicted it."
        )
    if claims:
        limits.append(
            "That a claimed epsilon is not contradicted is no proof of it: another server may do "
            "better. What holds is the actual epsilon, from the mechanism’s own probabilities."
        )
    if any(point.rounds for point in points):
        limits.append(
            "Points in rounds show one server’s plan; what noise allows is for any server. Where "
            "no bound is given, nothing is proven."
        )
    again = any(point.targets < point.adv.total for point in points)
    targets = ", and for these targets: each was asked about in several games" * again
    limits.append(
        f"The intervals are for games like these{targets}. They are not corrected for the number "
        "of points; each proven epsilon is wrong with a probability of at most 5%."
    )
    return limits


def _at_most_some(texts: Sequence[str]) -> tuple[str, ...]:
    if len(texts) <= MOST_NAMED:
        return tuple(texts)
    return (*texts[:MOST_NAMED], f"{plural(len(texts) - MOST_NAMED, 'more point')} in the table.")
