"""Records of version 2, which had classes of their own for figures on other topics than members."""

from collections.abc import Mapping
from statistics import fmean

from pydantic import Field, model_validator

from fedaudit.results.clusters import ClusterResult
from fedaudit.results.estimate import GUESSING, Estimate, Test
from fedaudit.results.fields import Change, Part, Share, Whole
from fedaudit.results.metrics import (
    ACCURACY,
    GENERALISATION_GAP,
    TEST_ACCURACY,
    TRAIN_ACCURACY,
    UPLOAD_GAP,
)
from fedaudit.results.record import AccuracyByRound
from fedaudit.results.sources import LABELS, SourceResult

VERSION_2 = 2
_ALPHA = 0.05


class _Utility(Part):
    defense: str = "none"
    seed: Whole
    test_accuracy: Share
    test_low: Share
    test_high: Share
    n_test: Whole
    train_accuracy: Share
    generalisation_gap: Change
    upload_gap: Change | None = None
    rounds: list[Whole] = Field(default_factory=list)
    accuracy_by_round: list[Share] = Field(default_factory=list)


class _Source(SourceResult):
    success: Share
    low: Share
    high: Share
    null_high: Share
    p_value: Share
    label_baseline: Share | None = None
    label_baseline_change: Change | None = None
    label_baseline_p_value: Share | None = None
    by_class_mix: Share
    class_p_value: Share

    @model_validator(mode="before")
    @classmethod
    def _without_counts(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        old = ("blind", "blind_change", "blind_p_value")
        return {key: value for key, value in given.items() if key not in old}


class _Served(Part):
    group: str
    clients: Whole
    right: Whole
    tested: Whole
    accuracy: Share
    low: Share
    high: Share


class _Gap(Part):
    metric: str
    value: Share
    low: Share
    high: Share


class _Cluster(ClusterResult):
    violations: Whole
    sure_violations: Whole
    expected_violations: Whole
    accuracy: list[_Served]
    fairness: list[_Gap] = Field(default_factory=list)


class _Old(Part):
    utility: list[_Utility] = Field(default_factory=list)
    sources: list[_Source] = Field(default_factory=list)
    clusters: list[_Cluster] = Field(default_factory=list)


def from_version_2(document: Mapping[str, object]) -> dict[str, object]:
    """The document as this version has it; the content hash stays what it is."""
    names = ("utility", "sources", "clusters")
    gone = (*names, "source_figures", "cluster_means")
    found = {name: value for name, value in document.items() if name not in gone}
    found["version"] = 3
    given = {name: document[name] for name in names if name in document}
    old = _Old.model_validate(given, strict=True)
    gaps = {(one.defense, one.seed): one.overfitting for one in old.sources if one.overfitting}
    said = any(one.upload_gap is not None for one in old.utility)
    figures = [
        figure
        for one in old.utility
        for figure in _utility(one, [] if said else gaps.get((one.defense, one.seed), []))
    ]
    if old.sources:
        figures += _of_sources(old, _alpha(document))
    if old.clusters:
        figures += _as_recorded(_of_clusters(old), document.get("cluster_means"))
    estimates = document.get("estimates", [])
    found["estimates"] = [
        *(estimates if isinstance(estimates, list) else []),
        *(one.model_dump(mode="json", exclude_defaults=True) for one in figures),
    ]
    found["accuracies"] = [
        AccuracyByRound(
            defense=one.defense, seed=one.seed, rounds=one.rounds, accuracy=one.accuracy_by_round
        ).model_dump(mode="json")
        for one in old.utility
        if one.rounds
    ]
    found["sources"] = [_less(one, SourceResult) for one in old.sources]
    found["clusters"] = [_less(one, ClusterResult) for one in old.clusters]
    return found


def _less(one: Part, kind: type[Part]) -> dict[str, object]:
    return one.model_dump(mode="json", include=set(kind.model_fields))


def _alpha(document: Mapping[str, object]) -> float:
    config = document.get("config")
    figures = config.get("figures") if isinstance(config, Mapping) else None
    alpha = figures.get("alpha") if isinstance(figures, Mapping) else None
    return alpha if isinstance(alpha, float) and 0 < alpha < 1 else _ALPHA


def _utility(one: _Utility, overfitting: list[float]) -> list[Estimate]:
    at = Estimate(
        topic="utility",
        defense=one.defense,
        seed=one.seed,
        metric=TEST_ACCURACY,
        value=one.test_accuracy,
        low=one.test_low,
        high=one.test_high,
        method="Clopper-Pearson 95%",
        samples=one.n_test,
    )
    gap = fmean(overfitting) if overfitting else one.upload_gap
    others = {
        TRAIN_ACCURACY: one.train_accuracy,
        GENERALISATION_GAP: one.generalisation_gap,
        UPLOAD_GAP: gap,
    }
    alone = {"low": None, "high": None, "method": "", "samples": 0}
    return [
        at,
        *(
            at.model_copy(update={"metric": metric, "value": value, **alone})
            for metric, value in others.items()
            if value is not None
        ),
    ]


def _of_sources(old: _Old, alpha: float) -> list[Estimate]:
    # Few records come this far, and the arithmetic takes longer to load than a report to write.
    from fedaudit.metrics import Limited
    from fedaudit.results.aggregate import corrected, each_over_runs
    from fedaudit.results.source_figures import Baseline, source_figures

    figures = []
    for one in old.sources:
        baseline = None
        if one.label_baseline is not None and one.label_baseline_change is not None:
            baseline = Baseline(
                one.label_baseline, one.label_baseline_change, one.label_baseline_p_value
            )
        figures += source_figures(
            one,
            Limited(one.success, one.low, one.high),
            Test(null=GUESSING, level=one.chance, high=one.null_high, p_value=one.p_value),
            Test(null=LABELS, level=one.by_class_mix, p_value=one.class_p_value),
            baseline,
        )
    return figures + corrected(each_over_runs(figures), alpha)


def _as_recorded(figures: list[Estimate], means: object) -> list[Estimate]:
    """With the figures of single runs as they were written: older ones had fewer limits."""
    written, names = {}, ("algorithm", "defense", "figure", "group")
    limits = {"value": None, "low": None, "high": None, "method": ""}
    for one in means if isinstance(means, list) else ():
        if isinstance(one, Mapping) and len(one.get("seeds", ())) == 1:
            key = tuple(one.get(name, "none") for name in names)
            written[key] = {name: one.get(name, default) for name, default in limits.items()}
    keys = [(one.algorithm, one.defense, one.metric, one.group) for one in figures]
    return [
        one.model_copy(update=written[key]) if key in written else one
        for one, key in zip(figures, keys, strict=True)
    ]


def _of_clusters(old: _Old) -> list[Estimate]:
    from fedaudit.results.aggregate import each_over_runs
    from fedaudit.results.cluster_figures import cluster_figures, served_figure

    figures = []
    for one in old.clusters:
        served = [
            served_figure(
                one, ACCURACY, (a.accuracy, a.low, a.high), group=a.group, samples=a.tested
            )
            for a in one.accuracy
        ]
        served += [served_figure(one, g.metric, (g.value, g.low, g.high)) for g in one.fairness]
        figures += cluster_figures(one, served)
    return figures + each_over_runs(figures)
