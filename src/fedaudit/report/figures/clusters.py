"""Figures of clustered learning: migration between models, and risk by round."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from fedaudit.report.figures import drawing
from fedaudit.report.grid import shortened
from fedaudit.report.text.clusters import (
    Run,
    ShownModel,
    shown_models,
)
from fedaudit.report.words import capital, count, defense_name, percent, plural
from fedaudit.results.clusters import ModelState, choices, clients_of, groups_by_size
from fedaudit.results.record import Record

BAR = 0.34
"""Width of a round's bar, of the distance between rounds."""

MOST_TICKS = 12
"""Measured rounds up to which each has its number below it."""

_STEPS = 8
"""Points of a ribbon's bent edge."""

# Other colours than those of the two groups' models.
_TRUE = drawing.Style(drawing.OKABE_ITO[3])
_ESTIMATED = drawing.Style(drawing.OKABE_ITO[2], "dash", "square")
_TOLD = drawing.Style(drawing.OKABE_ITO[4], "dot", "diamond")
_GUESS = drawing.Style(drawing.GREY, "dot")


def cluster_figures(record: Record) -> list[drawing.Figures | None]:
    """The figures of clustered learning; None for those that the record has no data for."""
    if not record.clusters:
        return []
    return [
        migration_figure(record),
        risk_figure(record),
    ]


def _figure(
    name: str,
    caption: str,
    runs: Sequence[Run],
    panels: Callable[[Run], Sequence[drawing.Panel]],
    keys: tuple[drawing.LegendEntry, ...],
    shape: str = "wide",
) -> drawing.Figures:
    made = drawing.choices_of(runs, _setting, lambda inside: panels(inside[0]))
    return drawing.Figures(f"clusters-{name}", caption, made, keys, shape)


def _setting(run: Run) -> tuple[str, ...]:
    return (shortened(run.algorithm), shortened(defense_name(run.defense)), f"seed {run.seed}")


def _rounds(run: Run) -> list[int]:
    return [one.round for one in run.rounds]


def _lines(
    run: Run,
    looks: Mapping[str, drawing.Style],
    values: Iterable[Sequence[drawing.Number | None]],
    hover: str,
) -> list[drawing.Series]:
    pairs = zip(looks.items(), values, strict=True)
    return [
        drawing.Series(name, _rounds(run), of, look, hover, marks=12) for (name, look), of in pairs
    ]


def _by_round(
    run: Run, summary: str, y: drawing.Scale, series: Sequence[drawing.Drawn], title: str = ""
) -> drawing.Panel:
    return drawing.Panel(title, summary, drawing.round_scale(_rounds(run)), y, series)


def _clients(most: int) -> drawing.Scale:
    return drawing.Scale("Clients", ends=(0, most), step=1 if most <= 5 else None, count=6)


class _Ribbon(NamedTuple):
    """Clients that go from one model to another between two rounds, and where they stand."""

    at: int
    source: int
    target: int
    clients: int
    left: int
    right: int


def migration_figure(record: Record) -> drawing.Figures:
    """For each group, its clients by model after every measured round."""
    late = any(run.joined for run in record.clusters)
    return _figure(
        "migration",
        "Clients of a group after each measured round, by the model that they last trained. Pale "
        "bands keep their model, strong ones change to the model whose colour they have."
        + " Clients that have not taken part yet are in no bar."
        * late,
        record.clusters,
        lambda run: [migration_panel(run, group) for group in groups_by_size(run)],
        _model_keys(record),
        "flow",
    )


