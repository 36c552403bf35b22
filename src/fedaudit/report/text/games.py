"""Sentences on security games: verdict, first screen, contradictions and limitations."""

from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import shorten
from fedaudit.report import evidence
from fedaudit.report.evidence import status_between
from fedaudit.report.figures.charts import OKABE_ITO, Axis, Style
from fedaudit.report.figures.forest import (
    BASELINE,
    DEFENDED,
    MOST_LINES,
    PLAIN,
    ForestRow,
    Mark,
    Picture,
    TrackCell,
    build_forest,
)
from fedaudit.report.first import FirstScreen
from fedaudit.report.text import points
from fedaudit.results.games import CLAIMED_SUCCESS
from fedaudit.results.record import Record

MOST_CLAIMS = 2  # largest number of wrong claims of mechanisms below the headline
MOST_NAMED = 8  # largest number of sentences of one kind; the tables have the others


class GameVerdict(NamedTuple):
    """First screen of a report of games, and sentences; ``limits`` is what games cannot show."""

    first: FirstScreen
    played: str
    contradictions: tuple[str, ...]
    claims: tuple[str, ...]
    meaning: str
    limits: tuple[str, ...]


def game_verdict(record: Record) -> GameVerdict:
    """Return the verdict on a record of games."""
    items = points.shown_points(record.games)
    protected, unprotected = points.by_protection(items)
    rates = [item.point.success for item in protected or unprotected]
    status = status_between((2 * r.low - 1 for r in rates), (2 * r.high - 1 for r in rates))
    refuted = [item for item in items if points.is_contradicted(item.point)]
    result = "nothing_shown" if status in ("no leak shown", "inconclusive") else "leak"
    far = any(points.far_above(item.point) for item in items)
    situation = "contradicted" if refuted else "far_above" if far else result
    protection = points.protection_word(record)
    names = {"protection": protection, "bound": fixed_text(f"games.bounds.{protection}")}
    claims = tuple(_claims(items)[:MOST_NAMED])
    first = FirstScreen(
        "strong leak" if refuted else status,
        "claim contradicted" if refuted else status,
        _contradiction_headline(refuted) if refuted else _headline(items, protection),
        "",
        games_picture(record),
        tuple(points.game_tiles(record)[:3]),
        *_bounds(items),
        tuple(fixed_text(f"games.next.{situation}", **names).splitlines()),
        claims[:MOST_CLAIMS],
    )
    return GameVerdict(
        first,
        _played(items),
        tuple(map(_contradiction, refuted[:MOST_NAMED])),
        claims,
        fixed_text(f"games.{result}", **names),
        tuple(_limits(items)),
    )


def _bounds(items: Sequence[points.ShownPoint]) -> tuple[str, str]:
    """Return a line and a sign about claims and bounds, which replace controls in games."""
    played = [item.point for item in items]
    claiming = sum(point.claimed_epsilon is not None for point in played)
    bounded = sum(point.rounds is not None and point.largest_success < 1 for point in played)
    wrong, far = sum(map(points.is_contradicted, played)), sum(map(points.far_above, played))
    bound_kinds = " or ".join(["claimed ε"] * bool(claiming) + ["noise bound"] * bool(bounded))
    checked_points = wording.format_count(claiming + bounded, "point")
    if far:
        claims = wording.format_count(claiming, "point")
        text = f"Claimed ε far below the actual ε at {far} of {claims}"
        return text + f"; {wording.format_count(wrong, 'point')} contradicted by games" * bool(
            wrong
        ), "✗"
    if wrong:
        return (
            f"{wording.capitalise(bound_kinds)} contradicted by games at {wrong} of "
            f"{checked_points}",
            "✗",
        )
    if bound_kinds:
        return f"No {bound_kinds} contradicted by games ({checked_points})", "✓"
    return "No claim to check", "?"


def _contradiction_headline(refuted: Sequence[points.ShownPoint]) -> str:
    first = max(refuted, key=lambda item: item.point.empirical_epsilon)
    others = (
        f", and {wording.format_count(len(refuted) - 1, 'more point')}" if len(refuted) > 1 else ""
    )
    refuted_value = "claimed epsilon" if first.point.refuted else "actual epsilon"
    refuted_value = "bound of the noise" if first.point.rounds else refuted_value
    return f"Success contradicts the {refuted_value}: {first.name}{others}"


def _headline(items: Sequence[points.ShownPoint], protection: str) -> str:
    protected, unprotected = points.by_protection(items)
    if not protected:
        text = f"The server is right in {_success(points.most_successful(unprotected))} of games"
        return f"{text} without a {protection}; guessing is right in 50%"
    # Status and headline are about protected clients. A tile has the unprotected ones.
    # The weakest protection is that at which the server succeeds most.
    weakest, strongest = points.most_successful(protected), points.strongest_protection(protected)
    text = f"With {weakest.name} the server is right in {_success(weakest)} of games"
    if strongest and weakest.point.success.low > strongest.point.success.high:
        text += f", with {strongest.name} in {_success(strongest)}"
    return f"{text}; guessing is right in 50%"


def _success(item: points.ShownPoint) -> str:
    return wording.format_percent(item.point.success.value)


def _played(items: Sequence[points.ShownPoint]) -> str:
    played = [item.point for item in items]
    samples = evidence.unique_items(shorten(point.samples, 160) for point in played)
    return fixed_text(
        "games.played",
        points=wording.capitalise(wording.format_count(len(played), "point")),
        games=wording.format_range(point.success.total for point in played),
        targets=wording.format_range(point.targets for point in played),
        batches=wording.format_range(point.batch for point in played),
        samples=wording.join_some(samples, 3),
    )


