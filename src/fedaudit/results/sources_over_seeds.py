"""Source inference over the runs of a study, and what of it is above guessing."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from fedaudit.metrics import Limited, combined, holm, summed
from fedaudit.metrics.source import one_sided
from fedaudit.results.aggregate import further_runs, these_runs
from fedaudit.results.source_figures import Mean, SourceFigure, Tested
from fedaudit.results.sources import SourceResult

Runs = Sequence[SourceResult]


class _Tests(NamedTuple):
    """The tests of one attack."""

    guessing: Tested
    class_mixes: Tested
    label_baseline: Tested


def source_figures(results: Runs, alpha: float) -> list[SourceFigure]:
    """A figure for each attack, defense and view, in the order of the results.

    Each question (more often than guessing, than class mixes explain, than the
    label-distribution baseline) is a family of tests of its own over all source attacks, which
    answer once each. "Above" means two things: the corrected test, and the interval of the mean.

    Args:
        results: What each attack found in each run.
        alpha: Error of each family, in (0, 1).

    Source: Holm 1979 (correction); Fisher 1925, section 21.1 (runs combined).
    """
    groups: dict[tuple[str, str, str], list[SourceResult]] = {}
    for one in results:
        groups.setdefault((one.attack, one.defense, one.view), []).append(one)
    families = [
        _tested(list(groups.values()), question, alpha)
        for question in (
            lambda run: run.p_value,
            lambda run: run.class_p_value,
            lambda run: one_sided(
                run.label_baseline_change or 0.0,
                1.0 if run.label_baseline_p_value is None else run.label_baseline_p_value,
            ),
        )
    ]
    tests = [_Tests(*of_attack) for of_attack in zip(*families, strict=True)]
    return [_figure(runs, found) for runs, found in zip(groups.values(), tests, strict=True)]


def _tested(
    groups: Sequence[Runs], question: Callable[[SourceResult], float], alpha: float
) -> list[Tested]:
    p_values = [combined([question(run) for run in runs]) for runs in groups]
    found = holm(p_values, alpha=alpha)
    return [
        Tested(p_value=p, adjusted=adjusted or 0.0, significant=bool(significant))
        for p, adjusted, significant in zip(
            p_values, found.adjusted, found.significant, strict=True
        )
    ]


def _figure(runs: Runs, tests: _Tests) -> SourceFigure:
    first, chance = runs[0], fmean(run.chance for run in runs)
    success, excess, over_baseline = _success(runs), _excess(runs), _over_baseline(runs)
    above_guessing = tests.guessing.significant and success.above(chance)
    tested = all(run.label_baseline_p_value is not None for run in runs)
    return SourceFigure(
        attack=first.attack,
        defense=first.defense,
        view=first.view,
        seeds=[run.seed for run in runs],
        chance=chance,
        success=success,
        null_high=fmean(run.null_high for run in runs),
        mixes=fmean(run.by_class_mix for run in runs),
        excess=excess,
        label_baseline=_baseline(runs),
        over_label_baseline=over_baseline,
        guessing=tests.guessing,
        class_mixes=tests.class_mixes,
        label_baseline_test=tests.label_baseline if tested else None,
        above_guessing=above_guessing,
        above_mixes=above_guessing and tests.class_mixes.significant and excess.above(0.0),
        above_label_baseline=above_guessing
        and tests.label_baseline.significant
        and over_baseline.above(0.0)
        if over_baseline and tested
        else None,
    )


def _success(runs: Runs) -> Mean:
    return _mean([Limited(run.success, run.low, run.high) for run in runs], (0.0, 1.0))


def _excess(runs: Runs) -> Mean:
    # The level is a mean over a thousand shuffles: its own error is small beside the success's.
    less = [(run, run.by_class_mix) for run in runs]
    return _mean([Limited(r.success - by, r.low - by, r.high - by) for r, by in less])


def _baseline(runs: Runs) -> float | None:
    found = [run.label_baseline for run in runs if run.label_baseline is not None]
    return fmean(found) if len(found) == len(runs) else None


def _over_baseline(runs: Runs) -> Mean | None:
    """None of runs of a version that had another baseline."""
    found = [run.label_baseline_change for run in runs]
    changes = [change for change in found if change is not None]
    if len(changes) < len(runs):
        return None
    several = len(runs) > 1
    return Mean(
        value=fmean(changes),
        low=None,
        high=None,
        method="exact test on the same samples" + (", run by run" if several else ""),
        further=further_runs(changes, within=(-1.0, 1.0)) if several else None,
    )


def _mean(runs: Sequence[Limited], within: tuple[float, float] = (-1.0, 1.0)) -> Mean:
    """These runs' mean: every run asks about samples of its own."""
    low, high = summed(runs)
    several = len(runs) > 1
    values = [run.value for run in runs]
    return Mean(
        value=fmean(values),
        low=max(within[0], low),
        high=min(within[1], high),
        method="Clopper-Pearson 95%" + (f", over {these_runs(len(runs))}" if several else ""),
        further=further_runs(values, within=within) if several else None,
    )
