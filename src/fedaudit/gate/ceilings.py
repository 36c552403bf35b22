"""Ceilings of a policy: the estimates that each ceiling limits, and how they are compared.

To allow policies to limit another metric, add a row to :data:`CEILINGS`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from fedaudit.core.metric_names import (
    AUC,
    BALANCED_ACCURACY,
    CLIENT_EPSILON,
    CLIENT_EPSILON_IF_GAUSSIAN,
    EPSILON,
    FORMAL_EPSILON,
    SECURE_SUM_EPSILON,
    SECURE_SUM_EPSILON_IF_GAUSSIAN,
    TPR,
    chance_of,
)
from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import attack_name, defense_name, format_count, metric_name
from fedaudit.gate.judged import (
    ALPHA,
    CONTRASTS,
    CeilingRule,
    FigureRun,
    clients_without_bound,
    empirical_epsilon,
    figures_by_run,
    is_rate_undecidable,
    is_too_small_for,
    judged_attacks,
    judged_points,
    judged_runs,
    judged_sources,
    missing_reasons,
    point_name,
    raise_if_too_many_figures,
    run_of,
    shows_leak,
    unfair_contrasts,
)
from fedaudit.gate.policy import Policy, judges_all_seeds
from fedaudit.gate.sample_size import (
    RequiredSamples,
    games_for_point,
    more_seeds,
    samples_for_auc,
    samples_for_figure,
    samples_for_success,
)
from fedaudit.gate.trust import Doubts
from fedaudit.gate.verdict import (
    EXACT,
    MISSING_FIGURE,
    Check,
    ComparedFigure,
    FigureCheck,
    Section,
    ceiling_check,
    compare_exact,
    compare_exact_or_fail,
    compare_interval,
    compare_lower_bound,
)
from fedaudit.metrics.intervals import FEWEST_RUNS, EstimateWithLimits, too_few_runs
from fedaudit.report.deciding.membership import pooled_over
from fedaudit.results.estimate import FIXED_THRESHOLD_METHOD, Estimate, Interval
from fedaudit.results.games import ACTUAL_EPSILON, PROVEN_EPSILON, SUCCESS
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Record
from fedaudit.results.runs import FAIR_DRAW, LABELS, OLDER_LEVEL, has_older_level


@dataclass(frozen=True)
class Ceiling:
    """Kind of estimate that a policy may limit.

    Attributes:
        section: Table of the policy.
        setting: Key in that table. Its value is a number, or a table of numbers by false-positive
            rate.
        metric: Metric of the estimates. For a table of rates, the false-positive rate is appended.
        name: Name in a verdict; the metric's name if empty.
        estimates: Function that yields the estimates to compare, including those that are missing.
        compare: Function that compares an estimate with the ceiling.
        contrasts: Whether each kind of non-members is judged separately.
        format_as: Metric that determines the number format; ``metric`` if empty.
    """

    section: Section
    setting: str
    metric: str
    name: str
    estimates: Callable[[CeilingRule], Iterator[ComparedFigure]]
    compare: Callable[[ComparedFigure, float, float], FigureCheck] = compare_interval
    contrasts: bool = False
    format_as: str = ""


def ceiling_checks(record: Record, policy: Policy, doubts: Doubts) -> Iterator[Check]:
    """Yield a check for each ceiling of a policy, separately for each contrast if necessary."""
    for row in CEILINGS:
        table = getattr(policy, row.section)
        setting = getattr(table, row.setting, None)
        if setting is None or (row.section == "games") != (record.kind == "games"):
            continue
        ceilings = (
            {f"{row.metric}@{rate}": ceiling for rate, ceiling in setting.items()}
            if isinstance(setting, dict)
            else {row.metric: setting}
        )
        contrasts = table.contrasts if row.contrasts else ("",)
        for (metric, ceiling), contrast in product(ceilings.items(), contrasts):
            if row.contrasts and contrast in unfair_contrasts(record):
                continue
            rule = CeilingRule(record, policy, doubts, metric, contrast, ceiling)
            results = [
                row.compare(figure, ceiling, doubts.confidence) for figure in row.estimates(rule)
            ]
            unbounded = metric == EPSILON and clients_without_bound(record, policy.membership)
            if not results and (unbounded or is_too_small_for(record, policy, metric, contrast)):
                continue
            name = row.name or metric_name(metric)
            name += f" against {CONTRASTS[contrast]}" if contrast else ""
            yield ceiling_check(row.section, name, row.format_as or metric, ceiling, results)


def _membership_figures(rule: CeilingRule) -> Iterator[ComparedFigure]:
    assert rule.policy.membership is not None
    ceiling, n_seeds = rule.ceiling, len(set(rule.record.seeds))
    generalises = judges_all_seeds(rule.policy.membership.seeds)
    skips_rates = rule.policy.membership.small_audits == "not judged"
    figures, reason = list(figures_by_run(rule)), missing_reasons(rule.record)
    describe_pool = pooled_over(rule.record)
    uncontrolled_doubt = _uncontrolled_doubts(rule.record)
    pooled = {
        (run.attack, run.defense, run.seed)
        for run, figure in figures
        if run.target is None and figure is not None and figure.value is not None
    }
    for run, figure in figures:
        if run.target is not None and _is_pooled(rule, run, figure, pooled):
            continue
        if figure is not None and skips_rates and is_rate_undecidable(figure, ceiling):
            continue
        if figure is None:
            has_few_seeds = generalises and n_seeds < FEWEST_RUNS
            explanation = too_few_runs(n_seeds) if has_few_seeds else reason(run) or MISSING_FIGURE
            yield ComparedFigure(str(run), None, explanation)
            continue
        doubt = (
            rule.doubts.doubt(figure)
            or _doubt_of_significance(figure, ceiling)
            or uncontrolled_doubt(figure)
        )
        what = str(run) if run.target is not None else f"{run} {describe_pool(run.attack)}"
        if generalises:
            yield ComparedFigure(what, *_over_all_seeds(figure, n_seeds, ceiling, doubt))
        elif figure.low is None and figure.high is None and figure.at_threshold is not None:
            yield ComparedFigure(
                what,
                figure,
                f"its limits are those {FIXED_THRESHOLD_METHOD} and not those of the rate, since "
                "an older version computed them; attack the recording again, or run the study "
                "again",
            )
        else:
            yield ComparedFigure(
                what, figure, "", doubt, partial(samples_for_figure, figure, ceiling)
            )


def _is_pooled(
    rule: CeilingRule,
    run: FigureRun,
    figure: Estimate | None,
    pooled: Collection[tuple[str, str, int | None]],
) -> bool:
    """Return True if a client is judged together with others and not by its own estimate.

    A client for which a leak is shown is always judged by its own estimate.
    """
    policy = rule.policy.membership
    if policy is None or policy.judges_each_client:
        return False
    leaks = figure is not None and shows_leak(figure, rule.ceiling)
    return not leaks and (run.attack, run.defense, run.seed) in pooled


def _uncontrolled_doubts(record: Record) -> Callable[[Estimate], str]:
    """Return a function that explains why an estimate without random membership is unreliable.

    If members were not chosen at random (fair draw), only the blind classifier can show that
    members and non-members do not differ in their inputs.
    """
    passed = {c.target for c in record.controls if c.control == "blind classifier" and c.passed}

    def doubt(figure: Estimate) -> str:
        if figure.fair or None in passed or figure.target in passed:
            return ""
        return (
            "members and non-members were not chosen at random, and no control shows that they "
            "cannot be distinguished by their inputs and labels alone"
        )

    return doubt


def _over_all_seeds(
    figure: Estimate, n_seeds: int, ceiling: float, doubt: str
) -> tuple[Estimate, str, str, Callable[[], RequiredSamples | None]]:
    """Return arguments of :class:`ComparedFigure` for a mean over all possible seeds."""
    value, limits = figure.value, figure.further or Interval(method=too_few_runs(n_seeds))
    limits_for_all = {"low": limits.low, "high": limits.high, "method": limits.method}
    return (
        figure.model_copy(update=limits_for_all),
        "",
        doubt,
        lambda: None if value is None else more_seeds(value, limits, n_seeds, ceiling),
    )


def _doubt_of_significance(figure: Estimate, ceiling: float) -> str:
    chance = chance_of(figure.metric)
    if figure.significant is not False or chance is None or ceiling < chance:
        return ""
    return "after the correction for multiple tests, it is not significantly better than guessing"


def _group_figures(rule: CeilingRule) -> Iterator[ComparedFigure]:
    record, policy, doubts = rule.record, rule.policy.membership, rule.doubts
    assert policy is not None
    groups: dict[str, list[Estimate]] = {}
    for row in record.groups:
        # Unfair contrasts are not judged; see unfair_contrasts().
        if row.fair and (not policy.targets or row.target in policy.client_numbers):
            groups.setdefault(row.attack, []).append(row)
    for attack in judged_attacks(record, policy):
        rows = groups.get(attack, [])
        large = [
            row for row in rows if min(row.n_members, row.n_nonmembers) >= policy.smallest_group
        ]
        for row in large:
            kind = "class" if row.by == "class" else "samples of client"
            yield ComparedFigure(
                f"{run_of(row)}, {kind} {shorten(row.group)}",
                row,
                doubt=doubts.doubt(row),
                more=partial(samples_for_auc, row, rule.ceiling),
            )
        if not large:
            smaller = f", but {format_count(len(rows), 'smaller group')}" if rows else ""
            missing = (
                f"the result file has no group with at least {policy.smallest_group} members and "
                f"as many non-members{smaller}"
            )
            yield ComparedFigure(shorten(attack_name(attack)), None, missing)
    present = {(row.attack, row.target, row.seed) for row in record.groups}
    for run in judged_runs(record, policy, every_seed=True):
        if groups.get(run.attack) and (run.attack, run.target, run.seed) not in present:
            yield ComparedFigure(str(run), None, "the result file has no group for it")


def _epsilon_bounds(rule: CeilingRule) -> Iterator[ComparedFigure]:
    """Yield lower bounds on epsilon for single runs, which hold jointly for the whole study."""
    unbounded = {*clients_without_bound(rule.record, rule.policy.membership)}
    reason = missing_reasons(rule.record)
    for run, figure in figures_by_run(rule._replace(contrast="unseen"), every_seed=True):
        if run.target is None:
            # Bounds are computed for single clients, whose members were drawn independently.
            continue
        if (figure is None or figure.value is None) and run.target in unbounded:
            continue
        doubt = rule.doubts.doubt(figure)
        missing = "" if figure is not None else reason(run) or "the result file has no such bound"
        yield ComparedFigure(str(run), figure, missing, doubt)
    for metric, what in _BOUNDS_ON_UPDATES.items():
        bounds = sorted(rule.record.where(metric=metric), key=lambda bound: bound.seed is not None)
        if bounds and bounds[0].value is not None:
            # The value is the lower limit.
            bound = bounds[0].model_copy(update={"low": bounds[0].value})
            yield ComparedFigure(f"one client's {what}", bound)


_BOUNDS_ON_UPDATES = {
    CLIENT_EPSILON: "whole contribution, measured with canary clients",
    CLIENT_EPSILON_IF_GAUSSIAN: "whole contribution, measured with canary clients, if the "
    "mechanism is Gaussian",
    SECURE_SUM_EPSILON: "update in the sum of a round",
    SECURE_SUM_EPSILON_IF_GAUSSIAN: "update in the sum of a round, if the noise is Gaussian",
}
"""Bounds for a client's whole contribution or single update, with a description of each."""


