"""Source inference over seeds: how often each attack names a sample's owner, and what that shows.

Whether owners are named above guessing, or more often than class mixes explain, is asked as it is
of other figures: a test that is corrected over the attacks, and the interval, must both say so.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple, TypeAlias

from scipy.special import chdtrc, stdtrit

from fedaudit.report.choosing import distinct
from fedaudit.report.evidence import Look, Size, largest, tone_of
from fedaudit.report.grid import shortened
from fedaudit.report.names import NO_DEFENSE, defense_name
from fedaudit.report.words import count
from fedaudit.study.owners import SourceResult
from fedaudit.study.record import Record

Run: TypeAlias = SourceResult
"""What one attack found in one run."""


class Threshold(NamedTuple):
    """From where on a leak of sources has a word.

    Attributes:
        word: The word.
        share: Of the owners that class mixes leave open, the share that is named.
    """

    word: Size
    share: float


SOURCE_SIZES = (
    Threshold("trace", 0.0),
    Threshold("weak", 0.05),
    Threshold("clear", 0.15),
    Threshold("strong", 0.3),
)
"""Words as for other leaks: the best guess at membership that AUCs of 0.55, 0.6 and 0.7 allow has
an advantage of about 7, 14 and 29%, and this share is that advantage for two clients of the same
class mix."""


class Estimate(NamedTuple):
    """A figure of one run, or its mean over several with Student's t."""

    value: float
    low: float | None
    high: float | None
    method: str


class Named(NamedTuple):
    """One attack under one defense and view, over its runs.

    Attributes:
        runs: One a seed.
        chance: Success of a guess.
        success: Share of samples whose owner is named.
        mixes: What the clients' class mixes alone explain of it.
        excess: Success less what class mixes explain, run by run.
        guess_p: One-sided, of "no better than guessing"; runs combined, not corrected.
        mixes_p: The same of "no more than class mixes explain".
        above_guessing: By test, corrected, and interval.
        above_mixes: The same, and above guessing too.
    """

    attack: str
    defense: str
    view: str
    runs: tuple[Run, ...]
    chance: float
    success: Estimate
    mixes: float
    excess: Estimate
    guess_p: float
    mixes_p: float
    above_guessing: bool
    above_mixes: bool


def on_sources(record: Record) -> tuple[Named, ...]:
    """Every source attack of a record, those without a defense first."""
    keys = distinct(_key(run) for run in record.sources)
    keys.sort(key=lambda key: key[1] not in ("", NO_DEFENSE))
    alpha = alpha_of(record) / max(len(keys), 1)
    groups = [tuple(run for run in record.sources if _key(run) == key) for key in keys]
    return tuple(_named(runs, alpha) for runs in groups)


def alpha_of(record: Record) -> float:
    """The study's error level of a family of tests; 5% where the record does not say."""
    figures = record.config.get("figures")
    alpha = figures.get("alpha") if isinstance(figures, dict) else None
    return alpha if isinstance(alpha, float) and 0 < alpha < 1 else 0.05


def labels_of_named(named: Sequence[Named]) -> list[str]:
    """A name for each: the attack, and its defense and view where these differ."""
    parts = [
        (
            shortened(one.attack, 60),
            shortened(defense_name(one.defense), 60),
            f"view: {shortened(one.view)}",
        )
        for one in named
    ]
    varies = [len({part[place] for part in parts}) > 1 for place in range(3)]
    return [
        " · ".join(text for place, text in enumerate(part) if place == 0 or varies[place])
        for part in parts
    ]


def strongest_on_sources(named: Sequence[Named]) -> Named | None:
    """That which shows most: beyond class mixes by its lower limit, else the highest success."""
    return max(named, key=_shown, default=None)


def excess_size(one: Named) -> Size | None:
    """How large a leak is shown at least beyond class mixes; None where none is."""
    if not one.above_mixes:
        return None
    least = one.excess.value if one.excess.low is None else one.excess.low
    return size_reached_by(beyond(least, one.mixes))


def size_reached_by(share: float) -> Size | None:
    """The largest word that a share of owners, of those that are left open, earns."""
    if share <= 0:
        return None
    return largest([threshold.word for threshold in SOURCE_SIZES if share >= threshold.share])


