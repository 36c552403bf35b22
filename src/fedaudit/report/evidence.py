"""Selection of a report's main estimates, and the size of the leak that each estimate shows."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Literal, NamedTuple, Protocol, TypeVar, get_args, runtime_checkable

from fedaudit.core import metric_names
from fedaudit.formatting.grid import Tone, shorten
from fedaudit.formatting.wording import client_name, contrast_order, defense_name
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import STRONG_LEAK, above_chance, exceeds_by_test_only
from fedaudit.results.record import ControlResult, Record

Size = Literal["trace", "weak", "clear", "strong"]
_ORDER: tuple[Size, ...] = get_args(Size)

Status = Literal[
    "void",
    "control failed",
    "strong leak",
    "clear leak",
    "weak leak",
    "trace of a leak",
    "above guessing",
    "inconclusive",
    "no leak shown",
]
"""Verdicts, the worst first. "Above guessing" is used if source inference has a success rate above
guessing that label distributions alone may explain."""

LEAKS: Mapping[Size, Status] = {
    "strong": "strong leak",
    "clear": "clear leak",
    "weak": "weak leak",
    "trace": "trace of a leak",
}
"""Verdict by the size of a leak."""


class Threshold(NamedTuple):
    """Smallest lower confidence limits at which a leak has a size.

    Attributes:
        word: The size.
        auc: Smallest limit of an AUC.
        percent_rate: Smallest limit of a TPR at an FPR above 0.1 % and up to 1 %.
        thousandth_rate: Smallest limit of a TPR at an FPR of up to 0.1 %.
        share: Smallest limit of an excess over guessing or over label distributions, as a fraction
            of the largest possible excess.
    """

    word: Size
    auc: float
    percent_rate: float
    thousandth_rate: float
    share: float

    def of(self, metric: str) -> float | None:
        """Return the threshold for a metric; None for metrics without sizes."""
        rate = metric_names.rate_of(metric)
        if metric == metric_names.AUC:
            return self.auc
        if rate is None or rate > 0.01:
            return None
        return self.thousandth_rate if rate <= 0.001 else self.percent_rate


SIZES = (
    Threshold("trace", 0.5, 0.01, 0.001, 0.0),
    Threshold("weak", 0.55, 0.02, 0.005, 0.05),
    Threshold("clear", 0.6, 0.05, 0.02, 0.15),
    Threshold("strong", STRONG_LEAK, 0.1, 0.05, 0.3),
)
"""Sizes of a leak, smallest first. Any value above guessing is a "trace". AUCs of 0.55, 0.6 and 0.7
correspond to a membership advantage of about 7, 14 and 29 % at the best threshold. The values of
``share`` are these advantages for source inference between two clients with equal labels."""

DOUBTFUL: tuple[Size, ...] = ("clear", "strong")
"""An upper limit of one of these sizes excludes the verdict "no leak shown"."""


def size_reached(value: float, metric: str) -> Size | None:
    """Return the largest size that a metric's value reaches; None at or below guessing."""
    reached: Size | None = None
    for threshold in SIZES:
        limit = threshold.of(metric)
        if limit is not None and (value > limit or (value == limit and reached)):
            reached = threshold.word
    return reached


def size_of_share(share: float) -> Size | None:
    """Return the largest size that an excess reaches, as a fraction of the possible excess."""
    return max_size([size.word for size in SIZES if share >= size.share]) if share > 0 else None


def status_between(lows: Iterable[float], highs: Iterable[float]) -> Status:
    """Return the verdict from lower and upper limits, as fractions of the possible excess."""
    size, highs = max_size(map(size_of_share, lows)), list(highs)
    if size:
        return LEAKS[size]
    undecided = not highs or any(size_of_share(share) in DOUBTFUL for share in highs)
    return "inconclusive" if undecided else "no leak shown"


def lower_limit(estimate: Estimate) -> float:
    """Return the lower limit, or the value if there is no limit."""
    return estimate.number if estimate.low is None else estimate.low


def upper_limit(estimate: Estimate) -> float:
    """Return the upper limit, or 1 if there is no limit."""
    return 1.0 if estimate.high is None else estimate.high


def worst_status(statuses: Sequence[Status]) -> Status:
    """Return the worst of several verdicts."""
    return min(statuses, key=get_args(Status).index)


def max_size(sizes: Iterable[Size | None]) -> Size | None:
    """Return the largest of several sizes; None if all are None."""
    return max(filter(None, sizes), key=_ORDER.index, default=None)


def size_of(estimate: Estimate) -> Size | None:
    """Return the size of the leak that an estimate above guessing shows, or None.

    The lower limit decides, since the largest of many values is biased upwards. Without an
    interval, the value decides, but a rate without an interval has no size. If a rate is above
    guessing by its test but has a small lower limit for lack of non-members, it is a trace.
    """
    if not above_chance(estimate) or estimate.value is None:
        return None
    size = size_reached(_size_value(estimate), estimate.metric)
    if metric_names.rate_of(estimate.metric) is None:
        return size
    if estimate.low is None and estimate.high is None:
        return None
    return size or ("trace" if SIZES[0].of(estimate.metric) else None)


