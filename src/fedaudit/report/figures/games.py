"""Figures of security games: success and epsilon, kinds of games, sweeps, neuron values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedaudit.report.figures.drawing import (
    OKABE_ITO,
    Choice,
    Figures,
    LegendEntry,
    Panel,
    Spec,
    Style,
    WithLimits,
    error_bars,
    hover_text,
    see_through,
    series_line,
    series_name,
    spec_of,
    swatch,
    upright,
)
from fedaudit.report.figures.rounds import rounds_figure
from fedaudit.report.grid import shortened
from fedaudit.report.text.games import (
    NO_MECHANISM,
    Families,
    ShownPoint,
    by_signs,
    contradicted,
    epsilon,
    families,
    shown_points,
)
from fedaudit.report.words import count, percent, plural
from fedaudit.results.games import EPOCHS, PREDICTED_NEGATIVES, PointPlayed, Rate, Spread
from fedaudit.results.record import Record

_WIDE = 20.0
"""Largest over smallest epsilon from which on the axis is logarithmic."""

_SMALL = 1e-9
"""Budgets below this are drawn as none at all."""

_ASIDE = 0.08
"""Share of the axis by which the place for none is right of the largest epsilon."""

_STEPS = 80
_MOST_TICKS = 7


@dataclass(frozen=True)
class EpsilonAxis:
    """Axis of privacy budgets.

    Attributes:
        title: Of the axis.
        least: Its left end.
        most: Its right end, where budgets end.
        log: Whether it is logarithmic.
        none: What its last place is called, for points that have no such epsilon; empty if none.
        bare: Whether no point has one.
    """

    title: str
    least: float
    most: float
    log: bool
    none: str
    bare: bool

    def place(self, value: float | None, *, aside: float = 0.0) -> float:
        """Place of an epsilon; none at all stands right of all others.

        Args:
            value: The epsilon.
            aside: Share of the axis by which it is moved, so that dots do not cover each other.
        """
        return self._at(self._share(value) + aside)

    def steps(self) -> list[float]:
        """Budgets from end to end, for a curve."""
        return [self._at(step / _STEPS) for step in range(_STEPS + 1)]

    def ends(self) -> list[float]:
        """Both ends of the axis, with the place for none."""
        return [self._at(0.0), self._at(1 + 2 * _ASIDE if self.none else 1.0)]

    def spec(self) -> Spec:
        """The axis in a panel's notation."""
        left, right = (math.log10(end) if self.log else end for end in self.ends())
        room = 0.03 * (right - left)
        places = self._ticks()
        texts = [epsilon(tick) for tick in places]
        if self.none:
            places, texts = [*places, self.place(None)], [*texts, self.none]
        axis: Spec = {
            "title": {"text": self.title},
            "range": [left - room, right + (0 if self.none else room)],
            "tickmode": "array",
            "tickvals": places,
            "ticktext": texts,
        }
        return axis | ({"type": "log"} if self.log else {})

    def _share(self, value: float | None) -> float:
        if value is None:
            return 1 + _ASIDE
        if self.log:
            # Nothing, and what is too small to draw, stands at the left end.
            above = math.log10(max(value, self.least) / self.least)
            return above / math.log10(self.most / self.least)
        return (value - self.least) / (self.most - self.least)

    def _at(self, share: float) -> float:
        """A place on the axis, 0 at its left end and 1 where budgets end."""
        if not self.log:
            return self.least + share * (self.most - self.least)
        low, high = math.log10(self.least), math.log10(self.most)
        return float(10 ** (low + share * (high - low)))

    def _ticks(self) -> list[float]:
        if self.bare:
            return []
        if self.log:
            low, high = math.ceil(math.log10(self.least)), math.floor(math.log10(self.most))
            step = max(1, math.ceil((high - low + 1) / _MOST_TICKS))
            return [float(10.0**at) for at in range(low, high + 1, step)]
        span = self.most - self.least
        unit = 10.0 ** math.floor(math.log10(span / 2))
        width = next(unit * size for size in (1, 2, 5, 10) if span / (unit * size) <= _MOST_TICKS)
        return [at * width for at in range(math.floor(span / width + 1e-9) + 1)]


