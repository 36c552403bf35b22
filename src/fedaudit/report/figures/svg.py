"""Panels drawn as SVG that follows the width of the page: no script, no library, and it prints.

Text is HTML at its own size beside the drawing. Paths stand in a box of 1,000 by 1,000 that is
stretched to the panel, with lines of a constant width; marks stand at percentages of it. So one
drawing serves a wide screen, a phone and paper.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup

from fedaudit.report.figures.drawing import DASHES, MARKS, Panel, Spec

SIDE = 1000
_LEFT, _BELOW, _RIGHT = 12, 40, 14
_LETTER = 6.4
"""Pixels that a letter of a tick's text takes, about."""
_DIGITS = 6
_OUTSIDE = 0.002
"""Share of an axis by which a mark may lie outside of it."""
_NUMBERS = (int, float)


class Axis(NamedTuple):
    """A scale from a figure's own values to shares of the panel.

    Attributes:
        low: Its start; of a logarithmic axis the exponent of ten.
        high: Its end.
        log: Whether it is logarithmic.
        names: Of a category axis, what stands at 0, 1, 2, ...
        ticks: Values at which it is marked.
        texts: The text at each.
        title: What it measures.
        grid: Whether lines cross the panel at its ticks.
    """

    low: float
    high: float
    log: bool
    names: tuple[str, ...]
    ticks: tuple[float, ...]
    texts: tuple[str, ...]
    title: str
    grid: bool

    def at(self, value: object) -> float:
        """Place of a value as a share of the axis."""
        return (self.of(value) - self.low) / ((self.high - self.low) or 1.0)

    def of(self, value: object) -> float:
        """A value as the axis counts: the place of a category, the exponent of a logarithm."""
        if self.names:
            return float(self.names.index(str(value)))
        number = _number(value)
        return math.log10(max(number, 1e-300)) if self.log else number


def drawn(panel: Panel) -> Markup:
    """A panel as HTML: its axes' text, and the drawing between them."""
    spec = panel.spec
    traces, layout = _list(spec, "data"), _dict(spec, "layout")
    x, y = _axis(traces, layout, "x"), _axis(traces, layout, "y")
    height = layout.get("height")
    style = f"--l:{_left(y)}px;--b:{_BELOW if x.title else _BELOW - 16}px"
    if height:
        style += f";height:{_number(height):.0f}px"
    body = Markup("").join(
        [
            *_grid(x, y),
            *(_shape(shape, x, y) for shape in _list(layout, "shapes")),
            *(
                _trace(trace, x, y, traces[at - 1] if at else None)
                for at, trace in enumerate(traces)
            ),
        ]
    )
    return Markup(
        '<div class="plot" role="img" aria-label="{}" style="{}"><div class="area">'
        '<svg width="100%" height="100%" overflow="visible" aria-hidden="true">{}</svg>{}</div>'
        "{}</div>"
    ).format(panel.summary, Markup(style), body, _texts(x, y), _titles(x, y))


def hovering(panel: Panel) -> dict[str, object]:
    """A panel's values as the page's script tells them under the pointer."""
    traces, layout = _list(panel.spec, "data"), _dict(panel.spec, "layout")
    x, y = _axis(traces, layout, "x"), _axis(traces, layout, "y")
    series = [
        found for trace in traces if trace.get("hoverinfo") != "skip" and (found := _told(trace))
    ]
    return {"x": _scale(x), "y": _scale(y), "series": series}


def _scale(axis: Axis) -> dict[str, object]:
    scale: dict[str, object] = {"range": [_short(axis.low), _short(axis.high)]}
    if axis.log:
        scale["log"] = True
    if axis.names:
        scale["names"] = list(axis.names)
    return scale


def _told(trace: Spec) -> dict[str, object] | None:
    """A trace's values with what is said of each; None where nothing is."""
    template = str(trace.get("hovertemplate", ""))
    if not template:
        return None
    said, _, rest = template.partition("<extra>")
    found: dict[str, object] = {
        "name": str(trace.get("name", "")),
        "said": said,
        "beside": rest.removesuffix("</extra>"),
    }
    if trace.get("type") == "heatmap":
        return found | {"x": trace["x"], "y": trace["y"], "z": trace["z"], "t": trace["hovertext"]}
    values = [_short(value) for value in _values(trace, "y")]
    found |= {"x": [_short(value) for value in _values(trace, "x")], "y": values}
    if trace.get("type") == "bar":
        pairs = zip(_values(trace, "base"), _values(trace, "y"), strict=True)
        found["top"] = [_short(_number(low) + _number(size) / 2) for low, size in pairs]
    texts = trace.get("text")
    return found | ({"t": texts} if isinstance(texts, list) else {})


