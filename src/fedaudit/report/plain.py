"""The verdict in plain words, for a reader who decides and does not attack."""

from typing import NamedTuple

from fedaudit.report.audited_words import audited
from fedaudit.report.choosing import about_members, distinct, headline, says_nothing
from fedaudit.report.cleaning import cleaned
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
from fedaudit.report.open_points import open_points
from fedaudit.report.source_words import (
    SOURCE_HEADLINES,
    source_bullets,
    source_meaning,
    source_status,
)
from fedaudit.report.sources import on_sources
from fedaudit.report.verdict_texts import BESIDE_OTHERS, HEADLINES
from fedaudit.report.words import count, plural, shown
from fedaudit.study.record import ControlResult, Figure, Record


class Verdict(NamedTuple):
    """A record in plain words.

    Attributes:
        status: The verdict as one of a few fixed words.
        headline: The verdict as a sentence.
        audited: What was audited, and against whom.
        found: What was found, setting by setting.
        meaning: What follows from it, and what does not.
        controls: Whether the checks passed.
        open: What could not be concluded, point by point.
    """

    status: Status
    headline: str
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
    return _Verdicts(
        member_status(record, figures) if about_members(record) else None,
        source_status(on_sources(record)) if record.sources else None,
        cluster_status(clustered_of(record)) if record.clusters else None,
    )


def _headline(record: Record, verdicts: _Verdicts) -> str:
    others = []
    if verdicts.sources is not None:
        others.append(SOURCE_HEADLINES[verdicts.sources])
    if verdicts.clusters is not None:
        others.append(cluster_headline(clustered_of(record)))
    if verdicts.membership is None:
        return ". ".join(others)
    plain = HEADLINES[verdicts.membership]
    first = BESIDE_OTHERS.get(verdicts.membership, plain) if others else plain
    return ". ".join([first, *others])


def _meanings(record: Record, verdicts: _Verdicts, figures: list[Figure]) -> str:
    parts = []
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
    lines = [whole.headline + ".", "", whole.audited, ""]
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
