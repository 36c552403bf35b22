"""Several records side by side: what a defense, a setting or a later release changed."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fedaudit.errors import BadInput
from fedaudit.report.choosing import (
    NO_DEFENSE,
    above_chance,
    defense_name,
    distinct,
    headline,
    is_strong,
    setting_of,
    strongest,
)
from fedaudit.report.drawing import Choice, Figures, Panel, plotly_text, series_line, spec_of
from fedaudit.report.grid import Cell, Grid, clean, columns_of, named, shortened
from fedaudit.report.styles import Key, style, swatch
from fedaudit.report.words import (
    HEADLINE_METRICS,
    MISSING,
    contrast_name,
    contrast_order,
    interval,
    interval_of,
    is_share,
    metric_name,
    number,
    percent,
    shown,
)
from fedaudit.study.record import Figure, Record


class Entry(NamedTuple):
    """One line of a comparison: a study under one defense and setting."""

    label: str
    figures: tuple[Figure, ...]
    accuracies: tuple[float, ...]
    limits: tuple[float, float] | None


class _Told(NamedTuple):
    """Which parts of a setting a label must name, since they differ between lines."""

    target: bool
    seed: bool


def entries_of(records: Sequence[Record]) -> list[Entry]:
    """A line for each study and setting, in the order given; the first is the baseline.

    Raises:
        BadInput: Fewer than two records.
    """
    if len(records) < 2:
        raise BadInput(
            f"a comparison needs at least 2 records, got {len(records)}; write a report of the "
            "one record instead"
        )
    labels = _labels(records)
    every = {setting_of(figure) for record in records for figure in headline(record)}
    told = _Told(len({one.target for one in every}) > 1, len({one.seed for one in every}) > 1)
    return [
        entry
        for record, label in zip(records, labels, strict=True)
        for entry in _entries(record, label, told)
    ]


def _labels(records: Sequence[Record]) -> list[str]:
    """The studies' names, numbered where two are the same."""
    names = [shortened(record.name, 60) for record in records]
    return [
        f"{name} ({place + 1})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def _entries(record: Record, label: str, told: _Told) -> list[Entry]:
    figures = headline(record)
    settings = sorted(
        distinct(setting_of(figure) for figure in figures),
        key=lambda setting: setting.defense != NO_DEFENSE,
    )
    found = []
    for setting in settings:
        results = [result for result in record.utility if result.defense == setting.defense]
        seeds = [result for result in results if setting.seed in (None, result.seed)] or results
        parts = [label, shortened(defense_name(setting.defense))]
        if told.target:
            parts.append("all targets" if setting.target is None else f"client {setting.target}")
        if told.seed:
            parts.append("over seeds" if setting.seed is None else f"seed {setting.seed}")
        one = seeds[0] if len(seeds) == 1 else None
        found.append(
            Entry(
                " · ".join(parts),
                tuple(figure for figure in figures if setting_of(figure) == setting),
                tuple(result.test_accuracy for result in seeds),
                None if one is None else (one.test_low, one.test_high),
            )
        )
    return found


def comparison_tables(entries: Sequence[Entry]) -> list[Grid]:
    """A table for each contrast and metric: studies by attacks, with the change to the first."""
    every = [figure for entry in entries for figure in entry.figures]
    contrasts = sorted({figure.contrast for figure in every}, key=contrast_order)
    attacks = distinct(figure.attack for figure in every)
    return [
        _metric_table(entries, attacks, contrast, metric)
        for contrast in contrasts
        for metric in HEADLINE_METRICS
    ]


def _metric_table(entries: Sequence[Entry], attacks: list[str], contrast: str, metric: str) -> Grid:
    base = {attack: _figure(entries[0], attack, contrast, metric) for attack in attacks}
    rows = [
        (
            named(entry.label, limit=120),
            *(
                _compared(_figure(entry, attack, contrast, metric), base[attack], place == 0)
                for attack in attacks
            ),
        )
        for place, entry in enumerate(entries)
    ]
    names = [shortened(attack) for attack in attacks]
    return Grid(
        f"{metric_name(metric)}: members v. {contrast_name(contrast).lower()}",
        columns_of("Study and defense", *names, numeric=names),
        tuple(rows),
        remark="▲ above guessing. Δ: change to the first row; * its interval and the first "
        "row's do not overlap.",
    )


def _figure(entry: Entry, attack: str, contrast: str, metric: str) -> Figure | None:
    for figure in entry.figures:
        if (figure.attack, figure.contrast, figure.metric) == (attack, contrast, metric):
            return figure
    return None


def _compared(figure: Figure | None, base: Figure | None, first: bool) -> Cell:
    if figure is None:
        return Cell(MISSING, tone="muted")
    if figure.value is None:
        return Cell(MISSING, "not given", "muted", full=clean(figure.note))
    above = above_chance(figure)
    lines = [interval_of(figure) or "no interval"]
    if not first and base is not None and base.value is not None:
        lines.append(f"Δ {_change(figure.value - base.value, figure.metric)}{_apart(figure, base)}")
    text = shown(figure.value, figure.metric)
    return Cell(
        f"▲ {text}" if above else text,
        "\n".join(lines),
        "" if not above else "alarm" if is_strong(figure) else "raised",
    )


def _change(difference: float, metric: str) -> str:
    sign = "+" if difference > 0 else "−" if difference < 0 else "±"
    if is_share(metric):
        return f"{sign}{100 * abs(difference):.1f} points"
    return f"{sign}{number(abs(difference))}"


def _apart(figure: Figure, base: Figure) -> str:
    limits = (figure.low, figure.high, base.low, base.high)
    if None in limits:
        return ""
    low, high, base_low, base_high = (limit or 0.0 for limit in limits)
    return " *" if low > base_high or high < base_low else ""


def comparison_utility(entries: Sequence[Entry]) -> Grid:
    """Test accuracy of each study and defense, with the change to the first."""
    base = fmean(entries[0].accuracies) if entries and entries[0].accuracies else None
    rows = []
    for place, entry in enumerate(entries):
        if not entry.accuracies:
            rows.append((named(entry.label, limit=120), Cell(MISSING, tone="muted"), Cell(MISSING)))
            continue
        middle = fmean(entry.accuracies)
        low, high = entry.limits or (min(entry.accuracies), max(entry.accuracies))
        change = MISSING if base is None or place == 0 else _change(middle - base, "accuracy")
        rows.append(
            (
                named(entry.label, limit=120),
                Cell(percent(middle), interval(low, high, "accuracy")),
                Cell(change),
            )
        )
    numeric = ("Test accuracy", "Change to the first")
    return Grid(
        "Utility",
        columns_of("Study and defense", *numeric, numeric=numeric),
        tuple(rows),
        remark="Intervals: Clopper-Pearson 95%; over several seeds, the lowest and highest.",
    )


def tradeoff_figure(entries: Sequence[Entry]) -> Figures | None:
    """Highest AUC against test accuracy, a panel a contrast; None without accuracies."""
    shown_ = [entry for entry in entries if entry.accuracies]
    contrasts = sorted({f.contrast for e in shown_ for f in e.figures}, key=contrast_order)
    panels = tuple(_tradeoff_panel(shown_, contrast) for contrast in contrasts)
    if not panels:
        return None
    keys = tuple(
        Key(entry.label, plotly_text(entry.label), swatch(style(place)))
        for place, entry in enumerate(shown_)
    )
    return Figures(
        "tradeoff",
        "What each defense costs and what it buys: highest AUC of any attack against test "
        "accuracy. Good is low and to the right; the dotted line is guessing.",
        (Choice("", panels),),
        keys,
    )


def _tradeoff_panel(entries: Sequence[Entry], contrast: str) -> Panel:
    traces = []
    for place, entry in enumerate(entries):
        best = strongest([f for f in entry.figures if f.contrast == contrast], "auc")
        if best is None:
            continue
        x = fmean(entry.accuracies)
        trace = series_line([x], [best.value], style(place), entry.label, marks=1)
        trace |= {"mode": "markers", "hovertemplate": "AUC %{y:.3f}, accuracy %{x:.1%}"}
        trace["marker"] = {"symbol": style(place).symbol, "size": 11, "color": style(place).color}
        if best.low is not None and best.high is not None and best.value is not None:
            trace["error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": [best.high - best.value],
                "arrayminus": [best.value - best.low],
                "thickness": 1.5,
                "width": 4,
            }
        traces.append(trace)
    guessing: dict[str, object] = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": 0.5,
        "y1": 0.5,
        "line": {"color": "#7A7A7A", "width": 1, "dash": "dot"},
    }
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Test accuracy"}, "tickformat": ".1%", "nticks": 5},
        yaxis={"title": {"text": "Highest AUC"}, "range": [0.45, 1.02], "nticks": 6},
        shapes=[guessing],
    )
    title = f"Members v. {contrast_name(contrast).lower()}"
    return Panel(title, f"{title}: highest AUC against test accuracy.", spec)


def cautions(records: Sequence[Record]) -> list[str]:
    """What makes the records hard to compare, in plain words."""
    said = [
        f"{shortened(record.name, 60)} was evaluated with the published code's flawed redraw of "
        "non-members: its figures mean nothing about leakage."
        for record in records
        if record.evaluation == "redraw"
    ]
    said += [
        f"A control failed in {shortened(record.name, 60)}: its figures cannot be relied on yet."
        for record in records
        if any(control.passed is False for control in record.controls)
    ]
    if len({record.view.name for record in records}) > 1:
        said.append("The adversaries differ: the records were made under different views.")
    sizes = {frozenset((f.n_members, f.n_nonmembers) for f in headline(r)) for r in records}
    if len(sizes) > 1:
        said.append("The numbers of audited samples differ, and with them what can be seen.")
    return said
