"""Figures that stand in front of a report, and the size of the leak that each shows."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar, get_args

from fedaudit.core import metric_names
from fedaudit.report.grid import Tone, shortened
from fedaudit.report.words import client_name, contrast_order, defense_name
from fedaudit.results.comparison import AttackEntry, Front
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import above_chance, by_test_alone
from fedaudit.results.record import ControlResult, Curve, Record

Size = Literal["trace", "weak", "clear", "strong"]

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
    """Least figures that earn a leak its word.

    Attributes:
        word: The word.
        auc: Lower limit of an AUC that earns it.
        percent_rate: Lower limit of a true-positive rate at 1% false positives, or at some rate
            between that and 0.1%.
        thousandth_rate: The same at 0.1% false positives or fewer.
        share: Of what guessing, or label distributions, leave open, the share that is named.
    """

    word: Size
    auc: float
    percent_rate: float
    thousandth_rate: float
    share: float


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

_ARTICLES: dict[Size, str] = {
    "trace": "a trace of a leak",
    "weak": "a weak leak",
    "clear": "a clear leak",
    "strong": "a strong leak",
}


class Look(NamedTuple):
    """Marking of a figure: the sign before it, its colour, and the word for its size."""

    sign: str = ""
    tone: Tone = ""
    word: str = ""


def size_reached(value: float, metric: str) -> Size | None:
    """The largest word that a value earns; None at guessing or below, or without words for it."""
    reached: Size | None = None
    for threshold in SIZES:
        limit = _threshold(threshold, metric)
        if limit is not None and (value > limit or (value == limit and reached)):
            reached = threshold.word
    return reached


def size_reached_by(share: float) -> Size | None:
    """The largest word that a share of what is left open earns."""
    if share <= 0:
        return None
    return largest([threshold.word for threshold in SIZES if share >= threshold.share])


def leaves_doubt(share: float) -> bool:
    """True where an upper limit, as a share of what is left open, allows too large a leak."""
    return size_reached_by(share) in ("strong", ROOM_FOR_DOUBT)


def status_between(least: Iterable[float], most: Iterable[float]) -> Status:
    """The verdict on some shares of what guessing leaves open.

    Args:
        least: Their lower limits, of which the largest has the word.
        most: Their upper limits, which must leave no room for doubt; without any there is some.
    """
    size, highs = largest([s for one in least if (s := size_reached_by(one))]), list(most)
    if size is not None:
        return LEAKS[size]
    return "inconclusive" if not highs or any(map(leaves_doubt, highs)) else "no leak shown"


def least_of(figure: Estimate) -> float:
    """The lower limit; the value where there is none."""
    return figure.number if figure.low is None else figure.low


def highest_of(figure: Estimate) -> float:
    """The upper limit; 1 where there is none."""
    return 1.0 if figure.high is None else figure.high


def _threshold(threshold: Threshold, metric: str) -> float | None:
    if metric == metric_names.AUC:
        return threshold.auc
    rate = metric_names.rate_of(metric)
    if rate is None or rate > 0.01:
        return None
    return threshold.thousandth_rate if rate <= 0.001 else threshold.percent_rate


def gravest(statuses: Sequence[Status]) -> Status:
    """The one of several verdicts that stands in front."""
    return min(statuses, key=get_args(Status).index)


def a_leak(size: Size) -> str:
    """The size in running text: "a weak leak"."""
    return _ARTICLES[size]


def largest(sizes: list[Size]) -> Size | None:
    """The largest of several sizes; None of none."""
    order = [threshold.word for threshold in SIZES]
    return max(sizes, key=order.index, default=None)


def size_of(figure: Estimate) -> Size | None:
    """Size of the leak that a figure shows at least: by its lower limit, if it is above guessing.

    The lower limit, since a reader looks at the largest of many figures, whose value errs
    upward. Without an interval the value itself has to do, but for a rate: its threshold is not
    known, and limits at the threshold used are none of the rate. A rate that its test finds above
    guessing and that has too few non-members for a larger lower limit is a trace.
    """
    if not above_chance(figure) or figure.value is None:
        return None
    if metric_names.rate_of(figure.metric) is None:
        return size_reached(_at_least(figure), figure.metric)
    if figure.low is None and figure.high is None:
        return None
    least = _threshold(SIZES[0], figure.metric)
    return size_reached(_at_least(figure), figure.metric) or (SIZES[0].word if least else None)


def size_range(figure: Estimate) -> tuple[Size, Size] | None:
    """Return the sizes by the lower and the upper limit where no single word fits the figure.

    That is where the word of the value itself is at least two words above that of the lower limit,
    as a trace is below a clear leak: the smaller word would hide the best estimate, and contradict
    a larger word for another figure of the same samples. None elsewhere.
    """
    least = size_of(figure)
    if least is None or figure.value is None:
        return None
    by_value, order = size_reached(figure.value, figure.metric), get_args(Size)
    if by_value is None or order.index(by_value) - order.index(least) < 2:
        return None
    most = size_reached(figure.high, figure.metric) if figure.high is not None else "strong"
    return least, most or by_value


def size_words(figure: Estimate) -> str:
    """Return the size of a leak in running text; empty if the figure is not above guessing."""
    between = size_range(figure)
    if between is not None:
        return f"a leak of a size between {between[0]} and {between[1]}"
    size = size_of(figure)
    return a_leak(size) if size else ""


def _at_least(figure: Estimate) -> float:
    """The lower limit; where there is none, 0 of a rate and the value of anything else."""
    if figure.low is not None:
        return figure.low
    return 0.0 if metric_names.rate_of(figure.metric) is not None else figure.value or 0.0


def strongest_found(figures: list[Estimate], metric: str) -> Estimate | None:
    """The figure above guessing that shows most of a leak: by its lower limit, as its word is.

    None where none of that metric is above guessing.
    """
    found = [figure for figure in figures if figure.metric == metric and above_chance(figure)]
    return max(found, key=_shown_at_least, default=None)


def _shown_at_least(figure: Estimate) -> tuple[int, float, float]:
    order: list[Size | None] = [None, *(threshold.word for threshold in SIZES)]
    return order.index(size_of(figure)), _at_least(figure), figure.value or 0.0


def leading(figures: list[Estimate]) -> tuple[Estimate, ...]:
    """The figures that stand for the rest wherever one is named: tile, headline and sentence.

    The AUC above guessing and the rate above guessing that show most of a leak, each by its lower
    limit; the one with the larger word first, the AUC where the words are the same.
    """
    found = [strongest_found(figures, metric_names.AUC), rate_found(figures)]
    given = [figure for figure in found if figure is not None]
    return tuple(sorted(given, key=lambda figure: -_shown_at_least(figure)[0]))


def rate_found(figures: list[Estimate]) -> Estimate | None:
    """The rate above guessing with the largest word; of equals, that at fewest false alarms.

    None where no rate is above guessing.
    """
    rates = sorted(
        {f.metric for f in figures if metric_names.rate_of(f.metric)},
        key=lambda m: metric_names.rate_of(m) or 0,
    )
    found = [figure for m in rates if (figure := strongest_found(figures, m)) is not None]
    return max(found, key=lambda figure: _shown_at_least(figure)[0], default=None)


DOUBTED = Look("✗ ", "", "not relied on")
"""Marking of a figure that a failed control takes back."""


def look_of(figure: Estimate) -> Look:
    """Marking of a figure in tables."""
    if figure.doubt:
        return DOUBTED
    if by_test_alone(figure):
        return Look("△ ", "", "size open")
    if not above_chance(figure):
        return Look()
    size, between = size_of(figure), size_range(figure)
    word = f"{between[0]} to {between[1]}" if between else size or ""
    return Look("▲ ", tone_of(size), word)


def tone_of(size: Size | None) -> Tone:
    """The colour of a leak that is above guessing."""
    tones: dict[Size | None, Tone] = {None: "raised", "trace": "raised", "weak": "weak"}
    tones |= {"clear": "clear", "strong": "strong"}
    return tones[size]


class Setting(NamedTuple):
    """Setting of a table of figures; None stands for "over all of them"."""

    defense: str
    view: str
    target: int | None
    seed: int | None


class Subject(NamedTuple):
    """Subject of a figure, whichever run it was found in."""

    attack: str
    defense: str
    view: str
    contrast: str
    target: int | None
    metric: str


RunsBehind = Mapping[Subject, list[Estimate]]
"""The figures of single runs, by what they are of."""

Kept = TypeVar("Kept")
Key = TypeVar("Key", bound=Hashable)
Against = TypeVar("Against", bound=Estimate | Curve | AttackEntry | Front)


def setting_of(figure: Estimate) -> Setting:
    """The setting that a figure was found in."""
    return Setting(figure.defense, figure.view, figure.target, figure.seed)


def distinct(items: Iterable[Kept]) -> list[Kept]:
    """The items without repetition, in the order of their first appearance."""
    return list(dict.fromkeys(items))


def grouped(items: Iterable[Kept], key: Callable[[Kept], Key]) -> dict[Key, list[Kept]]:
    """The items by what they have in common, in the order of its first appearance."""
    found: dict[Key, list[Kept]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def by_contrast(items: Iterable[Against]) -> dict[str, list[Against]]:
    """The items by the kind of non-members that they are against, in a report's order."""
    found = grouped(items, lambda one: one.contrast)
    return {contrast: found[contrast] for contrast in sorted(found, key=contrast_order)}


