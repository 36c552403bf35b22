"""How often limits hold what they are limits of, and how often a gate goes wrong by them.

    python -m benchmarks.coverage [--runs 2000] [--seed 0] [--part rates]

Prints a table in Markdown for each part; progress goes to standard error. Scores are drawn whose
true figures are known, so that nothing is assumed but that samples are independent. A gate's
ceiling lies at the truth: every pass and every failure is then an error.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit
from scipy.stats import mannwhitneyu

from fedaudit.metrics.delong import AucInterval, auc_interval, clustered_auc
from fedaudit.metrics.family import above_chance
from fedaudit.metrics.intervals import (
    ConfidenceLimits,
    Limited,
    held_together,
    lower_limit,
    summed,
    upper_limit,
)
from fedaudit.metrics.rate_limits import (
    limits_of_rate,
    lower_bound,
    n_needed,
    n_to_bound,
    rate_limits,
    upper_bound,
)
from fedaudit.metrics.roc import allowed_false_positives, sides, tpr_at_fpr
from fedaudit.metrics.stratified import stratified_auc

Scores = np.ndarray
"""A row a run, a column a sample."""

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
_AT_ONCE = 2_000_000
_FREEDOM = 2.0


class Shape(NamedTuple):
    """How scores are spread.

    Attributes:
        name: What it is called.
        draw: Members and non-members, given a generator and the shapes of both.
        rate: The true-positive rate at a false-positive rate.
    """

    name: str
    draw: Callable[[np.random.Generator, tuple[int, int], tuple[int, int]], tuple[Scores, Scores]]
    rate: Callable[[float], float]


class Limits(NamedTuple):
    """Limits of one rate, one a run."""

    low: np.ndarray
    high: np.ndarray


class Missed(NamedTuple):
    """Of the runs, how many had limits that missed the truth.

    Attributes:
        above: The lower limit lay above it: the gate fails.
        below: The upper limit lay below it: the gate passes.
    """

    above: float
    below: float

    @property
    def coverage(self) -> float:
        """Share of runs whose limits hold the truth."""
        return max(0.0, 1 - self.above - self.below)


def normal(apart: float, spread: float = 1.0) -> Shape:
    """Normal scores, members' spread by their own standard deviation."""

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        return apart + spread * rng.standard_normal(members), rng.standard_normal(others)

    name = f"normal, {apart:g} apart" + (f", members {spread:g} wide" if spread != 1 else "")
    return Shape(name, draw, lambda fpr: float(ndtr((apart + ndtri(fpr)) / spread)))


def heavy(apart: float) -> Shape:
    """Student's t with two degrees of freedom: neither variance nor a concave curve."""

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        inside, outside = (rng.standard_t(_FREEDOM, size) for size in (members, others))
        return apart + inside, outside

    rate = lambda fpr: float(stdtr(_FREEDOM, apart + stdtrit(_FREEDOM, fpr)))  # noqa: E731
    return Shape(f"heavy tails, {apart:g} apart", draw, rate)


def few(apart: float, share: float = 0.1) -> Shape:
    """Normal scores of which only a share of the members lies apart."""

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        leaks = rng.random(members) < share
        return rng.standard_normal(members) + apart * leaks, rng.standard_normal(others)

    def rate(fpr: float) -> float:
        return float((1 - share) * fpr + share * ndtr(apart + ndtri(fpr)))

    return Shape(f"{share:.0%} of members {apart:g} apart", draw, rate)


def cliff(fpr: float) -> Shape:
    """Members all about the threshold of one rate, where the curve is steepest."""
    at, width = float(-ndtri(fpr)), 0.02

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        return at + width * rng.standard_normal(members), rng.standard_normal(others)

    return Shape(
        f"members about the threshold of {fpr:.1%}",
        draw,
        lambda asked: float(ndtr((at + ndtri(asked)) / width)),
    )


