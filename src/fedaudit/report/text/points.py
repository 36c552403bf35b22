"""Points of security games: names, families, and interpretation of their estimates.

A point is a configuration (mechanism or defense, epsilon, rounds) at which games were played.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import Tile, shorten, tile
from fedaudit.formatting.wording import format_count, format_number, join_parts, rate_texts
from fedaudit.report.evidence import group_by, size_of_share, tone_of
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.games import FIT_AUC, HELD_OUT, InRounds, PointPlayed
from fedaudit.results.record import Record

NO_MECHANISM = "none"

FAR_ABOVE = 2.0  # an actual epsilon is "far above" a claimed one if it exceeds it by this factor
_POOR_FIT = 0.9  # training AUC below which a neuron does not separate even its training rows
MEMORISED = 0.25
"""A neuron has memorised its training rows if its training AUC exceeds the held-out AUC by this."""
_ONE_SIDE = 0.025  # error probability of one limit of a 95% interval
_NAMED_SEPARATELY = {
    "mechanism.name",
    "mechanism.options.shared_mask",
    "mechanism.options.epsilon",
    "mechanism.options.nominal_epsilon",
}


class ShownPoint(NamedTuple):
    """A configuration at which games were played, its family, and its name.

    Configurations of a family differ only in epsilon or in the number of rounds.
    """

    point: PointPlayed
    family: str
    name: str


def shown_points(points: Sequence[PointPlayed]) -> list[ShownPoint]:
    """Name points by the settings that differ between them."""
    # Games are played either on gradient signs, where a local DP mechanism protects the client, or
    # in simulated rounds, where a defense does.
    on_signs = [point for point in points if point.rounds is None]
    varying = {
        mechanism: _varying(same)
        for mechanism, same in group_by(on_signs, lambda point: point.mechanism).items()
    }
    usual_batch = next((point.batch for point in points if point.rounds), 0)
    items = []
    for point in points:
        setup, claimed = point.rounds, point.claimed_epsilon
        if setup is None:
            settings = point.settings.items()
            texts = [_in_words(*pair) for pair in settings if pair[0] in varying[point.mechanism]]
            parts = [protection_name(point), *texts]
            x_text = "" if claimed is None else f"ε {format_epsilon(claimed)}"
        else:
            parts = ["in rounds" * bool(on_signs), defense_words(setup), plan_words(setup)]
            parts += [f"batch {point.batch:,}"] * (point.batch != usual_batch)
            x_text = format_count(setup.averaged, "round") * (setup.averaged > 1)
        family = join_parts(*parts, by=", ")
        items.append(ShownPoint(point, family, shorten(join_parts(family, x_text, by=", "), 80)))
    return items


def _varying(points: Sequence[PointPlayed]) -> set[str]:
    names = {name for point in points for name in point.settings} - _NAMED_SEPARATELY
    return {name for name in names if len({point.settings.get(name) for point in points}) > 1}


def _in_words(name: str, value: str) -> str:
    text = f"{shorten(name.rpartition('.')[2], 30)}={shorten(value, 30)}"
    return str(fixed_texts("games.settings").get(f"{name}={value}", text))


def protection_name(point: PointPlayed) -> str:
    """Name the protection at a point: "bitrand, shared mask", "no defense, sum of 10"."""
    setup = point.rounds
    if setup is not None:
        return defense_words(setup) + f", sum of {setup.clients:,}" * (setup.clients > 1)
    name = "no mechanism" if point.mechanism == NO_MECHANISM else shorten(point.mechanism)
    return name + ", shared mask" * point.shared_mask


def defense_words(rounds: InRounds) -> str:
    """Return the defense with its settings: "dp-sgd, clip 1, noise 0.5"."""
    if rounds.defense == NO_DEFENSE:
        return "no defense"
    options = (
        f"{shorten(name.replace('noise_multiplier', 'noise'), 30)} "
        f"{shorten(value.removesuffix('.0'), 30)}"
        for name, value in rounds.options.items()
    )
    return ", ".join([shorten(rounds.defense), *options])


def plan_words(rounds: InRounds) -> str:
    """Describe the planted neurons, and the sum of clients that the server sees.

    The server can plant copies of a neuron and scale its first-layer weights.
    """
    total = f"sum of {rounds.clients:,}, {fixed_text(f'games.others.{rounds.others}')}"
    return join_parts(
        format_count(rounds.neurons, "neuron") * (rounds.neurons > 1),
        "scaled first layer" * (rounds.louder != 1),
        total * (rounds.clients > 1),
        by=", ",
    )


def group_by_family(items: Sequence[ShownPoint]) -> dict[str, list[ShownPoint]]:
    """Group points by family, in the record's order; sort each family by epsilon or rounds."""
    by_name = group_by(items, lambda item: item.family)
    return {name: sorted(members, key=_x_value) for name, members in by_name.items()}


def by_protection(items: Sequence[ShownPoint]) -> tuple[list[ShownPoint], list[ShownPoint]]:
    """Return the protected points (mechanism, defense or sum), and the unprotected points."""
    protected, unprotected = list[ShownPoint](), list[ShownPoint]()
    for item in items:
        setup = item.point.rounds
        in_rounds = setup is not None and (setup.defense != NO_DEFENSE or setup.clients > 1)
        is_protected = in_rounds or item.point.mechanism != NO_MECHANISM
        (protected if is_protected else unprotected).append(item)
    return protected, unprotected


