"""The verdict in plain words, for a reader who decides and does not attack."""

import re
from typing import NamedTuple

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, words
from fedaudit.report.deciding.deletion import deletion
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.deciding.findings import findings, headlines, standing
from fedaudit.report.grid import shortened
from fedaudit.report.verdict import (
    clients_named,
    coverage_gaps,
    failures_beside,
    hardly_learned,
    left_out,
    sides_of,
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
    record = words.cleaned(record)
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
    accuracies = [
        (f"with {shortened(words.defense_name(one.defense), 60)} " if several else "")
        + f"the training accuracy{' of the worst run' * (len(record.seeds) > 1)} is "
        f"{words.percent(one.train_accuracy)}, where always naming the most frequent class gives "
        f"{words.percent(one.guess)}"
        for one in rows
    ]
    return (
        f"{words.capital(words.some(accuracies, MOST_WARNED, 'more rows'))}. The model has hardly "
        "learned its training data. The figures hold for it alone: nothing follows from them about "
        "attacks or defenses on a model that has learned. Train it for longer, or on fewer samples."
    )


def audited(record: Record) -> str:
    """Return federation, questions and adversary of the audit."""
    others = record.other_clients
    sizes = [row.samples for row in record.clients]
    sizes += [others.fewest, others.most] if others else []
    held = f" holding {words.from_to(sizes)} samples each" if sizes else ""
    used = [figure.defense for figure in record.findings]
    used += [run.defense for run in record.sources] + [run.defense for run in record.clusters]
    defenses = evidence.distinct(shortened(words.defense_name(name), 60) for name in used)
    with_ = f", with {words.listed(defenses)}" if defenses else ""
    view = shortened(record.view.description, 400) or "not described in the record"
    clients = words.plural(record.federation_size, "client")
    canaries = record.config.get("canaries")
    if isinstance(canaries, dict):
        clients += f" and {canaries.get('count')} canary clients"
    seeds = words.plural(len(record.seeds), "seed")
    trained = f"trained a federation of {clients}{held} ({seeds}){with_}"
    if record.watched:
        trained = f"watched a federation of {clients} that somebody else trained"
    tried = words.plural(evidence.attacks_tried(record), "attack was", "attacks were")
    return (
        f"This audit {trained}. It asked: {' '.join(questions(record))} {tried} tried. "
        f"The adversary: {words.sentence(view)}{_undefended(record)}"
    )


def questions(record: Record) -> list[str]:
    """Return the questions that a study or a recording answers."""
    found = []
    if evidence.about_members(record):
        units = {
            "person": "a given person's data were",
            "canary sample": "a given canary sample was",
        }
        what = units.get(unit_of(record), "a given sample was")
        targets = sorted({f.target for f in record.findings if f.target is not None})
        of = f" of {clients_named(targets)}" if targets else ""
        found.append(f"Can the adversary find out whether {what} in the training data{of}?")
    asked = (
        (record.sources, "Can the adversary find out which client a training sample is from?"),
        (
            record.clusters,
            "How surely does each of the federation's models reveal what it was trained on, and is "
            "that more than its clients accept?",
        ),
        (
            unlearning_rows(record),
            "After samples were deleted from the model: does it still reveal them?",
        ),
        (
            record.config.get("secure_sum"),
            "How well does the sum of one round hide the update of one client?",
        ),
        (
            record.config.get("canaries"),
            "How much can the model reveal of the whole contribution of one client?",
        ),
    )
    return found + [question for applies, question in asked if applies]


def _undefended(record: Record) -> str:
    """Return which audited clients do not use the defense: their leak is not the defense's."""
    sides = sides_of(record)
    if sides is None:
        return ""
    others = sides.undefended
    verb = "does" if len(others) == 1 else "do"
    return f" {words.capital(clients_named(others))} {verb} not use the defense."


MOST_BELOW = 3
"""Figures below guessing that are named."""
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
        figures: Those that stand in front.
    """
    refused: dict[tuple[str, str], int] = {}
    for one in figures:
        if one.value is None:
            reason = shortened(one.note, 200) or "no reason recorded"
            reason = "It needs more non-members" if needs_more(one) else reason
            key = (words.metric_name(one.metric), reason)
            refused[key] = refused.get(key, 0) + 1
    found = [
        f"{metric}: {words.plural(count, 'figure')} not given. {words.sentence(reason)}"
        for (metric, reason), count in refused.items()
    ]
    unsure = sum(by_test_alone(figure) for figure in figures)
    if unsure:
        found.append(
            f"{words.plural(unsure, 'figure')} marked △: the corrected test finds a leak, but the "
            "interval includes chance. Its size needs more audited samples."
        )
    found += [
        f"{shortened(row.name, 60)}{_FATES.get(row.status, '')}: "
        f"{words.sentence(shortened(row.note or row.uncovered, 200) or 'no reason recorded')}"
        for row in record.attacks
        if row.status != "run" or row.note or row.uncovered
    ]
    below = [f for f in figures if f.metric == AUC and f.high is not None and f.high < 0.5]
    if below:
        # Told once, however many attacks rank the wrong way round.
        ranked = words.some([_below(one, figures) for one in below], MOST_BELOW, "further figures")
        found.append(
            f"Members rank below non-members with {ranked}. This is reported as it is: inverting a "
            "score afterwards would be choosing the answer."
        )
    return tuple(found)


def _below(figure: Estimate, figures: list[Estimate]) -> str:
    label = evidence.label_among(figure, figures)
    name = f"{shortened(figure.attack, 60)} {words.against(figure.contrast)}"
    name += f", {label}" * bool(label)
    return f"{name} (AUC {words.number(figure.number)}, {words.interval_of(figure)})"
