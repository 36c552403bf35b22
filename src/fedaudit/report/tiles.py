"""The numbers that stand at the top of a report, each with what to read it against."""

from statistics import fmean

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, wording
from fedaudit.report.clusters import clustered_of, label_of, risk_size, riskiest
from fedaudit.report.deciding.epsilons import EpsilonBounds, shown_bounds
from fedaudit.report.deciding.membership import are_several, highest_auc, largest_limits
from fedaudit.report.grid import Tile, shortened
from fedaudit.report.sources import (
    excess_size,
    labels_of_named,
    limits_in_words,
    on_sources,
    strongest_on_sources,
)
from fedaudit.report.text.membership import rate_bounds
from fedaudit.report.unlearning import unlearning_tile
from fedaudit.report.verdict import clusters_doubted, figures_by_side
from fedaudit.results.estimate import (
    CHANCE_VIOLATIONS,
    NO_DEFENSE,
    TEST_ACCURACY,
    VIOLATIONS,
    Estimate,
)
from fedaudit.results.guessing import NOT_RELIED_ON, above_chance, by_interval_alone, without_doubts
from fedaudit.results.record import Record


def tiles_of(record: Record) -> dict[str, list[Tile]]:
    """Return the numbers of each topic, the most important first.

    Figures that say nothing about leakage must not stand out: of such a record there are none.

    Args:
        record: The record.

    Returns:
        Tiles by "membership", "sources", "clusters", "epsilon", "deletion", "games" and "utility".
    """
    if evidence.says_nothing(record):
        return {}
    if record.games:
        # Not at the top: few records are of games.
        from fedaudit.report.text.points import game_tiles

        return {"games": game_tiles(record)}
    return {
        "membership": _tiles_by_side(record),
        "sources": _source_tiles(record),
        "clusters": _cluster_tiles(record),
        "epsilon": [_epsilon_tile(one) for one in shown_bounds(record)],
        "deletion": unlearning_tile(record),
        "utility": _utility_tiles(record),
    }


def _tile(label: str, value: str, *parts: str, tone: str = "") -> Tile:
    return Tile(label, value, " · ".join(filter(None, parts)), tone)


def _tiles_by_side(record: Record) -> list[Tile]:
    """Tiles on membership; of a partly defended run the leading one of each side."""
    sides = figures_by_side(record)
    if len(sides) == 1:
        return _membership_tiles(next(iter(sides.values())))
    return [
        tile._replace(label=f"{wording.capital(name)}: {tile.label[:1].lower()}{tile.label[1:]}")
        for name, figures in sides.items()
        for tile in _membership_tiles(figures)[:1]
    ]


def _epsilon_tile(bounds: EpsilonBounds) -> Tile:
    """The leading lower bound on epsilon of a unit, next to what is claimed."""
    lead, ceiling = bounds.measured[0], bounds.lead.ceiling
    return _tile(
        f"{wording.capital(bounds.unit)}, epsilon at least",
        wording.number(bounds.lead.number),
        lead.assumes,
        bounds.against_claim,
        *(other.text for other in bounds.measured[1:]),
        "" if ceiling is None else f"at most {wording.number(ceiling)} could be found",
        shortened(bounds.lead.method, 60),
        tone="alarm" * bounds.refutes,
    )


def _membership_tiles(figures: list[Estimate]) -> list[Tile]:
    """Return the AUC and the rate that show most of a leak, or else how large one may be."""
    trusted = without_doubts(figures)
    figures = trusted or figures
    found = list(evidence.leading(figures))
    has_rate = any(figure.metric != AUC for figure in found)
    highest = highest_auc(figures)
    if highest is not None and all(figure.metric != AUC for figure in found):
        found.append(highest)
    tiles = [_membership_tile(one, figures) for one in found]
    limits = rate_bounds(trusted)
    if limits and not has_rate:
        tiles.append(Tile("TPR at few false alarms", "none shown", f"upper limits: {limits}"))
    return tiles


def _membership_tile(best: Estimate, figures: list[Estimate]) -> Tile:
    is_above, name = bool(above_chance(best)), wording.metric_name(best.metric)
    size, tone = evidence.size_words(best), evidence.look_of(best).tone
    if best.doubt:
        size = NOT_RELIED_ON
    elif is_above and best.metric != AUC and best.low is None:
        # Its size is not known: "a trace" would sound like one.
        size = "above guessing; to say by how much takes more non-members"
    elif not size:
        size, tone = ("above guessing", "raised") if is_above else (_not_above(best), "")
    return _tile(
        f"Strongest attack, {name}" if is_above else f"Highest {name}",
        wording.value_of(best),
        size,
        wording.interval_of(best) or "no interval",
        shortened(best.attack, 32),
        wording.against(best.contrast),
        evidence.label_among(best, figures),
        best.note.partition(":")[0] if best.note.startswith("mean over") else "",
        _larger_limits(best, figures),
        tone=tone,
    )


