"""Panels drawn as SVG that follows the width of the page: no script, no library, and it prints.

Text is HTML at its own size beside the drawing. Paths stand in a box of 1,000 by 1,000 that is
stretched to the panel, with lines of a constant width; marks stand at percentages of it. So one
drawing serves a wide screen, a phone and paper.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.report.figures import drawing

SIDE = 1000
_LEFT, _BELOW = 12, 40
_LETTER = 6.4
"""Pixels that a letter of a tick's text takes, about."""
_DIGITS = 6
_OUTSIDE = 0.002
"""Share of an axis by which a mark may lie outside of it."""
_HUES = ("#F3F6FA", "#B3CDE6", "#5B9BD0", "#1F68AB", "#08306B")
"""One hue from light to dark for shares from 0 to 1: it reads without colour, and on both
grounds."""

Spot = tuple[float, float]
"""Shares of a panel from its upper left corner."""
Box = tuple[float, float, float, float]
"""Left, upper, right and lower end."""


class Axis(NamedTuple):
    """A scale with its ends, which places values as shares of the panel.

    Attributes:
        scale: As the panel has it.
        low: Its start; of a logarithmic axis the exponent of ten.
        high: Its end.
    """

    scale: drawing.Scale
    low: drawing.Number
    high: drawing.Number

    def at(self, value: drawing.Place) -> float:
        """Return the place of a value as a share of the axis."""
        if self.scale.names:
            counted = float(self.scale.names.index(str(value)))
        else:
            number = _number(value)
            counted = math.log10(max(number, 1e-300)) if self.scale.log else number
        return (counted - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the shares of the axis at which it is marked, with their texts."""
        names, most = self.scale.names, self.scale.count
        if names:
            step = max(1, -(-len(names) // (most or len(names))))
            return [(self.at(name), name) for name in names[::step]]
        ticks = ticks_of(self.scale, self.low, self.high)
        return [(self.at(value), text) for value, text in ticks.items()]


def drawn(panel: drawing.Panel) -> Markup:
    """Return a panel as HTML: its axes' text, and the drawing between them."""
    x, y = _axes(panel)
    across, up = x.ticks(), [(1 - at, text) for at, text in y.ticks()]
    longest = max((len(text) for _, text in up), default=0)
    left = round(_LEFT + _LETTER * min(longest, 24) + (18 if y.scale.title else 0))
    style = f"--l:{left}px;--b:{_BELOW if x.scale.title else _BELOW - 16}px"
    style += "" if panel.height is None else f";height:{panel.height}px"
    levels = [(1 - y.at(name), name) for name in y.scale.names] or up * y.scale.grid
    body = [
        *(upright("grid", at) for at, _ in across if x.scale.grid and not x.scale.names),
        *(_level("grid", at) for at, _ in levels),
        _level("axis", 1.0),
        *(upright("mark", x.at(at)) for at in panel.uprights),
        *(_level("mark", 1 - y.at(at)) for at in panel.levels),
        *(_trace(one, x, y) for one in panel.series),
        *_names(panel, x, y),
    ]
    titles = [
        Markup('<span class="{}">{}</span>').format(kind, axis.scale.title)
        for kind, axis in (("xt", x), ("yt", y))
        if axis.scale.title
    ]
    return Markup(
        '<div class="plot" role="img" aria-label="{}" style="{}"><div class="area">'
        '<svg width="100%" height="100%" overflow="visible" aria-hidden="true">{}</svg>{}</div>'
        "{}</div>"
    ).format(
        panel.summary,
        Markup(style),
        Markup("").join(body),
        tick_texts(across) + tick_texts(up, across=False),
        Markup("").join(titles),
    )


def hovering(panel: drawing.Panel) -> dict[str, object]:
    """Return a panel's values as the page's script shows them under the pointer."""
    x, y = _axes(panel)
    series = [found for one in panel.series if (found := _told(one))]
    return {"x": _scale(x), "y": _scale(y), "series": series}


def _scale(axis: Axis) -> dict[str, object]:
    scale: dict[str, object] = {"range": [_short(axis.low), _short(axis.high)]}
    if axis.scale.log:
        scale["log"] = True
    if axis.scale.names:
        scale["names"] = list(axis.scale.names)
    return scale


def _told(one: drawing.Drawn) -> dict[str, object] | None:
    """Return the values of a series with what is said of each; None if nothing is."""
    if isinstance(one, drawing.Band) or not one.hover:
        return None
    if isinstance(one, drawing.Heat):
        found: dict[str, object] = {"name": "", "said": one.hover, "beside": ""}
        return found | {"x": one.names, "y": one.names, "z": one.shares, "t": one.counts}
    name = drawing.series_name(one.name)
    found = {
        "name": name,
        "said": one.hover,
        "beside": name if one.beside is None else drawing.series_name(one.beside),
        "x": [_short(value) for value in one.x],
        "y": [_short(value) for value in one.y],
        **({"t": list(one.texts)} if one.texts else {}),
    }
    return found if one.x else None


def _short(value: object) -> object:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


# Axes.


def _axes(panel: drawing.Panel) -> tuple[Axis, Axis]:
    return (
        Axis(panel.x, *_ends(panel.x, panel.series, across=True)),
        Axis(panel.y, *_ends(panel.y, panel.series, across=False)),
    )


def _ends(
    given: drawing.Scale, series: Sequence[drawing.Drawn], *, across: bool
) -> tuple[drawing.Number, drawing.Number]:
    if given.names or given.ends:
        return given.ends or (-0.5, len(given.names) - 0.5)
    reached = [_number(value) for one in series for value in one.reach(across)]
    values = [math.log10(v) for v in reached if v > 0] if given.log else reached
    low, high = min(values, default=0.0), max(values, default=1.0)
    if given.from_zero and not given.log:
        return min(low, 0.0), high + 0.06 * ((high - min(low, 0.0)) or 1.0)
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


def ticks_of(
    given: drawing.Scale, low: drawing.Number, high: drawing.Number
) -> Mapping[drawing.Number, str]:
    """Return the values between two ends at which an axis is marked, with their texts."""
    if given.ticks is not None:
        first, last = sorted((low, high))
        return {
            value: text
            for value, text in given.ticks.items()
            if first - 1e-9 <= (math.log10(value) if given.log else value) <= last + 1e-9
        }
    if given.log:
        decades = [10.0**at for at in range(math.ceil(low), math.floor(high) + 1)]
        return {
            value: _minus(f"{value:,.0f}" if value >= 1000 else f"{value:g}") for value in decades
        }
    step = given.step or tick_step(high - low, given.count or 7, given.form)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [at * step for at in range(first, last + 1)]
    return {value: _tick_text(value, step, given.form) for value in values}


def tick_step(span: drawing.Number, most: int, form: str = "") -> float:
    """The distance between ticks: 1, 2 or 5 times a power of ten, so that they are few enough."""
    rough = abs(span) / max(most, 1) or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * size for size in (1, 2, 5, 10) if unit * size >= rough * (1 - 1e-9))
    return max(step, 1.0) if form == "d" else step


