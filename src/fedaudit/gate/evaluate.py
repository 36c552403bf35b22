"""Evaluation of a policy on a record, and explanation of the verdict."""

from collections.abc import Iterator, Sequence

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import (
    attack_name,
    capitalise,
    clean_texts,
    client_name,
    format_count,
    format_interval,
    format_value,
    full_client_names,
    join_and,
    metric_name,
    nonmember_heading,
    with_full_stop,
)
from fedaudit.gate.baseline import baseline_checks, raise_if_incomparable
from fedaudit.gate.ceilings import CEILINGS, ceiling_checks
from fedaudit.gate.judged import (
    NEVER_MEASURED,
    clients_without_bound,
    empirical_epsilon,
    is_too_small_for,
    judged_attacks,
    judged_points,
    judged_sources,
    never_measured,
    partly_run_attacks,
    point_name,
    undecided_pooled_clients,
    unfair_contrasts,
)
from fedaudit.gate.outcome import Outcome, worst_outcome
from fedaudit.gate.policy import Policy, example_with_settings_of, with_client_numbers
from fedaudit.gate.sample_size import limited_sample_size_searches
from fedaudit.gate.trust import POSITIVE_CONTROL, control_checks, doubts_about, evidence_checks
from fedaudit.gate.verdict import Check, FigureCheck, Verdict, overall_outcome, requirement_check
from fedaudit.report.deciding.caveats import (
    client_list,
    guard_decisions,
    guard_of,
    uses_only_predictions,
    withheld_uploads,
)
from fedaudit.results.games import PointPlayed
from fedaudit.results.guessing import alpha_of
from fedaudit.results.record import Record


def evaluate_policy(record: Record, policy: Policy, baseline: Record | None = None) -> Verdict:
    """Evaluate a policy on a record.

    Args:
        record: Record of this release.
        policy: Policy.
        baseline: Record of the last release, to compare with; see
            :class:`fedaudit.gate.policy.BaselinePolicy`.

    Raises:
        BadInput: The policy has no ceiling for records of this kind, or names a client that the
            record does not have. Or the baseline cannot be compared with the record.
    """
    policy_hash, is_games = policy.digest(), record.kind == "games"
    example = example_with_settings_of(policy)
    if baseline is None or policy.baseline is None:
        _raise_if_without_ceiling(policy, is_games=is_games)
    policy = with_client_numbers(policy, full_client_names(record))
    safe_record = clean_texts(record)
    with limited_sample_size_searches():
        checks = list(
            _game_checks(safe_record, policy) if is_games else _study_checks(safe_record, policy)
        )
    baseline_outcome = None
    if baseline is not None:
        raise_if_incomparable(record, baseline)
        compared = list(baseline_checks(safe_record, clean_texts(baseline), policy))
        baseline_outcome = worst_outcome(check.outcome for check in compared)
        checks += compared
    is_compared = is_games and baseline is not None
    limits = (
        _GAME_LIMITS + _BASELINE_LIMITS * is_compared
        if is_games
        else _correction(safe_record, policy, checks)
    )
    outcome = overall_outcome(checks)
    return Verdict(
        record=safe_record.name,
        kind=safe_record.kind,
        content_hash=safe_record.content_hash,
        model=safe_record.coverage.final_model if safe_record.coverage else "",
        models=safe_record.coverage.several_final_models if safe_record.coverage else {},
        base_model=safe_record.coverage.base_model if safe_record.coverage else "",
        baseline=baseline.content_hash if baseline is not None else "",
        baseline_record=clean_texts(baseline).name if baseline is not None else "",
        baseline_outcome=baseline_outcome,
        policy=policy.name,
        policy_hash=policy_hash,
        policy_owner=policy.owner,
        policy_example=example,
        outcome=outcome,
        reason=_explanation(safe_record, policy.name, outcome, checks),
        limits=limits,
        checks=checks,
        unjudged=[
            *([] if is_games else _unjudged(safe_record, policy)),
            *([_NO_BASELINE] if baseline is None and policy.baseline is not None else []),
        ],
        inapplicable=_inapplicable(policy, is_games=is_games),
    )


