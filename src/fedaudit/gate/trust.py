"""Reasons to believe a record's figures or not: controls, evaluation, and what was carried out."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import EvidencePolicy, Policy
from fedaudit.gate.verdict import Check, demand
from fedaudit.report.evidence import Setting, headline, labels_among, setting_of
from fedaudit.report.grid import shortened
from fedaudit.report.sources import on_sources, wrong_side
from fedaudit.report.verdict import (
    WRONG_SIGN,
    clients_named,
    coverage_gaps,
    hardly_learned,
    leaking_defenses,
    wrong_sign,
)
from fedaudit.report.words import against, client_name, defense_name, listed, percent, plural
from fedaudit.results.coverage import Coverage
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import control_name
from fedaudit.results.metrics import TEST_ACCURACY, TRAIN_ACCURACY
from fedaudit.results.record import ControlResult, Record

POSITIVE = "planted leak"
"""The control that must find something. Where it fails a figure may be too low, never too high."""
OF_SOURCES = ("untrained model",)
"""Controls that attacks on sources have."""
MOST_NAMED = 5
_MOST_REASONS = 2
_LONGEST_REASON = 160


class Trust(NamedTuple):
    """Reasons against believing a figure that is above its ceiling.

    Attributes:
        unsound: Why no figure of the record can be believed; empty where they can.
        confidence: That limits must have.
    """

    unsound: str
    confidence: float

    def doubt(self, figure: Estimate | None) -> str:
        """Reason why a figure may be too high; empty where nothing says so."""
        if self.unsound or figure is None or not figure.doubt:
            return self.unsound
        return f"the control {figure.doubt} failed, so that it may not be leakage"


def trust_in(record: Record, evidence: EvidencePolicy) -> Trust:
    """Reasons against believing a record's figures."""
    return Trust(_unsound(record), evidence.confidence)


def control_checks(
    record: Record, policy: Policy, members: Collection[str], sources: Collection[str]
) -> Iterator[Check]:
    """Yield a check for each control that the policy requires, or that failed unasked.

    Controls of attacks that are not judged say nothing of those that are.
    """
    otherwise = Outcome(policy.controls.otherwise)
    # Nobody can plant a leak in a federation that was only watched.
    asked = [kind for kind in policy.controls.required if not (record.watched and kind == POSITIVE)]
    relevant = {*members, *sources, *([""] if members else [])}
    controls = [one for one in record.controls if one.attack in relevant]
    failed = {one.control for one in controls if one.passed is False}
    for kind in [*asked, *sorted(failed - set(asked))]:
        judged = [*members, *(sources if kind in OF_SOURCES else ())]
        if not judged:
            continue
        rows = [one for one in controls if one.control == kind]
        faults = [f"{control_name(one)} failed" for one in rows if one.passed is False]
        if kind in asked:
            faults += _missing(kind, rows, judged, record.seeds)
        yield demand("controls", f"control: {shortened(kind)}", _few(faults), otherwise)


def evidence_checks(record: Record, policy: Policy) -> Iterator[Check]:
    """The policy's demands on the evidence as a whole."""
    asked, unsettled = policy.evidence, Outcome.INCONCLUSIVE
    unsound = _unsound(record)
    yield demand("evidence", "a sound evaluation", [unsound] if unsound else [], unsettled)
    if record.where(topic="utility") and asked.least_learned:
        yield demand("evidence", "models that learned", _unlearned(record, asked), unsettled)
    missing = asked.least_seeds - len(set(record.seeds))
    if asked.least_seeds > 1:
        faults = [f"{plural(missing, 'more seed')} needed"] if missing > 0 else []
        yield demand("evidence", f"at least {asked.least_seeds} seeds", faults, unsettled)
    if asked.views:
        seen = record.view.name
        faults = [] if seen in asked.views else [f"the adversary's view is {shortened(seen)!r}"]
        wanted = listed([shortened(view) for view in asked.views]).replace(" and ", " or ")
        yield demand("evidence", f"an adversary with the view {wanted}", faults, unsettled)
    if record.coverage is not None:
        faults = _uncovered(record, record.coverage, sampled=asked.sampled_rounds)
        if record.coverage.is_open:
            faults.append(
                f"the recorder was not closed, so that rounds after {record.coverage.rounds} may "
                "have run; close it after the last round, and attack the recording again"
            )
        chosen = policy.membership.targets if policy.membership is not None else ()
        if record.coverage.unattacked and not chosen:
            faults.append(
                f"of the audited clients, {clients_named(record.coverage.unattacked)} were left "
                "out; attack all of them, or name those that are judged in membership.targets"
            )
        yield demand("evidence", "complete coverage", faults, unsettled)
    if policy.membership is not None:
        first = headline(record)
        labels = labels_among(first)
        lower = [
            f"{shortened(one.attack)} {against(one.contrast)}{_among(labels, one)}: {WRONG_SIGN}"
            for one in wrong_sign(first)
            if one.contrast in policy.membership.contrasts
            and one.attack in (policy.membership.attacks or [one.attack])
        ]
        if lower:
            yield demand("evidence", "scores with the right sign", _few(lower), unsettled)
    if policy.sources is not None:
        turned = [
            f"{shortened(one.success.attack)}: right less often than a guess"
            for one in wrong_side(on_sources(record))
        ]
        if turned:
            yield demand("evidence", "scores with the right sign", _few(turned), unsettled)
    # An attack that ran has a note only where it failed in some of its runs.
    broken = [
        row
        for row in record.attacks
        if row.status == "failed" or (row.status == "run" and row.note)
    ]
    faults = [f"{shortened(row.name)}: {shortened(row.note or 'it failed', 200)}" for row in broken]
    yield demand("evidence", "every attack carried out", _few(faults), unsettled)


