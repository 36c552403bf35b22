"""Answers of a record to what assessments of a model ask: the same numbers as its first screen."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from fedaudit.core.metric_names import (
    AUC,
    CLAIMED_CLIENT_EPSILON,
    CLAIMED_CLIENT_EPSILON_ALONE,
    tpr_at,
)
from fedaudit.report import evidence, wording
from fedaudit.report.deciding.epsilons import AGAINST_BOTH_MODELS, epsilon_bounds, shown_bounds
from fedaudit.report.fixed import fixed, fixed_texts
from fedaudit.report.grid import Tile, shortened
from fedaudit.report.sources import on_sources, strongest_on_sources
from fedaudit.report.text.verdict import audited, refusals, verdict
from fedaudit.report.tiles import tiles_of
from fedaudit.report.verdict import (
    controls_line,
    coverage_gaps,
    hardly_learned,
    unit_of,
    units_of,
)
from fedaudit.results.estimate import NO_DEFENSE, TEST_ACCURACY, Estimate
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import Record
from fedaudit.results.unlearning import unlearning_rows

Kind = Literal["figure", "stated", "inconclusive", "not tested", "not stated", "out of scope"]

CHECKS = ("permuted members", "untrained model", "blind classifier", "planted leak")
"""The kinds of controls that there are."""
LEVEL = "95%"
"""Confidence of the limits that are compared."""
MOST_NAMED = 6
"""Reasons and rows of an answer at most."""
FPR = 0.01
"""Share of false alarms at which true-positive rates are asked for."""
PRIORS = (0.5, 0.01)
"""Shares of members among the records that an adversary asks about."""
NO_LIMIT = "No upper limit of a risk is known"
_RATE = tpr_at(FPR)


class Answer(NamedTuple):
    """A record's answer to one question.

    Attributes:
        kind: "figure" for numbers of this record; "stated" for other facts that it holds.
            "Inconclusive" was asked, and refused for want of samples or because a control failed.
            "Not tested" could be found out with fedaudit and was not; "not stated" is not in the
            record; "out of scope" no part of fedaudit asks.
        text: In a line.
        more: What it rests on.
    """

    kind: Kind
    text: str
    more: str = ""


Answering = Callable[[Record], Answer]


def by_tiles(
    *topics: str, without: str, more: str = "", when: Callable[[Record], bool] = bool
) -> Answering:
    """Return an answer that consists of the numbers which a first screen has of some topics.

    Args:
        topics: Names as in :func:`fedaudit.report.tiles.tiles_of`.
        without: Why there is no number.
        more: What such a number leaves open.
        when: Whether a record asks the question at all; every record by default.
    """
    on_members = "membership" in topics

    def answer(record: Record) -> Answer:
        if not when(record):
            return not_tested(without)
        tiles = [tile for topic in topics for tile in tiles_of(record).get(topic, ())]
        if not tiles:
            return unanswered(record, without, AUC if on_members else "")
        unit = fixed_texts("answers.units").get(unit_of(record), "") if on_members else ""
        is_void = all(NOT_RELIED_ON in tile.detail for tile in tiles)
        kind: Kind = "inconclusive" if is_void else "figure"
        return Answer(kind, unit + "; ".join(map(_as_text, tiles)), more)

    return answer


def _as_text(tile: Tile) -> str:
    return f"{tile.label}: {tile.value} ({tile.detail})"


def not_tested(why: str) -> Answer:
    """Return the answer of a record that does not ask, though it could."""
    return Answer("not tested", "Not tested", why)


def out_of_scope(why: str) -> Answering:
    """Return the answer for every record where no part of fedaudit asks the question."""
    return lambda record: Answer("out of scope", "Out of scope", why)


def unanswered(record: Record, why: str, *metrics: str) -> Answer:
    """Return that nothing was tested, or that figures were refused for want of samples."""
    blank = [one for one in record.findings if one.metric in metrics and one.value is None]
    blank = [one for one in blank if "inconclusive" in one.note]
    refused = refusals([one for one in blank if one.seed is None] or blank)
    if not refused or evidence.says_nothing(record):
        return not_tested(why)
    return Answer("inconclusive", "Too few samples", " ".join(refused[:MOST_NAMED]))


def caveats(record: Record) -> str:
    """Return what qualifies every figure of a record, in sentences; empty for nothing."""
    views = {one.view for one in record.findings if one.attack}
    applying = {
        "deletion": unlearning_rows(record),
        "canaries": isinstance(record.config.get("canaries"), dict),
        "hardly_learned": hardly_learned(record),
        "released": views and "final" not in views,
    }
    texts = [fixed(f"answers.caveats.{name}") for name, applies in applying.items() if applies]
    gaps = coverage_gaps(record)
    return " ".join([*texts, *([f"{gaps}."] if gaps else [])])


def conclusion(record: Record) -> Answer:
    """Return the record's own verdict, and how much was audited."""
    figures = [one for one in record.findings if one.attack and one.n_members]
    figures = [one for one in figures if one.seed is not None] or figures
    more = "A policy’s verdict is in a pack’s verdict.json."
    if record.games:
        # Not at the top, as below: few records are of games.
        from fedaudit.report.text.games import game_verdict

        return Answer("stated", wording.sentence(game_verdict(record).headline), more)
    audit = wording.plural(len(record.seeds), "seed")
    if figures:
        members = wording.from_to(one.n_members for one in figures)
        others = wording.from_to(one.n_nonmembers for one in figures)
        audit += f"; {members} {units_of(record)} as members and {others} as non-members"
        audit += " for each model"
    return Answer("stated", wording.sentence(verdict(record).headline), f"Audited: {audit}. {more}")