def _formal_epsilons(rule: CeilingRule) -> Iterator[ComparedFigure]:
    for figure in rule.record.findings:
        if figure.metric == rule.metric:
            yield ComparedFigure(defense_name(shorten(figure.defense)), figure)


def _source_figures(rule: CeilingRule) -> Iterator[ComparedFigure]:
    record, policy = rule.record, rule.policy.sources
    assert policy is not None
    attacks = judged_sources(record, policy)
    raise_if_too_many_figures(len(attacks) * len(set(record.seeds)))
    uses_single_runs = policy.seeds == "each"
    for attack in attacks:
        figures = [figure for figure in record.source_estimates if figure.attack == attack]
        excesses = [figure for figure in figures if figure.against == LABELS]
        for figure in excesses:
            if (figure.seed is not None) == uses_single_runs:
                yield _excess_over_labels(figure, figures, rule)
        present = {figure.seed for figure in excesses}
        for seed in dict.fromkeys(record.seeds) if uses_single_runs else (None,):
            if seed not in present:
                yield ComparedFigure(
                    str(FigureRun(attack, "none", None, seed)), None, MISSING_FIGURE
                )


def _excess_over_labels(
    figure: Estimate, figures: Sequence[Estimate], rule: CeilingRule
) -> ComparedFigure:
    """Return the success of a source attack beyond what label distributions explain."""
    assert rule.policy.sources is not None
    draw = ", on the audited samples" * (figure.contrast == FAIR_DRAW)
    name = f"{FigureRun(figure.attack, figure.defense, None, figure.seed)}{draw}"
    doubt = rule.doubts.doubt(figure)
    same_setting = [f for f in figures if (f.defense, f.view) == (figure.defense, figure.view)]
    success = next(f for f in same_setting if f.seed == figure.seed and not f.against)
    excess = figure.model_copy(update={"metric": _EXCESS})
    fails = figure.low is not None and figure.low > rule.ceiling
    passes = success.high is not None and success.high <= rule.ceiling
    if has_older_level(figure) and not (fails or passes):
        # Older records overestimate what labels explain, so they underestimate the excess. Only a
        # fail, or a success rate that is itself below the ceiling, is certain.
        return ComparedFigure(name, excess, OLDER_LEVEL)
    if figure.seed is not None:
        # The forecast of the number of samples treats the rate that labels explain as known.
        limits = EstimateWithLimits(success.number, success.low or 0.0, success.high or 0.0)
        more = partial(
            samples_for_success,
            limits,
            success.samples,
            rule.ceiling,
            level=figure.level or 0.0,
        )
        excess = excess.model_copy(update={"method": EXACT})
        return ComparedFigure(name, excess, doubt=doubt, more=more)
    above = above_chance(success) and above_chance(figure)
    if not (doubt or above or rule.ceiling < 0):
        doubt = (
            "after the correction for multiple tests, it is not significantly better than what "
            "label distributions explain"
        )
    if judges_all_seeds(rule.policy.sources.seeds):
        n_runs = sum(f.seed is not None and f.against == figure.against for f in same_setting)
        return ComparedFigure(name, *_over_all_seeds(excess, n_runs, rule.ceiling, doubt))
    return ComparedFigure(name, excess, doubt=doubt)


