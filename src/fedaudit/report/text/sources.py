"""Source inference: each attack with its runs, the size of a leak, and sentences about both."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from fedaudit.report import evidence, words
from fedaudit.report.grid import shortened
from fedaudit.report.text.membership import Bullet, Sentence
from fedaudit.results.doubts import NOT_RELIED_ON
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
    """Every source attack of a record, those without a defense first."""
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
    """The attacks that figures are of, with their answers in each run."""
    of = evidence.grouped(figures, lambda one: (one.attack, one.defense, one.view))
    found = {key: {one.against: one for one in same} for key, same in of.items()}
    runs = evidence.grouped(answers, lambda run: (run.attack, run.defense, run.view))
    return [
        Named(one[""], one[LABELS], one.get(LABEL_BASELINE), tuple(runs.get(key, ())))
        for key, one in found.items()
        if {"", LABELS} <= one.keys()
    ]


def labels_of_named(named: Sequence[Named]) -> list[str]:
    """A name for each: the attack, and its defense and view where these differ."""
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
    """The one with the largest excess by its lower limit, else the highest success."""
    return max(named, key=_shown, default=None)


def excess_size(figure: Named) -> evidence.Size | None:
    """Size of the leak that is shown at least beyond label distributions; None where none is."""
    if not figure.above_mixes:
        return None
    return evidence.size_reached_by(beyond(evidence.least_of(figure.excess), figure.mixes))


def beyond(excess: float, level: float) -> float:
    """An excess over a level, as a share of what that level leaves open."""
    return excess / (1 - level) if level < 1 else 0.0


def most_beyond(figure: Named) -> float:
    """Upper limit of a success, as a share of what guessing leaves open.

    Against guessing and not against label distributions, so that "no leak shown" covers both.
    """
    return beyond(evidence.highest_of(figure.success) - figure.chance, figure.chance)


def look_of_source(figure: Named) -> evidence.Look:
    """Marking of a success in tables."""
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

SOURCE_MEANINGS: Mapping[evidence.Status, str] = {
    "strong leak": "Somebody with this view can name the client that many training samples are "
    "from, where label distributions alone would not give it away. Treat the source of a sample as "
    "disclosed to that adversary unless a defense brings it down.",
    "clear leak": "Somebody with this view names the client that a training sample is from clearly "
    "more often than label distributions alone allow. Do not rely on sources staying hidden from "
    "that adversary unless a defense brings this down.",
    "weak leak": "Somebody with this view names a few owners that label distributions alone would "
    "not give away. Whether that can be borne depends on the data; it is no ground for promising "
    "that sources stay hidden.",
    "trace of a leak": "Hardly any owner is named that label distributions alone would not give "
    "away. The trace is real all the same, and no ground for promising that sources stay hidden.",
    "above guessing": "Which classes a client holds may be all that gives its samples away. Where "
    "that is itself a secret, it is a leak all the same.",
    "inconclusive": "The intervals on sources are too wide to tell a leak from none. That is not a "
    "sign of safety. More audited samples of each client narrow them, and more seeds where they "
    "are over seeds.",
    "no leak shown": "These attacks do not name owners more often than guessing here.",
}


def wrong_side(named: Sequence[Named]) -> list[Named]:
    """Return attacks that are right less often than a guess: their scores may be turned round."""
    return [one for one in named if evidence.highest_of(one.success) < one.chance]


def source_status(named: Sequence[Named]) -> evidence.Status:
    """The verdict on sources alone."""
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
    """Consequences of the verdict on sources, and their limits."""
    if status != "no leak shown":
        return SOURCE_MEANINGS[status]
    highs = [evidence.highest_of(one.success) for one in named]
    return (
        f"{SOURCE_MEANINGS[status]} What could still be hidden: owners named in up to "
        f"{words.percent(max(highs))} of cases. This is a measurement, not a proof: a stronger "
        "attack may exist."
    )


def source_question(record: Record) -> str:
    """Question that was asked: "120 samples, 12 of each of 10 clients"; seeds together."""
    samples = words.from_to([run.samples for run in record.sources], "–")
    each = words.from_to([run.samples // len(run.clients) for run in record.sources], "–")
    clients = words.from_to([len(run.clients) for run in record.sources], "–")
    draw = f", {SAME_LABELS}" * any(one.contrast == FAIR for one in record.on_sources)
    return f"{samples} samples, {each} of each of {clients} clients{draw}"


def source_attacks_tried(record: Record) -> int:
    """Number of source attacks gave answers."""
    return len({run.attack for run in record.sources})


def guessing(record: Record) -> str:
    """Success of a guess, in per cent."""
    chances = sorted({words.percent(run.chance) for run in record.sources})
    return "–".join(chances)


def source_bullets(record: Record) -> tuple[Bullet, ...]:
    """Findings of source inference: a bullet for each defense and view."""
    settings = evidence.grouped(
        on_sources(record), lambda one: (one.success.defense, one.success.view)
    )
    found = []
    for (defense, view), inside in settings.items():
        parts = ["Source inference"]
        parts += [words.defense_name(defense)] if len({d for d, _ in settings}) > 1 else []
        parts += [f"view: {view}"] if len({v for _, v in settings}) > 1 else []
        label = ", ".join(shortened(part, 60) for part in parts)
        against = f"Of {source_question(record)}"
        found.append(Bullet(label, (Sentence(against, _sentence(max(inside, key=_shown))),)))
    return tuple(found)


def _sentence(best: Named) -> str:
    """The strongest attack beside guessing and what label distributions give."""
    sentences = (
        _success_sentence(best),
        _mixes_sentence(best),
        best.older_level,
        draw_sentence(best),
        _absent(best),
    )
    return " ".join(filter(None, sentences))


def _success_sentence(best: Named) -> str:
    name = shortened(best.success.attack, 60)
    seeds = f" on average over {words.plural(len(best.runs), 'seed')}" if len(best.runs) > 1 else ""
    rate = f"{words.percent(best.success.number)} ({limits_in_words(best.success)})"
    guess = words.percent(best.chance)
    if best.above_guessing:
        return (
            f"the strongest attack, {name}, names the owner of {rate}{seeds}; a guess is right for "
            f"{guess}."
        )
    if best.success.doubt:
        return (
            f"{name} names the owner of {rate}{seeds}; a guess is right for {guess}. The figure is "
            f"{NOT_RELIED_ON}."
        )
    tested = ", by the test more in at least one seed" if best.success.significant else ""
    return (
        f"no attack is shown to name owners more often than guessing; the highest is {name} with "
        f"{rate}{seeds}{tested}, a guess is right for {guess}."
    )


def _mixes_sentence(best: Named) -> str:
    level = (
        f"The clients' different label distributions alone explain {words.percent(best.mixes)}: so "
        "many of its answers would be right if a sample's owner depended on its class alone."
    )
    rest = f"{words.points(best.excess.number)} points ({limits_in_words(best.excess)})"
    size = excess_size(best)
    if size is not None:
        return f"{level} The rest, {rest}, is shown to be above that: {evidence.a_leak(size)}."
    return f"{level} The rest, {rest}, is not shown to be above that."


def draw_sentence(best: Named) -> str:
    """Success on samples of the other draw, or the limits of the only one; empty for neither."""
    if best.on_fair_draw is not None:
        fair = best.on_fair_draw
        return (
            f"Of samples {SAME_LABELS}, where classes reveal no client, it names the owner of "
            f"{words.percent(fair.number)} ({limits_in_words(fair)})."
        )
    if best.success.contrast == FAIR:
        return (
            "In these samples classes reveal no client. Of random samples of each client's own "
            "data, which source inference is usually asked about, more may be named "
            "(audit.sources)."
        )
    return ""


def _absent(best: Named) -> str:
    """Meaning of silence where some clients never took part in a measured round."""
    counts = [(len(run.absent), len(run.clients)) for run in best.runs]
    gone, of = max(counts)
    if not gone:
        return ""
    most = "up to " if len(set(counts)) > 1 else ""
    return (
        f"No measured round shows a model of {most}{words.count(gone)} of "
        f"{words.plural(of, 'client')}: none of their samples can be named, whatever a longer look "
        "would give away."
    )


def label_sentence(record: Record) -> str:
    """Label-distribution baseline in a sentence, for the attack that shows most."""
    best = strongest_on_sources(on_sources(record))
    if best is None:
        return ""
    baseline = best.baseline
    if baseline is None:
        return (
            "This record has no label-distribution baseline: the version that made it took the "
            "client with the largest count of the sample's class, which is too weak."
        )
    return (
        "Naming the client of whose data the sample's class is the largest share, without a look "
        f"at any model (the label-distribution baseline), is right for {words.percent(baseline)}."
    )


def limits_in_words(figure: Estimate) -> str:
    """ "95% interval 39.1–57.6%"; of a difference in percentage points."""
    limits = words.interval_of(figure)
    return f"95% interval {limits}" if limits else "no interval"


def source_audited(record: Record) -> str:
    """Question of source inference, for the verdict on a record that is about membership too."""
    tried = source_attacks_tried(record)
    return (
        f"It also asked of {source_question(record)}: which client is it from? "
        f"{words.plural(tried, 'attack was', 'attacks were')} tried; a guess is right for "
        f"{guessing(record)}."
    )


def asked_in(success: Estimate) -> str:
    """Samples whose owner was named, of all: "58/120"."""
    return f"{words.count(round(success.number * success.samples))}/{words.count(success.samples)}"
