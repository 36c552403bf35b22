"""Figures of source inference: success by round, and confusion of clients."""

from fedaudit.report.evidence import distinct
from fedaudit.report.figures import drawing
from fedaudit.report.grid import shortened
from fedaudit.report.text.sources import Run, on_sources, strongest_on_sources
from fedaudit.report.words import count, defense_name
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from fedaudit.results.sources import LABELS

MOST_WRITTEN = 15
"""Clients up to which a confusion map has its numbers written in."""
MOST_APART = 40
"""Clients up to which lines separate the fields of a confusion map."""
MOST_TICKS = 10
"""Measured rounds up to which each has a mark on the axis."""

_BASELINES = {
    "Guessing": drawing.Style(drawing.GREY, "dot"),
    "Label distributions alone": drawing.Style(drawing.GREY, "longdash", "square"),
}
_SHARE = drawing.Scale("Attack success rate", "%", from_zero=True, count=6)


def source_figures(record: Record) -> list[drawing.Figures | None]:
    """Return the figures of source inference; None for those without data."""
    return [rounds_figure(record), confusion_figure(record)]


def in_order(record: Record) -> list[Run]:
    """Return all runs, those of the attack that shows most first."""
    found = on_sources(record)
    best = strongest_on_sources(found)
    ordered = sorted(found, key=lambda one: one is not best)
    return [run for one in ordered for run in one.runs]


def rounds_figure(record: Record) -> drawing.Figures | None:
    """Return the success in each measured round; None if no attack works on a single round."""
    runs = [run for run in in_order(record) if run.by_round]
    if not runs:
        return None
    explained = {_key(one): one.level or 0.0 for one in record.on_sources if one.against == LABELS}
    seeds = distinct(f"Seed {run.seed}" for run in runs)
    looks = {seed: drawing.style(place) for place, seed in enumerate(seeds)}

    def panels(inside: list[Run]) -> tuple[drawing.Panel, ...]:
        series: list[drawing.Drawn] = [
            drawing.Series(
                f"Seed {run.seed}",
                run.rounds,
                run.by_round,
                looks[f"Seed {run.seed}"],
                "%{y:.1%} in round %{x}",
                marks=12,
            )
            for run in inside
        ]
        rounds = sorted(index for run in inside for index in run.rounds)
        levels = (
            sum(run.chance for run in inside) / len(inside),
            sum(explained[_key(run)] for run in inside) / len(inside),
        )
        series += [
            drawing.level(rounds, value, look, name, "%{y:.1%}")
            for value, (name, look) in zip(levels, _BASELINES.items(), strict=True)
        ]
        name = shortened(inside[0].attack)
        summary = f"Success of {name} in each measured round."
        scale = drawing.round_scale(rounds, named=MOST_TICKS)
        return (drawing.Panel(name, summary, scale, _SHARE, series),)

    return drawing.Figures(
        "sources-by-round",
        "Share of samples whose owner is named, each measured round alone.",
        drawing.choices_of(runs, _setting, panels),
        (*drawing.legend(looks), *drawing.legend(_BASELINES, marked=False)),
    )


def confusion_figure(record: Record) -> drawing.Figures | None:
    """Return the confusion of clients: a map for each attack and seed."""
    runs = in_order(record)
    if not runs:
        return None
    return drawing.Figures(
        "sources-confusion",
        "Of each client's samples (row), the share that is said to be each client's (column).",
        drawing.choices_of(
            runs,
            lambda run: (*_setting(run), f"seed {run.seed}"),
            lambda inside: [_map(run) for run in inside],
        ),
        shape="map",
    )


def _map(run: Run) -> drawing.Panel:
    names = [str(client) for client in run.clients]
    heat = drawing.Heat(
        names,
        [[amount / max(sum(row), 1) for amount in row] for row in run.confusion],
        [[count(amount) for amount in row] for row in run.confusion],
        written=len(names) <= MOST_WRITTEN,
        apart=len(names) <= MOST_APART,
        hover="of client %{y}, said to be client %{x}'s: %{z:.1%} (%{hovertext})",
    )
    x = drawing.Scale("Said to be client", names=names, count=20)
    y = drawing.Scale("From client", names=names, count=20, ends=(len(names) - 0.5, -0.5))
    name = shortened(run.attack)
    return drawing.Panel(name, f"Whose samples {name} says are whose.", x, y, [heat])


def _key(one: Run | Estimate) -> tuple[object, ...]:
    return one.attack, one.defense, one.view, one.seed


def _setting(run: Run) -> tuple[str, ...]:
    return (
        shortened(run.attack),
        shortened(defense_name(run.defense)),
        f"view: {shortened(run.view)}",
    )