def verdict_without_uploads(name: str, policy: Policy, reason: str) -> Verdict:
    """Return the verdict on a guard that sent no upload and therefore has no record.

    The verdict is inconclusive, since there is no estimate to compare with a ceiling.

    Args:
        name: Name of the guard's folder.
        policy: Policy.
        reason: Sentence that states that nothing was sent.

    Raises:
        BadInput: The policy has no ceiling for the record of a guard.
    """
    _raise_if_without_ceiling(policy, is_games=False)
    check = requirement_check(
        "evidence", "at least one upload that was sent", [reason], Outcome.INCONCLUSIVE
    )
    outcome = overall_outcome([check])
    return Verdict(
        record=name,
        kind="study",
        content_hash="",
        policy=policy.name,
        policy_hash=policy.digest(),
        policy_owner=policy.owner,
        policy_example=example_with_settings_of(policy),
        outcome=outcome,
        reason=f"{_subject(name, policy.name, outcome)} {with_full_stop(capitalise(reason))}",
        limits="",
        checks=[check],
        inapplicable=_inapplicable(policy, is_games=False),
    )


def _raise_if_without_ceiling(policy: Policy, *, is_games: bool) -> None:
    table = policy.games if is_games else (policy.membership or policy.sources or policy.clusters)
    if table is None:
        kind = "games" if is_games else "a study"
        tables = "[games]" if is_games else "[membership], [sources] or [clusters]"
        raise BadInput(
            f"the policy {policy.name!r} has no ceiling for {kind}; add a table {tables} to it "
            "(`fedaudit gate --print-policy` prints an example)"
        )


def _study_checks(record: Record, policy: Policy) -> Iterator[Check]:
    yield from ceiling_checks(record, policy, doubts_about(record, policy.evidence))
    members = judged_attacks(record, policy.membership)
    yield from control_checks(record, policy, members, judged_sources(record, policy.sources))
    yield from evidence_checks(record, policy)


def _game_checks(record: Record, policy: Policy) -> Iterator[Check]:
    assert policy.games is not None
    if policy.games.mechanisms:
        played = {point.mechanism for point in record.points}
        missing = [name for name in policy.games.mechanisms if name not in played]
        faults = [f"no game against {shorten(name)}" for name in missing]
        yield requirement_check("games", "games for every mechanism", faults, Outcome.INCONCLUSIVE)
    yield from ceiling_checks(record, policy, doubts_about(record, policy.evidence))
    if policy.games.contradicted:
        yield from _contradictions(record, judged_points(record, policy.games))


def _contradictions(record: Record, points: Sequence[PointPlayed]) -> Iterator[Check]:
    claims = [(point, claim) for point in points if (claim := point.claimed_epsilon) is not None]
    refuted, uncorrected = [], []
    for point, claim in claims:
        name = point_name(point, record)
        if empirical_epsilon(point, len(claims)) > claim:
            refuted.append(f"{name} claims {claim:g}, and the games refute it")
        elif point.refuted:
            uncorrected.append(
                f"the claim of {name} is refuted by a single test, but not after the correction "
                "for several tests"
            )
    if claims:
        outcome_of_fault = Outcome.INCONCLUSIVE if uncorrected and not refuted else Outcome.FAIL
        faults = refuted or uncorrected
        yield requirement_check(
            "games", "claimed epsilons not contradicted", faults, outcome_of_fault
        )


def _missing_figures(record: Record, policy: Policy) -> Iterator[str]:
    """Describe clients and attacks that have no separate estimates, with the reason."""
    membership = policy.membership
    judges_each_client = membership is not None and membership.judges_each_client
    if (unmeasured := never_measured(record)) and not judges_each_client:
        yield f"{join_and([client_name(client) for client in unmeasured])}: {NEVER_MEASURED}"
    if undecided := undecided_pooled_clients(record, membership):
        clients = join_and([client_name(client) for client in undecided])
        yield (
            f"{clients} individually: too few audited samples, so they are judged together with "
            "the others"
        )
    attacks: dict[str, list[str]] = {}
    judged = set(judged_attacks(record, membership))
    for name, reason in partly_run_attacks(record).items():
        if name in judged:
            attacks.setdefault(reason, []).append(shorten(attack_name(name)))
    for reason, names in attacks.items():
        yield f"{join_and(names)} on some clients: {reason}"