def epsilon_axis(values: Sequence[float | None], *, title: str, none: str) -> EpsilonAxis:
    """An axis on which all of some budgets have a place.

    Args:
        values: The budgets; None for points that have none.
        title: Of the axis.
        none: What the place of these is called.
    """
    above = [value for value in values if value is not None and value > _SMALL]
    none = none if None in values else ""
    bare = all(value is None for value in values)
    least, most = min(above, default=1.0), max(above, default=10.0)
    if most > _WIDE * least:
        least = max(min(0.5, least / 1.5), most * 1e-12)
        return EpsilonAxis(title, least, most * 1.3, True, none, bare)
    return EpsilonAxis(title, 0.0, most * 1.08, False, none, bare)


SAME_MECHANISMS = ("bitrand", "ome")
"""Mechanisms that are the paper's own."""


class Printed(NamedTuple):
    """A figure that stands in the paper's text.

    Attributes:
        mechanism: That it is of.
        label: In a legend; names the data.
        epsilons: First and last claimed epsilon that it is said of.
        adv: The success.
        said: How it is said.
    """

    mechanism: str
    label: str
    epsilons: tuple[float, float]
    adv: float
    said: str


PRINTED = (
    Printed("bitrand", "AMI paper, BitRand, CelebA: ≥ 67%", (3.0, 4.0), 0.67, "at least 67%"),
    Printed("bitrand", "AMI paper, BitRand, ImageNet: ≥ 58%", (3.0, 4.0), 0.58, "at least 58%"),
    Printed("bitrand", "AMI paper, BitRand, CIFAR-10: ≥ 62%", (3.0, 4.0), 0.62, "at least 62%"),
    Printed("bitrand", "AMI paper, BitRand, all three: ≥ 77%", (5.0, 10.0), 0.77, "at least 77%"),
    Printed("bitrand", "AMI paper, BitRand, all three: ~99%", (9.0, 10.0), 0.99, "near 99%"),
    Printed("ome", "AMI paper, OME, CelebA, CIFAR-10: ~90%", (1.0, 10.0), 0.9, "about 90%"),
    Printed("ome", "AMI paper, OME, ImageNet: > 95%", (1.0, 10.0), 0.95, "more than 95%"),
)
"""Section 5 and appendix D of the paper. Its figures draw curves without numbers."""


NEAR = 20.0
"""Epsilons up to here, which papers speak of, have a view of their own beside much larger ones."""

_NAMED, _TRUE = "against the claimed epsilon", "against the actual epsilon"

Of = Callable[[PointPlayed], float | None]


class Way(NamedTuple):
    """One way to look at points: by which epsilon, and which of them."""

    label: str
    axis: EpsilonAxis
    of: Of
    groups: Families


def named(point: PointPlayed) -> float | None:
    """The epsilon that a point's mechanism has by name."""
    return point.claimed_epsilon


def true(point: PointPlayed) -> float | None:
    """The epsilon that its mechanism keeps; None where it keeps none."""
    return point.actual_epsilon


def ways(groups: Families, *, all_placed: bool = False) -> list[Way]:
    """The axes that a reader can choose between; one only without any epsilon.

    Args:
        groups: What is drawn.
        all_placed: Leave out points that have no epsilon of the kind.
    """
    ways = [
        _way(_NAMED, "claimed ε (nats)", "none", named, groups, all_placed),
        _way(_TRUE, "actual ε (nats)", "no bound", true, groups, all_placed),
    ]
    near = {
        name: [one for one in inside if (named(one.point) or 0.0) <= NEAR]
        for name, inside in groups.items()
    }
    few = {name: inside for name, inside in near.items() if inside}
    budgets = [e for inside in few.values() for one in inside if (e := named(one.point))]
    if ways[0].axis.log and max(budgets, default=0.0) > 1 and ways[0].axis.most > 2 * NEAR:
        label = f"{_NAMED}, up to {NEAR:g}"
        ways.insert(0, _way(label, "claimed ε (nats)", "none", named, few, all_placed))
    placed = [way for way in ways if not way.axis.bare]
    return placed or [_way(_NAMED, "claimed ε (nats)", "none", named, groups, False)]