def _short(value: object) -> object:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


# Axes.


def _axis(traces: Sequence[Spec], layout: Spec, name: str) -> Axis:
    given = _dict(layout, f"{name}axis")
    names = _categories(traces, given, name)
    if names:
        turned = given.get("autorange") == "reversed"
        ends = _ends(given, (-0.5, len(names) - 0.5))
        low, high = ends[::-1] if turned else ends
        step = max(1, -(-len(names) // int(_number(given.get("nticks", len(names))))))
        ticks = tuple(float(place) for place in range(0, len(names), step))
        texts = tuple(names[int(place)] for place in ticks)
        return Axis(low, high, False, names, ticks, texts, _title(given), False)
    log = given.get("type") == "log"
    low, high = _ends(given, _span(traces, given, name, log=log))
    ticks, texts = _ticks(given, low, high, log=log)
    grid = given.get("showgrid") is not False
    return Axis(low, high, log, (), ticks, texts, _title(given), grid)


def _categories(traces: Sequence[Spec], given: Spec, name: str) -> tuple[str, ...]:
    if given.get("type") != "category":
        return ()
    listed = given.get("categoryarray")
    if isinstance(listed, list):
        return tuple(str(one) for one in listed)
    return tuple(dict.fromkeys(str(one) for trace in traces for one in _values(trace, name)))


def _ends(given: Spec, otherwise: tuple[float, float]) -> tuple[float, float]:
    found = given.get("range")
    if isinstance(found, list):
        return _number(found[0]), _number(found[1])
    return otherwise


def _span(traces: Sequence[Spec], given: Spec, name: str, *, log: bool) -> tuple[float, float]:
    """Range that an axis has to hold, with a little room."""
    values = [
        math.log10(value) if log else value
        for trace in traces
        for value in _reached(trace, name)
        if not log or value > 0
    ]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if given.get("rangemode") == "tozero" and not log:
        return min(low, 0.0), high + 0.06 * ((high - min(low, 0.0)) or 1.0)
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


def _reached(trace: Spec, name: str) -> list[float]:
    values = [_number(value) for value in _values(trace, name) if value is not None]
    bars = trace.get(f"error_{name}")
    if not isinstance(bars, dict):
        return values
    up = [value + _number(more) for value, more in zip(values, _values(bars, "array"), strict=True)]
    less = _values(bars, "arrayminus")
    return [*up, *(value - _number(one) for value, one in zip(values, less, strict=True))]


def _ticks(
    given: Spec, low: float, high: float, *, log: bool
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    form = str(given.get("tickformat", ""))
    if "tickvals" in given:
        values = [_number(value) for value in _values(given, "tickvals")]
        said = given.get("ticktext")
        texts = (
            [str(t) for t in said] if isinstance(said, list) else [_text(v, form) for v in values]
        )
        ends = sorted((low, high))
        kept = [
            (value, text)
            for value, text in zip(values, texts, strict=True)
            if ends[0] - 1e-9 <= (math.log10(value) if log else value) <= ends[1] + 1e-9
        ]
        return tuple(value for value, _ in kept), tuple(text for _, text in kept)
    if log:
        decades = range(math.ceil(low), math.floor(high) + 1)
        return tuple(10.0**at for at in decades), tuple(_text(10.0**at, form) for at in decades)
    most = int(_number(given.get("nticks", 7)))
    step = _number(given["dtick"]) if "dtick" in given else _step(high - low, most, form)
    first = math.ceil(low / step - 1e-9)
    values = [at * step for at in range(first, math.floor(high / step + 1e-9) + 1)]
    return tuple(values), tuple(_tick_text(value, step, form) for value in values)


def _step(span: float, most: int, form: str) -> float:
    rough = abs(span) / max(most, 1) or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * size for size in (1, 2, 5, 10) if unit * size >= rough * (1 - 1e-9))
    return max(step, 1.0) if form == "d" else step


def _tick_text(value: float, step: float, form: str) -> str:
    """A tick with as many decimals as its step needs."""
    scale = 100 if "%" in form else 1
    decimals = max(0, -math.floor(math.log10(step * scale) + 1e-9))
    # Adding zero turns a negative zero into one.
    text = f"{round(value * scale, decimals) + 0.0:,.{decimals}f}" + "%" * (scale == 100)
    return _minus(text)


def _text(value: float, form: str) -> str:
    if "%" in form:
        return f"{100 * value:g}%"
    return _minus(f"{value:,.0f}" if form == "d" or abs(value) >= 1000 else f"{value:g}")


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _left(y: Axis) -> int:
    longest = max((len(text) for text in y.texts), default=0)
    return round(_LEFT + _LETTER * min(longest, 24) + (18 if y.title else 0))


def _title(given: Spec) -> str:
    title = given.get("title")
    return str(title.get("text", "")) if isinstance(title, dict) else ""


def _texts(x: Axis, y: Axis) -> Markup:
    across = [
        Markup('<span class="tx" style="left:{}%">{}</span>').format(_percent(x.at(t)), text)
        for t, text in _placed(x)
    ]
    up = [
        Markup('<span class="ty" style="top:{}%">{}</span>').format(_percent(1 - y.at(t)), text)
        for t, text in _placed(y)
    ]
    return Markup("").join([*across, *up])


def _placed(axis: Axis) -> list[tuple[object, str]]:
    if axis.names:
        return [
            (axis.names[int(at)], text) for at, text in zip(axis.ticks, axis.texts, strict=True)
        ]
    return list(zip(axis.ticks, axis.texts, strict=True))


def _titles(x: Axis, y: Axis) -> Markup:
    found = [Markup('<span class="xt">{}</span>').format(x.title)] if x.title else []
    found += [Markup('<span class="yt">{}</span>').format(y.title)] if y.title else []
    return Markup("").join(found)


def _grid(x: Axis, y: Axis) -> Iterable[Markup]:
    for tick in x.ticks if x.grid and not x.names else ():
        at = _percent(x.at(tick))
        yield Markup('<line class="grid" x1="{0}%" x2="{0}%" y1="0" y2="100%"/>').format(at)
    for tick in y.ticks if y.grid and not y.names else ():
        at = _percent(1 - y.at(tick))
        yield Markup('<line class="grid" x1="0" x2="100%" y1="{0}%" y2="{0}%"/>').format(at)
    for place in y.names:
        at = _percent(1 - y.at(place))
        yield Markup('<line class="grid" x1="0" x2="100%" y1="{0}%" y2="{0}%"/>').format(at)
    yield Markup('<line class="axis" x1="0" x2="100%" y1="100%" y2="100%"/>')


def _shape(shape: Spec, x: Axis, y: Axis) -> Markup:
    """A reference line across the panel."""
    upright = shape.get("yref") == "paper"
    if upright:
        at = _percent(x.at(shape["x0"]))
        return Markup('<line class="mark" x1="{0}%" x2="{0}%" y1="0" y2="100%"/>').format(at)
    at = _percent(1 - y.at(shape["y0"]))
    return Markup('<line class="mark" x1="0" x2="100%" y1="{0}%" y2="{0}%"/>').format(at)


# Traces.


def _trace(trace: Spec, x: Axis, y: Axis, before: Spec | None) -> Markup:
    kind = trace.get("type")
    if kind == "heatmap":
        return _heat(trace, x, y)
    if kind not in ("bar", "scatter"):
        raise ValueError(f"no drawing for a trace of type {kind!r}; known: scatter, bar, heatmap")
    inside = _bars(trace, x, y) if kind == "bar" else _scatter(trace, x, y, before)
    name = str(trace.get("name", ""))
    faint = Markup(' opacity="{}"').format(trace["opacity"]) if "opacity" in trace else Markup("")
    return Markup('<g data-s="{}"{}>{}</g>').format(name, faint, inside) if inside else inside


def _scatter(trace: Spec, x: Axis, y: Axis, before: Spec | None) -> Markup:
    mode = str(trace.get("mode", "lines"))
    points = _places(trace, x, y)
    parts: list[Markup] = []
    line = _dict(trace, "line")
    fill = trace.get("fill")
    if fill == "tonexty" and before is not None:
        parts += _between(_places(before, x, y), points, str(trace["fillcolor"]))
    elif fill:
        parts.append(_filled(trace, points, y))
    if "lines" in mode and line.get("width") != 0:
        parts.append(_line(points, line))
    if isinstance(trace.get("error_y"), dict) or isinstance(trace.get("error_x"), dict):
        parts += _whiskers(trace, x, y)
    if "markers" in mode:
        parts += _marks(trace, points)
    return Markup("").join(parts)


Place = tuple[float, float]


def _places(trace: Spec, x: Axis, y: Axis) -> list[Place | None]:
    """Points of a trace as shares of the panel from its upper left corner."""
    return [
        None if a is None or b is None else (x.at(a), 1 - y.at(b))
        for a, b in zip(_values(trace, "x"), _values(trace, "y"), strict=True)
    ]


def _between(
    low: Sequence[Place | None], high: Sequence[Place | None], color: str
) -> Iterable[Markup]:
    """The area between two lines, in parts where either has a gap."""
    pairs = list(zip(low, high, strict=True))
    for known, part in groupby(pairs, key=lambda pair: None not in pair):
        if known:
            inside = list(part)
            outline = [*(one for one, _ in inside), *(other for _, other in inside[::-1])]
            yield _box(Markup('<path d="{}Z" fill="{}"/>').format(_path(outline), color))


def _path(points: Sequence[Place | None], *, steps: bool = False) -> str:
    """Straight or stepped lines between places, broken where there is none."""
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
    """Paths in a box that is stretched to the panel, and cut off at its edges."""
    return Markup(
        '<svg viewBox="0 0 {0} {0}" width="100%" height="100%" preserveAspectRatio="none">{1}</svg>'
    ).format(SIDE, inside)


def _line(points: Sequence[Place | None], line: Spec) -> Markup:
    dash = DASHES[str(line.get("dash", "solid"))]
    return _box(
        Markup('<path class="line" d="{}" stroke="{}" stroke-width="{}"{}/>').format(
            _path(points, steps=line.get("shape") == "hv"),
            line.get("color", "#7A7A7A"),
            line.get("width", 2),
            Markup(' stroke-dasharray="{}"').format(dash) if dash else "",
        )
    )


def _filled(trace: Spec, points: Sequence[Place | None], y: Axis) -> Markup:
    steps = _dict(trace, "line").get("shape") == "hv"
    path = _path(points, steps=steps)
    if trace["fill"] == "tozeroy":
        known = [place for place in points if place is not None]
        ground = _thousandth(1 - y.at(max(0.0, 10**y.low if y.log else y.low)))
        path += f"V{ground}H{_thousandth(known[0][0])}"
    return _box(Markup('<path d="{}Z" fill="{}"/>').format(path, trace["fillcolor"]))


def _whiskers(trace: Spec, x: Axis, y: Axis) -> list[Markup]:
    found = []
    for name, axis in (("x", x), ("y", y)):
        bars = trace.get(f"error_{name}")
        if not isinstance(bars, dict):
            continue
        ends = zip(
            _values(trace, "x"),
            _values(trace, "y"),
            _values(bars, "arrayminus"),
            _values(bars, "array"),
            strict=True,
        )
        for a, b, less, more in ends:
            if a is None or b is None or not (_number(less) or _number(more)):
                continue
            middle = _number(a if name == "x" else b)
            low, high = axis.at(middle - _number(less)), axis.at(middle + _number(more))
            other = 1 - y.at(b) if name == "x" else x.at(a)
            first, last = (low, high) if name == "x" else (1 - low, 1 - high)
            pair = (_percent(first), _percent(last), _percent(other))
            form = '<line x1="{}%" x2="{}%" y1="{}%" y2="{}%" stroke="{}" stroke-width="{}"/>'
            places = (pair[0], pair[1], pair[2], pair[2])
            if name == "y":
                places = (pair[2], pair[2], pair[0], pair[1])
            look = (bars.get("color", "#7A7A7A"), bars.get("thickness", 1.2))
            found.append(Markup(form).format(*places, *look))
    return found


def _marks(trace: Spec, points: Sequence[Place | None]) -> list[Markup]:
    marker = _dict(trace, "marker")
    if marker.get("opacity") == 0:
        return []
    most = marker.get("maxdisplayed")
    step = 1 if not most else max(1, -(-len(points) // int(_number(most))))
    own = _dict(trace, "line").get("color", "#7A7A7A")
    found = []
    for at, place in enumerate(points):
        if place is None or at % step:
            continue
        if not all(-_OUTSIDE <= share <= 1 + _OUTSIDE for share in place):
            continue
        color = _one_of(marker.get("color", own), at)
        symbol = _one_of(marker.get("symbol", "circle"), at)
        size = _number(marker.get("size", 7))
        found.append(mark(symbol, color, place, size))
    return found


def mark(symbol: str, color: str, place: Place, size: float = 8) -> Markup:
    """A mark at shares of the panel; a symbol that ends in "-open" is hollow."""
    base, hollow = symbol.removesuffix("-open"), symbol.endswith("-open")
    if base not in MARKS:
        raise ValueError(f"no mark is called {symbol!r}; known: {', '.join(MARKS)}")
    look = Markup('fill="var(--card)" stroke="{}" stroke-width="2"' if hollow else 'fill="{}"')
    return Markup(
        '<svg x="{}%" y="{}%" overflow="visible">'
        '<use href="#m-{}" {} transform="scale({:.2g})"/></svg>'
    ).format(_percent(place[0]), _percent(place[1]), base, look.format(color), size / 8)


def _one_of(value: object, at: int) -> str:
    return str(value[at] if isinstance(value, list) else value)


def _bars(trace: Spec, x: Axis, y: Axis) -> Markup:
    width = _number(trace.get("width", 0.8))
    color = _dict(trace, "marker").get("color", "#7A7A7A")
    parts = []
    rows = zip(_values(trace, "x"), _values(trace, "base"), _values(trace, "y"), strict=True)
    for place, base, size in rows:
        if not _number(size):
            continue
        left, right = (x.at(_number(place) + side * width / 2) for side in (-1, 1))
        low, high = y.at(base), y.at(_number(base) + _number(size))
        parts.append(
            Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="{}"/>').format(
                _thousandth(left),
                _thousandth(1 - high),
                _thousandth(right - left),
                _thousandth(high - low),
                color,
            )
        )
    return _box(Markup("").join(parts))


def _heat(trace: Spec, x: Axis, y: Axis) -> Markup:
    """Fields of one hue by value, with the counts written in where there are few."""
    rows, texts = _list_of_lists(trace, "z"), trace.get("text")
    scale = [(float(_number(at)), str(color)) for at, color in _list_of_lists(trace, "colorscale")]
    across, up = len(x.names), len(y.names)
    gap = 0.06 if trace.get("xgap") else 0.0
    fields, labels = [], []
    for down, row in enumerate(rows):
        for right, value in enumerate(row):
            share = _number(value)
            fields.append(
                Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="{}"/>').format(
                    _thousandth((right + gap / 2) / across),
                    _thousandth((down + gap / 2) / up),
                    _thousandth((1 - gap) / across),
                    _thousandth((1 - gap) / up),
                    _shade(scale, share),
                )
            )
            said = texts[down][right] if isinstance(texts, list) else ""
            if said:
                labels.append(
                    Markup('<text class="{}" x="{}%" y="{}%">{}</text>').format(
                        "cell light" if share > 0.5 else "cell",
                        _percent((right + 0.5) / across),
                        _percent((down + 0.5) / up),
                        said,
                    )
                )
    return _box(Markup("").join(fields)) + Markup("").join(labels)


def _shade(scale: Sequence[tuple[float, str]], share: float) -> str:
    """A colour between the two nearest of a scale."""
    above = next((at for at, (end, _) in enumerate(scale) if share <= end), len(scale) - 1)
    if above == 0:
        return scale[0][1]
    (low, first), (high, last) = scale[above - 1], scale[above]
    part = min((share - low) / ((high - low) or 1.0), 1.0)
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


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not math.isfinite(value):
        raise ValueError(f"a figure has {value!r} where a number belongs")
    return float(value)


def _values(part: Mapping[str, object], name: str) -> list[object]:
    found = part.get(name)
    if not isinstance(found, list):
        raise ValueError(f"a figure has no list {name!r}")
    return found


def _list(part: Spec, name: str) -> list[Spec]:
    found = part.get(name, [])
    return found if isinstance(found, list) else []


def _list_of_lists(part: Spec, name: str) -> list[list[object]]:
    found = part.get(name, [])
    return found if isinstance(found, list) else []


def _dict(part: Spec, name: str) -> Spec:
    found = part.get(name, {})
    return found if isinstance(found, dict) else {}


def symbols() -> Markup:
    """The marks that all figures of a page share, each about the middle of a box of its own."""
    parts = "".join(f'<g id="m-{name}">{drawing}</g>' for name, drawing in MARKS.items())
    return Markup(
        '<svg class="unseen" width="0" height="0" aria-hidden="true"><defs>{}</defs></svg>'
    ).format(Markup(parts))
