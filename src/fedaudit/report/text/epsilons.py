"""Answers on epsilon: claimed, proven and measured, each with its unit and observer."""

from fedaudit.core.metric_names import (
    CLAIMED_CLIENT_EPSILON,
    CLAIMED_CLIENT_EPSILON_ALONE,
    CLIENT_EPSILON,
    CLIENT_EPSILON_IF_GAUSSIAN,
    EPSILON,
    EPSILON_IF_GAUSSIAN,
    EPSILON_IF_NORMAL,
    FORMAL_EPSILON,
    FORMAL_EPSILON_OF_A_ROUND,
    SECURE_SUM_EPSILON,
    SECURE_SUM_EPSILON_IF_GAUSSIAN,
)
from fedaudit.report import evidence, words
from fedaudit.report.grid import shortened
from fedaudit.report.text.answers import Answer, canary_noise, not_tested
from fedaudit.report.verdict import unit_of
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record

_OF_A_CLIENT = "against whoever has the first and the last global model"
_OF_A_SUM = (
    "against whoever has the last round’s sum and the model before it, knows the update, and of "
    "the other clients’ data only that they are random draws"
)
_CLAIMS = {
    FORMAL_EPSILON: ("proven", "against whoever sees every upload"),
    FORMAL_EPSILON_OF_A_ROUND: ("proven, one round", "against whoever sees one round’s upload"),
    CLAIMED_CLIENT_EPSILON_ALONE: ("claimed, without canary clients, as deployed", _OF_A_CLIENT),
    CLAIMED_CLIENT_EPSILON: ("claimed, with canary clients, as audited", _OF_A_CLIENT),
}
_ONE_UPDATE = "one client’s update, it or zero in its place"
_ALL_UPDATES = "one client’s whole contribution, its updates or zeros in their place"
_MEASURED = {
    EPSILON: ("one {unit} of the audited client, there or not", "against the adversary here"),
    EPSILON_IF_GAUSSIAN: (
        "one {unit} of the audited client, there or not, if the mechanism is Gaussian",
        "against the adversary here",
    ),
    EPSILON_IF_NORMAL: (
        "one {unit} of the audited client, there or not, if scores are normal",
        "against the adversary here",
    ),
    CLIENT_EPSILON: (f"{_ALL_UPDATES}, from coins alone", _OF_A_CLIENT),
    CLIENT_EPSILON_IF_GAUSSIAN: (f"{_ALL_UPDATES}, if the mechanism is Gaussian", _OF_A_CLIENT),
    SECURE_SUM_EPSILON: (f"{_ONE_UPDATE}, counted on sums drawn anew", _OF_A_SUM),
    SECURE_SUM_EPSILON_IF_GAUSSIAN: (f"{_ONE_UPDATE}, if what is read is normal", _OF_A_SUM),
}


def claimed_epsilon(record: Record) -> Answer:
    """Epsilons that are claimed or proven, with unit, adjacency and delta."""
    games = [one for one in record.games if one.claimed_epsilon is not None]
    if games:
        claims = [one.claimed_epsilon or 0.0 for one in games]
        actual = [one.actual_epsilon for one in games]
        known = [words.number(one) for one in sorted(one for one in actual if one is not None)]
        text = f"ε {words.number(min(claims))} to {words.number(max(claims))} claimed"
        text += f"; the largest actual one {known[-1]}" if known else ""
        text += f"; {actual.count(None)} without a bound" if None in actual else ""
        more = "Unit: one record of one client. Against whoever sees its upload. Delta: 0."
        return Answer("figure", text, f"{more} {_games_held(record)}")
    found = [one for metric in _CLAIMS if (one := evidence.over_all_runs(record, metric))]
    given = [one for one in found if one.value is not None]
    if not given:
        why = [words.sentence(words.capital(shortened(one.note, 120))) for one in found if one.note]
        return Answer(
            "not stated", "No epsilon is claimed or proven", " ".join(evidence.distinct(why))
        )
    text = "; ".join(
        f"ε {words.number(one.number)} ({'; '.join((_CLAIMS[one.metric][0], *_unit(one)))})"
        for one in given
    )
    lines = [*(_terms(one) for one in given), *_held(record)]
    return Answer("figure", text, "\n".join(lines))


def _unit(one: Estimate) -> tuple[str, str]:
    noted = shortened(one.note.rpartition("unit: ")[2], 200)
    of_update = one.metric in (CLAIMED_CLIENT_EPSILON, CLAIMED_CLIENT_EPSILON_ALONE)
    unit = _ALL_UPDATES if of_update else noted or "not stated"
    return f"unit: {unit}", _CLAIMS[one.metric][1]


def _held(record: Record) -> list[str]:
    claims = [f for f in record.where(metric=CLAIMED_CLIENT_EPSILON) if f.value is not None]
    found = list[str]()
    for one in evidence.client_epsilon(record).measured:
        same = [claim.number for claim in claims if claim.defense == one.defense]
        if not same:
            continue
        unless = ", if the mechanism is Gaussian" * (one.metric == CLIENT_EPSILON_IF_GAUSSIAN)
        above = one.number > max(same)
        said = f"above the claim: refuted{unless}" if above else _UNREFUTED
        found.append(
            f"Measured: at least {words.number(one.number)} ({_MEASURED[one.metric][0]}), claimed "
            f"{words.number(max(same))}; {said}."
        )
    return found