def _way(label: str, title: str, none: str, of: Of, groups: Families, all_placed: bool) -> Way:
    if all_placed:
        placed = {
            name: [one for one in inside if of(one.point) is not None]
            for name, inside in groups.items()
        }
        groups = {name: inside for name, inside in placed.items() if inside}
    values = [of(one.point) for inside in groups.values() for one in inside]
    return Way(label, epsilon_axis(values, title=title, none=none), of, groups)


def first(groups: Families, most: int) -> Families:
    """The first lines or panels, for as many as fit."""
    return dict(list(groups.items())[:most])


def dots(
    inside: Sequence[ShownPoint],
    look: Style,
    name: str,
    way: Way,
    aside: float,
    figure: Callable[[PointPlayed], Rate],
    said: str,
) -> Spec:
    """Points of one line with their intervals; those without an epsilon are not joined."""
    values = [figure(one.point) for one in inside]
    budgets = [way.of(one.point) for one in inside]
    line = series_line(
        [way.axis.place(budget, aside=aside) for budget in budgets],
        [value.value for value in values],
        look,
        name,
        marks=len(inside) + 1,
        hover=f"%{{text}}: {said} %{{y:.1%}}",
    )
    return line | {
        "mode": "markers" if None in budgets else "lines+markers",
        "text": [series_name(one.name) for one in inside],
        "error_y": error_bars(values, color=look.color),
    }


def share_axis(title: str, least: float) -> Spec:
    """An axis of shares up to all.

    Args:
        title: Of the axis.
        least: Where it starts.
    """
    return {
        "title": {"text": title},
        "tickformat": ".0%",
        "range": [least, 1.04],
        "nticks": 7,
    }


def left_out(number: int, kind: str) -> str:
    """That some did not fit; empty where all did.

    Args:
        number: How many did not.
        kind: What they are: "line" or "panel".
    """
    if number <= 0:
        return ""
    return f" {count(number)} more {kind}{'s' * (number > 1)} would not fit; the table has them."


_TARGET = Style(OKABE_ITO[1], "solid", "circle")
_OTHERS = Style(OKABE_ITO[0], "dash", "square")


def spread_figure(record: Record) -> Figures | None:
    """Spread of the neuron's values for the target and for others; a choice a point."""
    shown = [one for one in shown_points(record.games) if one.point.spread is not None]
    choices = tuple(
        Choice(shortened(one.name, 80), (_spread_panel(shortened(one.name), one.point.spread),))
        for one in shown
        if one.point.spread is not None
    )
    if not choices:
        return None
    return Figures(
        "games-spread",
        "Values of the first target’s neuron on fresh randomised copies of the target and on other "
        "records, as a share of each. The neuron fires right of the dotted line at zero. The less "
        "the two overlap there, the surer the server; one record of the others right of it is "
        "enough to spoil a batch.",
        choices,
        (
            LegendEntry("The target", "The target", swatch(_TARGET, marked=False)),
            LegendEntry("Other records", "Other records", swatch(_OTHERS, marked=False)),
        ),
    )


def _spread_panel(name: str, spread: Spread) -> Panel:
    traces = [
        outline(spread.edges, amounts, look, said)
        for amounts, look, said in (
            (spread.of_others, _OTHERS, "Other records"),
            (spread.of_target, _TARGET, "The target"),
        )
        if sum(amounts)
    ]
    spec = spec_of(
        traces,
        xaxis={"title": {"text": "Value of the neuron"}, "nticks": 7},
        yaxis={"title": {"text": "Share"}, "tickformat": ".0%", "rangemode": "tozero", "nticks": 5},
        shapes=[upright(0.0)],
    )
    fired = [
        percent(_right_of_zero(spread.edges, amounts))
        for amounts in (spread.of_target, spread.of_others)
    ]
    summary = (
        f"Values of the neuron for {name}: about {fired[0]} of the target’s copies and {fired[1]} "
        "of other records above zero."
    )
    return Panel(name, summary, spec)


def outline(edges: Sequence[float], amounts: Sequence[int], look: Style, name: str) -> Spec:
    """Bins as one stepped outline that starts and ends on the axis."""
    shares = [amount / sum(amounts) for amount in amounts]
    x, y = [edges[0], *edges], [0.0, *shares, 0.0]
    line = series_line(x, y, look, name, shape="hv", hover="%{y:.1%} from %{x:.3g} on")
    return line | {"fill": "tozeroy", "fillcolor": see_through(look.color, 0.14)}


