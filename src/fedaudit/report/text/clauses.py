"""Answers of a record to the questions that assessments of a model ask: one function a question."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from fedaudit.core.metric_names import (
    AUC,
    CLAIMED_CLIENT_EPSILON,
    CLIENT_EPSILON,
    CLIENT_EPSILON_IF_GAUSSIAN,
    EPSILON,
    FORMAL_EPSILON,
    FORMAL_EPSILON_OF_A_ROUND,
    tpr_at,
)
from fedaudit.report.evidence import distinct, headline, label_among, says_nothing, strongest
from fedaudit.report.grid import shortened
from fedaudit.report.text.clusters import clustered_of, in_words, riskiest
from fedaudit.report.text.sources import on_sources, strongest_on_sources
from fedaudit.report.words import (
    capital,
    contrast_name,
    count,
    defense_name,
    interval,
    interval_of,
    level_of,
    listed,
    metric_name,
    number,
    percent,
    plural,
    points,
    sentence,
    with_interval,
)
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import near_guessing
from fedaudit.results.metrics import TEST_ACCURACY
from fedaudit.results.record import Record

Kind = Literal["figure", "stated", "not tested", "not stated", "out of scope"]

FPR = 0.01
"""Share of false alarms at which true-positive rates are asked for."""
PRIORS = (0.5, 0.01)
"""Shares of members among the records that an adversary asks about."""
REFERENCE_ATTACKS = ("rmia", "lira")
"""Attacks that compare with reference models, by the first word of their name."""
RELEASED = "final"
"""The view of somebody who is given the released model alone."""
_RATE = tpr_at(FPR)
_LEVEL = "95%"
_MOST_NAMED = 6


class Answer(NamedTuple):
    """What a record says on one question.

    Attributes:
        kind: "figure" for numbers of this record; "stated" for other facts that it holds. "Not
            tested" could be found out with fedaudit and was not; "not stated" is not in the
            record; "out of scope" no part of fedaudit asks.
        text: In a line.
        more: What it rests on.
    """

    kind: Kind
    text: str
    more: str = ""


class Bound(NamedTuple):
    """The largest upper limit over the attacks that were run.

    It holds for the strongest of them with the confidence of a single limit, and needs no
    correction for their number: that attack's own limit is not above the largest.

    Attributes:
        figure: The figure that it is the upper limit of.
        high: The limit.
        attacks: That have one.
        without: Attacks that have a figure without one, or no figure at all.
    """

    figure: Estimate
    high: float
    attacks: list[str]
    without: list[str]


def bound_of(record: Record, metric: str) -> Bound | None:
    """The largest 95% upper limit of a metric of membership; None without any, or of no attack."""
    limited, unlimited = list[Estimate](), list[Estimate]()
    for one in headline(record):
        if one.metric == metric:
            has = one.high is not None and level_of(one.method) == _LEVEL
            (limited if has else unlimited).append(one)
    if not limited or says_nothing(record):
        return None
    tried = [row.name for row in record.attacks if not row.infers_source]
    having = {one.attack for one in limited} - {one.attack for one in unlimited}
    named = distinct([*tried, *(one.attack for one in unlimited)])
    without = [name for name in named if name not in having]
    figure = max(limited, key=lambda one: one.high or 0.0)
    return Bound(figure, figure.high or 0.0, distinct(one.attack for one in limited), without)


def predictive_value(tpr: float, fpr: float, prior: float) -> float:
    """The chance that a flagged record is a member (Bayes).

    Args:
        tpr: Share of members that are flagged.
        fpr: Share of non-members that are; above 0.
        prior: Share of members among all records that are asked about.
    """
    return tpr * prior / (tpr * prior + fpr * (1 - prior))


def membership(record: Record) -> Answer:
    """The largest AUC and true-positive rate, with limits, by which attack in which view."""
    if says_nothing(record):
        return _not_tested("Figures of this record were made to show a flaw of an evaluation.")
    figures = headline(record)
    found = [one for metric in (AUC, _RATE) if (one := strongest(figures, metric))]
    risks = [risk for one in clustered_of(record) if (risk := riskiest(one))]
    if not found and risks:
        worst = in_words(max(risks, key=lambda one: one.number))
        said = "Balanced accuracy on real members; guessing is right in 50%."
        return Answer("figure", f"Risk of the riskiest model {worst}", said)
    if not found:
        return _not_tested("The record has no figure of an attack on membership.")
    text = "; ".join(f"{metric_name(one.metric)} {with_interval(one)}" for one in found)
    tried = distinct(one.attack for one in figures)
    more = [f"The largest over {plural(len(tried), 'attack')} ({_named(tried)})."]
    more += [f"{metric_name(one.metric)}: {_place(one, figures)}." for one in found]
    if _RATE not in (one.metric for one in found):
        notes = [one.note for one in figures if one.metric == _RATE and one.note]
        more.append(
            f"{metric_name(_RATE)}: not given ({shortened((*notes, 'no reason')[0], 120)})."
        )
    if {one.view for one in found} != {RELEASED}:
        more.append("The released model alone, as somebody is given it, was not tested.")
    return Answer("figure", text, "\n".join(more))


def equivalence(record: Record) -> Answer:
    """An upper bound in the place of "no better than guessing", which no test can show."""
    bound = bound_of(record, AUC)
    if bound is None:
        return _not_tested(f"No attack on membership here has a {_LEVEL} upper limit.")
    high = f"{math.ceil(round(1000 * bound.high, 6)) / 1000:.3f}"
    more = (
        f"Over the attacks that were run ({_named(bound.attacks)}); the largest upper limit is of "
        f"{_place(bound.figure, headline(record))}. Guessing has 0.5. Membership advantage "
        f"(2 AUC − 1) at most {_up(max(2 * bound.high - 1, 0))}. That attacks do no better than "
        f"guessing cannot be shown, only bounded.{_left_out(bound)}"
    )
    return Answer("figure", f"AUC at most {high} with {_LEVEL} confidence", more)


def flagged(record: Record) -> Answer:
    """The chance that a flagged record is a member, at two priors."""
    bound = bound_of(record, _RATE)
    if bound is None:
        return _not_tested(f"The record has no {metric_name(_RATE)} with a {_LEVEL} upper limit.")
    said = [
        f"{_up(predictive_value(bound.high, FPR, prior))} at a prior of {prior:.0%}"
        for prior in PRIORS
    ]
    more = (
        "The chance at most that a record which the attack flags at 1% false alarms is a member, "
        f"by the largest upper limit of the TPR ({_up(bound.high)}: "
        f"{_place(bound.figure, headline(record))}). A guess is right as often as the prior says: "
        f"the share of members among the records asked about, an assumption.{_left_out(bound)}"
    )
    return Answer("figure", f"At most {listed(said)}", more)


def references(record: Record) -> Answer:
    """The figures of attacks that train models of their own to compare with."""
    figures = [f for f in headline(record) if f.attack.split("-")[0] in REFERENCE_ATTACKS]
    best = strongest(figures, AUC)
    if says_nothing(record) or best is None:
        return _not_tested("No attack here compares with reference models (RMIA, LiRA).")
    more = f"{_named(distinct(one.attack for one in figures))}; {_place(best, figures)}."
    return Answer("figure", f"Yes: largest AUC {with_interval(best)}", more)


def adversary(record: Record) -> Answer:
    """The adversary, and whose samples were audited."""
    said = shortened(record.view.description, 300) or "Not described"
    targets = distinct(f.target for f in record.findings if f.target is not None)
    audited = _named([f"client {target}" for target in targets])
    audited = audited or ("samples of every client" if record.sources else "not stated")
    clients = f", of {plural(record.federation_size, 'client')}" if record.federation_size else ""
    more = f"Audited: {audited}{clients}; {plural(len(record.seeds), 'seed')}."
    text = f"View “{shortened(record.view.name)}”"
    more = f"{capital(sentence(said))}\n{more} No other adversary or client was tested."
    return Answer("stated", text, more)


def controls(record: Record) -> Answer:
    """Checks that the audit finds what is there, and nothing where nothing is."""
    ran = [one for one in record.controls if one.passed is not None]
    if not ran:
        games = "Games have no controls beside their own bounds."
        why = "No control was run: nothing vouches for the figures."
        return _not_tested(games if record.games else why)
    failed = [one for one in ran if not one.passed]
    missing = distinct(one.control for one in record.controls if one.passed is None)
    more = [f"Failed: {_named(distinct(one.control for one in failed))}."] if failed else []
    more += [f"Not run: {_named(missing)}."] if missing else []
    if near_guessing(record):
        more.append("The models hardly learned their training data: others may give away more.")
    text = f"{len(ran) - len(failed)} of {len(ran)} controls hold"
    return Answer("figure", text, "\n".join(more))


def parameters(record: Record) -> Answer:
    """Training samples; how many parameters the model has is in no record."""
    others = record.other_clients
    samples = sum(row.samples for row in record.clients) + (others.samples if others else 0)
    known = f"{count(samples)} training samples" if samples else "no number of samples"
    why = f"The record has {known}, and not the number of the model’s parameters."
    return Answer("not stated", "Not stated", why)


def attribution(record: Record) -> Answer:
    """The success of naming the client that a sample is from."""
    named = on_sources(record)
    best = strongest_on_sources(named)
    if best is None or says_nothing(record):
        return _not_tested("No attack here names the client that a sample is from.")
    text = f"The client is named for {with_interval(best.success)} of samples"
    more = (
        f"{shortened(best.success.attack, 60)}, the strongest of {plural(len(named), 'attack')}; "
        f"guessing {percent(best.chance)}, label distributions alone {percent(best.mixes)}. "
        f"Beyond these: {points(best.excess.number)} points ({interval_of(best.excess)})."
    )
    return Answer("figure", text, more)


def defenses(record: Record) -> Answer:
    """Accuracy and leakage with a defense and without, where the record has both."""
    if record.kind == "games" or says_nothing(record):
        return _not_tested("The record has no accuracy beside a leak that means something.")
    rows = distinct(one.defense for one in [*record.others, *headline(record)])
    said = [f"{shortened(defense_name(row))}: {_row(record, row)}." for row in rows[:_MOST_NAMED]]
    if len(rows) > 1 and NO_DEFENSE in rows:
        return Answer("figure", f"{len(rows)} rows side by side", "\n".join(said))
    alone = "Nothing to hold it against in this record: fedaudit compare PLAIN DEFENDED does it."
    return _not_tested("\n".join([*said, alone]))


def _row(record: Record, defense: str) -> str:
    """The largest leak and the accuracy under one defense."""
    best = strongest((one for one in headline(record) if one.defense == defense), AUC)
    named = [one for one in on_sources(record) if one.success.defense == defense]
    source = strongest_on_sources(named)
    right = [o.number for o in record.where(metric=TEST_ACCURACY, defense=defense) if not o.against]
    said = [f"largest AUC {with_interval(best)}"] if best else []
    said += [f"client named for {with_interval(source.success)} of samples"] if source else []
    said += [f"test accuracy {percent(sum(right) / len(right))}"] if right else []
    return ", ".join(said) or "no figures"


_CLAIMS = {
    FORMAL_EPSILON: "proven",
    FORMAL_EPSILON_OF_A_ROUND: "proven, one round",
    CLAIMED_CLIENT_EPSILON: "claimed, client",
}
_MEASURED = {
    EPSILON: "one sample of the audited client, there or not",
    CLIENT_EPSILON: "a client’s presence, by coins alone",
    CLIENT_EPSILON_IF_GAUSSIAN: "a client’s presence, if the mechanism is Gaussian",
}


def claimed_epsilon(record: Record) -> Answer:
    """Epsilons that are claimed or proven, with unit, adjacency and delta."""
    games = [one for one in record.games if one.claimed_epsilon is not None]
    if games:
        claims = [one.claimed_epsilon or 0.0 for one in games]
        actual = [one.actual_epsilon for one in games]
        known = [number(one) for one in sorted(one for one in actual if one is not None)]
        text = f"ε {number(min(claims))} to {number(max(claims))} claimed"
        text += f"; the largest actual one {known[-1]}" if known else ""
        text += f"; {actual.count(None)} without a bound" if None in actual else ""
        return Answer("figure", text, "Unit: one record of one client. Delta: 0.")
    found = [one for metric in _CLAIMS if (one := _over_runs(record, metric))]
    given = [one for one in found if one.value is not None]
    if not given:
        why = [sentence(capital(shortened(one.note, 120))) for one in found if one.note]
        return Answer("not stated", "No epsilon is claimed or proven", " ".join(distinct(why)))
    text = "; ".join(f"ε {number(one.number)} ({_CLAIMS[one.metric]})" for one in given)
    return Answer("figure", text, "\n".join(_terms(one) for one in given))


def _terms(one: Estimate) -> str:
    """Unit, adjacency and delta of an epsilon, as far as the record has them."""
    renyi = one.method.startswith("Renyi accountant")
    adjacency = "one unit there or not" if renyi else "as the unit says"
    unit = shortened(one.note, 240).replace("unit: ", "") or "not stated"
    method = shortened(one.method, 120) or "not stated"
    return f"{capital(_CLAIMS[one.metric])}: unit: {unit}; adjacency: {adjacency}; {method}."


def measured_epsilon(record: Record) -> Answer:
    """Lower bounds on epsilon that attacks, canary clients and games have shown."""
    nothing = "A lower bound certifies nothing."
    if record.games:
        proven = max(point.proven_epsilon for point in record.games)
        more = f"Of one record, by success in games. {nothing}"
        return Answer("figure", f"ε at least {number(proven)}", more)
    clients = [_over_runs(record, metric) for metric in _MEASURED if metric != EPSILON]
    given = [strongest(record.findings, EPSILON), *clients]
    found = [one for one in given if one is not None and one.value is not None]
    if not found or says_nothing(record):
        return _not_tested("The record has no lower bound on epsilon.")
    lines = [
        f"{number(one.number)}: {_MEASURED[one.metric]}; {shortened(one.method, 100)}."
        + ("" if one.ceiling is None else f" At most {number(one.ceiling)} could have been found.")
        for one in found
    ]
    claim = _over_runs(record, CLAIMED_CLIENT_EPSILON)
    most = max((one.number for one in found if one.metric != EPSILON), default=0.0)
    if claim is not None and claim.value is not None and most > claim.value:
        lines.append("A lower bound is above the claim, and refutes it.")
    text = "; ".join(f"ε at least {number(one.number)}" for one in found)
    return Answer("figure", text, "\n".join([*lines, nothing]))


def malicious_server(record: Record) -> Answer:
    """What a server gains that tampers with the model it sends out."""
    if record.games:
        most = max((point.adv for point in record.games), key=lambda adv: adv.value)
        limits = interval(most.low, most.high, "accuracy")
        text = f"Right in {percent(most.value)} of games ({_LEVEL} interval {limits})"
        more = f"The largest of {plural(len(record.games), 'point')}; guessing is right in 50%."
        return Answer("figure", text, more)
    server = record.config.get("server")
    name = str(server.get("name", "honest")) if isinstance(server, dict) else "honest"
    if name == "honest":
        return _not_tested("The server sends out the model as it is.")
    return Answer("stated", f"The server is “{shortened(name)}”", "All figures are of this server.")


def tester(record: Record) -> Answer:
    """Time and means of the audit; nothing in a record says who made it."""
    made = record.environment
    said = {
        "started": made.started,
        "fedaudit": made.versions.get("fedaudit", ""),
        "commit": made.commit,
        "device": made.device,
    }
    more = [f"{name} {shortened(text, 60) or 'not stated'}" for name, text in said.items()]
    why = "These are outside the content hash. Whoever signs states who tested, in which role."
    text = f"When: {made.started[:10] or 'not stated'}; by whom, in which role: not stated"
    return Answer("not stated", text, f"{capital('; '.join(more))}. {why}")


def residual(record: Record) -> Answer:
    """What remains at risk after this audit, for whoever deploys the model."""
    if says_nothing(record):
        return Answer("stated", "Nothing follows from this record", "It was made to show a flaw.")
    auc, rate = bound_of(record, AUC), bound_of(record, _RATE)
    owners = [one.success.high for one in on_sources(record) if one.success.high is not None]
    games = [point.adv.high for point in record.games]
    said = [
        auc and f"a member stands out in at most {_up(auc.high)} of pairs (guessing: 50%)",
        rate and f"at 1% false alarms at most {_up(rate.high)} of members are found",
        owners and f"a sample’s client is named for at most {_up(max(owners))}",
        games and f"a server that tampers is right in at most {_up(max(games))} of games",
    ]
    text = "; ".join(one for one in said if one) or "No upper limit of a risk is known"
    more = (
        f"With {_LEVEL} confidence each, by the attacks here, over all audited samples together: "
        "one person’s record may be easier to find, and stronger attacks, other adversaries and "
        "other clients may fare otherwise."
    )
    return Answer("stated", capital(text), more)


def out_of_scope(why: str) -> Callable[[Record], Answer]:
    """The answer for every record where no part of fedaudit asks the question."""
    return lambda record: Answer("out of scope", "Out of scope", why)


def _over_runs(record: Record, metric: str) -> Estimate | None:
    """The figure over all runs; that of one run where there is no other."""
    found = sorted(record.where(metric=metric), key=lambda one: one.seed is not None)
    return found[0] if found else None


def _not_tested(why: str) -> Answer:
    return Answer("not tested", "Not tested", why)


def _left_out(bound: Bound) -> str:
    without = f" Without such a limit, in part or whole: {_named(bound.without)}."
    return without if bound.without else ""


def _place(figure: Estimate, figures: list[Estimate]) -> str:
    """Attack, non-members, view, and whatever tells the figure from the others."""
    attack, contrast = shortened(figure.attack, 40), contrast_name(figure.contrast).lower()
    parts = [f"{attack} v. {contrast}", f"view “{shortened(figure.view)}”"]
    parts += ["mean over seeds"] if figure.seed is None else []
    return ", ".join(filter(None, (*parts, label_among(figure, figures))))


def _named(names: Sequence[str]) -> str:
    """Names in a row; of many the first."""
    short = [shortened(name, 120) for name in names]
    rest = len(short) - _MOST_NAMED
    return listed([*short[:_MOST_NAMED], f"{rest} more"] if rest > 0 else short)


def _up(share: float) -> str:
    """An upper limit in per cent, rounded up so that it still is one."""
    return f"{math.ceil(round(1000 * share, 6)) / 10:g}%"
