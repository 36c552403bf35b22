"""The verdict in plain words, for a reader who decides and does not attack."""

from typing import NamedTuple

from fedaudit.report.audited_words import audited
from fedaudit.report.choosing import about_members, distinct, headline, says_nothing
from fedaudit.report.cluster_words import (
    cluster_bullets,
    cluster_headline,
    cluster_meaning,
    cluster_status,
)
from fedaudit.report.clusters import clustered_of
from fedaudit.report.evidence import Status, gravest
from fedaudit.report.found import Bullet, bullets
from fedaudit.report.grid import shortened
from fedaudit.report.member_words import member_meaning, member_status
from fedaudit.report.names import defense_name
from fedaudit.report.open_points import open_points
from fedaudit.report.reading import ControlResult, Figure, Record, cleaned, near_guessing
from fedaudit.report.source_words import (
    SOURCE_HEADLINES,
    source_bullets,
    source_meaning,
    source_status,
)
from fedaudit.report.sources import on_sources
from fedaudit.report.verdict_texts import BESIDE_OTHERS, HARDLY_LEARNED, HEADLINES, UNLEARNED
from fedaudit.report.words import capital, count, percent, plural, shown

MOST_WARNED = 3
"""Rows near guessing that a warning names; of more, their number stands."""


class Verdict(NamedTuple):
    """A record in plain words.

    Attributes:
        status: The verdict as one of a few fixed words.
        headline: The verdict as a sentence; of several topics the gravest stands first.
        warning: Why nothing follows from the figures about attacks and defenses; empty where
            the models learned.
        audited: What was audited, and against whom.
        found: What was found, setting by setting.
        meaning: What follows from it, and what does not.
        controls: Whether the checks passed.
        open: What could not be concluded, point by point.
    """

    status: Status
    headline: str
    warning: str
    audited: str
    found: tuple[Bullet, ...]
    meaning: str
    controls: str
    open: tuple[str, ...]


def verdict(record: Record) -> Verdict:
    """The verdict on a record, computed from its figures and controls alone."""
    record = cleaned(record)
    figures = headline(record)
    verdicts = _verdicts(record, figures)
    status = verdicts.together
    return Verdict(
        status,
        _headline(record, verdicts),
        learning_warning(record),
        audited(record),
        () if status == "void" else _found(record, figures),
        _meanings(record, verdicts, figures),
        _controls(record.controls),
        open_points(record, figures),
    )


def _found(record: Record, figures: list[Figure]) -> tuple[Bullet, ...]:
    # Of clusters one sentence each: the others stand in their section.
    short = [Bullet(b.label, b.sentences[:2]) for b in cluster_bullets(record)]
    return (*bullets(figures), *source_bullets(record), *short)


class _Verdicts(NamedTuple):
    """On membership, sources and clusters, None where a record is not about it; and together."""

    membership: Status | None
    sources: Status | None = None
    clusters: Status | None = None

    @property
    def together(self) -> Status:
        return gravest([one for one in self if one is not None])


def _verdicts(record: Record, figures: list[Figure]) -> _Verdicts:
    """A verdict that makes all figures doubtful stands for both."""
    overall = _doubtful(record)
    if overall is not None:
        return _Verdicts(overall)
    found = _Verdicts(
        member_status(record, figures) if about_members(record) else None,
        source_status(on_sources(record)) if record.sources else None,
        cluster_status(clustered_of(record)) if record.clusters else None,
    )
    if not near_guessing(record):
        return found
    # That nothing was found in a model that learned next to nothing is no result.
    return _Verdicts(*("inconclusive" if one == "no leak shown" else one for one in found))


