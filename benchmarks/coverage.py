"""How often confidence limits contain the true value, and how often a gate decides wrongly.

    python -m benchmarks.coverage [--runs 2000] [--seed 0] [--part rates]

Prints a table in Markdown for each part; progress goes to standard error. Scores are drawn from
distributions whose true AUC and rates are known. The gate's ceiling is at the true value, so that
each pass and each failure is an error.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit
from scipy.stats import mannwhitneyu

from fedaudit.metrics.delong import AucInterval, auc_interval, clustered_auc
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    EstimateWithLimits,
    clopper_pearson_lower,
    clopper_pearson_upper,
    mean_limits_by_p_values,
    mean_limits_if_independent,
)
from fedaudit.metrics.rate_limits import (
    lower_bound,
    nonmembers_for_one_false_positive,
    nonmembers_for_tpr_lower_limit,
    tpr_limits,
    tpr_limits_function,
    upper_bound,
)
from fedaudit.metrics.roc import allowed_false_positives, split_scores, tpr_at_fpr
from fedaudit.metrics.significance import auc_p_value
from fedaudit.metrics.stratified import stratified_auc

Scores = np.ndarray
"""One row for each run, one column for each sample."""

CONFIDENCE = 0.95
ONE_SIDED = 1 - (1 - CONFIDENCE) / 2
FPRS = (0.001, 0.01, 0.1)
SIZES = (
    (50, 50),
    (200, 200),
    (500, 500),
    (1000, 1000),
    (5000, 5000),
    (50, 5000),
    (200, 2000),
    (1000, 5000),
    (1000, 50),
    (5000, 500),
)
"""Members and non-members."""
_SCORES_AT_ONCE = 2_000_000
_DEGREES_OF_FREEDOM = 2.0


class Shape(NamedTuple):
    """A distribution of scores.

    Attributes:
        name: Name in the table.
        draw: Draws scores of members and non-members, given a generator and the shapes of both.
        rate: Gives the true-positive rate at a false-positive rate.
    """

    name: str
    draw: Callable[[np.random.Generator, tuple[int, int], tuple[int, int]], tuple[Scores, Scores]]
    rate: Callable[[float], float]


class Limits(NamedTuple):
    """Limits of one rate in each run."""

    low: np.ndarray
    high: np.ndarray


class Missed(NamedTuple):
    """Fractions of runs whose limits do not contain the true value.

    Attributes:
        above: Fraction with the lower limit above the true value; the gate fails.
        below: Fraction with the upper limit below the true value; the gate passes.
    """

    above: float
    below: float

    @property
    def coverage(self) -> float:
        """Fraction of runs whose limits contain the true value."""
        return max(0.0, 1 - self.above - self.below)


def normal(distance: float, std: float = 1.0) -> Shape:
    """Normal scores; those of members have their own standard deviation."""

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        return distance + std * rng.standard_normal(members), rng.standard_normal(others)

    # The name is part of the seed of the draws.
    name = f"normal, {distance:g} apart" + (f", members {std:g} wide" if std != 1 else "")
    return Shape(name, draw, lambda fpr: float(ndtr((distance + ndtri(fpr)) / std)))


def heavy(distance: float) -> Shape:
    """Student's t with two degrees of freedom: infinite variance, and an ROC curve not concave."""

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        inside, outside = (rng.standard_t(_DEGREES_OF_FREEDOM, size) for size in (members, others))
        return distance + inside, outside

    def rate(fpr: float) -> float:
        quantile = stdtrit(_DEGREES_OF_FREEDOM, fpr)
        return float(stdtr(_DEGREES_OF_FREEDOM, distance + quantile))

    return Shape(f"heavy tails, {distance:g} apart", draw, rate)


def few(distance: float, share: float = 0.1) -> Shape:
    """Normal scores that are shifted for only a share of the members."""

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        shifted = rng.random(members) < share
        return rng.standard_normal(members) + distance * shifted, rng.standard_normal(others)

    def rate(fpr: float) -> float:
        return float((1 - share) * fpr + share * ndtr(distance + ndtri(fpr)))

    return Shape(f"{share:.0%} of members {distance:g} apart", draw, rate)


