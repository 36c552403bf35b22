"""Tables of records side by side: rows, attacks, sources, clusters, utility."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from fedaudit.core import metric_names
from fedaudit.report import evidence
from fedaudit.report.evidence import grouped
from fedaudit.report.grid import (
    EMPTY,
    Cell,
    Filled,
    Footnotes,
    Grid,
    Heading,
    clean,
    columns_of,
    named,
    shortened,
    tabled,
)
from fedaudit.report.tables.cells import change_limits, change_text, measured
from fedaudit.report.tables.clusters import FIGURES
from fedaudit.report.text.comparison import (
    case_of,
    clients_of,
    heading_of,
    labels_of,
    on_clients,
)
from fedaudit.report.text.sources import Named, look_of_source, named_in
from fedaudit.report.words import (
    MISSING,
    about_runs,
    against,
    capital,
    defense_name,
    listed,
    metric_name,
    number,
    percent,
)
from fedaudit.results import metrics
from fedaudit.results.clusters import EVERYBODY
from fedaudit.results.comparison import (
    EVERY_ATTACK,
    MIRRORED,
    OF_SEVERAL,
    STRONGEST_ATTACK,
    AttackEntry,
    Comparison,
    Difference,
    FigureEntry,
    Row,
)
from fedaudit.results.estimate import NO_DEFENSE, Estimate, tests_of
from fedaudit.results.record import Record


def comparison_section(
    comparison: Comparison, records: Sequence[Record], verdicts: Sequence[str]
) -> dict[str, object]:
    """Tables of a comparison; None where it has nothing for one.

    Args:
        comparison: The comparison.
        records: Those that it is of.
        verdicts: Status of each, in order.
    """
    return {
        "rows": rows_table(comparison, verdicts),
        "tables": attack_tables(comparison),
        "outside": attack_tables(comparison, "outside"),
        "sources": source_comparison(comparison, records),
        "updates": client_comparison(comparison, records),
        "clusters": cluster_comparison(comparison),
        "utility": utility_table(comparison),
    }


def rows_table(comparison: Comparison, verdicts: Sequence[str]) -> Grid:
    """Rows of a comparison: each one's defense, who uses it, what else differs, and the verdict.

    Args:
        comparison: The comparison.
        verdicts: Status of each source, in order.
    """
    names = evidence.distinct(name for row in comparison.rows for name in row.settings)
    rows: list[Filled] = [
        {
            "Defense and coalition": named(defense_name(row.defense), case_of(row), limit=120),
            **{name: named(row.settings.get(name, MISSING), limit=32) for name in names},
            "Verdict": verdicts[row.source],
            "Record": named(comparison.sources[row.source].name, limit=60),
        }
        for row in comparison.rows
    ]
    return tabled("What is compared", rows, words=(*names, "Verdict", "Record"))


STAR = "* the interval of the change leaves out 0, without correction for the number of cells."


def attack_tables(comparison: Comparison, part: str = "inside") -> dict[str, list[Grid]]:
    """For each contrast, a table of defenses by attacks for every metric.

    Args:
        comparison: The comparison.
        part: "inside" for the clients that defend, "outside" for the others.
    """
    asked = [entry for entry in comparison.entries if entry.part == part]
    found: dict[str, list[Grid]] = {}
    for contrast, inside in evidence.by_contrast(asked).items():
        given = evidence.grouped(inside, lambda entry: entry.metric)
        known = [metric for metric in metric_names.HEADLINE_METRICS if metric in given]
        found[contrast] = [
            _attack_table(comparison, given[metric], contrast, metric)
            for metric in [*known, *(m for m in given if m not in known)]
        ]
    return found


class _Line(NamedTuple):
    """A line of a table: a row of the comparison, or the undefended one on others' clients."""

    row: int
    entries: dict[str, AttackEntry]
    reference: bool = False


def _attack_table(
    comparison: Comparison, entries: Sequence[AttackEntry], contrast: str, metric: str
) -> Grid:
    given = dict.fromkeys(entry.attack for entry in entries)
    # The strongest of one attack is that attack.
    single = sum(attack not in OF_SEVERAL for attack in given) < 2
    shown = [attack for attack in given if not (single and attack in OF_SEVERAL)]
    attacks = sorted(shown, key=(*OF_SEVERAL, *shown).index)
    labels, notes = labels_of(comparison), Footnotes()
    costs = {one.row: one for one in comparison.on("utility")}
    rows: list[Filled] = []
    for line in _lines(comparison, entries):
        heading = heading_of(comparison.rows[line.row], labels[line.row])
        if line.reference:
            first = next(iter(line.entries.values()))
            heading = replace(heading, detail=f"on {on_clients(clients_of(first))}")
        rows.append(
            {
                "Defense": heading,
                "Δ accuracy": cost_cell(costs.get(line.row), plain=line.reference),
                **{
                    attack.capitalize() if attack in OF_SEVERAL else attack: _cell(
                        line.entries.get(attack), notes
                    )
                    for attack in attacks
                },
            }
        )
    return tabled(
        f"{metric_name(metric)}: members {against(contrast)}",
        rows,
        notes=notes,
        remark=_remark(comparison, entries),
    )