def size_range(estimate: Estimate) -> tuple[Size, Size] | None:
    """Return the sizes of both limits if the value is at least two sizes above the lower limit.

    Stating only the smaller size would then hide the best estimate. Otherwise, return None.
    """
    smallest_size, value = size_of(estimate), estimate.value
    by_value = None if value is None else size_reached(value, estimate.metric)
    if (
        smallest_size is None
        or by_value is None
        or _ORDER.index(by_value) - _ORDER.index(smallest_size) < 2
    ):
        return None
    highest = (
        size_reached(estimate.high, estimate.metric) if estimate.high is not None else "strong"
    )
    return smallest_size, highest or by_value


def size_phrase(estimate: Estimate) -> str:
    """Return the size of a leak in running text; empty if the estimate is not above guessing."""
    between, size = size_range(estimate), size_of(estimate)
    if between is not None:
        return f"a leak of a size between {between[0]} and {between[1]}"
    return f"a {LEAKS[size]}" if size else ""


def _size_value(estimate: Estimate) -> float:
    if estimate.low is not None:
        return estimate.low
    return 0.0 if metric_names.rate_of(estimate.metric) is not None else estimate.value or 0.0


def _size_rank(estimate: Estimate) -> int:
    size = size_of(estimate)
    return -1 if size is None else _ORDER.index(size)


def leading_estimates(estimates: list[Estimate]) -> tuple[Estimate, ...]:
    """Return the AUC and the TPR that show the largest leak, for tile, headline and sentence.

    Both are above guessing and have the largest lower limits. Among TPRs of equal size, the one at
    the lowest FPR is returned. The estimate with the larger size comes first.
    """
    above = group_by(filter(above_chance, estimates), lambda estimate: estimate.metric)
    best = {
        metric: max(
            estimates_of_metric, key=lambda f: (_size_rank(f), _size_value(f), f.value or 0.0)
        )
        for metric, estimates_of_metric in above.items()
    }
    rates = sorted(filter(metric_names.rate_of, best), key=lambda m: metric_names.rate_of(m) or 0)
    rate = max((best[metric] for metric in rates), key=_size_rank, default=None)
    leaders = [estimate for estimate in (best.get(metric_names.AUC), rate) if estimate is not None]
    return tuple(sorted(leaders, key=lambda estimate: -_size_rank(estimate)))


def largest_estimate(estimates: Iterable[Estimate], metric: str) -> Estimate | None:
    """Return the estimate of a metric with the largest value; None if no estimate has a value."""
    values = [
        estimate
        for estimate in estimates
        if estimate.metric == metric and estimate.value is not None
    ]
    return max(values, key=lambda estimate: estimate.number, default=None)


class Marker(NamedTuple):
    """Marker of an estimate: the sign before it, its colour, and the word for its size."""

    sign: str = ""
    tone: Tone = ""
    word: str = ""


DOUBTED = Marker("✗ ", "", "not relied on")  # for an estimate that a failed control invalidates
SIZE_OPEN = Marker("△ ", "", "size unknown")  # above guessing by the test, but not by the interval


def marker_of(estimate: Estimate) -> Marker:
    """Return the marker of an estimate in tables."""
    if estimate.doubt:
        return DOUBTED
    if exceeds_by_test_only(estimate):
        return SIZE_OPEN
    if not above_chance(estimate):
        return Marker()
    size, between = size_of(estimate), size_range(estimate)
    return Marker("▲ ", tone_of(size), " to ".join(between) if between else size or "")


def tone_of(size: Size | None) -> Tone:
    """Return the colour for an estimate above guessing of this size."""
    return size if size and size != "trace" else "raised"


class Setting(NamedTuple):
    """Setting of an estimate; a target or seed of None means all targets or seeds."""

    defense: str
    view: str
    target: int | None
    seed: int | None


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@runtime_checkable
class _HasContrast(Protocol):
    @property
    def contrast(self) -> str: ...


WithContrast = TypeVar("WithContrast", bound=_HasContrast)


def unique_items(items: Iterable[Item]) -> list[Item]:
    """Return the items without repetition, in the order of their first appearance."""
    return list(dict.fromkeys(items))


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key, in the order in which the keys first appear."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by_contrast(items: Iterable[WithContrast]) -> dict[str, list[WithContrast]]:
    """Return the items by contrast, in the order of a report."""
    groups = group_by(items, lambda item: item.contrast)
    return {contrast: groups[contrast] for contrast in sorted(groups, key=contrast_order)}


