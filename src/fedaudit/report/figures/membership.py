"""Figure of membership inference: ROC curves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from fedaudit.report import wording
from fedaudit.report.evidence import by_contrast, grouped
from fedaudit.report.figures import drawing
from fedaudit.report.grid import shortened
from fedaudit.results.record import Curve

MOST_TOLD_APART = 4
"""Curves in colour; eight of them could not be told apart at 1% and below."""

_GUESSING = drawing.Style(drawing.GREY, "dot", "")
_PALE = drawing.Style(drawing.MUTED, symbol="")
_LOWEST_RATE = 1e-5


def roc_figure(curves: Sequence[Curve]) -> drawing.Figures | None:
    """Receiver operating characteristics of all attacks, a panel a contrast, both axes log.

    The strongest attacks have a colour each; the others are grey, since more than a few curves
    cannot be told apart where it matters.
    """
    if not curves:
        return None
    ranked = _ranked(curves)
    told, others = ranked[:MOST_TOLD_APART], ranked[MOST_TOLD_APART:]
    looks = {attack: drawing.style(position) for position, attack in enumerate(told)}
    floor = _floor(curves)

    def panels(inside: list[Curve]) -> tuple[drawing.Panel, ...]:
        found = by_contrast(inside)
        # A mixture repeats both of its parts.
        shown = [one for one in found if one != "mixed"] or list(found)
        return tuple(_roc_panel(found[one], looks, floor) for one in shown)

    rest = "others: " + wording.listed([shortened(attack) for attack in others])
    greys = ({rest: _PALE} if others else {}) | {"guessing": _GUESSING}
    return drawing.Figures(
        "roc",
        "Logarithmic axes; dotted: guessing, and false-positive rates of 0.1% and 1%."
        + (f" In colour: the {len(told)} attacks that find most members there." if others else ""),
        drawing.choices_of(curves, _setting, panels),
        drawing.legend(looks) + drawing.legend(greys, limit=200),
        "square",
    )


def _setting(curve: Curve) -> tuple[str, ...]:
    return (
        shortened(wording.defense_name(curve.defense)),
        wording.client_name(curve.target),
        f"seed {curve.seed}",
        f"view: {shortened(curve.view)}",
    )


def _ranked(curves: Sequence[Curve]) -> list[str]:
    """Return attacks by the members that they find at 1 % and 0.1 %, most first."""
    found = grouped(curves, lambda curve: curve.attack)
    heights = {
        attack: fmean(_height(curve, rate) for curve in same for rate in (0.01, 0.001))
        for attack, same in found.items()
    }
    return sorted(heights, key=lambda attack: -heights[attack])


def _height(curve: Curve, rate: float) -> float:
    points = zip(curve.fpr, curve.tpr, strict=False)
    return max((tpr for fpr, tpr in points if fpr <= rate), default=0.0)


def _floor(curves: Iterable[Curve]) -> float:
    smallest = min((rate for curve in curves for rate in curve.fpr if rate > 0), default=1.0)
    return max(_LOWEST_RATE, min(smallest / 2, 5e-4))


def _roc_panel(
    curves: Sequence[Curve], looks: Mapping[str, drawing.Style], floor: float
) -> drawing.Panel:
    contrast = curves[0].contrast
    ticks = {1e-5: "0.001%", 1e-4: "0.01%", 1e-3: "0.1%", 1e-2: "1%", 1e-1: "10%", 1.0: "100%"}
    x, y = (
        drawing.Scale(
            f"{kind}-positive rate", "%", (math.log10(floor), 0.02), ticks=ticks, log=True
        )
        for kind in ("False", "True")
    )
    meaning = wording.contrast_meaning(contrast)
    # Grey ones first, so that they lie below.
    ordered = sorted(curves, key=lambda curve: curve.attack in looks)
    series = [_roc_curve(curve, looks.get(curve.attack, _PALE), floor) for curve in ordered]
    return drawing.Panel(
        f"Members {wording.against(contrast)}",
        f"Curves of {len(curves)} attacks telling members from {meaning}; "
        "the table of attacks gives their numbers.",
        x,
        y,
        [drawing.Series("guessing", [floor, 1], [floor, 1], _GUESSING), *series],
        uprights=(0.001, 0.01),
    )


def _roc_curve(curve: Curve, look: drawing.Style, floor: float) -> drawing.Series:
    # A logarithmic axis has no zero: such points go to the edge, below it for the TPR. A step goes
    # across before it goes up.
    fpr = [max(rate, floor) for rate in curve.fpr for _ in range(2)][1:]
    tpr = [max(rate, floor / 10) for rate in curve.tpr for _ in range(2)][:-1]
    return drawing.Series(curve.attack, fpr, tpr, look, "TPR {y:.2%} at FPR {x:.3%}", marks=5)
