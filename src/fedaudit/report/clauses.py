"""Questions that legal and technical assessments of a model ask, and a record's answers.

The file ``formatting/texts/clauses.toml`` has the questions and the documents that ask them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from fedaudit.core import metric_names
from fedaudit.core.metric_names import AUC
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import shorten
from fedaudit.report import evidence
from fedaudit.report.deciding.caveats import (
    controls_line,
    coverage_gaps,
    guard_decisions,
    hardly_learned,
    unit_of,
    unseen_release,
)
from fedaudit.report.deciding.epsilons import epsilon_bounds, shown_bounds
from fedaudit.report.evidence import group_by, unique_items
from fedaudit.report.exposure import exposure
from fedaudit.report.first import tiles_of
from fedaudit.report.sources import source_attacks, strongest_attack
from fedaudit.report.text.verdict import (
    audited_samples,
    describe_audit,
    missing_estimate_reasons,
    summarise_verdict,
)
from fedaudit.results.estimate import NO_DEFENSE, TEST_ACCURACY, Estimate
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import ClientRow, OtherClients, Record
from fedaudit.results.unlearning import unlearning_rows

Kind = Literal[
    "figure",
    "stated",
    "inconclusive",
    "not tested",
    "not stated",
    "out of scope",
    "not applicable",
]

CHECKS = ("permuted members", "untrained model", "blind classifier", "planted leak")
"""The kinds of controls."""
LEVEL = "95%"  # confidence of the limits that are compared
MOST_NAMED = 6  # largest number of reasons or rows of an answer
FPR = 0.01  # false-positive rate of the answers about true-positive rates
PRIORS = (0.5, 0.01)  # fractions of members among the samples that an adversary asks about
NO_LIMIT = "No upper limit of a risk is known"
_RATE = metric_names.tpr_at(FPR)
_FIXED = fixed_texts("clauses")
UNCHECKED: str = _FIXED["unchecked"]
CAVEAT: str = _FIXED["caveat"]  # first text of the file in a pack


class ClauseAnswer(NamedTuple):
    """A record's answer to one question.

    Attributes:
        kind: "figure" for a number of this record, "stated" for other information in it.
            "Inconclusive" means too few samples or a failed control. "Not tested" means that this
            audit did not test it, although fedaudit can. "Not stated" means that the record does
            not contain it. "Out of scope" means that fedaudit cannot test it. "Not applicable" is
            the statement of a packer about a question that the record does not answer.
        text: The answer in one line.
        more: What the answer is based on.
    """

    kind: Kind
    text: str
    more: str = ""


Answering = Callable[[Record], ClauseAnswer]


class Source(NamedTuple):
    """Document that asks a question.

    Attributes:
        name: Name of the document.
        date: Date of the document.
        paragraph: Number of the clause; empty if its text could not be read.
        text: The quoted clause, or why none is quoted.
        quoted_from: "the document", or "other publications" that quote it; empty without a quote.
    """

    name: str
    date: str
    paragraph: str = ""
    text: str = UNCHECKED
    quoted_from: Literal["", "the document", "other publications"] = ""


class Clause(NamedTuple):
    """A question, its sources, and the function that answers it.

    Attributes:
        id: Identifier of the question in files.
        topic: The question as a short topic.
        question: The question in full.
        sources: Documents that ask it.
        answer: Function from a record to its answer.
    """

    id: str
    topic: str
    question: str
    sources: tuple[Source, ...]
    answer: Answering


_WHEN: Mapping[str, Callable[[Record], bool]] = {
    "always": bool,
    "of people": lambda record: record.unit == "person",
    "tampers": lambda record: (
        bool(record.games)
        or wording.study_setting(record, "server", "name") not in (None, "", "honest")
    ),
    "poisons": lambda r: wording.study_setting(r, "attacker", "kind") not in (None, "", "none"),
}


def _answering(row: Mapping[str, Any]) -> Answering:
    if "out_of_scope" in row:
        return lambda record: ClauseAnswer("out of scope", "Out of scope", row["out_of_scope"])
    if "answer" in row:
        by_name: Answering = globals()[row["answer"]]
        return by_name
    on_members, applies = "membership" in row["tiles"], _WHEN[row.get("when", "always")]

    def answer(record: Record) -> ClauseAnswer:
        if not applies(record):
            return _not_tested(row["without"])
        tiles = [tile for topic in row["tiles"] for tile in tiles_of(record).get(topic, ())]
        if not tiles:
            return _unanswered(record, row["without"], AUC if on_members else "")
        unit = fixed_texts("answers.units").get(unit_of(record), "") if on_members else ""
        is_void = all(NOT_RELIED_ON in tile.detail for tile in tiles)
        kind: Kind = "inconclusive" if is_void else "figure"
        return ClauseAnswer(
            kind, unit + "; ".join(tile.line for tile in tiles), row.get("more", "")
        )

    return answer


def _not_tested(why: str) -> ClauseAnswer:
    return ClauseAnswer("not tested", "Not tested", why)


def _unanswered(record: Record, why: str, metric: str = "") -> ClauseAnswer:
    blank = [f for f in record.findings if f.metric == metric and f.value is None]
    blank = [estimate for estimate in blank if "inconclusive" in estimate.note]
    refused = missing_estimate_reasons(
        [estimate for estimate in blank if estimate.seed is None] or blank
    )
    if not refused or evidence.is_uninformative(record):
        return _not_tested(why)
    return ClauseAnswer("inconclusive", "Too few samples", " ".join(refused[:MOST_NAMED]))


def caveats(record: Record) -> str:
    """Return the caveats that apply to every figure of a record, in sentences."""
    applying = {
        "deletion": unlearning_rows(record),
        "canaries": isinstance(record.config.get("canaries"), dict),
        "hardly_learned": hardly_learned(record),
    }
    texts = [fixed_text(f"answers.caveats.{name}") for name, applies in applying.items() if applies]
    texts += unseen_release(record)
    texts += [f"{text}." for text in (guard_decisions(record), coverage_gaps(record)) if text]
    return wording.join_parts(*texts, by=" ")


def conclusion(record: Record) -> ClauseAnswer:
    """Return the record's verdict, and how many samples and seeds were audited."""
    basis = "The verdict of a policy is in the file verdict.json of an evidence pack."
    if record.games:
        from fedaudit.report.text.games import game_verdict

        return ClauseAnswer(
            "stated", wording.with_full_stop(game_verdict(record).first.headline), basis
        )
    audit = (
        f"Audited: {audited_samples(record)}; {wording.format_count(len(record.seeds), 'seed')}."
    )
    return ClauseAnswer(
        "stated", wording.with_full_stop(summarise_verdict(record).headline), f"{audit} {basis}"
    )


