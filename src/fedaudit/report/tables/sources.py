"""Tables of source inference: all attacks, selective prediction, membership first, and details."""

from collections.abc import Iterator, Mapping, Sequence

from fedaudit.report import words
from fedaudit.report.evidence import about_members, distinct, grouped
from fedaudit.report.grid import Cell, Filled, Grid, named, shortened, tabled
from fedaudit.report.tables.cells import measured
from fedaudit.report.tables.run import words_table
from fedaudit.report.text.sources import (
    SAME_LABELS,
    Named,
    Run,
    asked_in,
    label_sentence,
    labels_of_named,
    look_of_source,
    on_sources,
    source_bullets,
)
from fedaudit.results.estimate import Estimate, Test
from fedaudit.results.guessing import alpha_of
from fedaudit.results.record import Record
from fedaudit.results.sources import LABEL_BASELINE, LABELS

_SIGNS = (
    "▲ owners are named more often than label distributions explain; the word is the size of "
    "what is "
    "beyond them by its lower limit. ▷ more often than by guessing alone, and label "
    "distributions may be "
    "all of it. Both need the interval and the test. △ more often than by guessing by the test "
    "alone: in at least one seed, but the interval leaves open how much. p-values are one-sided, "
    "corrected by Holm's method over the rows of this table ({rows}), and held to {share}; "
    "alone: before that."
)


def source_table(record: Record) -> Grid:
    """All source attacks: success, baselines, and the excess over label distributions."""
    found = on_sources(record)
    other = any(one.on_fair_draw is not None for one in found)
    return tabled(
        "Source inference: all attacks",
        [
            {
                "Attack": named(label, limit=80),
                "Attack success rate": measured(
                    one.success,
                    look_of_source(one),
                    words.plural(len(one.runs), "seed")
                    if len(one.runs) > 1
                    else asked_in(one.success),
                ),
                **({_FAIR_DRAW: _fair_cell(one)} if other else {}),
                "Guessing": words.percent(one.chance),
                "Shuffled owners": f"≤ {words.percent(_null_high(one.success))}",
                "Label baseline": _baseline_cell(one),
                "Label distributions alone": words.percent(one.mixes),
                "Beyond them, points": measured(one.excess),
                "p: guessing": _p_cell(_test_of(one.success)),
                "p: label distributions": _p_cell(_test_of(one.excess)),
                "p: label baseline": _p_cell(_test_of(one.over_baseline)),
            }
            for one, label in _labelled(record)
        ],
        remark=_how(found)
        + _FAIR_REMARK * other
        + "".join(f"{text} " for text in dict.fromkeys(one.older_level for one in found) if text)
        + _SIGNS.format(share=words.percent(alpha_of(record)), rows=len(found)),
    )


_FAIR_DRAW = "On the fair draw"
_FAIR_REMARK = (
    f"{_FAIR_DRAW}: success on samples {SAME_LABELS}, where classes reveal no client. All other "
    "columns, verdicts and gates are on random samples of each client's own data. "
)


def _fair_cell(one: Named) -> Cell | str | None:
    return words.MISSING if one.on_fair_draw is None else measured(one.on_fair_draw)


def _labelled(record: Record) -> list[tuple[Named, str]]:
    """Every attack with a name that sets it apart."""
    found = on_sources(record)
    return list(zip(found, labels_of_named(found), strict=True))


def _how(found: Sequence[Named]) -> str:
    methods = distinct(one.success.method for one in found)
    several = any(len(one.runs) > 1 for one in found)
    means = (
        " Figures are means over seeds, and p-values of the seeds are combined by Fisher's method."
    )
    return (
        f"Intervals: {', '.join(methods)}.{means if several else ''}"
        f"{words.about_runs(one.success.further for one in found)} Shuffled owners: 95% of "
        "shuffles of the owners among all samples stay below. Label baseline (of the "
        "label-distribution baseline): the client of whose data the sample's class is the largest "
        "share, without a look at any model. Label distributions alone: what "
        "would be right if a sample's owner depended on its class alone. "
    )


def _null_high(success: Estimate) -> float:
    high = _test_of(success).high
    return 1.0 if high is None else high


def _baseline_cell(one: Named) -> Cell | None:
    if one.baseline is None or one.over_baseline is None:
        return None
    return Cell(words.percent(one.baseline), f"attack {words.points(one.over_baseline.number)}")


