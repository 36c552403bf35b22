"""Findings of a record: the verdict on each topic with its sentences."""

from typing import NamedTuple, get_args

from fedaudit.formatting.fixed import fixed_texts
from fedaudit.formatting.wording import without_capital, without_verdict
from fedaudit.report import evidence
from fedaudit.report.clusters import cluster_headline, cluster_meaning, cluster_status, clusterings
from fedaudit.report.deciding import caveats
from fedaudit.report.deciding.membership import member_status
from fedaudit.report.sources import SOURCE_HEADLINES, source_attacks, source_meaning, source_status
from fedaudit.report.text.membership import LEAKAGE, member_headline, member_meaning
from fedaudit.results.record import Record

LEAKS: tuple[evidence.Status, ...] = (*evidence.LEAKS.values(), "above guessing")
"""Verdicts that show a leak or a success above guessing."""


class Finding(NamedTuple):
    """Verdict on one topic with its sentences; a badge is printed instead of the status."""

    topic: str
    status: evidence.Status
    headline: str
    meaning: str
    badge: str = ""


def topic_verdicts(record: Record) -> tuple[Finding, ...]:
    """Return the verdict on each topic of a record, the worst first."""
    is_about_members = evidence.has_membership(record)
    is_only_finding = is_about_members + bool(record.sources) + bool(record.clusters) == 1
    topics = [_on_membership(record, alone=is_only_finding)] if is_about_members else []
    if record.sources:
        attacks = source_attacks(record)
        status = source_status(attacks)
        meaning = source_meaning(status, attacks)
        topics.append(Finding("sources", status, SOURCE_HEADLINES[status], meaning))
    if record.clusters:
        studies = clusterings(record)
        headline, meaning = cluster_headline(studies), cluster_meaning(studies)
        topics.append(Finding("clusters", cluster_status(studies), headline, meaning))
    if caveats.hardly_learned(record):
        # "No leak" is not a result if the model has barely learned.
        topics = [
            f if f.status in LEAKS else _fixed("unlearned", "inconclusive", f.topic) for f in topics
        ]
    order = get_args(evidence.Status)
    return tuple(sorted(topics, key=lambda finding: order.index(finding.status)))


def _fixed(name: str, status: evidence.Status, topic: str = "membership") -> Finding:
    texts = fixed_texts(f"findings.{name}")
    return Finding(topic, status, texts["headline"], texts["meaning"])


def _on_membership(record: Record, *, alone: bool) -> Finding:
    client_groups = list(caveats.estimates_by_client_group(record).values())
    statuses = [member_status(record, estimates) for estimates in client_groups]
    status = evidence.worst_status(statuses)
    ranged = status == "trace of a leak" and any(map(caveats.range_headline, client_groups))
    return Finding(
        "membership",
        status,
        member_headline(record, statuses[0], alone=alone),
        member_meaning(record, status, evidence.main_estimates(record)),
        "leak shown" if ranged else "",
    )


def reliable_findings(record: Record, every: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the findings that can be relied on, or one finding with the reason why none can.

    If a control failed, only leaks remain that other attacks or clients show.
    """
    if evidence.is_uninformative(record):
        return (_fixed("null" if record.null_members else "void", "void"),)
    if not evidence.outcomes_of(record.controls).failed:
        return every
    with_doubt = "clusters" if caveats.are_cluster_risks_doubted(record) else ""
    leaks = [f for f in every if f.status in LEAKS and f.topic != with_doubt]
    return tuple(leaks) or (_fixed("failed", "control failed"),)


def headlines(every: tuple[Finding, ...]) -> list[str]:
    """Return a sentence for each finding; only that of the worst finding has the size of a leak."""
    front = every[0]
    texts = []
    for finding in every:
        text = finding.headline
        if finding.topic == "clusters":
            if finding is front and finding.status in LEAKAGE:
                lead = f"{LEAKAGE[finding.status]} from the riskiest model"
                text = f"{lead}: {without_capital(text)}"
        elif finding.status in LEAKAGE and finding.status != front.status:
            smaller, larger = fixed_texts("smaller_leak"), fixed_texts("larger_leak")
            text = f"{smaller[finding.topic]} {larger[front.topic]}"
        elif finding.status in LEAKAGE and finding is not front:
            text = without_verdict(text, finding.status)
        texts.append(text)
    return texts