def _tick_text(value: drawing.Number, step: drawing.Number, form: str) -> str:
    scale = 100 if form == "%" else 1
    decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    # Adding zero turns a negative zero into one.
    text = f"{round(value * scale, decimals) + 0.0:,.{decimals}f}" + "%" * (scale == 100)
    return _minus(text)


def _minus(text: str) -> str:
    return text.replace("-", "−")


def tick_texts(places: Iterable[tuple[float, str]], *, across: bool = True) -> Markup:
    """Return the texts of an axis at shares of it, from the left or from the top."""
    kind, side = ("tx", "left") if across else ("ty", "top")
    form = Markup('<span class="{}" style="{}:{}%">{}</span>')
    return Markup("").join(form.format(kind, side, _percent(at), text) for at, text in places)


def upright(kind: str, at: float) -> Markup:
    """Return a line from top to bottom at a share of the width."""
    form = '<line class="{0}" x1="{1}%" x2="{1}%" y1="0" y2="100%"/>'
    return Markup(form).format(kind, _percent(at))


def _level(kind: str, at: float) -> Markup:
    form = '<line class="{0}" x1="0" x2="100%" y1="{1}%" y2="{1}%"/>'
    return Markup(form).format(kind, _percent(at))


def segment(start: Spot, end: Spot, color: str, width: drawing.Number) -> Markup:
    """Return a line between two places."""
    form = '<line x1="{}%" x2="{}%" y1="{}%" y2="{}%" stroke="{}" stroke-width="{}"/>'
    shares = map(_percent, (start[0], end[0], start[1], end[1]))
    return Markup(form).format(*shares, color, width)