def cliff(fpr: float) -> Shape:
    """All members near the threshold of one rate, where the ROC curve is steepest."""
    threshold, std = float(-ndtri(fpr)), 0.02

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        return threshold + std * rng.standard_normal(members), rng.standard_normal(others)

    return Shape(
        f"members about the threshold of {fpr:.1%}",
        draw,
        lambda rate: float(ndtr((threshold + ndtri(rate)) / std)),
    )


def tied(distance: float, step: float) -> Shape:
    """Normal scores rounded to multiples of a step."""
    unrounded = normal(distance)

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        inside, outside = unrounded.draw(rng, members, others)
        return np.round(inside / step), np.round(outside / step)

    def rate(fpr: float) -> float:
        # The lowest value that a share of at most `fpr` of the non-members reach.
        edges = (np.arange(-10 / step, 10 / step) - 0.5) * step
        edge = edges[ndtr(-edges) <= fpr][0]
        return float(ndtr(distance - edge))

    return Shape(f"tied in steps of {step:g}, {distance:g} apart", draw, rate)


NORMAL = tuple(normal(distance) for distance in (0.0, 0.5, 1.0, 1.5, 2.5))
SHAPES = (
    *NORMAL,
    *(normal(distance, 1.5) for distance in (1.0, 2.5)),
    *(heavy(distance) for distance in (1.0, 2.5)),
    *(few(distance) for distance in (1.0, 2.5)),
    *(cliff(fpr) for fpr in FPRS),
    *(tied(distance, step) for distance, step in ((0.0, 0.5), (1.0, 0.5), (1.0, 1.0), (2.5, 0.25))),
)


def rate_limits_of(members: Scores, nonmembers: Scores, fpr: float) -> Limits:
    """Return limits of the rate of each run, as ``fedaudit.metrics.tpr_limits`` computes them."""
    sizes = (members.shape[1], nonmembers.shape[1])
    lower = lower_bound(fpr, *sizes, confidence=ONE_SIDED)
    upper = upper_bound(fpr, *sizes, confidence=ONE_SIDED)
    low, high = np.zeros(len(members)), np.ones(len(members))
    if lower.rank:
        above = (members > _ranked(nonmembers, lower.rank)).sum(axis=1)
        low = _limits(above, sizes[0], lower.error, clopper_pearson_lower)
    if upper.rank <= sizes[1]:
        reaching = (members >= _ranked(nonmembers, upper.rank)).sum(axis=1)
        high = _limits(reaching, sizes[0], upper.error, clopper_pearson_upper)
    return Limits(low, high)


def limits_used(members: Scores, nonmembers: Scores, fpr: float) -> Limits:
    """Return limits that treat the threshold of each run's non-members as a constant."""
    sizes = (members.shape[1], nonmembers.shape[1])
    rank = allowed_false_positives(fpr, sizes[1]) + 1
    above = (members > _ranked(nonmembers, rank)).sum(axis=1)
    return Limits(
        *(
            _limits(above, sizes[0], 1 - ONE_SIDED, limit)
            for limit in (clopper_pearson_lower, clopper_pearson_upper)
        )
    )


def missed(limits: Limits, truth: float) -> Missed:
    """Count how often both limits are above the true value, and how often both are below."""
    return Missed(
        *(float(side.mean()) for side in (limits.low > truth + 1e-12, limits.high < truth - 1e-12))
    )


def _ranked(nonmembers: Scores, rank: int) -> np.ndarray:
    """Return the ``rank``-th largest score of each run."""
    index = nonmembers.shape[1] - rank
    return np.asarray(np.partition(nonmembers, index, axis=1)[:, index, None])


def _limits(
    counts: np.ndarray, total: int, error: float, limit: Callable[..., float]
) -> np.ndarray:
    distinct, index = np.unique(counts, return_inverse=True)
    bounds = [limit(int(count), total, confidence=1 - error) for count in distinct]
    return np.array(bounds)[index]


