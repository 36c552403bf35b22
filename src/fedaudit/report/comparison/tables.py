"""Tables of records side by side: attacks, sources, epsilons, clusters, utility, use of data."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from fedaudit.core import metric_names
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
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
from fedaudit.report.clusters import FIGURES, group_heading
from fedaudit.report.comparison.tradeoffs import (
    clients_of,
    clients_text,
    doubted_rows,
    estimate_of,
    front_name,
    headings_of,
    labels_of,
    users_text,
)
from fedaudit.report.evidence import DOUBTED, Marker, by_contrast, group_by, marker_of, unique_items
from fedaudit.report.sources import SourceAttack, attacks_in, source_marker
from fedaudit.report.tables.cells import (
    Section,
    change_lines,
    estimate_table,
    table_section,
    value_cell,
)
from fedaudit.report.tables.run import utility_title
from fedaudit.results.comparison import (
    EVERY_ATTACK,
    MIRRORED,
    OF_SEVERAL,
    STRONGEST_ATTACK,
    AttackEntry,
    Comparison,
    FigureEntry,
    Front,
)
from fedaudit.results.estimate import NO_DEFENSE, Difference, Estimate
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import Record
from fedaudit.results.runs import ALL_CLIENTS

_DOUBTED = f"✗ {NOT_RELIED_ON}."


def comparison_sections(
    comparison: Comparison, records: Sequence[Record], verdicts: Sequence[str]
) -> list[Section]:
    """Return the non-empty sections of a comparison, given the status of each record."""
    defended = any(row.family != NO_DEFENSE for row in comparison.rows)
    sources, clusters = source_comparison(comparison), cluster_comparison(comparison)
    inside = attack_tables(comparison, records)
    outside = attack_tables(comparison, records, part="outside")
    text = (
        fixed_text("compared.inside") if outside else "" if inside else fixed_text("compared.none")
    )
    attacks = _attacks("attacks", "Defense by attack" if defended else "Attacks", inside, text)
    text = fixed_text("compared.outside")
    others = _attacks("outside", "Clients outside the coalition", outside, text)
    on_utility = comparison.on("utility")
    utility_name = utility_title(entry.figure for entry in on_utility)
    utility = _figures_table(
        comparison,
        utility_name,
        on_utility,
        columns=lambda entry: wording.capitalise(wording.metric_name(entry.figure.metric)),
    )
    parts = [
        table_section("rows", "What is compared", rows_table(comparison, verdicts)),
        table_section(
            "tradeoff", "Trade-off of leakage and accuracy", hypervolume_table(comparison, records)
        ),
        table_section("sources", "Source inference", sources),
        table_section("clusters", "Clustered learning", clusters),
        attacks if inside or not (sources or clusters) else None,
        others if outside else None,
        table_section("epsilons", "Epsilon", epsilon_comparison(comparison, records)),
        table_section("utility", utility_name, utility),
        table_section("usage", "Use of training data", usage_table(comparison, records)),
    ]
    return [part for part in parts if part is not None]


def _attacks(ident: str, title: str, tables: Mapping[str, Sequence[Grid]], text: str) -> Section:
    """Return the section on attacks; further tables of further contrasts start collapsed."""
    first, *others = list(tables.values()) or [[]]
    return Section(
        ident,
        title,
        [text] * bool(text),
        tables=[*first, *(grids[0] for grids in others)],
        folded=[grid for grids in others for grid in grids[1:]],
    )


def rows_table(comparison: Comparison, verdicts: Sequence[str]) -> Grid:
    """Return a table of what is compared: defenses, their users, settings and verdicts."""
    names = unique_items(name for row in comparison.rows for name in row.settings)
    rows: list[Cells] = []
    for row in comparison.rows:
        defense = name_cell(wording.defense_name(row.defense), users_text(row), limit=120)
        rows.append(
            {
                "Defense and coalition": defense,
                **{n: name_cell(row.settings.get(n, wording.MISSING), limit=32) for n in names},
                "Verdict": verdicts[row.source],
                "Record": name_cell(comparison.sources[row.source].name, limit=60),
            }
        )
    return grid_of("What is compared", rows, words=(*names, "Verdict", "Record"))


def hypervolume_table(comparison: Comparison, records: Sequence[Record] = ()) -> Grid | None:
    """Return a table of hypervolumes against the strongest attack; None without fronts."""
    fronts = [front for front in comparison.fronts if front.attack == STRONGEST_ATTACK]
    if not fronts:
        return None
    with_doubt = doubted_rows(comparison, records)
    in_doubt = [f for f in fronts if any(point.row in with_doubt for point in f.points)]
    methods = wording.join_and(unique_items(front.method for front in fronts)[:3])
    return estimate_table(
        "Hypervolume",
        sorted(fronts, key=front_order),
        rows=lambda front: name_cell(front_name(front), limit=120),
        columns=lambda front: (
            f"Members {wording.nonmember_heading(front.contrast)}",
            leakage_name(front.metric),
        ),
        cell=lambda front: _area(front, DOUBTED if front in in_doubt else Marker()),
        first="Defense and coalition",
        remark=f"{fixed_text('compared.hypervolume', methods=methods)} {_DOUBTED * bool(in_doubt)}",
    )


def front_order(front: Front) -> tuple[tuple[int, str], int]:
    """Return a sort key: contrasts and metrics in the order of a report."""
    metrics = [*metric_names.HEADLINE_METRICS, front.metric]
    return wording.contrast_order(front.contrast), metrics.index(front.metric)


def leakage_name(metric: str) -> str:
    """Return the name of a front's leakage axis."""
    if metric == metric_names.AUC:
        return "Membership advantage (2 AUC − 1)"
    return wording.metric_name(metric)


