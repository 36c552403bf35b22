"""Figures of a comparison: privacy-utility trade-off and hypervolumes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC, HEADLINE_METRICS
from fedaudit.report import words
from fedaudit.report.evidence import by_contrast, grouped
from fedaudit.report.figures import drawing
from fedaudit.report.grid import Cell, Grid, below, named, shortened, tabled
from fedaudit.report.text.comparison import (
    best_tradeoff,
    case_name,
    front_name,
    labels_of,
    nothing_to_lower,
    point_cost,
    settings_text,
)
from fedaudit.results.comparison import (
    STRONGEST_ATTACK,
    AttackEntry,
    Comparison,
    Front,
    FrontPoint,
)
from fedaudit.results.estimate import NO_DEFENSE

LEAST_SPANS = {"leakage": 0.2, "error": 0.1}
"""Of the axes of a front: differences within what few samples give must not fill the picture."""

MOST_COLOURED = 6
"""Defenses that have a colour of their own; more could not be told apart."""

_UNDEFENDED = drawing.Style(drawing.GREY, "dot", drawing.RESERVED)


def front_figure(comparison: Comparison) -> drawing.Figures | None:
    """Leakage against test error, a line a defense, a panel a contrast; None without a defended
    row in any front."""
    defended, looks = _defended(comparison.fronts), _looks(comparison.fronts)
    if not defended:
        return None
    labels, best = labels_of(comparison), best_tradeoff(comparison)
    flat = nothing_to_lower(comparison)
    # The non-members that members are told from best where nobody defends stand in front.
    paired = [f for f in comparison.fronts if f.metric == AUC and f.gain is not None]
    bare = {
        contrast: max(0.0, *(front.points[0].leakage for front in fronts))
        for contrast, fronts in by_contrast(paired).items()
    }
    choices = tuple(
        drawing.Choice(
            f"{_short_name(metric)}, {shortened(attack, 24)}, {words.against(contrast)}",
            (
                _panel(
                    [f for f in group if f.contrast == contrast],
                    looks,
                    labels,
                    best.row
                    if best and (metric, attack, contrast) == (AUC, STRONGEST_ATTACK, best.contrast)
                    else None,
                    flat=flat,
                ),
            ),
        )
        for (metric, attack), group in _groups(comparison.fronts).items()
        for contrast in sorted(
            # An attack that no defended row has draws nothing.
            {f.contrast for f in _defended(group)},
            key=lambda name: (best is None or name != best.contrast, -bare.get(name, 0.0), name),
        )
    )
    return drawing.Figures(
        "fronts",
        "Leakage against test error, one mark per strength of a defense, each a mean over seeds "
        "with its 95% intervals"
        + ("" if flat else ": low and to the left is good")
        + ". One colour per defense"
        + (", grey the others" if drawing.MUTED in {look.color for look in looks.values()} else "")
        + ", one shape per group of clients that uses it. "
        + (
            "No undefended attack is above guessing, so that no row is shown to leak less than "
            "another."
            if flat
            else "Lines join the filled marks of a defense; hollow: another row is better on both "
            "axes, intervals aside."
        ),
        choices,
        (
            *drawing.legend(
                {f.family: looks[front_name(f)]._replace(symbol="circle") for f in defended},
                lined=False,
            ),
            *drawing.legend(
                {
                    case_name(f): drawing.Style(drawing.GREY, symbol=looks[front_name(f)].symbol)
                    for f in defended
                }
                if len({case_name(f) for f in defended}) > 1
                else {},
                lined=False,
                hides=False,
            ),
            *drawing.legend({"no defense, same clients": _UNDEFENDED}, lined=False, hides=False),
        ),
    )


def _looks(fronts: Sequence[Front]) -> dict[str, drawing.Style]:
    costs: dict[str, float] = {}
    for front in _defended(fronts):
        if (front.metric, front.attack) == (fronts[0].metric, fronts[0].attack):
            least = min(point_cost(point) for point in front.points[1:] or front.points)
            costs[front.family] = min(costs.get(front.family, least), least)
    ranked = sorted(costs, key=lambda family: costs[family])
    colours = dict(zip(ranked, drawing.OKABE_ITO[:MOST_COLOURED], strict=False))
    cases = list(dict.fromkeys(case_name(front) for front in _defended(fronts)))
    marks = [mark for mark in drawing.MARKS if mark != drawing.RESERVED]
    return {
        front_name(front): drawing.Style(
            colours.get(front.family, drawing.MUTED),
            symbol=marks[cases.index(case_name(front)) % len(marks)],
        )
        for front in _defended(fronts)
    }


def _defended(fronts: Sequence[Front]) -> list[Front]:
    return [front for front in fronts if front.family != NO_DEFENSE]


def leakage_name(metric: str) -> str:
    """Name of a front's leakage, for an axis."""
    return "Membership advantage (2 AUC − 1)" if metric == AUC else words.metric_name(metric)


