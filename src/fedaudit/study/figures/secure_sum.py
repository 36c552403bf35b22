"""Figures on one client's update in the sum of one round."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fedaudit.core.metric_names import SECURE_SUM_EPSILON, SECURE_SUM_EPSILON_IF_GAUSSIAN
from fedaudit.core.values import ClientId
from fedaudit.defenses.accounting import FORMAL_DELTA
from fedaudit.metrics.epsilon import bound_method
from fedaudit.results.estimate import Estimate
from fedaudit.study.setup.canaries import client_dp_of
from fedaudit.study.setup.parts import Setup

_ERROR = 0.05
_UNIT = (
    "unit: one client's update (it or zero in its place, weight and noise as they are), to whoever "
    "has the last round's sum and the model before it, knows the update, and knows of the other "
    "clients' data that they are random draws from the training samples"
)
_NOT_NORMAL = (
    "no noise is added, and the sum of a few updates need not be normal: this bound would be above "
    "the truth by any amount"
)


class SumFound(NamedTuple):
    """Bounds on the epsilon of one client's update in one round's sum.

    Attributes:
        counted: Of the counted bound.
        ceiling: What that could have been at most.
        if_gaussian: Of the bound for a normal reading.
    """

    counted: float
    ceiling: float
    if_gaussian: float


def sum_figures(
    runs: Sequence[Setup], found: Sequence[Mapping[ClientId, SumFound]]
) -> list[Estimate]:
    """Bounds of each audited client in each run, and the least of all runs.

    That is a bound for every one of them; of the largest it is not known how often it is wrong.

    Args:
        runs: Of one study.
        found: For each run, what was found of each audited client.
    """
    figures = [
        figure
        for run, bounds in zip(runs, found, strict=True)
        for figure in _figures(run, bounds, run.seed)
    ]
    if len(runs) == 1:
        return figures
    least = {
        target: SumFound(*map(min, zip(*(bounds[target] for bounds in found), strict=True)))
        for target in found[0]
    }
    return figures + _figures(runs[0], least, None)


def _figures(run: Setup, found: Mapping[ClientId, SumFound], seed: int | None) -> list[Estimate]:
    assert run.study.secure_sum is not None
    private = client_dp_of(run.defenses)
    noisy = private is not None and private.noise_multiplier > 0
    unit = _UNIT if seed is not None else f"{_UNIT}; the least of all runs"
    figures = []
    for target, bounds in found.items():
        figure = partial(
            Estimate,
            defense=run.study.defense.label,
            view=run.view.name,
            contrast="unseen",
            target=target,
            seed=seed,
            samples=run.study.secure_sum.draws,
        )
        figures += [
            figure(
                note=unit,
                metric=SECURE_SUM_EPSILON,
                value=bounds.counted,
                ceiling=bounds.ceiling,
                method=bound_method("linear test, Clopper-Pearson", FORMAL_DELTA, _ERROR),
            ),
            figure(
                note=unit if noisy else _NOT_NORMAL,
                metric=SECURE_SUM_EPSILON_IF_GAUSSIAN,
                value=bounds.if_gaussian if noisy else None,
                method=bound_method("linear test, Gaussian", FORMAL_DELTA, _ERROR),
            ),
        ]
    return figures