def _among(labels: Mapping[Setting, str], figure: Estimate) -> str:
    """Return what tells a figure from others of its attack, such as its client, after a comma."""
    label = labels[setting_of(figure)]
    return f", {label}" if label else ""


def _uncovered(record: Record, coverage: Coverage, *, sampled: bool) -> list[str]:
    faults = []
    if not coverage.is_whole:
        gaps = coverage_gaps(record)
        faults = [gaps[:1].lower() + gaps[1:]]
        faults += [
            f"round {span.first}{f' to {span.last}' if span.last > span.first else ''}: "
            f"{shortened(span.reason, _LONGEST_REASON)}"
            for span in coverage.missing_rounds[:_MOST_REASONS]
        ]
        uploads = [one for one in coverage.missing_uploads if one.aggregated]
        faults += [
            f"{client_name(one.client)}, round {one.round}: "
            f"{shortened(one.reason, _LONGEST_REASON)}"
            for one in uploads[:_MOST_REASONS]
        ]
    if coverage.sampled_rounds and not sampled:
        faults.append(
            f"every {coverage.every} rounds were measured, and not what clients sent in the "
            "others; measure every round, or set evidence.sampled_rounds"
        )
    return faults


def _unsound(record: Record) -> str:
    if record.evaluation != "aligned":
        return (
            f"the evaluation is {record.evaluation!r}, the published way, which shows leakage "
            "where there is none"
        )
    if record.nobody_is_a_member:
        return "nobody was a member: the record shows what an evaluation finds in nothing"
    return ""


def _unlearned(record: Record, asked: EvidencePolicy) -> list[str]:
    """Rows whose training accuracy is near guessing: a low figure there is no result.

    An attack above guessing shows that something was learned, also where a task has no accuracy.
    """
    rows = record.where(topic="utility")
    known = {one.defense for one in rows if one.metric in (TEST_ACCURACY, TRAIN_ACCURACY)}
    leaks = leaking_defenses(record)
    return _few(
        [
            f"its task has no accuracy, and no attack is above guessing with "
            f"{shortened(defense_name(name))}, so that the models may have learned nothing; where "
            "their loss shows that they have, set evidence.least_learned to 0"
            for name in sorted({one.defense for one in rows} - known - leaks)
        ]
        + [
            f"the training accuracy with {shortened(defense_name(one.defense))} is "
            f"{percent(one.train_accuracy)}, near guessing ({percent(one.guess)}), so "
            "that figures near guessing show nothing"
            for one in hardly_learned(record, asked.least_learned)
        ]
    )


def _missing(
    kind: str, rows: Sequence[ControlResult], attacks: Sequence[str], seeds: Sequence[int]
) -> list[str]:
    """Attacks that have not been controlled in every run; a control that could not run is none."""
    ran = {(one.attack, one.seed) for one in rows if one.passed is not None}
    lacking = [
        attack
        for attack in attacks
        if not all(ran & {("", None), ("", seed), (attack, None), (attack, seed)} for seed in seeds)
    ]
    if not lacking:
        return []
    if len(lacking) == len(attacks):
        # Where nothing of it could be done for one reason, that is the reason.
        reasons = {one.note for one in rows if one.passed is None and one.note}
        if len(reasons) == 1 and not ran:
            return [f"it could not be run: {shortened(reasons.pop(), 200)}"]
        return ["it was not run, or not in every run"]
    return [f"missing for {listed(_few([shortened(attack) for attack in lacking]))}"]


def _few(items: list[str]) -> list[str]:
    more = len(items) - MOST_NAMED
    return [*items[:MOST_NAMED], f"{more} more"] if more > 0 else items