def _right_of_zero(edges: Sequence[float], amounts: Sequence[int]) -> float:
    above = sum(a for left, a in zip(edges, amounts, strict=False) if left >= 0)
    return above / sum(amounts) if sum(amounts) else 0.0


MOST_LINES_OF_SUCCESS = 14
"""Lines of one figure; the table has the others."""

_HEIGHT = 400

_GUESS = Style("#7A7A7A", "dot", "circle")
_CEILING = Style("#7A7A7A", "solid", "circle")
_REFUTED = Style("#C3362B", "solid", "circle")
_PRINTED = Style("#8A6FB0", "solid", "star")

_COLORS = OKABE_ITO[:6]
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star")
_GUESSING, _HONEST, _WRONG = "Guessing", "Most under an honest ε", "Contradicts the claimed ε"

_PAPER_CAPTION = (
    " Marks of the AMI paper are what its text says, for its own data, batches and neurons, which "
    "are not those here: CelebA (batches of 20), ImageNet (64) and CIFAR-10 (100). ≥ is a lower "
    "end. The paper’s published code gives all records of a batch the same noise under BitRand, "
    "as “shared mask” does."
)


def success_figure(groups: Families) -> Figures:
    """Adv against the claimed epsilon, or against the true one; a line for each mechanism."""
    drawn = first(groups, MOST_LINES_OF_SUCCESS)
    looks = _looks(drawn)
    points = [one.point for inside in drawn.values() for one in inside]
    looked = ways(drawn)
    papers = _papers(points, looked[0].axis)
    choices = tuple(Choice(way.label, (_success_panel(way, looks, papers),)) for way in looked)
    keys = [
        LegendEntry(shortened(name), series_name(name), swatch(look))
        for name, look in looks.items()
    ]
    keys.append(LegendEntry(_HONEST, _HONEST, swatch(_CEILING, marked=False)))
    keys.append(LegendEntry(_GUESSING, _GUESSING, swatch(_GUESS, marked=False)))
    if any(contradicted(point) for point in points):
        keys.append(LegendEntry(_WRONG, _WRONG, swatch(_REFUTED, lined=False)))
    for place, paper in enumerate(papers):
        keys.append(LegendEntry(paper.label, series_name(paper.label), swatch(_paper_look(place))))
    return Figures(
        "games-success",
        "How often the server is right (Adv), with its 95% interval. The grey line is the most "
        "that any server reaches against a mechanism that keeps the epsilon on the axis, "
        "e^ε / (1 + e^ε). Without a mechanism there is no epsilon: that success is a level across "
        "the figure. Points at one epsilon are set a little apart."
        + (_PAPER_CAPTION if papers else "")
        + left_out(len(groups) - len(drawn), "line"),
        choices,
        tuple(keys),
    )