def _area(front: Front, look: Marker) -> Cell:
    lines = [look.word, wording.format_interval(front.low, front.high, "hypervolume")]
    if front.gain is not None:
        ends = (front.gain_low, front.gain_high)
        low, high = (None if end is None else round(end, 3) for end in ends)
        limits = wording.format_interval(low, high, "hypervolume")
        lines += [
            f"gain {wording.format_number(round(front.gain, 3))}",
            f"({limits})" if limits else "",
        ]
    return Cell(f"{look.sign}{wording.format_number(front.hypervolume)}", stack_lines(*lines))


def attack_tables(
    comparison: Comparison, records: Sequence[Record] = (), *, part: str = "inside"
) -> dict[str, list[Grid]]:
    """Return tables of defenses by attacks for each contrast, one per metric with estimates.

    The first table has every attack. The others only have estimates over several attacks, since
    tables of all attacks would take dozens of pages. ``part`` is "inside" for the defending clients
    and "outside" for the other clients. Without records, no estimate is marked as doubtful.
    """
    entries = [entry for entry in comparison.entries if entry.part == part]
    order = unique_items((*metric_names.HEADLINE_METRICS, *(entry.metric for entry in entries)))
    tables: dict[str, list[Grid]] = {}
    for contrast, inside in by_contrast(entries).items():
        for metric in order:
            same = [entry for entry in inside if entry.metric == metric]
            if any(entry.value is not None for entry in same):
                table = _attack_table(comparison, records, same, every_attack=not tables)
                tables.setdefault(contrast, []).append(table)
    return tables


def _attack_table(
    comparison: Comparison,
    records: Sequence[Record],
    entries: Sequence[AttackEntry],
    *,
    every_attack: bool,
) -> Grid:
    attacks = unique_items(entry.attack for entry in entries)
    singles = [attack for attack in attacks if attack not in OF_SEVERAL]
    has_several_clients = len(singles) > 1
    # With a single attack, "strongest" and "mean" would repeat it.
    columns = (
        attacks
        if every_attack and has_several_clients
        else list(OF_SEVERAL)
        if has_several_clients
        else singles
    )
    headings, notes = headings_of(comparison), Footnotes()
    with_doubt = doubted_rows(comparison, records)
    rows = [
        (entry, estimate_of(entry, comparison, records), _relied_on(entry, comparison, with_doubt))
        for entry in _in_blocks(comparison, entries)
        if entry.attack in columns
    ]

    def column(attack: str) -> str:
        return attack.capitalize() if attack in OF_SEVERAL else attack

    def heading(entry: AttackEntry) -> Cell:
        if entry.part != "reference":
            return headings[entry.row]
        return replace(headings[entry.row], detail=f"on {clients_text(clients_of(entry))}")

    in_mean = unique_items(n for e in entries if e.attack == EVERY_ATTACK for n in e.attacks)
    mirrored = any(name.endswith(f", {MIRRORED}") for e in entries for name in e.attacks)
    parts = [
        fixed_text("compared.signs"),
        fixed_text("compared.mean", attacks=wording.join_and(in_mean)) if in_mean else "",
        fixed_text("compared.mirrored") if mirrored else "",
        fixed_text("compared.strongest") if has_several_clients else "",
        _about(comparison, [row[1:] for row in rows]),
        "Single attacks: comparison.json." * (has_several_clients and not every_attack),
    ]
    return estimate_table(
        f"{wording.metric_name(entries[0].metric)}: members "
        f"{wording.nonmember_heading(entries[0].contrast)}",
        rows,
        rows=lambda row: heading(row[0]),
        columns=lambda row: column(row[0].attack),
        cell=lambda row: _attack_cell(*row, notes),
        order=map(column, (*OF_SEVERAL, *attacks)),
        first="Defense",
        notes=notes,
        remark=wording.join_parts(*parts, by=" "),
    )


