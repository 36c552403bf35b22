"""Units, clients, controls and caveats of a record, in the words that all outputs share."""

from collections.abc import Iterator, Sequence
from math import exp, log
from statistics import NormalDist
from typing import Literal

from fedaudit.core.metric_names import AUC
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import shorten
from fedaudit.report import evidence
from fedaudit.results import guessing
from fedaudit.results.estimate import NO_DEFENSE, PEOPLE_IGNORED, Estimate
from fedaudit.results.record import ControlResult, Record
from fedaudit.results.runs import CheckedUploads, GuardCoverage, RoundSeries

Unit = Literal["sample", "person", "canary sample"]


def unit_of(record: Record) -> Unit:
    """Return what the members of an audit are."""
    is_canary = wording.study_setting(record, "audit", "draw") == "canaries"
    return "canary sample" if is_canary else record.unit


def units_of(record: Record) -> str:
    """Return what the members of an audit are, in the plural: "people"."""
    return "people" if unit_of(record) == "person" else f"{unit_of(record)}s"


def client_list(clients: Sequence[int]) -> str:
    """Format clients: "clients 0 and 9", "hospital-a", or only their number, as in "12 clients"."""
    if len(clients) > wording.MOST_NAMED:
        return wording.format_count(len(clients), "client")
    if any(isinstance(client, wording.NamedClient) for client in clients):
        return wording.join_and([wording.client_name(client) for client in clients])
    return f"client{'s' * (len(clients) > 1)} {wording.join_and([str(c) for c in clients])}"


def estimates_by_client_group(record: Record) -> dict[str, list[Estimate]]:
    """Return the main estimates of defended and of undefended clients, by group description.

    If only one of the two groups was audited, the only key is "", with all estimates.
    """
    estimates = evidence.main_estimates(record)
    usage = [row for row in record.usage if row.defense != NO_DEFENSE]
    users = {row.client for row in usage if row.defended}
    others = {row.client for row in usage} - users
    targets = sorted({f.target for f in record.findings if f.target is not None})
    groups = {}
    for clients, word in ((users, "defended"), (others, "undefended")):
        if audited_targets := [target for target in targets if target in clients]:
            name = f"{client_list(audited_targets)}, {word}"
            groups[name] = [estimate for estimate in estimates if estimate.target in clients]
    return groups if len(groups) == 2 and all(groups.values()) else {"": estimates}


def is_defended(record: Record) -> bool:
    """Return True if all estimates on membership, sources and clusters are of defended runs."""
    estimates = evidence.main_estimates(record)
    defenses = [estimate.defense for estimate in estimates] + defenses_of_runs(record)
    # A record without such estimates can be on canary clients alone.
    defenses = defenses or [estimate.defense for estimate in record.estimates]
    return bool(defenses) and all(name not in ("", NO_DEFENSE) for name in defenses)


def defenses_of_runs(record: Record) -> list[str]:
    """Return the defense of each source-inference run and each clustered-learning run."""
    return [run.defense for run in record.sources] + [run.defense for run in record.clusters]


def hardly_learned(
    record: Record, least: float = guessing.LEAST_LEARNED
) -> list[guessing.NearGuessing]:
    """Return near-chance training accuracies of runs on which no attack succeeds."""
    leaking = leaking_defenses(record)
    return [row for row in guessing.near_guessing(record, least) if row.defense not in leaking]


def leaking_defenses(record: Record) -> set[str]:
    """Return the defenses (or "none") under which at least one attack is above chance."""
    estimates = [*evidence.main_estimates(record), *record.where(topic="source", against="")]
    above = {estimate.defense for estimate in estimates if guessing.above_chance(estimate)}
    risky = {
        run.defense
        for run in record.clusters
        for model in run.rounds[-1].models
        if model.low is not None and model.low > 0.5
    }
    return above | risky


def are_cluster_risks_doubted(record: Record) -> bool:
    """Return True if no risk of a cluster model is reliable: a control of all attacks failed."""
    return any(not result.attack for result in evidence.outcomes_of(record.controls).failed)


