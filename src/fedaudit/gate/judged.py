"""Selection of the estimates that a policy judges, and reasons why others are missing."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import AUC, EPSILON, rate_of
from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import attack_name, client_name, defense_name
from fedaudit.gate.policy import GamesPolicy, MembershipPolicy, Policy, SourcesPolicy
from fedaudit.gate.trust import Doubts
from fedaudit.metrics.epsilon import ConfusionCounts, clopper_pearson_epsilon
from fedaudit.metrics.rate_limits import tpr_upper_limit
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import PointPlayed
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Record

CONTRASTS = {
    "unseen": "unseen samples",
    "other_client": "other clients' samples",
    "mixed": "both kinds of non-members together",
}
MAX_FIGURES = 50_000
"""Maximum number of estimates per metric and kind of non-members. Studies have a few hundred."""
ALPHA = 0.05
"""Family-wise error rate of the lower bounds on epsilon from all judged games."""


class CeilingRule(NamedTuple):
    """A ceiling on a metric for one kind of non-members, and the record that it judges.

    Attributes:
        record: Record that is judged.
        policy: Policy that sets the ceiling.
        doubts: Reasons to doubt estimates above the ceiling.
        metric: Metric of the judged estimates.
        contrast: Kind of non-members.
        ceiling: Highest value that passes.
    """

    record: Record
    policy: Policy
    doubts: Doubts
    metric: str
    contrast: str
    ceiling: float


def unfair_contrasts(record: Record) -> list[str]:
    """Return the contrasts whose members were not chosen at random, if others were.

    In the other contrasts, a random choice (fair draw) decided which samples became members. The
    returned contrasts are not judged, since other differences between clients could look like
    leakage. In recordings of live federations (``watched``), such a contrast is listed even without
    a value, so that its absence is not reported as missing: other clients' samples are compared
    within classes, and there is no value if no two clients share a class.
    """
    figures = [figure for figure in record.findings if figure.is_of_attack]
    fair = {figure.contrast for figure in figures if figure.fair and figure.value is not None}
    present = {figure.contrast for figure in figures if record.watched or figure.value is not None}
    return [name for name in CONTRASTS if fair and name not in fair and name in present]


def is_too_small_for(record: Record, policy: Policy, metric: str, contrast: str) -> bool:
    """Return True if a rate is not judged because every audit in the record is too small."""
    membership, rate = policy.membership, rate_of(metric)
    if membership is None or rate is None or membership.small_audits == "inconclusive":
        return False
    ceiling = membership.tpr.get(f"{rate:g}")
    figures = [
        figure
        for figure in record.findings
        if (figure.metric, figure.contrast) == (metric, contrast)
    ]
    if ceiling is None or not figures:
        return False
    return all(is_rate_undecidable(figure, ceiling) for figure in figures)


def is_rate_undecidable(figure: Estimate, ceiling: float) -> bool:
    """Return True if the upper limit would be above the ceiling even for a useless attack."""
    rate = rate_of(figure.metric)
    if rate is None or (figure.low is not None and figure.low > ceiling):
        return False
    if figure.value is None or not (figure.n_members and figure.n_nonmembers):
        return True
    return _min_upper_limit(rate, figure.n_members, figure.n_nonmembers) > ceiling


@lru_cache(maxsize=4096)
def _min_upper_limit(rate: float, members: int, nonmembers: int) -> float:
    """Compute the upper limit of a rate if no member scores above any non-member."""
    scores = np.concatenate([np.zeros(members), np.ones(nonmembers)])
    return tpr_upper_limit(scores, scores == 0, rate, confidence=0.975)


class FigureRun(NamedTuple):
    """Attack, defense, client and seed of an estimate; None stands for all clients or seeds."""

    attack: str
    defense: str
    target: int | None
    seed: int | None

    def __str__(self) -> str:
        parts = [
            shorten(attack_name(self.attack)),
            f"on {client_name(self.target)}" if self.target is not None else "",
            f"in seed {self.seed}" if self.seed is not None else "over all seeds",
            f"with {defense_name(shorten(self.defense))}" if self.defense != "none" else "",
        ]
        return " ".join(filter(None, parts))


def judged_attacks(record: Record, policy: MembershipPolicy | None) -> list[str]:
    """Return the membership attacks to judge: those that the policy names, or all that were run.

    An attack that ran but has no estimate is included, and is reported as missing.
    """
    if policy is None:
        return []
    source_attacks = {source.attack for source in record.sources}
    names = [figure.attack for figure in record.findings if figure.is_of_attack]
    names += [
        row.name
        for row in record.attacks
        if row.status == "run" and not row.infers_source and row.name not in source_attacks
    ]
    return list(policy.attacks) or list(dict.fromkeys(names))


def judged_sources(record: Record, policy: SourcesPolicy | None) -> list[str]:
    """Return the source attacks to judge; see :func:`judged_attacks`."""
    if policy is None:
        return []
    names = [source.attack for source in record.sources]
    names += [row.name for row in record.attacks if row.status == "run" and row.infers_source]
    return list(policy.attacks) or list(dict.fromkeys(names))


def judged_points(record: Record, policy: GamesPolicy) -> list[PointPlayed]:
    """Return the points (combinations of settings) of a study of games that the policy judges.

    These are all points, or those with the policy's mechanisms.
    """
    names = policy.mechanisms
    return [point for point in record.games if not names or point.mechanism in names]


def empirical_epsilon(point: PointPlayed, n_points: int) -> float:
    """Compute the lower bound on epsilon from a point's counts, with a Bonferroni correction."""
    tpr, tnr = point.tpr, point.tnr
    counts = ConfusionCounts(tpr.hits, tpr.total, tnr.total - tnr.hits, tnr.total)
    return clopper_pearson_epsilon(counts, delta=point.delta, alpha=ALPHA / max(1, n_points)).value