def _line(entries: Sequence[AttackEntry], *, reference: bool = False) -> _Line:
    return _Line(entries[0].row, {entry.attack: entry for entry in entries}, reference)


def _lines(comparison: Comparison, entries: Sequence[AttackEntry]) -> list[_Line]:
    """Rows in blocks of the same clients, each led by the undefended row on these clients."""
    kind = (entries[0].contrast, entries[0].metric)
    references = grouped(
        (e for e in comparison.entries if e.part == "reference" and (e.contrast, e.metric) == kind),
        lambda entry: (entry.row, clients_of(entry)),
    )
    blocks: dict[tuple[int, tuple[int, ...]], list[_Line]] = {}
    for row, mine in grouped(entries, lambda entry: entry.row).items():
        base = comparison.rows[row].base
        leads = base is None or comparison.rows[row].family == NO_DEFENSE
        place = (row if leads or base is None else base, clients_of(mine[0]))
        lead = references.get(place)
        if place not in blocks:
            blocks[place] = [_line(lead, reference=True)] if lead and not leads else []
        blocks[place].append(_line(mine))
    return [line for lines in blocks.values() for line in lines]


def _cell(entry: AttackEntry | None, notes: Footnotes) -> Cell | None:
    if entry is None:
        return None
    if entry.value is None:
        return Cell(MISSING, "not given", "muted", notes.mark(entry.note), clean(entry.note))
    figure = Estimate(
        metric=entry.metric,
        value=entry.value,
        low=entry.low,
        high=entry.high,
        further=entry.further,
        # Without a test the interval alone would mark a figure, also the largest of several.
        tests=tests_of(entry.by_test if entry.attack not in OF_SEVERAL else False),
    )
    lines = _change(entry.change, entry.metric)
    if entry.attack == STRONGEST_ATTACK:
        lines = (shortened(listed(entry.attacks), 60), *lines)
    if entry.clients and entry.targets != entry.clients:
        lines = (f"on {on_clients(entry.targets)} alone", *lines)
    return measured(figure, evidence.look_of(figure), *lines, mark=notes.mark(entry.note))


def _change(change: Difference | None, metric: str) -> tuple[str, ...]:
    """Lines below a figure about its change."""
    if change is None:
        return ()
    return (f"Δ {change_text(change, metric)}", change_limits(change, metric))


def _change_cell(change: Difference) -> Cell:
    """A change of the test accuracy."""
    return Cell(
        change_text(change, metrics.TEST_ACCURACY), change_limits(change, metrics.TEST_ACCURACY)
    )


def cost_cell(accuracy: FigureEntry | None, *, plain: bool) -> Cell | None:
    """The change of accuracy, or the accuracy itself in brackets where nothing is defended."""
    if accuracy is None:
        return None
    if accuracy.change is None or plain:
        shown = measured(accuracy.figure, unbounded="")
        return shown and replace(shown, text=f"({shown.text})")
    return _change_cell(accuracy.change)


def _remark(comparison: Comparison, entries: Sequence[AttackEntry]) -> str:
    changes = [entry.change for entry in entries if entry.change is not None]
    methods = dict.fromkeys(entry.method for entry in entries if entry.method)
    parts = [
        "▲ above guessing for at least one audited client by the corrected test, and by the "
        "interval too (△: by the test alone); the word is the size of the leak."
    ]
    parts += _about_averages(entries)
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


def _about_averages(entries: Sequence[AttackEntry]) -> list[str]:
    """Which attacks the mean and the strongest attack of a table are made of."""
    means = [entry for entry in entries if entry.attack == EVERY_ATTACK]
    behind = evidence.distinct(name for entry in means for name in entry.attacks)
    found = []
    if behind:
        found.append(
            f"Mean: over the attacks that find something undefended ({listed(behind)}), client by "
            "client."
        )
    names = [name for entry in entries for name in entry.attacks]
    if any(name.endswith(f", {MIRRORED}") for name in names):
        found.append(
            "Mirrored: undefended the AUC is below 0.5 beyond chance; it is read as 1 − AUC in all "
            "rows."
        )
    if len({entry.attack for entry in entries} - set(OF_SEVERAL)) > 1:
        found.append(
            "Strongest attack: the one with the largest figure over the runs of a row, on each "
            "client; its upper limit is the largest of all attacks'."
        )
    return found


