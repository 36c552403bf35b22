"""Tables of records side by side: rows, attacks, sources, clusters, utility."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from fedaudit.core import metric_names
from fedaudit.report import evidence
from fedaudit.report.clusters import FIGURES
from fedaudit.report.grid import Cell, Filled, Footnotes, Grid, clean, named, shortened, tabled
from fedaudit.report.sources import Named, look_of_source, named_in
from fedaudit.report.tables.cells import change_limits, change_text, estimate_table, measured
from fedaudit.report.text.comparison import (
    case_of,
    clients_of,
    heading_of,
    labels_of,
    on_clients,
)
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
    """Return the tables of a comparison; None where it has nothing for one.

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
    """Return the rows of a comparison: defense, who uses it, what else differs, and the verdict.

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


STAR = "* the interval of the change excludes 0, without correction for the number of cells."


def attack_tables(comparison: Comparison, part: str = "inside") -> dict[str, list[Grid]]:
    """Return for each contrast a table of defenses by attacks for every metric.

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


def _attack_table(
    comparison: Comparison, entries: Sequence[AttackEntry], contrast: str, metric: str
) -> Grid:
    given = dict.fromkeys(entry.attack for entry in entries)
    # The strongest of one attack is that attack.
    single = sum(attack not in OF_SEVERAL for attack in given) < 2
    shown = [attack for attack in given if not (single and attack in OF_SEVERAL)]
    attacks = sorted(shown, key=(*OF_SEVERAL, *shown).index)
    headings, notes = _headings(comparison), Footnotes()

    def heading(entry: AttackEntry) -> Cell:
        if entry.part == "reference":
            return replace(headings[entry.row], detail=f"on {on_clients(clients_of(entry))}")
        return headings[entry.row]

    return estimate_table(
        f"{metric_name(metric)}: members {against(contrast)}",
        [one for line in _blocks(comparison, entries) for one in line if one.attack in shown],
        rows=heading,
        columns=lambda one: ("", _attack_name(one.attack)),
        cell=lambda one: _cell(one, notes),
        order=[("", _attack_name(attack)) for attack in attacks],
        first="Defense",
        notes=notes,
        remark=_remark(comparison, entries),
    )


def _attack_name(attack: str) -> str:
    return attack.capitalize() if attack in OF_SEVERAL else attack


def _headings(comparison: Comparison) -> list[Cell]:
    """Return a heading for each row that no other row has: rows with one heading would merge."""
    labels = labels_of(comparison)
    short = [heading_of(row, label) for row, label in zip(comparison.rows, labels, strict=True)]
    return [
        one if short.count(one) == 1 else named(label, limit=160)
        for one, label in zip(short, labels, strict=True)
    ]


def _blocks(comparison: Comparison, entries: Sequence[AttackEntry]) -> list[list[AttackEntry]]:
    """Return rows in blocks of the same clients, led by the undefended row on these clients."""
    kind = (entries[0].contrast, entries[0].metric)
    references = evidence.grouped(
        (e for e in comparison.entries if e.part == "reference" and (e.contrast, e.metric) == kind),
        lambda entry: (entry.row, clients_of(entry)),
    )
    blocks: dict[tuple[int, tuple[int, ...]], list[list[AttackEntry]]] = {}
    for row, mine in evidence.grouped(entries, lambda entry: entry.row).items():
        base = comparison.rows[row].base
        leads = base is None or comparison.rows[row].family == NO_DEFENSE
        place = (row if leads or base is None else base, clients_of(mine[0]))
        lead = references.get(place)
        blocks.setdefault(place, [lead] if lead and not leads else []).append(mine)
    return [line for lines in blocks.values() for line in lines]


def _cell(entry: AttackEntry, notes: Footnotes) -> Cell | None:
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
    if change is None:
        return ()
    return (f"Δ {change_text(change, metric)}", change_limits(change, metric))