_OF_ONE_SAMPLE = (EPSILON, EPSILON_IF_GAUSSIAN, EPSILON_IF_NORMAL)
"""Bounds of each attack and run, of which the largest is shown."""
_AT_THE_CEILING = "The test can show no more: the truth may be any amount larger."
_UNREFUTED = "below the claim: not refuted, not confirmed"


def _terms(one: Estimate) -> str:
    of_update = one.metric in (CLAIMED_CLIENT_EPSILON, CLAIMED_CLIENT_EPSILON_ALONE)
    renyi = one.method.startswith("Renyi accountant")
    adjacency = "one unit there or not" if renyi else "as the unit says"
    if of_update or "contribution" in one.note:
        adjacency = "it or zero in its place; whether a client is there at all is not covered"
    unit = shortened(one.note, 240).replace("unit: ", "") or "not stated"
    method = shortened(one.method, 120) or "not stated"
    name, observer = _CLAIMS[one.metric]
    return f"{words.capital(name)}: unit: {unit}; {observer}; adjacency: {adjacency}; {method}."


def measured_epsilon(record: Record) -> Answer:
    """Lower bounds on epsilon that attacks, canary clients and games have shown."""
    nothing = "A lower bound certifies nothing."
    if record.games:
        proven = max(point.proven_epsilon for point in record.games)
        text = f"ε at least {words.number(proven)} (one record, against a server that tampers)"
        played = words.plural(len(record.games), "point")
        more = f"By success in games, the largest of {played}. {nothing}"
        return Answer("figure", text, f"{more} {_games_held(record)}".strip())
    given = [
        evidence.strongest(record.findings, metric)
        if metric in _OF_ONE_SAMPLE
        else evidence.given_over_all_runs(record, metric)
        for metric in _MEASURED
    ]
    found = [one for one in given if one is not None]
    if not found or evidence.says_nothing(record):
        return not_tested("The record has no lower bound on epsilon.")
    of = {
        metric: ", ".join(said).format(unit=unit_of(record)) for metric, said in _MEASURED.items()
    }
    lines = [
        f"{words.number(one.number)}: {of[one.metric]}; {shortened(one.method, 100)}."
        + _ceiling(one)
        + " Held against no claim here." * (one.metric in _OF_ONE_SAMPLE)
        for one in found
    ]
    text = "; ".join(f"ε at least {words.number(one.number)} ({of[one.metric]})" for one in found)
    below = [nothing, *_held(record), *canary_noise(record)]
    return Answer("figure", text, "\n".join([*lines, *below]))


def _ceiling(one: Estimate) -> str:
    if one.ceiling is None:
        return ""
    most = f"At most {words.number(one.ceiling)} could have been found."
    return f" {_AT_THE_CEILING if evidence.at_ceiling(one) else most}"


def _games_held(record: Record) -> str:
    """Points of games above and below their own claims; empty where none claims."""
    above = [
        one.proven_epsilon > one.claimed_epsilon
        for one in record.games
        if one.claimed_epsilon is not None
    ]
    below = len(above) - sum(above)
    said = [f"{words.plural(sum(above), 'point')} above the claim: refuted"] if any(above) else []
    said += [f"{words.plural(below, 'point')} {_UNREFUTED}"] if below else []
    return words.sentence("; ".join(said)) if said else ""


def client_bound(record: Record) -> str:
    """Claimed and measured epsilon of one client's update; empty where there is none."""
    known = evidence.client_epsilon(record)
    said = [
        f"ε at most {words.number(claim.number)} claimed {whose}"
        for claim, whose in (
            (known.alone, "without canary clients, which was not audited"),
            (known.claimed, "with canary clients, as audited"),
        )
        if claim is not None
    ]
    said += [
        f"ε at least {words.number(one.number)} measured"
        + " if the mechanism is Gaussian" * (one.metric == CLIENT_EPSILON_IF_GAUSSIAN)
        for one in known.measured
    ]
    return f"{_ALL_UPDATES}, {_OF_A_CLIENT}: {', '.join(said)}" if said else ""


def sum_bound(record: Record) -> str:
    """The bound on one client's update in one round's sum; empty where there is none."""
    one = evidence.given_over_all_runs(record, SECURE_SUM_EPSILON)
    if one is None:
        return ""
    most = ", the most this test can show" if evidence.at_ceiling(one) else ""
    return f"one client’s update in one round’s sum: ε at least {words.number(one.number)}{most}"


def one_sum(record: Record) -> Answer:
    """A lower bound on the epsilon of one client's update in one round's sum."""
    counted = evidence.given_over_all_runs(record, SECURE_SUM_EPSILON)
    if counted is None:
        return not_tested("No sum of updates was drawn anew here.")
    text = f"ε at least {words.number(counted.number)} for one client’s update in one round’s sum"
    more = [f"Against whoever has that sum; {shortened(counted.method, 120)}."]
    more += [_AT_THE_CEILING] if evidence.at_ceiling(counted) else []
    normal = evidence.given_over_all_runs(record, SECURE_SUM_EPSILON_IF_GAUSSIAN)
    more += [f"{words.number(normal.number)} if noise is normal."] if normal else []
    more.append("A lower bound certifies nothing; noise that is added is what hides an update.")
    return Answer("figure", text, " ".join(more))
