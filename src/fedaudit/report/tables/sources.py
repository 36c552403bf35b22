"""Tables of source inference: all attacks, and attacks that answer for some samples only."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedaudit.report import words
from fedaudit.report.evidence import SIZES, about_members, distinct
from fedaudit.report.grid import Cell, Grid, named, tabled
from fedaudit.report.tables.cells import estimate_table, measured
from fedaudit.report.text.sources import (
    SAME_LABELS,
    Named,
    labels_of_named,
    look_of_source,
    on_sources,
    source_sentence,
)
from fedaudit.results.estimate import Estimate, Test
from fedaudit.results.guessing import alpha_of
from fedaudit.results.record import Record


def source_section(record: Record) -> dict[str, object] | None:
    """Return the section on sources; None if a record has no source inference."""
    if not record.sources:
        return None
    return {
        "said": source_sentence(record),
        "attacks": source_table(record),
        "answers": answers_table(record),
    }


_SIGNS = (
    "▲ above label distributions; the word is the size of the excess by its lower limit. ▷ above "
    "guessing, and label distributions may be all of it. △ above guessing by the test alone. "
    "p-values: Holm over the {rows} rows, tested at {share}; alone: before the correction."
)


def source_table(record: Record) -> Grid:
    """Return all source attacks: success, baselines, and the excess over label distributions."""
    found = on_sources(record)
    other = any(one.on_fair_draw is not None for one in found)
    return tabled(
        "Source inference: all attacks",
        [
            {
                "Attack": named(label, limit=80),
                "Attack success rate": measured(
                    one.success, look_of_source(one), asked_in(one.success)
                ),
                **({_FAIR_DRAW: measured(one.on_fair_draw)} if other else {}),
                "Guessing": words.percent(one.chance),
                "Shuffled owners": f"≤ {words.percent(_null_high(one.success))}",
                "Label baseline": _baseline_cell(one),
                "Label distributions alone": words.percent(one.mixes),
                "Beyond them, points": measured(one.excess),
                "p: guessing": _p_cell(one.success),
                "p: label distributions": _p_cell(one.excess),
                "p: label baseline": _p_cell(one.over_baseline),
            }
            for one, label in zip(found, labels_of_named(found), strict=True)
        ],
        remark=_how(found, other)
        + _SIGNS.format(share=words.percent(alpha_of(record)), rows=len(found))
        + f" Words from {', '.join(f'{one.word} {one.share:.0%}' for one in SIZES[1:])} of what "
        "label distributions leave open.",
    )


_FAIR_DRAW = "On the fair draw"


def asked_in(success: Estimate) -> str:
    """Return the samples whose owner was named, of all: "58/120"."""
    if not success.samples:
        return ""
    return f"{words.count(round(success.number * success.samples))}/{words.count(success.samples)}"


def _how(found: Sequence[Named], other: bool) -> str:
    methods = ", ".join(distinct(one.success.method for one in found))
    parts = [f"Intervals: {methods}."]
    if any(len(one.runs) > 1 for one in found):
        parts.append("Means over seeds; p-values combined by Fisher's method.")
    parts.append(words.about_runs(one.success.further for one in found).strip())
    parts.append(
        "Shuffled owners: 95% of shuffles stay below. Label baseline: names the client of whose "
        "data the sample's class is the largest share."
    )
    if other:
        parts.append(f"{_FAIR_DRAW}: success on samples {SAME_LABELS}.")
    return " ".join(filter(None, (*parts, *distinct(one.older_level for one in found)))) + " "


def _null_high(success: Estimate) -> float:
    high = _test_of(success).high
    return 1.0 if high is None else high


def _baseline_cell(one: Named) -> Cell | None:
    if one.baseline is None or one.over_baseline is None:
        return None
    return Cell(words.percent(one.baseline), f"attack {words.points(one.over_baseline.number)}")


def _p_cell(figure: Estimate | None) -> Cell | None:
    test = _test_of(figure)
    if test.p_value is None or test.adjusted is None:
        return None
    return Cell(words.number(test.adjusted), f"alone {words.number(test.p_value)}")


def _test_of(figure: Estimate | None) -> Test:
    return (None if figure is None else figure.test()) or Test()


class _Share(NamedTuple):
    """A share of the samples that an attack answers for, with its counts."""

    label: str
    column: tuple[str, str]
    right: int
    total: int
    more: str

    @property
    def cell(self) -> Cell:
        """The share above its counts."""
        share = words.percent(self.right / self.total) if self.total else words.MISSING
        counts = f"{words.count(self.right)}/{words.count(self.total)}"
        return Cell(share, f"{counts}{self.more}")


def answers_table(record: Record) -> Grid | None:
    """Return the success on the samples that an attack answers for; None without such counts.

    An adversary may name a client only at a least chance, or ask first whether a sample is a
    member. Counts are summed over seeds.
    """
    found = on_sources(record)
    shares = [
        share
        for one, label in zip(found, labels_of_named(found), strict=True)
        for share in _shares(one, label)
    ]
    if not shares:
        return None
    return estimate_table(
        "Source inference: attacks that answer for some samples only",
        sorted(shares, key=lambda one: one.column),
        rows=lambda one: named(one.label, limit=80),
        columns=lambda one: one.column,
        cell=lambda one: one.cell,
        remark="The adversary names a client at a least chance, as the attack has it, or only for "
        "samples called members at a false-positive rate. Below: right of those answered.",
    )


def _shares(one: Named, label: str) -> Iterator[_Share]:
    asked = words.count(sum(run.samples for run in one.runs))
    for least in sorted({part.least for run in one.runs for part in run.answers}):
        parts = [part for run in one.runs for part in run.answers if part.least == least]
        right, answered = sum(p.right for p in parts), sum(p.answered for p in parts)
        column = ("Answers at a chance from", words.percent(least))
        yield _Share(label, column, right, answered, f" of {asked}")
    for rate in sorted({part.fpr for run in one.runs for part in run.chained}):
        chained = [(p, run.samples) for run in one.runs for p in run.chained if p.fpr == rate]
        called, right = sum(p.called for p, _ in chained), sum(p.right for p, _ in chained)
        reached = sum(part.realised_fpr for part, _ in chained) / len(chained)
        over = f"Membership first, FPR {words.percent(rate)}"
        more = f"\nFPR {words.percent(reached)}"
        samples = sum(count for _, count in chained)
        yield _Share(label, (over, "Called members"), called, samples, more)
        yield _Share(label, (over, "Owner named"), right, called, "")


def kind_of(record: Record) -> str:
    """Return the kind of audit of a record, as a heading."""
    topics = ["membership"] * about_members(record)
    topics += ["source"] * bool(record.sources) + ["cluster"] * bool(record.clusters)
    return f"{words.capital(words.listed(topics))} audit"