def migration_panel(run: Run, group: int) -> drawing.Panel:
    """Clients of one group by model, a bar for each measured round, with ribbons between them."""
    shown = shown_models(run)
    places = clients_of(run, group)
    used = [[choice[at] for at in places] for choice in (choices(run, one) for one in run.rounds)]
    stacks = [_stacked(choice, shown) for choice in used]
    ribbons = _ribbons(used, stacks, shown)
    series: list[drawing.Drawn] = [_ribbon(ribbon, shown) for ribbon in ribbons]
    for one in shown:
        low, high = zip(*(stack[one.model] for stack in stacks), strict=True)
        series.append(drawing.Bars(one.label, low, high, BAR, one.look.color, "%{y} clients"))
    series += [_moving(one, ribbons, shown) for one in shown]
    name = capital(shortened(run.group_names[group], 40))
    rounds, step = _rounds(run), max(1, -(-len(run.rounds) // MOST_TICKS))
    ticks = {float(at): str(rounds[at]) for at in range(0, len(rounds), step)}
    last = Counter(used[-1])
    parts = ", ".join(f"{one.label} {count(last[one.model])}" for one in shown)
    return drawing.Panel(
        f"{name}: {plural(len(places), 'client')}",
        f"Clients of {name} by model, round by round; at the end: {parts}.",
        drawing.Scale("Measured round", ends=(-0.4, len(rounds) - 0.6), ticks=ticks, grid=False),
        _clients(len(places)),
        series,
    )


def _stacked(
    choice: Sequence[int | None], shown: Sequence[ShownModel]
) -> dict[int, tuple[int, int]]:
    ends = list(accumulate((choice.count(one.model) for one in shown), initial=0))
    return {one.model: (ends[at], ends[at + 1]) for at, one in enumerate(shown)}


def _ribbons(
    used: Sequence[Sequence[int | None]],
    stacks: Sequence[dict[int, tuple[int, int]]],
    shown: Sequence[ShownModel],
) -> list[_Ribbon]:
    order, found = [one.model for one in shown], []
    for at in range(len(used) - 1):
        flows = Counter(zip(used[at], used[at + 1], strict=True))
        left, right = ({model: low for model, (low, _) in stacks[i].items()} for i in (at, at + 1))
        ends: dict[tuple[int, int], int] = {}
        for target in order:
            for source in order:
                ends[source, target] = right[target]
                right[target] += flows[source, target]
        for source in order:
            for target in order:
                number = flows[source, target]
                if number:
                    end = ends[source, target]
                    found.append(_Ribbon(at, source, target, number, left[source], end))
                left[source] += number
    return found


def _ribbon(ribbon: _Ribbon, shown: Sequence[ShownModel]) -> drawing.Band:
    (target,) = [one for one in shown if one.model == ribbon.target]
    start, end = ribbon.at + BAR / 2, ribbon.at + 1 - BAR / 2
    shares = [step / _STEPS for step in range(_STEPS + 1)]
    across = [round(start + (end - start) * share, 4) for share in shares]
    low = [
        round(ribbon.left + (ribbon.right - ribbon.left) * share * share * (3 - 2 * share), 3)
        for share in shares
    ]
    high = [value + ribbon.clients for value in low]
    opacity = 0.62 if ribbon.source != ribbon.target else 0.2
    return drawing.Band(target.label, across, low, high, target.look.color, opacity)


def _moving(
    one: ShownModel, ribbons: Sequence[_Ribbon], shown: Sequence[ShownModel]
) -> drawing.Series:
    labels = {one.model: drawing.series_name(one.label) for one in shown}
    moving = [r for r in ribbons if r.target == one.model != r.source]
    return drawing.Series(
        one.label,
        [ribbon.at + 0.5 for ribbon in moving],
        [(ribbon.left + ribbon.right + ribbon.clients) / 2 for ribbon in moving],
        one.look,
        "%{text}",
        f"to {drawing.series_name(one.label)}",
        joined=False,
        size=0,
        texts=[f"{count(ribbon.clients)} from {labels[ribbon.source]}" for ribbon in moving],
    )


def risk_figure(record: Record) -> drawing.Figures | None:
    """For each model what clients were told, what was estimated, and the truth."""
    every = [state for run in record.clusters for one in run.rounds for state in one.models]
    if not any(model.risk is not None for model in every):
        return None
    looks = {"True risk": _TRUE}
    if any(model.estimated is not None for model in every):
        looks["Estimated by the server"] = _ESTIMATED
    if any(model.told is not None for model in every):
        looks["Announced to clients"] = _TOLD
    return _figure(
        "risk",
        "Membership risk of each model by round (balanced accuracy; 50% is guessing). The true "
        "risk, "
        "with its 95% interval, is on the model’s real members; the estimate is made without them.",
        record.clusters,
        lambda run: [_risk_panel(run, shown, _range(run)) for shown in shown_models(run)],
        (*drawing.legend(looks), *drawing.legend({"Guessing": _GUESS}, marked=False)),
    )


def _risk_panel(run: Run, shown: ShownModel, ends: tuple[float, float]) -> drawing.Panel:
    rounds, states = _rounds(run), [one.models[shown.model] for one in run.rounds]
    looks = {
        "Announced to clients": _TOLD,
        "Estimated by the server": _ESTIMATED,
        "True risk": _TRUE,
    }
    values = zip(*((state.told, state.estimated, state.risk) for state in states), strict=True)
    known = [state.risk for state in states if state.risk is not None]
    end = f"; at the end {percent(known[-1])}" if known else ""
    series: list[drawing.Drawn] = [
        _limits(rounds, states),
        *_lines(run, looks, values, "%{y:.1%} in round %{x}"),
        drawing.level(rounds, 0.5, _GUESS, "Guessing", "%{y:.0%}"),
    ]
    said, y = f"Risk of {shown.label} by round{end}.", _risk_scale("Membership risk", ends)
    return _by_round(run, said, y, series, shown.label)


def _limits(places: Sequence[drawing.Number], states: Sequence[ModelState]) -> drawing.Band:
    """The interval of the true risk; rounds without one part it in two."""
    low, high = [state.low for state in states], [state.high for state in states]
    return drawing.Band("True risk", places, low, high, _TRUE.color, 0.18)


def _range(run: Run) -> tuple[float, float]:
    known = [
        value
        for one in run.rounds
        for state in one.models
        for value in (state.told, state.estimated, state.risk, state.low, state.high)
        if value is not None
    ]
    return max(min(known, default=0.5), 0.0) - 0.02, min(max(known, default=0.5), 1.0) + 0.02


def _risk_scale(title: str, ends: tuple[float, float]) -> drawing.Scale:
    return drawing.Scale(title, "%", (min(ends[0], 0.48), max(ends[1], 0.6)), count=7)


def _model_keys(record: Record) -> tuple[drawing.LegendEntry, ...]:
    shown = [one for run in record.clusters for one in shown_models(run)]
    return drawing.legend({one.label: one.look for one in shown})
