"""A ceiling on the membership risk of a clustered federation's models."""

from collections.abc import Iterator

from fedaudit.gate.limits import Limits, absent, check_limit
from fedaudit.gate.policy import ClustersPolicy
from fedaudit.gate.sample_size import RequiredSamples
from fedaudit.gate.trust import Trust
from fedaudit.gate.verdict import Check, Held, ceiling_check
from fedaudit.report.grid import shortened
from fedaudit.results.clusters import ClusterResult
from fedaudit.results.record import Record

_UNTOLD = RequiredSamples(
    what="samples",
    count=0,
    then=None,
    text="how many more samples would settle it does not follow from the record, which has the "
    "risk and not the counts behind it",
)


def cluster_checks(record: Record, policy: ClustersPolicy, trust: Trust) -> Iterator[Check]:
    """The check of the real risk of every model that clients use at the end of a run.

    Args:
        record: The record.
        policy: Its ceiling.
        trust: What stands against believing a figure.
    """
    found = [
        held_model
        for result in record.clusters
        for held_model in _of_run(result, policy.risk, trust)
    ]
    there = {result.seed for result in record.clusters}
    lacking = [seed for seed in dict.fromkeys(record.seeds) if seed not in there]
    found += [absent(f"seed {seed}", "the record has no models of it") for seed in lacking]
    yield ceiling_check("clusters", "real risk of every model", "risk_share", policy.risk, found)


def _of_run(result: ClusterResult, ceiling: float, trust: Trust) -> Iterator[Held]:
    used = set(result.rounds[-1].choice)
    for number, model in enumerate(result.rounds[-1].models):
        if not model.clients and number not in used:
            continue
        yield check_limit(
            f"model {number} of {shortened(result.algorithm)} in seed {result.seed}",
            Limits(model.risk, model.low, model.high),
            ceiling,
            confidence=trust.confidence,
            doubt=trust.unsound,
            more=lambda: _UNTOLD,
            note="its risk could not be measured",
        )