def adversary(record: Record) -> ClauseAnswer:
    """Return the adversary, and whose samples were audited."""
    text = f"View “{shorten(record.view.name)}”"
    if record.games:
        from fedaudit.report.text.games import game_verdict

        return ClauseAnswer("stated", text, game_verdict(record).played)
    return ClauseAnswer(
        "stated", text, f"{describe_audit(record)} {fixed_text('answers.other_adversaries')}"
    )


def controls(record: Record) -> ClauseAnswer:
    """Return how many controls passed, and which kinds of controls were not run."""
    ran = evidence.outcomes_of(record.controls).ran
    if not ran:
        return _not_tested(fixed_text(f"answers.{'games' if record.games else 'no'}_controls"))
    kinds = unique_items(shorten(control.control, 120) for control in ran)
    missing = [kind for kind in CHECKS if kind not in kinds]
    not_run = f" Not run: {wording.join_some(missing)}." * bool(missing)
    run = f"Run: {wording.join_some(kinds)}."
    return ClauseAnswer("figure", controls_line([record]), run + not_run)


def parameters(record: Record) -> ClauseAnswer:
    """Return how many parameters the model has for each training sample."""
    other_clients, trained = record.other_clients, record.parameters
    rows: list[ClientRow | OtherClients] = [*record.clients]
    rows += [other_clients] if other_clients else []
    # A recording has only the audited samples of a client that does not report its size.
    is_known = not record.watched or any(row.audited not in (None, row.samples) for row in rows)
    samples = sum(row.samples for row in rows) if is_known else 0
    size = f"{samples:,} training samples"
    if trained is None:
        unknown = "no_parameters" if samples else "no_sizes"
        return ClauseAnswer(
            "not stated", "Not stated", fixed_text(f"answers.{unknown}", samples=size)
        )
    text = wording.format_count(trained, "trained parameter")
    text += f", {wording.format_number(trained / samples)} for each of {size}" if samples else ""
    return ClauseAnswer("figure", text, fixed_text("answers.parameters"))