def adversary(record: Record) -> Answer:
    """Return the adversary, and whose samples were audited."""
    text = f"View “{shortened(record.view.name)}”"
    if record.games:
        from fedaudit.report.text.games import game_verdict

        return Answer("stated", text, game_verdict(record).played)
    return Answer("stated", text, f"{audited(record)} {fixed('answers.other_adversaries')}")


def controls(record: Record) -> Answer:
    """Return how many checks of the audit itself hold, and which kinds were not run."""
    ran = evidence.checks_of(record.controls).ran
    if not ran:
        return not_tested(
            fixed("answers.games_controls" if record.games else "answers.no_controls")
        )
    kinds = evidence.distinct(shortened(one.control, 120) for one in ran)
    missing = [kind for kind in CHECKS if kind not in kinds]
    more = f"Run: {wording.some(kinds)}." + f" Not run: {wording.some(missing)}." * bool(missing)
    return Answer("figure", controls_line([record]), more)


def parameters(record: Record) -> Answer:
    """Return how many parameters the model has for each training sample."""
    others, learned = record.other_clients, record.parameters
    samples = sum(row.samples for row in record.clients) + (others.samples if others else 0)
    known = f"{wording.count(samples)} training samples" if samples else "no number of samples"
    if learned is None:
        why = f"The record has {known}, and not the number of the model’s parameters."
        return Answer("not stated", "Not stated", why)
    text = wording.plural(learned, "trained parameter")
    text += f", {wording.number(learned / samples)} for each of {known}" if samples else ""
    return Answer("figure", text, fixed("answers.parameters"))


def defenses(record: Record) -> Answer:
    """Return leakage and accuracy with a defense and without, where the record has both."""
    if record.games or evidence.says_nothing(record):
        return not_tested(fixed("answers.no_accuracy"))
    figures = (*record.others, *evidence.headline(record))
    names = evidence.distinct(one.defense for one in figures)
    is_compared = len(names) > 1 and NO_DEFENSE in names
    lines = [
        f"{shortened(wording.defense_name(name))}: {_row(record, name)}."
        for name in names[:MOST_NAMED]
    ]
    more = "\n".join(lines if is_compared else [*lines, fixed("answers.alone")])
    return Answer("figure", f"{len(names)} rows", more) if is_compared else not_tested(more)


def _row(record: Record, defense: str) -> str:
    figures = [one for one in evidence.headline(record) if one.defense == defense and not one.doubt]
    best = evidence.strongest(figures, AUC)
    named = [one for one in on_sources(record) if one.success.defense == defense]
    source = strongest_on_sources([one for one in named if not one.success.doubt])
    at = {"topic": "utility", "metric": TEST_ACCURACY, "defense": defense}
    right = [one.number for one in record.where(**at) if not one.against]
    texts = [f"largest AUC {wording.with_interval(best)}"] if best else []
    texts += (
        [f"client named for {wording.with_interval(source.success)} of samples"] if source else []
    )
    texts += [f"test accuracy {wording.percent(sum(right) / len(right))}"] if right else []
    return ", ".join(texts) or "no figures"


def references(record: Record) -> Answer:
    """Return the largest AUC of attacks that compare with reference models."""
    figures = [one for one in evidence.headline(record) if not one.doubt]
    compared = [one for one in figures if one.attack.split("-")[0] in ("rmia", "lira")]
    best = evidence.strongest(compared, AUC)
    if evidence.says_nothing(record) or best is None:
        return not_tested(fixed("answers.no_references"))
    text = f"Yes: largest AUC {wording.with_interval(best)}, {shortened(best.attack, 40)}"
    return Answer("figure", text)