def headline(record: Record) -> list[Estimate]:
    """The figures of attacks for the main tables, each attack at its most summarised level.

    Where figures over several runs (``seed=None``) exist for an attack, its figures of single
    runs are left to the list of all figures; the same for targets.
    """
    figures = summarised(record.findings)
    fair = [figure for figure in figures if figure.fair]
    return fair if any(figure.value is not None for figure in fair) else figures


def over_all_runs(record: Record, metric: str, *, like: Estimate | None = None) -> Estimate | None:
    """Return a figure of the run itself over all runs, or that of one run; None without any.

    Args:
        record: The record.
        metric: The metric.
        like: Figure whose defense is asked for; any defense by default.
    """
    figures = [
        one
        for one in record.where(metric=metric)
        if one.value is not None and (like is None or one.defense == like.defense)
    ]
    return min(figures, key=lambda one: one.seed is not None, default=None)


def at_ceiling(bound: Estimate) -> bool:
    """True where a lower bound is all that its test could have shown."""
    return bool(bound.ceiling) and bound.number >= (bound.ceiling or 0.0) * (1 - 1e-9)


class Checks(NamedTuple):
    """Controls by outcome.

    Attributes:
        ran: Controls that passed or failed.
        failed: Those that failed.
        untold: Number of controls that cannot tell: they could not be run, or have no power.
    """

    ran: list[ControlResult]
    failed: list[ControlResult]
    untold: int = 0

    @property
    def passed(self) -> int:
        """Number of those that hold."""
        return len(self.ran) - len(self.failed)


