"""Decisions on membership: size of the leak, and clients that sentences name."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.formatting import wording
from fedaudit.report import evidence
from fedaudit.report.deciding.caveats import client_list, coverage_gaps, wrong_sign
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance, exceeds_by_test_only, without_failed_controls
from fedaudit.results.record import Record


def member_status(record: Record, estimates: list[Estimate]) -> evidence.Status:
    """Return the verdict on membership from estimates."""
    above = [estimate for estimate in estimates if above_chance(estimate)]
    if above:
        return evidence.LEAKS[evidence.max_size(map(evidence.size_of, above)) or "trace"]
    if wrong_sign(estimates) or coverage_gaps(record):
        return "inconclusive"
    # Clients with too few samples for a separate verdict are evaluated together.
    evaluated = evidence.pooled_estimates(estimates) or estimates
    return "no leak shown" if excludes_clear_leak(record, evaluated) else "inconclusive"


def excludes_clear_leak(record: Record, estimates: list[Estimate]) -> bool:
    """Return True if the upper limits of all AUCs and TPRs exclude a leak above "weak".

    Every contrast must have an AUC and a TPR at a low FPR, since a leak of only a few samples is
    visible in the TPR but not in the AUC.
    """
    if not estimates or any(exceeds_by_test_only(estimate) for estimate in estimates):
        return False
    for same in evidence.by_contrast(estimates).values():
        metrics = {estimate.metric for estimate in same if estimate.value is not None}
        if AUC not in metrics or not any(map(rate_of, metrics)):
            return False
    of_single_seeds = (estimate for estimate in record.findings if estimate.seed is not None)
    runs = evidence.group_by(of_single_seeds, _subject)
    highs = [(upper_limit_over_runs(f, runs), f.metric) for f in estimates if f.value is not None]
    return all(
        high is not None and evidence.size_reached(high, metric) not in evidence.DOUBTFUL
        for high, metric in highs
    )


def upper_limit_over_runs(
    estimate: Estimate, runs: Mapping[Hashable, list[Estimate]]
) -> float | None:
    """Return an estimate's upper limit; for a mean without a limit, the largest one of its runs."""
    if estimate.high is not None or estimate.seed is not None:
        return estimate.high
    limits = [run.high for run in runs.get(_subject(estimate), [])]
    known_limits = [limit for limit in limits if limit is not None]
    return max(known_limits) if known_limits and len(known_limits) == len(limits) else None


def _subject(estimate: Estimate) -> Hashable:
    """Return the key that an estimate shares with the same estimate of other runs."""
    setting = evidence.setting_of(estimate)._replace(seed=None)
    return setting, estimate.attack, estimate.contrast, estimate.metric


def audited_clients(estimates: Iterable[Estimate]) -> list[int]:
    """Return the clients that estimates are about, by number."""
    return sorted({estimate.target for estimate in estimates if estimate.target is not None})


def are_several(estimates: Sequence[Estimate]) -> bool:
    """Return True if estimates have several targets; the pooled clients count as one target."""
    return len({estimate.target for estimate in estimates}) > 1


def client_label(estimate: Estimate, estimates: Sequence[Estimate]) -> str:
    """Return a client's name, or the number of clients that a pooled estimate covers."""
    if estimate.target is not None:
        return wording.client_name(estimate.target)
    every, covered = audited_clients(estimates), _pooled_clients(estimates, estimate.attack)
    part = f"{covered} of {len(every)} clients pooled"
    return "pooled clients" if covered in (0, len(every)) else part


class Limit(NamedTuple):
    """An upper confidence limit, and the name of its client or clients."""

    value: float
    name: str


def limits_to_print(estimates: Sequence[Estimate], metric: str) -> list[Limit]:
    """Return the upper limit of pooled clients, then the largest one of single clients."""
    with_limit = [f for f in estimates if f.metric == metric and f.high is not None]
    pooled = [estimate for estimate in with_limit if estimate.target is None]
    of_single_clients = [estimate for estimate in with_limit if estimate.target is not None]
    largest = [max(part, key=evidence.upper_limit) for part in (pooled, of_single_clients) if part]
    return [Limit(evidence.upper_limit(best), client_label(best, estimates)) for best in largest]


def highest_auc(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the AUC to print if none is above chance, preferably the AUC of pooled clients.

    The largest AUC of many clients with few samples each is large by chance.
    """
    over_all = evidence.largest_estimate(evidence.pooled_estimates(estimates), AUC)
    return over_all or evidence.largest_estimate(estimates, AUC)


def scope_sentence(record: Record, estimates: Sequence[Estimate]) -> str:
    """Return the sentence that names the clients of a headline's estimates; "" for one client."""
    clients = audited_clients(estimates)
    if len(clients) < 2:
        return ""
    every = evidence.pooled_estimates(estimates)
    pooled = without_failed_controls(every)
    of_single_clients = [estimate for estimate in estimates if estimate.target is not None]
    above = audited_clients(filter(above_chance, of_single_clients))
    if not pooled:
        if not above:
            return ""
        count = f"{len(above)} of {len(clients)} audited clients"
        withheld = "; figures of all clients together are not relied on" * bool(every)
        return f"The leak is shown for {client_list(above)} ({count}){withheld}"
    by_all = any(map(above_chance, pooled))
    attack = (highest_auc(pooled) or pooled[0]).attack
    together = f"{pooled_over(record)(attack)}, each compared with its own held-out samples"
    if above:
        start = f"shown {together}, and" if by_all else f"not shown {together}, but"
        return f"The leak is {start} for {client_list(above)} separately"
    outcome = "The leak is shown" if by_all else "The evaluation is"
    by_client = evidence.group_by(of_single_clients, lambda estimate: estimate.target)
    small = [client for client in clients if not excludes_clear_leak(record, by_client[client])]
    if not small:
        return f"{outcome} {together}"
    names = "single clients" if small == clients else client_list(small)
    verb = "have" if len(small) > 1 else "has"
    return f"{outcome} {together}; {names} {verb} too few samples for a separate verdict"


def pooled_over(record: Record) -> Callable[[str], str]:
    """Return a function that describes the clients of a pooled estimate: "over 2 of 3 ...".

    Pooled estimates omit clients that took part in too few measured rounds.
    """
    estimates = [estimate for estimate in record.findings if estimate.is_of_attack]
    by_attack = evidence.group_by(
        (f for f in estimates if f.fair), lambda estimate: estimate.attack
    )
    covered_by = {attack: _pooled_clients(same, attack) for attack, same in by_attack.items()}
    audited_client_ids = (
        {row.client for row in record.coverage.clients} if record.coverage else set()
    )
    total = len(audited_client_ids.union(audited_clients(estimates)))

    def over(attack: str) -> str:
        covered = covered_by.get(attack, 0)
        part = "all" if covered in (0, total) else f"{covered} of"
        return f"over {part} {total} audited clients"

    return over


def _pooled_clients(estimates: Iterable[Estimate], attack: str) -> int:
    same = (estimate for estimate in estimates if estimate.attack == attack)
    return len(audited_clients(f for f in same if f.n_members and f.n_nonmembers))