def tied(apart: float, step: float) -> Shape:
    """Normal scores rounded to multiples of a step."""
    smooth = normal(apart)

    def draw(
        rng: np.random.Generator, members: tuple[int, int], others: tuple[int, int]
    ) -> tuple[Scores, Scores]:
        inside, outside = smooth.draw(rng, members, others)
        return np.round(inside / step), np.round(outside / step)

    def rate(fpr: float) -> float:
        # The lowest value that no more than the share of non-members reach.
        edges = (np.arange(-10 / step, 10 / step) - 0.5) * step
        edge = edges[ndtr(-edges) <= fpr][0]
        return float(ndtr(apart - edge))

    return Shape(f"tied in steps of {step:g}, {apart:g} apart", draw, rate)


NORMAL = tuple(normal(apart) for apart in (0.0, 0.5, 1.0, 1.5, 2.5))
SHAPES = (
    *NORMAL,
    *(normal(apart, 1.5) for apart in (1.0, 2.5)),
    *(heavy(apart) for apart in (1.0, 2.5)),
    *(few(apart) for apart in (1.0, 2.5)),
    *(cliff(fpr) for fpr in FPRS),
    *(tied(apart, step) for apart, step in ((0.0, 0.5), (1.0, 0.5), (1.0, 1.0), (2.5, 0.25))),
)


def rate_limits_of(members: Scores, nonmembers: Scores, fpr: float) -> Limits:
    """Limits of each run's rate: those of ``fedaudit.metrics.rate_limits``, all runs at once."""
    sizes = (members.shape[1], nonmembers.shape[1])
    lower = lower_bound(fpr, *sizes, confidence=ONE_SIDED)
    upper = upper_bound(fpr, *sizes, confidence=ONE_SIDED)
    low, high = np.zeros(len(members)), np.ones(len(members))
    if lower.rank:
        above = (members > _placed(nonmembers, lower.rank)).sum(axis=1)
        low = _limits(above, sizes[0], lower.error, lower_limit)
    if upper.rank <= sizes[1]:
        reaching = (members >= _placed(nonmembers, upper.rank)).sum(axis=1)
        high = _limits(reaching, sizes[0], upper.error, upper_limit)
    return Limits(low, high)


def limits_used(members: Scores, nonmembers: Scores, fpr: float) -> Limits:
    """Limits at the threshold that each run's non-members set, which is taken as given."""
    sizes = (members.shape[1], nonmembers.shape[1])
    place = allowed_false_positives(fpr, sizes[1]) + 1
    above = (members > _placed(nonmembers, place)).sum(axis=1)
    return Limits(
        *(_limits(above, sizes[0], 1 - ONE_SIDED, limit) for limit in (lower_limit, upper_limit))
    )


def missed(limits: Limits, truth: float) -> Missed:
    """How often limits lie on one side of the truth."""
    return Missed(
        *(float(side.mean()) for side in (limits.low > truth + 1e-12, limits.high < truth - 1e-12))
    )


def _placed(nonmembers: Scores, place: int) -> np.ndarray:
    at = nonmembers.shape[1] - place
    return np.asarray(np.partition(nonmembers, at, axis=1)[:, at, None])


def _limits(
    counts: np.ndarray, total: int, error: float, limit: Callable[..., float]
) -> np.ndarray:
    known, where = np.unique(counts, return_inverse=True)
    bounds = [limit(int(count), total, confidence=1 - error) for count in known]
    return np.array(bounds)[where]


def simulated(
    shape: Shape, sizes: tuple[int, int], fprs: Sequence[float], runs: int, seed: int
) -> Mapping[float, tuple[Missed, Missed]]:
    """What limits of the rate miss, and those at the threshold used, at each rate."""
    rng = np.random.default_rng([seed, *sizes, *shape.name.encode()])
    found: dict[float, list[tuple[Limits, Limits]]] = {fpr: [] for fpr in fprs}
    for part in _parts(runs, sum(sizes)):
        members, nonmembers = shape.draw(rng, (part, sizes[0]), (part, sizes[1]))
        for fpr, drawn in found.items():
            both = (rate_limits_of, limits_used)
            held, used = (limits(members, nonmembers, fpr) for limits in both)
            drawn.append((held, used))
    return {
        fpr: _counted([held for held, _ in drawn], [used for _, used in drawn], shape.rate(fpr))
        for fpr, drawn in found.items()
    }