def defenses(record: Record) -> ClauseAnswer:
    """Return leakage and accuracy with and without a defense, if the record has both."""
    if record.games or evidence.is_uninformative(record):
        return _not_tested(fixed_text("answers.no_accuracy"))
    estimates = (*record.others, *evidence.main_estimates(record))
    names = unique_items(estimate.defense for estimate in estimates)
    lines = [
        f"{shorten(wording.defense_name(name))}: {_row(record, name)}."
        for name in names[:MOST_NAMED]
    ]
    if len(names) > 1 and NO_DEFENSE in names:
        return ClauseAnswer("figure", f"{len(names)} rows", "\n".join(lines))
    return _not_tested("\n".join([*lines, fixed_text("answers.alone")]))


def _row(record: Record, defense: str) -> str:
    estimates = [f for f in evidence.main_estimates(record) if f.defense == defense and not f.doubt]
    best = evidence.largest_estimate(estimates, AUC)
    attacks = [attack for attack in source_attacks(record) if attack.success.defense == defense]
    source = strongest_attack([attack for attack in attacks if not attack.success.doubt])
    utility = {"topic": "utility", "metric": TEST_ACCURACY, "defense": defense}
    accuracies = [f.number for f in record.where(**utility) if not f.against]
    texts = [f"largest AUC {wording.with_interval(best)}"] if best else []
    if source:
        texts.append(f"client identified for {wording.with_interval(source.success)} of samples")
    if accuracies:
        texts.append(f"test accuracy {wording.format_percent(sum(accuracies) / len(accuracies))}")
    return ", ".join(texts) or "no figures"


def references(record: Record) -> ClauseAnswer:
    """Return the largest AUC of attacks that use reference models."""
    estimates = [estimate for estimate in evidence.main_estimates(record) if not estimate.doubt]
    with_references = [f for f in estimates if re.search(r"\b(rmia|lira)\b", f.attack)]
    best = evidence.largest_estimate(with_references, AUC)
    if evidence.is_uninformative(record) or best is None:
        return _not_tested(fixed_text("answers.no_references"))
    size = wording.with_interval(best)
    return ClauseAnswer("figure", f"Yes; their largest AUC is {size}, {shorten(best.attack, 60)}")


def origin(record: Record, role: str = "") -> ClauseAnswer:
    """Return the date and version of the audit, and the role that a packer states.

    Records do not name their author.
    """
    environment = record.environment
    date, versions = environment.started[:10] or "not stated", environment.versions
    text = f"Date: {date}; tester{'' if role else ' and role'}: not stated"
    stated_role = (
        f"Role by the packer’s statement: {role}. {fixed_text('answers.stated')} " if role else ""
    )
    version = shorten(versions.get("fedaudit", "not stated"), 60)
    return ClauseAnswer("not stated", text, f"{stated_role}Version of fedaudit: {version}.")


