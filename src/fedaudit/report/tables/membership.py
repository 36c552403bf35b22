"""Tables of membership inference: attacks by contrast, counts, groups, exposed samples."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedaudit.core.metric_names import AUC, HEADLINE_METRICS, rate_of
from fedaudit.report import words
from fedaudit.report.evidence import (
    RunsBehind,
    above_chance_attacks,
    differing,
    distinct,
    grouped,
    headline,
    key_of,
    look_of,
    runs_behind,
    setting_of,
    settings_of,
)
from fedaudit.report.grid import (
    EMPTY,
    Cell,
    Filled,
    Footnotes,
    Grid,
    Heading,
    below,
    columns_of,
    named,
    shortened,
    tabled,
)
from fedaudit.report.tables.cells import measured
from fedaudit.report.verdict import independence
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import ExposedSample, Record


def membership_section(record: Record) -> dict[str, object]:
    """Tables of the parts on membership, and of every figure."""
    return {
        "attack_tables": attack_tables(record),
        "other_figures": other_figures_table(record),
        "counts": counts_table(record),
        "targets": targets_of(record),
        "by_target": targets_table(record),
        "groups": {by: groups_table(record, by) for by in ("client", "class")},
        "exposed": exposed_table(record),
        "exposed_note": exposed_note(record),
        "every_figure": every_figure_table(record),
    }


class SampleCounts(NamedTuple):
    """Whole numbers of samples.

    Attributes:
        found: Members flagged.
        members: All members.
        alarms: Non-members flagged.
        nonmembers: All non-members.
    """

    found: int
    members: int
    alarms: int
    nonmembers: int


def counted(figure: Estimate) -> SampleCounts | None:
    """The counts behind a rate of one run; None for any other figure."""
    if figure.value is None or figure.realised_fpr is None or rate_of(figure.metric) is None:
        return None
    return SampleCounts(
        round(figure.value * figure.n_members),
        figure.n_members,
        round(figure.realised_fpr * figure.n_nonmembers),
        figure.n_nonmembers,
    )


def in_all(figure: Estimate, runs: RunsBehind) -> SampleCounts | None:
    """The counts behind a rate, summed over the runs where it is a mean over several."""
    if figure.seed is not None:
        return counted(figure)
    parts = [part for run in runs.get(key_of(figure), []) if (part := counted(run))]
    if not parts:
        return counted(figure)
    return SampleCounts(*(sum(column) for column in zip(*parts, strict=True)))


def counts_in_words(part: SampleCounts) -> str:
    """Text below a rate: members found, and false alarms."""
    return (
        f"{words.count(part.found)}/{words.count(part.members)}\nFP {words.count(part.alarms)}/"
        f"{words.count(part.nonmembers)}"
    )


def sizes_in_words(figures: list[Estimate], runs: RunsBehind, contrast: str) -> str:
    """Members and non-members of a contrast: of the one run, or of each of several.

    A mean over runs must not look like one audit of all their samples together.
    """
    here = [figure for figure in figures if figure.contrast == contrast]
    behind = [
        run for f in here if f.seed is None for run in runs.get(key_of(f), []) if run.n_members
    ]
    seeds = {run.seed for run in behind}
    if len(seeds) > 1:
        return f"{len(seeds)} seeds, each {_range(behind)}"
    found = [figure for figure in here if figure.n_members]
    return _range(found) if len({(f.n_members, f.n_nonmembers) for f in found}) == 1 else ""


def _range(figures: list[Estimate]) -> str:
    members = {figure.n_members for figure in figures}
    others = {figure.n_nonmembers for figure in figures}
    return f"{words.from_to(members, '–')} v. {words.from_to(others, '–')}"


def counts_table(record: Record) -> Grid | None:
    """Members found and false alarms behind each mean rate, seed by seed; None without means."""
    runs = runs_behind(record)
    means = [f for f in headline(record) if f.seed is None and in_all(f, runs) is not None]
    seeds = sorted({run.seed or 0 for f in means for run in runs.get(key_of(f), [])})
    if not seeds:
        return None
    means.sort(key=lambda figure: (figure.metric, words.contrast_order(figure.contrast)))
    rows: list[Filled] = []
    for mean in means:
        by_seed = {run.seed: counted(run) for run in runs.get(key_of(mean), [])}
        rows.append(
            {
                "Attack": named(mean.attack),
                "Non-members": words.contrast_name(mean.contrast),
                "Rate": words.metric_name(mean.metric),
                **{f"Seed {seed}": _cell(by_seed.get(seed)) for seed in seeds},
                "In all": _cell(in_all(mean, runs)),
            }
        )
    return tabled(
        "Counts behind the rates, seed by seed",
        rows,
        words=("Non-members", "Rate"),
        remark="Members found of all members, and below them false alarms (FP) of all non-members. "
        "Seeds are runs of their own, each with a threshold of its own: the sum in the last column "
        "is for orientation, and no interval rests on it.",
    )


def _cell(part: SampleCounts | None) -> Cell | None:
    if part is None:
        return None
    found, alarms = counts_in_words(part).split("\n")
    return Cell(found, alarms)


_SIGNS = (
    "▲ above guessing: by a test that is corrected over all figures of the study, so that the "
    "chance of any false ▲ stays at the study's alpha (5% by default), and, but for rates, by the "
    "figure's own interval, which is not corrected. △ by the test alone: something was found, of "
    "several runs in at least one, but the interval leaves its size open. The word is the size of "
    "the leak by the interval's lower limit. The interval of a rate allows for its threshold, "
    "which rests on the same non-members; ≤ is an upper limit alone, where they are too few for a "
    "lower one. FP: false alarms, of all non-members."
)
_PLAIN_MEAN = re.compile(r"mean over \d+ seeds")
_OVER_SEEDS = " Figures are means over these seeds, and the counts below them sums."


def attack_tables(record: Record) -> list[Grid]:
    """Attacks by contrasts: AUC and TPR at 1% and 0.1% FPR, one table for each setting.

    Figures over seeds stand in for those of single seeds where the record has them.
    """
    figures = headline(record)
    settings, runs = settings_of(figures), runs_behind(record)
    here = grouped(figures, setting_of)
    tables = [
        _attack_table(here[setting], label, runs)
        for setting, label in zip(settings, differing(settings), strict=True)
    ]
    said = independence(record)
    if tables and said:
        tables[0] = replace(tables[0], remark=f"{tables[0].remark} {said}")
    return tables


def _attack_table(figures: list[Estimate], label: str, runs: RunsBehind) -> Grid:
    contrasts = sorted({figure.contrast for figure in figures}, key=words.contrast_order)
    found = {(figure.attack, figure.contrast, figure.metric): figure for figure in figures}
    notes = Footnotes()
    rows = [
        (
            named(attack),
            *(
                figure_cell(found.get((attack, contrast, metric)), notes, runs=runs)
                for contrast in contrasts
                for metric in HEADLINE_METRICS
            ),
        )
        for attack in distinct(figure.attack for figure in figures)
    ]
    names = [_short_name(metric) for metric in HEADLINE_METRICS]
    width = len(HEADLINE_METRICS)
    headings = [
        Heading(words.contrast_name(contrast), width, _under(figures, runs, contrast))
        for contrast in contrasts
    ]
    return Grid(
        caption="Attacks by contrast" + (f": {shortened(label, 120)}" if label else ""),
        columns=columns_of("Attack", *(names * len(contrasts)), numeric=names),
        rows=tuple(rows),
        headings=(Heading("", 1), *headings),
        notes=notes.listed(),
        remark=_how(figures)
        + (_OVER_SEEDS if any(f.seed is None for f in figures) else "")
        + words.about_runs(f.further for f in figures),
    )


def _under(figures: list[Estimate], runs: RunsBehind, contrast: str) -> str:
    """Return the sizes of a contrast, what is compared within, and whether no draw was fair."""
    here = [figure for figure in figures if figure.contrast == contrast]
    compared = distinct(compared_within(figure) for figure in here)
    return below(sizes_in_words(figures, runs, contrast), *compared)


def compared_within(figure: Estimate) -> str:
    """Return what is compared: "within each client", "matched in class; no fair draw: ..."."""
    parts = (_WITHIN.get(figure.within, ""), "" if figure.fair else words.NO_FAIR_DRAW)
    return "; ".join(filter(None, parts))


_WITHIN = {"client": "each client's members with its own held-out samples", "class": "same classes"}


def _compared(figures: Iterable[Estimate]) -> list[Filled]:
    """Return for each figure the cell on what is compared, which tables without any do not have."""
    compared = [compared_within(figure) for figure in figures]
    if not any(compared):
        return [{} for _ in compared]
    return [{"Compared": within or "all pairs"} for within in compared]


def _alone(figure: Estimate) -> str:
    if figure.labels_alone is None:
        return ""
    return f"labels alone {words.number(figure.labels_alone)}"


def _short_name(metric: str) -> str:
    """A metric as a column has it."""
    return words.metric_name(metric).replace(" FPR", "")


def _how(figures: Iterable[Estimate]) -> str:
    """Methods of the intervals, metric by metric, and meaning of the sign."""
    methods = grouped((f for f in figures if f.method), lambda f: shortened(f.method, 80))
    parts = [
        f"{method} ({', '.join(distinct(_short_name(figure.metric) for figure in found))})"
        for method, found in methods.items()
    ]
    made = f"Intervals: {'; '.join(parts)}. " if parts else ""
    return made + _SIGNS


def figure_cell(
    figure: Estimate | None, notes: Footnotes, *, runs: RunsBehind | None = None
) -> Cell:
    """A figure with its interval, its counts, and a sign and a word where it is above guessing.

    Args:
        figure: None gives an empty cell.
        notes: Takes the figure's note.
        runs: The figures of single runs. With them, a rate has all its counts in the cell and
            needs no note; a table with many rates is otherwise mostly footnotes.
    """
    if figure is None:
        return EMPTY
    plain_mean = _PLAIN_MEAN.fullmatch(figure.note) is not None
    said = runs is not None and (plain_mean or in_all(figure, runs) is not None)
    mark = notes.mark(_lacking(figure) if said else figure.note)
    if figure.value is None:
        return Cell(words.MISSING, "not given", "muted", mark)
    look = look_of(figure)
    part = None if runs is None else in_all(figure, runs)
    counts = counts_in_words(part) if part else _false_alarms(figure)
    more = (counts, _ceiling(figure), _alone(figure))
    return measured(figure, look, *more, mark=mark) or EMPTY


def _lacking(figure: Estimate) -> str:
    """Non-members that a rate needs for a lower limit, which its note ends with."""
    alone = figure.low is None and figure.high is not None
    return figure.note.rpartition("; ")[2] if alone else ""


def _false_alarms(figure: Estimate) -> str:
    if figure.realised_fpr is None or rate_of(figure.metric) is None:
        return ""
    if not figure.n_nonmembers:
        return f"FPR {words.percent(figure.realised_fpr)}"
    alarms = words.amount(figure.realised_fpr * figure.n_nonmembers)
    return f"FP {alarms}/{words.count(figure.n_nonmembers)}"


def _ceiling(figure: Estimate) -> str:
    return (
        "" if figure.ceiling is None else f"of at most {words.shown(figure.ceiling, figure.metric)}"
    )


def other_figures_table(record: Record) -> Grid | None:
    """Figures of other metrics (epsilon, balanced accuracy, ...); None where there are none."""
    figures = [
        figure
        for figure in record.findings
        if not figure.attack or figure.metric not in HEADLINE_METRICS
    ]
    return _long_table("Other figures", figures) if figures else None


def every_figure_table(record: Record) -> Grid:
    """Every figure of the record with all that is known of it."""
    return _long_table("Every figure of this record", record.findings)


def _long_table(caption: str, figures: list[Estimate]) -> Grid:
    notes = Footnotes()
    rows: list[Filled] = [
        {
            "Attack": named(figure.attack or "(the run)"),
            "Contrast": words.contrast_name(figure.contrast),
            "Metric": words.metric_name(figure.metric),
            "Figure": figure_cell(figure, notes),
            **compared,
            "Defense": shortened(words.defense_name(figure.defense)),
            "View": shortened(figure.view),
            "Target": "every target" if figure.target is None else str(figure.target),
            "Seed": "every seed" if figure.seed is None else str(figure.seed),
            "Method": shortened(figure.method, 60) or words.MISSING,
            "Members / non-members": _behind(figure),
        }
        for figure, compared in zip(figures, _compared(figures), strict=True)
    ]
    return tabled(
        caption,
        rows,
        words=("Contrast", "Metric", "Method"),
        varying=("Defense", "View", "Target", "Seed", "Compared"),
        notes=notes,
        remark=_SIGNS + words.about_runs(figure.further for figure in figures),
    )


def _behind(figure: Estimate) -> str:
    return f"{words.count(figure.n_members)} / {words.count(figure.n_nonmembers)}"


def targets_of(record: Record) -> list[int]:
    """The audited clients."""
    return sorted({figure.target for figure in record.findings if figure.target is not None})


def targets_table(record: Record) -> Grid | None:
    """AUC of each audited client; None where only one was audited."""
    figures = sorted(target_figures(record), key=lambda figure: figure.target or 0)
    if not figures:
        return None
    rows = [
        {
            "Client": _client(figure.target),
            "Attack": named(figure.attack),
            "Non-members": words.contrast_name(figure.contrast),
            "Defense": named(words.defense_name(figure.defense)),
            "Seed": "mean" if figure.seed is None else str(figure.seed),
            "AUC": None
            if figure.value is None
            else measured(figure, look_of(figure), _alone(figure), unbounded=""),
            **compared,
            "Members / non-members": _behind(figure),
        }
        for figure, compared in zip(figures, _compared(figures), strict=True)
    ]
    return tabled("AUC by audited client", rows, varying=_SETTING)


def _client(client: int | None) -> str:
    """Return a client's own name as it is, and a number as "Client 3"."""
    return "All" if client is None else words.client_heading(client)


