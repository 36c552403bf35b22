"""The figure of receiver operating characteristics."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from fedaudit.report.drawing import (
    Figures,
    Panel,
    Spec,
    choices_of,
    hover_text,
    plotly_text,
    run_setting,
    series_line,
    spec_of,
    upright,
)
from fedaudit.report.grid import shortened
from fedaudit.report.names import contrast_meaning, contrast_name, contrast_order
from fedaudit.report.reading import Curve
from fedaudit.report.styles import Key, Style, style, swatch
from fedaudit.report.words import listed

MOST_TOLD_APART = 4
"""Curves in colour; eight of them could not be told apart at 1% and below."""

_NEUTRAL = Style("#7A7A7A", "dot", "circle")
_GREY = Style("#9AA3AD", "solid", "circle")
_OTHERS = "other attacks"
_LOWEST_RATE = 1e-5


def roc_figure(curves: Sequence[Curve]) -> Figures | None:
    """Receiver operating characteristics of all attacks, a panel a contrast, both axes log.

    The strongest attacks have a colour each; the others are grey, since more than a few curves
    cannot be told apart where it matters.
    """
    if not curves:
        return None
    ranked = _ranked(curves)
    told, others = ranked[:MOST_TOLD_APART], ranked[MOST_TOLD_APART:]
    looks = {attack: style(position) for position, attack in enumerate(told)}
    floor = _floor(curves)

    def panels(inside: list[Curve]) -> tuple[Panel, ...]:
        contrasts = sorted({curve.contrast for curve in inside}, key=contrast_order)
        return tuple(
            _roc_panel([c for c in inside if c.contrast == contrast], looks, floor)
            for contrast in contrasts
        )

    keys = [Key(shortened(attack), plotly_text(attack), swatch(looks[attack])) for attack in told]
    if others:
        names = "others: " + listed([shortened(attack) for attack in others])
        keys.append(Key(shortened(names, 200), _OTHERS, swatch(_GREY, marked=False)))
    return Figures(
        "roc",
        "True-positive against false-positive rate, both axes logarithmic, so that the left "
        "side shows what matters: members identified at few false alarms. Dotted uprights mark "
        "false-positive rates of 0.1% and 1%; the dotted diagonal is guessing. Curves are "
        "steps through observed points, not interpolated: at the far left each step is a single "
        "sample."
        + (
            f" In colour stand the {len(told)} attacks that find most members at 1% false alarms "
            "or fewer."
            if others
            else ""
        ),
        choices_of(curves, _curve_setting, panels),
        (*keys, Key("guessing", "", swatch(_NEUTRAL, marked=False))),
        "square",
    )


def _ranked(curves: Sequence[Curve]) -> list[str]:
    """The attacks by the members that they find at 1% false alarms and at 0.1%, on average."""
    found: dict[str, list[float]] = {}
    for curve in curves:
        heights = [_height(curve, rate) for rate in (0.01, 0.001)]
        found.setdefault(curve.attack, []).append(fmean(heights))
    return sorted(found, key=lambda attack: -fmean(found[attack]))


def _height(curve: Curve, rate: float) -> float:
    """The true-positive rate at a false-positive rate or just below it."""
    points = zip(curve.fpr, curve.tpr, strict=False)
    return max((tpr for fpr, tpr in points if fpr <= rate), default=0.0)


def _floor(curves: Iterable[Curve]) -> float:
    """The left end of the axes: half of the smallest rate there is, at most 0.05%."""
    smallest = min((rate for curve in curves for rate in curve.fpr if rate > 0), default=1.0)
    return max(_LOWEST_RATE, min(smallest / 2, 5e-4))


def _roc_panel(curves: list[Curve], looks: dict[str, Style], floor: float) -> Panel:
    contrast = curves[0].contrast
    axis: Spec = {
        "type": "log",
        "range": [math.log10(floor), 0.02],
        "tickvals": [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1],
        "ticktext": ["0.001%", "0.01%", "0.1%", "1%", "10%", "100%"],
    }
    chance = series_line([floor, 1], [floor, 1], _NEUTRAL, "guessing") | {"hoverinfo": "skip"}
    spec = spec_of(
        # Grey ones first, so that they lie below.
        [
            chance,
            *(_roc_curve(c, None, floor) for c in curves if c.attack not in looks),
            *(_roc_curve(c, looks[c.attack], floor) for c in curves if c.attack in looks),
        ],
        xaxis=axis | {"title": {"text": "False-positive rate"}},
        yaxis=axis | {"title": {"text": "True-positive rate"}},
        shapes=[upright(0.001), upright(0.01)],
    )
    meaning = contrast_meaning(contrast)
    return Panel(
        f"Members v. {contrast_name(contrast).lower()}",
        f"Curves of {len(curves)} attacks telling members from {meaning}; "
        "the table of attacks gives their numbers.",
        spec,
    )


def _roc_curve(curve: Curve, look: Style | None, floor: float) -> Spec:
    # A logarithmic axis has no zero: such points go to the edge, below it for the TPR.
    fpr = [max(rate, floor) for rate in curve.fpr]
    tpr = [max(rate, floor / 10) for rate in curve.tpr]
    hover = "TPR %{y:.2%} at FPR %{x:.3%}"
    if look is None:
        line = series_line(fpr, tpr, _GREY, _OTHERS, shape="hv")
        return line | {"hovertemplate": hover_text(hover, curve.attack), "opacity": 0.55}
    return series_line(fpr, tpr, look, curve.attack, shape="hv", marks=5, hover=hover)


def _curve_setting(curve: Curve) -> tuple[str, ...]:
    return (*run_setting(curve), f"view: {shortened(curve.view)}")
