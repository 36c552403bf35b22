"""Several studies side by side: what a defense, a setting or a later release changed."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fedaudit.report.choosing import headline
from fedaudit.report.evidence import look_of
from fedaudit.report.grid import Cell, Footnotes, Grid, clean, columns_of, named, shortened
from fedaudit.report.names import (
    NO_DEFENSE,
    contrast_name,
    contrast_order,
    defense_name,
    is_share,
    metric_name,
)
from fedaudit.report.plain import learning_warning
from fedaudit.report.reading import (
    EVERY_ATTACK,
    HEADLINE_METRICS,
    Accuracy,
    Comparison,
    Difference,
    Entry,
    Figure,
    Record,
    Row,
)
from fedaudit.report.rows import case_of, labels_of, on_clients, settings_text
from fedaudit.report.words import (
    MISSING,
    about_runs,
    further_text,
    interval,
    listed,
    percent,
    plural,
    shown,
)

STAR = "* the interval of the change leaves out 0, without correction for the number of cells."


def attack_tables(comparison: Comparison, part: str = "inside") -> dict[str, list[Grid]]:
    """For each contrast, a table of defenses by attacks for every metric.

    Args:
        comparison: The comparison.
        part: "inside" for the clients that defend, "outside" for the others.
    """
    asked = [entry for entry in comparison.entries if entry.part == part]
    found: dict[str, list[Grid]] = {}
    for contrast in sorted({entry.contrast for entry in asked}, key=contrast_order):
        inside = [entry for entry in asked if entry.contrast == contrast]
        given = dict.fromkeys(entry.metric for entry in inside)
        known = [metric for metric in HEADLINE_METRICS if metric in given]
        for metric in [*known, *(m for m in given if m not in known)]:
            entries = [entry for entry in inside if entry.metric == metric]
            grid = _attack_table(comparison, entries, contrast, metric)
            found.setdefault(contrast, []).append(grid)
    return found


class _Line(NamedTuple):
    """A line of a table: a row of the comparison, or the undefended one on others' clients."""

    row: int
    entries: dict[str, Entry]
    reference: bool = False


def _attack_table(
    comparison: Comparison, entries: Sequence[Entry], contrast: str, metric: str
) -> Grid:
    given = dict.fromkeys(entry.attack for entry in entries)
    attacks = sorted(given, key=lambda attack: attack != EVERY_ATTACK)
    labels, notes = labels_of(comparison), Footnotes()
    costs = {one.row: one for one in comparison.accuracies}
    rows = []
    for line in _lines(comparison, entries):
        cells = [_cell(line.entries.get(attack), notes) for attack in attacks]
        heading = heading_of(comparison.rows[line.row], labels[line.row])
        if line.reference:
            first = next(iter(line.entries.values()))
            heading = replace(heading, detail=f"on {on_clients(first.targets)}")
        cost = cost_cell(costs.get(line.row), plain=line.reference)
        rows.append((heading, cost, *cells))
    names = [
        shortened(attack).capitalize() if attack == EVERY_ATTACK else shortened(attack)
        for attack in attacks
    ]
    price = "Δ accuracy"
    return Grid(
        f"{metric_name(metric)}: members v. {contrast_name(contrast).lower()}",
        columns_of("Defense", price, *names, numeric=(price, *names)),
        tuple(rows),
        notes=notes.listed(),
        remark=_remark(comparison, entries),
    )


