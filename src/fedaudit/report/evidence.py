"""Figures that stand in front of a report, and the size of the leak that each shows."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Literal, NamedTuple, TypeVar, get_args

from fedaudit.core import metric_names
from fedaudit.report.grid import Tone, shortened
from fedaudit.report.wording import client_name, contrast_order, defense_name
from fedaudit.results.comparison import AttackEntry, Front
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import HIDES_LEAKS, above_chance, by_test_alone
from fedaudit.results.record import ControlResult, Curve, Record

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
"""The verdicts, the gravest first. "Above guessing" is of sources: owners are named, but perhaps
by the clients' label distributions alone."""

LEAKS: Mapping[Size, Status] = {
    "strong": "strong leak",
    "clear": "clear leak",
    "weak": "weak leak",
    "trace": "trace of a leak",
}
"""The verdict that goes with a leak of each size."""


class Threshold(NamedTuple):
    """Least lower limits that earn a leak its word.

    Attributes:
        word: The word.
        auc: Of an AUC.
        percent_rate: Of a true-positive rate at 1% false positives, or between that and 0.1%.
        thousandth_rate: The same at 0.1% false positives or fewer.
        share: Of what guessing, or label distributions, leave open, the share that is named.
    """

    word: Size
    auc: float
    percent_rate: float
    thousandth_rate: float
    share: float

    def of(self, metric: str) -> float | None:
        """Return the least lower limit of a metric; None if the metric has no words."""
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
    Threshold("strong", 0.7, 0.1, 0.05, 0.3),
)
"""The words for a leak, smallest first. "Trace" is all that lies above guessing; of a rate, by its
exact test. The best guess at membership that AUCs of 0.55, 0.6 and 0.7 allow has an advantage of
about 7, 14 and 29%, and the share is that advantage for two clients of the same label
distribution."""

ROOM_FOR_DOUBT: Size = "clear"
"""An upper limit that reaches this size leaves too much room to speak of "no leak shown"."""


def size_reached(value: float, metric: str) -> Size | None:
    """Return the largest word that a value earns; None at guessing, below, or without words."""
    reached: Size | None = None
    for threshold in SIZES:
        limit = threshold.of(metric)
        if limit is not None and (value > limit or (value == limit and reached)):
            reached = threshold.word
    return reached


def size_reached_by(share: float) -> Size | None:
    """Return the largest word that a share of what is left open earns."""
    return largest([one.word for one in SIZES if share >= one.share]) if share > 0 else None


def leaves_doubt(share: float) -> bool:
    """Return True if an upper limit, as a share of what is left open, allows too large a leak."""
    return size_reached_by(share) in ("strong", ROOM_FOR_DOUBT)


def status_between(least: Iterable[float], most: Iterable[float]) -> Status:
    """Return the verdict on shares of what guessing leaves open, by their lower and upper limits.

    The largest lower limit has the word. Without upper limits there is room for doubt.
    """
    size, highs = largest([s for one in least if (s := size_reached_by(one))]), list(most)
    if size is not None:
        return LEAKS[size]
    return "inconclusive" if not highs or any(map(leaves_doubt, highs)) else "no leak shown"


def least_of(figure: Estimate) -> float:
    """Return the lower limit; the value if there is none."""
    return figure.number if figure.low is None else figure.low


def highest_of(figure: Estimate) -> float:
    """Return the upper limit; 1 if there is none."""
    return 1.0 if figure.high is None else figure.high


def gravest(statuses: Sequence[Status]) -> Status:
    """Return the one of several verdicts that stands in front."""
    return min(statuses, key=get_args(Status).index)


def a_leak(size: Size) -> str:
    """Return a size in running text: "a weak leak"."""
    return f"a {LEAKS[size]}"


def largest(sizes: list[Size]) -> Size | None:
    """Return the largest of several sizes; None of none."""
    return max(sizes, key=_ORDER.index, default=None)


def size_of(figure: Estimate) -> Size | None:
    """Return the size of the leak that a figure above guessing shows at least; None elsewhere.

    It is the size by the lower limit, since a reader looks at the largest of many figures, whose
    value errs upward. Without an interval the value itself has to do, except for a rate, whose
    threshold is not known. A rate that its test finds above guessing and that has too few
    non-members for a larger lower limit is a trace.
    """
    if not above_chance(figure) or figure.value is None:
        return None
    size = size_reached(_at_least(figure), figure.metric)
    if metric_names.rate_of(figure.metric) is None:
        return size
    if figure.low is None and figure.high is None:
        return None
    return size or (SIZES[0].word if SIZES[0].of(figure.metric) else None)


def size_range(figure: Estimate) -> tuple[Size, Size] | None:
    """Return the sizes by the lower and the upper limit if no single word fits the figure.

    That is if the word of the value is at least two words above that of the lower limit: the
    smaller word would hide the best estimate, and contradict other figures of the same samples.
    """
    least, value = size_of(figure), figure.value
    by_value = None if value is None else size_reached(value, figure.metric)
    if least is None or by_value is None or _ORDER.index(by_value) - _ORDER.index(least) < 2:
        return None
    most = size_reached(figure.high, figure.metric) if figure.high is not None else "strong"
    return least, most or by_value


