"""What figures of clustered learning share: a choice for each run, axes of rounds and clients."""

from collections.abc import Callable

from fedaudit.report.clusters import Run
from fedaudit.report.drawing import Panel, Spec
from fedaudit.report.grid import shortened
from fedaudit.report.names import defense_name


def each(
    panels: Callable[[Run], tuple[Panel, ...]],
) -> Callable[[list[Run]], tuple[Panel, ...]]:
    """The panels of the one run that a setting has."""
    return lambda inside: panels(inside[0])


def setting(run: Run) -> tuple[str, ...]:
    """What sets one run's panels apart from another's."""
    return (
        shortened(run.algorithm),
        shortened(defense_name(run.defense)),
        f"seed {run.seed}",
    )


def rounds_axis(run: Run) -> Spec:
    """Few rounds are named one by one: plotly would put marks between them."""
    rounds = [one.round for one in run.rounds]
    ticks: Spec = {"tickvals": rounds} if len(rounds) <= 6 else {"nticks": 7}
    return {"title": {"text": "Round"}, "tickformat": "d", **ticks}


def clients_axis(title: str, most: int) -> Spec:
    """An axis of whole clients: of few, plotly would mark halves as well."""
    ticks: Spec = {"dtick": 1} if most <= 5 else {"nticks": 6}
    return {"title": {"text": title}, **ticks}
