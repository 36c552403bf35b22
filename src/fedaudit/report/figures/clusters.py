"""Figures of clustered learning: migration between models, risk, thresholds, violations, loss."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from fedaudit.report.figures.drawing import (
    OKABE_ITO,
    Figures,
    LegendEntry,
    Panel,
    Spec,
    Style,
    choices_of,
    hover_text,
    see_through,
    series_line,
    series_name,
    spec_of,
    swatch,
)
from fedaudit.report.grid import shortened
from fedaudit.report.text.clusters import (
    Run,
    ShownModel,
    above,
    expected_above,
    shown_models,
    surely_above,
)
from fedaudit.report.words import capital, count, defense_name, percent, plural
from fedaudit.results.cluster_groups import choices, clients_of, groups_by_size, used_by
from fedaudit.results.clusters import ModelState
from fedaudit.results.record import Record


def each(
    panels: Callable[[Run], tuple[Panel, ...]],
) -> Callable[[list[Run]], tuple[Panel, ...]]:
    """The panels of the one run that a setting has."""
    return lambda inside: panels(inside[0])


def setting(run: Run) -> tuple[str, ...]:
    """Setting that tells one run's panels from another's."""
    return (
        shortened(run.algorithm),
        shortened(defense_name(run.defense)),
        f"seed {run.seed}",
    )


def rounds_axis(run: Run) -> Spec:
    """Few rounds are named one by one: marks between them would mean nothing."""
    rounds = [one.round for one in run.rounds]
    ticks: Spec = {"tickvals": rounds} if len(rounds) <= 6 else {"nticks": 7}
    return {"title": {"text": "Round"}, "tickformat": "d", **ticks}


def clients_axis(title: str, most: int) -> Spec:
    """An axis of whole clients: of few, halves would be marked as well."""
    ticks: Spec = {"dtick": 1} if most <= 5 else {"nticks": 6}
    return {"title": {"text": title}, **ticks}


BAR = 0.34
"""Width of a round's bar, of the distance between rounds."""

MOST_TICKS = 12
"""Measured rounds up to which each has its number below it."""

_STEPS = 8
"""Points of a ribbon's bent edge."""


class _Block(NamedTuple):
    """Clients of one model in one round, as the heights between which they stand."""

    low: int
    high: int


class _Ribbon(NamedTuple):
    """Clients that go from one model to another between two rounds."""

    at: int
    source: int
    target: int
    clients: int
    left: _Block
    right: _Block