def _p_cell(test: Test) -> Cell | None:
    if test.p_value is None or test.adjusted is None:
        return None
    return Cell(words.number(test.adjusted), f"alone {words.number(test.p_value)}")


def source_sizes_table() -> Grid:
    """Thresholds of a source leak by word."""
    heading = "Beyond label distributions, of what they leave open"
    return words_table(
        "Words for the size of a leak of sources",
        {heading: lambda one, how: f"{how} {words.percent(one.share) if one.share else 0}"},
        "Where label distributions alone name 40% of owners and an attack 55%, it names 15 of the "
        "60 that they leave open: 25%. The lower limit of the interval decides.",
    )


def answers_table(record: Record) -> Grid | None:
    """Selective prediction: accuracy on answers at a least chance."""
    leasts = sorted({one.least for run in record.sources for one in run.answers})
    if not leasts:
        return None
    return tabled(
        "Selective prediction: accuracy on the samples that are answered",
        [
            {
                "Attack": named(label, limit=80),
                **{
                    f"Chance from {words.percent(least)}": _answer_cell(one, least)
                    for least in leasts
                },
            }
            for one, label in _labelled(record)
        ],
        remark="The adversary names nobody unless a client's chance, as the attack has it, "
        f"reaches the column's heading. Below: right / named of all.{_summed(record)}",
    )


def _answer_cell(one: Named, least: float) -> Cell | None:
    found = [part for run in one.runs for part in run.answers if part.least == least]
    if not found:
        return None
    right, answered = (sum(part.right for part in found), sum(part.answered for part in found))
    return _share_cell(right, answered, f" of {words.count(sum(run.samples for run in one.runs))}")


def _share_cell(right: int, total: int, more: str = "") -> Cell:
    """A share above its counts."""
    share = words.percent(right / total) if total else words.MISSING
    return Cell(share, f"{words.count(right)}/{words.count(total)}{more}")


def chained_table(record: Record) -> Grid | None:
    """Membership first, and owners only of samples that are called members; None without any."""
    rates = sorted({one.fpr for run in record.sources for one in run.chained})
    if not rates:
        return None
    return tabled(
        "Membership first, then the source of those called members",
        [
            {"Attack": named(label, limit=80)}
            | {name: cell for rate in rates for name, cell in _chained_cells(one, rate).items()}
            for one, label in _labelled(record)
        ],
        remark="For an adversary that does not know whether anybody trained on a sample. The "
        "per cent in a heading are of samples of nobody: so many may be called members; below "
        "stands the share that was. A guess at the owner would be right as often as in the table "
        f"above.{_summed(record)}",
    )


def _chained_cells(one: Named, rate: float) -> Filled:
    found = [(part, run) for run in one.runs for part in run.chained if part.fpr == rate]
    first, then = (
        f"Called members at {words.percent(rate)}",
        f"Of these at {words.percent(rate)}, owner named",
    )
    if not found:
        return {first: None, then: None}
    called, right = (sum(p.called for p, _ in found), sum(p.right for p, _ in found))
    asked = sum(run.samples for _, run in found)
    reached = sum(part.realised_fpr for part, _ in found) / len(found)
    return {
        first: _share_cell(called, asked, f"\nFPR {words.percent(reached)}"),
        then: _share_cell(right, called),
    }


def _summed(record: Record) -> str:
    several = any(len(one.runs) > 1 for one in on_sources(record))
    return " Counts are summed over seeds." * several


ORACLE = "Oracle round"
_ORACLE_REMARK = (
    "Each round alone. Oracle round: the best one, chosen afterwards by somebody who knows the "
    "answers; no adversary can, so it is an upper end and not the attack's success."
)


def seeds_table(record: Record) -> Grid | None:
    """Every run by itself; None where each attack has one."""
    if all(len(one.runs) == 1 for one in on_sources(record)):
        return None
    of = grouped(record.on_sources, lambda one: (one.attack, one.defense, one.view, one.seed))
    figures = {at: {one.against: one for one in same} for at, same in of.items()}
    return tabled(
        "Seed by seed",
        [
            _seed_row(run, figures[run.attack, run.defense, run.view, run.seed])
            for run in record.sources
        ],
        words=("Seed",),
        varying=_SETTING,
        remark="Intervals: Clopper-Pearson 95%. p-values are not corrected here.",
    )