# Series.


def _trace(one: drawing.Drawn, x: Axis, y: Axis) -> Markup:
    if isinstance(one, drawing.Heat):
        return _heat(one)
    parts = _areas(one, x, y) if isinstance(one, drawing.Band) else _values(one, x, y)
    inside = Markup("").join(parts)
    faint = Markup("")
    if isinstance(one, drawing.Series) and one.opacity != 1:
        faint = Markup(' opacity="{}"').format(one.opacity)
    name = drawing.series_name(one.name)
    return Markup('<g data-s="{}"{}>{}</g>').format(name, faint, inside) if inside else inside


def _values(one: drawing.Series, x: Axis, y: Axis) -> Iterator[Markup]:
    places = _spots(one, x, y)
    if one.joined:
        yield _line(places, one)
    for across, look, (left, top, right, foot) in _intervals(one, x, y):
        yield segment((left, top), (right, foot), look.color, 2 if across else 1.5)
    if one.size and (one.marks or not one.joined):
        yield from _marks(one, places)


def _spots(one: drawing.Series, x: Axis, y: Axis) -> list[Spot | None]:
    pairs = zip(one.x, one.y, strict=True)
    return [None if b is None else (x.at(a), 1 - y.at(b)) for a, b in pairs]


def _areas(one: drawing.Band, x: Axis, y: Axis) -> Iterator[Markup]:
    parts = zip(one.x, one.low, one.high, strict=True)
    for known, part in groupby(parts, key=lambda part: None not in part):
        if known:
            inside = [(x.at(a), 1 - y.at(low or 0), 1 - y.at(high or 0)) for a, low, high in part]
            lower, upper = [(a, low) for a, low, _ in inside], [(a, top) for a, _, top in inside]
            form = Markup('<path d="{}Z" fill="{}" fill-opacity="{}"/>')
            yield _box(form.format(_path(lower + upper[::-1]), one.color, one.opacity))


def _path(points: Sequence[Spot | None], *, steps: bool = False) -> str:
    found: list[str] = []
    before: tuple[str, str] | None = None
    for place in points:
        if place is None:
            before = None
            continue
        across, up = _thousandth(place[0]), _thousandth(place[1])
        if before is None:
            found.append(f"M{across} {up}")
        elif before == (across, up):
            continue
        elif steps:
            found += [f"H{across}"] * (before[0] != across) + [f"V{up}"] * (before[1] != up)
        else:
            found.append(f"L{across} {up}")
        before = (across, up)
    return "".join(found)


def _box(inside: Markup) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {0} {0}" width="100%" height="100%" preserveAspectRatio="none">{1}</svg>'
    ).format(SIDE, inside)


