"""Answers of a record to what assessments of a model ask: the same numbers as its first screen."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from fedaudit.core.metric_names import (
    AUC,
    CLAIMED_CLIENT_EPSILON,
    CLAIMED_CLIENT_EPSILON_ALONE,
    FORMAL_EPSILON,
    FORMAL_EPSILON_OF_A_ROUND,
    tpr_at,
)
from fedaudit.report import evidence, words
from fedaudit.report.deciding.epsilons import AGAINST_BOTH_MODELS, epsilon_bounds, shown_bounds
from fedaudit.report.grid import Tile, shortened
from fedaudit.report.sources import on_sources, strongest_on_sources
from fedaudit.report.text.games import game_verdict
from fedaudit.report.text.verdict import audited, verdict
from fedaudit.report.tiles import tiles_of
from fedaudit.report.verdict import (
    controls_line,
    coverage_gaps,
    hardly_learned,
    unit_of,
    units_of,
)
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.metrics import TEST_ACCURACY
from fedaudit.results.record import Record
from fedaudit.results.unlearning import unlearning_rows

LEVEL = "95%"
"""Confidence of the limits that are compared."""


class UpperLimit(NamedTuple):
    """The largest upper limit over single runs, means over them, clients and contrasts alike.

    The limit of a mean says nothing about the worst model behind it. The largest limit holds for
    the strongest attack with the confidence of a single limit, and needs no correction for their
    number: that attack's own limit is not above the largest.

    Attributes:
        value: The limit.
        of: Attack, contrast and run of the figure that has it.
        attacks: Attacks that have limits.
        without: Attacks that have a figure without a limit, or no figure at all.
    """

    value: float
    of: str
    attacks: list[str]
    without: list[str]


def largest_limit(record: Record, metric: str) -> UpperLimit | None:
    """Return the largest 95% upper limit of a metric of membership.

    None without any, and where a control failed. Of a record that has fair comparisons only these
    count: differences between clients that hold other classes are part of the rest.
    """
    found = [f for f in record.findings if f.attack and f.metric == metric and not f.against]
    every = [figure for figure in found if figure.fair] or found
    limited = [one for one in every if _limit(one) is not None]
    failed = evidence.checks_of(record.controls).failed
    if not limited or failed or evidence.says_nothing(record):
        return None
    best = max(limited, key=lambda one: _limit(one) or 0.0)
    tried = [row.name for row in record.attacks if not row.infers_source]
    attacks = evidence.distinct(one.attack for one in limited)
    unlimited = [one.attack for one in every if _limit(one) is None]
    lacking = [name for name in tried if name not in attacks]
    label = evidence.label_among(best, every)
    if best.seed is None and len(record.seeds) > 1 and "over seeds" not in label:
        label = ", ".join(filter(None, (label, "mean over seeds")))
    of = f"{shortened(best.attack, 40)} {words.against(best.contrast)}"
    return UpperLimit(
        _limit(best) or 0.0,
        ", ".join(filter(None, (of, label))),
        [shortened(name, 60) for name in attacks],
        [shortened(name, 60) for name in evidence.distinct([*unlimited, *lacking])],
    )


def _limit(figure: Estimate) -> float | None:
    return figure.high if words.level_of(figure.method) == LEVEL else None


def rounded_up(share: float) -> float:
    """Return an upper limit with three decimals, rounded up so that it still is one."""
    return math.ceil(round(1000 * share, 6)) / 1000


Kind = Literal["figure", "stated", "inconclusive", "not tested", "not stated", "out of scope"]

CHECKS = ("permuted members", "untrained model", "blind classifier", "planted leak")
"""The kinds of controls that there are."""
MOST_NAMED = 6
"""Names in a row; of more, their number is given."""
FPR = 0.01
"""Share of false alarms at which true-positive rates are asked for."""
PRIORS = (0.5, 0.01)
"""Shares of members among the records that an adversary asks about."""
_RATE = tpr_at(FPR)
_REFERENCE_ATTACKS = ("rmia", "lira")
_PROVES_NOTHING = "A lower bound certifies nothing."


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

    def answer(record: Record) -> Answer:
        if not when(record):
            return not_tested(without)
        tiles = [tile for topic in topics for tile in tiles_of(record).get(topic, ())]
        if not tiles:
            return unanswered(record, without, AUC if "membership" in topics else "")
        unit = _UNITS.get(unit_of(record), "") if "membership" in topics else ""
        is_void = all(NOT_RELIED_ON in tile.detail for tile in tiles)
        kind: Kind = "inconclusive" if is_void else "figure"
        return Answer(kind, unit + "; ".join(map(_as_text, tiles)), more)

    return answer


_UNITS = {
    "person": "Of people, each with all of their samples. ",
    "canary sample": "Of canary samples, not of people’s records. ",
}


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
    every = [
        one
        for one in record.findings
        if one.metric in metrics and one.value is None and "inconclusive" in one.note
    ]
    refused = [
        f"{words.metric_name(one.metric)} {words.against(one.contrast)}: {shortened(one.note, 120)}"
        for one in [figure for figure in every if figure.seed is None] or every
    ]
    if not refused or evidence.says_nothing(record):
        return not_tested(why)
    return Answer("inconclusive", "Too few samples", f"{_first(evidence.distinct(refused))}.")


def _first(names: Sequence[str], apart: str = "; ") -> str:
    more = [f"{len(names) - MOST_NAMED} more"] * (len(names) > MOST_NAMED)
    return apart.join([*names[:MOST_NAMED], *more])


def caveats(record: Record) -> str:
    """Return what qualifies every figure of a record, in sentences; empty for nothing."""
    figures = [one for one in record.findings if one.attack]
    found = (
        ("Figures are of the model before deletion.", bool(unlearning_rows(record))),
        (
            "Audited models hold the noise of canary clients; without it they may leak more.",
            isinstance(record.config.get("canaries"), dict),
        ),
        ("The models hardly learned their training data.", bool(hardly_learned(record))),
        (
            "The released model alone was not tested.",
            bool(figures) and all(one.view != "final" for one in figures),
        ),
        (f"{coverage_gaps(record)}.", bool(coverage_gaps(record))),
    )
    return " ".join(text for text, applies in found if applies)


def conclusion(record: Record) -> Answer:
    """Return the record's own verdict, and how much was audited."""
    figures = [one for one in record.findings if one.attack and one.n_members]
    single = [one for one in figures if one.seed is not None] or figures
    said = [f"Audited: {words.plural(len(record.seeds), 'seed')}"]
    if record.games:
        games = sum(point.adv.total for point in record.games)
        said = [f"Audited: {words.plural(len(record.points), 'point')}, {words.count(games)} games"]
    elif single:
        members = words.from_to(one.n_members for one in single)
        others = words.from_to(one.n_nonmembers for one in single)
        said.append(
            f"{members} {units_of(record)} as members and {others} as non-members for each model"
        )
    more = f"{'; '.join(said)}. A policy’s verdict is in a pack’s verdict.json."
    concluded = game_verdict(record) if record.games else verdict(record)
    return Answer("stated", words.sentence(concluded.headline), more)