def _contradiction(item: points.ShownPoint) -> str:
    point, kind = item.point, "claim"
    if point.rounds is not None:
        kind = "noise"
    elif points.exceeds_bound(point) and point.actual_epsilon is not None:
        kind = "actual"
    right, limits = wording.rate_texts(point.success)
    success = f"{item.name}: the server is right in {right} (95% interval {limits})"
    return fixed_text(
        f"games.contradiction.{kind}",
        success=success,
        proven=points.format_epsilon(point.empirical_epsilon),
        noise=wording.format_percent(point.largest_success),
        actual=points.format_epsilon(point.actual_epsilon or 0.0),
        claimed=points.format_epsilon(point.claimed_epsilon or 0.0),
    )


def _claims(items: Sequence[points.ShownPoint]) -> list[str]:
    sentences = []
    for name, inside in points.group_by_family(items).items():
        far = [item.point for item in inside if points.far_above(item.point)]
        if not far:
            continue
        claimed = _range([point.claimed_epsilon for point in far])
        if any(point.actual_epsilon is None for point in far):
            why = "shared_mask" if far[0].shared_mask else "probabilities"
            actual = f"has no finite ε: {fixed_text(f'games.unbounded.{why}')}"
        else:
            epsilons = _range([point.actual_epsilon for point in far])
            actual = f"has an actual ε of {epsilons} for one sample, by its own probabilities"
            if ratios := [value for p in far if (value := points.epsilon_ratio(p)) is not None]:
                times = wording.format_range(ratios, text=points.format_ratio)
                actual += f": {times} times as much"
        sentences.append(f"{shorten(name, 80)} claims ε {claimed} but {actual}.")
    return sentences


def _range(values: Sequence[float | None]) -> str:
    epsilons = (value for value in values if value is not None)
    return wording.format_range(epsilons, text=points.format_epsilon)


def fit_warnings(items: Sequence[points.ShownPoint]) -> list[str]:
    """Return warnings about points at which a low success is no sign of protection."""
    warnings = []
    for problem in fixed_texts("games.fit"):
        affected = [item for item in items if points.fit_problem(item.point) == problem]
        names = wording.join_some([shorten(item.name, 60) for item in affected], 4)
        warnings += [fixed_text(f"games.fit.{problem}", points=names)] * bool(affected)
    return warnings


def _limits(items: Sequence[points.ShownPoint]) -> list[str]:
    played = [item.point for item in items]
    claims = [point for point in played if point.claimed_epsilon is not None]
    beyond = [
        provable
        for p in claims
        if (p.claimed_epsilon or 0) >= (provable := points.largest_empirical_epsilon(p))
    ]
    limits = fit_warnings(items)
    if beyond:
        largest_epsilon = points.format_epsilon(max(beyond))
        counts = {"beyond": len(beyond), "claims": len(claims)}
        limits.append(fixed_text("games.limits.unprovable", most=largest_epsilon, **counts))
    limits += [fixed_text("games.limits.claims")] * bool(claims)
    limits += [fixed_text("games.limits.rounds")] * any(point.rounds for point in played)
    repeated = any(point.targets < point.success.total for point in played)
    targets = ", and for these targets: each was used in several games" * repeated
    return [*limits, fixed_text("games.limits.intervals", targets=targets)]


_CONTRADICTED = DEFENDED[0]
_AT_CLAIM = Style(OKABE_ITO[2], "", "triangle-down")
_GAME_LOOKS = {
    "success": PLAIN,
    "contradicts its ε or noise bound": _CONTRADICTED,
    "most that the claimed ε allows any server": _AT_CLAIM,
    "most that the actual ε or the noise allows": BASELINE,
}


def games_picture(record: Record) -> Picture:
    """Return the first picture of games: a row for each point, with its epsilon or rounds.

    If there are too many points, only the first and the last point of each family are drawn. If
    these are still too many, only the point at which the server succeeds most is drawn.
    """
    groups = points.group_by_family(points.shown_points(record.games)).values()
    ends = [item for group in groups for item in (group[0], group[-1])[: len(group)]]
    selections = {
        "all": [item for group in groups for item in group],
        "ends": ends,
        "best": [points.most_successful(group) for group in groups],
    }
    fitting = [
        name for name, selected_rows in selections.items() if len(selected_rows) <= MOST_LINES
    ]
    selection = [*fitting, "best"][0]
    selected_rows = selections[selection][:MOST_LINES]
    caption = fixed_text("pictures.games") + fixed_text(f"pictures.selected_games.{selection}")
    if hidden := len(record.games) - len(selected_rows):
        caption += f" The tables have {hidden} more points."
    title = "Success of the server against guessing"
    track = Axis("Attack success rate", form="%", guess=0.5)
    lines = [_point_line(item) for item in selected_rows]
    return build_forest(title, "success", caption, [track], lines, _GAME_LOOKS)


def _point_line(item: points.ShownPoint) -> ForestRow:
    point, success = item.point, item.point.success
    value, limits = wording.rate_texts(success)
    look = _CONTRADICTED if points.is_contradicted(point) else PLAIN
    text = f"{item.name}: right in {value} ({limits})"
    marks = [Mark(success.value, success.low, success.high, look, text)]
    actual = point.largest_success if point.largest_success < 1 else None
    claimed = point.figure(CLAIMED_SUCCESS)
    for bound, look, size in ((claimed, _AT_CLAIM, 6), (actual, BASELINE, 9)):
        if bound is not None:
            text = f"{item.name}: at most {wording.format_percent(bound)}"
            marks.append(Mark(bound, None, None, look, text, size))
    return ForestRow(shorten(item.name, 60), (TrackCell(tuple(marks), value, limits),))
