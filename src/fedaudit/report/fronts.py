"""Privacy against utility: fronts as a figure, and their hypervolumes as tables."""

from collections.abc import Sequence

from fedaudit.report.drawing import (
    Choice,
    Figures,
    Panel,
    Spec,
    error_bars,
    plotly_text,
    series_line,
    spec_of,
)
from fedaudit.report.grid import Cell, Grid, columns_of, named, shortened
from fedaudit.report.names import (
    NO_DEFENSE,
    contrast_name,
    contrast_order,
    defense_name,
    metric_name,
)
from fedaudit.report.reading import (
    HEADLINE_METRICS,
    STRONGEST_ATTACK,
    Comparison,
    Entry,
    Front,
    Row,
)
from fedaudit.report.rows import case_of, labels_of, settings_text
from fedaudit.report.styles import RESERVED, Key, Style, style, swatch
from fedaudit.report.words import MISSING, interval, listed, number

LEAST_SPAN = 0.03
"""Of both axes of a front: differences of a thousandth must not fill the picture."""

_GREY = Style("#7A7A7A", "dot", "circle")
_UNDEFENDED = _GREY._replace(symbol=RESERVED)


def front_figure(comparison: Comparison) -> Figures | None:
    """Leakage against test error, a line a defense, a panel a contrast; None without fronts."""
    if not comparison.fronts:
        return None
    names = list(dict.fromkeys(front_name(front) for front in comparison.fronts))
    looks = {name: style(place) for place, name in enumerate(_defended(names))}
    labels = labels_of(comparison)
    choices = tuple(
        Choice(
            f"{leakage_name(metric)}, {shortened(attack)}",
            tuple(
                _panel([f for f in group if f.contrast == contrast], looks, labels)
                for contrast in sorted({f.contrast for f in group}, key=contrast_order)
            ),
        )
        for (metric, attack), group in _groups(comparison.fronts).items()
    )
    keys = tuple(Key(name, plotly_text(name), swatch(look)) for name, look in looks.items())
    return Figures(
        "fronts",
        "What each defense offers: leakage against test error, a point a strength, each a mean "
        "over seeds. Low and to the left is good. Lines join the points that no other point of "
        "the defense beats; hollow points are beaten. A grey cross is no defense, on the same "
        "clients, which every defense may fall back on. The larger the area above and to the right "
        "of a line, the better: that is its hypervolume, in the tables below.",
        choices,
        (*keys, Key("no defense, on the same clients", "", swatch(_UNDEFENDED))),
    )


def _defended(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.startswith(defense_name(NO_DEFENSE))]


def front_name(front: Front) -> str:
    """A front as a reader sees it: defense, coalition, and settings that differ."""
    row = Row(
        source=0,
        defense=front.family,
        family=front.family,
        coalition=front.coalition,
        clients=front.clients,
        settings=front.settings,
    )
    parts = [defense_name(front.family), case_of(row), settings_text(front.settings)]
    return " · ".join(shortened(part, 60) for part in parts if part)


def leakage_name(metric: str) -> str:
    """What a front's leakage is, for an axis or a choice."""
    return "Membership advantage (2 AUC − 1)" if metric == "auc" else metric_name(metric)


def _groups(fronts: Sequence[Front]) -> dict[tuple[str, str], list[Front]]:
    """Fronts by metric and attack: the strongest attack first, metrics in the report's order."""

    def order(key: tuple[str, str]) -> tuple[int, bool]:
        known = list(HEADLINE_METRICS)
        at = known.index(key[0]) if key[0] in known else len(known)
        return (at, key[1] != STRONGEST_ATTACK)

    found: dict[tuple[str, str], list[Front]] = {}
    for front in fronts:
        found.setdefault((front.metric, front.attack), []).append(front)
    return {key: found[key] for key in sorted(found, key=order)}


def _panel(fronts: Sequence[Front], looks: dict[str, Style], labels: Sequence[str]) -> Panel:
    metric, contrast = fronts[0].metric, fronts[0].contrast
    traces: list[Spec] = []
    for front in fronts:
        name = front_name(front)
        if name in looks:
            traces += _traces(front, name, looks[name], labels)
    points = [point for front in fronts for point in front.points]
    spec = spec_of(
        traces,
        xaxis={
            "title": {"text": "Test error"},
            "tickformat": ".4~%",
            "nticks": 6,
            "range": _room([point.error for point in points]),
        },
        yaxis={
            "title": {"text": leakage_name(metric)},
            "tickformat": ".5~f" if metric == "auc" else ".4~%",
            "nticks": 6,
            "range": _room([point.leakage for point in points]),
        },
    )
    title = f"Members v. {contrast_name(contrast).lower()}"
    said = listed([f"{front_name(f)} {number(f.hypervolume)}" for f in fronts[:8]])
    return Panel(
        title,
        f"{title}: {leakage_name(metric)} against test error, {shortened(fronts[0].attack)}. "
        f"Hypervolumes: {said}.",
        spec,
    )


def _room(values: Sequence[float]) -> list[float]:
    """Limits of an axis: some room about the points, never so little that noise looks large."""
    low, high = min(values), max(values)
    margin = max((high - low) / 10, (LEAST_SPAN - (high - low)) / 2)
    return [low - margin, high + margin]


