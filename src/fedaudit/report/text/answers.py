"""Answers of a record to what assessments of a model ask beside risk and epsilon.

One function a question. Questions on how likely a record is found are answered in
:mod:`fedaudit.report.text.bounds`, those on epsilon in :mod:`fedaudit.report.text.epsilons`.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from fedaudit.core import metric_names
from fedaudit.report import words
from fedaudit.report.evidence import (
    by_contrast,
    checks_of,
    distinct,
    headline,
    over_all_runs,
    says_nothing,
    single_samples,
    strongest,
)
from fedaudit.report.grid import shortened
from fedaudit.report.sources import on_sources, strongest_on_sources
from fedaudit.report.text.games import game_verdict
from fedaudit.report.text.verdict import verdict
from fedaudit.report.verdict import WITHHELD, coverage_gaps, hardly_learned, unlearning_verdict
from fedaudit.results.estimate import NO_DEFENSE
from fedaudit.results.metrics import TEST_ACCURACY
from fedaudit.results.record import Record
from fedaudit.results.unlearning import most_left, unlearning_rows

Kind = Literal["figure", "stated", "inconclusive", "not tested", "not stated", "out of scope"]

CHECKS = ("permuted members", "untrained model", "blind classifier", "planted leak")
"""The kinds of controls that there are."""
LEVEL = "95%"
"""The level of the limits that answers name."""
MOST_NAMED = 6
"""Names in a row; of more, their number stands."""


class Answer(NamedTuple):
    """A record's answer to one question.

    Attributes:
        kind: "figure" for numbers of this record; "stated" for other facts that it holds.
            "Inconclusive" was asked, and refused for want of samples. "Not tested" could be found
            out with fedaudit and was not; "not stated" is not in the record; "out of scope" no
            part of fedaudit asks.
        text: In a line.
        more: What it rests on.
    """

    kind: Kind
    text: str
    more: str = ""


def not_tested(why: str) -> Answer:
    """The answer of a record that does not ask, though it could."""
    return Answer("not tested", "Not tested", why)


def canary_noise(record: Record) -> list[str]:
    """That canary clients' noise lies in every audited model, where there are such clients."""
    if not isinstance(record.config.get("canaries"), dict):
        return []
    return ["All models here hold the noise of canary clients: without them more may be told."]


def first_named(names: Sequence[str]) -> str:
    """Names in a row; of many the first."""
    short = [shortened(name, 120) for name in names]
    rest = len(short) - MOST_NAMED
    return words.listed([*short[:MOST_NAMED], f"{rest} more"] if rest > 0 else short)


def models_of(record: Record) -> int:
    """Number of trained federations that figures of attacks are of."""
    runs = {(f.defense, f.seed) for f in record.findings if f.attack and f.seed is not None}
    return len(runs) or max(len(record.seeds), 1)


def conclusion(record: Record) -> Answer:
    """The record's own verdict, and how much was audited."""
    if record.games:
        games = sum(point.adv.total for point in record.games)
        audited = f"{words.plural(len(record.points), 'point')}; {words.plural(games, 'game')}."
        return Answer("stated", words.sentence(game_verdict(record).headline), audited)
    figures = [one for one in record.findings if one.attack and (one.n_members or one.value)]
    runs = [one for one in figures if one.seed is not None]
    single = [one for one in runs or figures if one.metric == metric_names.AUC] or runs or figures
    models = words.plural(models_of(record), "model")
    said = [f"Audited: {models}; {words.plural(len(record.seeds), 'seed')}."]
    if single:
        members = words.from_to(distinct(one.n_members for one in single))
        each = " and audited client" * (len({one.target for one in single}) > 1)
        others = [
            f"{words.from_to([one.n_nonmembers for one in same])} "
            f"({words.contrast_name(kind).lower()})"
            for kind, same in by_contrast(single).items()
        ]
        where = f"For each model{each}" if runs else "In all"
        who = "members" if record.unit == "sample" else "people as members"
        said.append(f"{where} {members} {who}; non-members: {words.listed(others)}.")
    if hardly_learned(record):
        said.append("The models hardly learned their training data.")
    if gaps := coverage_gaps(record):
        said.append(f"{gaps}.")
    said.append("That is the record’s verdict: a policy’s stands in a pack’s verdict.json.")
    return Answer("stated", words.sentence(verdict(record).headline), "\n".join(said))


