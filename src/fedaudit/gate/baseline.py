"""Comparison of a record with the record of the last release: no estimate significantly higher."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from operator import attrgetter
from typing import NamedTuple

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import AUC
from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import format_value, metric_name
from fedaudit.gate.judged import CONTRASTS, raise_if_too_many_figures, run_of, unfair_contrasts
from fedaudit.gate.outcome import Outcome, confidence_level
from fedaudit.gate.policy import BaselinePolicy, MembershipPolicy, Policy
from fedaudit.gate.sample_size import RequiredSamples, format_more
from fedaudit.gate.trust import doubts_about
from fedaudit.gate.verdict import (
    MISSING_FIGURE,
    Check,
    FigureCheck,
    ceiling_check,
    requirement_check,
)
from fedaudit.metrics import EstimateWithLimits, holm
from fedaudit.metrics.increase import Increase
from fedaudit.report.differing import change_at, dict_or_empty, differing_paths
from fedaudit.results.estimate import SUCCESS_RATE, Coordinates, Estimate
from fedaudit.results.record import Record

_ALPHA = 0.05
"""Probability that any figure fails although none has increased by more than the policy allows."""
_POWER = 0.8
"""Probability with which a relevant increase must be detected."""

_MAY_DIFFER = frozenset(
    {"name", "about", "hours", "seeds", "model", "models", "pretraining"}
    | {"algorithm", "training", "defense", "risk", "code"}
)
"""Settings in which two releases of a simulated federation may differ."""
_RECORDING_KEYS = ("view", "every", "attacks", "targets", "task", "table", "names")
"""Keys of the table ``recording`` that must be equal in both records."""
_FIGURE_SETTINGS = ("evaluation", "null_members")

_subject = attrgetter("metric", *(Coordinates.model_fields.keys() - {"defense", "view", "seed"}))
"""Key of an estimate that is equal in the records of both releases."""


def raise_if_incomparable(record: Record, baseline: Record) -> None:
    """Raise if a record cannot be compared with the record of the last release.

    Adversary, attacks, data, audited samples and version must be equal. The model, its training and
    its defenses may differ, and in a live recording also the number of samples.

    Raises:
        BadInput: The records differ; the message names the first difference.
    """
    difference = next(_differences(record, baseline), None)
    if difference is not None:
        raise BadInput(
            f"the baseline {shorten(baseline.name)!r} cannot be compared with "
            f"{shorten(record.name)!r}: {difference}; audit the last release again with the "
            "settings and the version of this audit"
        )


def _differences(record: Record, baseline: Record) -> Iterator[str]:
    new, old = _facts(record), _facts(baseline)
    for path in differing_paths(new, old):
        yield change_at(path, new, old)


def _facts(record: Record) -> dict[str, object]:
    """Return the properties that must be equal in both records, by the names of settings."""
    config = record.config
    # Records store the setting audit.samples under its older name.
    names = {"fair": "samples"}
    table = dict_or_empty(config.get("audit"))
    audit = {names.get(name, name): value for name, value in table.items() if name != "keep"}
    figures = dict_or_empty(config.get("figures"))
    recording = dict_or_empty(config.get("recording"))
    settings = {
        **{name: value for name, value in config.items() if name not in _MAY_DIFFER},
        "audit": audit,
        "figures": {name: figures.get(name) for name in _FIGURE_SETTINGS},
        "recording": {name: recording.get(name) for name in _RECORDING_KEYS},
    }
    return {
        "kind of the result": record.kind,
        "live recording": record.watched,
        "audited unit": record.unit,
        "adversary's view": record.view.name,
        "version of fedaudit": record.environment.versions.get("fedaudit", ""),
        **settings,
        "attacks": {
            row.name: {
                "signals": row.signals,
                "over_clients": row.over_clients,
                "over_rounds": row.over_rounds,
                "status": row.status,
                "settings": dict_or_empty(config.get("attacks")).get(row.name, {}),
            }
            for row in record.attacks
        },
    }


class _Pair(NamedTuple):
    """New and old estimate of one figure; the old one is None if the baseline lacks it."""

    new: Estimate
    old: Estimate | None
    fault: str


def baseline_checks(record: Record, baseline: Record, policy: Policy) -> Iterator[Check]:
    """Yield a check for each metric and kind of non-members that the policy compares.

    All figures form one family of tests. A figure fails if its increase is significantly larger
    than the allowed one after Holm's correction. It is inconclusive if the audits are too small to
    detect the relevant increase.

    Args:
        record: Record of this release, with marked doubts.
        baseline: Comparable record of the last release, with marked doubts.
        policy: Policy; without a table ``baseline``, its defaults apply.
    """
    rule = policy.baseline or BaselinePolicy()
    unsound = (
        doubts_about(baseline, policy.evidence).unsound
        or doubts_about(record, policy.evidence).unsound
    )
    metrics = rule.metrics or [
        metric
        for metric in (AUC, SUCCESS_RATE)
        if any(figure.metric == metric for figure in _candidates(record))
    ]
    groups = {
        (metric, contrast): [
            _Pair(new, old, unsound or _fault(new, old, policy.evidence.confidence))
            for new, old in _figures(record, baseline, policy, metric, contrast)
        ]
        for metric in metrics
        for contrast in _contrasts(record, policy, metric)
    }
    n_figures = sum(map(len, groups.values()))
    raise_if_too_many_figures(n_figures)
    pairs = [pair for group in groups.values() for pair in group if not pair.fault]
    tests = holm([_increase(pair).p_value(rule.allow) for pair in pairs], alpha=_ALPHA)
    increased = {
        id(pair.new)
        for pair, significant in zip(pairs, tests.significant, strict=True)
        if significant
    }
    if not groups:
        yield requirement_check(
            "baseline", "comparison with the baseline", [MISSING_FIGURE], Outcome.INCONCLUSIVE
        )
    for (metric, contrast), group in groups.items():
        name = f"increase of {metric_name(metric)} since the baseline"
        name += f" against {CONTRASTS[contrast]}" if contrast else ""
        results = [
            _compare(pair, rule, len(pairs), has_increased=id(pair.new) in increased)
            for pair in group
        ]
        yield ceiling_check("baseline", name, metric, rule.allow, results)


def _contrasts(record: Record, policy: Policy, metric: str) -> Sequence[str]:
    """Return the kinds of non-members to compare; "" for metrics without non-members."""
    if not any(f.metric == metric and f.is_of_attack for f in record.findings):
        return ("",)
    membership = policy.membership or MembershipPolicy()
    unfair = unfair_contrasts(record)
    return [contrast for contrast in membership.contrasts if contrast not in unfair]


def _figures(
    record: Record, baseline: Record, policy: Policy, metric: str, contrast: str
) -> list[tuple[Estimate, Estimate | None]]:
    """Return each compared estimate with that of the baseline."""
    rule = policy.baseline or BaselinePolicy()
    new, old = (_by_subject(each, policy, metric, contrast) for each in (record, baseline))
    # If each attack has a figure over all clients, the other figures are not needed.
    pooled = {subject for subject, figure in new.items() if figure.target is None}
    attacks = {figure.attack for figure in new.values()}
    is_pooled = rule.clients == "pooled" and attacks == {new[s].attack for s in pooled & old.keys()}
    return [
        (figure, old.get(subject))
        for subject, figure in new.items()
        if (subject in pooled) == is_pooled or figure.topic != "membership"
    ]


def _by_subject(
    record: Record, policy: Policy, metric: str, contrast: str
) -> Mapping[object, Estimate]:
    """Return the estimates of a metric over the runs of a record, by what they describe."""
    membership = policy.membership or MembershipPolicy()
    figures = [
        figure
        for figure in _candidates(record)
        if figure.metric == metric
        and not figure.against
        and (not contrast or figure.contrast == contrast)
        and (figure.topic != "membership" or _is_judged(figure, membership))
    ]
    # Estimates over all runs come last, so that they replace those of single runs.
    ordered = sorted(figures, key=lambda figure: figure.seed is None)
    return {_subject(figure): figure for figure in ordered}


def _candidates(record: Record) -> list[Estimate]:
    return [
        *(figure for figure in record.findings if figure.is_of_attack),
        *record.source_estimates,
        *(estimate for point in record.games for estimate in point.estimates),
    ]


def _is_judged(figure: Estimate, membership: MembershipPolicy) -> bool:
    numbers = membership.client_numbers
    return (not membership.attacks or figure.attack in membership.attacks) and (
        not numbers or figure.target in numbers
    )


def _fault(new: Estimate, old: Estimate | None, confidence: float) -> str:
    """Return why two estimates cannot be compared; "" if they can."""
    if old is None:
        return "the baseline has no such figure"
    for figure, where in ((new, ""), (old, "in the baseline, ")):
        level = confidence_level(figure.method)
        if figure.value is None or (figure.low is None and figure.high is None):
            return where + (figure.note or MISSING_FIGURE)
        if level is None or level < confidence - 1e-9:
            return f"{where}its limits have no confidence level of {confidence:g}"
        if figure.doubt:
            return f"{where}the control {figure.doubt} failed"
    return ""


def _increase(pair: _Pair) -> Increase:
    assert pair.old is not None
    new, old = (
        EstimateWithLimits(
            figure.number,
            figure.range.minimum if figure.low is None else figure.low,
            figure.range.maximum if figure.high is None else figure.high,
        )
        for figure in (pair.new, pair.old)
    )
    levels = [confidence_level(figure.method) or 0.95 for figure in (pair.new, pair.old)]
    return Increase(new, old, (levels[0], levels[1]))


def _compare(
    pair: _Pair, rule: BaselinePolicy, n_tests: int, *, has_increased: bool
) -> FigureCheck:
    """Return the outcome for one figure."""
    what = str(run_of(pair.new))
    if pair.fault:
        return FigureCheck(what=what, value=None, outcome=Outcome.INCONCLUSIVE, reason=pair.fault)
    increase = _increase(pair)
    limits = increase.limits()
    detectable = rule.allow + increase.smallest_detectable(
        tests=n_tests, alpha=_ALPHA, power=_POWER
    )
    outcome, reason, more = Outcome.PASS, "", None
    if has_increased:
        outcome = Outcome.FAIL
        assert pair.old is not None
        values = (format_value(figure.value, pair.new.metric) for figure in (pair.old, pair.new))
        reason = f"from {' to '.join(values)}, more than noise"
    elif detectable > rule.relevant:
        outcome = Outcome.INCONCLUSIVE
        texts = (format_value(value, pair.new.metric) for value in (detectable, rule.relevant))
        detected, relevant = texts
        reason = (
            f"audits of this size detect an increase of {detected} or more, but the policy "
            f"requires {relevant} (baseline.relevant)"
        )
        more = _more_samples(pair.new, detectable - rule.allow, rule)
    return FigureCheck(
        what=what,
        value=increase.value,
        low=max(limits.low, -1.0),
        high=min(limits.high, 1.0),
        method="difference of independent estimates 95%",
        outcome=outcome,
        reason=reason,
        more=more,
    )


def _more_samples(figure: Estimate, detectable: float, rule: BaselinePolicy) -> RequiredSamples:
    """Return the samples with which both audits would detect the relevant increase.

    Limits narrow with the square root of the number of samples.
    """
    required, samples = rule.relevant - rule.allow, figure.n_members + figure.n_nonmembers
    samples = samples or figure.samples
    what = "audited samples"
    if required <= 0 or not samples:
        text = "no number of samples would be enough"
        return RequiredSamples(what=what, count=0, then=None, text=text)
    count = ceil(samples * ((detectable / required) ** 2 - 1))
    text = f"about {format_more(count, what)} in both audits, over all seeds, would be enough"
    return RequiredSamples(what=what, count=count, then=None, text=text)