def release_policy(record: Record) -> ClauseAnswer:
    """Return where the policy and its verdict are, and what a guard decided about uploads."""
    decisions = guard_decisions(record)
    uploads = f"{decisions}." if decisions else fixed_text("answers.no_guard")
    return ClauseAnswer("stated", fixed_text("answers.policy"), uploads)


def criteria(record: Record) -> ClauseAnswer:
    """Return which files have the criteria, and the model to which they were applied."""
    coverage = record.coverage
    if coverage is None or not coverage.final_models:
        return ClauseAnswer(
            "stated", fixed_text("answers.criteria"), fixed_text("answers.no_model")
        )
    base = coverage.base_model
    of_base = f" of the base model with SHA-256 {base}" * bool(base)
    models = [
        f"{wording.capitalise(coverage.final_model_name(each))}{of_base}: SHA-256 {each.after}"
        for each in coverage.final_models
    ]
    return ClauseAnswer("stated", fixed_text("answers.criteria"), f"{wording.join_some(models)}.")


def purpose(record: Record) -> ClauseAnswer:
    """Return that records do not state the purpose of the model."""
    return ClauseAnswer("not stated", "Not stated", fixed_text("answers.no_purpose"))


def claimed_epsilon(record: Record) -> ClauseAnswer:
    """Return the claimed and proven epsilons, with unit, adjacency and delta."""
    games = [point.claimed_epsilon for point in record.games if point.claimed_epsilon is not None]
    if games:
        epsilons = wording.format_range(games, text=wording.format_number)
        lines = [tile.line for tile in tiles_of(record)["games"] if "epsilon" in tile.label]
        text = f"ε {epsilons} claimed for one sample, delta 0"
        return ClauseAnswer("figure", text, f"{'. '.join(lines)}.")
    names = {
        metric: text.format(models=fixed_text("epsilons.client.observer"))
        for metric, text in fixed_texts("answers.claims").items()
    }
    claims = [claim for name in names if (claim := evidence.estimate_of_metric(record, name))]
    if not claims:
        why = [
            estimate.note
            for estimate in record.findings
            if estimate.metric in names and estimate.note
        ]
        note = wording.with_full_stop(wording.capitalise(shorten(why[0], 120))) if why else ""
        return ClauseAnswer("not stated", "No epsilon is claimed or proven", note)
    text = "; ".join(f"ε {wording.format_number(c.number)} ({names[c.metric]})" for c in claims)
    basis = [f"{wording.capitalise(names[c.metric].split(';')[0])}: {_terms(c)}" for c in claims]
    return ClauseAnswer("figure", text, "\n".join(basis))


def _terms(claim: Estimate) -> str:
    unit = shorten(claim.note, 240).rpartition("unit: ")[2] or "not stated"
    if claim.metric.startswith(metric_names.CLAIMED_CLIENT_EPSILON):
        unit = "one client’s whole contribution"
    kind = "renyi" if claim.method.startswith("Renyi accountant") else "other"
    kind = "contribution" if "contribution" in unit else kind
    adjacency = fixed_text(f"answers.adjacency.{kind}")
    return f"unit: {unit}; adjacency: {adjacency}; {shorten(claim.method, 120) or 'not stated'}."


def measured_epsilon(record: Record) -> ClauseAnswer:
    """Return the lower bounds on epsilon that attacks, canaries and games have measured."""
    nothing = fixed_text("answers.proves_nothing")
    if record.games:
        proven = wording.format_number(
            max(point.empirical_epsilon for point in record.games), rounding="down"
        )
        text = f"ε at least {proven} for one sample, against a server that tampers"
        return ClauseAnswer("figure", text, nothing)
    bounds = epsilon_bounds(record)
    if not bounds:
        return _not_tested(fixed_text("answers.no_bound"))
    lines = []
    for bound in bounds:
        other_bounds = [f"{other.text}." for other in bound.measured[1:]]
        claim = wording.capitalise(f"{bound.against_claim}." * bool(bound.against_claim))
        line = f"{wording.capitalise(bound.unit)}: {shorten(bound.lead.method, 100)}."
        lines.append(wording.join_parts(line, *other_bounds, claim, by=" "))
    text = "; ".join(f"{bound.at_least} for {bound.unit}, {bound.observer}" for bound in bounds)
    return ClauseAnswer("figure", wording.capitalise(text), "\n".join([*lines, nothing]))