def migration_panel(run: Run, group: int) -> Panel:
    """Clients of one group by model, a bar for each measured round, with ribbons between them."""
    shown = shown_models(run)
    places = clients_of(run, group)
    used = [[choice[at] for at in places] for choice in (choices(run, one) for one in run.rounds)]
    stacks = [_stacked(choice, shown) for choice in used]
    ribbons = _ribbons(used, stacks, shown)
    traces = [_ribbon(ribbon, shown) for ribbon in ribbons]
    traces += [_bars(one, stacks) for one in shown]
    traces += _labels(ribbons, shown)
    name = capital(shortened(run.group_names[group], 40))
    rounds = [one.round for one in run.rounds]
    step = max(1, -(-len(rounds) // MOST_TICKS))
    spec = spec_of(
        traces,
        barmode="overlay",
        xaxis={
            "title": {"text": "Measured round"},
            "tickvals": list(range(0, len(rounds), step)),
            "ticktext": [str(index) for index in rounds[::step]],
            "range": [-0.4, len(rounds) - 0.6],
            "showgrid": False,
            "tickangle": 0,
        },
        yaxis={**clients_axis("Clients", len(places)), "range": [0, len(places)]},
    )
    return Panel(f"{name}: {plural(len(places), 'client')}", _summary(name, used, shown), spec)


def migration_panels(run: Run) -> tuple[Panel, ...]:
    """One panel a group, the largest first."""
    return tuple(migration_panel(run, group) for group in groups_by_size(run))


def _summary(name: str, used: Sequence[Sequence[int | None]], shown: Sequence[ShownModel]) -> str:
    last = Counter(used[-1])
    parts = ", ".join(f"{one.label} {count(last[one.model])}" for one in shown)
    return f"Clients of {name} by model, round by round; at the end: {parts}."


def _stacked(choice: Sequence[int | None], shown: Sequence[ShownModel]) -> dict[int, _Block]:
    sizes, blocks, base = Counter(choice), {}, 0
    for one in shown:
        blocks[one.model] = _Block(base, base + sizes[one.model])
        base += sizes[one.model]
    return blocks


def _ribbons(
    used: Sequence[Sequence[int | None]],
    stacks: Sequence[dict[int, _Block]],
    shown: Sequence[ShownModel],
) -> list[_Ribbon]:
    """Flows between neighbouring rounds, stacked within each bar in the models' order."""
    order, found = [one.model for one in shown], []
    for at in range(len(used) - 1):
        flows = Counter(zip(used[at], used[at + 1], strict=True))
        left = {model: block.low for model, block in stacks[at].items()}
        right = {model: block.low for model, block in stacks[at + 1].items()}
        starts: dict[tuple[int, int], int] = {}
        for target in order:
            for source in order:
                starts[source, target] = right[target]
                right[target] += flows[source, target]
        for source in order:
            for target in order:
                number = flows[source, target]
                if number:
                    low, end = left[source], starts[source, target]
                    found.append(
                        _Ribbon(
                            at,
                            source,
                            target,
                            number,
                            _Block(low, low + number),
                            _Block(end, end + number),
                        )
                    )
                left[source] += number
    return found


def _ribbon(ribbon: _Ribbon, shown: Sequence[ShownModel]) -> Spec:
    """A bent band, strong where clients move and pale where they stay."""
    (target,) = [one for one in shown if one.model == ribbon.target]
    start, end = ribbon.at + BAR / 2, ribbon.at + 1 - BAR / 2
    shares = [step / _STEPS for step in range(_STEPS + 1)]
    across = [round(start + (end - start) * share, 4) for share in shares]
    bends = [share * share * (3 - 2 * share) for share in shares]

    def edge(left: int, right: int) -> list[float]:
        return [round(left + (right - left) * bend, 3) for bend in bends]

    top = edge(ribbon.left.high, ribbon.right.high)
    bottom = edge(ribbon.left.low, ribbon.right.low)
    moving = ribbon.source != ribbon.target
    return {
        "type": "scatter",
        "mode": "lines",
        "name": series_name(target.label),
        "x": across + across[::-1],
        "y": top + bottom[::-1],
        "fill": "toself",
        "fillcolor": see_through(target.look.color, 0.62 if moving else 0.2),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def _bars(one: ShownModel, stacks: Sequence[dict[int, _Block]]) -> Spec:
    blocks = [stack[one.model] for stack in stacks]
    return {
        "type": "bar",
        "name": series_name(one.label),
        "x": list(range(len(blocks))),
        "base": [block.low for block in blocks],
        "y": [block.high - block.low for block in blocks],
        "width": BAR,
        "marker": {"color": one.look.color, "line": {"width": 0}},
        "hovertemplate": f"%{{y}} clients<extra>{series_name(one.label)}</extra>",
    }


def _labels(ribbons: Sequence[_Ribbon], shown: Sequence[ShownModel]) -> list[Spec]:
    """Texts of moving clients, at invisible points in the middle of their ribbons."""
    labels = {one.model: one.label for one in shown}
    found: list[Spec] = []
    for one in shown:
        moving = [r for r in ribbons if r.target == one.model != r.source]
        if moving:
            found.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": series_name(one.label),
                    "x": [ribbon.at + 0.5 for ribbon in moving],
                    "y": [
                        (ribbon.left.low + ribbon.left.high + ribbon.right.low + ribbon.right.high)
                        / 4
                        for ribbon in moving
                    ],
                    "text": [
                        f"{count(ribbon.clients)} from {series_name(labels[ribbon.source])}"
                        for ribbon in moving
                    ],
                    "marker": {"size": 14, "opacity": 0},
                    "hovertemplate": f"%{{text}}<extra>to {series_name(one.label)}</extra>",
                }
            )
    return found


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
        LegendEntry(name, name, swatch(look))
        for name, look, there in (
            ("True risk", _TRUE, True),
            ("Estimated by the server", _ESTIMATED, _any(record, "estimated")),
            ("Announced to clients", _TOLD, _any(record, "told")),
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
        (*keys, LegendEntry("Guessing", "Guessing", swatch(_GUESS, marked=False))),
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
            LegendEntry(_ACCEPTS_MORE, _ACCEPTS_MORE, swatch(_ACCEPTED)),
            LegendEntry(_ACCEPTS_LESS, _ACCEPTS_LESS, swatch(_LESS)),
            LegendEntry("True risk of the model", "True risk", swatch(_TRUE, marked=False)),
        ),
    )


