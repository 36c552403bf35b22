"""Tables of membership inference: attacks by contrast, by class, and exposed samples."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fedaudit.core.metric_names import AUC, HEADLINE_METRICS, rate_of
from fedaudit.report import words
from fedaudit.report.evidence import (
    SIZES,
    RunsBehind,
    above_chance_attacks,
    differing,
    distinct,
    grouped,
    key_of,
    look_of,
    runs_behind,
    setting_of,
    single_samples,
    summarised,
)
from fedaudit.report.grid import EMPTY, Cell, Footnotes, Grid, below, named, shortened, tabled
from fedaudit.report.tables.cells import estimate_table, measured
from fedaudit.report.text.verdict import needs_more
from fedaudit.report.verdict import independence
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.record import ExposedSample, Record

MOST_SAMPLES = 20
"""Exposed samples that are shown at most; the record has them all."""
MOST_NAMED = 3
"""Attacks that are named for each of them; their number is given as well."""


def membership_section(record: Record) -> dict[str, object]:
    """Return the tables of the section on membership."""
    return {
        "attack_tables": attack_tables(record),
        "other_figures": other_figures_table(record),
        "classes": classes_table(record),
        "exposed": exposed_table(record),
        "exposed_note": exposed_note(record),
    }


def attack_tables(record: Record) -> list[Grid]:
    """Return attacks by contrasts: AUC and TPR at 1% and 0.1% FPR, one table a defense and view.

    Figures over seeds replace those of single seeds. Of several clients each has its rows. If
    people are the units, tables of their samples one by one follow.
    """
    figures = summarised(record.findings)
    tables = _by_setting("Attacks by contrast", figures, runs_behind(record))
    if tables:
        parts = (tables[0].remark, signs_of(figures), independence(record))
        tables[0] = replace(tables[0], remark=" ".join(filter(None, parts)))
    return tables + _by_setting("Their samples one by one", single_samples(record), {})


def _by_setting(caption: str, figures: list[Estimate], runs: RunsBehind) -> list[Grid]:
    by_setting = grouped(figures, lambda one: setting_of(one)._replace(target=None))
    labels = differing(by_setting)
    return [
        _attack_table(caption + f": {shortened(labels[one], 100)}" * bool(labels[one]), same, runs)
        for one, same in sorted(by_setting.items(), key=lambda pair: pair[0].defense != NO_DEFENSE)
    ]


def _attack_table(caption: str, figures: list[Estimate], runs: RunsBehind) -> Grid:
    notes, several = Footnotes(), len({one.target for one in figures}) > 1
    columns = list(HEADLINE_METRICS)
    ordered = sorted(
        figures,
        key=lambda one: (
            several and one.target is not None,
            one.target or 0,
            words.contrast_order(one.contrast),
            columns.index(one.metric) if one.metric in columns else len(columns),
        ),
    )
    # Sizes stand once: below the contrasts, or below the names of several clients.
    of_row = grouped(figures, lambda one: (one.attack, one.target))
    sizes = {row: sizes_in_words(same, runs) if several else "" for row, same in of_row.items()}
    under = {
        name: below(
            "" if several else sizes_in_words(same, runs), *distinct(map(compared_within, same))
        )
        for name, same in grouped(ordered, lambda one: words.contrast_name(one.contrast)).items()
    }
    return estimate_table(
        caption,
        ordered,
        rows=lambda one: _heading(one, several, sizes[one.attack, one.target]),
        columns=lambda one: (words.contrast_name(one.contrast), short_name(one.metric)),
        cell=lambda one: figure_cell(one, notes, runs),
        under=under,
        notes=notes,
        remark=methods_of(figures) + words.about_runs(one.further for one in figures),
    )


def _heading(figure: Estimate, several: bool, detail: str) -> Cell:
    if not several:
        return named(figure.attack or "The run", detail)
    whose = "pooled clients" if figure.target is None else words.client_name(figure.target)
    return named(f"{whose} · {figure.attack or 'the run'}", detail, limit=80)


def figure_cell(figure: Estimate, notes: Footnotes, runs: RunsBehind) -> Cell:
    """Return a figure with its interval and counts, and the sign and size of a leak.

    Args:
        figure: The figure.
        notes: Takes the figure's note, which a rate with counts in its cell does not need.
        runs: The figures of single runs, whose counts a mean sums.
    """
    counts, few = _counts(figure, runs), needs_more(figure)
    if figure.value is None and few:
        return Cell(words.MISSING, f"needs {few} more", "muted")
    is_told = counts or figure.note.startswith("mean over")
    mark = notes.mark("" if is_told else figure.note)
    if figure.value is None:
        return Cell(words.MISSING, "not given", "muted", mark)
    most, alone = figure.ceiling, figure.labels_alone
    more = (
        counts,
        "" if most is None else f"of at most {words.shown(most, figure.metric)}",
        "" if alone is None else f"labels alone {words.number(alone)}",
    )
    return measured(figure, look_of(figure), *more, mark=mark) or EMPTY


def _counts(figure: Estimate, runs: RunsBehind) -> str:
    """Return the counts behind a rate, summed over the runs of a mean; "" for other figures."""
    behind = [] if figure.seed is not None else runs.get(key_of(figure), [])
    parts = [one for one in behind or [figure] if one.realised_fpr is not None]
    if not parts or figure.value is None or rate_of(figure.metric) is None:
        return ""
    if not any(one.n_nonmembers for one in parts):
        return f"FPR {words.percent(parts[0].realised_fpr or 0.0)}"
    found = sum(round((one.value or 0.0) * one.n_members) for one in parts)
    alarms = sum(round((one.realised_fpr or 0.0) * one.n_nonmembers) for one in parts)
    members, others = (sum(getattr(one, n) for one in parts) for n in ("n_members", "n_nonmembers"))
    hits = f"{words.count(found)}/{words.count(members)}" if members else ""
    return below(hits, f"FP {words.count(alarms)}/{words.count(others)}")


def sizes_in_words(figures: Iterable[Estimate], runs: RunsBehind) -> str:
    """Return the members and non-members behind figures; of means those of each seed."""
    here = list(figures)
    behind = [run for f in here if f.seed is None for run in runs.get(key_of(f), [])]
    behind = [run for run in behind if run.n_members]
    seeds = {run.seed for run in behind}
    if len(seeds) > 1:
        return f"{len(seeds)} seeds, each {_range(behind)}"
    found = [figure for figure in here if figure.n_members]
    return _range(found) if found else ""


def _range(figures: Sequence[Estimate]) -> str:
    members = {figure.n_members for figure in figures}
    others = {figure.n_nonmembers for figure in figures}
    return f"{words.from_to(members, '–')} v. {words.from_to(others, '–')}"


def compared_within(figure: Estimate) -> str:
    """Return what is compared: "same classes; no fair draw: ..."; "" for all pairs of a draw."""
    parts = (_WITHIN.get(figure.within, ""), "" if figure.fair else words.NO_FAIR_DRAW)
    return "; ".join(filter(None, parts))


_WITHIN = {"client": "each client's members with its own held-out samples", "class": "same classes"}
_LOWER = re.compile(r"a lower limit needs ([\d,]+) more")


def signs_of(figures: Sequence[Estimate]) -> str:
    """Return what signs and words in tables of attacks mean."""
    sizes = (
        f"AUC {', '.join(f'{one.auc:g}' for one in SIZES[1:])}",
        f"TPR at 1% FPR {', '.join(f'{one.percent_rate:.0%}' for one in SIZES[1:])}",
        f"at 0.1% {', '.join(f'{100 * one.thousandth_rate:g}%' for one in SIZES[1:])}",
    )
    needs = [int(m[1].replace(",", "")) for one in figures if (m := _LOWER.search(one.note))]
    return (
        "▲ above chance by the corrected test and by the interval, △ by the test alone. The word "
        f"is the size of the leak by the lower limit ({', '.join(one.word for one in SIZES[1:])} "
        f"from {'; '.join(sizes)}). FP: false positives."
        + (f" ≤: a lower limit needs {words.from_to(needs)} more non-members." if needs else "")
    )


def short_name(metric: str) -> str:
    """Return a metric as a column has it."""
    return words.metric_name(metric).replace(" FPR", "")


def methods_of(figures: Iterable[Estimate]) -> str:
    """Return the methods of intervals, metric by metric."""
    methods = grouped((f for f in figures if f.method), lambda f: shortened(f.method, 80))
    parts = [
        f"{method} ({', '.join(distinct(short_name(figure.metric) for figure in found))})"
        for method, found in methods.items()
    ]
    return f"Intervals: {'; '.join(parts)}." if parts else ""


def other_figures_table(record: Record) -> Grid | None:
    """Return figures of other metrics (epsilon, balanced accuracy); None if there are none."""
    figures = summarised(record.findings, headline=False)
    if not figures:
        return None
    notes, runs = Footnotes(), runs_behind(record)
    labels = differing(setting_of(one)._replace(target=None) for one in figures)
    several = len({one.target for one in figures if one.attack}) > 1

    def heading(one: Estimate) -> Cell:
        label = shortened(labels[setting_of(one)._replace(target=None)], 80)
        return _heading(one, several and bool(one.attack), label)

    return estimate_table(
        "Other figures",
        sorted(figures, key=lambda one: words.contrast_order(one.contrast)),
        rows=heading,
        columns=lambda one: (
            words.contrast_name(one.contrast) if one.attack else "The run itself",
            short_name(one.metric),
        ),
        cell=lambda one: figure_cell(one, notes, runs),
        notes=notes,
        remark=methods_of(figures),
    )


def targets_of(record: Record) -> list[int]:
    """Return the audited clients."""
    return sorted({figure.target for figure in record.findings if figure.target is not None})


def classes_table(record: Record) -> Grid | None:
    """Return the AUC of every class; None if the record has none."""
    groups = [group for group in record.groups if group.by == "class"]
    if not groups:
        return None
    labels = differing(setting_of(one) for one in groups)
    several = len({one.contrast for one in groups}) > 1

    def heading(one: Estimate) -> Cell:
        parts = (words.against(one.contrast) * several, labels[setting_of(one)])
        return named(one.attack, shortened(" · ".join(filter(None, parts)), 80))

    by_class = grouped(groups, lambda group: group.group)
    sizes = {name: _range(found).replace(" v. ", "/") for name, found in by_class.items()}
    against = "" if several else f"{words.capital(words.against(groups[0].contrast))}; "
    return estimate_table(
        "AUC by class",
        groups,
        rows=heading,
        columns=lambda one: (f"Class {one.group}", sizes[one.group]),
        cell=lambda one: None if one.value is None else measured(one, unbounded=""),
        remark=f"{against}members/non-members; not corrected for the number of classes.",
    )


def exposed_table(record: Record) -> Grid | None:
    """Return the members that attacks above chance list, those first on which most agree.

    None if no attack is above chance: then a list of those who score highest is what chance gives.
    """
    trusted = _trusted(record)
    if not trusted:
        return None
    aucs = [figure for figure in record.findings if figure.metric == AUC]
    by_run = grouped(aucs, lambda one: (one.attack, one.defense, one.target, one.seed))
    sizes = {run: max(one.n_nonmembers for one in same) for run, same in by_run.items()}
    asked = {
        defense: len({one.attack for one in same})
        for defense, same in grouped(trusted, lambda one: one.defense).items()
    }

    def row(same: Sequence[ExposedSample]) -> dict[str, Cell | str | None]:
        ranked = sorted(same, key=lambda one: -one.above_nonmembers)
        best, attacks = ranked[0], distinct(one.attack for one in ranked)
        total = sizes.get((best.attack, best.defense, best.target, best.seed), 0)
        share = 1 - best.above_nonmembers
        higher = f"{words.count(round(share * total))}/{words.count(total)}"
        more = f" and {len(attacks) - MOST_NAMED} more" if len(attacks) > MOST_NAMED else ""
        return {
            words.capital(best.unit): str(best.sample),
            "Class": None if best.label is None else str(best.label),
            "Defense": named(words.defense_name(best.defense)),
            "Target": words.client_name(best.target),
            "Seeds": ", ".join(str(seed) for seed in sorted({one.seed for one in same})),
            "Attacks that list it": f"{len(attacks)} of {asked[best.defense]}",
            "Non-members as high or higher": higher if total else words.percent(share),
            "By": shortened(", ".join(attacks[:MOST_NAMED]), 100) + more,
        }

    samples = grouped(trusted, lambda one: (one.defense, one.target, one.sample, one.label))
    ordered = sorted(
        samples.values(),
        key=lambda same: (
            -len({one.attack for one in same}),
            1 - max(one.above_nonmembers for one in same),
            same[0].sample,
        ),
    )
    left = len(ordered) - MOST_SAMPLES
    return tabled(
        "Most exposed samples" if record.unit == "sample" else "Most exposed people",
        [row(same) for same in ordered[:MOST_SAMPLES]],
        words=("Class",),
        varying=("Defense", "Target", "Seeds", "Attacks that list it", "By"),
        remark=f"The record lists {words.plural(left, 'further one')}." if left > 0 else "",
    )


def exposed_note(record: Record) -> str:
    """Return the basis of the list, and the attacks that are left out of it."""
    if not record.exposed:
        return ""
    trusted = {one.attack for one in _trusted(record)}
    if not trusted:
        return (
            "No attack is above chance here. A list of the members that score highest would be "
            "what chance gives, so none is shown."
        )
    others = distinct(shortened(e.attack) for e in record.exposed if e.attack not in trusted)
    return (
        "Members whose scores stand out most; an average can be low while these are identified."
        + (f" {words.listed(others)} had no say, being not above guessing." if others else "")
    )


def _trusted(record: Record) -> list[ExposedSample]:
    above = above_chance_attacks(record)
    return [one for one in record.exposed if (one.attack, one.defense, one.target) in above]