def protection_word(record: Record) -> str:
    """Return the noun for the protection: "defense" for games in rounds, else "mechanism"."""
    kinds = {"mechanism" if point.rounds is None else "defense" for point in record.games}
    return " or ".join(sorted(kinds, reverse=True))


def most_successful(items: Sequence[ShownPoint]) -> ShownPoint:
    """Return the point with the highest lower limit of the success rate."""
    return max(items, key=lambda item: (item.point.success.low, item.point.success.value))


def strongest_protection(protected: Sequence[ShownPoint]) -> ShownPoint | None:
    """Return the worst point of the strongest protection, or None if there is only one protection.

    The protection at which the server succeeds most is the weakest and is left out. Among the
    others, the strongest is the one whose worst point leaks least. Points with the same epsilon or
    number of rounds as the weakest protection's worst point are preferred.
    """
    weakest = most_successful(protected)
    name = protection_name(weakest.point)
    others = [item for item in protected if protection_name(item.point) != name]
    others = [item for item in others if _x_value(item) == _x_value(weakest)] or others
    by_name = group_by(others, lambda item: protection_name(item.point))
    worst = map(most_successful, by_name.values())
    return min(
        worst, key=lambda item: (item.point.success.high, item.point.success.value), default=None
    )


def _x_value(item: ShownPoint) -> float:
    if item.point.rounds is not None:
        return float(item.point.rounds.averaged)
    claimed = item.point.claimed_epsilon
    return math.inf if claimed is None else claimed


def format_epsilon(value: float) -> str:
    """Format a privacy budget: 3, 0.25, 668 or 35,342."""
    if 0 < value < 0.0005 or value >= 1e9:
        return format_number(value)
    return f"{value:.3g}" if value < 100 else f"{round(value):,}"


def epsilon_ratio(point: PointPlayed) -> float | None:
    """Return the actual epsilon divided by the claimed one; None if one of them is unknown."""
    if point.actual_epsilon is None or not point.claimed_epsilon:
        return None
    return point.actual_epsilon / point.claimed_epsilon


def format_ratio(value: float) -> str:
    """Format a ratio of epsilons: 1, 1.3 or 223."""
    return f"{round(value):,}" if value >= 10 else f"{value:.2g}"


def far_above(point: PointPlayed) -> bool:
    """Return True if the actual epsilon is infinite or far above the claimed epsilon."""
    claimed, actual = point.claimed_epsilon, point.actual_epsilon
    return claimed is not None and (actual is None or actual > FAR_ABOVE * claimed)


def exceeds_bound(point: PointPlayed) -> bool:
    """Return True if the success exceeds the bound that the actual epsilon or the noise implies."""
    if point.rounds is not None:
        return point.success.low > point.largest_success + 1e-9
    actual = point.actual_epsilon
    return actual is not None and point.empirical_epsilon > actual * (1 + 1e-9)


def is_contradicted(point: PointPlayed) -> bool:
    """Return True if the success refutes the claimed or actual epsilon, or the noise bound."""
    return point.refuted or exceeds_bound(point)


def largest_empirical_epsilon(point: PointPlayed) -> float:
    """Return the largest possible empirical epsilon: that of a server that is never wrong."""
    lows = [_ONE_SIDE ** (1 / kind.total) for kind in (point.tpr, point.tnr)]
    return max(0.0, *(math.log(a / -math.expm1(math.log(b))) for a, b in (lows, lows[::-1])))


def fit_problem(point: PointPlayed) -> str:
    """Return "poor" or "memorised" if a low success can be due to the neuron's fit, or else ""."""
    fit, held_out = point.figure(FIT_AUC), point.figure(HELD_OUT)
    if fit is None:
        return ""
    if fit < _POOR_FIT:
        return "poor"
    return "memorised" * (held_out is not None and fit - held_out > MEMORISED)


def game_tiles(record: Record) -> list[Tile]:
    """Return the numbers at the top of a report of games."""
    items = shown_points(record.games)
    protected, unprotected = by_protection(items)
    protection = protection_word(record)
    tiles = []
    guesses = "Server guesses correctly"
    if protected:
        tiles.append(_success_tile(f"{guesses}, weakest {protection}", most_successful(protected)))
        if smallest_epsilon := strongest_protection(protected):
            tiles.append(_success_tile(f"{guesses}, strongest {protection}", smallest_epsilon))
    if unprotected:
        tiles.append(_success_tile(f"{guesses}, no {protection}", most_successful(unprotected)))
    claiming = [item for item in items if item.point.claimed_epsilon is not None]
    if wrong := sum(item.point.refuted for item in claiming):
        share = f"{wrong:,} of {len(claiming):,}"
        detail = "points at which the server’s success refutes the claimed epsilon"
        tiles.append(tile("Claimed epsilon contradicted", share, detail, tone="alarm"))
    if ratios := [(value, p) for p in claiming if (value := epsilon_ratio(p.point)) is not None]:
        above, item = max(ratios, key=lambda pair: pair[0])
        detail = f"{item.name}: the actual ε is {format_epsilon(item.point.actual_epsilon or 0.0)}"
        tone = "alarm" * far_above(item.point)
        ratio = f"{format_ratio(above)} times"
        tiles.append(tile("Actual epsilon, relative to the claimed one", ratio, detail, tone=tone))
    return tiles


def _success_tile(label: str, item: ShownPoint) -> Tile:
    size = size_of_share(2 * item.point.success.low - 1)
    success, limits = rate_texts(item.point.success)
    details = (item.name, f"95% interval {limits}", "guessing 50%")
    return tile(label, success, *details, tone=tone_of(size) if size else "")
