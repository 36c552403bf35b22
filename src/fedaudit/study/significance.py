"""Which figures are above guessing once all that a study tested is allowed for."""

from collections.abc import Mapping, Sequence

from fedaudit.metrics import combined, holm, mean_over_seeds
from fedaudit.study.record import Figure
from fedaudit.study.truth import Findings


def corrected(findings: Findings, alpha: float) -> list[Figure]:
    """All figures and their means over runs, with significance corrected over the whole study.

    Means make a family of their own: a reader looks at them or at single runs, not at the
    largest of both.
    """
    single = _with_significance(findings.figures, findings.p_values, alpha)
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, figure in enumerate(findings.figures):
        if figure.metric != "epsilon":
            key = (figure.attack, figure.contrast, figure.target, figure.metric)
            groups.setdefault(key, []).append(place)
    several = [places for places in groups.values() if len(places) > 1]
    means = [_mean([findings.figures[place] for place in places]) for places in several]
    p_values = {
        row: combined([findings.p_values[place] for place in places])
        for row, places in enumerate(several)
        if all(place in findings.p_values for place in places)
    }
    return single + _with_significance(means, p_values, alpha)


def _with_significance(
    figures: Sequence[Figure], p_values: Mapping[int, float], alpha: float
) -> list[Figure]:
    places = sorted(p_values)
    significant = holm([p_values[place] for place in places], alpha=alpha).significant
    by_place = dict(zip(places, significant, strict=True))
    return [
        figure.model_copy(update={"significant": by_place.get(place)})
        for place, figure in enumerate(figures)
    ]


def _mean(figures: Sequence[Figure]) -> Figure:
    """One figure of several runs; some may have refused it."""
    values = [figure.value for figure in figures if figure.value is not None]
    if len(values) < 2:
        refused = next(figure for figure in figures if figure.value is None)
        note = f"{len(values)} of {len(figures)} seeds gave this figure, and a mean needs two"
        return refused.model_copy(update={"seed": None, "note": f"{note}: {refused.note}"})
    mean = mean_over_seeds(values)
    of_all = f" of {len(figures)}" if len(values) < len(figures) else ""
    return figures[0].model_copy(
        update={
            "seed": None,
            "value": mean.value,
            # All that is averaged are shares; Student's interval does not know that.
            "low": None if mean.low is None else max(mean.low, 0.0),
            "high": None if mean.high is None else min(mean.high, 1.0),
            "method": mean.method,
            "n_members": sum(figure.n_members for figure in figures),
            "n_nonmembers": sum(figure.n_nonmembers for figure in figures),
            "realised_fpr": None,
            "low_at_threshold": None,
            "high_at_threshold": None,
            "note": f"mean over {mean.seeds}{of_all} seeds",
        }
    )