def wrong_sign(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return AUCs whose interval lies below 0.5: the score may have the wrong sign.

    Intervals are widened for the number of AUCs. Otherwise, one of forty 95 % intervals of attacks
    at chance level would lie below 0.5.
    """
    aucs = [f for f in estimates if f.metric == AUC and f.value is not None and f.high is not None]
    return [estimate for estimate in aucs if _widened_upper_limit(estimate, len(aucs)) < 0.5]


def _widened_upper_limit(estimate: Estimate, count: int) -> float:
    value, high = estimate.number, estimate.high if estimate.high is not None else 1.0
    if not 0 < value <= high < 1:
        return high
    # Intervals of AUCs are symmetric on the logit scale.
    widened = NormalDist().inv_cdf(0.025 / count) / NormalDist().inv_cdf(0.025)
    logits = [log(auc / (1 - auc)) for auc in (value, high)]
    # Below a logit of -700 the exponential would overflow; the AUC is 0 to all digits there.
    return 1 / (1 + exp(-max(logits[0] + widened * (logits[1] - logits[0]), -700.0)))


MAX_NAMED_FAILURES = 3  # largest number of failed controls that a line names
WRONG_SIGN = fixed_text("membership.inconclusive.wrong sign")


def coverage_gaps(record: Record) -> str:
    """Return a text on rounds and uploads that were not measured, or "" if all were measured.

    Clients that never took part are not listed, since they sent no upload.
    """
    coverage = record.coverage
    if coverage is None:
        return ""
    gaps = []
    if coverage.n_missing_rounds:
        spans = [str(span) for span in coverage.missing_rounds[: wording.MOST_NAMED]]
        numbers = f" ({', '.join(spans)})" if spans else ""
        gaps.append(f"{wording.format_count(coverage.n_missing_rounds, 'round')}{numbers}")
    if coverage.n_missing_uploads:
        missing = [upload for upload in coverage.missing_uploads if upload.aggregated]
        senders = sorted({upload.client for upload in missing})
        names = f" of {client_list(senders)}" if senders else ""
        gaps.append(f"{wording.format_count(coverage.n_missing_uploads, 'upload')}{names}")
    return f"Not measured: {wording.join_and(gaps)}" * bool(gaps)


def guard_of(record: Record) -> GuardCoverage | None:
    """Return the guard's decisions on which uploads were sent; None without a guard."""
    return record.coverage.guard if record.coverage else None


def withheld_uploads(record: Record) -> int:
    """Return the number of uploads that a guard withheld; 0 without a guard."""
    guard = guard_of(record)
    uploads = guard.uploads if guard else []
    return sum(
        checked_uploads.count
        for checked_uploads in uploads
        if checked_uploads.outcome == "withheld"
    )


def guard_decisions(record: Record) -> str:
    """Return how many uploads a guard sent, filtered and withheld, and in which rounds.

    Returns:
        For example "The guard, whose limit is an AUC of 0.6 (upper confidence limit), sent 2
        uploads (rounds 1–2) and withheld 1 upload (round 3)"; "" for a record without a guard.
    """
    guard = guard_of(record)
    if guard is None:
        return ""
    counts: dict[str, CheckedUploads] = {uploads.outcome: uploads for uploads in guard.uploads}
    parts = []
    for outcome, text in fixed_texts("guard.outcomes").items():
        uploads = counts.get(outcome)
        if uploads is not None:
            count = wording.format_count(uploads.count, "upload")
            unmeasured = guard.n_unmeasured if outcome == "withheld" else 0
            details = wording.join_parts(
                _list_rounds(uploads.rounds),
                fixed_text("guard.unmeasured", count=unmeasured) if unmeasured else "",
                by="; ",
            )
            parts.append(text.format(uploads=count) + f" ({details})" * bool(details))
    if "withheld" not in counts:
        parts.append(fixed_text("guard.none_withheld"))
    limit = fixed_text(f"guard.limit.{guard.decide_by}", limit=f"{guard.limit:g}")
    return f"{limit} {wording.join_and(parts)}"


def _list_rounds(rounds: Sequence[RoundSeries]) -> str:
    """Format rounds, such as "round 3", or "rounds 1–4 and 6"."""
    if not rounds:
        return ""
    are_several = len(rounds) > 1 or rounds[0].first < rounds[0].last
    return f"round{'s' * are_several} {wording.join_some([str(series) for series in rounds])}"


def omissions(record: Record) -> list[str]:
    """Return texts on clients that were deliberately not attacked, and a recorder left open."""
    coverage, texts = record.coverage, []
    if coverage is not None and coverage.unattacked:
        texts.append(f"Not attacked, by choice: {client_list(coverage.unattacked)}")
    if coverage is not None and coverage.is_open:
        texts.append(f"The recorder was not closed: rounds after {coverage.rounds} may have run")
    return texts


def people_caveat(record: Record) -> str:
    """Return a warning if intervals treat samples of one person as independent; else ""."""
    ignored = any(PEOPLE_IGNORED in estimate.method for estimate in record.findings)
    return fixed_text("verdict.people") if ignored else ""


def independence(record: Record) -> str:
    """Return the independence assumption of a record's intervals and tests.

    The text is empty if people are the units, or if each person has a single sample.
    """
    if caveat := people_caveat(record):
        return f"{wording.with_full_stop(caveat)} Tests are wrong more often as well."
    names = [wording.study_setting(record, "data", "options", key) for key in ("person", "subject")]
    if record.unit == "person" or any(names):
        return ""
    hint = " " + fixed_text("verdict.audit_people")
    return fixed_text("verdict.independent") + hint * (not record.watched)


def controls_line(records: Sequence[Record], *, states_kinds: bool = False) -> str:
    """Return the numbers of controls that passed, failed or were not run, in one line.

    Args:
        records: The records. Most controls are run several times, once for each attack or run.
        states_kinds: Whether to state the number of different controls.
    """
    checks = evidence.outcomes_of(control for record in records for control in record.controls)
    total = len(checks.ran) + checks.not_run
    if not total:
        return "No control was run"
    kinds = len({control.control for record in records for control in record.controls})
    runs = f"checks by {wording.format_count(kinds, 'control')}" if states_kinds else "controls"
    line = f"{checks.passed} of {total} {runs} passed"
    line += f", {checks.not_run} without a result" * bool(checks.not_run)
    failed = evidence.unique_items(map(_control_name, checks.failed))
    return f"{line}; failed: {wording.join_some(failed, MAX_NAMED_FAILURES)}" if failed else line


_EFFECTS = (("Some figures cannot be relied on", False), ("Some figures may be too low", True))


def failed_control_notes(record: Record, status: evidence.Status) -> list[str]:
    """Return sentences on failed controls that do not affect the verdict's own estimates."""
    if status in ("void", "control failed"):
        return []
    failed, texts = evidence.outcomes_of(record.controls).failed, []
    by_effect = evidence.group_by(failed, lambda result: result.control in guessing.HIDES_LEAKS)
    for effect, hides in _EFFECTS:
        controls = by_effect.get(hides, [])
        subjects = (_control_subject(c) or shorten(c.control, 40) for c in controls)
        names = wording.join_some(evidence.unique_items(subjects), MAX_NAMED_FAILURES)
        texts += [f"{effect}, because a control failed: {names}"] * bool(names)
    return texts


def _control_name(control: ControlResult) -> str:
    clients = client_list(control.clients) if control.clients else ""
    about = wording.join_parts(_control_subject(control), clients, by="; ")
    return f"{shorten(control.control, 40)}{f' ({about})' * bool(about)}"


def _control_subject(control: ControlResult) -> str:
    client = "" if control.target is None else wording.client_name(control.target)
    return wording.join_parts(client, shorten(control.attack, 60))


def controls_sign(records: Sequence[Record]) -> str:
    """Return "✓" if all controls passed, "✗" if one failed, and "?" otherwise."""
    checks = evidence.outcomes_of(control for record in records for control in record.controls)
    return "✗" if checks.failed else "?" if checks.not_run or not checks.ran else "✓"


def range_headline(figures: Sequence[Estimate]) -> str:
    """Return the headline of a leak whose size is uncertain, or "" if there is no such leak."""
    above = [figure for figure in figures if guessing.above_chance(figure)]
    if evidence.max_size(map(evidence.size_of, above)) not in ("trace", None):
        return ""
    wide = [(figure, between) for figure in above if (between := evidence.size_range(figure))]
    if not wide:
        return ""
    best, (least, most) = max(wide, key=lambda pair: pair[0].number)
    metric, attack = wording.metric_name(best.metric), shorten(best.attack, 60)
    estimate = f"{wording.value_text(best)} ({metric}, {attack})"
    return f"A leak is shown; its size is between {least} and {most}; best estimate {estimate}"


def unseen_release(record: Record) -> list[str]:
    """Return a sentence if attacks ran, but none of an adversary that sees only the final model."""
    views = {estimate.view for estimate in record.findings if estimate.is_of_attack}
    return [fixed_text("answers.caveats.released")] if views and "final" not in views else []


_USE_WEIGHTS = frozenset({"global_model", "update", "next_model", "control_variates"})
"""Observations that contain weights, as in ``needs`` of attacks."""


def uses_only_predictions(record: Record) -> bool:
    """Return True if membership was attacked, and no attack that ran uses weights of a model."""
    ran = [row for row in record.attacks if row.status == "run" and not row.infers_source]
    return bool(ran) and not _USE_WEIGHTS & {need for row in ran for need in row.needs}


def _untested_weights(record: Record) -> Iterator[str]:
    """Yield a sentence if the weights of the model reveal more than what was attacked."""
    if not uses_only_predictions(record):
        return
    has_file = record.coverage is not None and bool(record.coverage.final_models)
    yield fixed_text(f"answers.weights.{'released' if has_file else 'unknown'}")


def untested(record: Record) -> list[str]:
    """Return everything that an audit did not test, in the order of every page and file."""
    games: Sequence[str] = fixed_texts("untested")["games"] if record.kind == "games" else ()
    released = [*unseen_release(record), *_untested_weights(record)]
    texts = [*games, *released, *record.untested, *_unmeasured(record)]
    return [text for text in evidence.unique_items([*texts, *omissions(record)]) if text]


def _unmeasured(record: Record) -> Iterator[str]:
    coverage = record.coverage
    if withheld_uploads(record):
        yield wording.capitalise(fixed_text("guard.not_judged"))
    elif coverage and coverage.rounds - coverage.measured > coverage.n_missing_rounds:
        skipped = f"{coverage.rounds - coverage.measured} of {coverage.rounds} rounds"
        yield f"Uploads in {skipped}, which were not measured"
    yield coverage_gaps(record)
    if coverage and coverage.never_measured:
        yield f"Clients without a measured round: {client_list(coverage.never_measured)}"