def _inapplicable(policy: Policy, *, is_games: bool) -> list[str]:
    """List the ceilings of a policy that are for records of another kind."""
    reason = "this record is of security games" if is_games else "this record has no security games"
    values = [
        (ceiling, getattr(getattr(policy, ceiling.section), ceiling.setting, None))
        for ceiling in CEILINGS
        if (ceiling.section == "games") != is_games
    ]
    return [
        f"{ceiling.setting} in [{ceiling.section}]: {reason}"
        for ceiling, value in values
        if value not in (None, {})
    ]


def _unjudged(record: Record, policy: Policy) -> list[str]:
    """List results that the policy does not judge."""
    has_membership = any(figure.is_of_attack for figure in record.findings)
    questions = []
    if policy.membership is not None:
        questions += [
            f"{nonmember_heading(contrast)}: these non-members were not chosen at random, so "
            "differences between clients could look like leakage"
            for contrast in unfair_contrasts(record)
            if contrast in policy.membership.contrasts
        ]
        questions += [
            f"{metric_name(f'tpr@{rate}')} {nonmember_heading(contrast)}: more audited samples are "
            "needed"
            for rate in policy.membership.tpr
            for contrast in policy.membership.contrasts
            if contrast not in unfair_contrasts(record)
            and is_too_small_for(record, policy, f"tpr@{rate}", contrast)
        ]
        questions += _missing_figures(record, policy)
        metrics = {figure.metric for figure in record.findings if figure.is_of_attack}
        if AUC in metrics and policy.membership.auc is None:
            questions.append("AUC (no auc in [membership])")
        if any(map(rate_of, metrics)) and not policy.membership.tpr:
            questions.append("TPR at low FPR (no tpr in [membership])")
        unbounded = clients_without_bound(record, policy.membership)
        if policy.membership.epsilon is not None and unbounded:
            questions.append(
                f"a lower bound on epsilon for {client_list(unbounded)}: too few members and "
                "non-members that were chosen at random"
            )
    if withheld_uploads(record):
        questions.append(fixed_text("guard.not_judged"))
    if uses_only_predictions(record):
        questions.append(fixed_text("answers.weights.not_judged"))
    if record.watched and POSITIVE_CONTROL in policy.controls.required:
        reason = "this control is only possible in a simulation"
        if guard_of(record):
            reason += "; at a client with a guard, run fedaudit check-guard before a job"
        questions.append(f"whether the attacks detect a planted leak: {reason}")
    if has_membership and policy.membership is None:
        questions.append("who was in the training data (the policy has no rule: no [membership])")
    if record.sources and policy.sources is None:
        questions.append("which client a sample belongs to (the policy has no rule: no [sources])")
    if record.clusters and policy.clusters is None:
        questions.append(
            "the risk of the federation's models (the policy has no rule: no [clusters])"
        )
    return questions


_NO_BASELINE = "whether the leak is larger than in the last release: no baseline was given"
MAX_EXPLAINED = 3
"""Number of checks that the explanation of a verdict describes for each outcome."""
_GAME_LIMITS = (
    "The confidence limits of each success rate have a level of 95% and are not corrected for the "
    "number of settings that were played. Every setting must pass. Lower bounds on epsilon are "
    "recomputed from the counts in the result file; they hold jointly for all judged settings with "
    "an error probability of 5%."
)
_NOT_WORSE = "No figure is significantly higher than in the baseline."
_BASELINE_LIMITS = (
    " Increases since the baseline are tested on one side, with an error probability of 5% for all "
    "of them together (Holm). The two audits are treated as independent."
)
_NOT_REFUTED = (
    "No lower bound on epsilon exceeds its ceiling. Such bounds can show that a privacy budget is "
    "exceeded, but never that it is kept."
)


def _explanation(record: Record, policy: str, outcome: Outcome, checks: Sequence[Check]) -> str:
    """Explain the verdict in one paragraph."""
    ceilings = [c for c in checks if c.ceiling is not None and c.section != "baseline"]
    compared = [check for check in checks if check.section == "baseline"]
    parts = [_subject(record.name, policy, outcome)]
    if decisions := guard_decisions(record):
        parts.append(f"{decisions}; the gate judges the uploads that were sent.")
    if outcome is Outcome.PASS:
        parts += _pass_summary(ceilings)
        parts += [_NOT_WORSE] * bool(compared)
    else:
        parts += _explained(checks, Outcome.FAIL, "Failed")
        parts += _explained(checks, Outcome.INCONCLUSIVE, "Not decided")
        decided = any(check.outcome in (Outcome.PASS, Outcome.FAIL) for check in ceilings)
        parts += (
            []
            if decided or not ceilings
            else ["No confidence interval is entirely above or below its ceiling."]
        )
    if any(check.outcome is Outcome.NOT_REFUTED for check in checks):
        parts.append(_NOT_REFUTED)
    return " ".join(parts)