def tampers(record: Record) -> bool:
    """Return True if the server of a record sends out another model than the trained one."""
    return bool(record.games) or _setting(record, "server", "name") not in ("", "honest")


def poisons(record: Record) -> bool:
    """Return True if a client of a record poisons what it sends."""
    return _setting(record, "attacker", "kind") not in ("", "none")


def _setting(record: Record, table: str, name: str) -> object:
    entry = record.config.get(table)
    return entry.get(name, "") if isinstance(entry, dict) else ""


def tester(record: Record) -> Answer:
    """Return the date and version of the audit; nothing in a record states who made it."""
    made = record.environment
    text = f"When: {made.started[:10] or 'not stated'}; by whom, in which role: not stated"
    version = shortened(made.versions.get("fedaudit", "not stated"), 60)
    return Answer("not stated", text, f"Version of fedaudit: {version}.")


def claimed_epsilon(record: Record) -> Answer:
    """Return the epsilons that are claimed or proven, with unit, adjacency and delta."""
    games = [point.claimed_epsilon for point in record.games if point.claimed_epsilon is not None]
    if games:
        text = f"ε {wording.from_to(games, text=wording.number)} claimed for one record, delta 0"
        tiles = [tile for tile in tiles_of(record)["games"] if "epsilon" in tile.label]
        return Answer("figure", text, f"{'. '.join(map(_as_text, tiles))}.")
    names = {
        metric: text.format(models=AGAINST_BOTH_MODELS)
        for metric, text in fixed_texts("answers.claims").items()
    }
    every = [evidence.over_all_runs(record, metric) for metric in names]
    claims = [one for one in every if one is not None]
    if not claims:
        why = [one.note for one in record.findings if one.metric in names and one.note]
        note = wording.sentence(wording.capital(shortened(why[0], 120))) if why else ""
        return Answer("not stated", "No epsilon is claimed or proven", note)
    text = "; ".join(f"ε {wording.number(one.number)} ({names[one.metric]})" for one in claims)
    more = [f"{wording.capital(names[one.metric].split(';')[0])}: {_terms(one)}" for one in claims]
    return Answer("figure", text, "\n".join(more))


def _terms(one: Estimate) -> str:
    """Return unit, adjacency and method of an epsilon that is claimed or proven."""
    unit = shortened(one.note, 240).rpartition("unit: ")[2] or "not stated"
    if one.metric in (CLAIMED_CLIENT_EPSILON, CLAIMED_CLIENT_EPSILON_ALONE):
        unit = "one client’s whole contribution"
    kind = "renyi" if one.method.startswith("Renyi accountant") else "other"
    kind = "contribution" if "contribution" in unit else kind
    adjacency = fixed(f"answers.adjacency.{kind}")
    return f"unit: {unit}; adjacency: {adjacency}; {shortened(one.method, 120) or 'not stated'}."


def measured_epsilon(record: Record) -> Answer:
    """Return the lower bounds on epsilon that attacks, canaries and games have shown."""
    nothing = fixed("answers.proves_nothing")
    if record.games:
        proven = wording.number(max(point.proven_epsilon for point in record.games))
        text = f"ε at least {proven} for one record, against a server that tampers"
        return Answer("figure", text, nothing)
    bounds = epsilon_bounds(record)
    if not bounds:
        return not_tested(fixed("answers.no_bound"))
    lines = []
    for one in bounds:
        others = [f"{other.text}." for other in one.measured[1:]]
        claim = [wording.sentence(one.against_claim)] if one.against_claim else []
        line = [f"{wording.capital(one.unit)}: {shortened(one.lead.method, 100)}.", *others, *claim]
        lines.append(" ".join(line))
    text = "; ".join(f"{one.at_least} for {one.unit}, {one.observer}" for one in bounds)
    return Answer("figure", wording.capital(text), "\n".join([*lines, nothing]))


def one_sum(record: Record) -> Answer:
    """Return the lower bound on the epsilon of one client's update in one round's sum."""
    found = [one for one in shown_bounds(record) if one.unit.endswith("sum")]
    if not found:
        return not_tested(fixed("answers.no_sum"))
    text = f"{wording.capital(found[0].at_least)}, {found[0].observer}"
    return Answer("figure", text, fixed("answers.proves_nothing"))


class UpperLimit(NamedTuple):
    """An upper limit, the figure that has it, and a sentence on attacks that have none."""

    value: float
    of: str
    without: str


