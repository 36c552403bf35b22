"""Tables of records side by side: rows, attacks, sources, clusters, utility."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import NamedTuple

from fedaudit.core.metric_names import FORMAL_EPSILON, FORMAL_EPSILON_OF_A_ROUND, HEADLINE_METRICS
from fedaudit.report.evidence import distinct, headline, look_of
from fedaudit.report.grid import Cell, Footnotes, Grid, Heading, clean, columns_of, named, shortened
from fedaudit.report.tables.clusters import FIGURES
from fedaudit.report.text.clusters import (
    PLAIN_INDEX,
    figure_text,
    further_limits,
    limits_text,
)
from fedaudit.report.text.sources import Named, look_of_source, named_in, points
from fedaudit.report.text.verdict import learning_warning
from fedaudit.report.words import (
    MISSING,
    NO_DEFENSE,
    about_runs,
    capital,
    contrast_name,
    contrast_order,
    defense_name,
    further_text,
    interval,
    is_share,
    listed,
    metric_name,
    number,
    percent,
    plural,
    shown,
)
from fedaudit.results import metrics
from fedaudit.results.clusters import EVERYBODY
from fedaudit.results.comparison import (
    EVERY_ATTACK,
    NOT_SET,
    Comparison,
    Difference,
    Entry,
    FigureEntry,
    Row,
)
from fedaudit.results.estimate import Estimate, tests_of
from fedaudit.results.record import Record

MOST_SETTINGS = 4
"""Settings named in a row's heading; all of them stand in the table of rows."""


def labels_of(comparison: Comparison) -> list[str]:
    """A name for each row that no other row has, in one line."""
    any_defense = any(row.family != NO_DEFENSE for row in comparison.rows)
    return _distinct([_label(row, any_defense=any_defense) for row in comparison.rows], comparison)


def case_of(row: Row) -> str:
    """Clients that use a row's defense: "pair: clients 0 and 1 of 10"; empty if unknown."""
    if row.family == NO_DEFENSE:
        return ""
    if row.coalition is None:
        return f"all {row.clients} clients" if row.clients else ""
    size = len(row.coalition)
    name = "one client" if size == 1 else "pair" if size == 2 else f"{size} clients"
    if row.clients == 2 * size and size > 2:
        name = "half"
    return f"{name}: {on_clients(row.coalition)} of {row.clients}"


def settings_text(settings: Mapping[str, str]) -> str:
    """Settings in a few words: the last part of each name, and of which part if there are two."""
    # What is set in other rows alone says nothing of this one.
    given = {name: value for name, value in settings.items() if value not in (NOT_SET, "{}")}
    short = {name: _short_setting(name) for name in given}
    twice = {last for last in short.values() if [*short.values()].count(last) > 1}
    full = {
        n: f"{n.partition('.')[0]} {last}" if last in twice else last for n, last in short.items()
    }
    parts = [f"{full[name].replace('_', ' ')} {value}" for name, value in given.items()]
    more = len(parts) - MOST_SETTINGS
    told = [shortened(part, 32) for part in parts[:MOST_SETTINGS]]
    return ", ".join([*told, f"and {more} more"] if more > 0 else told)


def _short_setting(name: str) -> str:
    """The last part of a setting's name; a catalogue's name is called after what it is of."""
    above, _, last = name.rpartition(".")
    return above if last in ("name", "scheme") and above else last


def _clients(clients: Sequence[int]) -> str:
    ordered = sorted(clients)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}–{ordered[-1]}"
    return shortened(", ".join(str(client) for client in ordered), 40)


def _label(row: Row, *, any_defense: bool) -> str:
    parts = [defense_name(row.defense), case_of(row), settings_text(row.settings)]
    if row.family == NO_DEFENSE and not any_defense and parts[-1]:
        parts = parts[1:]
    return " · ".join(shortened(part, 80) for part in parts if part)


