"""The figure of who went where: for each group, its clients by model and how they move."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fedaudit.report.cluster_drawing import clients_axis
from fedaudit.report.clusters import Run, Shown, shown_models
from fedaudit.report.drawing import Panel, Spec, plotly_text, spec_of
from fedaudit.report.grid import shortened
from fedaudit.report.reading import choices, clients_of, groups_by_size
from fedaudit.report.styles import see_through
from fedaudit.report.words import capital, count, plural

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


def _summary(name: str, used: Sequence[Sequence[int | None]], shown: Sequence[Shown]) -> str:
    last = Counter(used[-1])
    parts = ", ".join(f"{one.label} {count(last[one.model])}" for one in shown)
    return f"Clients of {name} by model, round by round; at the end: {parts}."


def _stacked(choice: Sequence[int | None], shown: Sequence[Shown]) -> dict[int, _Block]:
    sizes, blocks, base = Counter(choice), {}, 0
    for one in shown:
        blocks[one.model] = _Block(base, base + sizes[one.model])
        base += sizes[one.model]
    return blocks


def _ribbons(
    used: Sequence[Sequence[int | None]],
    stacks: Sequence[dict[int, _Block]],
    shown: Sequence[Shown],
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


def _ribbon(ribbon: _Ribbon, shown: Sequence[Shown]) -> Spec:
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
        "name": plotly_text(target.label),
        "x": across + across[::-1],
        "y": top + bottom[::-1],
        "fill": "toself",
        "fillcolor": see_through(target.look.color, 0.62 if moving else 0.2),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def _bars(one: Shown, stacks: Sequence[dict[int, _Block]]) -> Spec:
    blocks = [stack[one.model] for stack in stacks]
    return {
        "type": "bar",
        "name": plotly_text(one.label),
        "x": list(range(len(blocks))),
        "base": [block.low for block in blocks],
        "y": [block.high - block.low for block in blocks],
        "width": BAR,
        "marker": {"color": one.look.color, "line": {"width": 0}},
        "hovertemplate": f"%{{y}} clients<extra>{plotly_text(one.label)}</extra>",
    }


def _labels(ribbons: Sequence[_Ribbon], shown: Sequence[Shown]) -> list[Spec]:
    """What plotly says of moving clients, at invisible points in the middle of their ribbons."""
    labels = {one.model: one.label for one in shown}
    found: list[Spec] = []
    for one in shown:
        moving = [r for r in ribbons if r.target == one.model != r.source]
        if moving:
            found.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": plotly_text(one.label),
                    "x": [ribbon.at + 0.5 for ribbon in moving],
                    "y": [
                        (ribbon.left.low + ribbon.left.high + ribbon.right.low + ribbon.right.high)
                        / 4
                        for ribbon in moving
                    ],
                    "text": [
                        f"{count(ribbon.clients)} from {plotly_text(labels[ribbon.source])}"
                        for ribbon in moving
                    ],
                    "marker": {"size": 14, "opacity": 0},
                    "hovertemplate": f"%{{text}}<extra>to {plotly_text(one.label)}</extra>",
                }
            )
    return found
