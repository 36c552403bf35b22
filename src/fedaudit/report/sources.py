"""Source inference in a report: attacks with their runs, sentences, table and charts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedaudit.report import evidence, words
from fedaudit.report.figures import drawing
from fedaudit.report.grid import Grid, named, shortened
from fedaudit.report.tables.cells import estimate_table, measured
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import above_chance, alpha_of
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
MOST_TICKS = 10
"""Measured rounds up to which each has a mark on the axis."""


class Named(NamedTuple):
    """One source attack under one defense and view.

    Attributes:
        success: Its success rate over all runs.
        excess: The success rate less what label distributions alone explain.
        over_baseline: The success rate less the label-distribution baseline; None if unknown.
        runs: Results of single runs, one for each seed.
        on_fair_draw: Success rate on samples of a fair draw, in addition to that on clients' own
            samples; None if the record has a single draw.
    """

    success: Estimate
    excess: Estimate
    over_baseline: Estimate | None
    runs: tuple[SourceResult, ...] = ()
    on_fair_draw: Estimate | None = None

    @property
    def chance(self) -> float:
        """Success rate of a guess."""
        return self.success.level or 0.0

    @property
    def mixes(self) -> float:
        """Success rate that label distributions alone explain."""
        return self.excess.level or 0.0

    @property
    def older_level(self) -> str:
        """A sentence on the level of label distributions if an earlier version made it, or ""."""
        return OLDER_LEVEL if has_older_level(self.excess) else ""

    @property
    def baseline(self) -> float | None:
        """Success rate of the label-distribution baseline."""
        return None if self.over_baseline is None else self.over_baseline.level

    @property
    def above_guessing(self) -> bool:
        """True if the success rate is above guessing, by test and interval."""
        return bool(above_chance(self.success))

    @property
    def above_mixes(self) -> bool:
        """True if it is above guessing and above label distributions."""
        return self.above_guessing and bool(above_chance(self.excess))


def on_sources(record: Record) -> tuple[Named, ...]:
    """Return every source attack of a record, those without a defense first."""
    figures = [figure for figure in record.on_sources if figure.seed is None]
    fair = {
        _key(figure): figure
        for figure in record.on_fair_sources
        if figure.seed is None and not figure.against
    }
    attacks = [
        attack._replace(on_fair_draw=fair.get(_key(attack.success)))
        for attack in named_in(figures, record.sources)
    ]
    return tuple(sorted(attacks, key=lambda attack: attack.success.defense not in ("", NO_DEFENSE)))


def named_in(figures: Iterable[Estimate], results: Sequence[SourceResult] = ()) -> list[Named]:
    """Return the attacks that figures are of, with their results in each run."""
    by_attack = {
        key: {figure.against: figure for figure in same}
        for key, same in evidence.grouped(figures, _key).items()
    }
    runs = evidence.grouped(results, _key)
    return [
        Named(parts[""], parts[LABELS], parts.get(LABEL_BASELINE), tuple(runs.get(key, ())))
        for key, parts in by_attack.items()
        if {"", LABELS} <= parts.keys()
    ]


def _key(result: Estimate | SourceResult) -> tuple[str, str, str]:
    return result.attack, result.defense, result.view


def labels_of_named(attacks: Sequence[Named]) -> list[str]:
    """Return a label for each attack: its name, and its defense and view if these differ."""
    parts = [_setting(attack.success, 60) for attack in attacks]
    varies = [place == 0 or len({part[place] for part in parts}) > 1 for place in range(3)]
    return [
        " · ".join(text for text, differs in zip(part, varies, strict=True) if differs)
        for part in parts
    ]


def _setting(result: Estimate | SourceResult, limit: int = 48) -> tuple[str, str, str]:
    return (
        shortened(result.attack, limit),
        shortened(words.defense_name(result.defense), limit),
        f"view: {shortened(result.view)}",
    )


def strongest_on_sources(attacks: Sequence[Named]) -> Named | None:
    """Return the attack with the largest excess by its lower limit, else the highest success."""

    def shown(attack: Named) -> tuple[bool, bool, float]:
        excess = beyond(evidence.least_of(attack.excess), attack.mixes)
        return (
            attack.above_mixes,
            attack.above_guessing,
            excess if attack.above_mixes else attack.success.number,
        )

    return max(attacks, key=shown, default=None)


def excess_size(attack: Named) -> evidence.Size | None:
    """Return the size of the leak that is shown at least beyond label distributions."""
    if not attack.above_mixes:
        return None
    return evidence.size_reached_by(beyond(evidence.least_of(attack.excess), attack.mixes))


def beyond(excess: float, level: float) -> float:
    """Return an excess over a level, as a share of what that level leaves open."""
    return excess / (1 - level) if level < 1 else 0.0


def look_of_source(attack: Named) -> evidence.Look:
    """Return the marking of a success rate in tables."""
    if attack.success.doubt:
        return evidence.DOUBTED
    if not attack.above_guessing:
        return (
            evidence.Look("△ ", "", "size open") if attack.success.significant else evidence.Look()
        )
    size = excess_size(attack)
    if size is None:
        return evidence.Look("▷ ", "", "labels may be all")
    return evidence.Look("▲ ", evidence.tone_of(size), size)


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

_MEANINGS: Mapping[evidence.Status, str] = {
    "strong leak": "An adversary with this view names the client of many training samples, where "
    "label distributions alone would not reveal it. Treat the source of a sample as disclosed.",
    **dict.fromkeys(
        ("clear leak", "weak leak", "trace of a leak"),
        "An adversary with this view names owners that label distributions alone would not reveal. "
        "Do not promise that sources stay hidden.",
    ),
    "above guessing": "The classes that a client holds may be all that identifies its samples. "
    "Where these are a secret, it is a leak all the same.",
    "inconclusive": "The intervals on sources are too wide to distinguish a leak from none. That "
    "is not a sign of safety. More audited samples of each client narrow them, and more seeds.",
    "no leak shown": "These attacks do not name owners more often than guessing here.",
}


def wrong_side(attacks: Sequence[Named]) -> list[Named]:
    """Return attacks that are right less often than a guess: their scores may be inverted."""
    return [attack for attack in attacks if evidence.highest_of(attack.success) < attack.chance]


def source_status(attacks: Sequence[Named]) -> evidence.Status:
    """Return the verdict on sources alone."""
    size = evidence.largest([size for attack in attacks if (size := excess_size(attack))])
    if size is not None:
        return evidence.LEAKS[size]
    if any(attack.above_guessing for attack in attacks):
        return "above guessing"
    # Against guessing and not label distributions, so that "no leak shown" covers both. A test
    # that finds something, in one seed of several, is no sign of none.
    open_still = any(
        attack.success.significant
        or evidence.leaves_doubt(
            beyond(evidence.highest_of(attack.success) - attack.chance, attack.chance)
        )
        for attack in attacks
    )
    return "inconclusive" if open_still or wrong_side(attacks) else "no leak shown"


def source_meaning(status: evidence.Status, attacks: Sequence[Named]) -> str:
    """Return what follows from the verdict on sources, and what does not."""
    if status != "no leak shown":
        return _MEANINGS[status]
    most = max(evidence.highest_of(attack.success) for attack in attacks)
    return (
        f"{_MEANINGS[status]} What could still be hidden: owners named in up to "
        f"{words.percent(most)} of cases. This is a measurement, not a proof."
    )


def source_question(record: Record) -> str:
    """Return what was asked: "120 samples, 12 of each of 10 clients"; seeds together."""
    samples = words.from_to([run.samples for run in record.sources], "–")
    each = words.from_to([run.samples // len(run.clients) for run in record.sources], "–")
    clients = words.from_to([len(run.clients) for run in record.sources], "–")
    draw = f", {SAME_LABELS}" * any(figure.contrast == FAIR for figure in record.on_sources)
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
    absent = max(
        (len(run.absent) for attack in on_sources(record) for run in attack.runs), default=0
    )
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


def kind_of(record: Record) -> str:
    """Return the kind of audit of a record, as a heading."""
    topics = ["membership"] * evidence.about_members(record)
    topics += ["source"] * bool(record.sources) + ["cluster"] * bool(record.clusters)
    return f"{words.capital(words.listed(topics))} audit"


def source_section(record: Record) -> dict[str, object] | None:
    """Return the section on sources; None if a record has no source inference."""
    if not record.sources:
        return None
    return {"said": source_sentence(record), "attacks": source_table(record)}


_SIGNS = (
    "▲ above label distributions; the word is the size of the excess by its lower limit, as a "
    "share of what they leave open. ▷ above guessing, and label distributions may be all of it. △ "
    "above guessing by the test alone. Label baseline: names the client of whose data the sample's "
    "class is the largest share. p-values: Holm over the {rows} rows, tested at {share}; alone: "
    "before the correction."
)


class _Column(NamedTuple):
    """A figure of an attack in the table of source inference."""

    attack: Named
    label: str
    heading: str
    figure: Estimate


def source_table(record: Record) -> Grid:
    """Return all source attacks: success, and how far it is above guessing and baselines."""
    attacks = on_sources(record)
    figures = [
        _Column(attack, label, heading, figure)
        for attack, label in zip(attacks, labels_of_named(attacks), strict=True)
        for heading, figure in {
            "Attack success rate": attack.success,
            "On the fair draw": attack.on_fair_draw,
            "Over label distributions": attack.excess,
            "Over the label baseline": attack.over_baseline,
        }.items()
        if figure is not None
    ]
    methods = ", ".join(evidence.distinct(attack.success.method for attack in attacks))
    parts = [
        f"Intervals: {methods}.",
        "Means over seeds; p-values combined by Fisher's method."
        * any(len(attack.runs) > 1 for attack in attacks),
        words.about_runs(attack.success.further for attack in attacks).strip(),
        f"Fair draw: samples {SAME_LABELS}." * any(attack.on_fair_draw for attack in attacks),
        *evidence.distinct(attack.older_level for attack in attacks),
        _SIGNS.format(share=words.percent(alpha_of(record)), rows=len(attacks)),
    ]
    return estimate_table(
        "Source inference: all attacks",
        figures,
        rows=lambda entry: named(entry.label, limit=80),
        columns=lambda entry: entry.heading,
        cell=lambda entry: measured(
            entry.figure,
            look_of_source(entry.attack)
            if entry.figure is entry.attack.success
            else evidence.Look(),
            *_lines(entry.figure),
        ),
        remark=" ".join(filter(None, parts)),
    )


def _lines(figure: Estimate) -> list[str]:
    """Return counts, the level that a figure is compared with, and its p-value."""
    lines = []
    if not figure.against and figure.samples:
        right = words.count(round(figure.number * figure.samples))
        lines.append(f"{right}/{words.count(figure.samples)}")
    if figure.level is not None:
        level = words.percent(figure.level)
        lines.append(f"over {level}" if figure.against else f"guessing {level}")
    test = figure.test()
    if test is not None and test.p_value is not None and test.adjusted is not None:
        lines.append(f"p {words.number(test.adjusted)}, alone {words.number(test.p_value)}")
    return lines


_BASELINES = {
    "Guessing": drawing.Style(drawing.GREY, "dot", ""),
    "Label distributions alone": drawing.Style(drawing.GREY, "longdash", ""),
}


def source_figures(record: Record) -> list[drawing.Figures]:
    """Return the charts of source inference: success by round, and confusion of clients.

    Each starts with the attack that shows most; records without data for a chart have none.
    """
    attacks = on_sources(record)
    best = strongest_on_sources(attacks)
    runs = [
        run
        for attack in sorted(attacks, key=lambda attack: attack is not best)
        for run in attack.runs
    ]
    in_rounds = [run for run in runs if run.by_round]
    seeds = evidence.distinct(f"Seed {run.seed}" for run in in_rounds)
    looks = {seed: drawing.style(place) for place, seed in enumerate(seeds)}
    explained = {_key(attack.success): attack.mixes for attack in attacks}
    charts = []
    if in_rounds:
        charts.append(
            drawing.Figures(
                "sources-by-round",
                "Share of samples whose owner is named, each measured round alone.",
                drawing.choices_of(
                    in_rounds,
                    _setting,
                    lambda same: [_by_round(same, looks, explained[_key(same[0])])],
                ),
                drawing.legend(looks | _BASELINES),
            )
        )
    return charts


def _by_round(
    runs: Sequence[SourceResult], looks: Mapping[str, drawing.Style], explained: float
) -> drawing.Panel:
    rounds = sorted(index for run in runs for index in run.rounds)
    levels = (sum(run.chance for run in runs) / len(runs), explained)
    most = max([*levels, *(share for run in runs for share in run.by_round)])
    series = [
        drawing.Series(
            f"Seed {run.seed}",
            run.rounds,
            run.by_round,
            looks[f"Seed {run.seed}"],
            "{y:.1%} in round {x}",
        )
        for run in runs
    ]
    series += [
        drawing.level(rounds, value, look, f"{name}: {words.percent(value)}")
        for value, (name, look) in zip(levels, _BASELINES.items(), strict=True)
    ]
    name = shortened(runs[0].attack)
    return drawing.Panel(
        name,
        f"Success of {name} in each measured round.",
        drawing.round_scale(rounds, named=MOST_TICKS),
        drawing.Scale("Attack success rate", "%", (0.0, 1.06 * most or 1.0), count=6),
        series,
    )