def point_name(point: PointPlayed, record: Record) -> str:
    """Return the label of a point, or the record's name for the point that changes no setting."""
    return shorten(point.label or f"{record.name} (without changes)", 120)


def raise_if_too_many_figures(n_figures: int) -> None:
    """Raise if a record, which may be damaged, has more estimates than any real study."""
    if n_figures > MAX_FIGURES:
        raise BadInput(
            f"with the attacks, clients and seeds of the result file, there are {n_figures:,} "
            f"estimates for each metric and kind of non-members, but the gate judges at most "
            f"{MAX_FIGURES:,}; list fewer attacks or clients in the policy (attacks, targets)"
        )


def _audited_clients(record: Record) -> list[int]:
    """Return clients that must have estimates: those in the settings, and those with estimates."""
    targets = {figure.target for figure in record.findings if figure.is_of_attack}
    for section in ("audit", "recording"):
        table = record.config.get(section)
        names = table.get("targets") if isinstance(table, Mapping) else None
        if isinstance(names, list):
            targets |= {client for client in names if type(client) is int and client >= 0}
    return sorted(client for client in targets if client is not None)


def judged_runs(
    record: Record, policy: MembershipPolicy, *, every_seed: bool = False
) -> list[FigureRun]:
    """Return all combinations of attack, defense, client and seed that the policy judges.

    These are all combinations that must have an estimate, followed by other combinations that have
    one.

    Args:
        record: Record.
        policy: Policy on membership, which states whether single runs or means are judged.
        every_seed: Whether to return single runs even if the policy judges means.
    """
    attacks = judged_attacks(record, policy)
    figures = [figure for figure in record.findings if figure.is_of_attack]
    targets = policy.client_numbers or _audited_clients(record)
    # "these runs" states a conclusion about the record's seeds only, from the mean over them. If
    # there is only one seed, its run is the mean. "further runs" states a conclusion about seeds
    # that were not run. Its interval covers the differences between seeds, so it judges no single
    # run. "each" judges every run separately.
    has_one_run = policy.seeds == "these runs" and len(set(record.seeds)) == 1
    uses_single_runs = every_seed or has_one_run or policy.seeds == "each"
    defenses = dict.fromkeys(figure.defense for figure in figures) or {"none": None}
    seeds = list(dict.fromkeys(record.seeds)) if uses_single_runs else [None]
    raise_if_too_many_figures(len(attacks) * len(defenses) * len(targets) * len(seeds))
    expected = product(attacks, defenses, targets, seeds)
    recorded = [
        run_of(f)
        for f in figures
        if f.attack in set(attacks)
        and (f.seed is not None) == uses_single_runs
        and (not policy.targets or f.target in policy.client_numbers)
    ]
    return list(dict.fromkeys([*(FigureRun(*run) for run in expected), *recorded]))