def _lines(comparison: Comparison, entries: Sequence[Entry]) -> list[_Line]:
    """Rows in blocks of the same clients, each led by the undefended row on these clients."""
    by_row: dict[int, dict[str, Entry]] = {}
    for entry in entries:
        by_row.setdefault(entry.row, {})[entry.attack] = entry
    kind = (entries[0].contrast, entries[0].metric)
    references: dict[tuple[int, tuple[int, ...]], dict[str, Entry]] = {}
    for entry in comparison.entries:
        if entry.part == "reference" and (entry.contrast, entry.metric) == kind:
            place = (entry.row, tuple(entry.targets))
            references.setdefault(place, {})[entry.attack] = entry
    blocks: dict[tuple[int, tuple[int, ...]], list[_Line]] = {}
    for row, mine in by_row.items():
        base = comparison.rows[row].base
        leads = base is None or comparison.rows[row].family == NO_DEFENSE
        targets = tuple(next(iter(mine.values())).targets)
        place = (row if leads or base is None else base, targets)
        lead = references.get(place)
        if place not in blocks:
            blocks[place] = [_Line(place[0], lead, True)] if lead and not leads else []
        blocks[place].append(_Line(row, mine))
    return [line for lines in blocks.values() for line in lines]


def heading_of(row: Row, label: str) -> Cell:
    """The defense, and below it who uses it and what else differs."""
    details = " · ".join(part for part in (case_of(row), settings_text(row.settings)) if part)
    plain = defense_name(row.defense)
    if label.startswith(plain[:20]):
        return named(plain, details, limit=80)
    return named(label, limit=120)


def _cell(entry: Entry | None, notes: Footnotes) -> Cell:
    if entry is None:
        return Cell(MISSING, tone="muted")
    if entry.value is None:
        return Cell(MISSING, "not given", "muted", notes.mark(entry.note), clean(entry.note))
    look = look_of(_figure(entry))
    lines = [look.word, interval(entry.low, entry.high, entry.metric) or "no interval"]
    lines.append(further_text(entry.further, partial(interval, metric=entry.metric)))
    if entry.change is not None:
        lines.append(f"Δ {signed(entry.change.value, entry.metric)}{star(entry.change)}")
        lines.append(_limits(entry.change, entry.metric))
    text = f"{look.sign}{shown(entry.value, entry.metric)}"
    return Cell(text, "\n".join(line for line in lines if line), look.tone)


def _figure(entry: Entry) -> Figure:
    return Figure(
        metric=entry.metric,
        value=entry.value,
        low=entry.low,
        high=entry.high,
        significant=entry.by_test if entry.attack != EVERY_ATTACK else False,
    )


def cost_cell(accuracy: Accuracy | None, *, plain: bool) -> Cell:
    """The change of accuracy, or the accuracy itself in brackets where nothing is defended."""
    if accuracy is None:
        return Cell(MISSING, tone="muted")
    change = accuracy.change
    if change is None or plain:
        limits = interval(accuracy.low, accuracy.high, "accuracy")
        return Cell(f"({percent(accuracy.value)})", limits)
    return Cell(signed(change.value, "accuracy") + star(change), _limits(change, "accuracy"))


def star(change: Difference) -> str:
    """ " *" where the interval of a change leaves out 0: for these runs, else for further ones."""
    limits = change if change.low is not None or change.further is None else change.further
    if limits.low is None or limits.high is None:
        return ""
    return " *" if limits.low > 0 or limits.high < 0 else ""


def signed(value: float, metric: str) -> str:
    """A difference with its sign; of shares in percentage points."""
    share = is_share(metric)
    size = f"{100 * abs(value):.1f}" if share else f"{abs(value):.3f}"
    zero = float(size) == 0
    sign = "" if zero else "+" if value > 0 else "−"
    return f"{sign}{size}{' points' if share else ''}"


def _limits(change: Difference, metric: str) -> str:
    lines = [further_text(change.further, partial(_span, metric))]
    if change.low is not None and change.high is not None:
        lines.insert(0, f"({_span(metric, change.low, change.high)})")
    return "\n".join(line for line in lines if line)


def _span(metric: str, low: float, high: float) -> str:
    left, right = (signed(limit, metric).removesuffix(" points") for limit in (low, high))
    return f"{left} to {right}"