def _short_name(metric: str) -> str:
    return "Advantage" if metric == AUC else words.metric_name(metric)


def _groups(fronts: Sequence[Front]) -> dict[tuple[str, str], list[Front]]:

    def order(key: tuple[str, str]) -> tuple[int, bool]:
        known = list(HEADLINE_METRICS)
        at = known.index(key[0]) if key[0] in known else len(known)
        return (at, key[1] != STRONGEST_ATTACK)

    found = grouped(fronts, lambda front: (front.metric, front.attack))
    return {key: found[key] for key in sorted(found, key=order)}


def _panel(
    fronts: Sequence[Front],
    looks: dict[str, drawing.Style],
    labels: Sequence[str],
    best: int | None,
    *,
    flat: bool,
) -> drawing.Panel:
    metric, contrast = fronts[0].metric, fronts[0].contrast
    defended = _defended(fronts)
    traces = [
        _traces(front, name, looks[front_name(front)], labels, best, flat=flat)
        for front, name in zip(defended, _short_names(defended), strict=True)
    ]
    whiskers = [one for front in defended for one in _intervals(front, looks[front_name(front)])]
    # The best lie above the others, and their names are placed first.
    traces.sort(key=lambda pair: -_cost(pair[1]))
    series: list[drawing.Drawn] = [
        *whiskers,
        *(line for line, _ in traces),
        *(dots for _, dots in traces),
    ]
    title = f"Members {words.against(contrast)}"
    said = words.listed([f"{front_name(f)} {words.number(f.hypervolume)}" for f in fronts[:8]])
    return drawing.Panel(
        title,
        f"{title}: {leakage_name(metric)} against test error, {shortened(fronts[0].attack)}. "
        f"Hypervolumes: {said}.",
        drawing.Scale(
            "Test error", "%", _room(_reached(series, across=True), LEAST_SPANS["error"]), count=6
        ),
        drawing.Scale(
            leakage_name(metric),
            "%",
            # From guessing on, so that a large picture is a large leak.
            _room([0.0, *_reached(series, across=False)], LEAST_SPANS["leakage"], floor=0.0),
            count=6,
        ),
        series,
        height=430,
    )


def _reached(series: Sequence[drawing.Drawn], *, across: bool) -> list[float]:
    return [float(value) for one in series for value in one.reach(across)]


def _room(values: Sequence[float], least: float, floor: float | None = None) -> tuple[float, float]:
    """Limits of an axis: some room about the points, never so little that noise looks large."""
    low, high = min(values), max(values)
    margin = max((high - low) / 10, (least - (high - low)) / 2)
    if floor is not None:
        return floor - (high - floor) / 40, max(high + (high - floor) / 10, floor + least)
    return low - margin, high + margin


class _Reach(NamedTuple):
    """A figure with its limits, as :class:`drawing.WithLimits`."""

    value: float | None
    low: float | None
    high: float | None


def _intervals(front: Front, look: drawing.Style) -> list[drawing.Series]:
    """Lines from limit to limit of every point, up and across; grey for no defense."""
    bare = front.gain is not None
    parts = [(front.points[:bare], _UNDEFENDED), (front.points[bare:], look)]
    return [
        drawing.Series(
            front.family,
            [point.error for point in points],
            [point.leakage for point in points],
            style,
            joined=False,
            size=0,
            limits=[_reach(point, across=across) for point in points],
            across=across,
        )
        for points, style in parts
        for across in (False, True)
        if points
    ]


def _reach(point: FrontPoint, *, across: bool) -> _Reach:
    limits = point.error_limits if across else point.leakage_limits
    value = point.error if across else point.leakage
    return _Reach(value, limits.low, limits.high) if limits else _Reach(value, None, None)


def _cost(dots: drawing.Series) -> float:
    muted = 2.0 * (dots.look.color == drawing.MUTED)
    pairs = zip(dots.x, dots.y, dots.names, strict=True)
    return muted + min((float(x) + float(y or 0) for x, y, name in pairs if name), default=2.0)


def _short_names(fronts: Sequence[Front]) -> list[str]:
    names = [front.family for front in fronts]
    ways: tuple[Callable[[Front], str], ...] = (case_name, lambda f: settings_text(f.settings))
    for more in ways:
        names = [
            ", ".join(filter(None, (name, more(front)))) if names.count(name) > 1 else name
            for name, front in zip(names, fronts, strict=True)
        ]
    return [shortened(name, 40) for name in names]