def checks_of(controls: Iterable[ControlResult]) -> Checks:
    """Count controls by outcome."""
    every = list(controls)
    ran = [control for control in every if control.passed is not None]
    return Checks(ran, [control for control in ran if not control.passed], len(every) - len(ran))


def single_samples(record: Record) -> list[Estimate]:
    """Return the figures of people's samples taken one by one; none if samples are the units."""
    return summarised(record.of_single_samples)


def summarised(figures: Iterable[Estimate], *, headline: bool = True) -> list[Estimate]:
    """Return figures at their most summarised level: over seeds and clients where there are such.

    Args:
        figures: Figures on membership.
        headline: True for AUCs and rates of attacks; False for all other metrics, and for
            figures of the run itself, such as a proven epsilon.
    """
    shown = (
        f
        for f in _without_repeats(list(figures))
        if (bool(f.attack) and f.metric in metric_names.HEADLINE_METRICS) == headline
    )
    levels = grouped(shown, lambda f: (f.attack, f.defense, f.view, "" if headline else f.metric))
    return [figure for same in levels.values() for figure in _most_summarised(same)]


def about_members(record: Record) -> bool:
    """True where a record has figures of membership attacks, or is about nothing else."""
    return bool(headline(record)) or not (record.sources or record.clusters)


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


def key_of(figure: Estimate) -> Subject:
    """Subject of a figure."""
    where = (figure.attack, figure.defense, figure.view, figure.contrast)
    return Subject(*where, figure.target, figure.metric)


def runs_behind(record: Record) -> RunsBehind:
    """The figures of single runs that the record's means are over."""
    return grouped((figure for figure in record.findings if figure.seed is not None), key_of)


def settings_of(figures: list[Estimate]) -> list[Setting]:
    """The settings of the figures, no defense first, else in the record's order."""
    found = distinct(setting_of(figure) for figure in figures)
    return sorted(found, key=lambda setting: setting.defense != NO_DEFENSE)


def differing(settings: list[Setting]) -> list[str]:
    """A label for each setting that names only what differs between them."""
    varies = [len({setting[field] for setting in settings}) > 1 for field in range(4)]
    return [_label(setting, varies) for setting in settings]


def label_among(figure: Estimate, figures: list[Estimate]) -> str:
    """The part of a figure's setting that tells it from others; empty where nothing does."""
    return labels_among(figures)[setting_of(figure)]


def labels_among(figures: Iterable[Estimate]) -> dict[Setting, str]:
    """Return :func:`label_among` for the setting of each figure, worked out once for all."""
    settings = distinct(setting_of(one) for one in figures)
    labels = (shortened(label, 120) for label in differing(settings))
    return dict(zip(settings, labels, strict=True))


def _label(setting: Setting, varies: list[bool]) -> str:
    target = "pooled clients" if setting.target is None else client_name(setting.target)
    seed = "over seeds" if setting.seed is None else f"seed {setting.seed}"
    parts = (defense_name(setting.defense), f"view: {shortened(setting.view)}", target, seed)
    return " · ".join(part for part, differs in zip(parts, varies, strict=True) if differs)


def attacks_tried(record: Record) -> int:
    """Number of attacks gave scores; those refused or failed are listed all the same."""
    return sum(row.status == "run" for row in record.attacks)


def says_nothing(record: Record) -> bool:
    """True where a record was made to show a flaw, and its figures describe no leakage."""
    return record.evaluation == "redraw" or record.nobody_is_a_member


def strongest(figures: Iterable[Estimate], metric: str) -> Estimate | None:
    """The figure of a metric with the largest value; None where all were refused."""
    given = [figure for figure in figures if figure.metric == metric and figure.value is not None]
    return max(given, key=lambda figure: figure.value or 0.0, default=None)


def above_chance_attacks(record: Record) -> set[tuple[str, str, int | None]]:
    """Attacks with a figure above guessing, with the defense and the client it is of."""
    found = [figure for figure in headline(record) if above_chance(figure)]
    return {(figure.attack, figure.defense, figure.target) for figure in found}