def simulated(
    shape: Shape, sizes: tuple[int, int], fprs: Sequence[float], runs: int, seed: int
) -> Mapping[float, tuple[Missed, Missed]]:
    """Return how often limits miss the true rate, at each false-positive rate.

    Returns:
        For each rate: the misses of limits of the rate, and of limits with a constant threshold.
    """
    rng = np.random.default_rng([seed, *sizes, *shape.name.encode()])
    limits: dict[float, list[tuple[Limits, Limits]]] = {fpr: [] for fpr in fprs}
    for batch in _batches(runs, sum(sizes)):
        members, nonmembers = shape.draw(rng, (batch, sizes[0]), (batch, sizes[1]))
        for fpr, pairs in limits.items():
            pairs.append(
                (rate_limits_of(members, nonmembers, fpr), limits_used(members, nonmembers, fpr))
            )
    return {fpr: _both_missed(pairs, shape.rate(fpr)) for fpr, pairs in limits.items()}


def _both_missed(pairs: Sequence[tuple[Limits, Limits]], truth: float) -> tuple[Missed, Missed]:
    of_rate, at_threshold = (
        missed(Limits(*map(np.concatenate, zip(*batches, strict=True))), truth)
        for batches in zip(*pairs, strict=True)
    )
    return of_rate, at_threshold


