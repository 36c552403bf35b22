"""Ceilings on telling members from non-members, held against a record."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import (
    AUC,
    BALANCED_ACCURACY,
    EPSILON,
    FORMAL_EPSILON,
    TPR,
    chance_of,
)
from fedaudit.gate.limits import Limits, absent, check_limit
from fedaudit.gate.outcome import Outcome, bound_against
from fedaudit.gate.policy import MembershipPolicy, asks_further
from fedaudit.gate.settling import more_for, more_for_auc, more_seeds
from fedaudit.gate.trust import Trust
from fedaudit.gate.verdict import Check, Held, ceiling_check
from fedaudit.metrics.intervals import FEWEST_RUNS, too_few_runs
from fedaudit.report.grid import shortened
from fedaudit.report.words import defense_name, metric_name, plural
from fedaudit.results.estimate import Estimate, Interval
from fedaudit.results.older import AT_THRESHOLD
from fedaudit.results.record import Record

CONTRASTS = {
    "unseen": "unseen samples",
    "other_client": "other clients' samples",
    "mixed": "both kinds of non-members together",
}

_METRICS = {
    BALANCED_ACCURACY: "balanced accuracy",
    EPSILON: "lower bound on epsilon",
    FORMAL_EPSILON: "proven epsilon of the whole training",
}


class FigureRun(NamedTuple):
    """Coordinates of a figure: one attack on one client in one run, or over all of them."""

    attack: str
    defense: str
    target: int | None
    seed: int | None

    def __str__(self) -> str:
        where = [
            shortened(self.attack),
            f"on client {self.target}" if self.target is not None else "",
            f"in seed {self.seed}" if self.seed is not None else "over all seeds",
            f"with {defense_name(shortened(self.defense))}" if self.defense != "none" else "",
        ]
        return " ".join(filter(None, where))


MOST_FIGURES = 50_000
"""Of one kind; studies have some hundreds."""


def refuse_too_many(figures: int) -> None:
    """Refuses a record whose attacks, clients and runs would make more figures than any study.

    Raises:
        BadInput: It would.
    """
    if figures > MOST_FIGURES:
        raise BadInput(
            f"the record's attacks, clients and seeds would make {figures:,} figures of each kind, "
            f"more than the {MOST_FIGURES:,} that a gate judges; name some in the policy"
        )


def judged_attacks(record: Record, policy: MembershipPolicy | None) -> list[str]:
    """Attacks on membership that the policy judges: those it names, or all that were run.

    One that the record calls run and has no figure of is among them, and so is missed by name.
    """
    if policy is None:
        return []
    sources = {one.attack for one in record.sources}
    found = [figure.attack for figure in record.findings if figure.attack]
    found += [
        row.name
        for row in record.attacks
        if row.status == "run" and not row.infers_source and row.name not in sources
    ]
    return list(policy.attacks) or list(dict.fromkeys(found))


def _audited(record: Record) -> list[int]:
    """Clients whose figures must be there: those that settings name, and those with figures."""
    found = {figure.target for figure in record.findings if figure.attack}
    for section in ("audit", "recording"):
        said = record.config.get(section)
        named = said.get("targets") if isinstance(said, Mapping) else None
        if isinstance(named, list):
            found |= {one for one in named if type(one) is int and one >= 0}
    return sorted(one for one in found if one is not None)


def membership_checks(record: Record, policy: MembershipPolicy, trust: Trust) -> Iterator[Check]:
    """One check for each ceiling and, where it has any, each contrast.

    Args:
        record: The record.
        policy: Its ceilings.
        trust: What stands against believing a figure.
    """
    ceilings = {AUC: policy.auc} | {f"{TPR}@{rate}": top for rate, top in policy.tpr.items()}
    ceilings |= {BALANCED_ACCURACY: policy.balanced_accuracy}
    given = [(metric, ceiling) for metric, ceiling in ceilings.items() if ceiling is not None]
    runs = _runs(record, policy)
    for (metric, ceiling), contrast in product(given, policy.contrasts):
        found = _figures(record, metric, contrast)
        name = f"{_METRICS.get(metric, metric_name(metric))} against {CONTRASTS[contrast]}"
        figures = [
            _held(run, figure, ceiling, trust, record, policy)
            for run in runs
            for figure in found.get(run, [None])
        ]
        yield ceiling_check("membership", name, metric, ceiling, figures)
    if policy.group_auc is not None:
        figures = list(_groups(record, policy, policy.group_auc, trust))
        yield ceiling_check("membership", "AUC of every group", AUC, policy.group_auc, figures)
    if policy.epsilon is not None:
        bounds = list(_bounds(record, policy, policy.epsilon, trust))
        yield ceiling_check("membership", _METRICS[EPSILON], EPSILON, policy.epsilon, bounds)
    if policy.formal_epsilon is not None:
        proven = list(_proven(record, policy.formal_epsilon))
        name = _METRICS[FORMAL_EPSILON]
        yield ceiling_check("membership", name, FORMAL_EPSILON, policy.formal_epsilon, proven)


def _runs(record: Record, policy: MembershipPolicy, *, each: bool = False) -> list[FigureRun]:
    """Runs whose figures must be there, and all others that are."""
    attacks, figures = judged_attacks(record, policy), [f for f in record.findings if f.attack]
    targets = policy.targets or _audited(record)
    alone = policy.seeds == "these runs" and len(set(record.seeds)) == 1
    single = each or alone or policy.seeds == "each"
    defenses = dict.fromkeys(figure.defense for figure in figures) or {"none": None}
    seeds = list(dict.fromkeys(record.seeds)) if single else [None]
    refuse_too_many(len(attacks) * len(defenses) * len(targets) * len(seeds))
    asked = product(attacks, defenses, targets, seeds)
    wanted = set(attacks)
    there = [
        _run(f)
        for f in figures
        if f.attack in wanted
        and (f.seed is not None) == single
        and (not policy.targets or f.target in policy.targets)
    ]
    return list(dict.fromkeys([*(FigureRun(*one) for one in asked), *there]))


def _run(figure: Estimate) -> FigureRun:
    return FigureRun(figure.attack, figure.defense, figure.target, figure.seed)


def _figures(
    record: Record, metric: str, contrast: str
) -> Mapping[FigureRun, list[Estimate | None]]:
    """By run; where a record has several of one, all of them count."""
    found: dict[FigureRun, list[Estimate | None]] = {}
    for figure in record.findings:
        if figure.metric == metric and figure.contrast == contrast:
            found.setdefault(_run(figure), []).append(figure)
    return found


def _held(
    run: FigureRun,
    figure: Estimate | None,
    ceiling: float,
    trust: Trust,
    record: Record,
    policy: MembershipPolicy,
) -> Held:
    if figure is None:
        seeds = len(set(record.seeds))
        few = asks_further(policy.seeds) and seeds < FEWEST_RUNS
        return absent(str(run), too_few_runs(seeds) if few else "the record has no such one")
    if asks_further(policy.seeds):
        return _further(run, figure, ceiling, trust, record)
    if figure.low is None and figure.high is None and figure.at_threshold is not None:
        return Held(
            what=str(run),
            value=figure.value,
            method=figure.method,
            outcome=Outcome.INCONCLUSIVE,
            reason=f"limits are those {AT_THRESHOLD} and none of the rate; attack the recording "
            "again, or run the study again",
        )
    return check_limit(
        str(run),
        Limits(figure.value, figure.low, figure.high, figure.method),
        ceiling,
        confidence=trust.confidence,
        doubt=trust.doubt(run.attack, run.target, run.seed) or _unsure(figure, ceiling),
        more=partial(more_for, figure, ceiling),
        note=figure.note,
    )


def _further(
    run: FigureRun, figure: Estimate, ceiling: float, trust: Trust, record: Record
) -> Held:
    """The limit for another run, where the record has runs enough."""
    seeds = len(set(record.seeds))
    further = figure.further or Interval(method=too_few_runs(seeds))
    limits = Limits(figure.value, further.low, further.high, further.method)
    return check_limit(
        str(run),
        limits,
        ceiling,
        confidence=trust.confidence,
        doubt=trust.doubt(run.attack, run.target, run.seed) or _unsure(figure, ceiling),
        more=lambda: (
            None if figure.value is None else more_seeds(figure.value, further, seeds, ceiling)
        ),
        note=figure.note,
    )


def _unsure(figure: Estimate, ceiling: float) -> str:
    """A note where the record's own correction leaves open that there is any leak at all."""
    chance = chance_of(figure.metric)
    if figure.significant is not False or chance is None or ceiling < chance:
        return ""
    return "the record's test, corrected over the study, does not find it above guessing"