def _remark(comparison: Comparison, entries: Sequence[Entry]) -> str:
    changes = [entry.change for entry in entries if entry.change is not None]
    methods = dict.fromkeys(entry.method for entry in entries if entry.method)
    parts = [
        "▲ above guessing for at least one audited client by the corrected test, and by the "
        "interval too (△: by the test alone); the word is the size of the leak."
    ]
    if comparison.accuracies:
        parts.append("In brackets: the accuracy itself, where nothing is defended.")
    if changes:
        how = listed([shortened(m, 80) for m in dict.fromkeys(c.method for c in changes)][:3])
        parts.append(
            f"Δ: change against {_against(comparison)}, on the same clients ({how}). {STAR}"
        )
    if methods:
        parts.append(f"Intervals: {listed([shortened(method, 80) for method in methods][:3])}.")
    parts.append(about_runs(entry.further for entry in entries).strip())
    return " ".join(part for part in parts if part)


def _against(comparison: Comparison) -> str:
    bases = {row.base for row in comparison.rows if row.base is not None}
    if all(comparison.rows[base].family == NO_DEFENSE for base in bases) and len(bases) > 1:
        return "the undefended row of the same settings (the first row, for undefended ones)"
    if bases == {0}:
        return "the first row"
    return "the undefended row of the same settings, or else the first row"


def utility_table(comparison: Comparison) -> Grid:
    """Test accuracy of each row, with the change against its base."""
    labels = labels_of(comparison)
    rows = []
    for one in comparison.accuracies:
        change = Cell(MISSING, tone="muted")
        if one.change is not None:
            change = Cell(
                signed(one.change.value, "accuracy") + star(one.change),
                _limits(one.change, "accuracy"),
            )
        rows.append(
            (
                heading_of(comparison.rows[one.row], labels[one.row]),
                Cell(percent(one.value), interval(one.low, one.high, "accuracy")),
                change,
            )
        )
    methods = dict.fromkeys(one.method for one in comparison.accuracies)
    changes = dict.fromkeys(one.change.method for one in comparison.accuracies if one.change)
    numeric = ("Test accuracy", "Change")
    how = f" Change against {_against(comparison)}: {listed(list(changes)[:3])}." if changes else ""
    return Grid(
        "Utility",
        columns_of("Defense", *numeric, numeric=numeric),
        tuple(rows),
        remark=f"Intervals: {listed([shortened(m, 80) for m in methods][:3])}.{how} {STAR}",
    )


def cautions(comparison: Comparison, records: Sequence[Record]) -> list[str]:
    """What makes the records hard to compare, in plain words."""
    said = [
        f"{shortened(record.name, 60)} was evaluated with the published code's flawed redraw of "
        "non-members: its figures mean nothing about leakage."
        for record in records
        if record.evaluation == "redraw"
    ]
    failed = [r for r in records if any(control.passed is False for control in r.controls)]
    said += [
        f"A control failed in {shortened(record.name, 60)}: its figures cannot be relied on yet."
        for record in failed[:5]
    ]
    if len(failed) > 5:
        said.append(f"A control failed in {plural(len(failed) - 5, 'further record')}.")
    said += [
        f"{shortened(record.name, 60)}: {warning}"
        for record in records
        if (warning := learning_warning(record))
    ][:5]
    if len({record.view.name for record in records}) > 1:
        said.append("The adversaries differ: the records were made under different views.")
    sizes = {frozenset((f.n_members, f.n_nonmembers) for f in headline(r)) for r in records}
    if len(sizes) > 1:
        said.append("The numbers of audited samples differ, and with them what can be seen.")
    if len({tuple(sorted(record.seeds)) for record in records}) > 1:
        said.append("The seeds differ: a change is taken over the seeds that two rows share.")
    return said + _without_tuned(comparison)


def _without_tuned(comparison: Comparison) -> list[str]:
    """Heuristic defenses are to be held against DP-SGD at a strength that keeps the model good."""
    families = [row.family for row in comparison.rows]
    if all(family == NO_DEFENSE for family in families) or any("dp-sgd" in f for f in families):
        return []
    return [
        "Tuned DP-SGD is not among the defenses: whether these beat the usual one is not shown."
    ]