def _not_above(figure: Estimate, guessing: str = "guessing") -> str:
    """Return that a figure is not above guessing, and why not if its interval is."""
    corrected = " after correction for multiple testing" * by_interval_alone(figure)
    return f"not shown above {guessing}{corrected}"


def _larger_limits(best: Estimate, figures: list[Estimate]) -> str:
    if not are_several(figures):
        return ""
    limits = largest_limits([f for f in figures if f.contrast == best.contrast], best.metric)
    return wording.listed(
        [
            f"up to {wording.shown(limit.value, best.metric)} for {limit.name}"
            for limit in limits
            if best.high is not None and limit.value > best.high
        ]
    )


def _source_tiles(record: Record) -> list[Tile]:
    named = on_sources(record)
    best = strongest_on_sources(named)
    if best is None:
        return []
    guessing = f"guessing ({wording.percent(best.chance)})"
    found = f"above {guessing}" if best.above_guessing else _not_above(best.success, guessing)
    level = f"label distributions alone {wording.percent(best.mixes)}"
    level += ", which may be too high (earlier version)" * bool(best.older_level)
    size, tone = _sized(excess_size(best), "not above them")
    return [
        _tile(
            "Attack success rate",
            wording.percent(best.success.number),
            NOT_RELIED_ON if best.success.doubt else found,
            wording.interval_of(best.success) or "no interval",
            shortened(labels_of_named(named)[named.index(best)], 60),
            tone="raised" * best.above_guessing,
        ),
        _tile(
            "Beyond label distributions",
            f"{wording.points(best.excess.number)} points",
            size,
            level,
            limits_in_words(best.excess),
            tone=tone,
        ),
    ]


def _sized(size: evidence.Size | None, otherwise: str) -> tuple[str, str]:
    return (evidence.a_leak(size), evidence.tone_of(size)) if size else (otherwise, "")


def _cluster_tiles(record: Record) -> list[Tile]:
    studies, found = clustered_of(record), []
    if clusters_doubted(record):
        return [Tile("Riskiest model", wording.MISSING, NOT_RELIED_ON)] if studies else []
    for one in studies:
        violations, worst, label = one.mean(VIOLATIONS), riskiest(one), label_of(one, studies)
        if worst is not None:
            said, tone = _sized(risk_size(worst), "not above guessing")
            found.append(_cluster_tile("Riskiest model", worst, said, label, tone))
        if violations is not None:
            floor = one.mean(CHANCE_VIOLATIONS)
            total = f"of {wording.plural(len(one.runs[0].clients), 'client')}"
            total += f" · {wording.value_of(floor)} by chance" if floor else ""
            tone = "raised" * bool(violations.number)
            found.append(_cluster_tile("Violations", violations, total, label, tone))
    return found


def _cluster_tile(name: str, mean: Estimate, said: str, label: str, tone: str) -> Tile:
    limits = wording.interval_of(mean)
    range_ = f"95% interval {limits}" * bool(limits)
    return _tile(name, wording.value_of(mean), said, range_, label, tone=tone)


def _utility_tiles(record: Record) -> list[Tile]:
    """Utility on test samples, of undefended runs where there are any; none if not measured."""
    figures = record.where(topic="utility")
    whole = [one for one in figures if one.metric.startswith(("test ", TEST_ACCURACY))]
    none = wording.defense_name(NO_DEFENSE)
    results = [one for one in whole if wording.defense_name(one.defense) == none] or whole
    if not results:
        return []
    first, defense = results[0], shortened(wording.defense_name(results[0].defense), 32)
    # Whether clients of a recorded federation have a defense is not known.
    is_known = not record.watched or first.defense not in ("", NO_DEFENSE)
    return [
        _tile(
            wording.capital(first.metric.replace("_", " ")),
            wording.shown(fmean(one.number for one in results), first.metric),
            f"mean of {len(results)} runs" if len(results) > 1 else wording.interval_of(first),
            defense * is_known,
        )
    ]