def size_words(figure: Estimate) -> str:
    """Return the size of a leak in running text; empty if the figure is not above guessing."""
    between, size = size_range(figure), size_of(figure)
    if between is not None:
        return f"a leak of a size between {between[0]} and {between[1]}"
    return a_leak(size) if size else ""


def _at_least(figure: Estimate) -> float:
    """Return the lower limit; without one, 0 of a rate and the value of anything else."""
    if figure.low is not None:
        return figure.low
    return 0.0 if metric_names.rate_of(figure.metric) is not None else figure.value or 0.0


def _shown_at_least(figure: Estimate) -> tuple[int, float, float]:
    return _size_rank(figure), _at_least(figure), figure.value or 0.0


def _size_rank(figure: Estimate) -> int:
    size = size_of(figure)
    return -1 if size is None else _ORDER.index(size)


def leading(figures: list[Estimate]) -> tuple[Estimate, ...]:
    """Return the figures that stand for the rest wherever one is named: tile, headline, sentence.

    They are the AUC and the rate above guessing that show most of a leak by their lower limits; of
    equal rates that at fewest false positives. The one with the larger word comes first, the AUC
    if the words are the same.
    """
    above = grouped(filter(above_chance, figures), lambda figure: figure.metric)
    most = {metric: max(same, key=_shown_at_least) for metric, same in above.items()}
    rates = sorted(filter(metric_names.rate_of, most), key=lambda m: metric_names.rate_of(m) or 0)
    rate = max((most[metric] for metric in rates), key=_size_rank, default=None)
    found = [figure for figure in (most.get(metric_names.AUC), rate) if figure is not None]
    return tuple(sorted(found, key=lambda figure: -_size_rank(figure)))


def strongest(figures: Iterable[Estimate], metric: str) -> Estimate | None:
    """Return the figure of a metric with the largest value; None if all were refused."""
    given = [figure for figure in figures if figure.metric == metric and figure.value is not None]
    return max(given, key=lambda figure: figure.value or 0.0, default=None)


class Look(NamedTuple):
    """Marking of a figure: the sign before it, its colour, and the word for its size."""

    sign: str = ""
    tone: Tone = ""
    word: str = ""


DOUBTED = Look("✗ ", "", "not relied on")
"""Marking of a figure that a failed control takes back."""
SIZE_OPEN = Look("△ ", "", "size open")
"""Marking of a figure above guessing by its test alone."""


def look_of(figure: Estimate) -> Look:
    """Return the marking of a figure in tables."""
    if figure.doubt:
        return DOUBTED
    if by_test_alone(figure):
        return SIZE_OPEN
    if not above_chance(figure):
        return Look()
    size, between = size_of(figure), size_range(figure)
    return Look("▲ ", tone_of(size), " to ".join(between) if between else size or "")


def tone_of(size: Size | None) -> Tone:
    """Return the colour of a leak that is above guessing."""
    return size if size and size != "trace" else "raised"


class Setting(NamedTuple):
    """Setting of a table of figures; None is over all of them."""

    defense: str
    view: str
    target: int | None
    seed: int | None


Kept = TypeVar("Kept")
Key = TypeVar("Key", bound=Hashable)
Against = TypeVar("Against", bound=Estimate | Curve | AttackEntry | Front)


def distinct(items: Iterable[Kept]) -> list[Kept]:
    """Return the items without repetition, in the order of their first appearance."""
    return list(dict.fromkeys(items))


