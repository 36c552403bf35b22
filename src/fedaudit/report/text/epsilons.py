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
from fedaudit.report.text.points import epsilon
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
_OF_ONE_CLIENT = (CLAIMED_CLIENT_EPSILON, CLAIMED_CLIENT_EPSILON_ALONE)
_OF_ONE_SAMPLE = (EPSILON, EPSILON_IF_GAUSSIAN, EPSILON_IF_NORMAL)
"""Bounds of each attack and run, of which the largest is shown."""
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


_AT_THE_CEILING = "The test can show no more: the truth may be any amount larger."
_UNREFUTED = "below the claim: not refuted, not confirmed"
_NO_PROOF = "A lower bound certifies nothing."


def claimed_epsilon(record: Record) -> Answer:
    """Epsilons that are claimed or proven, with unit, adjacency and delta."""
    claims = [one.claimed_epsilon for one in record.games if one.claimed_epsilon is not None]
    if claims:
        actual = [one.actual_epsilon for one in record.games if one.claimed_epsilon is not None]
        known = [one for one in actual if one is not None]
        text = f"ε {words.from_to(claims, text=epsilon)} claimed"
        text += f"; the largest actual one {epsilon(max(known))}" if known else ""
        text += f"; {actual.count(None)} without a bound" * (None in actual)
        more = "Unit: one record of one client. Against whoever sees its upload. Delta: 0."
        return Answer("figure", text, f"{more} {_games_refuted(record)}")
    found = [one for metric in _CLAIMS if (one := evidence.over_all_runs(record, metric))]
    given = [one for one in found if one.value is not None]
    if not given:
        why = [words.sentence(words.capital(shortened(one.note, 120))) for one in found if one.note]
        return Answer(
            "not stated", "No epsilon is claimed or proven", " ".join(evidence.distinct(why))
        )
    text = "; ".join(_claim(one) for one in given)
    return Answer("figure", text, "\n".join([*map(_terms, given), *_refuted(record)]))


def _claim(one: Estimate) -> str:
    name, observer = _CLAIMS[one.metric]
    noted = shortened(one.note.rpartition("unit: ")[2], 200) or "not stated"
    unit = _ALL_UPDATES if one.metric in _OF_ONE_CLIENT else noted
    return f"ε {words.number(one.number)} ({name}; unit: {unit}; {observer})"


def _terms(one: Estimate) -> str:
    adjacency = "as the unit says"
    if one.metric in _OF_ONE_CLIENT or "contribution" in one.note:
        adjacency = "it or zero in its place; whether a client is there at all is not covered"
    elif one.method.startswith("Renyi accountant"):
        adjacency = "one unit there or not"
    method = shortened(one.method, 120) or "not stated"
    return f"{words.capital(_CLAIMS[one.metric][0])}: adjacency: {adjacency}; {method}."


def _refuted(record: Record) -> list[str]:
    """Return for each measured bound of one client whether it refutes the claim."""
    claims = [f for f in record.where(metric=CLAIMED_CLIENT_EPSILON) if f.value is not None]
    sentences = []
    for one in evidence.client_epsilon(record).measured:
        claimed = max((f.number for f in claims if f.defense == one.defense), default=None)
        if claimed is None:
            continue
        unless = ", if the mechanism is Gaussian" * (one.metric == CLIENT_EPSILON_IF_GAUSSIAN)
        outcome = f"above the claim: refuted{unless}" if one.number > claimed else _UNREFUTED
        sentences.append(
            f"Measured: at least {words.number(one.number)} ({_MEASURED[one.metric][0]}), claimed "
            f"{words.number(claimed)}; {outcome}."
        )
    return sentences


def _games_refuted(record: Record) -> str:
    """Return how many points of games are above and below their claims; "" without claims."""
    claiming = [one.refuted for one in record.games if one.claimed_epsilon is not None]
    above, below = claiming.count(True), claiming.count(False)
    parts = [f"{words.plural(above, 'point')} above the claim: refuted"] * bool(above)
    parts += [f"{words.plural(below, 'point')} {_UNREFUTED}"] * bool(below)
    return words.sentence("; ".join(parts)) if parts else ""


def measured_epsilon(record: Record) -> Answer:
    """Lower bounds on epsilon that attacks, canary clients and games have shown."""
    if record.games:
        proven = max(point.proven_epsilon for point in record.games)
        text = f"ε at least {words.number(proven)} (one record, against a server that tampers)"
        more = f"By success in games, the largest of {words.plural(len(record.games), 'point')}."
        return Answer("figure", text, f"{more} {_NO_PROOF} {_games_refuted(record)}".strip())
    given = [
        evidence.strongest(record.findings, metric)
        if metric in _OF_ONE_SAMPLE
        else evidence.given_over_all_runs(record, metric)
        for metric in _MEASURED
    ]
    found = [one for one in given if one is not None]
    if not found or evidence.says_nothing(record):
        return not_tested("The record has no lower bound on epsilon.")
    texts, lines = [], []
    for one in found:
        of = ", ".join(_MEASURED[one.metric]).format(unit=unit_of(record))
        texts.append(f"ε at least {words.number(one.number)} ({of})")
        line = [f"{words.number(one.number)}: {shortened(one.method, 100)}."]
        if one.ceiling is not None:
            most = f"At most {words.number(one.ceiling)} could have been found."
            line.append(_AT_THE_CEILING if evidence.at_ceiling(one) else most)
        line += ["Not compared with a claim here."] * (one.metric in _OF_ONE_SAMPLE)
        lines.append(" ".join(line))
    lines += [_NO_PROOF, *_refuted(record), *canary_noise(record)]
    return Answer("figure", "; ".join(texts), "\n".join(lines))


def client_bound(record: Record) -> str:
    """Claimed and measured epsilon of one client's update; empty where there is none."""
    known = evidence.client_epsilon(record)
    parts = [
        f"ε at most {words.number(claim.number)} claimed {whose}"
        for claim, whose in (
            (known.alone, "without canary clients, which was not audited"),
            (known.claimed, "with canary clients, as audited"),
        )
        if claim is not None
    ]
    parts += [
        f"ε at least {words.number(one.number)} measured"
        + " if the mechanism is Gaussian" * (one.metric == CLIENT_EPSILON_IF_GAUSSIAN)
        for one in known.measured
    ]
    return f"{_ALL_UPDATES}, {_OF_A_CLIENT}: {', '.join(parts)}" if parts else ""


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