def _in_blocks(comparison: Comparison, entries: Sequence[AttackEntry]) -> list[AttackEntry]:
    """Sort entries into blocks about the same clients, with the undefended row first."""
    kind = (entries[0].contrast, entries[0].metric)
    references = group_by(
        (e for e in comparison.entries if e.part == "reference" and (e.contrast, e.metric) == kind),
        lambda entry: (entry.row, clients_of(entry)),
    )
    blocks: dict[tuple[int, tuple[int, ...]], list[AttackEntry]] = {}
    for entry in entries:
        row = comparison.rows[entry.row]
        is_first = row.base is None or row.family == NO_DEFENSE
        key = (entry.row if is_first or row.base is None else row.base, clients_of(entry))
        blocks.setdefault(key, [] if is_first else list(references.get(key, ()))).append(entry)
    return [entry for block in blocks.values() for entry in block]


def _attack_cell(
    entry: AttackEntry, estimate: Estimate, change: Difference | None, notes: Footnotes
) -> Cell | None:
    if entry.value is None:
        return Cell(wording.MISSING, "not computed", "muted", notes.mark(entry.note))
    lines = []
    if entry.clients and entry.targets != entry.clients:
        lines.append(f"only on {clients_text(entry.targets)}")
    if entry.attack == STRONGEST_ATTACK:
        lines.append(shorten(wording.join_and(entry.attacks), 60))
    lines += change_lines(change, entry.metric)
    return value_cell(estimate, marker_of(estimate), *lines, mark=notes.mark(entry.note))


def _relied_on(
    entry: AttackEntry | FigureEntry, comparison: Comparison, with_doubt: Collection[int]
) -> Difference | None:
    """Return the change of an estimate, or None if a failed control invalidates its row or base."""
    rows = (entry.row, comparison.rows[entry.row].base)
    return None if any(row in with_doubt for row in rows) else entry.change


def _about(comparison: Comparison, rows: Iterable[tuple[Estimate, Difference | None]]) -> str:
    estimates, changes = zip(*rows, strict=True)
    of_figures, of_changes = (
        unique_items(shorten(part.method, 80) for part in parts if part and part.method)[:3]
        for parts in (estimates, changes)
    )
    base = "the undefended row of the same settings, or else the first row"
    if {row.base for row in comparison.rows} - {None} == {0}:
        base = "the first row"
    methods = wording.join_and(of_changes)
    parts = [
        f"Intervals: {wording.join_and(of_figures)}." * bool(of_figures),
        fixed_text("compared.changes", base=base, methods=methods) if any(changes) else "",
        _DOUBTED * any(estimate.doubt for estimate in estimates),
        wording.interval_remark(estimate.further for estimate in estimates).strip(),
    ]
    return wording.join_parts(*parts, by=" ")


def _figures_table(
    comparison: Comparison,
    caption: str,
    entries: Sequence[FigureEntry],
    *,
    rows: Callable[[FigureEntry], Cell] | None = None,
    columns: Callable[[FigureEntry], str | tuple[str, str]],
    look: Callable[[FigureEntry], Marker] = lambda entry: Marker(),
    line: Callable[[FigureEntry], str] = lambda entry: "",
    first: str = "Defense",
    remark: str = "",
) -> Grid | None:
    """Return a table of estimates on one topic, each with its change against the row's base."""
    if not entries:
        return None
    headings, with_doubt = headings_of(comparison), {e.row for e in entries if e.figure.doubt}
    changes = [(entry.figure, _relied_on(entry, comparison, with_doubt)) for entry in entries]
    return estimate_table(
        caption,
        entries,
        rows=rows or (lambda entry: headings[entry.row]),
        columns=columns,
        cell=lambda entry: value_cell(
            entry.figure,
            look(entry),
            line(entry),
            *change_lines(_relied_on(entry, comparison, with_doubt), entry.figure.metric),
            unbounded="",
        ),
        first=first,
        remark=f"{remark} {_about(comparison, changes)}",
    )


def attacks_of(comparison: Comparison, row: int) -> list[SourceAttack]:
    """Return the source attacks of a row of a comparison."""
    return attacks_in(
        entry.figure
        for entry in comparison.figures
        if entry.row == row and entry.figure.topic == "source"
    )