def _seed_row(run: Run, figures: Mapping[str, Estimate]) -> Filled:
    success = figures[""]
    labels, baseline = (_test_of(figures.get(one)) for one in (LABELS, LABEL_BASELINE))
    return {
        **_where(run),
        "Attack success rate": measured(success, unbounded=""),
        "Right": asked_in(success),
        "Shuffled owners": f"≤ {words.percent(_null_high(success))}",
        "Label baseline": words.given(baseline.level),
        "Label distributions alone": words.given(labels.level),
        "p: guessing": words.given(_test_of(success).p_value, words.number),
        "p: label distributions": words.given(labels.p_value, words.number),
        "p: label baseline": words.given(baseline.p_value, words.number),
    }


def _test_of(figure: Estimate | None) -> Test:
    return (None if figure is None else figure.test()) or Test()


_SETTING = ("Defense", "View")


def _where(run: Run) -> Filled:
    return {
        "Attack": named(run.attack),
        "Defense": named(words.defense_name(run.defense)),
        "View": named(run.view),
        "Seed": str(run.seed),
    }


def rounds_table(record: Record) -> Grid | None:
    """Success in each measured round alone, with the oracle round apart; None without any."""
    rows = [row for run in record.sources if run.by_round for row in _round_rows(run)]
    if not rows:
        return None
    return tabled(
        "Success by round",
        rows,
        words=("Round",),
        varying=(*_SETTING, "Seed"),
        remark=_ORACLE_REMARK,
    )


def _round_rows(run: Run) -> Iterator[Filled]:
    for index, success in zip(run.rounds, run.by_round, strict=True):
        yield {**_where(run), "Round": str(index), "Attack success rate": words.percent(success)}
    best = max(range(len(run.rounds)), key=lambda at: run.by_round[at])
    oracle = Cell(f"{ORACLE} ({run.rounds[best]})", tone="muted")
    highest = Cell(words.percent(run.by_round[best]), tone="muted")
    yield {**_where(run), "Round": oracle, "Attack success rate": highest}


def owners_table(record: Record) -> Grid:
    """Each client's samples: how many are said to be its own, and whose the others."""
    return tabled(
        "Client by client",
        [row for run in record.sources for row in _owner_rows(run)],
        words=("Said to be another's",),
        varying=("Attack", *_SETTING, "Seed"),
        remark="Named: samples of the client that are said to be its own. Overfitting: training "
        "less test accuracy of the client's model in the last measured round, in points.",
    )


def _owner_rows(run: Run) -> Iterator[Filled]:
    for at, (client, row) in enumerate(zip(run.clients, run.confusion, strict=True)):
        others = sorted(
            (-amount, other)
            for other, amount in zip(run.clients, row, strict=True)
            if amount and other != client
        )
        said = ", ".join(f"{other}: {words.count(-amount)}" for amount, other in others)
        yield {
            "From": words.client_heading(client),
            **_where(run),
            "Named": _share_cell(row[at], sum(row)),
            "Overfitting": words.points(run.overfitting[at]) if run.overfitting else words.MISSING,
            "Said to be another's": shortened(said, 400) or "none",
        }


def source_classes_table(record: Record) -> Grid | None:
    """Success class by class, seeds summed; None where no class is told apart."""
    rows: list[Filled] = []
    for one, label in _labelled(record):
        parts = [part for run in one.runs for part in run.classes]
        for klass in sorted({part.label for part in parts}):
            mine = [part for part in parts if part.label == klass]
            share = _share_cell(sum(p.right for p in mine), sum(p.samples for p in mine))
            rows.append(
                {
                    "Class": f"Class {klass}",
                    "Attack": named(label, limit=80),
                    "Attack success rate": share,
                }
            )
    return tabled("Class by class", rows, words=("Attack",)) if rows else None


def source_section(record: Record) -> dict[str, object] | None:
    """Sentences and tables of the section; None where a record says nothing of sources."""
    if not record.sources:
        return None
    return {
        "found": source_bullets(record),
        "labels": label_sentence(record),
        "attacks": source_table(record),
        "answers": answers_table(record),
        "chained": chained_table(record),
        "seeds": seeds_table(record),
        "rounds": rounds_table(record),
        "owners": owners_table(record),
        "classes": source_classes_table(record),
        "sizes": source_sizes_table(),
    }


def kind_of(record: Record) -> str:
    """Kind of audit of a record, as a heading."""
    topics = ["membership"] * about_members(record)
    topics += ["source"] * bool(record.sources) + ["cluster"] * bool(record.clusters)
    return f"{words.capital(words.listed(topics))} audit"