def _looks(names: Families) -> dict[str, Style]:
    """Masks by dash, mechanisms by colour, both by marker."""
    colors: dict[str, int] = {}
    looks = {}
    for place, (name, inside) in enumerate(names.items()):
        point = inside[0].point
        base = name.replace(", shared mask", "", 1) if point.shared_mask else name
        at = colors.setdefault(base, len(colors))
        dash = ("solid", "dot", "dashdot")[at // len(_COLORS) % 3]
        if point.shared_mask or point.mechanism == NO_MECHANISM:
            dash = "dash" if point.shared_mask else "longdash"
        looks[name] = Style(_COLORS[at % len(_COLORS)], dash, _SYMBOLS[place % len(_SYMBOLS)])
    return looks


def _success_panel(way: Way, looks: dict[str, Style], papers: Sequence[Printed]) -> Panel:
    axis, drawn = way.axis, way.groups
    printed = papers if way.of is named else ()
    traces = [
        series_line(axis.ends(), [0.5, 0.5], _GUESS, _GUESSING, hover="%{y:.0%}"),
        *([] if axis.bare else [_ceiling(axis)]),
        *(_printed(paper, place, axis) for place, paper in enumerate(printed)),
    ]
    middle, apart = (len(drawn) - 1) / 2, min(0.012, 0.05 / len(drawn))
    for place, (name, inside) in enumerate(drawn.items()):
        aside = (place - middle) * apart
        if inside[0].point.mechanism == NO_MECHANISM:
            traces += [
                series_line(axis.ends(), [one.point.adv.value] * 2, looks[name], name)
                | {"hoverinfo": "skip"}
                for one in inside
            ]
        traces.append(dots(inside, looks[name], name, way, aside, _adv, "right in"))
        traces += _rings(inside, way, aside)
    low = min(one.point.adv.low for inside in drawn.values() for one in inside)
    yaxis = share_axis("Right (Adv)", min(0.38, low - 0.03))
    spec = spec_of(traces, xaxis=axis.spec(), yaxis=yaxis, height=_HEIGHT)
    return Panel("", f"Success of the server, {len(drawn)} lines; the table has the numbers.", spec)


def _rings(inside: Sequence[ShownPoint], way: Way, aside: float) -> list[Spec]:
    """A ring round each point that contradicts its epsilon."""
    wrong = [one for one in inside if contradicted(one.point)]
    if not wrong:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": _WRONG,
            "x": [way.axis.place(way.of(one.point), aside=aside) for one in wrong],
            "y": [one.point.adv.value for one in wrong],
            "text": [f"proves ε ≥ {epsilon(one.point.proven_epsilon)}" for one in wrong],
            "marker": {
                "symbol": "circle-open",
                "size": 17,
                "color": _REFUTED.color,
                "line": {"width": 3},
            },
            "hovertemplate": hover_text("%{text}", _WRONG),
        }
    ]


def _ceiling(axis: EpsilonAxis) -> Spec:
    steps = axis.steps()
    most = [1 / (1 + math.exp(-step)) for step in steps]
    return series_line(steps, most, _CEILING, _HONEST, hover="at most %{y:.2%}")


def _papers(points: Sequence[PointPlayed], axis: EpsilonAxis) -> tuple[Printed, ...]:
    """Marks of the paper for the mechanisms that were played, as far as the axis goes."""
    there = {
        mechanism
        for mechanism in SAME_MECHANISMS
        if any(p.mechanism == mechanism and p.claimed_epsilon is not None for p in points)
    }
    reach = axis.most if there else 0.0
    return tuple(one for one in PRINTED if one.mechanism in there and one.epsilons[0] < reach)


def _printed(paper: Printed, place: int, axis: EpsilonAxis) -> Spec:
    line = series_line(
        [axis.place(min(at, axis.most)) for at in paper.epsilons],
        [paper.adv] * 2,
        _paper_look(place),
        paper.label,
        marks=2,
        hover=f"{paper.said} (ε {paper.epsilons[0]:g} to {paper.epsilons[1]:g})",
    )
    thin = {"color": _PRINTED.color, "dash": _paper_look(place).dash, "width": 1.2}
    return line | {"line": thin, "opacity": 0.85}


def _paper_look(place: int) -> Style:
    dashes = ("solid", "dash", "dot", "dashdot", "longdash")
    symbols = ("star", "triangle-up", "square", "diamond", "triangle-down", "circle")
    return _PRINTED._replace(dash=dashes[place % len(dashes)], symbol=symbols[place % len(symbols)])


def _adv(point: PointPlayed) -> Rate:
    return point.adv


LEAST_VALUES = 3
"""Values of a setting from which on it is drawn: two are read in the table."""

MOST_LINES = 6
MOST_SETTINGS = 8

_MUCH = 20.0
"""Largest over smallest value from which on the axis is logarithmic."""

_EPSILONS = ("mechanism.options.epsilon", "mechanism.options.nominal_epsilon")
_ADV = Style(OKABE_ITO[0], "solid", "circle")
_TPR = Style(OKABE_ITO[1], "dash", "square")
_TNR = Style(OKABE_ITO[2], "dot", "diamond")

Figure = Callable[[PointPlayed], WithLimits | None]


class Placed(NamedTuple):
    """A point where its setting puts it."""

    at: float
    point: PointPlayed


class Sweep(NamedTuple):
    """A setting with the points that differ in nothing else.

    Attributes:
        setting: Its dotted name.
        lines: Points in the order of its values; by the other settings in which they differ from
            the study, as words.
    """

    setting: str
    lines: dict[str, list[Placed]]

    @property
    def short(self) -> str:
        """The setting without its sections."""
        return shortened(self.setting.rpartition(".")[2], 40)


