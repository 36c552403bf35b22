"""The section on membership inference: attacks, classes, ROC curves and exposed samples."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from fedaudit.core.metric_names import HEADLINE_METRICS, rate_of
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.grid import (
    Cell,
    Cells,
    Footnotes,
    Grid,
    grid_of,
    name_cell,
    shorten,
    stack_lines,
)
from fedaudit.report import evidence
from fedaudit.report.deciding.caveats import independence
from fedaudit.report.evidence import Setting, group_by, setting_labels, setting_of, unique_items
from fedaudit.report.figures import charts
from fedaudit.report.tables.cells import Section, estimate_table, table_section, value_cell
from fedaudit.report.text.verdict import needs_more
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Curve, Record

MOST_SAMPLES = 20  # largest number of exposed samples in the table; the record has all
MOST_NAMED = 3  # largest number of attacks that are named for each exposed sample
_MOST_COLOURED = 4  # more coloured curves cannot be distinguished at FPRs of 1 % and below


def membership_section(record: Record) -> Section | None:
    """Return the section on membership, or a section with other estimates of attacks."""
    other_estimates = other_estimates_table(record)
    if not evidence.has_membership(record):
        return table_section("figures", "Other figures", other_estimates)
    tables, exposed = attack_tables(record), exposed_table(record)
    texts = [] if tables else [fixed_text("members.none")]
    texts += [fixed_text("members.not_exposed")] * bool(record.exposed and not exposed)
    tables += [grid for grid in (other_estimates, classes_table(record), exposed) if grid]
    estimate = roc_figure(record.curves)
    return Section("attacks", "Attacks", texts, tables=tables, figure=estimate)


def attack_tables(record: Record) -> list[Grid]:
    """Return tables of AUC and TPR by attack and contrast, one for each defense and view.

    Estimates over seeds replace estimates of single seeds. Each of several clients has its own
    rows. If people are the units, tables of single samples follow.
    """
    estimates = evidence.most_summarised(record.findings)
    tables = _by_setting("Attacks by group of non-members", estimates)
    if tables:
        remark = wording.join_parts(
            tables[0].remark, signs_of(estimates), independence(record), by=" "
        )
        tables[0] = replace(tables[0], remark=remark)
    of_single_samples = evidence.most_summarised(record.of_single_samples)
    return tables + _by_setting("Single samples of these people", of_single_samples)


def _by_setting(caption: str, estimates: list[Estimate]) -> list[Grid]:
    by_setting = group_by(estimates, _setting_of_all)
    labels = setting_labels(by_setting)
    ordered = sorted(by_setting, key=lambda setting: setting.defense != NO_DEFENSE)
    captions = {s: wording.join_parts(caption, shorten(labels[s], 100), by=": ") for s in ordered}
    return [_estimates_table(captions[setting], by_setting[setting]) for setting in ordered]


def other_estimates_table(record: Record) -> Grid | None:
    """Return a table of other metrics, such as epsilon or balanced accuracy; None without any."""
    estimates = evidence.most_summarised(record.findings, headline=False)
    labels = setting_labels(map(_setting_of_all, estimates))
    return _estimates_table("Other figures", estimates, labels) if estimates else None


def _setting_of_all(estimate: Estimate) -> Setting:
    return setting_of(estimate)._replace(target=None)


def _estimates_table(
    caption: str, estimates: list[Estimate], labels: Mapping[Setting, str] | None = None
) -> Grid:
    notes = Footnotes()
    has_several_targets = (
        len({estimate.target for estimate in estimates if estimate.is_of_attack}) > 1
    )
    metrics = unique_items((*HEADLINE_METRICS, *(estimate.metric for estimate in estimates)))
    ordered = sorted(
        estimates,
        key=lambda estimate: (
            has_several_targets and estimate.target is not None,
            estimate.target or 0,
            wording.contrast_order(estimate.contrast),
            metrics.index(estimate.metric),
        ),
    )
    # Sample sizes are printed once: below contrasts, or below names if there are several clients.
    sizes = {
        row: _sizes(same) if has_several_targets else ""
        for row, same in group_by(
            ordered, lambda estimate: (estimate.attack, estimate.target)
        ).items()
    }

    def contrast(estimate: Estimate) -> str:
        return (
            wording.contrast_name(estimate.contrast)
            if estimate.is_of_attack
            else "Without an attack"
        )

    def heading(estimate: Estimate) -> Cell:
        client = (
            "pooled clients" if estimate.target is None else wording.client_name(estimate.target)
        )
        name = (
            f"{client} · {estimate.attack}"
            if has_several_targets and estimate.attack
            else estimate.attack
        )
        label = labels[_setting_of_all(estimate)] if labels else ""
        detail = stack_lines(label, sizes[estimate.attack, estimate.target])
        return name_cell(name or "Training run", detail, limit=80)

    return estimate_table(
        caption,
        ordered,
        rows=heading,
        columns=lambda estimate: (contrast(estimate), _short_name(estimate.metric)),
        cell=lambda estimate: estimate_cell(estimate, notes),
        under={
            name: stack_lines(
                "" if has_several_targets else _sizes(same),
                *unique_items(map(_compared_within, same)),
            )
            for name, same in group_by(ordered, contrast).items()
        },
        notes=notes,
        remark=_methods(estimates)
        + wording.interval_remark(estimate.further for estimate in estimates),
    )


def estimate_cell(estimate: Estimate, notes: Footnotes) -> Cell | None:
    """Return the cell of an estimate: sign, value, size of the leak, interval and counts.

    The estimate's note becomes a footnote in ``notes``, unless the cell has the counts of a rate.
    """
    counts, shortage = _counts(estimate), needs_more(estimate)
    if estimate.value is None and shortage:
        return Cell(wording.MISSING, f"needs {shortage} more non-members", "muted")
    is_explained = counts or estimate.note.startswith("mean over")
    mark = notes.mark("" if is_explained else estimate.note)
    if estimate.value is None:
        return Cell(wording.MISSING, "not computed", "muted", mark)
    ceiling, labels = estimate.ceiling, estimate.labels_alone
    lines = (
        counts,
        ""
        if ceiling is None
        else f"of at most {wording.format_value(ceiling, estimate.metric, rounding='down')}",
        "" if labels is None else f"labels alone {wording.format_number(labels)}",
    )
    return value_cell(estimate, evidence.marker_of(estimate), *lines, mark=mark)


def _counts(estimate: Estimate) -> str:
    """Return the counts of a rate in a single run; "" for other estimates."""
    value, fpr = estimate.value, estimate.realised_fpr
    if value is None or fpr is None or rate_of(estimate.metric) is None:
        return ""
    members, others = estimate.n_members, estimate.n_nonmembers
    if not others:
        return f"FPR {wording.format_percent(fpr)}"
    hits = f"{round(value * members):,}/{members:,}" if members else ""
    return stack_lines(hits, f"FP {round(fpr * others):,}/{others:,}")


def _sizes(estimates: Iterable[Estimate]) -> str:
    with_sizes = [estimate for estimate in estimates if estimate.n_members]
    if not with_sizes:
        return ""
    parts = ([f.n_members for f in with_sizes], [f.n_nonmembers for f in with_sizes])
    sizes = " v. ".join(wording.format_range(part, "–") for part in parts)
    return sizes + ", all seeds" * any(estimate.seed is None for estimate in with_sizes)


def _compared_within(estimate: Estimate) -> str:
    caveat = "" if estimate.fair else fixed_text("members.unfair")
    return wording.join_parts(_WITHIN.get(estimate.within, ""), caveat, by="; ")


def signs_of(estimates: Sequence[Estimate]) -> str:
    """Explain the signs and the words for sizes in tables of attacks."""
    is_open_below = any(
        estimate.low is None and estimate.high is not None for estimate in estimates
    )
    return (
        fixed_text("members.signs") + " ≤: too few non-members for a lower limit." * is_open_below
    )


def _short_name(metric: str) -> str:
    return wording.metric_name(metric).replace(" FPR", "")


def _methods(estimates: Iterable[Estimate]) -> str:
    by_method = group_by((f for f in estimates if f.method), lambda f: shorten(f.method, 80))
    texts = [
        f"{wording.join_and(unique_items(_short_name(e.metric) for e in with_method))} by {method}"
        for method, with_method in by_method.items()
    ]
    return f"Intervals: {'; '.join(texts)}." * bool(texts)


def classes_table(record: Record) -> Grid | None:
    """Return a table of AUCs by class; None if the record has none."""
    groups = [group for group in record.groups if group.by == "class"]
    if not groups:
        return None
    labels = evidence.labels_by_setting(groups)

    def heading(estimate: Estimate) -> Cell:
        detail = wording.join_parts(
            wording.nonmember_heading(estimate.contrast), labels[setting_of(estimate)]
        )
        return name_cell(estimate.attack, shorten(detail, 80))

    def cell(estimate: Estimate) -> Cell | None:
        if estimate.value is not None:
            return value_cell(estimate, unbounded="")
        return Cell(wording.MISSING, f"{estimate.n_members} v. {estimate.n_nonmembers}", "muted")

    missing = any(estimate.value is None for estimate in groups)
    return estimate_table(
        "AUC by class",
        groups,
        rows=heading,
        columns=lambda estimate: f"Class {estimate.group}",
        cell=cell,
        remark="Intervals are not corrected for the number of classes."
        + " –: too few members or non-members; the numbers are below the dash." * missing,
    )


def exposed_table(record: Record) -> Grid | None:
    """Return a table of members by the number of successful attacks that rank them highest."""
    leaking = filter(above_chance, evidence.main_estimates(record))
    above = {(estimate.attack, estimate.defense, estimate.target) for estimate in leaking}
    exposed_rows = [row for row in record.exposed if (row.attack, row.defense, row.target) in above]
    if not exposed_rows:
        return None
    labels = setting_labels(Setting(row.defense, "", row.target, None) for row in exposed_rows)
    attacks_by_defense = group_by(exposed_rows, lambda row: row.defense)
    ranked = []
    for rows_of_sample in group_by(
        exposed_rows, lambda row: (row.defense, row.target, row.sample)
    ).values():
        best = max(rows_of_sample, key=lambda row: row.above_nonmembers)
        attacks, rate = (
            unique_items(row.attack for row in rows_of_sample),
            1 - best.above_nonmembers,
        )
        total = len({row.attack for row in attacks_by_defense[best.defense]})
        names = wording.join_some(list(map(shorten, attacks)), MOST_NAMED)
        label = labels[Setting(best.defense, "", best.target, None)]
        filled: Cells = {
            wording.capitalise(best.unit): Cell(str(best.sample), label),
            "Class": None if best.label is None else str(best.label),
            "Attacks that list it": Cell(f"{len(attacks)} of {total}", names),
            "Non-members as high or higher": wording.format_percent(rate),
        }
        ranked.append(((-len(attacks), rate, best.sample), filled))
    ranked.sort(key=lambda pair: pair[0])
    hidden = len(ranked) - MOST_SAMPLES
    return grid_of(
        "Most exposed samples" if record.unit == "sample" else "Most exposed people",
        [filled for _, filled in ranked[:MOST_SAMPLES]],
        words=("Class", "Attacks that list it"),
        remark=fixed_text("members.exposed")
        + f" The result file lists {hidden:,} more." * (hidden > 0),
    )


_WITHIN = {"client": "each client's members with its own held-out samples", "class": "same classes"}
_GUESSING = charts.Style(charts.GREY, "dot")
_PALE = charts.Style(charts.MUTED, "solid")
_LOWEST_RATE = 1e-5
_TICKS = tuple((10.0**exponent, f"{10.0 ** (exponent + 2):g}%") for exponent in range(-5, 1))


def roc_figure(curves: Sequence[Curve]) -> charts.Figures | None:
    """Return the ROC curves of all attacks, a panel for each contrast, with logarithmic axes.

    Only the strongest attacks have colours, since many curves cannot be distinguished.
    """
    if not curves:
        return None
    by_attack = group_by(curves, lambda curve: curve.attack)
    ranked = sorted(by_attack, key=lambda attack: -fmean(map(_height, by_attack[attack])))
    coloured, others = ranked[:_MOST_COLOURED], ranked[_MOST_COLOURED:]
    looks = {name: charts.style(place)._replace(symbol="") for place, name in enumerate(coloured)}
    smallest = min((rate for curve in curves for rate in curve.fpr if rate > 0), default=1.0)
    floor = max(_LOWEST_RATE, min(smallest / 2, 5e-4))

    settings = group_by(curves, lambda c: Setting(c.defense, c.view, c.target, c.seed))
    labels = setting_labels(settings)
    choices = []
    for setting, curves_of_setting in settings.items():
        panels = evidence.by_contrast(curves_of_setting)
        # The contrast "mixed" repeats both of its parts.
        names = [name for name in panels if name != "mixed"] or list(panels)
        parts = tuple(_roc_panel(panels[name], looks, floor) for name in names)
        choices.append(charts.Choice(labels[setting], parts))

    other_names = "others: " + wording.join_and([shorten(attack) for attack in others])
    greys = ({other_names: _PALE} if others else {}) | {"guessing": _GUESSING}
    caption = fixed_text("pictures.roc")
    caption += f" In colour: the {len(coloured)} attacks with the highest TPR there." * bool(others)
    keys = charts.legend(looks) + charts.legend(greys, limit=200)
    return charts.Figures("roc", caption, tuple(choices), keys, "square")


def _height(curve: Curve) -> float:
    points = list(zip(curve.fpr, curve.tpr, strict=False))
    return fmean(
        max((tpr for fpr, tpr in points if fpr <= rate), default=0.0) for rate in (0.01, 0.001)
    )


def _roc_panel(
    curves: Sequence[Curve], looks: Mapping[str, charts.Style], floor: float
) -> charts.Panel:
    contrast = curves[0].contrast
    x, y = (
        charts.Axis(f"{kind}-positive rate", math.log10(floor), 0.02, _TICKS, log=True)
        for kind in ("False", "True")
    )
    lines = [charts.Curve("guessing", [floor, 1], [floor, 1], _GUESSING)]
    # Grey curves come first, so that they lie below the others.
    for curve in sorted(curves, key=lambda curve: curve.attack in looks):
        # A logarithmic axis has no zero: move such points to the edge, or below it for the TPR.
        # Duplicate points to draw steps that go right before they go up.
        fpr = [max(rate, floor) for rate in curve.fpr for _ in range(2)][1:]
        tpr = [max(rate, floor / 10) for rate in curve.tpr for _ in range(2)][:-1]
        lines.append(charts.Curve(curve.attack, fpr, tpr, looks.get(curve.attack, _PALE)))
    nonmember_name = wording.contrast_meaning(contrast)
    summary = fixed_text("pictures.roc_summary", attacks=len(curves), others=nonmember_name)
    title = f"Members {wording.nonmember_heading(contrast)}"
    return charts.Panel(title, summary, x, y, lines, uprights=(0.001, 0.01))