def beyond(excess: float, level: float) -> float:
    """An excess over a level, as a share of what that level leaves open."""
    return excess / (1 - level) if level < 1 else 0.0


def most_beyond(one: Named) -> Size | None:
    """The largest leak that the data leave room for, held against guessing.

    Against guessing and not against class mixes, so that "no leak shown" covers both.
    """
    high = 1.0 if one.success.high is None else one.success.high
    return size_reached_by(beyond(high - one.chance, one.chance))


def look_of_named(one: Named) -> Look:
    """How a success is marked in tables."""
    if not one.above_guessing:
        return Look()
    size = excess_size(one)
    if size is None:
        return Look("◇ ", "", "mixes may be all")
    return Look("▲ ", tone_of(size), size)


def over_runs(values: Sequence[float], *, within: tuple[float, float] = (0.0, 1.0)) -> Estimate:
    """The mean over at least two runs, with the runs as units (Student's t, 95%)."""
    middle = fmean(values)
    # Equal gaps between shares differ by rounding, which is no spread.
    if len(values) < 2 or max(values) - min(values) < 1e-12:
        return Estimate(middle, None, None, f"no spread over {count(len(values))} seeds")
    reach = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    low, high = max(middle - reach, within[0]), min(middle + reach, within[1])
    return Estimate(middle, low, high, f"Student t over {count(len(values))} seeds 95%")


def _named(runs: tuple[Run, ...], alpha: float) -> Named:
    first = runs[0]
    chance = fmean(run.chance for run in runs)
    mixes = fmean(run.by_class_mix for run in runs)
    success, excess = _success(runs), _excess(runs)
    guess_p = combined([run.p_value for run in runs])
    mixes_p = combined([run.class_p_value for run in runs])
    above_guessing = guess_p <= alpha and _lies_above(success, chance)
    return Named(
        *(first.attack, first.defense, first.view, runs),
        chance=chance,
        success=success,
        mixes=mixes,
        excess=excess,
        guess_p=guess_p,
        mixes_p=mixes_p,
        above_guessing=above_guessing,
        above_mixes=above_guessing and mixes_p <= alpha and _lies_above(excess, 0.0),
    )


def combined(p_values: Sequence[float]) -> float:
    """One p-value for the same test in several runs (Fisher's)."""
    if len(p_values) == 1:
        return p_values[0]
    statistic = -2 * sum(math.log(max(p, 1e-300)) for p in p_values)
    return float(chdtrc(2 * len(p_values), statistic))


def _success(runs: Sequence[Run]) -> Estimate:
    if len(runs) == 1:
        return Estimate(runs[0].success, runs[0].low, runs[0].high, "Clopper-Pearson 95%")
    mean = over_runs([run.success for run in runs])
    return _or_of_runs(mean, [run.low for run in runs], [run.high for run in runs])


def _excess(runs: Sequence[Run]) -> Estimate:
    # The level is a mean over a thousand shuffles: its own error is small beside the success's.
    lows = [run.low - run.by_class_mix for run in runs]
    highs = [run.high - run.by_class_mix for run in runs]
    gaps = [run.success - run.by_class_mix for run in runs]
    if len(runs) == 1:
        return Estimate(gaps[0], lows[0], highs[0], "Clopper-Pearson 95%")
    return _or_of_runs(over_runs(gaps, within=(-1.0, 1.0)), lows, highs)


def _or_of_runs(mean: Estimate, lows: Sequence[float], highs: Sequence[float]) -> Estimate:
    """The mean; where it has no spread to make an interval of, with the runs' widest limits."""
    if mean.low is not None:
        return mean
    return Estimate(mean.value, min(lows), max(highs), f"{mean.method}, so limits of the runs")


def _lies_above(figure: Estimate, level: float) -> bool:
    return (figure.value if figure.low is None else figure.low) > level


def _shown(one: Named) -> tuple[bool, bool, float]:
    least = one.excess.value if one.excess.low is None else one.excess.low
    value = beyond(least, one.mixes) if one.above_mixes else one.success.value
    return one.above_mixes, one.above_guessing, value


def _key(run: Run) -> tuple[str, str, str]:
    return run.attack, run.defense, run.view


def mean_of(one: Named, figure: Callable[[Run], float]) -> float:
    """Mean of a figure over the runs."""
    return fmean(figure(run) for run in one.runs)
