"""Source inference in a report: attacks, verdict, sentences and table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import Grid, name_cell, shorten
from fedaudit.report import evidence
from fedaudit.report.tables.cells import estimate_table, value_cell
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import above_chance, alpha_of
from fedaudit.results.record import Record
from fedaudit.results.runs import FAIR_DRAW, LABEL_BASELINE, LABELS, OLDER_LEVEL, has_older_level

SAME_LABELS = "all with the label distribution of an audited client"
"""Description of samples of a fair draw."""

_SUCCESS_RATE = ""
"""Value of ``Estimate.against`` for the success rate itself, which is not a difference."""


class SourceAttack(NamedTuple):
    """Source attack under one defense and view: success rate over all runs, and two differences.

    Attributes:
        success: Success rate: the fraction of samples whose client is inferred.
        excess: Success rate minus the rate that is expected if the clients' label distributions
            explain all predictions (``results.runs.LABELS``).
        over_baseline: Success rate minus that of a prediction without any model: the client in
            whose data the sample's class is most frequent (``results.runs.LABEL_BASELINE``).
        on_fair_draw: Success rate on samples of a fair draw. None if the record has no second draw
            of samples for source inference.
    """

    success: Estimate
    excess: Estimate
    over_baseline: Estimate | None
    on_fair_draw: Estimate | None = None

    @property
    def chance(self) -> float:
        """Success rate of guessing, which is the null hypothesis' level of the success rate."""
        return self.success.level or 0.0

    @property
    def label_level(self) -> float:
        """Success rate that label distributions alone explain."""
        return self.excess.level or 0.0

    @property
    def above_guessing(self) -> bool:
        """True if the success rate is above guessing, by test and interval."""
        return bool(above_chance(self.success))

    @property
    def above_labels(self) -> bool:
        """True if the success rate is above guessing and above label distributions."""
        return self.above_guessing and bool(above_chance(self.excess))

    @property
    def normalized_excess_lower(self) -> float:
        """Lower limit of the excess, as a fraction of the largest possible excess."""
        return excess_share(evidence.lower_limit(self.excess), self.label_level)


def source_attacks(record: Record) -> tuple[SourceAttack, ...]:
    """Return every source attack of a record, undefended attacks first."""
    fair = {
        _key(estimate): estimate
        for estimate in record.fair_source_estimates
        if estimate.seed is None and estimate.against == _SUCCESS_RATE
    }
    attacks = [
        attack._replace(on_fair_draw=fair.get(_key(attack.success)))
        for attack in attacks_in(
            estimate for estimate in record.source_estimates if estimate.seed is None
        )
    ]
    return tuple(sorted(attacks, key=lambda attack: attack.success.defense not in ("", NO_DEFENSE)))


def attacks_in(estimates: Iterable[Estimate]) -> list[SourceAttack]:
    """Group estimates by source attack."""
    by_attack = [
        {estimate.against: estimate for estimate in figures_of_attack}
        for figures_of_attack in evidence.group_by(estimates, _key).values()
    ]
    return [
        SourceAttack(
            by_baseline[_SUCCESS_RATE], by_baseline[LABELS], by_baseline.get(LABEL_BASELINE)
        )
        for by_baseline in by_attack
        if {_SUCCESS_RATE, LABELS} <= by_baseline.keys()
    ]


def _key(estimate: Estimate) -> tuple[str, str, str]:
    return estimate.attack, estimate.defense, estimate.view


def source_labels(attacks: Sequence[SourceAttack]) -> list[str]:
    """Return a label for each attack: name, and defense and view if they differ."""
    settings = [evidence.setting_of(attack.success) for attack in attacks]
    labels = evidence.setting_labels(settings)
    return [
        wording.join_parts(shorten(attack.success.attack, 60), labels[setting])
        for attack, setting in zip(attacks, settings, strict=True)
    ]


def strongest_attack(attacks: Sequence[SourceAttack]) -> SourceAttack | None:
    """Return the attack with the largest lower limit of the excess, or else the highest success."""
    above = [attack for attack in attacks if attack.above_labels]
    if above:
        return max(above, key=lambda attack: attack.normalized_excess_lower)
    return max(attacks, key=lambda a: (a.above_guessing, a.success.number), default=None)


def excess_size(attack: SourceAttack) -> evidence.Size | None:
    """Return the size of the leak beyond label distributions; None if no leak is shown."""
    return evidence.size_of_share(attack.normalized_excess_lower) if attack.above_labels else None


def excess_share(excess: float, level: float) -> float:
    """Return an excess over a level, as a fraction of the largest possible excess."""
    return excess / (1 - level) if level < 1 else 0.0


def source_marker(attack: SourceAttack) -> evidence.Marker:
    """Return the marker of a success rate in tables."""
    if attack.success.doubt:
        return evidence.DOUBTED
    if not attack.above_guessing:
        # Significant by the test, although the interval includes chance: the size is open.
        return evidence.SIZE_OPEN if attack.success.significant else evidence.Marker()
    size = excess_size(attack)
    if size is None:
        return evidence.Marker("▷ ", "", "labels may explain it")
    return evidence.Marker("▲ ", evidence.tone_of(size), size)


SOURCE_HEADLINES = cast(Mapping[evidence.Status, str], fixed_texts("source_headlines"))