def _distinct(labels: list[str], comparison: Comparison) -> list[str]:
    """With the study's name where two rows say the same, and a number where that is not enough."""
    names = [
        f"{shortened(comparison.sources[row.source].name, 60)} · {label}"
        if labels.count(label) > 1
        else label
        for row, label in zip(comparison.rows, labels, strict=True)
    ]
    return [
        f"{name} ({place + 1})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def on_clients(targets: Sequence[int]) -> str:
    """Clients in a few words: "client 3", "clients 0–4"."""
    return f"client{'s' if len(targets) > 1 else ''} {_clients(targets)}"


def rows_table(comparison: Comparison, verdicts: Sequence[str]) -> Grid:
    """Rows of a comparison: each one's defense, who uses it, what else differs, and the verdict.

    Args:
        comparison: The comparison.
        verdicts: Status of each source, in order.
    """
    names = list(dict.fromkeys(name for row in comparison.rows for name in row.settings))
    rows = []
    for row in comparison.rows:
        source = comparison.sources[row.source]
        rows.append(
            (
                named(defense_name(row.defense), case_of(row), limit=120),
                *(_setting(row.settings.get(name, MISSING)) for name in names),
                Cell(verdicts[row.source]),
                named(source.name, limit=60),
            )
        )
    headings = [shortened(name, 40) for name in names]
    return Grid(
        "What is compared",
        columns_of("Defense and coalition", *headings, "Verdict", "Record"),
        tuple(rows),
    )


def _setting(value: str) -> Cell:
    return named(value, limit=32)


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
    costs = {one.row: one for one in comparison.on("utility")}
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


def _figure(entry: Entry) -> Estimate:
    return Estimate(
        metric=entry.metric,
        value=entry.value,
        low=entry.low,
        high=entry.high,
        tests=tests_of(entry.by_test if entry.attack != EVERY_ATTACK else False),
    )


def cost_cell(accuracy: FigureEntry | None, *, plain: bool) -> Cell:
    """The change of accuracy, or the accuracy itself in brackets where nothing is defended."""
    if accuracy is None:
        return Cell(MISSING, tone="muted")
    change = accuracy.change
    if change is None or plain:
        figure = accuracy.figure
        limits = interval(figure.low, figure.high, "accuracy")
        return Cell(f"({percent(figure.number)})", limits)
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
    if comparison.on("utility"):
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
    accuracies = comparison.on("utility")
    for one in accuracies:
        change = Cell(MISSING, tone="muted")
        if one.change is not None:
            change = Cell(
                signed(one.change.value, "accuracy") + star(one.change),
                _limits(one.change, "accuracy"),
            )
        rows.append(
            (
                heading_of(comparison.rows[one.row], labels[one.row]),
                Cell(
                    percent(one.figure.number),
                    interval(one.figure.low, one.figure.high, "accuracy"),
                ),
                change,
            )
        )
    methods = dict.fromkeys(one.figure.method for one in accuracies)
    changes = dict.fromkeys(one.change.method for one in accuracies if one.change)
    numeric = ("Test accuracy", "Change")
    how = f" Change against {_against(comparison)}: {listed(list(changes)[:3])}." if changes else ""
    return Grid(
        "Utility",
        columns_of("Defense", *numeric, numeric=numeric),
        tuple(rows),
        remark=f"Intervals: {listed([shortened(m, 80) for m in methods][:3])}.{how} {STAR}",
    )


def cautions(comparison: Comparison, records: Sequence[Record]) -> list[str]:
    """Differences that make records hard to compare, in plain words."""
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


_EMPTY = Cell(MISSING, tone="muted")
_FORMAL = {
    "Formal ε, training": FORMAL_EPSILON,
    "Formal ε, one round": FORMAL_EPSILON_OF_A_ROUND,
}
_REMARK = (
    "▲ owners are named more often than label distributions explain, by a test that is "
    "corrected over the "
    "source attacks of one record, and by the interval; the word is the size of what is beyond "
    "them. ◇ more often than by guessing, and label distributions may be all of it. Mixes: "
    "what is right "
    "when owners are shuffled within each class. Δ: change of success against the row that it is "
    "held against, over the seeds that both have; both intervals of a seed are combined, which "
    "errs on the wide side. "
    f"Accuracies are means over seeds. {STAR}"
)


def source_comparison(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Success of each source attack, row by row; None where no record has any."""
    of_row = [
        {one.success.attack: one for one in attacks_of(comparison, at)}
        for at in range(len(comparison.rows))
    ]
    changes = {(one.row, one.figure.attack): one.change for one in comparison.on("source")}
    attacks = distinct(attack for found in of_row for attack in found)
    if not attacks:
        return None
    costs, labels = {one.row: one for one in comparison.on("utility")}, labels_of(comparison)
    budgets = [_budgets(records[row.source], row) for row in comparison.rows]
    formal = [name for name in _FORMAL if any(name in found for found in budgets)]
    rows = []
    for at, row in enumerate(comparison.rows):
        if not of_row[at]:
            continue
        used = [
            one for one in records[row.source].where(topic="utility") if _is_of(one.defense, row)
        ]
        rows.append(
            (
                heading_of(row, labels[at]),
                *(
                    _accuracy_cell(used, metric)
                    for metric in (metrics.TRAIN_ACCURACY, metrics.TEST_ACCURACY)
                ),
                _EMPTY if row.base is None else cost_cell(costs.get(at), plain=False),
                *(_budget_cell(budgets[at].get(name)) for name in formal),
                *(
                    _attack_cell(of_row[at].get(attack), changes.get((at, attack)))
                    for attack in attacks
                ),
            )
        )
    accuracies = ("Train accuracy", "Test accuracy", "Δ accuracy")
    names = (*accuracies, *formal, *(shortened(attack) for attack in attacks))
    return Grid(
        "Attack success rate",
        columns_of("Defense", *names, numeric=names),
        tuple(rows),
        remark=_REMARK + (_budget_remark(budgets) if formal else ""),
    )


def _is_of(defense: str, row: Row) -> bool:
    return (defense or NO_DEFENSE) == row.family


def attacks_of(comparison: Comparison, row: int) -> list[Named]:
    """The source attacks that a row of a comparison has."""
    return named_in(
        one.figure for one in comparison.figures if one.row == row and one.figure.topic == "source"
    )


def _accuracy_cell(used: Sequence[Estimate], metric: str) -> Cell:
    values = [one.number for one in used if one.metric == metric]
    return Cell(percent(fmean(values))) if values else _EMPTY


def _attack_cell(one: Named | None, change: Difference | None) -> Cell:
    if one is None:
        return _EMPTY
    look, success = look_of_source(one), one.success
    limits = interval(success.low, success.high, "accuracy") or "no interval"
    lines = [look.word, limits, f"mixes {percent(one.mixes)}"]
    lines += [] if change is None else _change(change)
    text = f"{look.sign}{percent(success.number)}"
    return Cell(text, "\n".join(line for line in lines if line), look.tone)


def _change(change: Difference) -> list[str]:
    line = f"Δ {points(change.value)} points{star(change)}"
    if change.low is None or change.high is None:
        return [line]
    return [line, f"({points(change.low)} to {points(change.high)})"]


def _budgets(record: Record, row: Row) -> dict[str, Estimate]:
    found = {f.metric: f for f in record.findings if _is_of(f.defense, row)}
    return {name: found[metric] for name, metric in _FORMAL.items() if metric in found}


def _budget_cell(budget: Estimate | None) -> Cell:
    if budget is None:
        return _EMPTY
    return Cell("none proven" if budget.value is None else number(budget.value))


def _budget_remark(budgets: Sequence[Mapping[str, Estimate]]) -> str:
    """Method and basis of the formal guarantees."""
    given = [budget for found in budgets for budget in found.values()]
    said = distinct(
        f"{shortened(one.method, 60)}; {shortened(one.note, 100)}" for one in given if one.method
    )
    return (
        " Formal ε: what is proven. Of the training: against somebody who sees all rounds, as this "
        "adversary does. Of one round: against somebody who sees that round's upload and no other, "
        f"which is what SIA's Table IV prints ({', '.join(said[:4])})."
    )


TABLES = {
    "Accuracy, each client with the model that it chose": (metrics.ACCURACY,),
    "Membership risk: balanced accuracy, 50% is guessing": (
        metrics.MODEL_RISK,
        metrics.CLIENT_RISK,
    ),
    "Violations: clients whose model is riskier than they accept": (
        metrics.VIOLATIONS,
        metrics.SURE_VIOLATIONS,
        metrics.EXPECTED_VIOLATIONS,
        metrics.CHANCE_VIOLATIONS,
    ),
    "What the server estimates": (
        metrics.MODEL_ESTIMATE,
        metrics.CLIENT_ESTIMATE,
        metrics.ESTIMATE_ERROR,
    ),
    "Who went where": (
        metrics.OWN_MODEL,
        metrics.MOVED,
        metrics.MOVED_AT_THE_END,
        metrics.AGREEMENT,
    ),
}
"""The figures of each table; those of no table, which are the fairness gaps, have one more."""

FAIRNESS = "Fairness gaps between groups: 0 is equal treatment"


def cluster_comparison(comparison: Comparison) -> list[Grid]:
    """A table for each kind of figure, a row for each row of the comparison that has any."""
    placed = {figure for figures in TABLES.values() for figure in figures}
    gaps = distinct(
        one.figure.metric for one in comparison.on("clusters") if one.figure.metric not in placed
    )
    tables = {**TABLES, FAIRNESS: tuple(gaps)}
    found = [_table(comparison, name, figures) for name, figures in tables.items()]
    return [grid for grid in found if grid is not None]


def _table(comparison: Comparison, caption: str, figures: Sequence[str]) -> Grid | None:
    entries = {
        (one.row, one.figure.metric, one.figure.group): one
        for one in comparison.on("clusters")
        if one.figure.metric in figures
    }
    if not entries:
        return None
    keys = sorted(
        distinct((figure, group) for _, figure, group in entries),
        key=lambda key: figures.index(key[0]),
    )
    labels = labels_of(comparison)
    algorithms = {one.row: one.figure.algorithm for one in comparison.on("clusters")}
    rows = [
        (
            named(algorithms[at], shortened(labels[at], 160)),
            *(_cluster_cell(entries.get((at, *key))) for key in keys),
        )
        for at in distinct(row for row, _, _ in entries)
    ]
    columns = [_column(figure, group) for figure, group in keys]
    return Grid(
        caption,
        columns_of("Study", *columns, numeric=columns),
        tuple(rows),
        headings=_headings(keys),
        remark=_cluster_remark(list(entries.values())),
    )


def _headings(keys: Sequence[tuple[str, str]]) -> tuple[Heading, ...]:
    """A heading over the groups of each figure, where there are several."""
    spans = [(f, sum(figure == f for figure, _ in keys)) for f in distinct(f for f, _ in keys)]
    over = [Heading(FIGURES.get(figure, capital(shortened(figure))), n) for figure, n in spans]
    return (Heading("", 1), *over) if len(over) > 1 else ()


def _column(figure: str, group: str) -> str:
    return "Everybody" if group == EVERYBODY else capital(shortened(group, 24))


def _cluster_cell(entry: FigureEntry | None) -> Cell:
    if entry is None:
        return _EMPTY
    lines = [limits_text(entry.figure), further_limits(entry.figure)]
    if entry.change is not None:
        lines += change_lines(entry.change, entry.figure.metric)
    return Cell(figure_text(entry.figure), "\n".join(line for line in lines if line))


def change_lines(change: Difference, figure: str) -> list[str]:
    """A paired change with its interval: of shares in points, of counts in clients."""
    unit = "" if figure in (*metrics.COUNTS, *PLAIN_INDEX) else " points"
    first = f"Δ {_signed(change.value, figure)}{unit}{star(change)}"
    further = further_text(change.further, partial(_change_limits, figure))
    if change.low is None or change.high is None:
        return [first, further]
    return [first, f"({_change_limits(figure, change.low, change.high)})", further]


def _change_limits(figure: str, low: float, high: float) -> str:
    return f"{_signed(low, figure)} to {_signed(high, figure)}"


def _signed(value: float, figure: str) -> str:
    if figure not in (*metrics.COUNTS, *PLAIN_INDEX):
        return points(value)
    size = f"{abs(value):.2f}" if figure in PLAIN_INDEX else f"{abs(value):.1f}"
    sign = "" if float(size) == 0 else "+" if value > 0 else "−"
    return sign + size


def _cluster_remark(entries: Sequence[FigureEntry]) -> str:
    methods = distinct(one.figure.method for one in entries if one.figure.method)
    changes = distinct(one.change.method for one in entries if one.change is not None)
    notes = distinct(one.figure.note for one in entries if one.figure.note)
    made = f"Intervals: {', '.join(shortened(method, 80) for method in methods[:3])}."
    parts = [made * bool(methods) + about_runs(one.figure.further for one in entries)]
    if changes:
        how = ", ".join(shortened(method, 80) for method in changes[:3])
        parts.append(f"Δ: change against the row that it is held against ({how}). {STAR}")
    parts += [f"{capital(shortened(note, 200))}." for note in notes[:3]]
    return " ".join(part.strip() for part in parts if part)
