"""Custom metrics and the coverage of their bootstrap intervals."""

import numpy as np
import pytest
from jaxtyping import Bool, Float
from sklearn.metrics import average_precision_score, roc_auc_score

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import Origin
from fedaudit.metrics import METRICS, Metric
from fedaudit.metrics.catalogue import (
    average_precision,
    bootstrap_interval,
    evaluate_metric,
    resolve_metric,
)

Scores = Float[np.ndarray, " samples"]
Members = Bool[np.ndarray, " samples"]


def gap(scores: Scores, is_member: Members) -> float:
    return float(scores[is_member].mean() - scores[~is_member].mean())


def scored(rng: np.random.Generator, members: int, others: int) -> tuple[Scores, Members]:
    is_member = np.arange(members + others) < members
    return rng.normal(size=len(is_member)) + 0.5 * is_member, is_member


@pytest.mark.simulation
@pytest.mark.slow
def test_the_interval_has_its_coverage() -> None:
    metric, covered = Metric(gap, resamples=200), 0
    runs = 300
    for run in range(runs):
        rng = np.random.default_rng([7, run])
        _, low, high = bootstrap_interval(metric, *scored(rng, 40, 60), rng=rng, confidence=0.9)
        covered += low <= 0.5 <= high
    # Six standard errors of a share of 0.9 in 300 runs would be 0.1; three are allowed for.
    assert 0.85 <= covered / runs <= 0.95


def test_custom_metrics_are_added_to_every_contrast() -> None:
    rng = np.random.default_rng(0)
    scores, is_member = scored(rng, 50, 100)
    origin = np.where(is_member, Origin.MEMBER, Origin.OTHER_CLIENT)
    origin[-60:] = Origin.UNSEEN
    by_contrast = {
        e.contrast: e for e in evaluate_metric("gap", Metric(gap), scores, origin, rng=rng)
    }
    assert by_contrast["mixed"].value == pytest.approx(gap(scores, is_member))
    assert [e.n_nonmembers for e in by_contrast.values()] == [40, 60, 100]
    few = evaluate_metric(
        "gap", Metric(gap), scores[45:55], origin[45:55], rng=rng, origin_codes=True
    )
    assert all(e.value is None and "needs 10 of each" in e.note for e in few)


def test_a_failing_metric_raises_with_its_name() -> None:
    rng = np.random.default_rng(0)
    broken = Metric(lambda scores, is_member: float("nan"))
    with pytest.raises(BadInput, match="the metric 'mine' is nan on 40 samples"):
        bootstrap_interval(broken, *scored(rng, 20, 20), rng=rng, name="mine")
    with pytest.raises(BadInput, match="did you mean 'partial_auc'"):
        resolve_metric("partial_aucs")
    with pytest.raises(BadInput, match="every evaluation computes the metric 'auc'"):
        resolve_metric("auc")


def test_the_table_matches_other_libraries() -> None:
    scores, is_member = scored(np.random.default_rng(1), 200, 300)
    plain_metrics = {name: metric for name, metric in METRICS.items() if isinstance(metric, Metric)}
    values = {name: metric.function(scores, is_member) for name, metric in plain_metrics.items()}
    assert values["partial_auc"] == roc_auc_score(is_member, scores, max_fpr=0.1)
    order = np.argsort(-scores)
    precision = np.cumsum(is_member[order]) / np.arange(1, 501)
    assert values["average_precision"] == pytest.approx(precision[is_member[order]].mean())
    with_ties = np.round(scores)
    assert average_precision(with_ties, is_member) == pytest.approx(
        average_precision_score(is_member, with_ties)
    )