def _line(places: Sequence[Spot | None], one: drawing.Series) -> Markup:
    dash = drawing.DASHES[one.look.dash]
    return _box(
        Markup('<path class="line" d="{}" stroke="{}" stroke-width="{}"{}/>').format(
            _path(places, steps=one.steps),
            one.look.color,
            2,
            Markup(' stroke-dasharray="{}"').format(dash) if dash else "",
        )
    )


def _intervals(one: drawing.Series, x: Axis, y: Axis) -> Iterator[tuple[bool, drawing.Style, Box]]:
    """Yield whether an interval lies across, its style, and the shares of the panel it takes."""
    for across, limits in ((False, one.limits), (True, one.limits_across)):
        for at, (a, b, figure) in enumerate(zip(one.x, one.y, limits, strict=False)):
            if b is None or (figure.low is None and figure.high is None):
                continue
            middle, axis = (a, x) if across else (b, y)
            ends = [axis.at(middle if end is None else end) for end in (figure.low, figure.high)]
            if ends[0] == ends[1]:
                continue
            left, right = ends if across else [x.at(a)] * 2
            foot, top = [y.at(b)] * 2 if across else ends
            look = one.looks[at] if one.looks else one.look
            yield across, look, (left, 1 - top, right, 1 - foot)


def _marks(one: drawing.Series, places: Sequence[Spot | None]) -> Iterator[Markup]:
    step = max(1, -(-len(places) // one.marks)) if one.joined else 1
    for at, place in enumerate(places):
        if place is None or at % step:
            continue
        if all(-_OUTSIDE <= share <= 1 + _OUTSIDE for share in place):
            look = one.looks[at] if one.looks else one.look
            yield mark(look.symbol, look.color, place, one.size)


def mark(symbol: str, color: str, place: Spot, size: drawing.Number = 8) -> Markup:
    """A mark at shares of the panel; a symbol that ends in "-open" is hollow."""
    base, hollow = symbol.removesuffix("-open"), symbol.endswith("-open")
    if base not in drawing.MARKS:
        raise ValueError(f"no mark is called {symbol!r}; known: {', '.join(drawing.MARKS)}")
    look = Markup('fill="var(--card)" stroke="{}" stroke-width="2"' if hollow else 'fill="{}"')
    return Markup(
        '<svg x="{}%" y="{}%" overflow="visible">'
        '<use href="#m-{}" {} transform="scale({:.2g})"/></svg>'
    ).format(_percent(place[0]), _percent(place[1]), base, look.format(color), size / 8)


_SIDES = (
    *(("start", 8, -6), ("start", 9, 4), ("end", -9, 4), ("middle", 0, -10), ("middle", 0, 19)),
    *(("end", -8, -6), ("start", 8, 16), ("end", -8, 16), ("start", 8, -20), ("end", -8, -20)),
    *(("start", 8, 29), ("end", -8, 29)),
)
"""Where a name may stand beside its mark: how it is set, and by how many pixels it is moved."""

_WIDTHS = {"wide": 780, "phone": 290}
"""Pixels that a panel's area is wide, about, on a screen of each kind."""
_HIGH = 330
"""Pixels that it is high, unless a panel has its own height."""


def _names(panel: drawing.Panel, x: Axis, y: Axis) -> Iterator[Markup]:
    """Names beside marks, those of the last series first; one without room is left out."""
    dots = [one for one in panel.series if isinstance(one, drawing.Series) and not one.joined][::-1]
    spots = [(one, _spots(one, x, y)) for one in dots]
    named = [
        (one, name, place)
        for one, places in spots
        for name, place in zip(one.names, places, strict=False)
        if name and place
    ]
    shares = [shares for one in dots for _, _, shares in _intervals(one, x, y)]
    high = panel.height - _BELOW if panel.height else _HIGH
    for screen, wide in _WIDTHS.items():
        marked = [place for _, places in spots for place in places if place]
        taken = [(a * wide - 5, b * high - 5, a * wide + 5, b * high + 5) for a, b in marked]
        lines = [(a * wide, b * high, c * wide, d * high) for a, b, c, d in shares]
        for one, name, place in named:
            boxes = {side: _box_of(name, place, side, wide, high) for side in _SIDES}
            free = [side for side, box in boxes.items() if _free(box, wide, high, taken)]
            # A name across an interval is hard to read, so it is the last resort.
            clear = [side for side in free if _free(boxes[side], wide, high, lines)]
            side = next(iter((*clear, *free)), None)
            if side is not None:
                taken.append(boxes[side])
                kind = f"name {screen}" + " muted" * (one.look.color == drawing.MUTED)
                yield Markup(
                    '<g data-s="{}"><svg x="{}%" y="{}%" overflow="visible"><text class="{}" '
                    'text-anchor="{}" x="{}" y="{}" fill="{}">{}</text></svg></g>'
                ).format(
                    *(drawing.series_name(one.name), *map(_percent, place), kind, *side),
                    *(one.look.color, name),
                )


def _box_of(name: str, place: Spot, side: tuple[str, int, int], wide: int, high: int) -> Box:
    length = _LETTER * len(name)
    left = place[0] * wide + side[1] - length * {"start": 0, "end": 1, "middle": 0.5}[side[0]]
    foot = place[1] * high + side[2] + 2
    return left, foot - 12, left + length, foot


def _free(box: Box, wide: int, high: int, taken: Sequence[Box]) -> bool:
    left, top, right, foot = box
    inside = left >= 0 and right <= wide and top >= 0 and foot <= high
    return inside and not any(
        left < other[2] and other[0] < right and top < other[3] and other[1] < foot
        for other in taken
    )


def _rect(left: float, top: float, width: float, height: float, color: str) -> Markup:
    sides = (_thousandth(side) for side in (left, top, width, height))
    form = '<rect x="{}" y="{}" width="{}" height="{}" fill="{}"/>'
    return Markup(form).format(*sides, color)


def _heat(one: drawing.Heat) -> Markup:
    many, gap = len(one.names), 0.06 * one.apart
    fields, labels = [], []
    for down, row in enumerate(one.shares):
        for right, share in enumerate(row):
            left, top = (right + gap / 2) / many, (down + gap / 2) / many
            fields.append(_rect(left, top, (1 - gap) / many, (1 - gap) / many, _shade(share)))
            if one.written and share:
                labels.append(
                    Markup('<text class="{}" x="{}%" y="{}%">{}</text>').format(
                        "cell light" if share > 0.5 else "cell",
                        _percent((right + 0.5) / many),
                        _percent((down + 0.5) / many),
                        one.counts[down][right],
                    )
                )
    return _box(Markup("").join(fields)) + Markup("").join(labels)


def _shade(share: float) -> str:
    place = min(max(share, 0.0), 1.0) * (len(_HUES) - 1)
    below = min(int(place), len(_HUES) - 2)
    first, last, part = _HUES[below], _HUES[below + 1], place - below
    mixed = [
        round(int(first[at : at + 2], 16) * (1 - part) + int(last[at : at + 2], 16) * part)
        for at in (1, 3, 5)
    ]
    return "#" + "".join(f"{one:02x}" for one in mixed)


# Plain values.


def _thousandth(share: float) -> str:
    return f"{max(-9.0, min(share, 9.0)) * SIDE:.1f}".removesuffix(".0")


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".")


def _number(value: drawing.Place) -> float:
    if isinstance(value, str) or not math.isfinite(value):
        raise ValueError(f"a figure has {value!r} where a number belongs")
    return float(value)


def symbols() -> Markup:
    """The marks that all figures of a page share, each about the middle of a box of its own."""
    parts = "".join(f'<g id="m-{name}">{shape}</g>' for name, shape in drawing.MARKS.items())
    return Markup(
        '<svg class="unseen" width="0" height="0" aria-hidden="true"><defs>{}</defs></svg>'
    ).format(Markup(parts))