def adversary(record: Record) -> Answer:
    """Return the adversary, and whose samples were audited."""
    text = f"View “{shortened(record.view.name)}”"
    if record.games:
        return Answer("stated", text, game_verdict(record).played)
    beyond = "No other adversary or client was tested, but for figures that name another observer."
    return Answer("stated", text, f"{audited(record)} {beyond}")


def controls(record: Record) -> Answer:
    """Return how many checks of the audit itself hold, and which kinds were not run."""
    if record.games:
        return not_tested("Games have no controls but their own bounds.")
    ran = evidence.checks_of(record.controls).ran
    if not ran:
        return not_tested("No control was run: nothing supports the figures.")
    kinds = evidence.distinct(one.control for one in ran)
    missing = [kind for kind in CHECKS if kind not in kinds]
    more = f"Run: {_first([shortened(kind, 120) for kind in kinds], ', ')}."
    more += f" Not run: {', '.join(missing)}." * bool(missing)
    return Answer("figure", controls_line([record]), more)


def parameters(record: Record) -> Answer:
    """Return how many parameters the model has for each training sample."""
    others, learned = record.other_clients, record.parameters
    samples = sum(row.samples for row in record.clients) + (others.samples if others else 0)
    known = f"{words.count(samples)} training samples" if samples else "no number of samples"
    if learned is None:
        why = f"The record has {known}, and not the number of the model’s parameters."
        return Answer("not stated", "Not stated", why)
    text = words.plural(learned, "trained parameter")
    text += f", {words.number(learned / samples)} for each of {known}" if samples else ""
    return Answer("figure", text, "Frozen parameters and audited non-members are not counted.")


def defenses(record: Record) -> Answer:
    """Return leakage and accuracy with a defense and without, where the record has both."""
    found = [*record.others, *evidence.headline(record)]
    rows = evidence.distinct(one.defense for one in found)
    if record.games or evidence.says_nothing(record):
        return not_tested("The record has no accuracy next to a leak that means something.")
    lines = [f"{shortened(words.defense_name(row))}: {_row(record, row)}." for row in rows]
    if len(rows) > 1 and NO_DEFENSE in rows:
        return Answer("figure", f"{len(rows)} rows side by side", _first(lines, "\n"))
    alone = "Compare with another record: fedaudit compare PLAIN DEFENDED."
    return not_tested("\n".join([*lines[:MOST_NAMED], alone]))


