"""Answers to clauses beyond a sample and a patient observer: people, deletion, sums, malice."""

from fedaudit.core.metric_names import (
    AUC,
    FORMAL_EPSILON,
    SECURE_SUM_EPSILON,
    SECURE_SUM_EPSILON_IF_GAUSSIAN,
    tpr_at,
)
from fedaudit.report.evidence import headline, over_all_runs, single_samples, strongest
from fedaudit.report.grid import shortened
from fedaudit.report.text.answers import AT_THE_CEILING, Answer, at_ceiling
from fedaudit.report.words import (
    capital,
    contrast_name,
    number,
    plural,
    value_of,
    with_interval,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from fedaudit.results.unlearning import most_left, unlearning_rows, unlearning_verdict_of


def people(record: Record) -> Answer:
    """The unit of the audit: single samples, or people with all of their samples."""
    if record.unit == "sample":
        text = "Single samples; people with several samples: not tested"
        more = "Small hints on each of a person’s samples add up: figures for people are larger."
        return Answer("not tested", text, more)
    best, single = (
        strongest(figures, AUC) for figures in (headline(record), single_samples(record))
    )
    text = "People, each with all of their samples"
    text += f": largest AUC {with_interval(best)}" if best else ""
    said = [f"{best.attack} v. {contrast_name(best.contrast).lower()}."] if best else []
    said += [f"Of their samples one by one: {with_interval(single)}."] if single else []
    if over_all_runs(record, FORMAL_EPSILON) is not None:
        said.append("The proven epsilon is of one sample: none is stated for a person.")
    return Answer("figure" if best else "stated", text, "\n".join(said))


def deletion(record: Record) -> Answer:
    """AUCs on deleted samples after unlearning, beside those of a retrained federation."""
    rows = unlearning_rows(record)
    if not rows:
        return Answer("not tested", "Not tested", "Nothing was unlearned in this record.")
    given = record.config.get("unlearning")
    settings = given if isinstance(given, dict) else {}
    worst, both = most_left(rows), max(rows, key=lambda row: row.both.number).both
    attacks = plural(len({row.after.attack for row in rows}), "attack")
    text = f"{capital(unlearning_verdict_of(rows))}, as far as {attacks} can tell: after "
    text += f"unlearning, largest AUC {with_interval(worst.after)}; retrained "
    text += value_of(worst.retrained)
    deleted = sum({row.after.target: row.after.n_members for row in rows}.values())
    units, margin = "people" if record.unit == "person" else "samples", settings.get("margin")
    more = (
        f"By {shortened(str(settings.get('method', 'not stated')), 40)!r}, "
        f"{deleted} deleted {units}, margin {'not stated' if margin is None else margin}; "
        f"before {value_of(worst.before)} ({shortened(worst.after.attack, 40)}). Who has the "
        f"models before and after: AUC {with_interval(both)} ({shortened(both.attack, 40)}). All "
        "other rows are of the model before deletion."
    )
    return Answer("figure", text, more)


def one_sum(record: Record) -> Answer:
    """A lower bound on the epsilon of one client's update in one round's sum."""
    counted = over_all_runs(record, SECURE_SUM_EPSILON)
    if counted is None or counted.value is None:
        return Answer("not tested", "Not tested", "No sum of updates was drawn anew here.")
    text = f"ε at least {number(counted.number)} for one client’s update in one round’s sum"
    more = [f"Against whoever has that sum; {shortened(counted.method, 120)}."]
    more += [AT_THE_CEILING] if at_ceiling(counted) else []
    more += [f"{number(one.number)} if noise is normal." for one in _normal(record)]
    more.append("A lower bound certifies nothing; noise that is added is what hides an update.")
    return Answer("figure", text, " ".join(more))


def _normal(record: Record) -> list[Estimate]:
    one = over_all_runs(record, SECURE_SUM_EPSILON_IF_GAUSSIAN)
    return [one] if one is not None and one.value is not None else []


def malicious_client(record: Record) -> Answer:
    """The largest AUC of a participant who poisons what it sends."""
    given = record.config.get("attacker")
    if not isinstance(given, dict):
        return Answer("not tested", "Not tested", "Every client sends what training gives.")
    best = strongest(headline(record), AUC)
    kind = shortened(str(given.get("kind", "not stated")), 40)
    if kind == "none":
        return Answer("not tested", "Not tested", "The one in this record looks on: a control.")
    text = f"Largest AUC {with_interval(best)}" if best else "No figure"
    rate = strongest(headline(record), tpr_at(0.01))
    text += f"; TPR at 1% FPR {with_interval(rate)}" if rate else ""
    where = f"{best.attack} v. {contrast_name(best.contrast).lower()}, " if best else ""
    more = (
        f"{where}by a client that sends a poison ({kind}) and sees what a participant sees. What "
        "it gains by that stands beside a record of the same client looking on (attacker.kind = "
        "'none'): fedaudit compare."
    )
    return Answer("figure" if best else "inconclusive", text, more)