def one_sum(record: Record) -> ClauseAnswer:
    """Return the lower bound on the epsilon of one client's update in one round's sum."""
    bounds = [bound for bound in shown_bounds(record) if bound.unit.endswith("sum")]
    if not bounds:
        return _not_tested(fixed_text("answers.no_sum"))
    text = f"{wording.capitalise(bounds[0].at_least)}, {bounds[0].observer}"
    return ClauseAnswer("figure", text, fixed_text("answers.proves_nothing"))


class _UpperLimit(NamedTuple):
    value: float
    figure: str
    without: str


def _largest_limit(record: Record, metric: str) -> _UpperLimit | None:
    """Return the largest 95% upper limit of a metric; None if it has no limit or a control failed.

    It is valid for the strongest attack, with the confidence of a single limit.
    """
    estimates = [
        f for f in record.findings if f.is_of_attack and f.metric == metric and not f.against
    ]
    estimates = [estimate for estimate in estimates if estimate.fair] or estimates
    with_limit = list(filter(_has_limit, estimates))
    failed = evidence.outcomes_of(record.controls).failed
    if not with_limit or failed or evidence.is_uninformative(record):
        return None
    best = max(with_limit, key=evidence.upper_limit)
    label = evidence.labels_by_setting(estimates)[evidence.setting_of(best)]
    mean = best.seed is None and len(record.seeds) > 1 and "over seeds" not in label
    name = wording.join_parts(
        f"attack: {shorten(best.attack, 60)}",
        f"non-members: {wording.contrast_meaning(best.contrast, record.unit)}",
        label,
        "mean over seeds" * mean,
        by="; ",
    )
    bounded = {wording.attack_code(estimate.attack) for estimate in with_limit}
    unbounded = [estimate.attack for estimate in estimates if not _has_limit(estimate)]
    unbounded += [
        wording.attack_name(row.name)
        for row in record.attacks
        if not row.infers_source and row.name not in bounded
    ]
    names = [shorten(name, 60) for name in unique_items(unbounded)]
    without = f" Some or all figures of these have no such limit: {wording.join_some(names)}."
    without *= bool(names)
    return _UpperLimit(evidence.upper_limit(best), name, without)


def _has_limit(estimate: Estimate) -> bool:
    return estimate.high is not None and wording.confidence_level(estimate.method) == LEVEL


def bound_on_success(record: Record) -> ClauseAnswer:
    """Return an upper limit of attack success, since no test can show that attacks only guess."""
    limit = _largest_limit(record, AUC)
    if limit is None:
        return _unbounded(record, AUC)
    auc = wording.format_number(limit.value, rounding="up")
    text = f"AUC at most {auc} with 95% confidence ({limit.figure})"
    return ClauseAnswer("figure", text, fixed_text("answers.bound") + limit.without)


def most_exposed(record: Record) -> ClauseAnswer:
    """Return the fraction of members that are found at least, and a limit for single samples."""
    exposed, further_text = exposure(record), fixed_text("exposure.more", unit=record.unit)
    if exposed.found or exposed.is_limited:
        return ClauseAnswer("figure", wording.capitalise(exposed.text), further_text)
    if not evidence.has_membership(record) or record.games:
        return _not_tested("The record has no figure of an attack on membership.")
    if evidence.outcomes_of(record.controls).failed and not evidence.is_uninformative(record):
        return _unbounded(record, _RATE)
    return _not_tested(f"{fixed_text('exposure.nothing', limit=exposed.limit)} {further_text}")


