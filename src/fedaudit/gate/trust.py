"""Checks of whether a record's estimates are reliable: controls, coverage and failed attacks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import (
    attack_name,
    client_name,
    defense_name,
    format_count,
    format_percent,
    join_and,
    nonmember_heading,
    without_capital,
)
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import EvidencePolicy, Policy
from fedaudit.gate.verdict import Check, requirement_check
from fedaudit.report.deciding.caveats import (
    WRONG_SIGN,
    client_list,
    coverage_gaps,
    guard_of,
    hardly_learned,
    leaking_defenses,
    wrong_sign,
)
from fedaudit.report.evidence import Setting, labels_by_setting, main_estimates, setting_of
from fedaudit.report.sources import below_guessing, source_attacks
from fedaudit.results.estimate import TEST_ACCURACY, TRAIN_ACCURACY, Estimate
from fedaudit.results.guessing import control_name
from fedaudit.results.record import ControlResult, Record
from fedaudit.results.runs import Coverage

POSITIVE_CONTROL = "planted leak"
"""Control with a known leak, which attacks must detect. If it fails, estimates may be too low."""
SOURCE_CONTROLS = ("untrained model",)
"""Controls of source inference attacks."""
MAX_NAMED = 5
"""Maximum number of faults that a check lists."""
_MAX_REASONS = 2
_MAX_REASON = 160
"""Maximum length of a reason that is quoted from a record."""


class Doubts(NamedTuple):
    """Reasons to doubt an estimate above its ceiling.

    Attributes:
        unsound: Reason why no estimate of the record is reliable; empty without such a reason.
        confidence: Required confidence level of the limits.
    """

    unsound: str
    confidence: float

    def doubt(self, figure: Estimate | None) -> str:
        """Return the reason why an estimate may be too high; empty without such a reason."""
        if self.unsound or figure is None or not figure.doubt:
            return self.unsound
        return f"the control {figure.doubt} failed, so the figure may not show a leak"


def doubts_about(record: Record, evidence: EvidencePolicy) -> Doubts:
    """Return the reasons to doubt a record's estimates, and the required confidence level."""
    return Doubts(_why_unsound(record), evidence.confidence)


def control_checks(
    record: Record, policy: Policy, members: Collection[str], sources: Collection[str]
) -> Iterator[Check]:
    """Yield a check for each required control, and for each other control that failed.

    Args:
        record: Record.
        policy: Policy.
        members: Judged membership inference attacks. Controls of other attacks are ignored.
        sources: Judged source inference attacks.
    """
    outcome_of_fault = Outcome(policy.controls.otherwise)
    # The control is not possible for a recorded federation.
    required = [
        kind
        for kind in policy.controls.required
        if not (record.watched and kind == POSITIVE_CONTROL)
    ]
    # Controls with an empty attack apply to all membership inference attacks.
    relevant = {*members, *sources, *([""] if members else [])}
    controls = [control for control in record.controls if control.attack in relevant]
    failed = {control.control for control in controls if control.passed is False}
    for kind in [*required, *sorted(failed - set(required))]:
        judged = [*members, *(sources if kind in SOURCE_CONTROLS else ())]
        if not judged:
            continue
        rows = [control for control in controls if control.control == kind]
        faults = [f"{_control_name(control)} failed" for control in rows if control.passed is False]
        if kind in required:
            faults += _missing_controls(rows, judged, record.seeds)
        name = f"control: {shorten(kind)}"
        yield requirement_check("controls", name, _first_items(faults), outcome_of_fault)


def _control_name(control: ControlResult) -> str:
    named_attack = control.model_copy(update={"attack": attack_name(control.attack)})
    return control_name(named_attack)


def evidence_checks(record: Record, policy: Policy) -> Iterator[Check]:
    """Yield the checks of the policy's requirements on the evidence as a whole."""
    required = policy.evidence
    check = partial(requirement_check, "evidence", outcome_of_fault=Outcome.INCONCLUSIVE)
    unsound = _why_unsound(record)
    yield check("valid evaluation", [unsound] if unsound else [])
    if record.where(topic="utility") and required.least_learned:
        yield check("trained models", _unlearned_models(record, required))
    missing = required.least_seeds - len(set(record.seeds))
    if required.least_seeds > 1:
        faults = [f"{format_count(missing, 'more seed')} needed"] if missing > 0 else []
        yield check(f"at least {required.least_seeds} seeds", faults)
    if required.views:
        view = record.view.name
        faults = [] if view in required.views else [f"the audit has the view {shorten(view)!r}"]
        views = join_and([shorten(view) for view in required.views]).replace(" and ", " or ")
        yield check(f"audit with the view {views}", faults)
    if record.coverage is not None:
        faults = _coverage_faults(
            record, record.coverage, allows_sampled_rounds=required.sampled_rounds
        )
        if record.coverage.is_open:
            faults.append(
                f"the recorder was not closed, so rounds after round {record.coverage.rounds} may "
                "be missing; close the recorder after the last round, and attack the recording "
                "again"
            )
        chosen = policy.membership.targets if policy.membership is not None else ()
        if record.coverage.unattacked and not chosen:
            faults.append(
                f"the audited clients {client_list(record.coverage.unattacked)} were not attacked; "
                "attack them, or list the clients to judge in membership.targets"
            )
        # A policy that allows sampled rounds accepts less evidence, so the name mentions them.
        is_sampled = required.sampled_rounds and record.coverage.sampled_rounds
        scope = " of the sampled rounds" if is_sampled else ""
        scope = " of the uploads that were sent" if guard_of(record) else scope
        yield check(f"all planned measurements{scope}", faults)
    if policy.membership is not None:
        figures = main_estimates(record)
        labels = labels_by_setting(figures)
        below_chance = [
            f"{shorten(attack_name(figure.attack))} {nonmember_heading(figure.contrast)}"
            f"{_after_comma(labels, figure)}"
            for figure in wrong_sign(figures)
            if figure.contrast in policy.membership.contrasts
            and figure.attack in (policy.membership.attacks or [figure.attack])
        ]
        if below_chance:
            names = join_and(_first_items(below_chance))
            yield check("no attack below chance", [f"{names}: {WRONG_SIGN}"])
    if policy.sources is not None:
        below_chance = [
            f"{shorten(attack_name(figure.success.attack))}: correct less often than guessing"
            for figure in below_guessing(source_attacks(record))
        ]
        if below_chance:
            yield check("no attack below chance", _first_items(below_chance))
    # An attack with status "run" has a note only if it failed in some of the runs.
    failed = [
        row
        for row in record.attacks
        if row.status == "failed" or (row.status == "run" and row.note)
    ]
    faults = [
        f"{shorten(attack_name(row.name))}: {shorten(row.note or 'it failed', 200)}"
        for row in failed
    ]
    yield check("no failed attack", _first_items(faults))


