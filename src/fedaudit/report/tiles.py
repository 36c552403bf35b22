"""The numbers that stand at the top of a report, each with what to read it against."""

from fedaudit.core import metric_names
from fedaudit.report import evidence, words
from fedaudit.report.clusters import clustered_of, label_of, risk_size, riskiest
from fedaudit.report.deciding.clients import are_several, highest_auc, largest_limits
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.grid import Tile, shortened
from fedaudit.report.sources import (
    excess_size,
    labels_of_named,
    limits_in_words,
    on_sources,
    strongest_on_sources,
)
from fedaudit.report.text.membership import rate_bounds
from fedaudit.report.text.points import game_tiles
from fedaudit.report.unlearning import unlearning_tile
from fedaudit.report.verdict import figures_by_side
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import NOT_RELIED_ON, above_chance, by_interval_alone, relied_on
from fedaudit.results.metrics import CHANCE_VIOLATIONS, TEST_ACCURACY, VIOLATIONS
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
        return {"games": game_tiles(record)}
    return {
        "membership": _tiles_by_side(record),
        "sources": _source_tiles(record),
        "clusters": _cluster_tiles(record),
        "epsilon": epsilon_tiles(record),
        "deletion": unlearning_tile(record),
        "utility": utility_tile(record),
    }


def _tiles_by_side(record: Record) -> list[Tile]:
    """Tiles on membership; of a partly defended run the leading one of each side."""
    sides = figures_by_side(record)
    if len(sides) == 1:
        return _membership_tiles(next(iter(sides.values())))
    found = []
    for name, figures in sides.items():
        for tile in _membership_tiles(figures)[:1]:
            label = f"{words.capital(name)}: {tile.label[:1].lower()}{tile.label[1:]}"
            found.append(tile._replace(label=label))
    return found


def epsilon_tiles(record: Record) -> list[Tile]:
    """Return the leading lower bound on epsilon of each unit, next to what is claimed."""
    found = []
    for one in shown_bounds(record):
        details = [one.measured[0].assumes, one.against_claim]
        details += [other.text for other in one.measured[1:]]
        if one.lead.ceiling is not None:
            details.append(f"at most {words.number(one.lead.ceiling)} could be found")
        details.append(shortened(one.lead.method, 60))
        found.append(
            Tile(
                f"{words.capital(one.unit)}, epsilon at least",
                words.number(one.lead.number),
                " · ".join(filter(None, details)),
                "alarm" * one.refutes,
            )
        )
    return found


def _membership_tiles(figures: list[Estimate]) -> list[Tile]:
    """Return the AUC and the rate that show most of a leak, or else how large one may be."""
    figures = relied_on(figures) or figures
    found = evidence.leading(figures)
    tiles = [_membership_tile(one, figures) for one in found]
    metrics = {figure.metric for figure in found}
    highest = highest_auc(figures)
    if metric_names.AUC not in metrics and highest is not None:
        tiles.append(_membership_tile(highest, figures))
    limits = rate_bounds(figures) if relied_on(figures) else ""
    if not metrics - {metric_names.AUC} and limits:
        tiles.append(Tile("TPR at few false alarms", "none shown", f"upper limits: {limits}"))
    return tiles


def _membership_tile(best: Estimate, figures: list[Estimate]) -> Tile:
    is_above, is_rate = bool(above_chance(best)), best.metric != metric_names.AUC
    size, tone = evidence.size_words(best), evidence.look_of(best).tone if not best.doubt else ""
    if best.doubt:
        size = NOT_RELIED_ON
    elif is_above and is_rate and best.low is None:
        # Its size is not known: "a trace" would sound like one.
        size = "above guessing; to say by how much takes more non-members"
    elif not size:
        size, tone = ("above guessing", "raised") if is_above else (_not_above(best), "")
    parts = (
        size,
        words.interval_of(best) or "no interval",
        _place(best, figures),
        _larger_limits(best, figures),
    )
    label = "Strongest attack" if is_above else "Highest"
    name = f"{label}{',' * is_above} {words.metric_name(best.metric)}"
    return Tile(name, words.value_of(best), " · ".join(filter(None, parts)), tone)