def flagged(record: Record) -> ClauseAnswer:
    """Return the probability that a flagged sample is a member, at two priors."""
    limit = _largest_limit(record, _RATE)
    if limit is None:
        return _unbounded(record, _RATE)
    values = {prior: predictive_value(limit.value, FPR, prior) for prior in PRIORS}
    chances = [
        f"{wording.format_percent(value, rounding='up')} at a prior of {prior:.0%}"
        for prior, value in values.items()
    ]
    basis = fixed_text(
        "answers.flagged",
        limit=f"{wording.format_percent(limit.value, rounding='up')}: {limit.figure}",
    )
    return ClauseAnswer("figure", f"At most {wording.join_and(chances)}", basis + limit.without)


def predictive_value(tpr: float, fpr: float, prior: float) -> float:
    """Return the probability that a flagged sample is a member, by Bayes' theorem."""
    return tpr * prior / (tpr * prior + fpr * (1 - prior))


def _unbounded(record: Record, metric: str) -> ClauseAnswer:
    if evidence.outcomes_of(record.controls).failed and not evidence.is_uninformative(record):
        why = "No upper limit is relied on, because a control failed"
        return ClauseAnswer("inconclusive", why, controls_line([record]))
    name = wording.metric_name(metric)
    return _unanswered(record, f"The record has no {name} with a 95% upper limit.", metric)


def residual(record: Record) -> ClauseAnswer:
    """Return the upper limits of the risks that remain if the model is deployed."""
    if evidence.is_uninformative(record):
        why = "It demonstrates a flawed evaluation."
        return ClauseAnswer("stated", "Nothing follows from this record", why)
    bounds = [bound.sentence for bound in shown_bounds(record)]
    texts = residual_risks(record) + list(map(wording.without_capital, bounds))
    text = wording.capitalise("; ".join(texts)) or NO_LIMIT
    return ClauseAnswer("stated", text, fixed_text("answers.residual"))


def residual_risks(record: Record) -> list[str]:
    """Return a sentence on the upper limit of each risk; limits of 100% are omitted."""
    by_metric = {name: _largest_limit(record, m) for name, m in (("pairs", AUC), ("rate", _RATE))}
    limits = {name: (limit.value, limit.figure) for name, limit in by_metric.items() if limit}
    attacks = [attack for attack in source_attacks(record) if attack.success.high is not None]
    if attacks and not evidence.outcomes_of(record.controls).failed:
        guessing = f"guessing: {wording.format_percent(attacks[0].chance)}"
        limits["sources"] = max(evidence.upper_limit(a.success) for a in attacks), guessing
    if record.games:
        from fedaudit.report.text.points import by_protection, shown_points

        protected, unprotected = by_protection(shown_points(record.games))
        worst = max(protected or unprotected, key=lambda item: item.point.success.high)
        where = f"behind {worst.name}" if protected else worst.name
        limits["games"] = worst.point.success.high, where
    return [
        fixed_text(f"answers.risks.{name}", most=share, of=estimate)
        for name, (value, estimate) in limits.items()
        if (share := wording.format_percent(value, rounding="up")) != "100%"
    ]


_SOURCES = {key: Source(**source) for key, source in _FIXED["sources"].items()}
CLAUSES = tuple(
    Clause(
        row["id"],
        row["topic"],
        row["question"],
        tuple(_SOURCES[source] for source in row["sources"]),
        _answering(row),
    )
    for row in _FIXED["rows"]
)


def clause_summary(record: Record) -> tuple[str, list[tuple[str, str]]]:
    """Return an introduction to the questions, and the topics of unanswered ones by kind."""
    by_kind = group_by(CLAUSES, lambda row: row.answer(record).kind)
    sources = unique_items(
        source.name.partition(", ")[0] for row in CLAUSES for source in row.sources
    )
    topics = [
        (name, wording.join_and(unique_items(row.topic for row in by_kind[kind])))
        for kind, name in _FIXED["kinds"].items()
        if kind in by_kind
    ]
    return _FIXED["summary"].format(sources=wording.join_and(sources)), topics