def adversary(record: Record) -> Answer:
    """The adversary, and whose samples were audited."""
    said = shortened(record.view.description, 300) or "Not described"
    targets = distinct(f.target for f in record.findings if f.target is not None)
    audited = first_named([words.client_name(target) for target in targets])
    audited = audited or ("samples of every client" if record.sources else "not stated")
    clients = (
        f", of {words.plural(record.federation_size, 'client')}" if record.federation_size else ""
    )
    data = record.config.get("data")
    name = shortened(str(data.get("name", "")), 60) if isinstance(data, dict) else ""
    canaries = record.config.get("canaries")
    if isinstance(canaries, dict):
        clients += f", and {canaries.get('count')} canary clients beside them"
    more = f"Audited: {audited}{clients}; {words.plural(len(record.seeds), 'seed')}. "
    made = "of the federation that was watched" if record.watched else "made by this audit"
    more += f"Data: {name or 'not stated'}. Models: {made}; one to be released is not identified."
    text = f"View “{shortened(record.view.name)}”"
    figures = (metric_names.CLIENT_EPSILON, metric_names.SECURE_SUM_EPSILON)
    apart = any(over_all_runs(record, one) is not None for one in figures)
    but = ", but for figures on one client’s update, which name theirs" * apart
    but += ", but for whoever has the models before and after deletion" * bool(
        unlearning_rows(record)
    )
    said = words.capital(words.sentence(said))
    more = f"{said}\n{more} No other adversary or client was tested{but}."
    return Answer("stated", text, more)


def controls(record: Record) -> Answer:
    """Checks that the audit finds what is there, and nothing where nothing is."""
    ran, failed, _ = checks = checks_of(record.controls)
    if not ran:
        games = "Games have no controls beside their own bounds."
        why = "No control was run: nothing vouches for the figures."
        return not_tested(games if record.games else why)
    kinds = distinct(one.control for one in ran)
    asked = distinct([*CHECKS, *(one.control for one in record.controls)])
    missing = [kind for kind in asked if kind not in kinds]
    unrun = {one.control for one in record.controls if one.passed is None}
    partly = [kind for kind in kinds if kind in unrun]
    more = [f"Failed: {first_named(distinct(one.control for one in failed))}."] if failed else []
    more += [f"In part not run: {first_named(partly)}."] if partly else []
    if hardly_learned(record):
        more.append("The models hardly learned their training data: others may give away more.")
    text = f"{checks.passed} of {words.plural(len(ran), 'check')} hold, "
    text += f"of {words.plural(len(kinds), 'kind')}: {first_named(kinds)}"
    text += f"; not run: {first_named(missing)}" if missing else ""
    return Answer("figure", text, "\n".join(more))


def parameters(record: Record) -> Answer:
    """Parameters of the model, and how many there are for each training sample."""
    others, learned = record.other_clients, record.parameters
    samples = sum(row.samples for row in record.clients) + (others.samples if others else 0)
    known = f"{words.count(samples)} training samples" if samples else "no number of samples"
    if learned is None:
        why = f"The record has {known}, and not the number of the model’s parameters."
        return Answer("not stated", "Not stated", why)
    text = words.plural(learned, "trained parameter")
    if samples:
        text += f", {words.number(learned / samples)} for each of {known}"
    more = "Frozen parameters are not counted. Audited samples of nobody are not among those."
    return Answer("figure", text, more)


def attribution(record: Record) -> Answer:
    """The success of naming the client that a sample is from."""
    named = on_sources(record)
    best = strongest_on_sources(named)
    if best is None or says_nothing(record):
        return not_tested("No attack here names the client that a sample is from.")
    text = f"The client is named for {words.with_interval(best.success)} of samples"
    more = (
        f"{shortened(best.success.attack, 60)}, the strongest of "
        f"{words.plural(len(named), 'attack')}; guessing {words.percent(best.chance)}, label "
        f"distributions alone {words.percent(best.mixes)}. Beyond these: "
        f"{words.points(best.excess.number)} points ({words.interval_of(best.excess)})."
    )
    more = " ".join(filter(None, (more, best.older_level)))
    return Answer("figure", text, more)


def defenses(record: Record) -> Answer:
    """Accuracy and leakage with a defense and without, where the record has both."""
    if record.kind == "games" or says_nothing(record):
        return not_tested("The record has no accuracy beside a leak that means something.")
    rows = distinct(one.defense for one in [*record.others, *headline(record)])
    said = [
        f"{shortened(words.defense_name(row))}: {_row(record, row)}." for row in rows[:MOST_NAMED]
    ]
    if len(rows) > 1 and NO_DEFENSE in rows:
        return Answer("figure", f"{len(rows)} rows side by side", "\n".join(said))
    alone = "Nothing to hold it against in this record: fedaudit compare PLAIN DEFENDED does it."
    return not_tested("\n".join([*said, *canary_noise(record), alone]))


def _row(record: Record, defense: str) -> str:
    best = strongest((one for one in headline(record) if one.defense == defense), metric_names.AUC)
    named = [one for one in on_sources(record) if one.success.defense == defense]
    source = strongest_on_sources(named)
    at = {"topic": "utility", "metric": TEST_ACCURACY, "defense": defense}
    right = [o.number for o in record.where(**at) if not o.against]
    said = [f"largest AUC {words.with_interval(best)}"] if best else []
    said += [f"client named for {words.with_interval(source.success)} of samples"] if source else []
    said += [f"test accuracy {words.percent(sum(right) / len(right))}"] if right else []
    return ", ".join(said) or "no figures"


