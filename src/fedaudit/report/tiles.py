"""The numbers that stand at the top of a report."""

from typing import NamedTuple

from fedaudit.report.choosing import (
    headline,
    label_among,
    says_nothing,
    strongest,
)
from fedaudit.report.cluster_numbers import figure_text, limits_text
from fedaudit.report.clusters import clustered_of, label_of, risk_size, riskiest
from fedaudit.report.evidence import (
    a_leak,
    leading,
    look_of,
    size_of,
    tone_of,
)
from fedaudit.report.found import ALARMS, of_thousand, room
from fedaudit.report.grid import shortened
from fedaudit.report.names import NO_DEFENSE, contrast_name, defense_name
from fedaudit.report.reading import (
    CHANCE_VIOLATIONS,
    VIOLATIONS,
    ClusterMean,
    Figure,
    Record,
    above_chance,
)
from fedaudit.report.source_words import points, points_in_words
from fedaudit.report.sources import (
    excess_size,
    labels_of_named,
    on_sources,
    strongest_on_sources,
)
from fedaudit.report.words import interval, interval_of, percent, plural, shown


class Tile(NamedTuple):
    """A number that stands at the top: what it is, the number, and what to read it against."""

    label: str
    value: str
    detail: str
    tone: str = ""


def tiles(record: Record) -> list[Tile]:
    """The numbers that stand at the top of a report."""
    figures = headline(record)
    # Figures that say nothing about leakage must not stand out as if they told something.
    found = (
        []
        if says_nothing(record)
        else [
            *_membership_tiles(figures),
            *_source_tiles(record),
            *_cluster_tiles(record),
        ]
    )
    return [tile for tile in found if tile is not None] + [
        *_utility_tile(record),
        _controls_tile(record),
    ]


def _membership_tiles(figures: list[Figure]) -> list[Tile | None]:
    """The leading AUC and the leading rate, that with the larger word first."""
    found = leading(figures)
    auc = next((figure for figure in found if figure.metric == "auc"), None)
    rate = next((figure for figure in found if figure.metric != "auc"), None)
    tiles = [
        _strongest_tile(auc or strongest(figures, "auc"), figures),
        _identified_tile(rate, figures),
    ]
    return tiles[::-1] if found and found[0] is rate else tiles


def _strongest_tile(best: Figure | None, figures: list[Figure]) -> Tile | None:
    if best is None:
        return None
    found, tone = _judged(best)
    parts = (found, interval_of(best) or "no interval", _place(best, figures))
    label = "Strongest attack, AUC" if above_chance(best) else "Highest AUC"
    return Tile(label, shown(best.value, "auc"), " · ".join(parts), tone)


def _identified_tile(best: Figure | None, figures: list[Figure]) -> Tile | None:
    """Members that an attack identifies, where that is above guessing; else that none does."""
    label = "Identified of 1,000 members"
    if best is not None and best.value is not None:
        found, tone = _judged(best)
        price = f"{found} · at 1 false alarm in {ALARMS[best.metric]}"
        return Tile(label, of_thousand(best.value), f"{price} · {_place(best, figures)}", tone)
    left = room([figure for figure in figures if figure.metric != "auc"])
    return Tile(label, "none shown", f"room for {left}") if left else None


def _source_tiles(record: Record) -> list[Tile]:
    """How often owners are named, and how much of that class mixes do not explain."""
    named = on_sources(record)
    best = strongest_on_sources(named)
    if best is None:
        return []
    attack = labels_of_named(named)[named.index(best)]
    figure = best.figure
    found = "above guessing" if figure.above_guessing else "not above guessing"
    limits = interval(figure.success.low, figure.success.high, "accuracy") or "no interval"
    tone = "raised" if figure.above_guessing else ""
    detail = f"{found} ({percent(figure.chance)}) · {limits} · {shortened(attack, 60)}"
    size = excess_size(figure)
    said = a_leak(size) if size else "not above them"
    beyond = f"{said} · they alone {percent(figure.mixes)} · {points_in_words(figure.excess)}"
    return [
        Tile("Owners named", percent(figure.success.value), detail, tone),
        Tile(
            "Beyond class mixes",
            f"{points(figure.excess.value)} points",
            beyond,
            tone_of(size) if size else "",
        ),
    ]


def _cluster_tiles(record: Record) -> list[Tile]:
    """Of every algorithm and defense: who uses a model that is too risky, and how risky one is."""
    studies = clustered_of(record)
    found = []
    for one in studies:
        above, worst, label = one.mean(VIOLATIONS), riskiest(one), label_of(one, studies)
        if above is not None:
            floor = one.mean(CHANCE_VIOLATIONS)
            total = f"of {plural(len(one.runs[0].clients), 'client')}"
            total += f" · {figure_text(floor)} by chance" if floor else ""
            found.append(
                _cluster_tile("Violations", above, total, label, "raised" if above.value else "")
            )
        if worst is not None:
            size = risk_size(worst)
            said = a_leak(size) if size else "not above guessing"
            found.append(
                _cluster_tile("Riskiest model", worst, said, label, tone_of(size) if size else "")
            )
    return found


def _cluster_tile(name: str, mean: ClusterMean, said: str, label: str, tone: str) -> Tile:
    limits = limits_text(mean)
    parts = (said, limits and f"95% interval {limits}", label)
    detail = " · ".join(part for part in parts if part)
    return Tile(name, figure_text(mean), detail, tone)


def _judged(figure: Figure) -> tuple[str, str]:
    """What is found in words, and the colour that goes with it."""
    size = size_of(figure)
    if size is None:
        return ("above guessing", "raised") if above_chance(figure) else ("not above guessing", "")
    return a_leak(size), look_of(figure).tone


def _place(figure: Figure, figures: list[Figure]) -> str:
    label = label_among(figure, figures)
    contrast = f"v. {contrast_name(figure.contrast).lower()}"
    return " · ".join(part for part in (shortened(figure.attack, 32), contrast, label) if part)


def _utility_tile(record: Record) -> list[Tile]:
    plain = [r for r in record.utility if defense_name(r.defense) == defense_name(NO_DEFENSE)]
    results = plain or record.utility
    if not results:
        return []
    middle = sum(result.test_accuracy for result in results) / len(results)
    first = results[0]
    detail = (
        f"mean of {plural(len(results), 'run')}"
        if len(results) > 1
        else interval(first.test_low, first.test_high, "accuracy")
    )
    defense = shortened(defense_name(first.defense), 32)
    return [Tile("Test accuracy", percent(middle), f"{detail} · {defense}")]


def _controls_tile(record: Record) -> Tile:
    ran = [control for control in record.controls if control.passed is not None]
    passed = sum(bool(control.passed) for control in ran)
    if not ran:
        return Tile("Controls", "none run", "nothing vouches for the figures", "alarm")
    tone = "good" if passed == len(ran) else "alarm"
    return Tile("Controls passed", f"{passed} of {len(ran)}", "checks on the audit itself", tone)