def _model_risks(rule: CeilingRule) -> Iterator[ComparedFigure]:
    for result in rule.record.clusters:
        used_models = set(result.rounds[-1].choice)
        for number, model in enumerate(result.rounds[-1].models):
            if model.clients or number in used_models:
                yield ComparedFigure(
                    f"model {number} of {shorten(result.algorithm)} in seed {result.seed}",
                    Estimate(
                        topic="clusters",
                        metric=_RISK,
                        value=model.risk,
                        low=model.low,
                        high=model.high,
                        method=EXACT,
                        note="the model's risk could not be measured" if model.risk is None else "",
                    ),
                    doubt=rule.doubts.unsound,
                    more=lambda: _UNKNOWN_SAMPLES,
                )
    present = {result.seed for result in rule.record.clusters}
    for seed in dict.fromkeys(rule.record.seeds):
        if seed not in present:
            yield ComparedFigure(f"seed {seed}", None, "the result file has no models for it")


_UNKNOWN_SAMPLES = RequiredSamples(
    what="samples",
    count=0,
    then=None,
    text="the number of additional samples that would decide it is unknown, since the result file "
    "lacks the counts from which the risk was computed",
)


def _game_points(rule: CeilingRule) -> Iterator[ComparedFigure]:
    assert rule.policy.games is not None
    points = judged_points(rule.record, rule.policy.games)
    for point in points:
        figure = point.estimate(rule.metric)
        if rule.metric == PROVEN_EPSILON and figure is not None:
            # The bound is recomputed, so that all judged points share one error probability.
            bound = empirical_epsilon(point, len(points))
            method = f"Clopper-Pearson {100 * (1 - ALPHA):g}%, error shared by {len(points)} points"
            figure = figure.model_copy(update={"value": bound, "low": bound, "method": method})
        missing = "" if figure is not None else "the result file has no such bound"
        more = partial(games_for_point, point, rule.ceiling)
        yield ComparedFigure(point_name(point, rule.record), figure, missing, more=more)