def _not_above(figure: Estimate, guessing: str = "guessing") -> str:
    """Return that a figure is not above guessing, and why not if its interval is."""
    corrected = " after correction for multiple testing" * by_interval_alone(figure)
    return f"not shown above {guessing}{corrected}"


def _larger_limits(best: Estimate, figures: list[Estimate]) -> str:
    if not are_several(figures):
        return ""
    limits = largest_limits([f for f in figures if f.contrast == best.contrast], best.metric)
    larger = [
        f"up to {words.shown(limit.value, best.metric)} for {limit.name}"
        for limit in limits
        if best.high is not None and limit.value > best.high
    ]
    return words.listed(larger)


def _source_tiles(record: Record) -> list[Tile]:
    named = on_sources(record)
    best = strongest_on_sources(named)
    if best is None:
        return []
    attack = labels_of_named(named)[named.index(best)]
    guessing = f"guessing ({words.percent(best.chance)})"
    found = f"above {guessing}" if best.above_guessing else _not_above(best.success, guessing)
    found = NOT_RELIED_ON if best.success.doubt else found
    limits, tone = words.interval_of(best.success) or "no interval", "raised" * best.above_guessing
    detail = f"{found} · {limits} · {shortened(attack, 60)}"
    said, look = _sized(excess_size(best), "not above them")
    level = f"label distributions alone {words.percent(best.mixes)}"
    level += ", which may be too high (earlier version)" * bool(best.older_level)
    beyond = f"{said} · {level} · {limits_in_words(best.excess)}"
    excess = f"{words.points(best.excess.number)} points"
    return [
        Tile("Attack success rate", words.percent(best.success.number), detail, tone),
        Tile("Beyond label distributions", excess, beyond, look),
    ]


def _sized(size: evidence.Size | None, otherwise: str) -> tuple[str, str]:
    return (evidence.a_leak(size), evidence.tone_of(size)) if size else (otherwise, "")


def _cluster_tiles(record: Record) -> list[Tile]:
    studies = clustered_of(record)
    found = []
    for one in studies:
        above, worst, label = one.mean(VIOLATIONS), riskiest(one), label_of(one, studies)
        if worst is not None:
            said, tone = _sized(risk_size(worst), "not above guessing")
            found.append(_cluster_tile("Riskiest model", worst, said, label, tone))
        if above is not None:
            floor = one.mean(CHANCE_VIOLATIONS)
            total = f"of {words.plural(len(one.runs[0].clients), 'client')}"
            total += f" · {words.value_of(floor)} by chance" if floor else ""
            tone = "raised" if above.number else ""
            found.append(_cluster_tile("Violations", above, total, label, tone))
    return found


def _cluster_tile(name: str, mean: Estimate, said: str, label: str, tone: str) -> Tile:
    limits = words.interval_of(mean)
    detail = " · ".join(filter(None, (said, limits and f"95% interval {limits}", label)))
    return Tile(name, words.value_of(mean), detail, tone)


def _place(figure: Estimate, figures: list[Estimate]) -> str:
    label = evidence.label_among(figure, figures)
    contrast = words.against(figure.contrast)
    mean = figure.note.partition(":")[0] if figure.note.startswith("mean over") else ""
    parts = (shortened(figure.attack, 32), contrast, label, mean)
    return " · ".join(part for part in parts if part)


def utility_tile(record: Record) -> list[Tile]:
    """Utility on test samples, of undefended runs where there are any; none if not measured."""
    figures = record.where(topic="utility")
    whole = [one for one in figures if one.metric.startswith(("test ", TEST_ACCURACY))]
    plain = [
        one for one in whole if words.defense_name(one.defense) == words.defense_name(NO_DEFENSE)
    ]
    results = plain or whole
    if not results:
        return []
    middle = sum(result.number for result in results) / len(results)
    first = results[0]
    detail = (
        f"mean of {words.plural(len(results), 'run')}"
        if len(results) > 1
        else words.interval(first.low, first.high, first.metric)
    )
    name = words.capital(first.metric.replace("_", " "))
    # Whether clients of a recorded federation have a defense is not known.
    if not record.watched or first.defense not in ("", NO_DEFENSE):
        detail += f" · {shortened(words.defense_name(first.defense), 32)}"
    return [Tile(name, words.shown(middle, first.metric), detail)]
