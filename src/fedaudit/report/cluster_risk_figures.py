"""Figures of the models' risk: told, estimated and true, against what clients accept."""

from collections.abc import Sequence
from itertools import groupby

from fedaudit.report.cluster_drawing import clients_axis, each, rounds_axis, setting
from fedaudit.report.clusters import (
    Run,
    Shown,
    above,
    expected_above,
    shown_models,
    surely_above,
)
from fedaudit.report.drawing import (
    Figures,
    Panel,
    Spec,
    choices_of,
    hover_text,
    plotly_text,
    series_line,
    spec_of,
)
from fedaudit.report.reading import ModelState, Record, choices, used_by
from fedaudit.report.styles import OKABE_ITO, Key, Style, see_through, swatch
from fedaudit.report.words import count, percent

# Other colours than those of the two groups' models.
_TRUE = Style(OKABE_ITO[3], "solid", "circle")
_ESTIMATED = Style(OKABE_ITO[2], "dash", "square")
_TOLD = Style(OKABE_ITO[4], "dot", "diamond")
_SURELY = Style(OKABE_ITO[6], "dashdot", "triangle-up")
_GUESS = Style("#7A7A7A", "dot", "circle")
_ACCEPTED = Style("#7A7A7A", "solid", "circle")
_LESS = Style(OKABE_ITO[3], "solid", "triangle-down")

_ACCEPTS_MORE, _ACCEPTS_LESS = "Accepts this risk", "Accepts less: a violation"
_SURE = "Sure: by the lower limit"


def risk_figure(record: Record) -> Figures | None:
    """For each model what clients were told, what was estimated, and the truth."""
    if not any(model.risk is not None for model in _every_model(record)):
        return None
    keys = [
        Key(name, name, swatch(look))
        for name, look, there in (
            ("True risk", _TRUE, True),
            ("Estimated by the server", _ESTIMATED, _any(record, "estimated")),
            ("Told to clients", _TOLD, _any(record, "told")),
        )
        if there
    ]
    return Figures(
        "clusters-risk",
        "Membership risk of each model, round by round: balanced accuracy of the attack, 50% "
        "being a guess. The true risk is on the model’s real members, with its 95% interval; "
        "the estimate is made without them. Where the two part, clients decide on a wrong "
        "number.",
        choices_of(record.clusters, setting, each(_risk_panels)),
        (*keys, Key("Guessing", "Guessing", swatch(_GUESS, marked=False))),
    )


def thresholds_figure(record: Record) -> Figures | None:
    """For each model what its clients accept, in order, against its risk at the end."""
    used = [model for run in record.clusters for model in used_by(run, None)]
    if not any(model is not None and model.risk is not None for model in used):
        return None
    return Figures(
        "clusters-thresholds",
        "The clients of each model at the end, ordered by the highest risk that they accept. "
        "Those below the line of the model’s true risk use a model that is riskier than they "
        "accept; below the band, its 95% interval, that is sure.",
        choices_of(record.clusters, setting, each(_threshold_panels)),
        (
            Key(_ACCEPTS_MORE, _ACCEPTS_MORE, swatch(_ACCEPTED)),
            Key(_ACCEPTS_LESS, _ACCEPTS_LESS, swatch(_LESS)),
            Key("True risk of the model", "True risk", swatch(_TRUE, marked=False)),
        ),
    )


def violations_figure(record: Record) -> Figures | None:
    """How many clients use a model that is riskier than they accept, round by round."""
    runs = [run for run in record.clusters if len(run.rounds) > 1]
    if not runs:
        return None
    names = (("By the true risk", _TRUE), (_SURE, _SURELY), ("By the estimates", _ESTIMATED))

    def panels(inside: list[Run]) -> tuple[Panel, ...]:
        (run,) = inside[:1]
        rounds = [one.round for one in run.rounds]
        counts = [
            [how(run, one) for one in run.rounds] for how in (above, surely_above, expected_above)
        ]
        traces = [
            series_line(rounds, values, look, name, marks=12, hover="%{y} clients in round %{x}")
            for (name, look), values in zip(names, counts, strict=True)
        ]
        spec = spec_of(
            traces,
            xaxis=rounds_axis(run),
            yaxis={
                **clients_axis("Clients", max(max(values) for values in counts)),
                "rangemode": "tozero",
            },
        )
        return (Panel("", "Violations round by round.", spec),)

    return Figures(
        "clusters-violations",
        "Clients whose model’s membership risk is above what they accept, after each measured "
        "round.",
        choices_of(runs, setting, panels),
        tuple(Key(name, plotly_text(name), swatch(look)) for name, look in names),
    )


def _risk_panels(run: Run) -> tuple[Panel, ...]:
    least, most = _range(run)
    return tuple(_risk_panel(run, shown, [least, most]) for shown in shown_models(run))