def run_of(figure: Estimate) -> FigureRun:
    """Return attack, defense, client and seed of an estimate."""
    return FigureRun(figure.attack, figure.defense, figure.target, figure.seed)


def figures_by_run(
    rule: CeilingRule, *, every_seed: bool = False
) -> Iterator[tuple[FigureRun, Estimate | None]]:
    """Yield each judged run with its estimate, or with None if there is no estimate."""
    assert rule.policy.membership is not None
    by_run: dict[FigureRun, list[Estimate | None]] = {}
    for figure in rule.record.findings:
        if figure.metric == rule.metric and figure.contrast == rule.contrast:
            by_run.setdefault(run_of(figure), []).append(figure)
    skips_missing = not rule.policy.membership.judges_each_client
    reason = missing_reasons(rule.record)
    for run in judged_runs(rule.record, rule.policy.membership, every_seed=every_seed):
        if run not in by_run and skips_missing and reason(run):
            continue
        yield from ((run, figure) for figure in by_run.get(run, [None]))


NEVER_MEASURED = "never took part in a measured round"


def partly_run_attacks(record: Record) -> dict[str, str]:
    """Map each attack that was not run on every client to a text that names the clients and why.

    The named clients took part in too few rounds, or with too few other clients.
    """
    return {
        row.name: row.uncovered for row in record.attacks if row.status == "run" and row.uncovered
    }


def never_measured(record: Record) -> list[int]:
    """Return audited clients that took part in no measured round."""
    clients = record.coverage.clients if record.coverage else []
    return [row.client for row in clients if not row.measured]


def clients_without_bound(record: Record, policy: MembershipPolicy | None) -> list[int]:
    """Return clients of a recording for which no lower bound on epsilon could be computed.

    For these clients, membership was decided at random for too few samples. The gate does not
    require a bound for them, since a lower bound can only cause a fail, never a pass.
    """
    if policy is None or policy.judges_each_client or not record.watched:
        return []
    # If members were chosen at random and yet no client has a bound, the bounds are missing by
    # error, so they stay required.
    bounded = {f.target for f in record.findings if f.metric == EPSILON and f.value is not None}
    has_fair_figures = any(
        f.is_of_attack and f.fair and f.value is not None for f in record.findings
    )
    may_lack_bound = bounded or not has_fair_figures
    return [c for c in _audited_clients(record) if c not in bounded and may_lack_bound]


def undecided_pooled_clients(record: Record, policy: MembershipPolicy | None) -> list[int]:
    """Return clients whose AUC is neither shown to be below the ceiling nor shows a leak.

    Only clients that are also part of an estimate over all clients are considered.
    """
    if policy is None or policy.judges_each_client or policy.auc is None:
        return []
    # ``by`` names a subgroup, such as a class, to which an estimate is limited.
    figures = [
        figure
        for figure in record.findings
        if figure.metric == AUC and figure.contrast in policy.contrasts and not figure.by
    ]
    pooled = {
        (figure.attack, figure.defense, figure.seed) for figure in figures if figure.target is None
    }
    of_pooled_clients = [
        figure
        for figure in figures
        if figure.target is not None
        and figure.fair
        and figure.value is not None
        and (figure.attack, figure.defense, figure.seed) in pooled
    ]
    leaking = {figure.target for figure in of_pooled_clients if shows_leak(figure, policy.auc)}
    undecided = {
        figure.target
        for figure in of_pooled_clients
        if figure.target is not None and (figure.high is None or figure.high > policy.auc)
    }
    return sorted(undecided - leaking)


def shows_leak(figure: Estimate, ceiling: float) -> bool:
    """Return True if an estimate is significantly above chance or above the ceiling."""
    return bool(above_chance(figure)) or (figure.low is not None and figure.low > ceiling)


def missing_reasons(record: Record) -> Callable[[FigureRun], str]:
    """Return a function that returns why an estimate is missing; "" if no reason is known."""
    present = {(figure.attack, figure.target) for figure in record.findings}
    never, partly_run = set(never_measured(record)), partly_run_attacks(record)

    def reason(run: FigureRun) -> str:
        if run.target is None or (run.attack, run.target) in present:
            return ""
        return NEVER_MEASURED if run.target in never else partly_run.get(run.attack, "")

    return reason
