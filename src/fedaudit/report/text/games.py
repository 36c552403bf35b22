"""Security games in words: the verdict, the first screen, contradictions and limits."""

from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.report import evidence, wording
from fedaudit.report.evidence import Status, status_between
from fedaudit.report.first import First
from fedaudit.report.fixed import fixed, fixed_texts
from fedaudit.report.grid import shortened
from fedaudit.report.pictures import games_picture
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
    protection_word,
    provable,
    ratio,
    shown_points,
    times,
)
from fedaudit.results.games import PointPlayed
from fedaudit.results.record import Record

MOST_CLAIMS = 2
"""Mechanisms whose claimed epsilon is far off that are named next to the headline."""

MOST_NAMED = 8
"""Sentences of one kind at most; the tables have the others."""


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
        next: What to do.
    """

    status: str
    look: Status
    headline: str
    played: str
    contradictions: tuple[str, ...]
    claims: tuple[str, ...]
    meaning: str
    limits: tuple[str, ...]
    next: tuple[str, ...]


def game_verdict(record: Record) -> GameVerdict:
    """Return the verdict on a record of games."""
    shown = shown_points(record.games)
    behind, bare = by_protection(shown)
    advs = [item.point.adv for item in behind or bare]
    status = status_between((2 * adv.low - 1 for adv in advs), (2 * adv.high - 1 for adv in advs))
    refuted = [item for item in shown if contradicted(item.point)]
    shows = "nothing_shown" if status in ("no leak shown", "inconclusive") else "leak"
    far = any(far_above(item.point) for item in shown)
    situation = "contradicted" if refuted else "far_above" if far else shows
    what = protection_word(record)
    names = {"protection": what, "bound": fixed(f"games.bounds.{what}")}
    return GameVerdict(
        status="claim contradicted" if refuted else status,
        look="strong leak" if refuted else status,
        headline=_contradiction_headline(refuted) if refuted else _headline(behind, bare, what),
        played=_played(record.games),
        contradictions=tuple(map(_contradiction, refuted[:MOST_NAMED])),
        claims=tuple(_claims(shown)[:MOST_NAMED]),
        meaning=fixed(f"games.{shows}", **names),
        limits=tuple(_limits(shown)),
        next=tuple(fixed(f"games.next.{situation}", **names).splitlines()),
    )


def first_of_games(record: Record, verdict: GameVerdict) -> First:
    """Return the first screen of a record of games, which has no controls but its own bounds."""
    shown = shown_points(record.games)
    claiming = sum(item.point.claimed_epsilon is not None for item in shown)
    bounded = sum(item.point.rounds is not None and item.point.most < 1 for item in shown)
    wrong = sum(contradicted(item.point) for item in shown)
    far = sum(far_above(item.point) for item in shown)
    what = " or ".join(["claimed ε"] * bool(claiming) + ["noise bound"] * bool(bounded))
    checked = wording.plural(claiming + bounded, "point")
    if far:
        controls = (
            f"Claimed ε far below the actual ε at {far} of {wording.plural(claiming, 'point')}"
        )
        controls += f"; {wording.plural(wrong, 'point')} contradicted by games" * bool(wrong)
    elif wrong:
        controls = f"{wording.capital(what)} contradicted by games at {wrong} of {checked}"
    else:
        controls = f"No {what} contradicted by games ({checked})" if what else "No claim to check"
    return First(
        verdict.look,
        verdict.status,
        verdict.headline,
        "",
        games_picture(record),
        tuple(game_tiles(record)[:3]),
        controls,
        "✗" if wrong or far else "✓" if what else "?",
        verdict.next,
        verdict.claims[:MOST_CLAIMS],
    )


def _contradiction_headline(refuted: Sequence[ShownPoint]) -> str:
    first = max(refuted, key=lambda item: item.point.proven_epsilon)
    more = f", and {wording.plural(len(refuted) - 1, 'more point')}" if len(refuted) > 1 else ""
    what = "claimed epsilon" if first.point.refuted else "actual epsilon"
    what = "bound of the noise" if first.point.rounds else what
    return f"Success contradicts the {what}: {first.name}{more}"


def _headline(behind: Sequence[ShownPoint], bare: Sequence[ShownPoint], what: str) -> str:
    if not behind:
        right = f"The server is right in {_right(most_right(bare))} of games without a {what}"
        return f"{right}; guessing is right in 50%"
    # The status is about protected clients, and so is this: without protection is in a tile.
    weakest, least = most_right(behind), least_right(behind)
    text = f"With {weakest.name} the server is right in {_right(weakest)} of games"
    if least and weakest.point.adv.low > least.point.adv.high:
        text += f", with {least.name} in {_right(least)}"
    return f"{text}; guessing is right in 50%"


def _right(item: ShownPoint) -> str:
    return wording.percent(item.point.adv.value)


def _played(points: Sequence[PointPlayed]) -> str:
    records = evidence.distinct(shortened(point.records, 160) for point in points)
    return fixed(
        "games.played",
        points=wording.capital(wording.plural(len(points), "point")),
        games=wording.from_to(point.adv.total for point in points),
        targets=wording.from_to(point.targets for point in points),
        batches=wording.from_to(point.batch for point in points),
        records=wording.some(records, 3),
    )


def _contradiction(item: ShownPoint) -> str:
    """Return why a point's success and an epsilon, or a bound, cannot both hold."""
    point = item.point
    limits = wording.interval(point.adv.low, point.adv.high, "accuracy")
    text = f"{item.name}: the server is right in {_right(item)} (95% interval {limits}) of games"
    if point.rounds is not None:
        return (
            f"{text}, more than the {wording.percent(point.most)} that its noise allows any "
            "server. "
            "Either the defense does not do what it says, or that bound is wrong."
        )
    text += f", which proves an epsilon of at least {epsilon(point.proven_epsilon)}"
    if overtaken(point) and point.actual_epsilon is not None:
        return (
            f"{text}, more than the {epsilon(point.actual_epsilon)} that its own probabilities "
            "give. Either the mechanism does not do what it says, or its epsilon is wrong."
        )
    return f"{text}; {epsilon(point.claimed_epsilon or 0.0)} is claimed."