def _against(comparison: Comparison) -> str:
    bases = {row.base for row in comparison.rows if row.base is not None}
    if all(comparison.rows[base].family == NO_DEFENSE for base in bases) and len(bases) > 1:
        return "the undefended row of the same settings (the first row, for undefended ones)"
    if bases == {0}:
        return "the first row"
    return "the undefended row of the same settings, or else the first row"


def utility_table(comparison: Comparison) -> Grid:
    """Test accuracy of each row, with the change against its base."""
    labels, accuracies = labels_of(comparison), comparison.on("utility")
    rows = [
        {
            "Defense": heading_of(comparison.rows[one.row], labels[one.row]),
            "Test accuracy": measured(one.figure, unbounded=""),
            "Change": None if one.change is None else _change_cell(one.change),
        }
        for one in accuracies
    ]
    methods = dict.fromkeys(one.figure.method for one in accuracies)
    changes = dict.fromkeys(one.change.method for one in accuracies if one.change)
    how = f" Change against {_against(comparison)}: {listed(list(changes)[:3])}." if changes else ""
    return tabled(
        "Utility",
        rows,
        remark=f"Intervals: {listed([shortened(m, 80) for m in methods][:3])}.{how} {STAR}"
        + about_runs(one.figure.further for one in accuracies),
    )


_ONE_UPDATE = {
    "ε claimed": metric_names.CLAIMED_CLIENT_EPSILON,
    "Claimed without canaries": metric_names.CLAIMED_CLIENT_EPSILON_ALONE,
    "ε at least, if Gaussian": metric_names.CLIENT_EPSILON_IF_GAUSSIAN,
    "ε at least, from coins": metric_names.CLIENT_EPSILON,
}


