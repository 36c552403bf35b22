"""Which figures are above guessing once all that a study tested is allowed for."""

from collections.abc import Mapping, Sequence

from fedaudit.core.metric_names import EPSILON
from fedaudit.metrics import combined
from fedaudit.results import aggregate
from fedaudit.results.aggregate import over_runs
from fedaudit.results.estimate import Estimate, Test, tests_of
from fedaudit.study.figures.truth import Findings


def corrected(findings: Findings, alpha: float) -> list[Estimate]:
    """All figures and their means over runs, with significance corrected over the whole study.

    Means make a family of their own: a reader looks at them or at single runs, not at the
    largest of both.
    """
    single = _with_significance(findings.figures, findings.p_values, alpha)
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, figure in enumerate(findings.figures):
        if figure.metric != EPSILON:
            key = (figure.attack, figure.contrast, figure.target, figure.metric)
            groups.setdefault(key, []).append(place)
    several = [places for places in groups.values() if len(places) > 1]
    means = [
        over_runs(
            [findings.figures[place] for place in places],
            [findings.limits[place] for place in places if place in findings.limits],
        )
        for places in several
    ]
    known = findings.p_values
    tested = [[known[place] for place in places if place in known] for places in several]
    # A run that refused the figure was not tested, and says nothing against the others.
    p_values = {row: combined(given) for row, given in enumerate(tested) if given}
    return single + _with_significance(means, p_values, alpha)


def _with_significance(
    figures: Sequence[Estimate], p_values: Mapping[int, float], alpha: float
) -> list[Estimate]:
    tested = [
        figure.model_copy(update={"tests": [Test(p_value=p_values[at])] if at in p_values else []})
        for at, figure in enumerate(figures)
    ]
    # The outcome alone is kept: a study tests thousands of figures.
    return [
        figure.model_copy(update={"tests": tests_of(figure.significant)})
        for figure in aggregate.corrected(tested, alpha)
    ]
