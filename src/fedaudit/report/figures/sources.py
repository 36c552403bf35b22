"""Figures of source inference: success by round, confusion, overfitting."""

from collections.abc import Mapping, Sequence

from fedaudit.report.evidence import distinct
from fedaudit.report.figures.drawing import (
    Figures,
    LegendEntry,
    Panel,
    Spec,
    Style,
    choices_of,
    hover_text,
    series_line,
    series_name,
    spec_of,
    style,
    swatch,
)
from fedaudit.report.grid import shortened
from fedaudit.report.text.sources import Run, on_sources, strongest_on_sources
from fedaudit.report.words import count, defense_name
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from fedaudit.results.sources import LABELS

MOST_WRITTEN = 15
"""Clients up to which a confusion map has its numbers written in."""

MOST_APART = 40
"""Clients up to which lines part the fields of a confusion map; more would be all lines."""

MOST_TICKS = 10
"""Measured rounds up to which each has a mark on the axis."""

_GUESS = Style("#7A7A7A", "dot", "circle")
_MIXES = Style("#7A7A7A", "longdash", "square")
_ORACLE = "Oracle round: chosen afterwards"
_MAP = [[0.0, "#F3F6FA"], [0.25, "#B3CDE6"], [0.5, "#5B9BD0"], [0.75, "#1F68AB"], [1.0, "#08306B"]]
"""One hue from light to dark: it reads without colour, and on both grounds."""


def source_figures(record: Record) -> list[Figures]:
    """The figures that the record has data for."""
    found = (rounds_figure(record), confusion_figure(record), overfitting_figure(record))
    return [figure for figure in found if figure is not None]


def in_order(record: Record) -> list[Run]:
    """All runs, those of the attack that shows most first."""
    found = on_sources(record)
    best = strongest_on_sources(found)
    ordered = sorted(found, key=lambda one: one is not best)
    return [run for one in ordered for run in one.runs]


def rounds_figure(record: Record) -> Figures | None:
    """Success in each measured round alone; None where no attack can do with one round."""
    runs = [run for run in in_order(record) if run.by_round]
    if not runs:
        return None
    explained = {
        _key(one): one.level or 0.0 for one in record.where(topic="source", against=LABELS)
    }
    seeds = distinct(run.seed for run in runs)
    looks = {seed: style(place) for place, seed in enumerate(seeds)}
    keys = [
        LegendEntry(f"Seed {seed}", series_name(f"Seed {seed}"), swatch(looks[seed]))
        for seed in seeds
    ]
    keys += [
        LegendEntry("Guessing", "Guessing", swatch(_GUESS, marked=False)),
        LegendEntry(
            "Label distributions alone", "Label distributions alone", swatch(_MIXES, marked=False)
        ),
        LegendEntry(_ORACLE, _ORACLE, swatch(Style("#7A7A7A", "solid", "diamond"), lined=False)),
    ]

    def panels(inside: list[Run]) -> tuple[Panel, ...]:
        traces = [line for run in inside for line in _round_lines(run, looks[run.seed])]
        traces += _levels(inside, explained)
        spec = spec_of(
            traces,
            xaxis={"title": {"text": "Round"}, "tickformat": "d", **_ticks(inside)},
            yaxis=_SHARE,
        )
        name = shortened(inside[0].attack)
        return (Panel(name, f"Success of {name} in each measured round.", spec),)

    return Figures(
        "sources-by-round",
        "Share of samples whose owner is named, each measured round taken alone. Where every "
        "client takes part, the last one is the attack's success in the table. The oracle round is "
        "the best one, chosen afterwards by somebody who knows the answers: no adversary can, so "
        "it is an upper end. Label distributions "
        "alone: of the answers in the table, what is right when owners are shuffled within each "
        "class.",
        choices_of(runs, _setting, panels),
        tuple(keys),
    )


_SHARE = {
    "title": {"text": "Attack success rate"},
    "tickformat": ".0%",
    "rangemode": "tozero",
    "nticks": 6,
}


def _ticks(runs: Sequence[Run]) -> Spec:
    """Few rounds are named one by one: marks between them would mean nothing."""
    rounds = sorted({index for run in runs for index in run.rounds})
    return {"tickvals": rounds} if len(rounds) <= MOST_TICKS else {"nticks": 8}


def _round_lines(run: Run, look: Style) -> list[Spec]:
    hover = "%{y:.1%} in round %{x}"
    best = max(range(len(run.rounds)), key=lambda at: run.by_round[at])
    oracle: Spec = {
        "type": "scatter",
        "mode": "markers",
        "name": _ORACLE,
        "x": [run.rounds[best]],
        "y": [run.by_round[best]],
        "marker": {
            "symbol": "diamond-open",
            "size": 13,
            "color": look.color,
            "line": {"width": 2},
        },
        "hovertemplate": hover_text(hover, _ORACLE),
    }
    line = series_line(run.rounds, run.by_round, look, f"Seed {run.seed}", marks=12, hover=hover)
    return [line, oracle]