def _counted(held: Sequence[Limits], used: Sequence[Limits], truth: float) -> tuple[Missed, Missed]:
    first, second = (
        missed(Limits(*map(np.concatenate, zip(*parts, strict=True))), truth)
        for parts in (held, used)
    )
    return first, second


def _parts(runs: int, samples: int) -> Iterator[int]:
    size = max(1, _AT_ONCE // samples)
    for start in range(0, runs, size):
        yield min(size, runs - start)


def rates(runs: int, seed: int) -> str:
    """The table of limits of rates: a row for each size and rate, the worst of all shapes.

    Limits at the threshold used stand beside them for normal scores alone.
    """
    rows = [
        "| members / non-members | FPR | coverage | false passes | false failures | lower limit | "
        "at the threshold used: coverage | false passes | false failures |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for at, sizes in enumerate(SIZES):
        fprs = [fpr for fpr in FPRS if n_needed(fpr) <= sizes[1]]
        found: dict[float, list[tuple[Missed, Missed]]] = {fpr: [] for fpr in fprs}
        for number, shape in enumerate(SHAPES):
            done = (at + number / len(SHAPES)) / len(SIZES)
            print(
                f"\r{done:4.0%} {sizes[0]} / {sizes[1]}, {shape.name}",
                end="\033[K",
                file=sys.stderr,
            )
            for fpr, one in simulated(shape, sizes, fprs, runs, seed).items():
                found[fpr].append(one)
        rows += [_row(sizes, fpr, both) for fpr, both in found.items()]
    print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(rows)


def _row(sizes: tuple[int, int], fpr: float, found: Sequence[tuple[Missed, Missed]]) -> str:
    held, used = zip(*found, strict=True)
    plain = [one for shape, one in zip(SHAPES, used, strict=True) if shape in NORMAL]
    needs = n_to_bound(fpr, confidence=ONE_SIDED) - sizes[1]
    cells = [f"{sizes[0]:,} / {sizes[1]:,}", f"{100 * fpr:g} %", *_worst(held)]
    cells += ["yes" if needs <= 0 else f"needs {needs:,} more", *_worst(plain)]
    return f"| {' | '.join(cells)} |"


def _worst(found: Sequence[Missed]) -> tuple[str, str, str]:
    """The least coverage of all shapes, and the most errors of a gate of each kind."""
    return (
        f"{min(one.coverage for one in found):.3f}",
        f"{max(one.below for one in found):.1%}",
        f"{max(one.above for one in found):.1%}",
    )


COUNTS = (1, 2, 3, 5, 10)
"""Runs of a study."""
OVER = ((30, 30), (100, 100), (500, 500), (500, 2000))
APART = (0.0, 1.0, 2.5, 3.5, 4.5)
_RATE = 0.01


def over_seeds(runs: int, seed: int) -> str:
    """The table of means over several runs of a study: a row for each size, separation and figure.

    Each cell has the coverage of the interval for these runs, and its mean width as a share of
    that of one run.
    """
    rows = [
        "| members / non-members | AUC | figure | "
        + " | ".join(f"{count} run{'s' * (count > 1)}" for count in COUNTS)
        + " |",
        f"|---|---|---|{'---|' * len(COUNTS)}",
    ]
    for sizes in OVER:
        for apart in APART:
            print(f"\r{sizes[0]} / {sizes[1]}, {apart:g}", end="\033[K", file=sys.stderr)
            found = means_over_seeds(sizes, apart, runs, seed)
            for figure, by_count in found.items():
                first = by_count[1].width
                cells = [
                    f"{one.missed.coverage:.3f} ({one.width / first:.2f})"
                    for one in by_count.values()
                ]
                auc = f"{ndtr(apart / 2**0.5):.4f}"
                name = f"{sizes[0]:,} / {sizes[1]:,}"
                rows.append(f"| {' | '.join([name, auc, figure, *cells])} |")
    print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(rows)


class OverSeeds(NamedTuple):
    """Intervals of a mean over so many runs: what they miss, and how wide they are on average."""

    missed: Missed
    width: float


def means_over_seeds(
    sizes: tuple[int, int], apart: float, studies: int, seed: int
) -> dict[str, dict[int, OverSeeds]]:
    """Intervals for these runs, of the AUC and of the rate at 1 % where there is one.

    Args:
        sizes: Members and non-members of a run.
        apart: Of unit normals.
        studies: How many; each has the most runs, and the first of these for fewer.
        seed: Of the draws.
    """
    rng, most = np.random.default_rng([seed, *sizes, int(10 * apart)]), max(COUNTS)
    is_member = np.arange(sum(sizes)) < sizes[0]
    truths = {"AUC": float(ndtr(apart / 2**0.5))}
    if n_needed(_RATE) <= sizes[1]:
        truths[f"TPR at {100 * _RATE:g} % FPR"] = normal(apart).rate(_RATE)
    found: dict[tuple[str, int], list[ConfidenceLimits]] = {}
    for _ in range(studies):
        scores = rng.standard_normal((most, sum(sizes))) + apart * is_member
        aucs = [auc_interval(one, is_member) for one in scores]
        rates_at = [limits_of_rate(one, is_member, _RATE) for one in scores]
        for count in COUNTS:
            for name in truths:
                over = summed(aucs[:count]) if name == "AUC" else held_together(rates_at[:count])
                found.setdefault((name, count), []).append(over)
    return {
        name: {count: _over(found[name, count], truth) for count in COUNTS}
        for name, truth in truths.items()
    }


RATES_OVER = ((100, 100, 0.1), (500, 500, 0.01), (500, 2000, 0.01), (1000, 5000, 0.001))
"""Members, non-members and false-positive rate of a run."""


def rates_over_seeds(runs: int, seed: int) -> str:
    """Return the table of two ways to combine the limits of a rate over the runs of a study.

    A row for each size and way. Each cell has the least coverage over all shapes of scores, and the
    mean width where scores are normal and 2.5 apart.
    """
    rows = [
        "| members / non-members | FPR | limits of the runs | "
        + " | ".join(f"{count} run{'s' * (count > 1)}" for count in COUNTS)
        + " |",
        f"|---|---|---|{'---|' * len(COUNTS)}",
    ]
    for *sizes, fpr in RATES_OVER:
        found: dict[tuple[str, int], list[OverSeeds]] = {}
        for shapes in _shapes_over_runs(fpr):
            print(f"\r{sizes[0]} / {sizes[1]}, {shapes[0].name}", end="\033[K", file=sys.stderr)
            for cell, one in rate_means(shapes, (sizes[0], sizes[1]), fpr, runs, seed).items():
                found.setdefault(cell, []).append(one)
        for way in WAYS:
            cells = [
                f"{min(one.missed.coverage for one in found[way, count]):.3f} "
                f"({found[way, count][0].width:.3f})"
                for count in COUNTS
            ]
            name = f"{sizes[0]:,} / {sizes[1]:,}"
            rows.append(f"| {' | '.join([name, f'{100 * fpr:g} %', way, *cells])} |")
    print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(rows)


WAYS = ("p-values combined", "squares summed")


def _shapes_over_runs(fpr: float) -> list[tuple[Shape, ...]]:
    """Return the shape of each run of a study, for several studies."""
    most, strong = max(COUNTS), normal(2.5)
    alike = (
        strong,
        *(normal(apart) for apart in (0.0, 1.0)),
        heavy(2.5),
        few(2.5),
        cliff(fpr),
        tied(0.0, 0.5),
        tied(1.0, 0.5),
    )
    return [*((shape,) * most for shape in alike), (strong, *(normal(0.0),) * (most - 1))]


def rate_means(
    shapes: Sequence[Shape], sizes: tuple[int, int], fpr: float, studies: int, seed: int
) -> dict[tuple[str, int], OverSeeds]:
    """Return what intervals of a rate's mean over runs miss, by way and number of runs.

    Args:
        shapes: The shape of each run's scores.
        sizes: Members and non-members of a run.
        fpr: The false-positive rate.
        studies: Number of studies; each has the most runs, and the first of these for fewer.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng([seed, *sizes, *shapes[0].name.encode()])
    is_member = np.arange(sum(sizes)) < sizes[0]
    found: dict[tuple[str, int], list[ConfidenceLimits]] = {}
    for _ in range(studies):
        scores = [
            np.concatenate([side[0] for side in shape.draw(rng, (1, sizes[0]), (1, sizes[1]))])
            for shape in shapes
        ]
        at_any_error = [limits_of_rate(one, is_member, fpr) for one in scores]
        alone = [
            Limited(tpr_at_fpr(one, is_member, fpr).tpr, limits.low, limits.high)
            for one in scores
            for limits in [rate_limits(one, is_member, fpr)]
        ]
        for count in COUNTS:
            for way, limits in zip(
                WAYS, (held_together(at_any_error[:count]), summed(alone[:count])), strict=True
            ):
                found.setdefault((way, count), []).append(limits)
    truths = np.cumsum([shape.rate(fpr) for shape in shapes])
    return {
        (way, count): _over(intervals, float(truths[count - 1]) / count)
        for (way, count), intervals in found.items()
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
"""Members, non-members, and the chance that a score of either differs from all others."""
_CLIENTS = 10
_SAMPLES_OF_A_PERSON = 10
_SMALL_ERROR = 0.001


def rare_scores(runs: int, seed: int) -> str:
    """Return the table of AUCs whose scores seldom differ from one value: a row for each case.

    With DeLong's interval beside it, and the same of pooled clients and of people with ten samples.
    A second table has how often tests err whose error is a thousandth.
    """
    rows = [
        "| members / non-members | members that differ | non-members that differ | coverage | "
        "width | DeLong: coverage | width | ten clients: coverage | people: coverage | "
        "people's samples as independent: coverage |",
        f"|{'---|' * 10}",
    ]
    for members, others, *chances in RARE:
        print(f"\r{members} / {others}, {chances}", end="\033[K", file=sys.stderr)
        rng = np.random.default_rng([seed, members, others, *(int(100 * one) for one in chances)])
        is_member = np.arange(members + others) < members
        client = np.arange(members + others) % _CLIENTS
        truth = 0.5 + (chances[0] - chances[1]) / 2
        kinds: list[list[ConfidenceLimits]] = [[], [], [], [], []]
        for run in range(runs):
            chance = np.where(is_member, *chances)
            differs = rng.random(len(chance)) < chance
            # A flag in every other run, a size elsewhere.
            size = 1 + rng.random(len(chance)) * (run % 2)
            scores = np.where(differs, size, 0.0)
            # Samples of one person differ together: only people are independent.
            person = np.repeat(np.arange(len(chance)), _SAMPLES_OF_A_PERSON)
            of_people = np.where(
                differs[person], size[person] + 0.01 * rng.random(len(person)) * (run % 2), 0.0
            )
            found: tuple[AucInterval | ConfidenceLimits, ...] = (
                auc_interval(scores, is_member),
                delong_alone(scores, is_member),
                stratified_auc(scores, is_member, client),
                clustered_auc(of_people, is_member[person], person),
                auc_interval(of_people, is_member[person]),
            )
            for kind, limits in zip(kinds, found, strict=True):
                kind.append(ConfidenceLimits(limits.low, limits.high))
        held = [_over(kind, truth) for kind in kinds]
        cells = [f"{members:,} / {others:,}", *(f"{100 * one:g} %" for one in chances)]
        for place, kind_held in enumerate(held):
            cells.append(f"{kind_held.missed.coverage:.3f}")
            cells += [f"{kind_held.width:.3f}"] * (place < 2)
        rows.append(f"| {' | '.join(cells)} |")
    print("\r\033[K", end="", file=sys.stderr)
    return "\n".join(rows) + f"\n\n{_small_errors(runs, seed)}"


def delong_alone(scores: np.ndarray, is_member: np.ndarray) -> ConfidenceLimits:
    """Return DeLong's interval on the logit scale, whatever the scores are."""
    ours, theirs = sides(scores, is_member)
    above = (
        np.searchsorted(np.sort(theirs), ours) + np.searchsorted(np.sort(theirs), ours, "right")
    ) / 2
    below = (
        np.searchsorted(np.sort(ours), theirs) + np.searchsorted(np.sort(ours), theirs, "right")
    ) / 2
    placed = above / len(theirs), 1 - below / len(ours)
    value = float(placed[0].mean())
    spread = np.sqrt(sum(side.var(ddof=1) / len(side) for side in placed))
    if not 0 < value < 1:
        return ConfidenceLimits(value, value)
    reach = -ndtri((1 - CONFIDENCE) / 2) * spread / (value * (1 - value))
    middle = np.log(value / (1 - value))
    return ConfidenceLimits(*(float(1 / (1 + np.exp(-middle - s * reach))) for s in (-1, 1)))


def _small_errors(runs: int, seed: int) -> str:
    """Return how often tests err at a small error, where members differ no more than others."""
    rows = [
        "| members / non-members | differ | this test errs at a thousandth | normal ranks |",
        "|---|---|---|---|",
    ]
    rng = np.random.default_rng([seed, 1])
    for others in (20, 50, 100):
        for chance in (0.05, 0.1, 0.2):
            is_member = np.arange(1000 + others) < 1000
            counted, ranked_ = [], []
            for _ in range(10 * runs):
                scores = -1.0 * (rng.random(1000 + others) < chance)
                counted.append(above_chance(scores, is_member))
                ranked_.append(normal_ranks(scores, is_member))
            shares = [
                f"{100 * float(np.mean(np.array(one) <= _SMALL_ERROR)):.2f} %"
                for one in (counted, ranked_)
            ]
            rows.append(f"| 1,000 / {others} | {100 * chance:g} % | {' | '.join(shares)} |")
    return "\n".join(rows)


def normal_ranks(scores: np.ndarray, is_member: np.ndarray) -> float:
    """Return the p-value of the Mann-Whitney test by its normal approximation."""
    ours, theirs = sides(scores, is_member)
    return float(mannwhitneyu(ours, theirs, alternative="greater", method="asymptotic").pvalue)


PEOPLE = (5, 10, 20, 40, 80, 160)
"""People on each side."""
_ALIKE = (0.1, 0.5)
"""Shares of a score's variance that samples of one person have in common."""


def people(runs: int, seed: int) -> str:
    """Return the table of AUCs of samples that depend on each other: a row a number of people.

    Each person has ten samples, or five to forty; members' scores lie one standard deviation above
    others'. The same scores are taken as independent, and by people.
    """
    rows = [
        "| people a side | samples each | variance in common | samples as independent: coverage | "
        "width | by people: coverage | width |",
        f"|{'---|' * 7}",
    ]
    truth = float(ndtr(1 / 2**0.5))
    for count in PEOPLE:
        for spread in (False, True):
            for alike in _ALIKE:
                print(f"\r{count} people, {alike:g}", end="\033[K", file=sys.stderr)
                rng = np.random.default_rng([seed, count, spread, int(100 * alike)])
                kinds: list[list[ConfidenceLimits]] = [[], []]
                for _ in range(runs):
                    sizes = rng.integers(5, 41, 2 * count) if spread else np.full(2 * count, 10)
                    person = np.repeat(np.arange(2 * count), sizes)
                    is_member = person < count
                    shared, own = rng.standard_normal(2 * count), rng.standard_normal(len(person))
                    scores = is_member + alike**0.5 * shared[person] + (1 - alike) ** 0.5 * own
                    found = (
                        auc_interval(scores, is_member),
                        clustered_auc(scores, is_member, person),
                    )
                    for kind, one in zip(kinds, found, strict=True):
                        kind.append(ConfidenceLimits(one.low, one.high))
                cells = [str(count), "5 to 40" if spread else "10", f"{100 * alike:g} %"]
                for kind in kinds:
                    held = _over(kind, truth)
                    cells += [f"{held.missed.coverage:.3f}", f"{held.width:.3f}"]
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
"""Tables by name; each takes how many runs a cell has, and a seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="in each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, nargs="*", default=list(PARTS))
    given = parser.parse_args()
    for name in given.part:
        print(f"{PARTS[name](given.runs, given.seed)}\n")


if __name__ == "__main__":
    main()