def _traces(
    front: Front,
    name: str,
    look: drawing.Style,
    labels: Sequence[str],
    best: int | None,
    *,
    flat: bool,
) -> tuple[drawing.Series, drawing.Series]:
    """The line over the strengths that are not beaten, and all points upon it.

    Where nothing leaks undefended (``flat``) no line and no hollow mark ranks the rows.
    """
    bare = front.gain is not None
    strengths = front.points[bare:]
    kept = sorted((p.error, p.leakage) for p in strengths if p.on_front and not flat)
    looks = [_UNDEFENDED] * bare + [look] * len(strengths)
    chosen = [point for point in strengths if point.row == best] or strengths
    least = chosen[0] if flat and chosen else min(chosen, key=point_cost, default=None)
    said = f"best: {name}" if least and least.row == best else name
    return (
        drawing.Series(front.family, [x for x, _ in kept], [y for _, y in kept], look, steps=True),
        drawing.Series(
            front.family,
            [point.error for point in front.points],
            [point.leakage for point in front.points],
            look,
            "%{text}<br>leakage %{y:.1%}, error %{x:.1%}",
            "",
            joined=False,
            size=12 if said != name else 10,
            looks=[
                of if point.on_front or flat else of._replace(symbol=f"{of.symbol}-open")
                for of, point in zip(looks, front.points, strict=True)
            ],
            texts=[drawing.series_name(labels[point.row]) for point in front.points],
            names=[said if point is least else "" for point in front.points],
        ),
    )


def hypervolume_tables(comparison: Comparison) -> list[Grid]:
    """Hypervolumes of defenses by attacks, a table for each contrast and measure of leakage."""
    every = [front for fronts in _groups(comparison.fronts).values() for front in fronts]
    found = grouped(every, lambda front: (front.contrast, front.metric))
    ordered = sorted(found, key=lambda key: words.contrast_order(key[0]))
    return [_hypervolume_table(found[key], *key) for key in ordered]


def _hypervolume_table(fronts: Sequence[Front], contrast: str, metric: str) -> Grid:
    attacks = list(dict.fromkeys(front.attack for front in fronts))
    by = {(front_name(front), front.attack): front for front in fronts}
    methods = words.listed(list(dict.fromkeys(front.method for front in fronts))[:3])
    return tabled(
        f"Hypervolume, {leakage_name(metric)}: members {words.against(contrast)}",
        [
            {
                "Defense and coalition": named(name, limit=120),
                **{
                    attack.capitalize() if attack == STRONGEST_ATTACK else attack: _area(
                        by.get((name, attack))
                    )
                    for attack in attacks
                },
            }
            for name in dict.fromkeys(front_name(front) for front in fronts)
        ],
        remark="Share of the unit square of leakage and test error that the defense's strengths, "
        "or not defending, are at least as good as; larger is better. Gain: what the defense "
        "adds to not defending, on the same clients. The strongest attack is that with the "
        "largest figure over the runs of a row, on each client, which errs upward. "
        f"Intervals: {methods}.",
    )


def _area(front: Front | None) -> Cell | None:
    if front is None:
        return None
    lines = [words.interval(front.low, front.high, "hypervolume")]
    if front.gain is not None:
        limits = words.interval(_even(front.gain_low), _even(front.gain_high), "hypervolume")
        lines += [f"gain {words.number(round(front.gain, 3))}", f"({limits})" if limits else ""]
    return Cell(words.number(front.hypervolume), below(*lines))


def _even(limit: float | None) -> float | None:
    return None if limit is None else round(limit, 3)


def tradeoff_figure(comparison: Comparison) -> drawing.Figures | None:
    """Highest AUC against accuracy, a point a row: for comparisons without a defense."""
    accuracies = {one.row: one.figure.number for one in comparison.on("utility")}
    aucs = by_contrast(
        entry
        for entry in comparison.entries
        if (entry.metric, entry.part, entry.attack) == (AUC, "inside", STRONGEST_ATTACK)
        and entry.value is not None
        and entry.row in accuracies
    )
    if not aucs:
        return None
    labels = labels_of(comparison)
    panels = tuple(_tradeoff_panel(found, accuracies, labels) for found in aucs.values())
    return drawing.Figures(
        "tradeoff",
        "Highest AUC of any attack against test accuracy. Good is low and to the right; the "
        "dotted line is guessing.",
        (drawing.Choice("", panels),),
        drawing.legend({labels[row]: drawing.style(row) for row in accuracies}),
    )


def _tradeoff_panel(
    entries: Sequence[AttackEntry], accuracies: dict[int, float], labels: Sequence[str]
) -> drawing.Panel:
    series = []
    for row, accuracy in accuracies.items():
        best = next((entry for entry in entries if entry.row == row), None)
        if best is not None and best.value is not None:
            series.append(
                drawing.Series(
                    labels[row],
                    [accuracy],
                    [best.value],
                    drawing.style(row),
                    "AUC %{y:.3f}, accuracy %{x:.1%}",
                    joined=False,
                    size=11,
                    limits=[best],
                )
            )
    title = f"Members {words.against(entries[0].contrast)}"
    return drawing.Panel(
        title,
        f"{title}: highest AUC against test accuracy.",
        drawing.Scale("Test accuracy", "%", count=5),
        drawing.Scale("Highest AUC", ends=(0.45, 1.02), count=6),
        series,
        levels=(0.5,),
    )