_SETTING = ("Target", "Compared", "Attack", "Contrast", "Non-members", "Defense", "Seed")


def target_figures(record: Record) -> list[Estimate]:
    """AUCs of the audited clients, over seeds where there are means; none for a single client."""
    if len(targets_of(record)) < 2:
        return []
    return [f for f in headline(record) if f.metric == AUC and f.target is not None]


def groups_table(record: Record, by: str) -> Grid | None:
    """AUC by whose samples ("client") or by "class"; None where the record has none."""
    groups = [group for group in record.groups if group.by == by]
    if not groups:
        return None
    caption = (
        "AUC of the target's members against each other client's samples"
        if by == "client"
        else "AUC by class"
    )
    return tabled(caption, [_group_row(group) for group in groups], varying=_SETTING)


def group_name(group: Estimate) -> str:
    """A group as a reader sees it: a client's samples, or a class."""
    # The name of a client that has one stands in the place of its number already.
    is_named = group.by == "client" and not group.group.isdecimal()
    return group.group if is_named else f"{words.capital(group.by)} {group.group}"


def _group_row(group: Estimate) -> Filled:
    return {
        "Non-members of" if group.by == "client" else "Class": named(group_name(group)),
        "Target": words.MISSING if group.target is None else words.client_name(group.target),
        "Attack": named(group.attack),
        "Contrast": words.contrast_name(group.contrast),
        "Defense": named(words.defense_name(group.defense)),
        "Seed": str(group.seed),
        "AUC": None if group.value is None else measured(group, unbounded=""),
        "Members / non-members": _behind(group),
    }