def sweep_figure(points: Sequence[PointPlayed], config: object) -> Figures | None:
    """Success against each setting that was turned through several numbers; None for none.

    Epsilons are not among them: they have a figure of their own.
    """
    found = sweeps(points, config)[:MOST_SETTINGS]
    choices = [Choice(f"Success against {one.short}", (_sweep_panel(one),)) for one in found]
    choices += [
        Choice(f"Epochs against {one.short}", (panel,))
        for one in found
        if (panel := _epochs_panel(one)) is not None
    ]
    if not choices:
        return None
    return Figures(
        "games-sweeps",
        "Points that differ in one setting only, with 95% intervals. Success: how often the server "
        "is right (Adv); with one line also both kinds of games apart. Epochs: how long neurons "
        "were trained until they told validation records apart, mean over targets.",
        tuple(choices),
        (
            LegendEntry("Adv", "Adv", swatch(_ADV)),
            LegendEntry("TPR: “in” where the target is in the batch", "TPR", swatch(_TPR)),
            LegendEntry("TNR: “out” where it is not", "TNR", swatch(_TNR)),
        )
        if any(len(one.lines) == 1 for one in found)
        else (),
    )


def sweeps(points: Sequence[PointPlayed], config: object) -> list[Sweep]:
    """The settings that take several numbers while all others stay as they are."""
    names = list(dict.fromkeys(name for point in points for name in point.settings))
    found = [
        _sweep(points, name, _number(_own(config, name))) for name in names if name not in _EPSILONS
    ]
    return [one for one in found if one.lines]


def _sweep(points: Sequence[PointPlayed], name: str, own: float | None) -> Sweep:
    lines: dict[str, list[Placed]] = {}
    for point in points:
        at = _number(point.settings[name]) if name in point.settings else own
        if at is None:
            continue
        others = sorted((key, value) for key, value in point.settings.items() if key != name)
        words = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in others)
        lines.setdefault(words, []).append(Placed(at, point))
    long = {
        words: sorted(placed, key=lambda one: one.at)
        for words, placed in lines.items()
        if len({one.at for one in placed}) >= LEAST_VALUES
    }
    return Sweep(name, dict(list(long.items())[:MOST_LINES]))


def _own(config: object, name: str) -> object:
    """The study's own value of a setting; None where it has none."""
    for part in name.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _sweep_panel(one: Sweep) -> Panel:
    if len(one.lines) == 1:
        (placed,) = one.lines.values()
        kinds: tuple[tuple[str, Style, Figure], ...] = (
            ("TNR", _TNR, lambda point: point.tnr),
            ("TPR", _TPR, lambda point: point.tpr),
            ("Adv", _ADV, lambda point: point.adv),
        )
        traces = [_line(placed, look, name, figure, "%{y:.1%}") for name, look, figure in kinds]
    else:
        traces = [
            _line(placed, _look(at), words or "as it is", lambda point: point.adv, "%{y:.1%}")
            for at, (words, placed) in enumerate(one.lines.items())
        ]
    played = [at.point for placed in one.lines.values() for at in placed]
    least = min(0.5, *(f.low for p in played for f in (p.adv, p.tpr, p.tnr))) - 0.04
    yaxis: Spec = {"title": {"text": "Share of games"}, "tickformat": ".0%", "range": [least, 1.04]}
    return _panel(one, traces, yaxis, "Success")


def _epochs_panel(one: Sweep) -> Panel | None:
    known = {
        words: [at for at in placed if at.point.training is not None]
        for words, placed in one.lines.items()
    }
    traces = [
        _line(
            placed,
            _look(at),
            words or "as it is",
            lambda point: point.estimate(EPOCHS),
            "%{y:,.0f}",
        )
        for at, (words, placed) in enumerate(known.items())
        if len(placed) >= LEAST_VALUES
    ]
    if not traces:
        return None
    yaxis: Spec = {"title": {"text": "Epochs"}, "rangemode": "tozero", "nticks": 6}
    return _panel(one, traces, yaxis, "Epochs of training")


def _epochs(point: PointPlayed) -> WithLimits | None:
    return point.estimate(EPOCHS)