def below_guessing(attacks: Sequence[SourceAttack]) -> list[SourceAttack]:
    """Return attacks with a success rate below guessing: their scores may have the wrong sign."""
    return [attack for attack in attacks if evidence.upper_limit(attack.success) < attack.chance]


def source_status(attacks: Sequence[SourceAttack]) -> evidence.Status:
    """Return the verdict on source inference."""
    size = evidence.max_size(map(excess_size, attacks))
    if size is not None:
        return evidence.LEAKS[size]
    if any(attack.above_guessing for attack in attacks):
        return "above guessing"
    # Compare with guessing instead of label distributions, so that "no leak shown" covers both.
    # If the test is significant in one of several seeds, the verdict is inconclusive.
    highs = [excess_share(evidence.upper_limit(a.success) - a.chance, a.chance) for a in attacks]
    undecided = any(attack.success.significant for attack in attacks) or below_guessing(attacks)
    return "inconclusive" if undecided else evidence.status_between([], highs or [0.0])


def source_meaning(status: evidence.Status, attacks: Sequence[SourceAttack]) -> str:
    """Return what follows from the verdict on source inference, and what does not."""
    meaning = fixed_text(f"source_meanings.{status}")
    if status != "no leak shown":
        return meaning
    highest = max(evidence.upper_limit(attack.success) for attack in attacks)
    highest_text = wording.format_percent(highest, rounding="up")
    return f"{meaning} {fixed_text('sources.open', most=highest_text)}"


def source_question(record: Record) -> str:
    """Describe the attributed samples of all seeds: "120 samples, 12 of each of 10 clients"."""
    samples = wording.format_range([run.samples for run in record.sources], "–")
    samples_per_client = wording.format_range(
        [run.samples // len(run.clients) for run in record.sources], "–"
    )
    clients = wording.format_range([len(run.clients) for run in record.sources], "–")
    draw = f", {SAME_LABELS}" * any(
        estimate.contrast == FAIR_DRAW for estimate in record.source_estimates
    )
    return f"{samples} samples, {samples_per_client} of each of {clients} clients{draw}"


def source_sentence(record: Record) -> str:
    """Return the introduction of the section on sources, with caveats."""
    attacks = source_attacks(record)
    texts = [fixed_text("sources.question", question=source_question(record))]
    if any(a.on_fair_draw is None and a.success.contrast == FAIR_DRAW for a in attacks):
        texts.append(fixed_text("sources.fair"))
    if n_absent := max((len(run.absent) for run in record.sources), default=0):
        texts.append(fixed_text("sources.absent", clients=wording.format_count(n_absent, "client")))
    return " ".join(texts)


def kind_of(record: Record) -> str:
    """Return the kind of audit of a record, as a heading."""
    if record.kind == "games":
        return "Security games"
    topics = ["membership-inference"] * evidence.has_membership(record)
    topics += ["source-inference"] * bool(record.sources) + ["cluster"] * bool(record.clusters)
    return f"{wording.capitalise(wording.join_and(topics))} audit"


def source_table(record: Record) -> Grid:
    """Return a table of all source attacks: success, and excess over guessing and baselines."""
    attacks = source_attacks(record)
    estimates = []
    for attack, label in zip(attacks, source_labels(attacks), strict=True):
        columns = (
            ("Attack success rate", attack.success, source_marker(attack)),
            ("On the fair draw", attack.on_fair_draw, evidence.Marker()),
            ("Beyond label distributions", attack.excess, evidence.Marker()),
            ("Beyond the label baseline", attack.over_baseline, evidence.Marker()),
        )
        for heading, estimate, marker in columns:
            if estimate is not None:
                estimates.append((label, heading, estimate, marker))
    methods = ", ".join(evidence.unique_items(attack.success.method for attack in attacks))
    level = wording.format_percent(alpha_of(record))
    parts = [
        f"Intervals: {methods}.",
        fixed_text("sources.over_seeds") if len({run.seed for run in record.sources}) > 1 else "",
        wording.interval_remark(attack.success.further for attack in attacks).strip(),
        f"Fair draw: samples {SAME_LABELS}." * any(attack.on_fair_draw for attack in attacks),
        OLDER_LEVEL * any(has_older_level(attack.excess) for attack in attacks),
        fixed_text("sources.signs"),
        fixed_text(f"sources.test{'s' * (len(attacks) > 1)}", level=level, rows=len(attacks)),
    ]
    return estimate_table(
        "Source inference",
        estimates,
        rows=lambda entry: name_cell(entry[0], limit=80),
        columns=lambda entry: entry[1],
        cell=lambda entry: value_cell(entry[2], entry[3], *_lines(entry[2])),
        remark=wording.join_parts(*parts, by=" "),
    )


def _lines(estimate: Estimate) -> list[str]:
    lines, test = [], estimate.test()
    if not estimate.against and estimate.samples:
        right = f"{round(estimate.number * estimate.samples):,}"
        lines.append(f"{right}/{estimate.samples:,}")
    if estimate.level is not None:
        lines.append(
            f"{'over' if estimate.against else 'guessing'} {wording.format_percent(estimate.level)}"
        )
    if test is not None and test.p_value is not None and test.adjusted is not None:
        uncorrected_p_value = f", alone {wording.format_number(test.p_value)}" * (
            test.p_value != test.adjusted
        )
        lines.append(f"p {wording.format_number(test.adjusted)}{uncorrected_p_value}")
    return lines
