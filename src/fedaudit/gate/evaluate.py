"""A record held against a policy."""

from collections.abc import Iterator

from fedaudit.core.errors import BadInput
from fedaudit.gate.clusters import cluster_checks
from fedaudit.gate.games import game_checks
from fedaudit.gate.membership import judged_attacks, membership_checks
from fedaudit.gate.policy import Policy
from fedaudit.gate.reasons import correction, of_games, paragraph
from fedaudit.gate.sample_size import searching
from fedaudit.gate.sources import judged_sources, source_checks
from fedaudit.gate.trust import control_checks, evidence_checks, trust_in
from fedaudit.gate.verdict import Check, Verdict, concluded
from fedaudit.report.reading import cleaned
from fedaudit.results.older import completed
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
        whole = completed(safe)
        checks = list(_of_study(whole, policy))
        limits, unjudged = correction(whole, policy, checks), _unjudged(whole, policy)
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
    trust = trust_in(record, policy.evidence)
    if policy.membership is not None:
        yield from membership_checks(record, policy.membership, trust)
    if policy.sources is not None:
        yield from source_checks(record, policy.sources, trust)
    if policy.clusters is not None:
        yield from cluster_checks(record, policy.clusters, trust)
    members = judged_attacks(record, policy.membership)
    yield from control_checks(record, policy, members, judged_sources(record, policy.sources))
    yield from evidence_checks(record, policy)


def _of_games(record: Record, policy: Policy) -> Iterator[Check]:
    if policy.games is not None:
        yield from game_checks(record, policy.games, policy.evidence.confidence)


def _unjudged(record: Record, policy: Policy) -> list[str]:
    """Questions that the policy did not ask, for a reader of a pass."""
    members = any(figure.attack for figure in record.findings)
    found = []
    if members and policy.membership is None:
        found.append("who was in the training data (no [membership] in the policy)")
    if record.sources and policy.sources is None:
        found.append("whose a sample is (no [sources] in the policy)")
    if record.clusters and policy.clusters is None:
        found.append("the risk of the federation's models (no [clusters] in the policy)")
    return found