def _groups(
    record: Record, policy: MembershipPolicy, ceiling: float, trust: Trust
) -> Iterator[Held]:
    attacks = judged_attacks(record, policy)
    groups: dict[str, list[Estimate]] = {}
    for row in record.groups:
        if not policy.targets or row.target in policy.targets:
            groups.setdefault(row.attack, []).append(row)
    for attack in attacks:
        rows = groups.get(attack, [])
        large = [
            row for row in rows if min(row.n_members, row.n_nonmembers) >= policy.smallest_group
        ]
        for row in large:
            yield check_limit(
                _group(row),
                Limits(row.value, row.low, row.high, row.method),
                ceiling,
                confidence=trust.confidence,
                doubt=trust.doubt(attack, row.target, row.seed),
                more=partial(more_for_auc, row, ceiling),
            )
        if not large:
            small = f"; {plural(len(rows), 'group')} of fewer samples" if rows else ""
            yield absent(
                shortened(attack),
                f"the record has no group of {policy.smallest_group} samples a side{small}",
            )
    there = {(row.attack, row.target, row.seed) for row in record.groups}
    for run in _runs(record, policy, each=True):
        if groups.get(run.attack) and (run.attack, run.target, run.seed) not in there:
            yield absent(str(run), "the record has no group of it")


