"""Figures of source inference: success by round, confusion, overfitting."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedaudit.report.evidence import distinct
from fedaudit.report.figures import drawing
from fedaudit.report.grid import shortened
from fedaudit.report.text.sources import Run, on_sources, strongest_on_sources
from fedaudit.report.words import client_name, count, defense_name
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from fedaudit.results.sources import LABELS

MOST_WRITTEN = 15
"""Clients up to which a confusion map has its numbers written in."""

MOST_APART = 40
"""Clients up to which lines part the fields of a confusion map; more would be all lines."""

MOST_TICKS = 10
"""Measured rounds up to which each has a mark on the axis."""

_GUESS = drawing.Style(drawing.GREY, "dot")
_MIXES = drawing.Style(drawing.GREY, "longdash", "square")
_ORACLE = "Oracle round: chosen afterwards"
_SHARE = drawing.Scale("Attack success rate", "%", from_zero=True, count=6)


def source_figures(record: Record) -> list[drawing.Figures | None]:
    """The figures of source inference; None for those that the record has no data for."""
    return [rounds_figure(record), confusion_figure(record), overfitting_figure(record)]


def in_order(record: Record) -> list[Run]:
    """All runs, those of the attack that shows most first."""
    found = on_sources(record)
    best = strongest_on_sources(found)
    ordered = sorted(found, key=lambda one: one is not best)
    return [run for one in ordered for run in one.runs]


def rounds_figure(record: Record) -> drawing.Figures | None:
    """Success in each measured round alone; None where no attack can do with one round."""
    runs = [run for run in in_order(record) if run.by_round]
    if not runs:
        return None
    explained = {_key(one): one.level or 0.0 for one in record.on_sources if one.against == LABELS}
    looks = _looks(runs)
    baselines = {"Guessing": _GUESS, "Label distributions alone": _MIXES}

    def panels(inside: list[Run]) -> tuple[drawing.Panel, ...]:
        series: list[drawing.Drawn] = [
            line for run in inside for line in _round_lines(run, looks[_seed(run)])
        ]
        rounds = sorted(index for run in inside for index in run.rounds)
        chance = sum(run.chance for run in inside) / len(inside)
        mixes = sum(explained[_key(run)] for run in inside) / len(inside)
        series += [
            drawing.level(rounds, value, look, name, "%{y:.1%}")
            for value, (name, look) in zip((chance, mixes), baselines.items(), strict=True)
        ]
        name = shortened(inside[0].attack)
        summary = f"Success of {name} in each measured round."
        return (
            drawing.Panel(
                name, summary, drawing.round_scale(rounds, named=MOST_TICKS), _SHARE, series
            ),
        )

    return drawing.Figures(
        "sources-by-round",
        "Share of samples whose owner is named, each measured round taken alone. Where every "
        "client takes part, the last one is the attack's success in the table. The oracle round is "
        "the best one, chosen afterwards by somebody who knows the answers: no adversary can, so "
        "it is an upper end. Label distributions alone: of the answers in the table, what would be "
        "right if a sample's owner depended on its class alone.",
        drawing.choices_of(runs, _setting, panels),
        (
            *drawing.legend(looks),
            *drawing.legend(baselines, marked=False),
            *drawing.legend({_ORACLE: drawing.Style(drawing.GREY, symbol="diamond")}, lined=False),
        ),
    )


def _seed(run: Run) -> str:
    return f"Seed {run.seed}"


def _looks(runs: Sequence[Run]) -> Mapping[str, drawing.Style]:
    """A style for each seed."""
    return {seed: drawing.style(place) for place, seed in enumerate(distinct(map(_seed, runs)))}


def _round_lines(run: Run, look: drawing.Style) -> tuple[drawing.Series, ...]:
    hover = "%{y:.1%} in round %{x}"
    best = max(range(len(run.rounds)), key=lambda at: run.by_round[at])
    at, value = [run.rounds[best]], [run.by_round[best]]
    oracle = look._replace(symbol="diamond-open")
    return (
        drawing.Series(_seed(run), run.rounds, run.by_round, look, hover, marks=12),
        drawing.Series(_ORACLE, at, value, oracle, hover, joined=False, size=13),
    )


def confusion_figure(record: Record) -> drawing.Figures | None:
    """Confusion of clients: a map for each attack and seed."""
    runs = in_order(record)
    if not runs:
        return None
    return drawing.Figures(
        "sources-confusion",
        "Of each client's samples (row), the share that is said to be each client's (column). On "
        "the diagonal the owner is named. A dark column is a client that others' samples are taken "
        "for; the table below has the counts.",
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
    summary = f"Whose samples {name} says are whose; the table has the counts."
    return drawing.Panel(name, summary, x, y, [heat])


def overfitting_figure(record: Record) -> drawing.Figures | None:
    """Each client's success against its overfitting; None where that was not counted."""
    runs = [run for run in in_order(record) if run.overfitting]
    if not runs:
        return None
    looks = _looks(runs)

    def panels(inside: list[Run]) -> tuple[drawing.Panel, ...]:
        name = shortened(inside[0].attack)
        summary = f"Success of {name} for each client by its overfitting."
        x = drawing.Scale("Overfitting: training less test accuracy", "%", count=7)
        y = replace(_SHARE, ends=(-0.04, 1.04))
        dots = [_client_dots(run, looks[_seed(run)]) for run in inside]
        return (drawing.Panel(name, summary, x, y, dots),)

    return drawing.Figures(
        "sources-overfitting",
        "A dot for each client: the share of its samples that are said to be its own, against how "
        "much better its model is on its own data than on test data. Clients that hold few classes "
        "stand on the right as well, since test data hold them all.",
        drawing.choices_of(runs, _setting, panels),
        drawing.legend(looks, lined=False) if len(looks) > 1 else (),
    )


def _client_dots(run: Run, look: drawing.Style) -> drawing.Series:
    own = [row[at] / max(sum(row), 1) for at, row in enumerate(run.confusion)]
    return drawing.Series(
        _seed(run),
        run.overfitting,
        own,
        look,
        "%{text}: %{y:.1%} named at %{x:.1%}",
        joined=False,
        size=9,
        texts=[client_name(client) for client in run.clients],
    )


def _key(one: Run | Estimate) -> tuple[object, ...]:
    return one.attack, one.defense, one.view, one.seed


def _setting(run: Run) -> tuple[str, ...]:
    return (
        shortened(run.attack),
        shortened(defense_name(run.defense)),
        f"view: {shortened(run.view)}",
    )
