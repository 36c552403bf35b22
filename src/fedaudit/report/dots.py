"""Figures of where the risk sits: a dot with its interval for each client or class."""

from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.report.drawing import (
    Choice,
    Figures,
    Panel,
    Spec,
    choices_of,
    error_bars,
    plotly_text,
    spec_of,
    upright,
)
from fedaudit.report.grid import shortened
from fedaudit.report.groups import group_name, target_figures
from fedaudit.report.names import contrast_name, contrast_order, defense_name
from fedaudit.report.reading import Figure, GroupFigure, Record
from fedaudit.report.styles import OKABE_ITO

_CAPTIONS = {
    "client": "How well the target's members are told from the samples of each other client. This "
    "is not how exposed those clients are: only the target's own data count as members here. A "
    "client without a dot had too few audited samples.",
    "class": "AUC for each class with its interval; the dotted line is guessing. An average hides "
    "who carries the risk. The intervals are not corrected for the number of classes, so that one "
    "in twenty may miss by chance. A class without a dot had too few samples for a figure.",
}


class Dot(NamedTuple):
    """A row of the figure."""

    name: str
    value: float | None
    low: float | None
    high: float | None


def target_figure(record: Record) -> Figures | None:
    """AUC of each audited client, the strongest attack first; None where only one was audited."""
    figures = target_figures(record)
    if not figures:
        return None
    figures = sorted(figures, key=lambda figure: figure.target or 0)

    def panels(inside: list[Figure]) -> tuple[Panel, ...]:
        dots = [Dot(f"Client {f.target}", f.value, f.low, f.high) for f in inside]
        title = _title(inside[0].attack, inside[0].contrast, inside[0].defense)
        return (_panel(dots, title, "audited client"),)

    return Figures(
        "target",
        "How well the members of each audited client are told from non-members, with the "
        "interval; the dotted line is guessing. Clients that were not audited are missing: "
        "nothing is known of them.",
        _strongest_first(choices_of(figures, _target_setting, panels), figures),
        shape="tall",
    )


def _strongest_first(choices: tuple[Choice, ...], figures: Sequence[Figure]) -> tuple[Choice, ...]:
    """Choices in the order of the largest AUC behind them."""
    best: dict[tuple[str, ...], float] = {}
    for figure in figures:
        setting = _target_setting(figure)
        best[setting] = max(best.get(setting, 0.0), figure.value or 0.0)
    # Both are in the order in which settings first appear.
    pairs = zip(choices, best.values(), strict=True)
    return tuple(choice for choice, _ in sorted(pairs, key=lambda pair: -pair[1]))


def group_figure(groups: Sequence[GroupFigure], by: str) -> Figures | None:
    """AUC by whose samples ("client") or by "class", as dots; the strongest attack first."""
    parts = [group for group in groups if group.by == by]
    if not parts:
        return None
    best: dict[str, float] = {}
    for part in parts:
        best[part.attack] = max(best.get(part.attack, 0.0), part.value or 0.0)
    parts.sort(key=lambda part: (-best[part.attack], contrast_order(part.contrast)))

    def panels(inside: list[GroupFigure]) -> tuple[Panel, ...]:
        dots = [Dot(_row_name(group), group.value, group.low, group.high) for group in inside]
        title = _title(inside[0].attack, inside[0].contrast, inside[0].defense)
        return (_panel(dots, _of(inside[0], title), by),)

    return Figures(by, _CAPTIONS[by], choices_of(parts, _group_setting, panels), shape="tall")


def _row_name(group: GroupFigure) -> str:
    return f"v. client {group.group}" if group.by == "client" else group_name(group)


def _of(group: GroupFigure, title: str) -> str:
    if group.by != "client":
        return title
    whose = "the target" if group.target is None else f"client {group.target}"
    return (
        f"{shortened(group.attack)}: members of {whose} v. samples of each other client, "
        f"{shortened(defense_name(group.defense))}"
    )


def _title(attack: str, contrast: str, defense: str) -> str:
    against = contrast_name(contrast).lower()
    return f"{shortened(attack)}: members v. {against}, {shortened(defense_name(defense))}"


def _panel(dots: Sequence[Dot], title: str, by: str) -> Panel:
    names = [plotly_text(dot.name) for dot in dots]
    spec = spec_of(
        [_dots([dot for dot in dots if dot.value is not None])],
        xaxis={"title": {"text": "AUC"}, "range": _range(dots), "nticks": 8},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names,
            "range": [len(names) - 0.5, -0.5],
            "dtick": 1,
        },
        shapes=[upright(0.5)],
        height=110 + 30 * len(names),
    )
    return Panel(title, f"AUC of {title} by {by}; the table has the numbers.", spec)


def _dots(given: Sequence[Dot]) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [dot.value or 0.0 for dot in given],
        "y": [plotly_text(dot.name) for dot in given],
        "marker": {"size": 10, "color": OKABE_ITO[0], "symbol": "circle"},
        "error_x": error_bars(given, color=OKABE_ITO[0], thickness=2.0, width=4),
        "hovertemplate": "%{y}: AUC %{x:.3f}<extra></extra>",
    }


def _range(dots: Sequence[Dot]) -> list[float]:
    limits = [limit for dot in dots for limit in (dot.low, dot.high, dot.value)]
    known = [limit for limit in limits if limit is not None]
    return [min([0.45, *known]) - 0.02, max([0.75, *known]) + 0.02]


def _target_setting(figure: Figure) -> tuple[str, ...]:
    return (
        shortened(figure.attack),
        f"v. {contrast_name(figure.contrast).lower()}",
        shortened(defense_name(figure.defense)),
        f"view: {shortened(figure.view)}",
        "mean over seeds" if figure.seed is None else f"seed {figure.seed}",
    )


def _group_setting(group: GroupFigure) -> tuple[str, ...]:
    return (
        shortened(group.attack),
        f"v. {contrast_name(group.contrast).lower()}",
        shortened(defense_name(group.defense)),
        "" if group.target is None else f"target {group.target}",
        f"seed {group.seed}",
    )