def _levels(runs: Sequence[Run], explained: Mapping[tuple[object, ...], float]) -> list[Spec]:
    """Success of guessing and of label distributions alone, as lines over all measured rounds."""
    rounds = [index for run in runs for index in run.rounds]
    ends = [min(rounds), max(rounds)]
    chance = sum(run.chance for run in runs) / len(runs)
    mixes = sum(explained[_key(run)] for run in runs) / len(runs)
    return [
        series_line(ends, [level] * 2, look, name, hover="%{y:.1%}")
        for level, look, name in (
            (chance, _GUESS, "Guessing"),
            (mixes, _MIXES, "Label distributions alone"),
        )
    ]


def confusion_figure(record: Record) -> Figures | None:
    """Confusion of clients: a map for each attack and seed."""
    runs = in_order(record)
    if not runs:
        return None

    def panels(inside: list[Run]) -> tuple[Panel, ...]:
        return tuple(_map(run) for run in inside)

    return Figures(
        "sources-confusion",
        "Of each client's samples (row), the share that is said to be each client's (column). On "
        "the diagonal the owner is named. A dark column is a client that others' samples are taken "
        "for; the table below has the counts.",
        choices_of(runs, lambda run: (*_setting(run), f"seed {run.seed}"), panels),
        shape="map",
    )


def _map(run: Run) -> Panel:
    names = [str(client) for client in run.clients]
    gap = 1 if len(names) <= MOST_APART else 0
    shares = [[amount / max(sum(row), 1) for amount in row] for row in run.confusion]
    heat: Spec = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": shares,
        "hovertext": [[count(amount) for amount in row] for row in run.confusion],
        "zmin": 0,
        "zmax": 1,
        "colorscale": _MAP,
        "xgap": gap,
        "ygap": gap,
        "colorbar": {"tickformat": ".0%", "thickness": 12, "outlinewidth": 0, "nticks": 6},
        "hovertemplate": "of client %{y}, said to be client %{x}'s: %{z:.1%} "
        "(%{hovertext})<extra></extra>",
    }
    if len(names) <= MOST_WRITTEN:
        heat["text"] = [
            [count(amount) if amount else "" for amount in row] for row in run.confusion
        ]
        heat["texttemplate"] = "%{text}"
    axis = {"type": "category", "nticks": 20, "showgrid": False}
    spec = spec_of(
        [heat],
        xaxis={**axis, "title": {"text": "Said to be client"}},
        yaxis={**axis, "title": {"text": "From client"}, "autorange": "reversed"},
    )
    name = shortened(run.attack)
    return Panel(name, f"Whose samples {name} says are whose; the table has the counts.", spec)


def overfitting_figure(record: Record) -> Figures | None:
    """Each client's success against its overfitting; None where that was not counted."""
    runs = [run for run in in_order(record) if run.overfitting]
    if not runs:
        return None
    seeds = distinct(run.seed for run in runs)
    looks = {seed: style(place) for place, seed in enumerate(seeds)}

    def panels(inside: list[Run]) -> tuple[Panel, ...]:
        spec = spec_of(
            [_client_dots(run, looks[run.seed]) for run in inside],
            xaxis={
                "title": {"text": "Overfitting: training less test accuracy"},
                "tickformat": ".0%",
                "nticks": 7,
            },
            yaxis={**_SHARE, "range": [-0.04, 1.04]},
        )
        name = shortened(inside[0].attack)
        return (Panel(name, f"Success of {name} for each client by its overfitting.", spec),)

    keys = tuple(
        LegendEntry(f"Seed {seed}", series_name(f"Seed {seed}"), swatch(looks[seed], lined=False))
        for seed in seeds
    )
    return Figures(
        "sources-overfitting",
        "A dot for each client: the share of its samples that are said to be its own, against how "
        "much better its model is on its own data than on test data. Clients that hold few classes "
        "stand on the right as well, since test data hold them all.",
        choices_of(runs, _setting, panels),
        keys if len(seeds) > 1 else (),
    )


def _client_dots(run: Run, look: Style) -> Spec:
    own = [row[at] / max(sum(row), 1) for at, row in enumerate(run.confusion)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": series_name(f"Seed {run.seed}"),
        "x": list(run.overfitting),
        "y": own,
        "text": [f"client {client}" for client in run.clients],
        "marker": {"size": 9, "color": look.color, "symbol": look.symbol, "opacity": 0.85},
        "hovertemplate": hover_text("%{text}: %{y:.1%} named at %{x:.1%}", f"Seed {run.seed}"),
    }


def _key(one: Run | Estimate) -> tuple[object, ...]:
    return one.attack, one.defense, one.view, one.seed


def _setting(run: Run) -> tuple[str, ...]:
    return (
        shortened(run.attack),
        shortened(defense_name(run.defense)),
        f"view: {shortened(run.view)}",
    )