MOST_SAMPLES = 20
"""Rows that are shown at most; the record has them all."""

MOST_NAMED = 3
"""Attacks that are named in a row; the number of all of them stands before."""


def exposed_table(record: Record) -> Grid | None:
    """The members that attacks above guessing list, those first on which most of them agree.

    None where the record lists none, or no attack is above guessing: then a list of those who
    score highest is what chance gives.
    """
    trusted = _trusted(record)
    if not trusted:
        return None
    samples = grouped(trusted, lambda one: (one.defense, one.target, one.sample, one.label))
    sizes = _nonmembers(record)
    ordered = sorted(samples.values(), key=_rank)
    rows = [_row(record, same, sizes) for same in ordered[:MOST_SAMPLES]]
    left = len(ordered) - len(rows)
    return tabled(
        "Most exposed samples" if record.unit == "sample" else "Most exposed people",
        rows,
        words=("Class", "Seeds", "By"),
        varying=("Defense", "Target"),
        remark=f"{words.plural(left, 'further one')} stand in the record." if left else "",
    )


def exposed_note(record: Record) -> str:
    """Basis of the list, and attacks that had no say in it."""
    if not record.exposed:
        return ""
    trusted = distinct(one.attack for one in _trusted(record))
    others = [name for name in distinct(e.attack for e in record.exposed) if name not in trusted]
    if not trusted:
        return (
            "No attack is above guessing here. Each still has members that score highest, but "
            "such a list is what chance gives, and none is shown."
        )
    several = len({one.seed for one in record.exposed}) > 1
    anew = (
        " Audited members are drawn anew for each seed, so that few can be listed in several."
        if several
        else ""
    )
    without = f" {_names(others)} had no say, being not above guessing." if others else ""
    return (
        "Members whose scores stand out most: averages can be low while these are named with "
        f"confidence. Each attack lists its highest-scoring members of a seed ({_names(trusted)}); "
        f"first stand those on which most of them agree.{anew}{without}"
    )