def _traces(front: Front, name: str, look: Style, labels: Sequence[str]) -> list[Spec]:
    """The line over the points that are not beaten, and all points upon it."""
    best = sorted((point.error, point.leakage) for point in front.points if point.on_front)
    line = series_line([x for x, _ in best], [y for _, y in best], look, name, shape="hv")
    line |= {"hoverinfo": "skip"}
    bare = 1 if front.gain is not None else 0
    looks = [_UNDEFENDED] * bare + [look] * (len(front.points) - bare)
    symbols = [
        of.symbol + ("" if point.on_front else "-open")
        for of, point in zip(looks, front.points, strict=True)
    ]
    marks = series_line(
        [p.error for p in front.points], [p.leakage for p in front.points], look, name, marks=1
    )
    marks |= {
        "mode": "markers",
        "marker": {"size": 10, "color": [of.color for of in looks], "symbol": symbols},
        "text": [plotly_text(labels[point.row]) for point in front.points],
        "hovertemplate": "%{text}<br>leakage %{y:.3f}, error %{x:.1%}<extra></extra>",
    }
    return [line, marks]


def hypervolume_tables(comparison: Comparison) -> list[Grid]:
    """Hypervolumes of defenses by attacks, a table for each contrast and measure of leakage."""
    found: dict[tuple[str, str], list[Front]] = {}
    for fronts in _groups(comparison.fronts).values():
        for front in fronts:
            found.setdefault((front.contrast, front.metric), []).append(front)
    ordered = sorted(found, key=lambda key: contrast_order(key[0]))
    return [_hypervolume_table(found[key], *key) for key in ordered]


def _hypervolume_table(fronts: Sequence[Front], contrast: str, metric: str) -> Grid:
    attacks = list(dict.fromkeys(front.attack for front in fronts))
    names = list(dict.fromkeys(front_name(front) for front in fronts))
    by = {(front_name(front), front.attack): front for front in fronts}
    rows = tuple(
        (named(name, limit=120), *(_area(by.get((name, attack))) for attack in attacks))
        for name in names
    )
    headings = [
        shortened(attack).capitalize() if attack == STRONGEST_ATTACK else shortened(attack)
        for attack in attacks
    ]
    methods = listed(list(dict.fromkeys(front.method for front in fronts))[:3])
    return Grid(
        f"Hypervolume, {leakage_name(metric)}: members v. {contrast_name(contrast).lower()}",
        columns_of("Defense and coalition", *headings, numeric=headings),
        rows,
        remark="Share of the unit square of leakage and test error that the defense's strengths, "
        "or not defending, are at least as good as; larger is better. Gain: what the defense "
        "adds to not defending, on the same clients. The strongest attack is "
        f"that with the largest leakage in each run, which errs upward. Intervals: {methods}.",
    )


def _area(front: Front | None) -> Cell:
    if front is None:
        return Cell(MISSING, tone="muted")
    lines = [interval(front.low, front.high, "hypervolume")]
    if front.gain is not None:
        limits = interval(_even(front.gain_low), _even(front.gain_high), "hypervolume")
        lines += [f"gain {number(round(front.gain, 3))}", f"({limits})" if limits else ""]
    return Cell(number(front.hypervolume), "\n".join(line for line in lines if line))


def _even(limit: float | None) -> float | None:
    """Of a share of the unit square, more than three decimals say nothing."""
    return None if limit is None else round(limit, 3)


def tradeoff_figure(comparison: Comparison) -> Figures | None:
    """Highest AUC against accuracy, a point a row: for comparisons without a defense."""
    accuracies = {one.row: one.value for one in comparison.accuracies}
    aucs = [
        entry
        for entry in comparison.entries
        if entry.metric == "auc" and entry.part == "inside" and entry.value is not None
    ]
    contrasts = sorted({e.contrast for e in aucs if e.row in accuracies}, key=contrast_order)
    if not contrasts:
        return None
    labels = labels_of(comparison)
    panels = tuple(
        _tradeoff_panel([e for e in aucs if e.contrast == contrast], accuracies, labels)
        for contrast in contrasts
    )
    keys = tuple(
        Key(labels[row], plotly_text(labels[row]), swatch(style(row))) for row in accuracies
    )
    return Figures(
        "tradeoff",
        "Highest AUC of any attack against test accuracy. Good is low and to the right; the "
        "dotted line is guessing.",
        (Choice("", panels),),
        keys,
    )


def _tradeoff_panel(
    entries: Sequence[Entry], accuracies: dict[int, float], labels: Sequence[str]
) -> Panel:
    traces = []
    for row, accuracy in accuracies.items():
        mine = [entry for entry in entries if entry.row == row]
        best = max(mine, key=lambda entry: entry.value or 0.0, default=None)
        if best is None or best.value is None:
            continue
        trace = series_line([accuracy], [best.value], style(row), labels[row], marks=1)
        trace |= {"mode": "markers", "hovertemplate": "AUC %{y:.3f}, accuracy %{x:.1%}"}
        trace["marker"] = {"symbol": style(row).symbol, "size": 11, "color": style(row).color}
        if best.low is not None and best.high is not None:
            trace["error_y"] = error_bars([best], color=style(row).color, thickness=1.5, width=4)
        traces.append(trace)
    guessing: Spec = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": 0.5,
        "y1": 0.5,
        "line": {"color": _GREY.color, "width": 1, "dash": "dot"},
    }
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Test accuracy"}, "tickformat": ".1%", "nticks": 5},
        yaxis={"title": {"text": "Highest AUC"}, "range": [0.45, 1.02], "nticks": 6},
        shapes=[guessing],
    )
    title = f"Members v. {contrast_name(entries[0].contrast).lower()}"
    return Panel(title, f"{title}: highest AUC against test accuracy.", spec)