_EXCESS, _RISK = "above_label_distributions_share", "risk_share"


CEILINGS = (
    Ceiling("membership", "auc", AUC, "", _membership_figures, contrasts=True),
    Ceiling("membership", "tpr", TPR, "", _membership_figures, contrasts=True),
    Ceiling(
        "membership",
        "balanced_accuracy",
        BALANCED_ACCURACY,
        "balanced accuracy",
        _membership_figures,
        contrasts=True,
    ),
    Ceiling("membership", "group_auc", AUC, "AUC of every group", _group_figures),
    Ceiling(
        "membership",
        "epsilon",
        EPSILON,
        "lower bound on epsilon",
        _epsilon_bounds,
        compare_lower_bound,
    ),
    Ceiling(
        "membership",
        "formal_epsilon",
        FORMAL_EPSILON,
        "proven epsilon of the whole training",
        _formal_epsilons,
        compare_exact,
    ),
    Ceiling(
        "sources",
        "above_label_distributions",
        _EXCESS,
        "success beyond label distributions",
        _source_figures,
    ),
    Ceiling("clusters", "risk", _RISK, "membership risk of every model", _model_risks),
    Ceiling("games", "success", SUCCESS, "games won (Adv)", _game_points, format_as="adv_share"),
    Ceiling(
        "games",
        "epsilon",
        PROVEN_EPSILON,
        "proven epsilon",
        _game_points,
        compare_lower_bound,
        format_as="epsilon",
    ),
    Ceiling(
        "games",
        "actual_epsilon",
        ACTUAL_EPSILON,
        "actual epsilon",
        _game_points,
        compare_exact_or_fail,
        format_as="epsilon",
    ),
)
"""All ceilings, in the order in which a verdict lists them."""