def main_estimates(record: Record) -> list[Estimate]:
    """Return the attacks' estimates for the main tables: those on fair draws, if there are any.

    In a fair draw, coins decide which of a client's samples are members.
    """
    estimates = most_summarised(record.findings)
    fair = [estimate for estimate in estimates if estimate.fair]
    return fair if any(estimate.value is not None for estimate in fair) else estimates


def most_summarised(estimates: Iterable[Estimate], *, headline: bool = True) -> list[Estimate]:
    """Return estimates on membership, preferably means over seeds and estimates of pooled clients.

    If ``headline``, return AUCs and TPRs of attacks; otherwise, return other metrics, such as ε.
    """
    estimates = list(estimates)
    contrasts = {
        estimate.contrast
        for estimate in estimates
        if estimate.is_of_attack and estimate.n_nonmembers
    }
    # If there is only one other kind of non-members, "mixed" equals it.
    repeats = len(contrasts) == 2 and "mixed" in contrasts
    shown = [
        f
        for f in estimates
        if not (repeats and f.contrast == "mixed")
        and (f.is_of_attack and f.metric in metric_names.HEADLINE_METRICS) == headline
    ]
    levels = group_by(shown, lambda f: (f.attack, f.defense, f.view, "" if headline else f.metric))
    return [
        estimate
        for estimates_of_level in levels.values()
        for estimate in _over_seeds_and_clients(estimates_of_level)
    ]


def _over_seeds_and_clients(estimates: list[Estimate]) -> list[Estimate]:
    over_seeds = [estimate for estimate in estimates if estimate.seed is None] or estimates
    over_clients = [estimate for estimate in over_seeds if estimate.target is None]
    if any(estimate.within == "client" for estimate in over_clients):
        # Pooled clients come first. Single clients follow, since one may leak far more than others.
        return over_clients + [estimate for estimate in over_seeds if estimate.target is not None]
    return over_clients or over_seeds


def pooled_estimates(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Return the estimates over all audited clients, with members compared within their client."""
    return [f for f in estimates if f.target is None and f.within == "client"]


def setting_of(estimate: Estimate) -> Setting:
    """Return the setting of an estimate."""
    return Setting(estimate.defense, estimate.view, estimate.target, estimate.seed)


def setting_labels(settings: Iterable[Setting]) -> dict[Setting, str]:
    """Return a label for each setting, made of the parts that differ between settings."""
    names = {setting: _parts(setting) for setting in settings}
    varies = [len(set(values)) > 1 for values in zip(*names, strict=True)]
    return {s: shorten(" · ".join(compress(parts, varies)), 120) for s, parts in names.items()}


def _parts(setting: Setting) -> tuple[str, ...]:
    target = "pooled clients" if setting.target is None else client_name(setting.target)
    seed = "over seeds" if setting.seed is None else f"seed {setting.seed}"
    return defense_name(setting.defense), f"view: {shorten(setting.view)}", target, seed


def labels_by_setting(estimates: Iterable[Estimate]) -> dict[Setting, str]:
    """Return a label for each setting among estimates; the label of a single setting is empty."""
    return setting_labels(map(setting_of, estimates))


def has_membership(record: Record) -> bool:
    """Return True if a record has estimates of membership attacks, or has no other topic."""
    return bool(main_estimates(record)) or not (record.sources or record.clusters)


def named_attacks(record: Record) -> Collection[str]:
    """Return the attacks that the user named, by their catalogue names."""
    attacks = record.config.get("attacks")
    return attacks if isinstance(attacks, dict) else ()


def attacks_tried(record: Record) -> int:
    """Return the number of attacks that computed scores."""
    return sum(row.status == "run" for row in record.attacks)


def is_uninformative(record: Record) -> bool:
    """Return True if a record demonstrates a flawed evaluation, whose estimates show no leakage."""
    return record.evaluation == "redraw" or record.null_members


def estimate_of_metric(
    record: Record, metric: str, *, same_defense_as: Estimate | None = None
) -> Estimate | None:
    """Return a metric's estimate over all seeds, or of one seed; None if the record has neither.

    If ``same_defense_as`` is given, only estimates under the defense of this estimate are used.
    """
    estimates = [
        estimate
        for estimate in record.where(metric=metric)
        if estimate.value is not None
        and (same_defense_as is None or estimate.defense == same_defense_as.defense)
    ]
    return min(estimates, key=lambda estimate: estimate.seed is not None, default=None)


class Outcomes(NamedTuple):
    """Controls that ran, controls that failed, and the numbers that passed or were not run."""

    ran: list[ControlResult]
    failed: list[ControlResult]
    passed: int
    not_run: int


def outcomes_of(controls: Iterable[ControlResult]) -> Outcomes:
    """Sort controls by outcome."""
    results = list(controls)
    ran = [control for control in results if control.passed is not None]
    failed = [control for control in ran if not control.passed]
    return Outcomes(ran, failed, len(ran) - len(failed), len(results) - len(ran))