def _group(row: Estimate) -> str:
    kind = "class" if row.by == "class" else "samples of client"
    run = FigureRun(row.attack, row.defense, row.target, row.seed)
    return f"{run}, {kind} {shortened(row.group)}"


def _bounds(
    record: Record, policy: MembershipPolicy, ceiling: float, trust: Trust
) -> Iterator[Held]:
    """Lower bounds fail or say nothing; the error that they share over a study is in them."""
    found = _figures(record, EPSILON, "unseen")
    # Bounds are never averaged, so that every run has its own.
    runs = _runs(record, policy, each=True)
    for run, figure in [(one, figure) for one in runs for figure in found.get(one, [None])]:
        bound = None if figure is None else figure.low
        if figure is None or bound is None:
            yield absent(str(run), figure.note if figure else "the record has no such bound")
            continue
        outcome, reason = bound_against(bound, ceiling), figure.note
        doubt = trust.doubt(run.attack, run.target, run.seed)
        if outcome is Outcome.FAIL and doubt:
            outcome, reason = Outcome.INCONCLUSIVE, f"above the ceiling, but {doubt}"
        elif figure.ceiling is not None and figure.ceiling <= ceiling:
            reason = f"even a perfect attack could not have shown more than {figure.ceiling:.3g}"
        yield Held(
            what=str(run),
            value=figure.value,
            low=bound,
            method=figure.method,
            outcome=outcome,
            reason=reason,
        )


def _proven(record: Record, ceiling: float) -> Iterator[Held]:
    """Proven guarantees, which hold for sure: the one figure of a study that needs no interval."""
    for figure in record.findings:
        if figure.metric != FORMAL_EPSILON:
            continue
        what = defense_name(shortened(figure.defense))
        if figure.value is None:
            yield absent(what, figure.note or "there is no guarantee")
            continue
        yield Held(
            what=what,
            value=figure.value,
            high=figure.value,
            method=figure.method,
            outcome=Outcome.PASS if figure.value <= ceiling else Outcome.FAIL,
            reason=figure.note,
        )
