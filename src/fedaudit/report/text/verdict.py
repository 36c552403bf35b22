"""The verdict in plain words, for a reader who decides and does not attack."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, wording
from fedaudit.report.deciding.deletion import deletion
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.deciding.findings import findings, headlines, standing
from fedaudit.report.deciding.membership import clients_of
from fedaudit.report.fixed import fixed
from fedaudit.report.grid import shortened
from fedaudit.report.verdict import (
    clients_named,
    coverage_gaps,
    failures_beside,
    hardly_learned,
    left_out,
    unit_of,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import by_test_alone
from fedaudit.results.record import Record
from fedaudit.results.unlearning import unlearning_rows


class PlainVerdict(NamedTuple):
    """A record in plain words.

    Attributes:
        status: The verdict as one of a few fixed words.
        badge: The verdict in two or three words, as a reader sees it.
        topics: "membership", "sources" and "clusters" with the verdict on each, the gravest first.
        headline: The verdict as a sentence; of several topics the gravest comes first.
        warning: Why nothing follows from the figures about attacks and defenses; empty where
            the models learned.
        audited: What was audited, and against which adversary.
        meaning: What follows from it, and what does not.
        open: What could not be concluded, point by point.
    """

    status: evidence.Status
    badge: str
    topics: tuple[tuple[str, evidence.Status], ...]
    headline: str
    warning: str
    audited: str
    meaning: str
    open: tuple[str, ...]


def verdict(record: Record) -> PlainVerdict:
    """Return the verdict on a record, computed from its figures and controls alone."""
    record = wording.cleaned(record)
    found = findings(record)
    shown, left = standing(record, found), deletion(record)
    sentences = [
        *headlines(shown),
        *failures_beside(record, shown[0].status),
        coverage_gaps(record),
        *left_out(record),
        left.headline if left and not evidence.says_nothing(record) else "",
        *(bounds.sentence for bounds in shown_bounds(record)),
    ]
    return PlainVerdict(
        shown[0].status,
        shown[0].badge or shown[0].status,
        tuple((one.topic, one.status) for one in found),
        ". ".join(filter(None, evidence.distinct(sentences))),
        learning_warning(record),
        audited(record),
        " ".join(evidence.distinct(one.meaning for one in shown)),
        open_points(record, evidence.headline(record)),
    )


MOST_WARNED = 3
"""Rows near guessing that a warning names."""


def learning_warning(record: Record) -> str:
    """Return which rows' training accuracy is near guessing; empty where none is."""
    rows = hardly_learned(record)
    if not rows:
        return ""
    several = len({one.defense for one in [*record.where(topic="utility"), *record.findings]}) > 1
    of_run = " of the worst run" * (len(record.seeds) > 1)
    accuracies = [
        (f"with {shortened(wording.defense_name(one.defense), 60)} " if several else "")
        + f"the training accuracy{of_run} is {wording.percent(one.train_accuracy)}, where always "
        f"naming the most frequent class gives {wording.percent(one.guess)}"
        for one in rows
    ]
    named = wording.capital(wording.some(accuracies, MOST_WARNED, "more rows"))
    return fixed("verdict.hardly_learned", accuracies=named)


def audited(record: Record) -> str:
    """Return federation, questions and adversary of the audit."""
    clients = wording.plural(record.federation_size, "client")
    canaries = record.config.get("canaries")
    if isinstance(canaries, dict):
        clients += f" and {canaries.get('count')} canary clients"
    made = f"watched a federation of {clients} that somebody else trained"
    if not record.watched:
        made = f"trained a federation of {clients}{_held(record)}{_defenses(record)}"
    tried = wording.plural(evidence.attacks_tried(record), "attack was", "attacks were")
    view = shortened(record.view.description, 400) or "not described in the record"
    return (
        f"This audit {made}. It asked: {' '.join(questions(record))} {tried} tried. "
        f"The adversary: {wording.sentence(view)}"
    )


def _held(record: Record) -> str:
    others, sizes = record.other_clients, [row.samples for row in record.clients]
    sizes += [others.fewest, others.most] if others else []
    held = f" holding {wording.from_to(sizes)} samples each" if sizes else ""
    return f"{held} ({wording.plural(len(record.seeds), 'seed')})"


def _defenses(record: Record) -> str:
    used = [figure.defense for figure in record.findings]
    used += [run.defense for run in record.sources] + [run.defense for run in record.clusters]
    names = evidence.distinct(shortened(wording.defense_name(name), 60) for name in used)
    return f", with {wording.listed(names)}" if names else ""


def questions(record: Record) -> list[str]:
    """Return the questions that a study or a recording answers."""
    targets = clients_of(record.findings)
    of = f" of {clients_named(targets)}" if targets else ""
    asked = {
        unit_of(record): evidence.about_members(record),
        "sources": record.sources,
        "clusters": record.clusters,
        "deletion": unlearning_rows(record),
        "secure_sum": record.config.get("secure_sum"),
        "canaries": record.config.get("canaries"),
    }
    return [fixed(f"questions.{topic}", of=of) for topic, applies in asked.items() if applies]


_FATES = {"refused": " was refused", "failed": " was tried and failed"}
_NEEDS = re.compile(
    r"(?:0 of \d+ seeds gave this figure(?:, and a mean needs two)?: )?"
    r"inconclusive: needs ([\d,]+) more non-members"
)


def needs_more(figure: Estimate) -> str:
    """Return how many more non-members a refused figure needs; "" if that is not its reason."""
    found = _NEEDS.fullmatch(figure.note)
    return found[1] if found else ""


def open_points(record: Record, figures: list[Estimate]) -> tuple[str, ...]:
    """Return the points that could not be concluded.

    Args:
        record: The record.
        figures: Those of the headline.
    """
    found = refusals(figures)
    if unsure := sum(by_test_alone(figure) for figure in figures):
        count = wording.plural(unsure, "figure")
        found.append(fixed("verdict.unsure", figures=count))
    found += [
        f"{shortened(row.name, 60)}{_FATES.get(row.status, '')}: "
        f"{wording.sentence(_reason(row.note or row.uncovered))}"
        for row in record.attacks
        if row.status != "run" or row.note or row.uncovered
    ]
    if below := sum(f.metric == AUC and f.high is not None and f.high < 0.5 for f in figures):
        count = wording.plural(below, "figure")
        found.append(fixed("verdict.below", figures=count))
    return tuple(found)


def refusals(figures: Iterable[Estimate]) -> list[str]:
    """Return a text for each metric and reason for which figures were refused."""
    refused = Counter(
        (
            wording.metric_name(one.metric),
            "It needs more non-members" * bool(needs_more(one)) or _reason(one.note),
        )
        for one in figures
        if one.value is None
    )
    return [
        f"{metric}: {wording.plural(count, 'figure')} not given. {wording.sentence(reason)}"
        for (metric, reason), count in refused.items()
    ]


def _reason(note: str) -> str:
    return shortened(note, 200) or "no reason recorded"