def _names(attacks: Sequence[str]) -> str:
    return words.listed([shortened(name) for name in attacks])


def _trusted(record: Record) -> list[ExposedSample]:
    above = above_chance_attacks(record)
    return [one for one in record.exposed if (one.attack, one.defense, one.target) in above]


_Sizes = dict[tuple[str, str, int | None, int | None], int]


def _nonmembers(record: Record) -> _Sizes:
    """Number of non-members each list was held against: all of a run, of both kinds."""
    aucs = [figure for figure in record.findings if figure.metric == AUC]
    found = grouped(aucs, lambda f: (f.attack, f.defense, f.target, f.seed))
    return {place: max(figure.n_nonmembers for figure in same) for place, same in found.items()}


def _rank(same: Sequence[ExposedSample]) -> tuple[int, float, int]:
    agreeing = len({one.attack for one in same})
    return -agreeing, 1 - max(one.above_nonmembers for one in same), same[0].sample


def _row(record: Record, same: Sequence[ExposedSample], sizes: _Sizes) -> Filled:
    best = max(same, key=lambda one: one.above_nonmembers)
    nonmembers = sizes.get((best.attack, best.defense, best.target, best.seed), 0)
    attacks = distinct(one.attack for one in sorted(same, key=lambda o: -o.above_nonmembers))
    asked = {e.attack for e in _trusted(record) if e.defense == best.defense}
    more = f" and {len(attacks) - MOST_NAMED} more" if len(attacks) > MOST_NAMED else ""
    return {
        "Which one": f"{words.capital(best.unit)} {best.sample}",
        "Class": EMPTY.text if best.label is None else str(best.label),
        "Defense": named(words.defense_name(best.defense)),
        "Target": words.client_name(best.target),
        "Seeds": ", ".join(str(seed) for seed in sorted({one.seed for one in same})),
        "Attacks that list it": f"{len(attacks)} of {len(asked)}",
        "Non-members as high or higher": _above(best, nonmembers),
        "By": shortened(", ".join(attacks[:MOST_NAMED]), 100) + more,
    }


def _above(best: ExposedSample, nonmembers: int) -> str:
    """By the attack that singles it out most: a count, which a share near 1 does not show."""
    if not nonmembers:
        return (
            words.percent(1 - best.above_nonmembers) if best.above_nonmembers < 1 else words.MISSING
        )
    higher = round((1 - best.above_nonmembers) * nonmembers)
    return f"{words.count(higher)} of {words.count(nonmembers)}"