def grouped(items: Iterable[Kept], key: Callable[[Kept], Key]) -> dict[Key, list[Kept]]:
    """Return the items by what they have in common, in the order of its first appearance."""
    found: dict[Key, list[Kept]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def by_contrast(items: Iterable[Against]) -> dict[str, list[Against]]:
    """Return the items by the kind of their non-members, in a report's order."""
    found = grouped(items, lambda one: one.contrast)
    return {contrast: found[contrast] for contrast in sorted(found, key=contrast_order)}


def headline(record: Record) -> list[Estimate]:
    """Return the figures of attacks for the main tables: the fair ones, if there are any."""
    figures = summarised(record.findings)
    fair = [figure for figure in figures if figure.fair]
    return fair if any(figure.value is not None for figure in fair) else figures


def summarised(figures: Iterable[Estimate], *, headline: bool = True) -> list[Estimate]:
    """Return figures at their most summarised level: over seeds and clients if there are such.

    Args:
        figures: Figures on membership.
        headline: True for AUCs and rates of attacks; False for others, such as a proven epsilon.
    """
    shown = [
        f
        for f in _without_repeats(list(figures))
        if (bool(f.attack) and f.metric in metric_names.HEADLINE_METRICS) == headline
    ]
    levels = grouped(shown, lambda f: (f.attack, f.defense, f.view, "" if headline else f.metric))
    return [figure for same in levels.values() for figure in _most_summarised(same)]


def _without_repeats(figures: list[Estimate]) -> list[Estimate]:
    """Without "mixed" where only one kind of non-members gave figures: it is the same again."""
    given = {figure.contrast for figure in figures if figure.attack and figure.n_nonmembers}
    if len(given) == 2 and "mixed" in given:
        return [figure for figure in figures if figure.contrast != "mixed"]
    return figures


def _most_summarised(figures: list[Estimate]) -> list[Estimate]:
    over_seeds = [figure for figure in figures if figure.seed is None] or figures
    over_clients = [figure for figure in over_seeds if figure.target is None]
    if any(figure.within == "client" for figure in over_clients):
        # Pooled clients first; a single one of them may leak far more than all together.
        return over_clients + [figure for figure in over_seeds if figure.target is not None]
    return over_clients or over_seeds


def pooled(figures: Iterable[Estimate]) -> list[Estimate]:
    """Return the figures over all audited clients, each compared within its own draw."""
    return [one for one in figures if one.target is None and one.within == "client"]


def setting_of(figure: Estimate) -> Setting:
    """Return the setting that a figure was found in."""
    return Setting(figure.defense, figure.view, figure.target, figure.seed)


def differing(settings: Iterable[Setting]) -> dict[Setting, str]:
    """Return a label for each setting that names only what differs between them."""
    every = distinct(settings)
    varies = [len(set(values)) > 1 for values in zip(*every, strict=True)]
    return {one: shortened(" · ".join(compress(_parts(one), varies)), 120) for one in every}


def _parts(setting: Setting) -> tuple[str, ...]:
    target = "pooled clients" if setting.target is None else client_name(setting.target)
    seed = "over seeds" if setting.seed is None else f"seed {setting.seed}"
    return defense_name(setting.defense), f"view: {shortened(setting.view)}", target, seed


def labels_among(figures: Iterable[Estimate]) -> dict[Setting, str]:
    """Return for each setting the part that distinguishes it; empty if nothing does."""
    return differing(map(setting_of, figures))


def label_among(figure: Estimate, figures: list[Estimate]) -> str:
    """Return the part of a figure's setting that distinguishes it from others."""
    return labels_among(figures)[setting_of(figure)]


def above_chance_attacks(record: Record) -> set[tuple[str, str, int | None]]:
    """Return the attacks with a figure above guessing, each with its defense and client."""
    found = [figure for figure in headline(record) if above_chance(figure)]
    return {(figure.attack, figure.defense, figure.target) for figure in found}


def about_members(record: Record) -> bool:
    """Return True if a record has figures of membership attacks, or is about nothing else."""
    return bool(headline(record)) or not (record.sources or record.clusters)


def named_attacks(record: Record) -> Collection[str]:
    """Return the attacks that the user named, by their catalogue names."""
    attacks = record.config.get("attacks")
    return attacks if isinstance(attacks, dict) else ()


def attacks_tried(record: Record) -> int:
    """Return the number of attacks that gave scores."""
    return sum(row.status == "run" for row in record.attacks)


def says_nothing(record: Record) -> bool:
    """Return True if a record was made to show a flaw, and its figures describe no leakage."""
    return record.evaluation == "redraw" or record.nobody_is_a_member


def over_all_runs(record: Record, metric: str, *, like: Estimate | None = None) -> Estimate | None:
    """Return a figure of the run itself over all runs, or that of one run; None without any.

    With ``like`` only figures under the defense of that figure count.
    """
    figures = [
        one
        for one in record.where(metric=metric)
        if one.value is not None and (like is None or one.defense == like.defense)
    ]
    return min(figures, key=lambda one: one.seed is not None, default=None)


def at_ceiling(bound: Estimate) -> bool:
    """Return True if a lower bound is all that its test could have shown."""
    return bool(bound.ceiling) and bound.number >= (bound.ceiling or 0.0) * (1 - 1e-9)


class Checks(NamedTuple):
    """Controls that ran, those of them that failed, and the number of those that cannot tell."""

    ran: list[ControlResult]
    failed: list[ControlResult]
    untold: int = 0

    @property
    def passed(self) -> int:
        """Number of those that hold."""
        return len(self.ran) - len(self.failed)


def checks_of(controls: Iterable[ControlResult]) -> Checks:
    """Return controls by outcome."""
    every = list(controls)
    ran = [control for control in every if control.passed is not None]
    return Checks(ran, [control for control in ran if not control.passed], len(every) - len(ran))


def takes_figures_back(record: Record) -> bool:
    """Return True if a failed control takes figures of all attacks back."""
    failed = checks_of(record.controls).failed
    return any(not one.attack and one.control not in HIDES_LEAKS for one in failed)
