"""What a record shows about the most exposed sample or person.

Confidence limits of attacks describe the average member. A limit for the most exposed member does
not follow from them: that member is chosen by its score, and by chance alone the
highest score is often a member's. A proven epsilon limits the
success on every single sample.
"""

import math
import re
from typing import NamedTuple

from fedaudit.core import metric_names
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.grid import shorten
from fedaudit.report import evidence
from fedaudit.report.deciding.epsilons import epsilon_bounds
from fedaudit.report.evidence import labels_by_setting, setting_of
from fedaudit.results.estimate import FIXED_THRESHOLD_METHOD, Estimate
from fedaudit.results.guessing import without_failed_controls
from fedaudit.results.record import Record

_FPR = 0.01  # false-positive rate at which the TPR limit of a proven epsilon is stated
_VACUOUS_TPR = 0.99  # a limit of at least this TPR excludes nothing
_ACCOUNTED = re.compile(r"Renyi accountant, delta (\d{1,9}(?:\.\d{1,9})?(?:e-\d{1,3})?)")
_LARGEST_EPSILON = 50.0  # from here on, a limit is 1 in floating-point arithmetic


class Exposure(NamedTuple):
    """Evidence about the most exposed member.

    Attributes:
        found: Lower limit on the fraction of members that an attack finds; empty if no lower limit
            is above guessing.
        limit: Upper limit for every single sample, or why there is none.
        is_limited: True if there is such a limit.
    """

    found: str
    limit: str
    is_limited: bool

    @property
    def text(self) -> str:
        """``found`` and ``limit`` in one line."""
        return wording.join_parts(self.found, self.limit, by="; ")


def exposure(record: Record) -> Exposure:
    """Return the evidence about the most exposed member.

    After a failed control, there is none.
    """
    units = "people" if record.unit == "person" else f"{record.unit}s"
    unknown = fixed_text("exposure.unknown", unit=record.unit, units=units)
    if evidence.is_uninformative(record) or evidence.outcomes_of(record.controls).failed:
        return Exposure("", unknown, is_limited=False)
    found, claim = _found(record), proven_for_samples(record)
    if claim is None:
        return Exposure(found, unknown, is_limited=False)
    largest_rate = largest_tpr(claim.epsilon, claim.delta, _FPR)
    epsilon = wording.format_number(claim.epsilon)
    if largest_rate >= _VACUOUS_TPR:
        return Exposure(found, fixed_text("exposure.useless", epsilon=epsilon), is_limited=False)
    share = wording.format_percent(largest_rate, rounding="up")
    limit = fixed_text("exposure.limit", epsilon=epsilon, most=share, fpr=_as_percent(_FPR))
    return Exposure(found, limit, is_limited=True)


def exposure_sentence(record: Record) -> str:
    """Return a sentence for summaries on the most exposed sample or person."""
    return fixed_text("exposure.sentence", unit=record.unit, text=exposure(record).text)


def exposed_class_sentence(record: Record) -> str:
    """Return a sentence for summaries on the class with the largest AUC.

    It is empty if no membership attack was evaluated. The largest of many AUCs is probably too
    large, so the sentence states their number.
    """
    if record.games or not evidence.has_membership(record):
        return ""
    rows = [row for row in record.groups if row.by == "class" and row.metric == metric_names.AUC]
    known = [row for row in rows if row.value is not None]
    if not known:
        return fixed_text("exposure.no_class")
    best = max(known, key=lambda row: row.number)
    where = wording.join_parts(
        shorten(best.attack, 60), evidence.labels_by_setting(known)[setting_of(best)], by="; "
    )
    return fixed_text(
        "exposure.class",
        label=shorten(best.group, 40),
        auc=wording.value_text(best),
        limits=wording.format_interval(best.low, best.high, best.metric) or "no interval",
        members=best.n_members,
        where=where,
        choice=fixed_text("exposure.largest_class", count=len(known))
        if len(known) > 1
        else fixed_text("exposure.only_class"),
    )


def largest_tpr(epsilon: float, delta: float, fpr: float) -> float:
    """Return the largest true-positive rate of any attack on one sample.

    Args:
        epsilon: Proven epsilon, at least 0.
        delta: Proven delta, in [0, 1].
        fpr: False-positive rate of the attack, in [0, 1].

    Source: Kairouz, Oh and Viswanath, The composition theorem for differential privacy, 2015.
    """
    if epsilon >= _LARGEST_EPSILON:
        return 1.0
    from_positives = math.exp(epsilon) * fpr + delta
    from_negatives = 1 - math.exp(-epsilon) * (1 - delta - fpr)
    return max(0.0, min(from_positives, from_negatives, 1.0))


class ProvenPrivacy(NamedTuple):
    """Differential privacy of single samples that an accountant proves."""

    epsilon: float
    delta: float


def proven_for_samples(record: Record) -> ProvenPrivacy | None:
    """Return the proven privacy of single samples, if it covers all attacks of a record.

    Measurements must not refute it.
    """
    claim = evidence.estimate_of_metric(record, metric_names.FORMAL_EPSILON)
    if claim is None or record.unit != "sample" or "unit: one sample" not in claim.note:
        return None
    accounted = _ACCOUNTED.fullmatch(claim.method)
    defenses = {estimate.defense for estimate in record.findings if estimate.is_of_attack}
    is_refuted = any(
        measured.bound.number > claim.number
        for bounds in epsilon_bounds(record)
        if bounds.unit.endswith("sample")
        for measured in bounds.measured
    )
    if accounted is None or not defenses <= {claim.defense} or is_refuted:
        return None
    delta = float(accounted[1])
    return ProvenPrivacy(claim.number, delta) if delta <= 1 else None


def _found(record: Record) -> str:
    """Describe the lower limit of the TPR with the largest leak, the fraction of members found."""
    estimates = without_failed_controls(evidence.main_estimates(record))
    for best in evidence.leading_estimates(estimates):
        fpr = metric_names.rate_of(best.metric)
        # A lower limit at or below the false-positive rate is no more than guessing. Limits that
        # treat the threshold as fixed are too narrow, so no statement is based on them.
        if fpr and best.low and best.low > fpr and FIXED_THRESHOLD_METHOD not in best.method:
            same_metric = [estimate for estimate in estimates if estimate.metric == best.metric]
            return fixed_text(
                "exposure.found",
                fpr=_as_percent(fpr),
                **_lower_limit_texts(record, best, same_metric),
            )
    return ""


def _lower_limit_texts(
    record: Record, best: Estimate, same_metric: list[Estimate]
) -> dict[str, str]:
    """Return the lower limit of a rate, and its attack and setting, as texts."""
    low, is_mean = best.low or 0.0, best.seed is None and len(record.seeds) > 1
    # The estimate of a mean counts the members of all runs together, so no count is stated.
    count = "" if is_mean else f", {math.ceil(low * best.n_members)} of {best.n_members:,}"
    label = labels_by_setting(same_metric)[setting_of(best)]
    mean = "mean over seeds" * (is_mean and "over seeds" not in label)
    return {
        "least": f"{wording.format_percent(low, rounding='down')} of members{count}",
        "where": wording.join_parts(shorten(best.attack, 60), label, mean, by="; "),
    }


def _as_percent(rate: float) -> str:
    return f"{100 * rate:g}%"