def _remark(comparison: Comparison, entries: Sequence[AttackEntry]) -> str:
    changes = [entry.change for entry in entries if entry.change is not None]
    parts = [
        "▲ above chance for at least one audited client by the corrected test and the interval, △ "
        "by the test alone; the word is the size of the leak."
    ]
    behind = evidence.distinct(n for e in entries if e.attack == EVERY_ATTACK for n in e.attacks)
    if behind:
        parts.append(
            f"Mean: over the attacks that find something undefended ({listed(behind)}), client by "
            "client."
        )
    if any(name.endswith(f", {MIRRORED}") for entry in entries for name in entry.attacks):
        parts.append("Mirrored: undefended below 0.5 beyond chance, so read as 1 − AUC.")
    if len({entry.attack for entry in entries} - set(OF_SEVERAL)) > 1:
        parts.append(
            "Strongest attack: the largest figure of a row on each client, with the largest upper "
            "limit of all attacks."
        )
    if changes:
        parts.append(f"{_about_changes(comparison, changes)} on the same clients. {STAR}")
    parts += [_methods(entry.method for entry in entries)]
    return " ".join(filter(None, (*parts, about_runs(e.further for e in entries).strip())))


def _about_changes(comparison: Comparison, changes: Iterable[Difference | None]) -> str:
    """Return what changes are against, and how their intervals were made."""
    how = evidence.distinct(shortened(one.method, 80) for one in changes if one is not None)
    bases = {row.base for row in comparison.rows if row.base is not None}
    base = "the undefended row of the same settings, or else the first row"
    if bases == {0}:
        base = "the first row"
    elif len(bases) > 1 and all(comparison.rows[at].family == NO_DEFENSE for at in bases):
        base = "the undefended row of the same settings (the first row, for undefended ones)"
    return f"Δ: change against {base} ({listed(how[:3])}),"


def _methods(methods: Iterable[str]) -> str:
    found = evidence.distinct(shortened(method, 80) for method in methods if method)
    return f"Intervals: {listed(found[:3])}." if found else ""


def utility_table(comparison: Comparison) -> Grid:
    """Return the test accuracy of each row, with the change against its base."""
    labels, accuracies = labels_of(comparison), comparison.on("utility")
    changes = [one.change for one in accuracies if one.change]
    rows = [
        {
            "Defense": heading_of(comparison.rows[one.row], labels[one.row]),
            "Test accuracy": measured(one.figure, unbounded=""),
            "Change": None
            if one.change is None
            else Cell(
                change_text(one.change, metrics.TEST_ACCURACY),
                change_limits(one.change, metrics.TEST_ACCURACY),
            ),
        }
        for one in accuracies
    ]
    how = f" {_about_changes(comparison, changes)} on the same clients." if changes else ""
    return tabled(
        "Utility",
        rows,
        remark=f"{_methods(one.figure.method for one in accuracies)}{how} {STAR}"
        + about_runs(one.figure.further for one in accuracies),
    )


_ONE_UPDATE = {
    "ε claimed": metric_names.CLAIMED_CLIENT_EPSILON,
    "Claimed without canaries": metric_names.CLAIMED_CLIENT_EPSILON_ALONE,
    "ε at least, if Gaussian": metric_names.CLIENT_EPSILON_IF_GAUSSIAN,
    "ε at least, from coins": metric_names.CLIENT_EPSILON,
}


