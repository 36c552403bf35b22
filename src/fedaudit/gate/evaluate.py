"""A record held against a policy."""

from collections.abc import Iterator, Sequence

from fedaudit.core.errors import BadInput
from fedaudit.gate.ceilings import (
    NEVER_MEASURED,
    beyond_size,
    ceiling_checks,
    clients_without_bound,
    judged_attacks,
    judged_points,
    judged_sources,
    never_measured,
    point_name,
    proven_epsilon,
    too_few_rounds,
    too_small_alone,
    unfair_contrasts,
)
from fedaudit.gate.outcome import Outcome
from fedaudit.gate.policy import Policy
from fedaudit.gate.reasons import correction, of_games, paragraph
from fedaudit.gate.sample_size import searching
from fedaudit.gate.trust import POSITIVE, control_checks, evidence_checks, trust_in
from fedaudit.gate.verdict import Check, Verdict, concluded, demand
from fedaudit.report.grid import shortened
from fedaudit.report.verdict import clients_named
from fedaudit.report.words import against, cleaned, client_name, listed, metric_name
from fedaudit.results.games import PointPlayed
from fedaudit.results.record import Record


def evaluate_policy(record: Record, policy: Policy) -> Verdict:
    """The verdict of a policy on a record; the same for the same two, whenever it is asked.

    Args:
        record: Of a study, or of games.
        policy: With ceilings for what the record is about.

    Raises:
        BadInput: The policy says nothing of records of this kind.
    """
    games = record.kind == "games"
    asked = policy.games if games else (policy.membership or policy.sources or policy.clusters)
    if asked is None:
        kind = "games" if games else "a study"
        wanted = "[games]" if games else "[membership], [sources] or [clusters]"
        raise BadInput(
            f"the policy {policy.name!r} has no ceiling for a record of {kind}; give it {wanted} "
            "(`fedaudit gate --print-policy` prints one)"
        )
    with searching():
        return _evaluated(record, policy)


def _evaluated(record: Record, policy: Policy) -> Verdict:
    safe = cleaned(record)
    if safe.kind == "games":
        checks, limits = list(_of_games(safe, policy)), of_games()
        unjudged: list[str] = []
    else:
        checks = list(_of_study(safe, policy))
        limits, unjudged = correction(safe, policy, checks), _unjudged(safe, policy)
    outcome = concluded(checks)
    return Verdict(
        record=safe.name,
        kind=safe.kind,
        content_hash=safe.content_hash,
        policy=policy.name,
        policy_hash=policy.digest(),
        outcome=outcome,
        reason=paragraph(safe.name, policy.name, outcome, checks),
        limits=limits,
        checks=checks,
        unjudged=unjudged,
    )


def _of_study(record: Record, policy: Policy) -> Iterator[Check]:
    yield from ceiling_checks(record, policy, trust_in(record, policy.evidence))
    members = judged_attacks(record, policy.membership)
    yield from control_checks(record, policy, members, judged_sources(record, policy.sources))
    yield from evidence_checks(record, policy)


def _of_games(record: Record, policy: Policy) -> Iterator[Check]:
    assert policy.games is not None
    if policy.games.mechanisms:
        played = {point.mechanism for point in record.points}
        missing = [name for name in policy.games.mechanisms if name not in played]
        faults = [f"no game against {shortened(name)}" for name in missing]
        yield demand("games", "every mechanism played", faults, Outcome.INCONCLUSIVE)
    yield from ceiling_checks(record, policy, trust_in(record, policy.evidence))
    if policy.games.contradicted:
        yield from _contradictions(record, judged_points(record, policy.games))


def _contradictions(record: Record, points: Sequence[PointPlayed]) -> Iterator[Check]:
    """The demand that no success refutes the epsilon that its mechanism claims."""
    claims = [(point, claim) for point in points if (claim := point.claimed_epsilon) is not None]
    faults, unsure = [], []
    for point, claim in claims:
        if proven_epsilon(point, len(claims)) > claim:
            name = point_name(point, record)
            faults.append(f"{name} is named {claim:g}, and the games refute it")
        elif point.refuted:
            name = point_name(point, record)
            unsure.append(f"{name} by its own test, not by one that is corrected")
    if claims:
        certain = faults or not unsure
        otherwise = Outcome.FAIL if certain else Outcome.INCONCLUSIVE
        found = faults if certain else unsure
        yield demand("games", "claimed epsilons not contradicted", found, otherwise)


def _set_aside(record: Record, policy: Policy) -> Iterator[str]:
    """Clients without figures, and attacks that could not be run on some, with the reason."""
    asked = policy.membership
    is_each = asked is not None and (asked.clients == "each" or bool(asked.targets))
    if (absent := never_measured(record)) and not is_each:
        yield f"{listed([client_name(one) for one in absent])}: {NEVER_MEASURED}"
    if small := too_small_alone(record, asked):
        yield (
            f"{listed([client_name(one) for one in small])} alone: too few audited samples, and "
            "therefore judged together with the others"
        )
    attacks: dict[str, list[str]] = {}
    judged = set(judged_attacks(record, policy.membership))
    for name, reason in too_few_rounds(record).items():
        if name in judged:
            attacks.setdefault(reason, []).append(shortened(name))
    for reason, names in attacks.items():
        yield f"{listed(names)} on some clients: {reason}"


def _unjudged(record: Record, policy: Policy) -> list[str]:
    """Questions that the policy did not ask, for a reader of a pass."""
    members = any(figure.attack for figure in record.findings)
    found = []
    if policy.membership is not None:
        found += [
            f"{against(contrast)}: no fair draw decided between them and members, so that "
            "differences between clients would pass for leakage"
            for contrast in unfair_contrasts(record)
            if contrast in policy.membership.contrasts
        ]
        found += [
            f"{metric_name(f'tpr@{rate}')} {against(contrast)}: it takes more audited samples"
            for rate in policy.membership.tpr
            for contrast in policy.membership.contrasts
            if contrast not in unfair_contrasts(record)
            and beyond_size(record, policy, f"tpr@{rate}", contrast)
        ]
        found += _set_aside(record, policy)
        unbounded = clients_without_bound(record, policy.membership)
        if policy.membership.epsilon is not None and unbounded:
            found.append(
                f"a lower bound on epsilon for {clients_named(unbounded)}: it takes more coin "
                "tosses between members and non-members than the audit has"
            )
    if record.watched and POSITIVE in policy.controls.required:
        found.append(
            "whether the attacks find a planted leak: a recording has no model trained for it"
        )
    if members and policy.membership is None:
        found.append("who was in the training data (no [membership] in the policy)")
    if record.sources and policy.sources is None:
        found.append("whose a sample is (no [sources] in the policy)")
    if record.clusters and policy.clusters is None:
        found.append("the risk of the federation's models (no [clusters] in the policy)")
    return found
