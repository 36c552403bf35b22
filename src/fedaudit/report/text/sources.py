"""Source inference: each attack with its runs, the size of a leak, and sentences about both."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from fedaudit.report import evidence, words
from fedaudit.report.grid import shortened
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Record
from fedaudit.results.sources import (
    FAIR,
    LABEL_BASELINE,
    LABELS,
    OLDER_LEVEL,
    SourceResult,
    has_older_level,
)

SAME_LABELS = "all with the label distribution of an audited client"
"""Mark of samples of a fair draw, in which classes do not reveal the client."""

Run: TypeAlias = SourceResult
"""Result of one attack in one run."""


class Named(NamedTuple):
    """One attack under one defense and view.

    Attributes:
        success: Over its runs.
        excess: The same less what label distributions alone explain.
        over_baseline: The same less the label-distribution baseline; None where it is not known.
        runs: One a seed.
        on_fair_draw: Success on samples of a fair draw, beside that on clients' own samples; None
            where the record has no other draw than the leading one.
    """

    success: Estimate
    excess: Estimate
    over_baseline: Estimate | None
    runs: tuple[Run, ...] = ()
    on_fair_draw: Estimate | None = None

    @property
    def chance(self) -> float:
        """Success of a guess."""
        return self.success.level or 0.0

    @property
    def mixes(self) -> float:
        """Success that label distributions alone explain."""
        return self.excess.level or 0.0

    @property
    def older_level(self) -> str:
        """A sentence on the level of label distributions if an earlier version made it, or ""."""
        return OLDER_LEVEL if has_older_level(self.excess) else ""

    @property
    def baseline(self) -> float | None:
        """Success of the label-distribution baseline."""
        return None if self.over_baseline is None else self.over_baseline.level

    @property
    def above_guessing(self) -> bool:
        """True where success is above guessing, by test and interval."""
        return bool(above_chance(self.success))

    @property
    def above_mixes(self) -> bool:
        """True where it is above label distributions, and above guessing too."""
        return self.above_guessing and bool(above_chance(self.excess))


def on_sources(record: Record) -> tuple[Named, ...]:
    """Return every source attack of a record, those without a defense first."""
    figures = [one for one in record.on_sources if one.seed is None]
    fair = {
        (one.attack, one.defense, one.view): one
        for one in record.on_fair_sources
        if one.seed is None and not one.against
    }
    found = [
        one._replace(
            on_fair_draw=fair.get((one.success.attack, one.success.defense, one.success.view))
        )
        for one in named_in(figures, record.sources)
    ]
    return tuple(sorted(found, key=lambda one: one.success.defense not in ("", NO_DEFENSE)))


def named_in(figures: Iterable[Estimate], answers: Sequence[Run] = ()) -> list[Named]:
    """Return the attacks that figures are of, with their answers in each run."""
    of = evidence.grouped(figures, lambda one: (one.attack, one.defense, one.view))
    found = {key: {one.against: one for one in same} for key, same in of.items()}
    runs = evidence.grouped(answers, lambda run: (run.attack, run.defense, run.view))
    return [
        Named(one[""], one[LABELS], one.get(LABEL_BASELINE), tuple(runs.get(key, ())))
        for key, one in found.items()
        if {"", LABELS} <= one.keys()
    ]


def labels_of_named(named: Sequence[Named]) -> list[str]:
    """Return a name for each: the attack, and its defense and view where these differ."""
    parts = [
        (
            shortened(one.success.attack, 60),
            shortened(words.defense_name(one.success.defense), 60),
            f"view: {shortened(one.success.view)}",
        )
        for one in named
    ]
    varies = [len({part[place] for part in parts}) > 1 for place in range(3)]
    return [
        " · ".join(text for place, text in enumerate(part) if place == 0 or varies[place])
        for part in parts
    ]


def strongest_on_sources(named: Sequence[Named]) -> Named | None:
    """Return the one with the largest excess by its lower limit, else the highest success."""
    return max(named, key=_shown, default=None)


def excess_size(figure: Named) -> evidence.Size | None:
    """Return the size of the leak that is shown at least beyond label distributions."""
    if not figure.above_mixes:
        return None
    return evidence.size_reached_by(beyond(evidence.least_of(figure.excess), figure.mixes))


def beyond(excess: float, level: float) -> float:
    """Return an excess over a level, as a share of what that level leaves open."""
    return excess / (1 - level) if level < 1 else 0.0


def most_beyond(figure: Named) -> float:
    """Return the upper limit of a success, as a share of what guessing leaves open.

    Against guessing and not against label distributions, so that "no leak shown" covers both.
    """
    return beyond(evidence.highest_of(figure.success) - figure.chance, figure.chance)


def look_of_source(figure: Named) -> evidence.Look:
    """Return the marking of a success in tables."""
    if figure.success.doubt:
        return evidence.DOUBTED
    if not figure.above_guessing:
        return (
            evidence.Look("△ ", "", "size open") if figure.success.significant else evidence.Look()
        )
    size = excess_size(figure)
    if size is None:
        return evidence.Look("▷ ", "", "mixes may be all")
    return evidence.Look("▲ ", evidence.tone_of(size), size)


def _shown(one: Named) -> tuple[bool, bool, float]:
    value = beyond(evidence.least_of(one.excess), one.mixes)
    strength = value if one.above_mixes else one.success.number
    return one.above_mixes, one.above_guessing, strength


SOURCE_HEADLINES: Mapping[evidence.Status, str] = {
    "strong leak": "Strong source leakage: attacks identify the client of a sample far more "
    "often than label distributions explain",
    "clear leak": "Clear source leakage: attacks identify the client of a sample clearly more "
    "often than label distributions explain",
    "weak leak": "Weak source leakage: attacks identify the client of a sample somewhat more "
    "often than label distributions explain",
    "trace of a leak": "A trace of source leakage: attacks identify the client of a sample "
    "hardly more often than label distributions explain",
    "above guessing": "Attacks identify the client of a sample more often than guessing, but "
    "are not shown to do so more often than label distributions explain",
    "inconclusive": "Inconclusive about source inference: this audit is too small to say "
    "whether attacks identify the client of a sample",
    "no leak shown": "No leak of sources shown by the attacks that were run",
}

_DO_NOT_PROMISE = "do not promise that sources stay hidden."
SOURCE_MEANINGS: Mapping[evidence.Status, str] = {
    "strong leak": "An adversary with this view names the client of many training samples, where "
    "label distributions alone would not reveal it. Treat the source of a sample as disclosed.",
    "clear leak": "An adversary with this view names the client of a training sample clearly more "
    f"often than label distributions allow: {_DO_NOT_PROMISE}",
    "weak leak": "An adversary with this view names a few owners that label distributions alone "
    f"would not reveal: {_DO_NOT_PROMISE}",
    "trace of a leak": "Barely any owner is named that label distributions alone would not reveal. "
    f"It is a leak all the same: {_DO_NOT_PROMISE}",
    "above guessing": "The classes that a client holds may be all that identifies its samples. "
    "Where these are a secret, it is a leak all the same.",
    "inconclusive": "The intervals on sources are too wide to tell a leak from none. That is not a "
    "sign of safety. More audited samples of each client narrow them, and more seeds.",
    "no leak shown": "These attacks do not name owners more often than guessing here.",
}


def wrong_side(named: Sequence[Named]) -> list[Named]:
    """Return attacks that are right less often than a guess: their scores may be inverted."""
    return [one for one in named if evidence.highest_of(one.success) < one.chance]


def source_status(named: Sequence[Named]) -> evidence.Status:
    """Return the verdict on sources alone."""
    size = evidence.largest([found for figure in named if (found := excess_size(figure))])
    if size is not None:
        return evidence.LEAKS[size]
    if any(figure.above_guessing for figure in named):
        return "above guessing"
    if wrong_side(named):
        return "inconclusive"
    # A test that finds something, in one seed of several, is no sign of none.
    open_still = any(f.success.significant or evidence.leaves_doubt(most_beyond(f)) for f in named)
    return "inconclusive" if open_still else "no leak shown"


def source_meaning(status: evidence.Status, named: Sequence[Named]) -> str:
    """Return what follows from the verdict on sources, and what does not."""
    if status != "no leak shown":
        return SOURCE_MEANINGS[status]
    highs = [evidence.highest_of(one.success) for one in named]
    return (
        f"{SOURCE_MEANINGS[status]} What could still be hidden: owners named in up to "
        f"{words.percent(max(highs))} of cases. This is a measurement, not a proof."
    )


def source_question(record: Record) -> str:
    """Return what was asked: "120 samples, 12 of each of 10 clients"; seeds together."""
    samples = words.from_to([run.samples for run in record.sources], "–")
    each = words.from_to([run.samples // len(run.clients) for run in record.sources], "–")
    clients = words.from_to([len(run.clients) for run in record.sources], "–")
    draw = f", {SAME_LABELS}" * any(one.contrast == FAIR for one in record.on_sources)
    return f"{samples} samples, {each} of each of {clients} clients{draw}"


def source_sentence(record: Record) -> str:
    """Return the sentence of the section on sources: what was asked, and what qualifies it."""
    best = strongest_on_sources(on_sources(record))
    if best is None:
        return ""
    parts = [f"Asked of {source_question(record)}: whose sample is it?", best.older_level]
    if best.on_fair_draw is None and best.success.contrast == FAIR:
        parts.append(
            "In these samples classes reveal no client. Of random samples of each client's own "
            "data more may be named (audit.sources)."
        )
    absent = max((len(run.absent) for one in on_sources(record) for run in one.runs), default=0)
    if absent:
        parts.append(
            f"No measured round shows a model of {words.plural(absent, 'client')}, whose samples "
            "could not be named."
        )
    if best.baseline is None:
        parts.append("This record, of an earlier version, has no label-distribution baseline.")
    return " ".join(filter(None, parts))


def limits_in_words(figure: Estimate) -> str:
    """Return "95% interval 39.1–57.6%"; of a difference in percentage points."""
    limits = words.interval_of(figure)
    return f"95% interval {limits}" if limits else "no interval"