def _row(record: Record, defense: str) -> str:
    figures = [one for one in evidence.headline(record) if one.defense == defense and not one.doubt]
    best = evidence.strongest(figures, AUC)
    at = {"topic": "utility", "metric": TEST_ACCURACY, "defense": defense}
    right = [one.number for one in record.where(**at) if not one.against]
    said = [f"largest AUC {words.with_interval(best)}"] if best else []
    named = [one for one in on_sources(record) if one.success.defense == defense]
    source = strongest_on_sources([one for one in named if not one.success.doubt])
    said += [f"client named for {words.with_interval(source.success)} of samples"] if source else []
    said += [f"test accuracy {words.percent(sum(right) / len(right))}"] if right else []
    return ", ".join(said) or "no figures"


def references(record: Record) -> Answer:
    """Return the largest AUCs of attacks that compare with reference models, and of the others."""
    figures = [one for one in evidence.headline(record) if not one.doubt]
    compares = {one.attack: one.attack.split("-")[0] in _REFERENCE_ATTACKS for one in figures}
    best, alone = (
        evidence.strongest((one for one in figures if compares[one.attack] is wanted), AUC)
        for wanted in (True, False)
    )
    if evidence.says_nothing(record) or best is None:
        return not_tested("No attack here compares with reference models (RMIA, LiRA).")
    text = f"Yes: largest AUC {words.with_interval(best)}, {shortened(best.attack, 40)}"
    without = f"{words.with_interval(alone)}, {shortened(alone.attack, 40)}" if alone else "none"
    return Answer("figure", text, f"Of attacks without them: {without}.")


def tampers(record: Record) -> bool:
    """Return True if the server of a record sends out another model than the trained one."""
    server = record.config.get("server")
    return bool(record.games) or (
        isinstance(server, dict) and server.get("name", "honest") != "honest"
    )


def poisons(record: Record) -> bool:
    """Return True if a client of a record poisons what it sends."""
    given = record.config.get("attacker")
    return isinstance(given, dict) and given.get("kind", "none") != "none"


def tester(record: Record) -> Answer:
    """Return time and means of the audit; nothing in a record states who made it."""
    made = record.environment
    facts = {
        "fedaudit": made.versions.get("fedaudit", ""),
        "commit": made.commit,
        "device": made.device,
    }
    more = "; ".join(
        f"{name} {shortened(text, 60) or 'not stated'}" for name, text in facts.items()
    )
    text = f"When: {made.started[:10] or 'not stated'}; by whom, in which role: not stated"
    return Answer("not stated", text, f"{words.capital(more)}. These are no part of the hash.")


_CLAIMS = {
    FORMAL_EPSILON: ("proven", "against whoever sees every upload"),
    FORMAL_EPSILON_OF_A_ROUND: ("proven, one round", "against whoever sees one round’s upload"),
    CLAIMED_CLIENT_EPSILON_ALONE: (
        "claimed, without canary clients, as deployed",
        AGAINST_BOTH_MODELS,
    ),
    CLAIMED_CLIENT_EPSILON: ("claimed, with canary clients, as audited", AGAINST_BOTH_MODELS),
}


def claimed_epsilon(record: Record) -> Answer:
    """Return the epsilons that are claimed or proven, with unit, adjacency and delta."""
    games = [point.claimed_epsilon for point in record.games if point.claimed_epsilon is not None]
    if games:
        text = f"ε {words.from_to(games, text=words.number)} claimed for one record, delta 0"
        numbers = tiles_of(record)["games"]
        more = [_as_text(tile) for tile in numbers if "epsilon" in tile.label]
        return Answer("figure", text, f"{'. '.join(more)}.")
    found = [(metric, evidence.over_all_runs(record, metric)) for metric in _CLAIMS]
    claims = [(metric, one) for metric, one in found if one is not None]
    if not claims:
        why = [one.note for one in record.findings if one.metric in _CLAIMS and one.note]
        note = words.sentence(words.capital(shortened(why[0], 120))) if why else ""
        return Answer("not stated", "No epsilon is claimed or proven", note)
    text = "; ".join(
        f"ε {words.number(one.number)} ({_CLAIMS[metric][0]}; {_CLAIMS[metric][1]})"
        for metric, one in claims
    )
    return Answer("figure", text, "\n".join(_terms(metric, one) for metric, one in claims))


def _terms(metric: str, one: Estimate) -> str:
    unit = shortened(one.note, 240).rpartition("unit: ")[2] or "not stated"
    adjacency = "as the unit says"
    if one.method.startswith("Renyi accountant"):
        adjacency = "one unit there or not"
    if metric in (CLAIMED_CLIENT_EPSILON, CLAIMED_CLIENT_EPSILON_ALONE):
        unit = "one client’s whole contribution"
    if "contribution" in unit:
        adjacency = "it or zeros in its place; whether a client takes part is not covered"
    method = shortened(one.method, 120) or "not stated"
    return f"{words.capital(_CLAIMS[metric][0])}: unit: {unit}; adjacency: {adjacency}; {method}."


