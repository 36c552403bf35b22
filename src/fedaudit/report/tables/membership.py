"""Tables of membership inference: attacks by contrast, by class, and exposed samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fedaudit.core.metric_names import HEADLINE_METRICS, rate_of
from fedaudit.report import evidence, wording
from fedaudit.report.evidence import Setting, differing, distinct, grouped, setting_of, summarised
from fedaudit.report.figures.membership import roc_figure
from fedaudit.report.fixed import fixed
from fedaudit.report.grid import Cell, Filled, Footnotes, Grid, below, named, shortened, tabled
from fedaudit.report.section import Section, of_table
from fedaudit.report.tables.cells import estimate_table, measured
from fedaudit.report.text.verdict import needs_more
from fedaudit.report.verdict import independence
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.record import Record

MOST_SAMPLES = 20
"""Exposed samples that are shown at most; the record has them all."""
MOST_NAMED = 3
"""Attacks that are named for each of them; their number is given as well."""


def membership_section(record: Record) -> Section | None:
    """Return the section on membership; of a record about other topics its remaining figures."""
    others = other_figures_table(record)
    if not evidence.about_members(record):
        return of_table("figures", "Other figures", others)
    tables, exposed = attack_tables(record), exposed_table(record)
    return Section(
        "attacks",
        "Attacks",
        [
            "" if tables else fixed("members.none"),
            fixed("members.not_exposed") if record.exposed and not exposed else "",
        ],
        tables=[*tables, *(one for one in (others, classes_table(record), exposed) if one)],
        figure=roc_figure(record.curves),
    )


def attack_tables(record: Record) -> list[Grid]:
    """Return attacks by contrasts: AUC and TPR at 1% and 0.1% FPR, one table a defense and view.

    Figures over seeds replace those of single seeds. Of several clients each has its rows. If
    people are the units, tables of their samples one by one follow.
    """
    figures = summarised(record.findings)
    tables = _by_setting("Attacks by contrast", figures)
    if tables:
        parts = (tables[0].remark, signs_of(figures), independence(record))
        tables[0] = replace(tables[0], remark=" ".join(filter(None, parts)))
    single = summarised(record.of_single_samples)
    return tables + _by_setting("Their samples one by one", single)


def _by_setting(caption: str, figures: list[Estimate]) -> list[Grid]:
    by_setting = grouped(figures, _setting_of_all)
    labels = differing(by_setting)
    return [
        _figures_table(caption + f": {shortened(labels[one], 100)}" * bool(labels[one]), same)
        for one, same in sorted(by_setting.items(), key=lambda pair: pair[0].defense != NO_DEFENSE)
    ]


def other_figures_table(record: Record) -> Grid | None:
    """Return figures of other metrics (epsilon, balanced accuracy); None if there are none."""
    figures = summarised(record.findings, headline=False)
    labels = differing(map(_setting_of_all, figures))
    return _figures_table("Other figures", figures, labels) if figures else None


def _setting_of_all(figure: Estimate) -> Setting:
    return setting_of(figure)._replace(target=None)


def _figures_table(
    caption: str, figures: list[Estimate], labels: Mapping[Setting, str] | None = None
) -> Grid:
    """Return figures with a row for each client and attack, and columns by contrast and metric."""
    notes = Footnotes()
    several = len({one.target for one in figures if one.attack}) > 1
    metrics = distinct((*HEADLINE_METRICS, *(one.metric for one in figures)))
    ordered = sorted(
        figures,
        key=lambda one: (
            several and one.target is not None,
            one.target or 0,
            wording.contrast_order(one.contrast),
            metrics.index(one.metric),
        ),
    )
    # Sizes are given once: below the contrasts, or below the names of several clients.
    sizes = {
        row: _sizes(same) if several else ""
        for row, same in grouped(ordered, lambda one: (one.attack, one.target)).items()
    }

    def heading(one: Estimate) -> Cell:
        whose = "pooled clients" if one.target is None else wording.client_name(one.target)
        name = f"{whose} · {one.attack}" if several and one.attack else one.attack or "The run"
        label = labels[_setting_of_all(one)] if labels else ""
        return named(name, below(label, sizes[one.attack, one.target]), limit=80)

    return estimate_table(
        caption,
        ordered,
        rows=heading,
        columns=lambda one: (_contrast(one), short_name(one.metric)),
        cell=lambda one: figure_cell(one, notes),
        under={
            name: below("" if several else _sizes(same), *distinct(map(compared_within, same)))
            for name, same in grouped(ordered, _contrast).items()
        },
        notes=notes,
        remark=methods_of(figures) + wording.about_runs(one.further for one in figures),
    )


def _contrast(figure: Estimate) -> str:
    return wording.contrast_name(figure.contrast) if figure.attack else "The run itself"


def figure_cell(figure: Estimate, notes: Footnotes) -> Cell | None:
    """Return a figure with its interval and counts, and the sign and size of a leak.

    Args:
        figure: The figure.
        notes: Takes the figure's note, which a rate with counts in its cell does not need.
    """
    counts, few = _counts(figure), needs_more(figure)
    if figure.value is None and few:
        return Cell(wording.MISSING, f"needs {few} more", "muted")
    is_told = counts or figure.note.startswith("mean over")
    mark = notes.mark("" if is_told else figure.note)
    if figure.value is None:
        return Cell(wording.MISSING, "not given", "muted", mark)
    most, alone = figure.ceiling, figure.labels_alone
    more = (
        counts,
        "" if most is None else f"of at most {wording.shown(most, figure.metric)}",
        "" if alone is None else f"labels alone {wording.number(alone)}",
    )
    return measured(figure, evidence.look_of(figure), *more, mark=mark)


def _counts(figure: Estimate) -> str:
    """Return the counts behind the rate of a single run; "" for other figures."""
    value, fpr = figure.value, figure.realised_fpr
    if value is None or fpr is None or rate_of(figure.metric) is None:
        return ""
    members, others = figure.n_members, figure.n_nonmembers
    if not others:
        return f"FPR {wording.percent(fpr)}"
    hits = f"{wording.count(round(value * members))}/{wording.count(members)}" if members else ""
    return below(hits, f"FP {wording.count(round(fpr * others))}/{wording.count(others)}")


def _sizes(figures: Iterable[Estimate]) -> str:
    """Return the members and non-members behind figures, of means those of all seeds."""
    known = [figure for figure in figures if figure.n_members]
    if not known:
        return ""
    parts = ([one.n_members for one in known], [one.n_nonmembers for one in known])
    sizes = " v. ".join(wording.from_to(part, "–") for part in parts)
    return sizes + ", all seeds" * any(figure.seed is None for figure in known)


def compared_within(figure: Estimate) -> str:
    """Return what is compared: "same classes; no fair draw: ..."; "" for all pairs of a draw."""
    parts = (_WITHIN.get(figure.within, ""), "" if figure.fair else wording.NO_FAIR_DRAW)
    return "; ".join(filter(None, parts))


_WITHIN = {"client": "each client's members with its own held-out samples", "class": "same classes"}


def signs_of(figures: Sequence[Estimate]) -> str:
    """Return what signs and words in tables of attacks mean."""
    is_open_below = any(one.low is None and one.high is not None for one in figures)
    return fixed("members.signs") + " ≤: too few non-members for a lower limit." * is_open_below


def short_name(metric: str) -> str:
    """Return a metric as a column has it."""
    return wording.metric_name(metric).replace(" FPR", "")


def methods_of(figures: Iterable[Estimate]) -> str:
    """Return the methods of intervals."""
    methods = distinct(shortened(figure.method, 80) for figure in figures if figure.method)
    return f"Intervals: {'; '.join(methods)}." * bool(methods)


def classes_table(record: Record) -> Grid | None:
    """Return the AUC of every class; None if the record has none."""
    groups = [group for group in record.groups if group.by == "class"]
    if not groups:
        return None
    labels = differing(map(setting_of, groups))

    def heading(one: Estimate) -> Cell:
        parts = (wording.against(one.contrast), labels[setting_of(one)])
        return named(one.attack, shortened(" · ".join(filter(None, parts)), 80))

    return estimate_table(
        "AUC by class",
        groups,
        rows=heading,
        columns=lambda one: f"Class {one.group}",
        cell=lambda one: None if one.value is None else measured(one, unbounded=""),
        remark="Not corrected for the number of classes.",
    )


def exposed_table(record: Record) -> Grid | None:
    """Return the members that attacks above chance list, those first on which most agree.

    None if no attack is above chance: then a list of those who score highest is what chance gives.
    """
    above = evidence.above_chance_attacks(record)
    listed = [one for one in record.exposed if (one.attack, one.defense, one.target) in above]
    if not listed:
        return None
    labels = differing(Setting(one.defense, "", one.target, None) for one in listed)
    tried = grouped(listed, lambda one: one.defense)
    ranked = []
    for same in grouped(listed, lambda one: (one.defense, one.target, one.sample)).values():
        best = max(same, key=lambda one: one.above_nonmembers)
        attacks, share = distinct(one.attack for one in same), 1 - best.above_nonmembers
        of = len({one.attack for one in tried[best.defense]})
        where = labels[Setting(best.defense, "", best.target, None)]
        row: Filled = {
            wording.capital(best.unit): Cell(str(best.sample), where),
            "Class": None if best.label is None else str(best.label),
            "Attacks that list it": Cell(
                f"{len(attacks)} of {of}", wording.some(list(map(shortened, attacks)), MOST_NAMED)
            ),
            "Non-members as high or higher": wording.percent(share),
        }
        ranked.append(((-len(attacks), share, best.sample), row))
    ranked.sort(key=lambda pair: pair[0])
    left = len(ranked) - MOST_SAMPLES
    return tabled(
        "Most exposed samples" if record.unit == "sample" else "Most exposed people",
        [row for _, row in ranked[:MOST_SAMPLES]],
        words=("Class", "Attacks that list it"),
        remark=fixed("members.exposed")
        + f" The record lists {wording.plural(left, 'further one')}." * (left > 0),
    )
