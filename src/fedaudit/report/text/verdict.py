"""The verdict in plain words, for a reader who decides and does not attack."""

import re
from collections.abc import Mapping
from typing import NamedTuple, get_args

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, words
from fedaudit.report.deciding.clients import scope_of
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.deciding.membership import member_status
from fedaudit.report.grid import shortened
from fedaudit.report.text.clusters import (
    cluster_headline,
    cluster_meaning,
    cluster_question,
    cluster_status,
    clustered_of,
)
from fedaudit.report.text.membership import (
    BESIDE_OTHERS,
    HARDLY_LEARNED,
    HEADLINES,
    HEADLINES_OF_UNITS,
    UNLEARNED,
    member_meaning,
)
from fedaudit.report.text.sources import (
    SOURCE_HEADLINES,
    guessing,
    on_sources,
    source_attacks_tried,
    source_audited,
    source_meaning,
    source_question,
    source_status,
)
from fedaudit.report.verdict import (
    WITHHELD,
    WRONG_SIGN,
    clients_named,
    coverage_gaps,
    failures_beside,
    fairness_caveat,
    figures_by_side,
    hardly_learned,
    is_defended,
    left_out,
    people_caveat,
    range_headline,
    sides_of,
    unit_of,
    unlearning_verdict,
    wrong_sign,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import by_test_alone
from fedaudit.results.record import ControlResult, Record
from fedaudit.results.unlearning import most_left, unlearning_rows

MOST_BELOW = 3
"""Figures below guessing that are named; of more, their number stands."""

_FATES = {"refused": " was refused", "failed": " was tried and failed"}
_NEEDS = re.compile(
    r"(?:0 of \d+ seeds gave this figure(?:, and a mean needs two)?: )?"
    r"inconclusive: needs ([\d,]+) more non-members"
)


def open_points(record: Record, figures: list[Estimate]) -> tuple[str, ...]:
    """Points that could not be concluded.

    Args:
        record: The record.
        figures: Those that stand in front.
    """
    return (*_refused(figures), *_unsure(figures), *_attacks(record), *_below(figures))


def _refused(figures: list[Estimate]) -> list[str]:
    """Return a point for each metric and reason that no cell of a table has."""
    refused = [figure for figure in figures if figure.value is None]
    missing = evidence.grouped(
        refused,
        lambda figure: (
            figure.metric,
            "" if needs_more(figure) else shortened(figure.note, 200) or "no reason recorded",
        ),
    )
    return [
        f"{words.metric_name(metric)}: {words.plural(len(found), 'figure')} not given. "
        + (words.sentence(reason) if reason else "It needs more non-members.")
        for (metric, reason), found in missing.items()
    ]


def needs_more(figure: Estimate) -> str:
    """Return how many more non-members a refused figure needs; "" if that is not its reason."""
    found = _NEEDS.fullmatch(figure.note)
    return found[1] if found else ""


def _unsure(figures: list[Estimate]) -> list[str]:
    alone = sum(by_test_alone(figure) for figure in figures)
    if not alone:
        return []
    return [
        f"{words.plural(alone, 'figure')} marked △: the corrected test finds a leak, but the "
        "interval includes chance. Its size needs more audited samples."
    ]


def _attacks(record: Record) -> list[str]:
    return [
        f"{shortened(row.name, 60)}{_FATES.get(row.status, '')}: "
        f"{words.sentence(shortened(row.note or row.uncovered, 200) or 'no reason recorded')}"
        for row in record.attacks
        if row.status != "run" or row.note or row.uncovered
    ]


def _below(figures: list[Estimate]) -> list[str]:
    """Attacks that rank the wrong way round; told once, however many there are."""
    below = [f for f in figures if f.metric == AUC and f.high is not None and f.high < 0.5]
    if not below:
        return []
    told = [_ranked_below(figure, figures) for figure in below[:MOST_BELOW]]
    left = len(below) - len(told)
    more = [words.plural(left, "further figure")] * (left > 0)
    return [
        f"Members rank below non-members with {words.listed([*told, *more])}. This is reported as "
        "it is: inverting a score afterwards would be choosing the answer."
    ]


def _ranked_below(figure: Estimate, figures: list[Estimate]) -> str:
    against = words.against(figure.contrast)
    label = evidence.label_among(figure, figures)
    where = ", ".join(part for part in (against, label) if part)
    return (
        f"{shortened(figure.attack, 60)} {where} (AUC {words.number(figure.value or 0.0)}, "
        f"{words.interval_of(figure)})"
    )


_MOST_NAMED = 5
"""Audited clients that are named; of more, their number stands."""


def audited(record: Record) -> str:
    """Federation, question and adversary of the audit."""
    others = record.other_clients
    sizes = [row.samples for row in record.clients]
    sizes += [others.fewest, others.most] if others else []
    held = f" holding {words.from_to(sizes)} samples each" if sizes else ""
    targets = sorted({f.target for f in record.findings if f.target is not None})
    used = [figure.defense for figure in record.findings]
    used += [run.defense for run in record.sources]
    used += [run.defense for run in record.clusters]
    defenses = evidence.distinct(words.defense_name(defense) for defense in used)
    against = (
        f", with {words.listed([shortened(name, 60) for name in defenses])}" if defenses else ""
    )
    view = shortened(record.view.description, 400) or "not described in the record"
    clients = words.plural(record.federation_size, "client")
    canaries = record.config.get("canaries")
    if isinstance(canaries, dict):
        clients += f" and {canaries.get('count')} canary clients"
    if record.watched:
        trained = f"watched a federation of {clients} that somebody else trained"
    else:
        seeds = words.plural(len(record.seeds), "seed")
        trained = f"trained a federation of {clients}{held} ({seeds}){against}"
    return (
        f"This audit {trained}, and asked {_question(record, targets)} "
        f"The adversary: {words.sentence(view)}{_undefended(record, targets)}"
    )


def _question(record: Record, targets: list[int]) -> str:
    on_clusters = f" It also asked {_of_clusters(record)}" if record.clusters else ""
    if not evidence.about_members(record) and not record.sources:
        return _of_clusters(record)
    if not evidence.about_members(record):
        tried = words.plural(source_attacks_tried(record), "attack was", "attacks were")
        return (
            f"of {source_question(record)}: can an adversary name the client that a sample is "
            f"from? {tried} tried; a guess is right for {guessing(record)}.{on_clusters}"
        )
    others = max(evidence.attacks_tried(record) - source_attacks_tried(record), 0)
    tried = words.plural(others, "attack was", "attacks were")
    unit = unit_of(record)
    asked = "a given person's samples were" if unit == "person" else f"a given {unit} was"
    return (
        f"of {_asked(targets)}: can an adversary tell whether {asked} among the "
        f"training data? {tried} tried; guessing gives an AUC of 0.5."
        f"{' ' + source_audited(record) if record.sources else ''}{on_clusters}"
    )


def _of_clusters(record: Record) -> str:
    return cluster_question(clustered_of(record))


def _undefended(record: Record, targets: list[int]) -> str:
    """Audited clients that do not use the defense that others use: their leak is not its own."""
    sides = sides_of(record)
    if sides is None:
        return ""
    others = sides.undefended
    who = f"{words.count(len(others))} of the audited clients"
    if len(others) <= _MOST_NAMED:
        who = words.capital(clients_named(others))
    return f" {who} {'does' if len(others) == 1 else 'do'} not use the defense."


def _asked(targets: list[int]) -> str:
    if not targets:
        return "them"
    if len(targets) > _MOST_NAMED:
        return f"{words.count(len(targets))} of them in turn"
    return clients_named(targets) + " in turn" * (len(targets) > 1)


MOST_WARNED = 3
"""Rows near guessing that a warning names; of more, their number stands."""


class PlainVerdict(NamedTuple):
    """A record in plain words.

    Attributes:
        status: The verdict as one of a few fixed words.
        topics: "membership", "sources" and "clusters" with the verdict on each, the gravest first.
        headline: The verdict as a sentence; of several topics the gravest stands first.
        warning: Why nothing follows from the figures about attacks and defenses; empty where
            the models learned.
        audited: What was audited, and against whom.
        meaning: What follows from it, and what does not.
        controls: Whether the checks passed.
        open: What could not be concluded, point by point.
        defended: Whether every figure is of a defended run.
    """

    status: evidence.Status
    topics: tuple[tuple[str, evidence.Status], ...]
    headline: str
    warning: str
    audited: str
    meaning: str
    controls: str
    open: tuple[str, ...]
    defended: bool = False


def verdict(record: Record) -> PlainVerdict:
    """The verdict on a record, computed from its figures and controls alone."""
    record = words.cleaned(record)
    figures = evidence.headline(record)
    topics = _on_topics(record, figures)
    judged = _judged(record, topics)
    status = next(iter(judged.values()))
    return PlainVerdict(
        status,
        tuple(topics.items()),
        _headline(record, judged),
        learning_warning(record),
        audited(record),
        _meanings(record, judged, figures),
        _controls(record.controls),
        open_points(record, figures),
        is_defended(record),
    )


def _on_topics(record: Record, figures: list[Estimate]) -> dict[str, evidence.Status]:
    found: dict[str, evidence.Status] = {}
    if evidence.about_members(record):
        # Of a partly defended run the defended clients decide: the defense is for them.
        first = next(iter(figures_by_side(record).values()))
        found["membership"] = member_status(record, first)
    if record.sources:
        found["sources"] = source_status(on_sources(record))
    if record.clusters:
        found["clusters"] = cluster_status(clustered_of(record))
    if hardly_learned(record):
        # That nothing was found in a model that learned next to nothing is no result.
        found = {t: "inconclusive" if s == "no leak shown" else s for t, s in found.items()}
    order = get_args(evidence.Status)
    return dict(sorted(found.items(), key=lambda pair: order.index(pair[1])))


LESS = {
    "membership": "Membership attacks show a smaller leak than",
    "sources": "Source inference shows a smaller leak than",
}
"""Headlines of leaks smaller than that of the verdict, whose word alone stands in front."""

_MORE = {
    "membership": "membership attacks",
    "sources": "source inference",
    "clusters": "the riskiest model",
}
"""What these are smaller than."""


def _headline(record: Record, topics: Mapping[str, evidence.Status]) -> str:
    """A sentence for each topic; the first has the word of the verdict, and no other word does."""
    front = next(iter(topics.values()))
    texts: list[str] = []
    for topic, status in topics.items():
        if hardly_learned(record) and status in UNLEARNED:
            text = UNLEARNED[status]
        elif topic == "clusters":
            text = cluster_headline(clustered_of(record))
            if not texts and status in evidence.LEAKS.values():
                word = HEADLINES[status].partition(":")[0]
                text = f"{word} from the riskiest model: {text[:1].lower()}{text[1:]}"
        elif status != front and status in evidence.LEAKS.values():
            text = f"{LESS[topic]} {_MORE[next(iter(topics))]}"
        elif topic == "sources":
            text = SOURCE_HEADLINES[status]
        else:
            beside = BESIDE_OTHERS if len(topics) > 1 else {}
            people = HEADLINES_OF_UNITS.get(unit_of(record), {})
            text = beside.get(status, people.get(status, HEADLINES[status]))
            text = _of_members(record, status, text)
        texts.append(text)
    said = [
        *texts,
        *failures_beside(record, front),
        coverage_gaps(record),
        *left_out(record),
        _of_deletion(record),
        *(bounds.sentence for bounds in shown_bounds(record)),
    ]
    return ". ".join(dict.fromkeys(filter(None, said)))


def _of_members(record: Record, status: evidence.Status, text: str) -> str:
    if status in ("void", "control failed"):
        return text
    sides = figures_by_side(record)
    front = next(iter(sides.values()))
    if status in evidence.LEAKS.values():
        text = range_headline(front) or text
    if status == "inconclusive":
        if wrong_sign(front):
            text = f"Inconclusive: {WRONG_SIGN}"
        elif any(bounds.unit.startswith("one client") for bounds in shown_bounds(record)):
            text = "Inconclusive about single samples: too few were audited to say"
        elif coverage_gaps(record) and text == HEADLINES[status]:
            text = "Inconclusive: not every upload was measured"
    if len(sides) > 1:
        names = list(sides)
        text = f"{words.capital(names[0])}: {text[:1].lower()}{text[1:]}"
        other = member_status(record, sides[names[1]])
        text += f". {words.capital(names[1])}: {other}"
    caveats = (fairness_caveat(record), people_caveat(record))
    return ". ".join(filter(None, (text, scope_of(record, front), *caveats)))


def _of_deletion(record: Record) -> str:
    rows = unlearning_rows(record)
    if not rows or evidence.says_nothing(record):
        return ""
    if unlearning_verdict(record) == WITHHELD:
        return f"The verdict after deletion is {WITHHELD}"
    most = most_left(rows).after
    return (
        f"That is before deletion; after it: {unlearning_verdict(record)} "
        f"(largest AUC {words.number(most.number)})"
    )


def learning_warning(record: Record) -> str:
    """Says which rows' training accuracy is near guessing; empty where none is."""
    rows = hardly_learned(record)
    if not rows:
        return ""
    several = len({one.defense for one in [*record.where(topic="utility"), *record.findings]}) > 1
    told = [
        (f"with {shortened(words.defense_name(one.defense), 60)} " if several else "")
        + f"the training accuracy{' of the worst run' * (len(record.seeds) > 1)} is "
        f"{words.percent(one.train_accuracy)}, where always naming the most frequent class gives "
        f"{words.percent(one.guess)}"
        for one in rows[:MOST_WARNED]
    ]
    more = len(rows) - MOST_WARNED
    told += [f"likewise in {words.plural(more, 'further row')}"] * (more > 0)
    return (
        f"{words.capital('; '.join(told))}. The model has hardly learned its training data. The "
        "figures hold for it alone: nothing follows from them about attacks or defenses on a model "
        "that has learned. Train it for longer, or on fewer samples."
    )


def _meanings(
    record: Record, topics: Mapping[str, evidence.Status], figures: list[Estimate]
) -> str:
    parts = []
    if "inconclusive" in topics.values() and hardly_learned(record):
        parts.append(HARDLY_LEARNED)
        topics = {topic: one for topic, one in topics.items() if one != "inconclusive"}
    if "membership" in topics:
        parts.append(member_meaning(record, topics["membership"], figures))
    if "sources" in topics:
        parts.append(source_meaning(topics["sources"], on_sources(record)))
    if "clusters" in topics:
        parts.append(cluster_meaning(clustered_of(record)))
    return " ".join(parts)


def _judged(record: Record, topics: dict[str, evidence.Status]) -> dict[str, evidence.Status]:
    """The topics of the headline; one word for all where no figure can be relied on.

    Where a control failed, only a leak stands that figures of other attacks or clients show.
    """
    if evidence.says_nothing(record):
        return {"membership": "void"}
    if not evidence.checks_of(record.controls).failed:
        return topics
    found = (*evidence.LEAKS.values(), "above guessing")
    # Models of clusters have no controls of their own; those of no single attack are about all.
    about_all = any(not one.attack for one in evidence.checks_of(record.controls).failed)
    shown = {
        topic: one
        for topic, one in topics.items()
        if one in found and not (topic == "clusters" and about_all)
    }
    return shown or {"membership": "control failed"}


def _controls(controls: list[ControlResult]) -> str:
    ran, failed, unrun = evidence.checks_of(controls)
    if not ran:
        return "No control was run, so nothing vouches for these figures."
    not_run = f" {words.plural(unrun, 'control')} cannot tell." if unrun else ""
    if not failed:
        return f"Controls: all {words.count(len(ran))} that were run passed.{not_run}"
    named = evidence.distinct(map(_failure, failed))
    more = f" and {words.count(len(named) - 4)} more" if len(named) > 4 else ""
    return (
        f"Controls: {words.count(len(failed))} of {words.count(len(ran))} failed: "
        f"{'; '.join(named[:4])}{more}.{not_run}"
    )


def _failure(control: ControlResult) -> str:
    expected = shortened(control.expected, 120).rstrip(".")
    got = "no value" if control.value is None else words.shown(control.value, AUC)
    return f"{shortened(control.control)} (expected: {expected}; got {got})"