def _panel(one: Sweep, traces: Sequence[Spec], yaxis: Spec, what: str) -> Panel:
    values = sorted({at.at for placed in one.lines.values() for at in placed})
    much = values[0] > 0 and values[-1] > _MUCH * values[0]
    xaxis: Spec = {"title": {"text": one.short}}
    if much:
        # Only values that were played: a logarithmic axis has few numbers of its own.
        xaxis |= {"type": "log", "tickvals": values, "ticktext": [f"{v:g}" for v in values]}
    summary = f"{what} against {one.short}, {plural(len(one.lines), 'line')}."
    return Panel("", summary, spec_of(traces, xaxis=xaxis, yaxis=yaxis, height=380))


def _line(placed: Sequence[Placed], look: Style, name: str, figure: Figure, hover: str) -> Spec:
    shown = [(one.at, found) for one in placed if (found := figure(one.point)) is not None]
    line = series_line(
        [at for at, _ in shown],
        [found.value for _, found in shown],
        look,
        name,
        marks=len(shown),
        hover=f"%{{x:g}}: {hover}",
    )
    return line | {"error_y": error_bars([found for _, found in shown], color=look.color)}


def _look(place: int) -> Style:
    return Style(OKABE_ITO[place % 6], "solid", _SYMBOLS[place % len(_SYMBOLS)])


MOST_PANELS = 12

_TPR_KIND = Style(OKABE_ITO[1], "solid", "circle")
_TNR_KIND = Style(OKABE_ITO[0], "dash", "square")
_PREDICTED = Style("#7A7A7A", "dot", "diamond")


def game_figures(record: Record) -> dict[str, Figures]:
    """Every figure that a record of games has data for, by its name in the document."""
    groups = families(by_signs(shown_points(record.games)))
    points = [one.point for inside in groups.values() for one in inside]
    sweep = sweep_figure(points, record.config)
    found = [sweep, spread_figure(record), rounds_figure(record)]
    budgets = [one for point in points for one in (named(point), true(point))]
    # Without any epsilon there is nothing to draw against but what was turned.
    if (points and sweep is None) or any(one is not None for one in budgets):
        found += [success_figure(groups), kinds_figure(groups)]
    return {figure.ident: figure for figure in found if figure is not None}


def kinds_figure(groups: Families) -> Figures:
    """TPR and TNR against epsilon, a panel for each mechanism."""
    drawn = first(groups, MOST_PANELS)
    choices = tuple(
        Choice(way.label, tuple(_kinds_panel(name, way) for name in way.groups))
        for way in ways(drawn, all_placed=True)
    )
    return Figures(
        "games-kinds",
        "Both kinds of games apart, with their 95% intervals. A TPR of 100% beside a TNR of 0% is "
        "a server that always says “in”. The dotted line is the TNR if each target’s neuron "
        "fired for every other record by itself, as often as it did; the TNR is above it where "
        "records of a batch share their noise. Points without such an "
        "epsilon stand in the table only." + left_out(len(groups) - len(drawn), "panel"),
        choices,
        (
            LegendEntry("TPR: “in” where the target is in the batch", "TPR", swatch(_TPR_KIND)),
            LegendEntry("TNR: “out” where it is not", "TNR", swatch(_TNR_KIND)),
            LegendEntry("Predicted TNR", "Predicted TNR", swatch(_PREDICTED)),
        ),
    )


def _kinds_panel(name: str, way: Way) -> Panel:
    inside = way.groups[name]
    predicted = series_line(
        [way.axis.place(way.of(one.point)) for one in inside],
        [one.point.figure(PREDICTED_NEGATIVES) for one in inside],
        _PREDICTED,
        "Predicted TNR",
        marks=20,
        hover="%{y:.1%}",
    )
    traces = [
        predicted,
        dots(inside, _TNR_KIND, "TNR", way, 0.006, lambda point: point.tnr, "TNR"),
        dots(inside, _TPR_KIND, "TPR", way, -0.006, lambda point: point.tpr, "TPR"),
    ]
    yaxis = share_axis("Share of games", -0.04)
    spec = spec_of(traces, xaxis=way.axis.spec(), yaxis=yaxis)
    return Panel(shortened(name), f"TPR and TNR of {shortened(name)}.", spec)