def client_comparison(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Return claimed and measured epsilon of one client's update; None without canaries."""
    labels, rows = labels_of(comparison), list[Filled]()
    for at, row in enumerate(comparison.rows):
        found = {
            name: evidence.over_all_runs(records[row.source], metric)
            for name, metric in _ONE_UPDATE.items()
        }
        if any(one is not None and _is_of(one.defense, row) for one in found.values()):
            cells: Filled = {
                name: None if one is None else MISSING if one.value is None else number(one.value)
                for name, one in found.items()
            }
            rows.append({"Defense": heading_of(row, labels[at]), **cells})
    if not rows:
        return None
    remark = (
        "By canary clients: one client's update or zero in its place, to whoever has the first and "
        "the last global model. Measured ones are 95% lower limits: one above the claim refutes it."
    )
    return tabled("One client's update", rows, remark=remark)


_FORMAL = {
    "Formal ε, training": metric_names.FORMAL_EPSILON,
    "Formal ε, one round": metric_names.FORMAL_EPSILON_OF_A_ROUND,
}
_SIGNS = (
    "▲ above label distributions, ▷ above guessing; the word is the size of what is beyond label "
    "distributions, which alone explain the share given below. Δ: change of success over shared "
    f"seeds. Accuracies are means over seeds. {STAR}"
)


def source_comparison(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Return the success of each source attack, row by row; None where no record has any."""
    of_row = [
        {one.success.attack: one for one in attacks_of(comparison, at)}
        for at in range(len(comparison.rows))
    ]
    changes = {(one.row, one.figure.attack): one.change for one in comparison.on("source")}
    attacks = evidence.distinct(attack for found in of_row for attack in found)
    if not attacks:
        return None
    labels = labels_of(comparison)
    budgets = [
        {
            name: next(
                (f for f in records[row.source].where(metric=metric) if _is_of(f.defense, row)),
                None,
            )
            for name, metric in _FORMAL.items()
        }
        for row in comparison.rows
    ]
    formal = [name for name in _FORMAL if any(found[name] for found in budgets)]
    rows: list[Filled] = []
    for at, row in enumerate(comparison.rows):
        if not of_row[at]:
            continue
        utility = records[row.source].where(topic="utility")
        used = [one for one in utility if _is_of(one.defense, row)]
        rows.append(
            {
                "Defense": heading_of(row, labels[at]),
                "Train accuracy": _accuracy(used, metrics.TRAIN_ACCURACY),
                "Test accuracy": _accuracy(used, metrics.TEST_ACCURACY),
                **{name: _budget(budgets[at][name]) for name in formal},
                **{
                    attack: _source_cell(of_row[at].get(attack), changes.get((at, attack)))
                    for attack in attacks
                },
            }
        )
    further = about_runs(one.success.further for found in of_row for one in found.values())
    return tabled(
        "Attack success rate",
        rows,
        remark=_SIGNS + further + (_budget_remark(budgets) if formal else ""),
    )


def _is_of(defense: str, row: Row) -> bool:
    return (defense or NO_DEFENSE) == row.family


def attacks_of(comparison: Comparison, row: int) -> list[Named]:
    """Return the source attacks that a row of a comparison has."""
    return named_in(
        one.figure for one in comparison.figures if one.row == row and one.figure.topic == "source"
    )


def _accuracy(used: Sequence[Estimate], metric: str) -> str | None:
    values = [one.number for one in used if one.metric == metric]
    return percent(fmean(values)) if values else None


def _source_cell(one: Named | None, change: Difference | None) -> Cell | None:
    if one is None:
        return None
    lines = (f"labels {percent(one.mixes)}", *_change(change, metrics.SUCCESS_RATE))
    return measured(one.success, look_of_source(one), *lines)


def _budget(budget: Estimate | None) -> str | None:
    if budget is None:
        return None
    return "none proven" if budget.value is None else number(budget.value)


def _budget_remark(budgets: Sequence[dict[str, Estimate | None]]) -> str:
    given = [one for found in budgets for one in found.values() if one and one.method]
    said = evidence.distinct(f"{shortened(o.method, 60)}; {shortened(o.note, 100)}" for o in given)
    return (
        " Formal ε: of the training, against an adversary who sees all rounds; of one round, "
        "against "
        f"one who sees that round's upload and no other ({', '.join(said[:4])})."
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
    """Return a table for each kind of figure, a row for each row of the comparison."""
    entries = comparison.on("clusters")
    placed = {figure for figures in TABLES.values() for figure in figures}
    gaps = evidence.distinct(e.figure.metric for e in entries if e.figure.metric not in placed)
    labels = labels_of(comparison)
    tables = {
        name: [one for figure in figures for one in entries if one.figure.metric == figure]
        for name, figures in {**TABLES, FAIRNESS: tuple(gaps)}.items()
    }
    return [
        estimate_table(
            name,
            found,
            rows=lambda one: named(one.figure.algorithm, shortened(labels[one.row], 160)),
            columns=lambda one: (
                FIGURES.get(one.figure.metric, capital(shortened(one.figure.metric))),
                "Everybody"
                if one.figure.group == EVERYBODY
                else capital(shortened(one.figure.group, 24)),
            ),
            cell=lambda one: measured(
                one.figure,
                evidence.Look(),
                *_change(one.change, one.figure.metric),
                unbounded="",
            ),
            first="Study",
            remark=_cluster_remark(comparison, found),
        )
        for name, found in tables.items()
        if found
    ]


def _cluster_remark(comparison: Comparison, entries: Sequence[FigureEntry]) -> str:
    changes = [one.change for one in entries if one.change is not None]
    notes = evidence.distinct(one.figure.note for one in entries if one.figure.note)
    parts = [
        _methods(one.figure.method for one in entries),
        about_runs(one.figure.further for one in entries).strip(),
        f"{_about_changes(comparison, changes)} paired by seed. {STAR}" if changes else "",
        *(f"{capital(shortened(note, 200))}." for note in notes[:3]),
    ]
    return " ".join(filter(None, parts))