def _claims(shown: Sequence[ShownPoint]) -> list[str]:
    """Return a sentence for each mechanism whose actual epsilon is far above the claimed one."""
    sentences = []
    for name, inside in families(shown).items():
        far = [item.point for item in inside if far_above(item.point)]
        if not far:
            continue
        claimed = _range([point.claimed_epsilon for point in far])
        if any(point.actual_epsilon is None for point in far):
            why = "shared_mask" if far[0].shared_mask else "probabilities"
            gives = f"gives no epsilon at all: {fixed(f'games.unbounded.{why}')}"
        else:
            actual = _range([point.actual_epsilon for point in far])
            gives = f"by its own probabilities gives ε {actual} for one record"
            if ratios := [value for point in far if (value := ratio(point)) is not None]:
                gives += f", {wording.from_to(ratios, text=times)} times as much"
        sentences.append(f"{shortened(name, 80)} claims ε {claimed} and {gives}.")
    return sentences


def _range(values: Sequence[float | None]) -> str:
    return wording.from_to([value for value in values if value is not None], text=epsilon)


def fit_warnings(shown: Sequence[ShownPoint]) -> list[str]:
    """Return warnings about points at which low success is no sign of protection."""
    by_problem = {
        problem: [shortened(item.name, 60) for item in shown if fit_problem(item.point) == problem]
        for problem in fixed_texts("games.fit")
    }
    return [
        fixed(f"games.fit.{problem}", points=wording.some(names, 4))
        for problem, names in by_problem.items()
        if names
    ]


def _limits(shown: Sequence[ShownPoint]) -> list[str]:
    """Return what the games cannot show."""
    points = [item.point for item in shown]
    claims = [point for point in points if point.claimed_epsilon is not None]
    beyond = [provable(p) for p in claims if (p.claimed_epsilon or 0.0) >= provable(p)]
    limits = fit_warnings(shown)
    if beyond:
        most = epsilon(max(beyond))
        counts = {"beyond": wording.count(len(beyond)), "claims": wording.count(len(claims))}
        limits.append(fixed("games.limits.unprovable", most=most, **counts))
    limits += [fixed("games.limits.claims")] * bool(claims)
    limits += [fixed("games.limits.rounds")] * any(point.rounds for point in points)
    again = any(point.targets < point.adv.total for point in points)
    targets = ", and for these targets: each was asked about in several games" * again
    return [*limits, fixed("games.limits.intervals", targets=targets)]