def source_comparison(comparison: Comparison) -> Grid | None:
    """Return a table of the success of source attacks by row; None if no record has any."""
    attacks = {
        (row, attack.success.attack): attack
        for row in range(len(comparison.rows))
        for attack in attacks_of(comparison, row)
    }
    return _figures_table(
        comparison,
        "Attack success rate",
        [entry for entry in comparison.on("source") if (entry.row, entry.figure.attack) in attacks],
        columns=lambda entry: entry.figure.attack,
        look=lambda entry: source_marker(attacks[entry.row, entry.figure.attack]),
        line=lambda entry: (
            f"labels {wording.format_percent(attacks[entry.row, entry.figure.attack].label_level)}"
        ),
        remark=fixed_text("compared.sources"),
    )


_EPSILONS = fixed_texts("compared_epsilons")
_FORMAL = (metric_names.FORMAL_EPSILON, metric_names.FORMAL_EPSILON_OF_A_ROUND)


def epsilon_comparison(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Return a table of proven, claimed and measured epsilons by row; None if no row has one."""
    headings = headings_of(comparison)
    estimates = []
    for index, row in enumerate(comparison.rows):
        for metric in _EPSILONS:
            same = [
                estimate
                for estimate in records[row.source].where(metric=metric)
                if (estimate.defense or NO_DEFENSE) == row.family
            ]
            estimates += [(index, min(same, key=lambda f: f.seed is not None))] if same else []
    if not estimates:
        return None
    notes = unique_items(
        f"{shorten(estimate.method, 60)}; {shorten(estimate.note, 100)}"
        for _, estimate in estimates
        if estimate.metric in _FORMAL and estimate.method
    )
    return estimate_table(
        "Epsilon",
        estimates,
        rows=lambda pair: headings[pair[0]],
        columns=lambda pair: _EPSILONS[pair[1].metric],
        cell=lambda pair: (
            wording.format_optional(pair[1].value, wording.format_number)
            or "none proven" * (pair[1].metric in _FORMAL)
            or None
        ),
        order=_EPSILONS.values(),
        first="Defense",
        remark=fixed_text("compared.epsilons", notes=f" ({', '.join(notes[:4])})" * bool(notes)),
    )


def cluster_comparison(comparison: Comparison) -> Grid | None:
    """Return a table of clustered learning by group, with a column for each compared row."""
    entries, labels = comparison.on("clusters"), labels_of(comparison)
    order = unique_items((*FIGURES, *(entry.figure.metric for entry in entries)))

    def sort_key(entry: FigureEntry) -> tuple[int, bool, str]:
        group = entry.figure.group
        return order.index(entry.figure.metric), group != ALL_CLIENTS, group

    notes = unique_items(entry.figure.note for entry in entries if entry.figure.note)
    return _figures_table(
        comparison,
        "Clustered learning",
        sorted(entries, key=sort_key),
        rows=lambda entry: name_cell(
            FIGURES.get(entry.figure.metric, wording.capitalise(entry.figure.metric)),
            group_heading(entry.figure.group),
        ),
        columns=lambda entry: (labels[entry.row], entry.figure.algorithm),
        first="Figure and group",
        remark=" ".join(f"{wording.capitalise(shorten(note, 200))}." for note in notes[:3]),
    )


def usage_table(comparison: Comparison, records: Sequence[Record]) -> Grid | None:
    """Return a table of a defending client's use of data and costs; None without any."""
    headings, rows = headings_of(comparison), list[Cells]()
    usage = [
        [use for use in records[row.source].usage if use.defense == row.family]
        for row in comparison.rows
    ]
    for index, of_row in enumerate(usage):
        defended = [use for use in of_row if use.defended or use.defense == NO_DEFENSE]
        if not defended:
            continue
        base, clients = comparison.rows[index].base, {(use.seed, use.client) for use in defended}
        others = [] if base is None else usage[base]
        same = [use.seconds for use in others if (use.seed, use.client) in clients]
        seconds, samples = fmean(u.seconds for u in defended), sum(u.samples for u in defended)
        uses = sum(times * count for use in defended for times, count in enumerate(use.times_used))
        # Fraction of its samples that a client uses in a round in which it takes part.
        mean_uses = [count / use.samples for use in defended for count in use.distinct if count]
        slower = f"{seconds / fmean(same):.2f} times" if same and fmean(same) else ""
        extra = sum(use.extra_bytes for use in defended) / max(len(mean_uses), 1)
        rows.append(
            {
                "Defense": headings[index],
                "Samples used in a round": wording.format_percent(
                    fmean(mean_uses) if mean_uses else 0.0
                ),
                "Times a sample is used": wording.format_number(uses / max(samples, 1)),
                "Extra bytes a round": f"{extra:,.0f}",
                "Local time": Cell(f"{seconds:.3g} s", slower),
            }
        )
    caption = "Use of training data and cost to a client"
    return grid_of(caption, rows, remark=fixed_text("compared.usage")) if rows else None