def _after_comma(labels: Mapping[Setting, str], figure: Estimate) -> str:
    """Return a comma and the label of an estimate, if its attack has several estimates."""
    label = labels[setting_of(figure)]
    return f", {label}" if label else ""


def _coverage_faults(
    record: Record, coverage: Coverage, *, allows_sampled_rounds: bool
) -> list[str]:
    faults = []
    if not coverage.is_whole:
        gaps = coverage_gaps(record)
        faults = [without_capital(gaps)]
        faults += [
            f"round {span.first}{f' to {span.last}' if span.last > span.first else ''}: "
            f"{shorten(span.reason, _MAX_REASON)}"
            for span in coverage.missing_rounds[:_MAX_REASONS]
        ]
        uploads = [upload for upload in coverage.missing_uploads if upload.aggregated]
        faults += [
            f"{client_name(upload.client)}, round {upload.round}: "
            f"{shorten(upload.reason, _MAX_REASON)}"
            for upload in uploads[:_MAX_REASONS]
        ]
    if coverage.sampled_rounds and not allows_sampled_rounds:
        faults.append(
            f"only one in {coverage.every} rounds was measured; measure every round, or set "
            "evidence.sampled_rounds"
        )
    return faults


def _why_unsound(record: Record) -> str:
    if record.evaluation != "aligned":
        return (
            f"the study used the published evaluation method ({record.evaluation!r}), which "
            "reports a leak even if there is none; set figures.evaluation to 'aligned'"
        )
    if record.null_members:
        return (
            "the study is a test of the audit itself (figures.null_members): unseen samples were "
            "labelled as members, so its figures do not describe a leak"
        )
    return ""


def _unlearned_models(record: Record, required: EvidencePolicy) -> list[str]:
    """Describe defenses for which the models have a training accuracy near chance.

    If a task has no accuracy, an attack above chance shows that the models learned something.
    """
    rows = record.where(topic="utility")
    with_accuracy = {row.defense for row in rows if row.metric in (TEST_ACCURACY, TRAIN_ACCURACY)}
    leaks = leaking_defenses(record)
    return _first_items(
        [
            f"the task has no accuracy, and no attack is above guessing with "
            f"{shorten(defense_name(name))}, so the models may have learned nothing; if their "
            "loss shows that they learned, set evidence.least_learned to 0"
            for name in sorted({row.defense for row in rows} - with_accuracy - leaks)
        ]
        + [
            f"the training accuracy with {shorten(defense_name(row.defense))} is "
            f"{format_percent(row.train_accuracy)}, close to guessing "
            f"({format_percent(row.guess)}): a model that learned nothing cannot leak, "
            "so low figures show nothing"
            for row in hardly_learned(record, required.least_learned)
        ]
    )


def _missing_controls(
    rows: Sequence[ControlResult], attacks: Sequence[str], seeds: Sequence[int]
) -> list[str]:
    """Describe the attacks for which a control is missing in some seed."""
    completed = {(control.attack, control.seed) for control in rows if control.passed is not None}
    unchecked = [
        attack
        for attack in attacks
        if not all(
            completed & {("", None), ("", seed), (attack, None), (attack, seed)} for seed in seeds
        )
    ]
    if not unchecked:
        return []
    if len(unchecked) == len(attacks):
        # If the control could not be run anywhere for the same reason, report this reason.
        reasons = {control.note for control in rows if control.passed is None and control.note}
        if len(reasons) == 1 and not completed:
            return [f"it could not be run: {shorten(reasons.pop(), 200)}"]
        return [f"this control was not run{' in every training run' if completed else ''}"]
    names = [shorten(attack_name(attack)) for attack in unchecked]
    return [f"missing for {join_and(_first_items(names))}"]


def _first_items(items: list[str]) -> list[str]:
    n_more = len(items) - MAX_NAMED
    return [*items[:MAX_NAMED], f"{n_more} more"] if n_more > 0 else items
