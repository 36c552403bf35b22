"""The verdict on a record in sentences."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.grid import shorten
from fedaudit.report import evidence
from fedaudit.report.deciding import caveats
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.deciding.findings import headlines, reliable_findings, topic_verdicts
from fedaudit.report.deciding.membership import audited_clients
from fedaudit.report.unlearning import deletion_result
from fedaudit.results.estimate import LABEL_INFERENCE, NO_DEFENSE, Estimate
from fedaudit.results.guessing import exceeds_by_test_only
from fedaudit.results.record import AttackRow, Record
from fedaudit.results.unlearning import unlearning_rows

MOST_WARNED = 3  # largest number of rows near guessing that a warning names
_ENDED = {"refused": " was refused", "failed": " failed"}
_NEEDS = re.compile(
    r"(?:0 of \d+ seeds gave this figure(?:, and a mean needs two)?: )?"
    r"inconclusive: needs ([\d,]+) more non-members"
)


class PlainVerdict(NamedTuple):
    """Verdict on a record in sentences.

    Attributes:
        badge: The verdict in two or three words.
        topics: The verdict on each topic ("membership", "sources", "clusters"), the worst first.
        warning: Why nothing follows from the estimates; empty if the models learned.
        audited: What was audited, and the adversary.
        meaning: What follows from the verdict, and what does not.
        open: What the audit could not decide.
    """

    status: evidence.Status
    badge: str
    topics: tuple[tuple[str, evidence.Status], ...]
    headline: str
    warning: str
    audited: str
    meaning: str
    open: tuple[str, ...]


def summarise_verdict(record: Record) -> PlainVerdict:
    """Return the verdict on a record, which depends only on its estimates and controls."""
    record = wording.clean_texts(record)
    topics = topic_verdicts(record)
    relied_on, deletion = reliable_findings(record, topics), deletion_result(record)
    sentences = [
        *headlines(relied_on),
        *caveats.failed_control_notes(record, relied_on[0].status),
        caveats.guard_decisions(record),
        caveats.coverage_gaps(record),
        *caveats.omissions(record),
        deletion.headline if deletion and not evidence.is_uninformative(record) else "",
        *(bounds.sentence for bounds in shown_bounds(record)),
    ]
    return PlainVerdict(
        relied_on[0].status,
        relied_on[0].badge or relied_on[0].status,
        tuple((finding.topic, finding.status) for finding in topics),
        wording.join_parts(*evidence.unique_items(sentences), by=". "),
        learning_warning(record),
        describe_audit(record),
        " ".join(evidence.unique_items(finding.meaning for finding in relied_on)),
        open_points(record, evidence.main_estimates(record)),
    )


def learning_warning(record: Record) -> str:
    """Return a warning about rows with a training accuracy near guessing, or ""."""
    rows = caveats.hardly_learned(record)
    if not rows:
        return ""
    estimates = [*record.where(topic="utility"), *record.findings]
    has_several_defenses = len({estimate.defense for estimate in estimates}) > 1
    of_run = " of the worst run" * (len(record.seeds) > 1)
    accuracies = []
    for row in rows:
        defense = f"with {shorten(wording.defense_name(row.defense), 60)} " * has_several_defenses
        measured, guess = (
            wording.format_percent(row.train_accuracy),
            wording.format_percent(row.guess),
        )
        text = fixed_text("verdict.train_accuracy", run=of_run, measured=measured, guess=guess)
        accuracies.append(defense + text)
    accuracy_names = wording.capitalise(wording.join_some(accuracies, MOST_WARNED, "more rows"))
    return fixed_text("verdict.hardly_learned", accuracies=accuracy_names)


def describe_audit(record: Record) -> str:
    """Describe the federation, the questions and the adversary of the audit."""
    clients = wording.format_count(record.federation_size, "client")
    if isinstance(record.config.get("canaries"), dict):
        clients += f" and {wording.study_setting(record, 'canaries', 'count')} canary clients"
    view = wording.without_capital(shorten(record.view.description, 400)).removesuffix(".")
    others, sizes = record.other_clients, [row.samples for row in record.clients]
    sizes += [others.fewest, others.most] if others else []
    kind = "watched" if record.watched else "trained"
    return fixed_text(
        f"audited.{'guarded' if caveats.guard_of(record) else kind}",
        clients=clients,
        sizes=f" with {wording.format_range(sizes)} samples each" if sizes else "",
        runs=wording.format_count(len(record.seeds), "training run"),
        defenses=_defenses(record),
        questions=" ".join(audit_questions(record)),
        attacks=wording.format_count(evidence.attacks_tried(record), "attack was", "attacks were"),
        adversary=fixed_text(f"audited.{'adversary' if view else 'no_adversary'}", view=view),
    )


def audited_samples(record: Record) -> str:
    """Describe the audited clients with their numbers of members and non-members."""
    aucs = [f for f in record.findings if f.metric == AUC and f.seed is not None and f.n_members]
    estimates = [estimate for estimate in aucs if estimate.contrast != "mixed"]
    if not estimates:
        return "every client" if record.sources or record.clusters else "no sample"
    targets = audited_clients(estimates)
    varying: dict[str, set[object]] = {
        "clients": {estimate.target for estimate in estimates},
        "training runs": {estimate.seed for estimate in estimates},
    }
    names = [name for name, values in varying.items() if len(values) > 1]
    n_members = {estimate.n_members for estimate in estimates}
    n_others = {
        contrast: counts
        for contrast in _ORIGINS
        if (counts := {e.n_nonmembers for e in estimates if e.contrast == contrast})
    }
    is_range = any(len(counts) > 1 for counts in (n_members, *n_others.values()))
    ranges = f" (fewest and most over {wording.join_and(names)})" if is_range and names else ""
    for_each_client = " for each" * (len(targets) > 1)
    clients = caveats.client_list(targets) if targets else "all clients"
    others = wording.join_and(
        [f"{wording.format_range(counts)} {_ORIGINS[name]}" for name, counts in n_others.items()]
    )
    members = f"{wording.format_range(n_members)} {caveats.units_of(record)} as members"
    return f"{clients}: {members}, {others} as non-members{for_each_client}{ranges}"


_ORIGINS = {"other_client": "of other clients", "unseen": "held out"}
"""Origin of the non-members of each contrast."""


def _defenses(record: Record) -> str:
    defenses = [estimate.defense for estimate in record.findings] + caveats.defenses_of_runs(record)
    names = evidence.unique_items(shorten(wording.defense_name(name), 60) for name in defenses)
    if not names:
        return ""
    is_defended = len(names) == 1 and names[0] != wording.defense_name(NO_DEFENSE)
    return f", with {'the defense ' * is_defended}{wording.join_and(names)}"


def audit_questions(record: Record) -> list[str]:
    """Return the questions that a study or a recording answers."""
    clients = audited_clients(record.findings)
    topics = {
        caveats.unit_of(record): evidence.has_membership(record),
        "sources": record.sources,
        "clusters": record.clusters,
        "deletion": unlearning_rows(record),
        "secure_sum": record.config.get("secure_sum"),
        "labels": record.where(topic=LABEL_INFERENCE, seed=None),
        "canaries": record.config.get("canaries"),
    }
    whose = f" of {caveats.client_list(clients)}" if clients else ""
    return [
        fixed_text(f"questions.{topic}", of=whose) for topic, applies in topics.items() if applies
    ]


def needs_more(estimate: Estimate) -> str:
    """Return how many more non-members a missing estimate needs, or "" for other reasons."""
    match = _NEEDS.fullmatch(estimate.note)
    return match[1] if match else ""


def open_points(record: Record, estimates: list[Estimate]) -> tuple[str, ...]:
    """Return sentences on estimates and attacks from which nothing could be concluded."""
    points = missing_estimate_reasons(estimates)
    if unsure := sum(exceeds_by_test_only(estimate) for estimate in estimates):
        points.append(fixed_text("verdict.unsure", figures=wording.format_count(unsure, "figure")))
    attack_names = evidence.named_attacks(record)
    defaults = [
        row for row in record.attacks if row.status == "refused" and row.name not in attack_names
    ]
    together = defaults if len(defaults) > 1 else []
    points += [
        f"{shorten(wording.attack_name(row.name), 80)}{_ENDED.get(row.status, '')}: {_why(row)}"
        for row in record.attacks
        if row not in together and (row.status != "run" or row.note or row.uncovered)
    ]
    if together:
        names = wording.join_some([shorten(wording.attack_name(r.name), 80) for r in together])
        reasons = " ".join(evidence.unique_items(map(_why, together))[:MOST_WARNED])
        points.append(fixed_text("verdict.refused", names=names, reasons=reasons))
    below = [f for f in estimates if f.metric == AUC and f.high is not None and f.high < 0.5]
    if below:
        settings = [
            f"{shorten(f.attack, 60)} {wording.nonmember_heading(f.contrast)}" for f in below
        ]
        names = wording.join_some(evidence.unique_items(settings), MOST_WARNED)
        count = wording.format_count(len(below), "figure")
        points.append(fixed_text("verdict.below", figures=count, names=names))
    return tuple(points)


def missing_estimate_reasons(estimates: Iterable[Estimate]) -> list[str]:
    """Return a sentence for each metric and each reason why estimates are missing."""
    refused, totals = Counter[tuple[str, str]](), Counter[str]()
    for estimate in estimates:
        totals[metric := wording.metric_name(estimate.metric)] += 1
        if estimate.value is None:
            shortage = "More non-members are needed" * bool(needs_more(estimate))
            refused[metric, shortage or _reason(estimate.note)] += 1
    sentences = []
    for (metric, reason), count in refused.items():
        part = f"{count:,} of " * (count < totals[metric])
        number = wording.format_count(totals[metric] if part else count, "figure")
        sentences.append(
            f"{metric}: {part}{number} could not be computed. {wording.with_full_stop(reason)}"
        )
    return sentences


def _why(row: AttackRow) -> str:
    return wording.with_full_stop(_reason(wording.without_identifiers(row.note or row.uncovered)))


def _reason(note: str) -> str:
    return shorten(note, 200) or "no reason recorded"
