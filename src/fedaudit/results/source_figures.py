"""The figures of source inference in one run."""

from typing import NamedTuple

from fedaudit.metrics import Limited
from fedaudit.results.estimate import Estimate, Test
from fedaudit.results.metrics import SUCCESS_RATE
from fedaudit.results.sources import LABEL_BASELINE, LABELS, SourceResult


class Baseline(NamedTuple):
    """Success of naming the client of whose data a sample's class is the largest share.

    Attributes:
        success: Share of samples whose client that names.
        change: The attack's success less that.
        p_value: Two-sided, exact, on the same samples; None where only both successes are known.
    """

    success: float
    change: float
    p_value: float | None


def source_figures(
    found: SourceResult, success: Limited, guessing: Test, labels: Test, baseline: Baseline | None
) -> list[Estimate]:
    """The figures of one attack in one run: its success, and what of it is beyond label mixes.

    Args:
        found: The answers.
        success: Share of samples whose client was named, with Clopper-Pearson limits.
        guessing: Against shuffled owners, with their mean and 95 % quantile.
        labels: Against owners shuffled within each class, with the mean success.
        baseline: None where it is not known.
    """
    whole = Estimate(
        topic="source",
        attack=found.attack,
        defense=found.defense,
        view=found.view,
        seed=found.seed,
        metric=SUCCESS_RATE,
        value=success.value,
        low=success.low,
        high=success.high,
        method="Clopper-Pearson 95%",
        samples=found.samples,
        tests=[guessing],
    )
    # The level is a mean over a thousand shuffles: its own error is small beside the success's.
    less = labels.level or 0.0
    excess = {
        "against": LABELS,
        "value": success.value - less,
        "low": success.low - less,
        "high": success.high - less,
        "tests": [labels],
    }
    figures = [whole, whole.model_copy(update=excess)]
    if baseline is None:
        return figures
    test = Test(
        null=LABEL_BASELINE, level=baseline.success, p_value=baseline.p_value, two_sided=True
    )
    nothing = dict.fromkeys(("low", "high"))
    over = {"against": LABEL_BASELINE, "value": baseline.change, "method": "", "tests": [test]}
    return [*figures, whole.model_copy(update={**nothing, **over})]