def measured_epsilon(record: Record) -> Answer:
    """Return the lower bounds on epsilon that attacks, canaries and games have shown."""
    if record.games:
        proven = max(point.proven_epsilon for point in record.games)
        text = f"ε at least {words.number(proven)} for one record, against a server that tampers"
        played = words.plural(len(record.games), "point")
        return Answer("figure", text, f"The largest of {played}. {_PROVES_NOTHING}")
    bounds = epsilon_bounds(record)
    if not bounds:
        return not_tested("The record has no lower bound on epsilon.")
    lines = []
    for one in bounds:
        others = [f"{other.text}." for other in one.measured[1:]]
        held = [words.sentence(one.against_claim)] if one.against_claim else []
        line = [f"{words.capital(one.unit)}: {shortened(one.lead.method, 100)}.", *others, *held]
        lines.append(" ".join(line))
    text = "; ".join(f"{one.at_least} for {one.unit}, {one.observer}" for one in bounds)
    return Answer("figure", words.capital(text), "\n".join([*lines, _PROVES_NOTHING]))


def one_sum(record: Record) -> Answer:
    """Return the lower bound on the epsilon of one client's update in one round's sum."""
    found = [one for one in shown_bounds(record) if one.unit.endswith("sum")]
    if not found:
        return not_tested("No sum of updates was drawn again here.")
    text = f"{words.capital(found[0].at_least)}, {found[0].observer}"
    return Answer("figure", text, _PROVES_NOTHING)


def bound_on_success(record: Record) -> Answer:
    """Return an upper bound in the place of "no better than guessing", which no test can show."""
    limit = largest_limit(record, AUC)
    if limit is None:
        return _unbounded(record, AUC)
    more = (
        f"The largest upper limit over all AUCs of {_first(limit.attacks, ', ')}. Guessing has "
        f"0.5. That attacks do no better cannot be shown, only bounded.{_without(limit)}"
    )
    at_most = rounded_up(limit.value)
    return Answer("figure", f"AUC at most {at_most:.3f} with 95% confidence ({limit.of})", more)


def flagged(record: Record) -> Answer:
    """Return the chance that a flagged record is a member, at two priors."""
    limit = largest_limit(record, _RATE)
    if limit is None:
        return _unbounded(record, _RATE)
    chances = [
        f"{_percent_up(predictive_value(limit.value, FPR, prior))} at a prior of {prior:.0%}"
        for prior in PRIORS
    ]
    more = (
        "The chance that a record which the attack flags at 1% false alarms is a member, by the "
        f"largest upper limit of the TPR ({_percent_up(limit.value)}: {limit.of}). The prior, the "
        f"share of members among the records asked about, is an assumption.{_without(limit)}"
    )
    return Answer("figure", f"At most {words.listed(chances)}", more)


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
    name = words.metric_name(metric)
    return unanswered(record, f"The record has no {name} with a 95% upper limit.", metric)


def _without(limit: UpperLimit) -> str:
    names = _first(limit.without, ", ")
    return f" Without such a limit, in part or whole: {names}." if names else ""


def residual(record: Record) -> Answer:
    """Return the risk that remains after this audit, for whoever deploys the model."""
    if evidence.says_nothing(record):
        return Answer("stated", "Nothing follows from this record", "It was made to show a flaw.")
    auc, rate = largest_limit(record, AUC), largest_limit(record, _RATE)
    owners = [one.success.high for one in on_sources(record) if one.success.high is not None]
    games = [point.adv.high for point in record.games]
    failed = evidence.checks_of(record.controls).failed
    said = [
        auc
        and f"a member stands out in at most {_percent_up(auc.value)} of pairs ({auc.of}; "
        "guessing: 50%)",
        rate
        and f"at 1% false alarms at most {_percent_up(rate.value)} of members are found "
        f"({rate.of})",
        owners
        and not failed
        and f"a sample’s client is named for at most {_percent_up(max(owners))}",
        games and f"a server that tampers is right in at most {_percent_up(max(games))} of games",
        *(f"o{bounds.sentence[1:]}" for bounds in shown_bounds(record)),
    ]
    text = "; ".join(one for one in said if one) or "No upper limit of a risk is known"
    more = (
        "Each with 95% confidence, by the attacks here, over all audited units together. A single "
        "one may be easier to find, and stronger attacks may do better."
    )
    return Answer("stated", words.capital(text), more)


def _percent_up(share: float) -> str:
    return f"{100 * rounded_up(share):.4g}%"