def largest_limit(record: Record, metric: str) -> UpperLimit | None:
    """Return the largest 95% upper limit of a metric over runs, means, clients and contrasts alike.

    It holds for the strongest attack with the confidence of a single limit, since that attack's own
    limit is not above the largest. The limit of a mean alone says nothing about the worst model.
    None without any limit, and if a control failed. Only fair comparisons count, if there are any:
    differences between clients that hold other classes are part of the rest.
    """
    found = [f for f in record.findings if f.attack and f.metric == metric and not f.against]
    every = [figure for figure in found if figure.fair] or found
    limited = [one for one in every if _has_limit(one)]
    failed = evidence.checks_of(record.controls).failed
    if not limited or failed or evidence.says_nothing(record):
        return None
    best = max(limited, key=evidence.highest_of)
    label = evidence.label_among(best, every)
    mean = best.seed is None and len(record.seeds) > 1 and "over seeds" not in label
    parts = (f"{shortened(best.attack, 40)} {wording.against(best.contrast)}", label)
    of = ", ".join(filter(None, (*parts, "mean over seeds" * mean)))
    attacks = {one.attack for one in limited}
    lacking = [one.attack for one in every if not _has_limit(one)]
    lacking += [r.name for r in record.attacks if not r.infers_source and r.name not in attacks]
    names = wording.some([shortened(name, 60) for name in evidence.distinct(lacking)])
    without = f" Without such a limit, in part or whole: {names}." if names else ""
    return UpperLimit(evidence.highest_of(best), of, without)


def _has_limit(figure: Estimate) -> bool:
    return figure.high is not None and wording.level_of(figure.method) == LEVEL


def rounded_up(share: float) -> float:
    """Return an upper limit with three decimals, rounded up so that it still is one."""
    return math.ceil(round(1000 * share, 6)) / 1000


def _percent_up(share: float) -> str:
    return f"{100 * rounded_up(share):.4g}%"


def bound_on_success(record: Record) -> Answer:
    """Return an upper bound in the place of "no better than guessing", which no test can show."""
    limit = largest_limit(record, AUC)
    if limit is None:
        return _unbounded(record, AUC)
    text = f"AUC at most {rounded_up(limit.value):.3f} with 95% confidence ({limit.of})"
    return Answer("figure", text, fixed("answers.bound") + limit.without)


def flagged(record: Record) -> Answer:
    """Return the chance that a flagged record is a member, at two priors."""
    limit = largest_limit(record, _RATE)
    if limit is None:
        return _unbounded(record, _RATE)
    chances = [
        f"{_percent_up(predictive_value(limit.value, FPR, prior))} at a prior of {prior:.0%}"
        for prior in PRIORS
    ]
    more = fixed("answers.flagged", limit=f"{_percent_up(limit.value)}: {limit.of}")
    return Answer("figure", f"At most {wording.listed(chances)}", more + limit.without)


def predictive_value(tpr: float, fpr: float, prior: float) -> float:
    """Return the chance that a flagged record is a member (Bayes).

    Args:
        tpr: Share of members that are flagged.
        fpr: Share of non-members that are; above 0.
        prior: Share of members among all records that are asked about.
    """
    return tpr * prior / (tpr * prior + fpr * (1 - prior))


def _unbounded(record: Record, metric: str) -> Answer:
    if evidence.checks_of(record.controls).failed and not evidence.says_nothing(record):
        why = "No upper limit is relied on, because a control failed"
        return Answer("inconclusive", why, controls_line([record]))
    name = wording.metric_name(metric)
    return unanswered(record, f"The record has no {name} with a 95% upper limit.", metric)


def residual(record: Record) -> Answer:
    """Return the risk that remains after this audit, for whoever deploys the model.

    A limit of 100% bounds nothing and is left out.
    """
    if evidence.says_nothing(record):
        return Answer("stated", "Nothing follows from this record", "It was made to show a flaw.")
    limits: dict[str, tuple[float, str]] = {}
    for name, metric in (("pairs", AUC), ("rate", _RATE)):
        if limit := largest_limit(record, metric):
            limits[name] = limit.value, limit.of
    named = [one.success.high for one in on_sources(record) if one.success.high is not None]
    if named and not evidence.checks_of(record.controls).failed:
        limits["sources"] = max(named), ""
    if record.games:
        from fedaudit.report.text.points import by_protection, shown_points

        behind, bare = by_protection(shown_points(record.games))
        worst = max(behind or bare, key=lambda item: item.point.adv.high)
        limits["games"] = worst.point.adv.high, f"behind {worst.name}" if behind else worst.name
    texts = [
        fixed(f"answers.risks.{name}", most=_percent_up(value), of=of)
        for name, (value, of) in limits.items()
        if rounded_up(value) < 1
    ]
    texts += [f"o{bounds.sentence[1:]}" for bounds in shown_bounds(record)]
    text = "; ".join(texts) or NO_LIMIT
    return Answer("stated", wording.capital(text), fixed("answers.residual"))