def people(record: Record) -> Answer:
    """The unit of the audit: single samples, or people with all of their samples."""
    if record.unit == "sample":
        text = "Single samples; people with several samples: not tested"
        more = "Small hints on each of a person’s samples add up: figures for people are larger."
        return Answer("not tested", text, more)
    best, single = (
        strongest(figures, metric_names.AUC)
        for figures in (headline(record), single_samples(record))
    )
    text = "People, each with all of their samples"
    text += f": largest AUC {words.with_interval(best)}" if best else ""
    said = [f"{best.attack} {words.against(best.contrast)}."] if best else []
    said += [f"Of their samples one by one: {words.with_interval(single)}."] if single else []
    if over_all_runs(record, metric_names.FORMAL_EPSILON) is not None:
        said.append("The proven epsilon is of one sample: none is stated for a person.")
    return Answer("figure" if best else "stated", text, "\n".join(said))


def deletion(record: Record) -> Answer:
    """AUCs on deleted samples after unlearning, beside those of a retrained federation."""
    rows = unlearning_rows(record)
    if not rows:
        return not_tested("Nothing was unlearned in this record.")
    given = record.config.get("unlearning")
    settings = given if isinstance(given, dict) else {}
    worst, both = most_left(rows), max(rows, key=lambda row: row.both.number).both
    attacks = words.plural(len({row.after.attack for row in rows}), "attack")
    verdict_after = unlearning_verdict(record)
    said = f"{words.capital(verdict_after)}"
    said += f", as far as {attacks} can tell" * (
        verdict_after not in (WITHHELD, metric_names.DESTROYED)
    )
    text = f"{said}: after "
    text += f"unlearning, largest AUC {words.with_interval(worst.after)}; retrained "
    text += words.value_of(worst.retrained)
    deleted = sum({row.after.target: row.after.n_members for row in rows}.values())
    units, margin = "people" if record.unit == "person" else "samples", settings.get("margin")
    more = (
        f"By {shortened(str(settings.get('method', 'not stated')), 40)!r}, "
        f"{deleted} deleted {units}, margin {'not stated' if margin is None else margin}; "
        f"before {words.value_of(worst.before)} ({shortened(worst.after.attack, 40)}). Who has the "
        f"models before and after: AUC {words.with_interval(both)} ({shortened(both.attack, 40)}). "
        "All other rows are of the model before deletion."
    )
    return Answer("figure", text, more)


def malicious_server(record: Record) -> Answer:
    """Gain of a server that tampers with the model it sends out."""
    if record.games:
        most = max((point.adv for point in record.games), key=lambda adv: adv.value)
        limits = words.interval(most.low, most.high, "accuracy")
        text = f"Right in {words.percent(most.value)} of games ({LEVEL} interval {limits})"
        more = (
            f"The largest of {words.plural(len(record.games), 'point')}; guessing is right in 50%."
        )
        return Answer("figure", text, more)
    server = record.config.get("server")
    name = str(server.get("name", "honest")) if isinstance(server, dict) else "honest"
    if name == "honest":
        return not_tested("The server sends out the model as it is.")
    return Answer("stated", f"The server is “{shortened(name)}”", "All figures are of this server.")


def malicious_client(record: Record) -> Answer:
    """The largest AUC of a participant who poisons what it sends."""
    given = record.config.get("attacker")
    if not isinstance(given, dict):
        return not_tested("Every client sends what training gives.")
    best = strongest(headline(record), metric_names.AUC)
    kind = shortened(str(given.get("kind", "not stated")), 40)
    if kind == "none":
        return not_tested("The one in this record looks on: a control.")
    text = f"Largest AUC {words.with_interval(best)}" if best else "No figure"
    rate = strongest(headline(record), metric_names.tpr_at(0.01))
    text += f"; TPR at 1% FPR {words.with_interval(rate)}" if rate else ""
    where = f"{best.attack} {words.against(best.contrast)}, " if best else ""
    more = (
        f"{where}by a client that sends a poison ({kind}) and sees what a participant sees. What "
        "it gains by that stands beside a record of the same client looking on (attacker.kind = "
        "'none'): fedaudit compare."
    )
    return Answer("figure" if best else "inconclusive", text, more)


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
    return Answer("not stated", text, f"{words.capital('; '.join(more))}. {why}")


def out_of_scope(why: str) -> Callable[[Record], Answer]:
    """The answer for every record where no part of fedaudit asks the question."""
    return lambda record: Answer("out of scope", "Out of scope", why)