def client_comparison(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Claimed and measured epsilon of one client's update, row by row; None without canaries."""
    labels, rows = labels_of(comparison), list[Filled]()
    for at, row in enumerate(comparison.rows):
        record = records[row.source]
        found = {
            name: evidence.over_all_runs(record, metric) for name, metric in _ONE_UPDATE.items()
        }
        if not any(one is not None and _is_of(one.defense, row) for one in found.values()):
            continue
        used = [one for one in record.where(topic="utility") if _is_of(one.defense, row)]
        cells: Filled = {
            name: None if one is None else MISSING if one.value is None else number(one.value)
            for name, one in found.items()
        }
        accuracy = _accuracy(used, metrics.TEST_ACCURACY)
        rows.append({"Defense": heading_of(row, labels[at]), **cells, "Test accuracy": accuracy})
    if not rows:
        return None
    remark = (
        "By canary clients: one client's update, it or zero in its place, to whoever has the first "
        "and the last global model. Measured ones are lower limits at 95%: one above the claim "
        "refutes it, one below proves nothing. – where nothing is claimed or a bound is refused."
    )
    return tabled("One client's update", rows, remark=remark)


_FORMAL = {
    "Formal ε, training": metric_names.FORMAL_EPSILON,
    "Formal ε, one round": metric_names.FORMAL_EPSILON_OF_A_ROUND,
}
_REMARK = (
    "▲ owners are named more often than label distributions explain, by a test that is corrected "
    "over the source attacks of one record, and by the interval; the word is the size of what is "
    "beyond them. ▷ more often than by guessing, and label distributions may be all of it. Mixes: "
    "what would be right if a sample's owner depended on its class alone. Δ: change of success "
    "against the row that it is held against, over the seeds that both have; both intervals of a "
    "seed are "
    f"combined, which errs on the wide side. Accuracies are means over seeds. {STAR}"
)


def source_comparison(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Success of each source attack, row by row; None where no record has any."""
    of_row = [
        {one.success.attack: one for one in attacks_of(comparison, at)}
        for at in range(len(comparison.rows))
    ]
    changes = {(one.row, one.figure.attack): one.change for one in comparison.on("source")}
    attacks = evidence.distinct(attack for found in of_row for attack in found)
    if not attacks:
        return None
    costs, labels = {one.row: one for one in comparison.on("utility")}, labels_of(comparison)
    budgets = [_budgets(records[row.source], row) for row in comparison.rows]
    formal = [name for name in _FORMAL if any(name in found for found in budgets)]
    rows: list[Filled] = []
    for at, row in enumerate(comparison.rows):
        if not of_row[at]:
            continue
        utility = records[row.source].where(topic="utility")
        used = [one for one in utility if _is_of(one.defense, row)]
        cost = None if row.base is None else cost_cell(costs.get(at), plain=False)
        rows.append(
            {
                "Defense": heading_of(row, labels[at]),
                "Train accuracy": _accuracy(used, metrics.TRAIN_ACCURACY),
                "Test accuracy": _accuracy(used, metrics.TEST_ACCURACY),
                "Δ accuracy": cost,
                **{name: _budget(budgets[at].get(name)) for name in formal},
                **{
                    attack: _attack_cell(of_row[at].get(attack), changes.get((at, attack)))
                    for attack in attacks
                },
            }
        )
    further = about_runs(one.success.further for found in of_row for one in found.values())
    remark = _REMARK + further + (_budget_remark(budgets) if formal else "")
    return tabled("Attack success rate", rows, remark=remark)


def _is_of(defense: str, row: Row) -> bool:
    return (defense or NO_DEFENSE) == row.family


def attacks_of(comparison: Comparison, row: int) -> list[Named]:
    """The source attacks that a row of a comparison has."""
    return named_in(
        one.figure for one in comparison.figures if one.row == row and one.figure.topic == "source"
    )


def _accuracy(used: Sequence[Estimate], metric: str) -> str | None:
    values = [one.number for one in used if one.metric == metric]
    return percent(fmean(values)) if values else None


def _attack_cell(one: Named | None, change: Difference | None) -> Cell | None:
    if one is None:
        return None
    lines = (f"mixes {percent(one.mixes)}", *_change(change, metrics.SUCCESS_RATE))
    return measured(one.success, look_of_source(one), *lines)


def _budgets(record: Record, row: Row) -> dict[str, Estimate]:
    found = {f.metric: f for f in record.findings if _is_of(f.defense, row)}
    return {name: found[metric] for name, metric in _FORMAL.items() if metric in found}


def _budget(budget: Estimate | None) -> str | None:
    if budget is None:
        return None
    return "none proven" if budget.value is None else number(budget.value)


def _budget_remark(budgets: Sequence[Mapping[str, Estimate]]) -> str:
    """Method and basis of the formal guarantees."""
    given = [budget for found in budgets for budget in found.values()]
    said = evidence.distinct(
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
    gaps = evidence.distinct(
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
        evidence.distinct((figure, group) for _, figure, group in entries),
        key=lambda key: figures.index(key[0]),
    )
    labels = labels_of(comparison)
    algorithms = {one.row: one.figure.algorithm for one in comparison.on("clusters")}
    rows = [
        (
            named(algorithms[at], shortened(labels[at], 160)),
            *(_cluster_cell(entries.get((at, *key))) for key in keys),
        )
        for at in evidence.distinct(row for row, _, _ in entries)
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
    spans = [
        (f, sum(figure == f for figure, _ in keys)) for f in evidence.distinct(f for f, _ in keys)
    ]
    over = [Heading(FIGURES.get(figure, capital(shortened(figure))), n) for figure, n in spans]
    return (Heading("", 1), *over) if len(over) > 1 else ()


def _column(figure: str, group: str) -> str:
    return "Everybody" if group == EVERYBODY else capital(shortened(group, 24))


def _cluster_cell(entry: FigureEntry | None) -> Cell:
    if entry is None:
        return EMPTY
    lines = _change(entry.change, entry.figure.metric)
    return measured(entry.figure, evidence.Look(), *lines, unbounded="") or EMPTY


def _cluster_remark(entries: Sequence[FigureEntry]) -> str:
    methods = evidence.distinct(one.figure.method for one in entries if one.figure.method)
    changes = evidence.distinct(one.change.method for one in entries if one.change is not None)
    notes = evidence.distinct(one.figure.note for one in entries if one.figure.note)
    made = f"Intervals: {', '.join(shortened(method, 80) for method in methods[:3])}."
    parts = [made * bool(methods) + about_runs(one.figure.further for one in entries)]
    if changes:
        how = ", ".join(shortened(method, 80) for method in changes[:3])
        parts.append(f"Δ: change against the row that it is held against ({how}). {STAR}")
    parts += [f"{capital(shortened(note, 200))}." for note in notes[:3]]
    return " ".join(part.strip() for part in parts if part)