def _risk_panel(run: Run, shown: Shown, limits: list[float]) -> Panel:
    rounds = [one.round for one in run.rounds]
    states = [one.models[shown.model] for one in run.rounds]
    traces = [
        _band(rounds, states),
        _line(rounds, [state.told for state in states], _TOLD, "Told to clients"),
        _line(rounds, [state.estimated for state in states], _ESTIMATED, "Estimated by the server"),
        _line(rounds, [state.risk for state in states], _TRUE, "True risk"),
        series_line([rounds[0], rounds[-1]], [0.5, 0.5], _GUESS, "Guessing", hover="%{y:.0%}"),
    ]
    spec = spec_of(traces, xaxis=rounds_axis(run), yaxis=_risk_axis(limits))
    known = [state.risk for state in states if state.risk is not None]
    end = f"; at the end {percent(known[-1])}" if known else ""
    return Panel(shown.label, f"Risk of {shown.label} by round{end}.", spec)


def _line(rounds: list[int], values: list[float | None], look: Style, name: str) -> Spec:
    return series_line(rounds, values, look, name, marks=12, hover="%{y:.1%} in round %{x}")


def _band(rounds: list[int], states: Sequence[ModelState]) -> Spec:
    """The interval of the true risk, as an area; rounds without one part it in two."""
    x: list[int | None] = []
    y: list[float | None] = []
    pairs = list(zip(rounds, states, strict=True))
    for known, run in groupby(pairs, key=lambda pair: pair[1].low is not None):
        if not known:
            continue
        part = list(run)
        if x:
            x, y = [*x, None], [*y, None]
        x += [index for index, _ in (*part, *part[::-1])]
        y += [*(state.high for _, state in part), *(state.low for _, state in part[::-1])]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "True risk",
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": see_through(_TRUE.color, 0.18),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def _threshold_panels(run: Run) -> tuple[Panel, ...]:
    chosen = choices(run)
    least, most = _range(run)
    limits = [min(least, *run.thresholds) - 0.01, max(most, *run.thresholds) + 0.01]
    used = [shown for shown in shown_models(run) if shown.model in chosen]
    return tuple(_threshold_panel(run, shown, limits) for shown in used)


def _threshold_panel(run: Run, shown: Shown, limits: list[float]) -> Panel:
    state = run.rounds[-1].models[shown.model]
    theirs = sorted(
        (threshold, client)
        for threshold, client, choice in zip(run.thresholds, run.clients, choices(run), strict=True)
        if choice == shown.model
    )
    risk = state.risk
    less = [risk is not None and risk > threshold for threshold, _ in theirs]
    ends = [0, len(theirs) + 1]
    traces = [
        _dots(theirs, [not one for one in less], _ACCEPTED, _ACCEPTS_MORE),
        _dots(theirs, less, _LESS, _ACCEPTS_LESS),
    ]
    if risk is not None:
        line = series_line(ends, [risk, risk], _TRUE, "True risk", hover="%{y:.1%}")
        traces = [_level(ends, state), line, *traces]
    spec = spec_of(
        traces,
        xaxis={
            **clients_axis("Clients, those who accept least first", len(theirs)),
            "range": ends,
        },
        yaxis={**_risk_axis(limits), "title": {"text": "Risk accepted"}},
    )
    told = f"{count(sum(less))} of {count(len(theirs))} accept less"
    summary = f"Thresholds of the clients of {shown.label}; {told}."
    return Panel(f"{shown.label}: {told}", summary, spec)


def _level(ends: list[int], state: ModelState) -> Spec:
    low, high = (state.risk if limit is None else limit for limit in (state.low, state.high))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "True risk",
        "x": [*ends, *ends[::-1]],
        "y": [high, high, low, low],
        "fill": "toself",
        "fillcolor": see_through(_TRUE.color, 0.18),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def _dots(
    theirs: Sequence[tuple[float, int]], kept: Sequence[bool], look: Style, name: str
) -> Spec:
    places = [at for at, keep in enumerate(kept) if keep]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [at + 1 for at in places],
        "y": [theirs[at][0] for at in places],
        "text": [f"client {theirs[at][1]}" for at in places],
        "marker": {
            "color": look.color,
            "symbol": look.symbol,
            "size": 8 if look is _LESS else 5,
        },
        "hovertemplate": hover_text("%{text} accepts %{y:.1%}", name),
    }


def _range(run: Run) -> tuple[float, float]:
    """What the risks of all models of a run span, with guessing and a little room."""
    known = [
        value
        for one in run.rounds
        for state in one.models
        for value in (state.told, state.estimated, state.risk, state.low, state.high)
        if value is not None
    ]
    return max(min(known, default=0.5), 0.0) - 0.02, min(max(known, default=0.5), 1.0) + 0.02


def _risk_axis(limits: list[float]) -> Spec:
    least, most = min(limits[0], 0.48), max(limits[1], 0.6)
    return {
        "title": {"text": "Membership risk"},
        "tickformat": ".0%",
        "range": [least, most],
        "nticks": 7,
    }


def _any(record: Record, field: str) -> bool:
    return any(getattr(state, field) is not None for state in _every_model(record))


def _every_model(record: Record) -> list[ModelState]:
    return [state for run in record.clusters for one in run.rounds for state in one.models]
