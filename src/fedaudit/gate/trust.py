"""Checks of whether a record's figures are reliable: controls, evaluation, attacks that ran."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import EvidencePolicy, Policy
from fedaudit.gate.verdict import Check, demand
from fedaudit.report.deciding.caveats import (
    WRONG_SIGN,
    client_list,
    coverage_gaps,
    hardly_learned,
    leaking_defenses,
    wrong_sign,
)
from fedaudit.report.evidence import Setting, labels_among, main_figures, setting_of
from fedaudit.report.grid import shortened
from fedaudit.report.sources import below_guessing, source_attacks
from fedaudit.report.wording import client_name, defense_name, join_and, percent, plural, versus
from fedaudit.results.estimate import TEST_ACCURACY, TRAIN_ACCURACY, Estimate
from fedaudit.results.guessing import control_name
from fedaudit.results.record import ControlResult, Record
from fedaudit.results.runs import Coverage

POSITIVE = "planted leak"
"""Positive control, which attacks must detect. If it fails, figures may be too low."""
OF_SOURCES = ("untrained model",)
"""Controls of source inference attacks."""
MOST_NAMED = 5
_MOST_REASONS = 2
_LONGEST_REASON = 160


class Trust(NamedTuple):
    """Reasons to doubt a figure above its ceiling.

    Attributes:
        unsound: Reason why no figure of the record is reliable; empty if they are.
        confidence: Confidence that limits must have.
    """

    unsound: str
    confidence: float

    def doubt(self, figure: Estimate | None) -> str:
        """Return the reason why a figure may be too high; empty if there is none."""
        if self.unsound or figure is None or not figure.doubt:
            return self.unsound
        return f"the control {figure.doubt} failed, so the figure may not be leakage"


def trust_in(record: Record, evidence: EvidencePolicy) -> Trust:
    """Return the reasons to doubt a record's figures."""
    return Trust(_unsound(record), evidence.confidence)


def control_checks(
    record: Record, policy: Policy, members: Collection[str], sources: Collection[str]
) -> Iterator[Check]:
    """Yield a check for each required control, and each failed one.

    Controls of attacks that are not judged do not count.
    """
    otherwise = Outcome(policy.controls.otherwise)
    # A recorded federation has no planted leak.
    required = [
        kind for kind in policy.controls.required if not (record.watched and kind == POSITIVE)
    ]
    relevant = {*members, *sources, *([""] if members else [])}
    controls = [control for control in record.controls if control.attack in relevant]
    failed = {control.control for control in controls if control.passed is False}
    for kind in [*required, *sorted(failed - set(required))]:
        judged = [*members, *(sources if kind in OF_SOURCES else ())]
        if not judged:
            continue
        rows = [control for control in controls if control.control == kind]
        faults = [f"{control_name(control)} failed" for control in rows if control.passed is False]
        if kind in required:
            faults += _missing(kind, rows, judged, record.seeds)
        yield demand("controls", f"control: {shortened(kind)}", _first(faults), otherwise)


def evidence_checks(record: Record, policy: Policy) -> Iterator[Check]:
    """Yield the policy's requirements on the evidence as a whole."""
    demands, unsettled = policy.evidence, Outcome.INCONCLUSIVE
    unsound = _unsound(record)
    yield demand("evidence", "a sound evaluation", [unsound] if unsound else [], unsettled)
    if record.where(topic="utility") and demands.least_learned:
        yield demand("evidence", "models that learned", _unlearned(record, demands), unsettled)
    missing = demands.least_seeds - len(set(record.seeds))
    if demands.least_seeds > 1:
        faults = [f"{plural(missing, 'more seed')} needed"] if missing > 0 else []
        yield demand("evidence", f"at least {demands.least_seeds} seeds", faults, unsettled)
    if demands.views:
        seen = record.view.name
        faults = [] if seen in demands.views else [f"the adversary's view is {shortened(seen)!r}"]
        views = join_and([shortened(view) for view in demands.views]).replace(" and ", " or ")
        yield demand("evidence", f"an adversary with the view {views}", faults, unsettled)
    if record.coverage is not None:
        faults = _uncovered(record, record.coverage, sampled=demands.sampled_rounds)
        if record.coverage.is_open:
            faults.append(
                f"the recorder was not closed, so rounds after {record.coverage.rounds} may "
                "have run; close it after the last round, and attack the recording again"
            )
        chosen = policy.membership.targets if policy.membership is not None else ()
        if record.coverage.unattacked and not chosen:
            faults.append(
                f"of the audited clients, {client_list(record.coverage.unattacked)} were left "
                "out; attack all of them, or name those that are judged in membership.targets"
            )
        # Rounds that the policy allows to leave out are not complete coverage.
        chosen_rounds = demands.sampled_rounds and record.coverage.sampled_rounds
        name = "complete coverage" + " of the sampled rounds" * chosen_rounds
        yield demand("evidence", name, faults, unsettled)
    if policy.membership is not None:
        first = main_figures(record)
        labels = labels_among(first)
        below_chance = [
            f"{shortened(figure.attack)} {versus(figure.contrast)}"
            f"{_after_comma(labels, figure)}: {WRONG_SIGN}"
            for figure in wrong_sign(first)
            if figure.contrast in policy.membership.contrasts
            and figure.attack in (policy.membership.attacks or [figure.attack])
        ]
        if below_chance:
            yield demand("evidence", "scores with the right sign", _first(below_chance), unsettled)
    if policy.sources is not None:
        inverted = [
            f"{shortened(figure.success.attack)}: right less often than guessing"
            for figure in below_guessing(source_attacks(record))
        ]
        if inverted:
            yield demand("evidence", "scores with the right sign", _first(inverted), unsettled)
    # An attack that ran has a note only if it failed in some of its runs.
    broken = [
        row
        for row in record.attacks
        if row.status == "failed" or (row.status == "run" and row.note)
    ]
    faults = [f"{shortened(row.name)}: {shortened(row.note or 'it failed', 200)}" for row in broken]
    yield demand("evidence", "every attack was run", _first(faults), unsettled)


