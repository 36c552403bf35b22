"""The numbers that stand at the top of a report, each with what to read it against."""

from collections.abc import Callable
from typing import NamedTuple

from fedaudit.core import metric_names
from fedaudit.core.metric_names import EPSILON
from fedaudit.report import evidence, words
from fedaudit.report.clusters import clustered_of, label_of, risk_size, riskiest
from fedaudit.report.deciding.clients import are_several, highest_auc, largest_limits
from fedaudit.report.grid import shortened
from fedaudit.report.sources import (
    excess_size,
    labels_of_named,
    limits_in_words,
    on_sources,
    strongest_on_sources,
)
from fedaudit.report.text.membership import ALARMS, of_thousand, upper_bounds
from fedaudit.report.verdict import canary_bound, figures_by_side
from fedaudit.results.doubts import NOT_RELIED_ON, relied_on
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.metrics import CHANCE_VIOLATIONS, TEST_ACCURACY, VIOLATIONS
from fedaudit.results.record import Record


class Tile(NamedTuple):
    """A number that stands at the top: what it is, the number, and what to read it against."""

    label: str
    value: str
    detail: str
    tone: str = ""


def topic_tiles(record: Record) -> dict[str, list[Tile]]:
    """The numbers of each topic, the most important first.

    Figures that say nothing about leakage must not stand out as if they told something: of a
    record of such there are none.
    """
    if evidence.says_nothing(record):
        return {}
    return {
        "membership": _tiles_by_side(record),
        "sources": _source_tiles(record),
        "clusters": _cluster_tiles(record),
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


def canary_tile(record: Record) -> list[Tile]:
    """Epsilon of one canary sample, beside what the mechanism proves; none for other units."""
    bound = canary_bound(record)
    if bound is None or evidence.says_nothing(record):
        return []
    measured, claimed = bound.measured, bound.claimed
    said = [shortened(measured.method, 60)]
    if measured.ceiling is not None:
        said.append(f"at most {words.shown(measured.ceiling, EPSILON)} could be found")
    said += filter(None, [bound.hypotheses])
    said.append(f"proven {words.shown(claimed.number, EPSILON)}" if claimed else "none is proven")
    tone = "alarm" if claimed and measured.number > claimed.number else ""
    value = words.shown(measured.number, EPSILON)
    return [Tile("One canary sample, epsilon at least", value, " · ".join(said), tone)]


def _membership_tiles(figures: list[Estimate]) -> list[Tile]:
    figures = relied_on(figures) or figures
    found = evidence.leading(figures)
    auc = next((figure for figure in found if figure.metric == metric_names.AUC), None)
    rate = next((figure for figure in found if figure.metric != metric_names.AUC), None)
    tiles = [
        _strongest_tile(auc or highest_auc(figures), figures),
        _identified_tile(rate, figures),
    ]
    ordered = tiles[::-1] if found and found[0] is rate else tiles
    return [tile for tile in ordered if tile is not None]


def _strongest_tile(best: Estimate | None, figures: list[Estimate]) -> Tile | None:
    if best is None:
        return None
    found, tone = _judged(best)
    limits = words.interval_of(best) or "no interval"
    largest = _larger_limits(best, figures, words.number)
    parts = tuple(filter(None, (found, limits, _place(best, figures), largest)))
    label = "Strongest attack, AUC" if above_chance(best) else "Highest AUC"
    return Tile(label, words.shown(best.value, metric_names.AUC), " · ".join(parts), tone)


def _identified_tile(best: Estimate | None, figures: list[Estimate]) -> Tile | None:
    """Members that an attack identifies, where that is above guessing; else that none does."""
    label = "Identified of 1,000 members"
    if not relied_on(figures):
        return None
    if best is not None and best.value is not None:
        found, tone = _judged(best)
        if best.low is None:
            # Its size is not known: "a trace" would sound like one.
            found = "above guessing; to say by how much takes more non-members"
        price = f"{found} · at 1 false alarm in {ALARMS[best.metric]}"
        largest = _larger_limits(best, figures, of_thousand)
        detail = " · ".join(filter(None, (price, _place(best, figures), largest)))
        return Tile(label, of_thousand(best.value), detail, tone)
    left = upper_bounds([figure for figure in figures if figure.metric != metric_names.AUC])
    return Tile(label, "none shown", f"upper limits: {left}") if left else None


def _larger_limits(best: Estimate, figures: list[Estimate], shown: Callable[[float], str]) -> str:
    if not are_several(figures):
        return ""
    limits = largest_limits([f for f in figures if f.contrast == best.contrast], best.metric)
    larger = [
        f"up to {shown(limit.value)} for {limit.name}"
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
    found = "above guessing" if best.above_guessing else "not above guessing"
    found = NOT_RELIED_ON if best.success.doubt else found
    limits, tone = words.interval_of(best.success) or "no interval", "raised" * best.above_guessing
    detail = f"{found} ({words.percent(best.chance)}) · {limits} · {shortened(attack, 60)}"
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


def _judged(figure: Estimate) -> tuple[str, str]:
    size = evidence.size_of(figure)
    if figure.doubt:
        return NOT_RELIED_ON, ""
    if size is None:
        above = above_chance(figure)
        return ("above guessing", "raised") if above else ("not shown above guessing", "")
    return evidence.size_words(figure), evidence.look_of(figure).tone


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


def client_tiles(record: Record) -> list[Tile]:
    """Epsilon of one client's update, in one round's sum or by canary clients, over all runs.

    The bound that assumes a Gaussian mechanism stands there where there is one; beside it that
    of the coins alone, and what is claimed, with the canaries' noise and without.
    """
    counted, normal = (
        evidence.given_over_all_runs(record, metric)
        for metric in (metric_names.SECURE_SUM_EPSILON, metric_names.SECURE_SUM_EPSILON_IF_GAUSSIAN)
    )
    if counted is not None:
        said = [shortened(counted.method, 60)]
        if counted.ceiling is not None:
            said.append(f"at most {words.shown(counted.ceiling, counted.metric)} could be found")
        if normal is not None:
            said.append(f"{words.shown(normal.number, normal.metric)} if Gaussian")
        sums = "One client's update in a round's sum, epsilon at least"
        return [Tile(sums, words.shown(counted.number, counted.metric), " · ".join(said))]
    found = evidence.client_epsilon(record)
    (coins, gaussian, claimed, alone), best = found, found.best
    if best is None:
        return []
    detail = [shortened(best.method, 60)]
    if claimed is not None:
        without = f"; {words.shown(alone.number, alone.metric)} without canaries" if alone else ""
        detail.append(f"claimed {words.shown(claimed.number, claimed.metric)}{without}")
    else:
        detail.append("nothing is claimed")
    detail.append(words.plural(best.n_members + best.n_nonmembers, "canary client"))
    if gaussian is not None and coins is not None:
        detail.append(f"from coins alone {words.shown(coins.number, coins.metric)}")
    tone = "alarm" if claimed and best.number > claimed.number else ""
    name = "One client's contribution, epsilon at least"
    return [Tile(name, words.shown(best.number, best.metric), " · ".join(detail), tone)]