def _headline(record: Record, verdicts: _Verdicts) -> str:
    """A sentence for each topic, the gravest first: the status beside it is that one's."""
    said: list[tuple[Status, str]] = []
    alone = verdicts.sources is None and verdicts.clusters is None
    if verdicts.membership is not None:
        plain = HEADLINES[verdicts.membership]
        text = plain if alone else BESIDE_OTHERS.get(verdicts.membership, plain)
        said.append((verdicts.membership, text))
    if verdicts.sources is not None:
        said.append((verdicts.sources, SOURCE_HEADLINES[verdicts.sources]))
    if verdicts.clusters is not None:
        said.append((verdicts.clusters, cluster_headline(clustered_of(record))))
    if near_guessing(record):
        said = [(one, UNLEARNED.get(one, text)) for one, text in said]
    order = [one for one, _ in said]
    first = order.index(gravest(order)) if order else 0
    texts = [text for _, text in [*said[first : first + 1], *said[:first], *said[first + 1 :]]]
    return ". ".join(dict.fromkeys(texts))


def learning_warning(record: Record) -> str:
    """Says which rows' training accuracy is near guessing; empty where none is."""
    rows = near_guessing(record)
    if not rows:
        return ""
    several = len({one.defense for one in record.utility}) > 1
    told = [
        (f"with {shortened(defense_name(one.defense), 60)} " if several else "")
        + f"the training accuracy is {percent(one.train_accuracy)}, where always naming the most "
        f"frequent class gives {percent(one.guess)}"
        for one in rows[:MOST_WARNED]
    ]
    more = len(rows) - MOST_WARNED
    told += [f"likewise in {plural(more, 'further row')}"] * (more > 0)
    return (
        f"{capital('; '.join(told))}. The model has hardly learned its training data. The "
        "figures hold for it alone: nothing follows from them about attacks or defenses on a model "
        "that has learned. Train it for longer, or on fewer samples."
    )


def _meanings(record: Record, verdicts: _Verdicts, figures: list[Figure]) -> str:
    parts = []
    if "inconclusive" in verdicts and near_guessing(record):
        parts.append(HARDLY_LEARNED)
        verdicts = _Verdicts(*(None if one == "inconclusive" else one for one in verdicts))
    if verdicts.membership is not None:
        parts.append(member_meaning(record, verdicts.membership, figures))
    if verdicts.sources is not None:
        parts.append(source_meaning(verdicts.sources, on_sources(record)))
    if verdicts.clusters is not None:
        parts.append(cluster_meaning(clustered_of(record)))
    return " ".join(parts)


def as_text(record: Record) -> str:
    """The verdict as plain text, for a terminal or a mail."""
    whole = verdict(record)
    lines = [whole.headline + ".", ""]
    lines += [f"Warning: {whole.warning}", ""] if whole.warning else []
    lines += [whole.audited, ""]
    for bullet in whole.found:
        lines += [f"{bullet.label}:"] if bullet.label else []
        lines += [f"- {said.against}: {said.found}" for said in bullet.sentences]
    lines += ["", whole.meaning, "", whole.controls]
    if whole.open:
        lines += ["", "Not concluded:", *(f"- {point}" for point in whole.open)]
    return "\n".join(lines) + "\n"


def _doubtful(record: Record) -> Status | None:
    """The verdict on a record whose figures cannot be relied on."""
    if says_nothing(record):
        return "void"
    if any(control.passed is False for control in record.controls):
        return "control failed"
    return None


def _controls(controls: list[ControlResult]) -> str:
    ran = [control for control in controls if control.passed is not None]
    if not ran:
        return "No control was run, so nothing vouches for these figures."
    failed = [control for control in ran if not control.passed]
    unrun = len(controls) - len(ran)
    not_run = f" {plural(unrun, 'control')} could not be run." if unrun else ""
    if not failed:
        return f"Controls: all {count(len(ran))} that were run passed.{not_run}"
    named = distinct(
        f"{shortened(c.control)} (expected: {_expected(c.expected)}; got {_got(c)})" for c in failed
    )
    more = f" and {count(len(named) - 4)} more" if len(named) > 4 else ""
    return (
        f"Controls: {count(len(failed))} of {count(len(ran))} failed: "
        f"{'; '.join(named[:4])}{more}.{not_run}"
    )


def _expected(text: str) -> str:
    return shortened(text, 120).rstrip(".")


def _got(control: ControlResult) -> str:
    return shown(control.value, "auc") if control.value is not None else "no value"