def violations_figure(record: Record) -> Figures | None:
    """Number of clients use a model that is riskier than they accept, round by round."""
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
        tuple(LegendEntry(name, series_name(name), swatch(look)) for name, look in names),
    )


def _risk_panels(run: Run) -> tuple[Panel, ...]:
    least, most = _range(run)
    return tuple(_risk_panel(run, shown, [least, most]) for shown in shown_models(run))


def _risk_panel(run: Run, shown: ShownModel, limits: list[float]) -> Panel:
    rounds = [one.round for one in run.rounds]
    states = [one.models[shown.model] for one in run.rounds]
    traces = [
        _band(rounds, states),
        _line(rounds, [state.told for state in states], _TOLD, "Announced to clients"),
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


def _threshold_panel(run: Run, shown: ShownModel, limits: list[float]) -> Panel:
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
    """Range of the risks of all models of a run, with guessing and a little room."""
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


def cluster_figures(record: Record) -> list[Figures]:
    """The figures that the record has data for."""
    if not record.clusters:
        return []
    found = (
        migration_figure(record),
        risk_figure(record),
        thresholds_figure(record),
        violations_figure(record),
        loss_figure(record),
    )
    return [figure for figure in found if figure is not None]


def migration_figure(record: Record) -> Figures:
    """For each group, its clients by model after every measured round."""
    late = any(run.joined for run in record.clusters)
    return Figures(
        "clusters-migration",
        "Each bar holds the clients of one group after a measured round, by the model that they "
        "last trained, stacked from the bottom in the legend’s order. Pale bands are clients that "
        "keep their model until the next bar, strong ones clients that change to the model whose "
        "colour they have. "
        + ("Clients that have not taken part yet are in no bar. " if late else "")
        + "Groups have scales of their own. The table of rounds has the numbers.",
        choices_of(record.clusters, setting, each(migration_panels)),
        _model_keys(record),
        shape="flow",
    )


def loss_figure(record: Record) -> Figures | None:
    """Convergence: each model's loss on test samples like its clients', round by round."""
    runs = [
        run
        for run in record.clusters
        if sum(any(m.loss is not None for m in one.models) for one in run.rounds) > 1
    ]
    if not runs:
        return None

    def panels(inside: list[Run]) -> tuple[Panel, ...]:
        (run,) = inside[:1]
        rounds = [one.round for one in run.rounds]
        traces = [
            series_line(
                rounds,
                [one.models[shown.model].loss for one in run.rounds],
                shown.look,
                shown.label,
                marks=12,
                hover="%{y:.3f} after round %{x}",
            )
            for shown in shown_models(run)
        ]
        axis = {"title": {"text": "Loss"}, "rangemode": "tozero", "nticks": 6}
        spec = spec_of(traces, xaxis=rounds_axis(run), yaxis=axis)
        return (Panel("", "Loss of each model by round.", spec),)

    return Figures(
        "clusters-loss",
        "Convergence: mean loss of each model on test samples like its clients’, after each "
        "measured round. A gap is a round in which nobody trained it.",
        choices_of(runs, setting, panels),
        _model_keys(record),
    )


def _model_keys(record: Record) -> tuple[LegendEntry, ...]:
    """The models of all runs: one group's model looks the same in each."""
    looks = {shown.label: shown.look for run in record.clusters for shown in shown_models(run)}
    return tuple(
        LegendEntry(label, series_name(label), swatch(look)) for label, look in looks.items()
    )