def _batches(runs: int, samples: int) -> Iterator[int]:
    size = max(1, _SCORES_AT_ONCE // samples)
    for start in range(0, runs, size):
        yield min(size, runs - start)


def rates(runs: int, seed: int) -> str:
    """Return the table of limits of rates: for each size and rate, the worst of all distributions.

    The last three columns treat the threshold as a constant, for normal scores only.
    """
    rows = [
        "| members / non-members | FPR | coverage | false passes | false failures | lower limit | "
        "constant threshold: coverage | false passes | false failures |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for size_index, sizes in enumerate(SIZES):
        fprs = [fpr for fpr in FPRS if nonmembers_for_one_false_positive(fpr) <= sizes[1]]
        results: dict[float, list[tuple[Missed, Missed]]] = {fpr: [] for fpr in fprs}
        for shape_index, shape in enumerate(SHAPES):
            done = (size_index + shape_index / len(SHAPES)) / len(SIZES)
            print(
                f"\r{done:4.0%} {sizes[0]} / {sizes[1]}, {shape.name}",
                end="\033[K",
                file=sys.stderr,
            )
            for fpr, both in simulated(shape, sizes, fprs, runs, seed).items():
                results[fpr].append(both)
        rows += [_row(sizes, fpr, of_shapes) for fpr, of_shapes in results.items()]
    print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(rows)


def _row(sizes: tuple[int, int], fpr: float, of_shapes: Sequence[tuple[Missed, Missed]]) -> str:
    of_rate, at_threshold = zip(*of_shapes, strict=True)
    of_normal = [each for shape, each in zip(SHAPES, at_threshold, strict=True) if shape in NORMAL]
    missing = nonmembers_for_tpr_lower_limit(fpr, confidence=ONE_SIDED) - sizes[1]
    cells = [f"{sizes[0]:,} / {sizes[1]:,}", f"{100 * fpr:g} %", *_worst(of_rate)]
    cells += ["yes" if missing <= 0 else f"needs {missing:,} more", *_worst(of_normal)]
    return f"| {' | '.join(cells)} |"


def _worst(results: Sequence[Missed]) -> tuple[str, str, str]:
    """Return the lowest coverage, and the highest fractions of false passes and failures."""
    return (
        f"{min(each.coverage for each in results):.3f}",
        f"{max(each.below for each in results):.1%}",
        f"{max(each.above for each in results):.1%}",
    )


COUNTS = (1, 2, 3, 5, 10)
"""Numbers of runs of a study."""
SIZES_OVER_SEEDS = ((30, 30), (100, 100), (500, 500), (500, 2000))
DISTANCES = (0.0, 1.0, 2.5, 3.5, 4.5)
_RATE = 0.01


def over_seeds(runs: int, seed: int) -> str:
    """Return the table of means over several runs of a study.

    Each row has a size, an AUC and a figure. Each cell has the coverage of the interval for these
    runs, and its mean width divided by that of one run.
    """
    rows = [
        "| members / non-members | AUC | figure | "
        + " | ".join(f"{count} run{'s' * (count > 1)}" for count in COUNTS)
        + " |",
        f"|---|---|---|{'---|' * len(COUNTS)}",
    ]
    for sizes in SIZES_OVER_SEEDS:
        for distance in DISTANCES:
            print(f"\r{sizes[0]} / {sizes[1]}, {distance:g}", end="\033[K", file=sys.stderr)
            results = means_over_seeds(sizes, distance, runs, seed)
            for figure, by_count in results.items():
                width_of_one = by_count[1].width
                cells = [
                    f"{each.missed.coverage:.3f} ({each.width / width_of_one:.2f})"
                    for each in by_count.values()
                ]
                auc = f"{ndtr(distance / 2**0.5):.4f}"
                name = f"{sizes[0]:,} / {sizes[1]:,}"
                rows.append(f"| {' | '.join([name, auc, figure, *cells])} |")
    print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(rows)


class OverSeeds(NamedTuple):
    """How often intervals of a mean over runs miss the true value, and their mean width."""

    missed: Missed
    width: float


def means_over_seeds(
    sizes: tuple[int, int], distance: float, studies: int, seed: int
) -> dict[str, dict[int, OverSeeds]]:
    """Return intervals for these runs, of the AUC and (with enough non-members) of TPR at 1 % FPR.

    Args:
        sizes: Members and non-members of a run.
        distance: Distance between the means of two standard normal distributions.
        studies: Number of simulated studies. Each has ``max(COUNTS)`` runs; for fewer runs, the
            first of them are used.
        seed: Seed of the draws.
    """
    rng, most = np.random.default_rng([seed, *sizes, int(10 * distance)]), max(COUNTS)
    is_member = np.arange(sum(sizes)) < sizes[0]
    truths = {"AUC": float(ndtr(distance / 2**0.5))}
    if nonmembers_for_one_false_positive(_RATE) <= sizes[1]:
        truths[f"TPR at {100 * _RATE:g} % FPR"] = normal(distance).rate(_RATE)
    intervals: dict[tuple[str, int], list[ConfidenceLimits]] = {}
    for _ in range(studies):
        scores = rng.standard_normal((most, sum(sizes))) + distance * is_member
        aucs = [auc_interval(row, is_member) for row in scores]
        tprs = [tpr_limits_function(row, is_member, _RATE) for row in scores]
        for count in COUNTS:
            for name in truths:
                mean = (
                    mean_limits_if_independent(aucs[:count])
                    if name == "AUC"
                    else mean_limits_by_p_values(tprs[:count])
                )
                intervals.setdefault((name, count), []).append(mean)
    return {
        name: {count: _over(intervals[name, count], truth) for count in COUNTS}
        for name, truth in truths.items()
    }


RATES_OVER = ((100, 100, 0.1), (500, 500, 0.01), (500, 2000, 0.01), (1000, 5000, 0.001))
"""Members, non-members and false-positive rate of a run."""


def rates_over_seeds(runs: int, seed: int) -> str:
    """Return the table of two ways to combine the limits of a rate over the runs of a study.

    There is a row for each size and way. Each cell has the lowest coverage over all distributions
    of scores, and the mean width for normal scores whose means differ by 2.5.
    """
    rows = [
        "| members / non-members | FPR | limits of the runs | "
        + " | ".join(f"{count} run{'s' * (count > 1)}" for count in COUNTS)
        + " |",
        f"|---|---|---|{'---|' * len(COUNTS)}",
    ]
    for *sizes, fpr in RATES_OVER:
        results: dict[tuple[str, int], list[OverSeeds]] = {}
        for shapes in _shapes_over_runs(fpr):
            print(f"\r{sizes[0]} / {sizes[1]}, {shapes[0].name}", end="\033[K", file=sys.stderr)
            for cell, result in rate_means(shapes, (sizes[0], sizes[1]), fpr, runs, seed).items():
                results.setdefault(cell, []).append(result)
        for way in WAYS:
            cells = [
                f"{min(each.missed.coverage for each in results[way, count]):.3f} "
                f"({results[way, count][0].width:.3f})"
                for count in COUNTS
            ]
            name = f"{sizes[0]:,} / {sizes[1]:,}"
            rows.append(f"| {' | '.join([name, f'{100 * fpr:g} %', way, *cells])} |")
    print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(rows)


WAYS = ("p-values combined", "squares summed")


def _shapes_over_runs(fpr: float) -> list[tuple[Shape, ...]]:
    """Return the distribution of each run of a study, for several studies."""
    most, strong = max(COUNTS), normal(2.5)
    same_in_all_runs = (
        strong,
        *(normal(distance) for distance in (0.0, 1.0)),
        heavy(2.5),
        few(2.5),
        cliff(fpr),
        tied(0.0, 0.5),
        tied(1.0, 0.5),
    )
    one_leaks = (strong, *(normal(0.0),) * (most - 1))
    return [*((shape,) * most for shape in same_in_all_runs), one_leaks]


def rate_means(
    shapes: Sequence[Shape], sizes: tuple[int, int], fpr: float, studies: int, seed: int
) -> dict[tuple[str, int], OverSeeds]:
    """Return how often intervals of a rate's mean over runs miss it, by way and number of runs.

    Args:
        shapes: The distribution of each run's scores.
        sizes: Members and non-members of a run.
        fpr: The false-positive rate.
        studies: Number of simulated studies. Each has ``max(COUNTS)`` runs; for fewer runs, the
            first of them are used.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng([seed, *sizes, *shapes[0].name.encode()])
    is_member = np.arange(sum(sizes)) < sizes[0]
    intervals: dict[tuple[str, int], list[ConfidenceLimits]] = {}
    for _ in range(studies):
        scores = [
            np.concatenate([side[0] for side in shape.draw(rng, (1, sizes[0]), (1, sizes[1]))])
            for shape in shapes
        ]
        at_any_error = [tpr_limits_function(row, is_member, fpr) for row in scores]
        at_95 = [
            EstimateWithLimits(tpr_at_fpr(row, is_member, fpr).tpr, limits.low, limits.high)
            for row in scores
            for limits in [tpr_limits(row, is_member, fpr)]
        ]
        for count in COUNTS:
            for way, limits in zip(
                WAYS,
                (
                    mean_limits_by_p_values(at_any_error[:count]),
                    mean_limits_if_independent(at_95[:count]),
                ),
                strict=True,
            ):
                intervals.setdefault((way, count), []).append(limits)
    truths = np.cumsum([shape.rate(fpr) for shape in shapes])
    return {
        (way, count): _over(of_cell, float(truths[count - 1]) / count)
        for (way, count), of_cell in intervals.items()
    }


def _over(intervals: Sequence[ConfidenceLimits], truth: float) -> OverSeeds:
    low, high = np.array(intervals).T
    return OverSeeds(missed(Limits(low, high), truth), float((high - low).mean()))


RARE = (
    (1000, 20, 0.1, 0.01),
    (1000, 20, 0.1, 0.1),
    (1000, 20, 0.3, 0.02),
    (1000, 20, 0.6, 0.01),
    (1000, 50, 0.02, 0.02),
    (1000, 50, 0.1, 0.01),
    (1000, 50, 0.3, 0.1),
    (1000, 50, 0.6, 0.05),
    (1000, 100, 0.1, 0.01),
    (1000, 100, 0.1, 0.1),
    (1000, 100, 0.3, 0.02),
    (1000, 100, 0.6, 0.01),
    (20, 1000, 0.1, 0.01),
    (20, 1000, 0.1, 0.1),
)
"""Members, non-members, and for each the probability that a score differs from the common value."""
_CLIENTS = 10
_SAMPLES_OF_A_PERSON = 10
_SMALL_ERROR = 0.001


def rare_scores(runs: int, seed: int) -> str:
    """Return the tables of scores of which most have one common value.

    The first table has a row for each case, with the intervals of the AUC that fedaudit uses,
    DeLong's intervals, those over ten clients, and those of people with ten samples each. The
    second table has the false positives of tests at a level of 0.1 %.
    """
    rows = [
        "| members / non-members | members that differ | non-members that differ | coverage | "
        "width | DeLong: coverage | width | ten clients: coverage | people: coverage | "
        "people's samples as independent: coverage |",
        f"|{'---|' * 10}",
    ]
    for members, others, *probabilities in RARE:
        print(f"\r{members} / {others}, {probabilities}", end="\033[K", file=sys.stderr)
        percents = [int(100 * probability) for probability in probabilities]
        rng = np.random.default_rng([seed, members, others, *percents])
        is_member = np.arange(members + others) < members
        client = np.arange(members + others) % _CLIENTS
        truth = 0.5 + (probabilities[0] - probabilities[1]) / 2
        intervals: list[list[ConfidenceLimits]] = [[], [], [], [], []]
        for run in range(runs):
            probability = np.where(is_member, *probabilities)
            differs = rng.random(len(probability)) < probability
            # The scores that differ are all 1 in even runs and continuous in odd runs.
            value = 1 + rng.random(len(probability)) * (run % 2)
            scores = np.where(differs, value, 0.0)
            # All samples of one person differ together, so that only people are independent.
            person = np.repeat(np.arange(len(probability)), _SAMPLES_OF_A_PERSON)
            of_people = np.where(
                differs[person], value[person] + 0.01 * rng.random(len(person)) * (run % 2), 0.0
            )
            of_run: tuple[AucInterval | ConfidenceLimits, ...] = (
                auc_interval(scores, is_member),
                delong_alone(scores, is_member),
                stratified_auc(scores, is_member, client),
                clustered_auc(of_people, is_member[person], person),
                auc_interval(of_people, is_member[person]),
            )
            for of_method, limits in zip(intervals, of_run, strict=True):
                of_method.append(ConfidenceLimits(limits.low, limits.high))
        results = [_over(of_method, truth) for of_method in intervals]
        cells = [f"{members:,} / {others:,}", *(f"{100 * value:g} %" for value in probabilities)]
        for index, result in enumerate(results):
            cells.append(f"{result.missed.coverage:.3f}")
            cells += [f"{result.width:.3f}"] * (index < 2)
        rows.append(f"| {' | '.join(cells)} |")
    print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(rows) + f"\n\n{_small_errors(runs, seed)}"


def delong_alone(scores: np.ndarray, is_member: np.ndarray) -> ConfidenceLimits:
    """Return DeLong's interval on the logit scale, for scores with any number of ties."""
    members, others = (np.sort(side) for side in split_scores(scores, is_member))
    below_members = (
        np.searchsorted(others, members) + np.searchsorted(others, members, "right")
    ) / 2
    below_others = (
        np.searchsorted(members, others) + np.searchsorted(members, others, "right")
    ) / 2
    components = below_members / len(others), 1 - below_others / len(members)
    auc = float(components[0].mean())
    error = np.sqrt(sum(side.var(ddof=1) / len(side) for side in components))
    if not 0 < auc < 1:
        return ConfidenceLimits(auc, auc)
    margin = -ndtri((1 - CONFIDENCE) / 2) * error / (auc * (1 - auc))
    logit = np.log(auc / (1 - auc))
    low, high = (float(1 / (1 + np.exp(-(logit + sign * margin)))) for sign in (-1, 1))
    return ConfidenceLimits(low, high)


def _small_errors(runs: int, seed: int) -> str:
    """Return the table of false positives at a level of 0.1 %, without a leak."""
    rows = [
        "| members / non-members | differ | errors of this test at a level of 0.1 % | "
        "errors of normal ranks |",
        "|---|---|---|---|",
    ]
    rng = np.random.default_rng([seed, 1])
    for others in (20, 50, 100):
        for probability in (0.05, 0.1, 0.2):
            is_member = np.arange(1000 + others) < 1000
            by_fedaudit, by_normal_ranks = [], []
            for _ in range(10 * runs):
                scores = -1.0 * (rng.random(1000 + others) < probability)
                by_fedaudit.append(auc_p_value(scores, is_member))
                by_normal_ranks.append(normal_ranks(scores, is_member))
            shares = [
                f"{100 * float(np.mean(np.array(p_values) <= _SMALL_ERROR)):.2f} %"
                for p_values in (by_fedaudit, by_normal_ranks)
            ]
            rows.append(f"| 1,000 / {others} | {100 * probability:g} % | {' | '.join(shares)} |")
    return "\n".join(rows)


def normal_ranks(scores: np.ndarray, is_member: np.ndarray) -> float:
    """Return the p-value of the Mann-Whitney test by its normal approximation."""
    members, others = split_scores(scores, is_member)
    return float(mannwhitneyu(members, others, alternative="greater", method="asymptotic").pvalue)


PEOPLE = (5, 10, 20, 40, 80, 160)
"""Members, and as many non-members."""
_CORRELATIONS = (0.1, 0.5)
"""Correlations between the scores of samples of one person."""


def people(runs: int, seed: int) -> str:
    """Return the table of AUCs of people with several samples that depend on each other.

    Each person has ten samples, or five to forty. Scores of members are one standard deviation
    above those of non-members. The AUC gets two intervals: one as if samples were independent, one
    with people as independent clusters.
    """
    rows = [
        "| people per group | samples each | correlation | samples as independent: coverage | "
        "width | people as clusters: coverage | width |",
        f"|{'---|' * 7}",
    ]
    truth = float(ndtr(1 / 2**0.5))
    for count in PEOPLE:
        for unequal in (False, True):
            for correlation in _CORRELATIONS:
                print(f"\r{count} people, {correlation:g}", end="\033[K", file=sys.stderr)
                rng = np.random.default_rng([seed, count, unequal, int(100 * correlation)])
                intervals: list[list[ConfidenceLimits]] = [[], []]
                for _ in range(runs):
                    sizes = rng.integers(5, 41, 2 * count) if unequal else np.full(2 * count, 10)
                    person = np.repeat(np.arange(2 * count), sizes)
                    is_member = person < count
                    shared, independent = (
                        rng.standard_normal(2 * count),
                        rng.standard_normal(len(person)),
                    )
                    scores = (
                        is_member
                        + correlation**0.5 * shared[person]
                        + (1 - correlation) ** 0.5 * independent
                    )
                    of_run = (
                        auc_interval(scores, is_member),
                        clustered_auc(scores, is_member, person),
                    )
                    for of_method, limits in zip(intervals, of_run, strict=True):
                        of_method.append(ConfidenceLimits(limits.low, limits.high))
                cells = [str(count), "5 to 40" if unequal else "10", f"{100 * correlation:g} %"]
                for of_method in intervals:
                    result = _over(of_method, truth)
                    cells += [f"{result.missed.coverage:.3f}", f"{result.width:.3f}"]
                rows.append(f"| {' | '.join(cells)} |")
    print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(rows)


PARTS: Mapping[str, Callable[[int, int], str]] = {
    "rates": rates,
    "seeds": over_seeds,
    "seed-rates": rates_over_seeds,
    "rare": rare_scores,
    "people": people,
}
"""Functions that make the tables, by name; each takes the number of runs a cell and a seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="number of runs in each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, nargs="*", default=list(PARTS))
    args = parser.parse_args()
    for name in args.part:
        print(f"{PARTS[name](args.runs, args.seed)}\n")


if __name__ == "__main__":
    main()