def _after_comma(labels: Mapping[Setting, str], figure: Estimate) -> str:
    """Return a comma and the label that distinguishes a figure from others of its attack."""
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
        uploads = [upload for upload in coverage.missing_uploads if upload.aggregated]
        faults += [
            f"{client_name(upload.client)}, round {upload.round}: "
            f"{shortened(upload.reason, _LONGEST_REASON)}"
            for upload in uploads[:_MOST_REASONS]
        ]
    if coverage.sampled_rounds and not sampled:
        faults.append(
            f"only every {coverage.every} rounds were measured; measure every round, or set "
            "evidence.sampled_rounds"
        )
    return faults


def _unsound(record: Record) -> str:
    if record.evaluation != "aligned":
        return (
            f"the evaluation is {record.evaluation!r}, the published method, which reports "
            "leakage without any leak"
        )
    if record.nobody_is_a_member:
        return "members were unseen samples: the record shows what is found without any leak"
    return ""


def _unlearned(record: Record, demands: EvidencePolicy) -> list[str]:
    """Describe defenses with a training accuracy near chance.

    Where a task has no accuracy, an attack above guessing shows that something was learned.
    """
    rows = record.where(topic="utility")
    with_accuracy = {row.defense for row in rows if row.metric in (TEST_ACCURACY, TRAIN_ACCURACY)}
    leaks = leaking_defenses(record)
    return _first(
        [
            f"its task has no accuracy, and no attack is above guessing with "
            f"{shortened(defense_name(name))}, so the models may have learned nothing; if "
            "their loss shows that they have, set evidence.least_learned to 0"
            for name in sorted({row.defense for row in rows} - with_accuracy - leaks)
        ]
        + [
            f"the training accuracy with {shortened(defense_name(row.defense))} is "
            f"{percent(row.train_accuracy)}, near guessing ({percent(row.guess)}), so "
            "that figures near guessing show nothing"
            for row in hardly_learned(record, demands.least_learned)
        ]
    )


def _missing(
    kind: str, rows: Sequence[ControlResult], attacks: Sequence[str], seeds: Sequence[int]
) -> list[str]:
    """Return attacks without this control in every run."""
    ran = {(control.attack, control.seed) for control in rows if control.passed is not None}
    lacking = [
        attack
        for attack in attacks
        if not all(ran & {("", None), ("", seed), (attack, None), (attack, seed)} for seed in seeds)
    ]
    if not lacking:
        return []
    if len(lacking) == len(attacks):
        # If one reason prevented all runs, that reason is reported.
        reasons = {control.note for control in rows if control.passed is None and control.note}
        if len(reasons) == 1 and not ran:
            return [f"it could not be run: {shortened(reasons.pop(), 200)}"]
        return ["this control was not run, or not in every run"]
    return [f"missing for {join_and(_first([shortened(attack) for attack in lacking]))}"]


def _first(items: list[str]) -> list[str]:
    n_more = len(items) - MOST_NAMED
    return [*items[:MOST_NAMED], f"{n_more} more"] if n_more > 0 else items