def _subject(record: str, policy: str, outcome: Outcome) -> str:
    names = f"“{shorten(record, 80)}” under the policy “{shorten(policy, 80)}”"
    return f"{outcome.upper()}: {names}."


def figure_text(result: FigureCheck, metric: str) -> str:
    """Format an estimate with its confidence limits, such as "0.612 (0.58–0.64)"."""
    limits = format_interval(result.low, result.high, metric)
    value = format_value(result.value, metric) if result.value is not None else "no figure"
    return f"{value} ({limits})" if limits and result.low != result.high else value


def _correction(record: Record, policy: Policy, checks: Sequence[Check]) -> str:
    """Describe the confidence limits of a study's estimates, and how they are corrected."""
    figures = sum(check.figures for check in checks if check.section != "baseline")
    confidence = f"{100 * policy.evidence.confidence:.6g}%"
    text = (
        f"Each figure has confidence limits at a level of {confidence} or more, which are not "
        f"corrected for the number of figures ({figures:,}). A pass needs no correction: every "
        "figure must pass, so the probability of a wrong pass is at most the error probability of "
        "one interval. With many figures, it is more likely that one of them fails by chance."
    )
    if judged_attacks(record, policy.membership) or policy.sources is not None:
        text += (
            " A figure above its ceiling fails only if it is also significantly better than "
            "guessing, after Holm's correction for all tests of the study "
            f"({100 * alpha_of(record):g}%)."
        )
    if policy.membership is not None and policy.membership.epsilon is not None:
        text += " The lower bounds on epsilon hold jointly for all attacks, clients and seeds."
    if any(check.section == "baseline" for check in checks):
        text += _BASELINE_LIMITS
    return text


def _pass_summary(ceilings: Sequence[Check]) -> list[str]:
    passed = [check for check in ceilings if check.outcome is Outcome.PASS]
    if not passed:
        return []
    figures = sum(check.figures for check in passed)
    nearest = max(passed, key=_ratio_to_ceiling)
    return [
        f"No upper confidence limit of {format_count(figures, 'figure')} exceeds its ceiling "
        f"({format_count(len(passed), 'ceiling')}), and all other requirements of the policy are "
        "met. Closest to its ceiling: "
        f"{_worst(nearest)}, where {format_value(nearest.ceiling, nearest.metric)} is allowed."
    ]


def _ratio_to_ceiling(check: Check) -> float:
    high = check.worst.high if check.worst and check.worst.high is not None else 0.0
    return high / check.ceiling if check.ceiling else float(high > 0)


def _explained(checks: Sequence[Check], outcome: Outcome, title: str) -> list[str]:
    matching = [check for check in checks if check.outcome is outcome]
    if not matching:
        return []
    n_more = len(matching) - MAX_EXPLAINED
    return [
        f"{title} ({len(matching)} of {format_count(len(checks), 'check')}).",
        *(with_full_stop(capitalise(_explain_check(check))) for check in matching[:MAX_EXPLAINED]),
        *(
            [f"And {format_count(n_more, 'more check')}, listed in the table."]
            if n_more > 0
            else []
        ),
    ]


def _explain_check(check: Check) -> str:
    """Explain a check: its worst estimate, the number of others, and what would decide it."""
    worst = check.worst
    if worst is None or check.ceiling is None:
        return f"{check.name}: {check.reason}"
    number = check.outcomes.get(str(check.outcome), 0)
    counts = f" ({number} of {check.figures} figures {check.outcome})" if check.figures > 1 else ""
    figure = (
        f"{_worst(check)}, where {format_value(check.ceiling, check.metric)} is allowed{counts}"
    )
    # check.needs is about all estimates, so it replaces the samples for the worst estimate.
    more = worst.more.text if worst.more and not (check.needs and worst.more.count) else ""
    return "; ".join(filter(None, [figure, check.reason, more, check.needs]))


def _worst(check: Check) -> str:
    if check.worst is None:
        return check.name
    return f"{check.name}: {figure_text(check.worst, check.metric)} for {check.worst.what}"
