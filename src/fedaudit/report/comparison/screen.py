"""First screen of a comparison: best trade-off, and leakage against test error."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from fedaudit.core.metric_names import AUC
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text, fixed_texts
from fedaudit.formatting.grid import Tile, shorten, tile
from fedaudit.report import evidence
from fedaudit.report.comparison.tables import attacks_of, front_order, leakage_name
from fedaudit.report.comparison.tradeoffs import (
    SIZES_DIFFER,
    TradeOff,
    best_tradeoff,
    cheapest,
    clients_of,
    compares_defenses,
    doubted_rows,
    estimate_of,
    front_name,
    labels_of,
    largest_difference,
    strongest_entry,
    tradeoffs,
)
from fedaudit.report.deciding.caveats import controls_line, controls_sign
from fedaudit.report.deciding.findings import LEAKS
from fedaudit.report.figures import charts
from fedaudit.report.figures.forest import (
    COMPARED,
    DOUBTED,
    PLAIN,
    ForestRow,
    Picture,
    TrackCell,
    build_forest,
    mark_of,
    track_cell,
)
from fedaudit.report.first import FirstScreen
from fedaudit.report.pictures import RISK_AXIS, source_rows
from fedaudit.report.sources import strongest_attack
from fedaudit.report.text.verdict import PlainVerdict
from fedaudit.results.comparison import DEFENDING_CLIENTS, STRONGEST_ATTACK, Comparison, Front
from fedaudit.results.estimate import MODEL_RISK, NO_DEFENSE, TEST_ACCURACY, Difference, Interval
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import Record

LEAST_SPANS = {"leakage": 0.2, "error": 0.1}
"""Smallest lengths of a front's axes, so that differences due to noise look small."""

_UNDEFENDED = charts.Style(charts.GREY, "", charts.RESERVED)
_BEST = charts.Style("var(--ink)", "", "star")


def first_of_comparison(
    comparison: Comparison, records: Sequence[Record], verdicts: Sequence[PlainVerdict]
) -> FirstScreen:
    """Return the first screen of a comparison: its best trade-off, or why there is none."""
    failed = any(verdict.status == "void" for verdict in verdicts)
    failed = failed or any(evidence.outcomes_of(record.controls).failed for record in records)
    undefended = [
        verdict
        for record, verdict in zip(records, verdicts, strict=True)
        if {estimate.defense for estimate in record.findings} == {NO_DEFENSE}
    ]
    compared = compares_defenses(comparison)
    plain: list[evidence.Status] = [verdict.status for verdict in undefended]
    nothing = bool(plain) and not any(status in LEAKS for status in plain)
    if compared:
        # A front is only about membership: it could not show a lower leak of sources.
        topics = [dict(verdict.topics) for verdict in undefended]
        plain = [by_topic["membership"] for by_topic in topics if "membership" in by_topic]
        nothing = not any(
            entry.above and comparison.rows[entry.row].family == NO_DEFENSE
            for entry in comparison.entries
        )
    rows, best = tradeoffs(comparison), best_tradeoff(comparison)
    row = best or cheapest([row for row in rows if row.lowers]) or cheapest(rows)
    look: evidence.Status = "inconclusive"
    if failed:
        look, status, row = "control failed", "control failed", None
        text = "A control failed, so no trade-off can be concluded"
        text = text if compared else _side_by_side(comparison, verdicts)
    elif nothing:
        worst = f"“{evidence.worst_status(plain)}”" if plain else ""
        reason = f"the verdict is {worst}"
        if compared:
            reason = f"no membership attack is above guessing{f' ({worst})' if worst else ''}"
        status, row = "nothing to lower", None
        text = fixed_text("choosing.no_leak", reason=reason)
    elif not compared:
        status, difference = "side by side", largest_difference(comparison)
        text = wording.join_parts(_side_by_side(comparison, verdicts), difference, by=". ")
    elif best is not None:
        status, look = "best trade-off", "no leak shown"
        text = f"{shorten(best.name, 80)}: {_tradeoff_text(best, comparison)}"
    else:
        status = "no trade-off"
        text = "No defense is shown to lower the leakage to the strongest attack"
        if row is not None:
            text = fixed_text("pictures.no_bargain") if row.lowers else f"{text}."
            text = f"{text} {shorten(row.name, 80)}: {_tradeoff_text(row, comparison)}"
    sizes = {
        frozenset((f.n_members, f.n_nonmembers) for f in evidence.main_estimates(record))
        for record in records
    }
    steps = fixed_texts("choosing")
    return FirstScreen(
        look,
        status,
        text,
        "",
        # The chart of the front replaces this picture.
        () if _drawn_fronts(comparison) else comparison_picture(comparison, records),
        _numbers(row, comparison) if row else (),
        controls_line(records),
        controls_sign(records),
        tuple(steps.get(status, steps["picture" if comparison.fronts else "table"])),
        (SIZES_DIFFER.format(members=_members_text(sizes)),) if len(sizes) > 1 else (),
    )


def _members_text(sizes: Collection[frozenset[tuple[int | None, int | None]]]) -> str:
    """Return "members (71 to 84)", or "samples" if only the non-members differ."""
    numbers = [members for row in sizes for members, _ in row if members]
    if not numbers or min(numbers) == max(numbers):
        return "samples"
    return f"members ({wording.format_range(numbers)})"


def _side_by_side(comparison: Comparison, verdicts: Sequence[PlainVerdict]) -> str:
    worst = evidence.worst_status([verdict.status for verdict in verdicts])
    return f"{len(comparison.rows)} rows side by side; the worst verdict is “{worst}”"


def _tradeoff_text(row: TradeOff, comparison: Comparison) -> str:
    limits = ""
    if row.low is not None and row.high is not None:
        limits = f"{-100 * row.high:.1f} to {-100 * row.low:.1f}".replace("-", "−")
    less = f"{-100 * row.leakage:.1f} points less leakage".replace("-", "−")
    lost = "" if row.lost is None else f"{wording.format_percent(row.lost)} of the accuracy above "
    cost = f"{lost}guessing lost" if lost else "the model without the defense only guesses"
    if row.error <= 0:
        change = _accuracy_change(row, comparison)
        is_ruled_out = change is not None and change.low is not None and change.low >= 0
        cost = "ruled out by its interval" if is_ruled_out else "neither shown nor ruled out"
        cost = f"a loss of accuracy was {cost}"
    return f"{less} ({wording.limits_in_words(limits)}) to the strongest attack; {cost}"


def _accuracy_change(row: TradeOff, comparison: Comparison) -> Difference | None:
    """Return the change of a row's test accuracy; None if it was not measured."""
    accuracies = comparison.on("utility", TEST_ACCURACY)
    return next((entry.change for entry in accuracies if entry.row == row.row), None)


def _numbers(row: TradeOff, comparison: Comparison) -> tuple[Tile, ...]:
    count = len(tradeoffs(comparison))
    change = _accuracy_change(row, comparison)
    limits = wording.limits_of_change(change.low, change.high, TEST_ACCURACY) if change else ""
    interval = f", 95% interval {limits}" * bool(limits)
    return (
        tile(
            "Membership advantage (2 AUC − 1)",
            wording.format_percent(max(row.undefended + row.leakage, 0.0)),
            f"{wording.format_percent(row.undefended)} without the defense",
            f"strongest attack {wording.nonmember_heading(row.contrast)}",
            "guessing has 0%",
            f"not corrected for picking one of {count} rows" * (count > 1),
            tone="good" if row.lowers else "",
        ),
        tile(
            "Test accuracy",
            wording.format_percent(1 - row.undefended_error - row.error),
            f"{wording.format_percent(1 - row.undefended_error)} without the defense, same clients",
            f"change {wording.format_points(-row.error)} points{interval}",
        ),
        *_source_number(row, comparison),
    )


def _source_number(row: TradeOff, comparison: Comparison) -> tuple[Tile, ...]:
    """Return the success of the source attack that is strongest without the defense, if any."""
    base = comparison.rows[row.row].base
    before, after = (
        [] if number is None else [a for a in attacks_of(comparison, number) if not a.success.doubt]
        for number in (base, row.row)
    )
    undefended = strongest_attack(before)
    if undefended is None:
        return ()
    return tuple(
        tile(
            "Success rate of source inference",
            wording.format_percent(attack.success.number),
            f"{wording.format_percent(undefended.success.number)} without the defense",
            f"attack: {shorten(attack.success.attack, 60)}",
            f"guessing has {wording.format_percent(attack.chance)}",
        )
        for attack in after
        if attack.success.attack == undefended.success.attack
    )


def front_figure(
    comparison: Comparison, records: Sequence[Record] = (), *, ranked: bool = True
) -> charts.Figures | None:
    """Return leakage to the strongest attack against test error; None without a defended row.

    Without ``ranked``, no row is called best. Without records, no estimate is marked as doubtful.
    """
    fronts = _drawn_fronts(comparison)
    if not fronts:
        return None
    best = best_tradeoff(comparison) if ranked else None

    # The contrast with the largest leakage without a defense comes first.
    lead = next((row.contrast for row in tradeoffs(comparison)), "")
    ordered = sorted(
        fronts,
        key=lambda front: (front_order(front)[1], front.contrast != lead, front_order(front)[0]),
    )
    by_panel = evidence.group_by(ordered, lambda front: (front.metric, front.contrast))
    labels, names = labels_of(comparison), evidence.unique_items(map(front_name, fronts))
    looks = {name: charts.style(place)._replace(dash="") for place, name in enumerate(names)}
    families = [row.family for row in comparison.rows]
    rows = {row: _UNDEFENDED for row, family in enumerate(families) if family == NO_DEFENSE}
    rows |= {best.row: _BEST} if best else {}
    rows |= dict.fromkeys(doubted_rows(comparison, records), DOUBTED)
    choices = []
    for (metric, contrast), inside in by_panel.items():
        leakage = "Leakage" if metric == AUC else wording.metric_name(metric)
        label = f"{leakage} to the strongest attack ({wording.nonmember_heading(contrast)})"
        choices.append(charts.Choice(label, (_panel(inside, looks, rows, labels),)))
    caption = fixed_text("pictures.fronts") + f" {fixed_text('pictures.best')}" * bool(best)
    looks |= {
        "no defense, same clients": _UNDEFENDED,
        f"best trade-off: {labels[best.row] if best else ''}": _BEST,
        NOT_RELIED_ON: DOUBTED,
    }
    # A front whose points all have another style needs no entry.
    shown_styles = {point.look for choice in choices for point in choice.panels[0].points}
    keys = charts.legend({name: look for name, look in looks.items() if look in shown_styles})
    return charts.Figures("fronts", caption, tuple(choices), keys, "tall")


def _drawn_fronts(comparison: Comparison) -> list[Front]:
    return [
        front
        for front in comparison.fronts
        if front.family != NO_DEFENSE and front.attack == STRONGEST_ATTACK
    ]


def _panel(
    fronts: Sequence[Front],
    looks: Mapping[str, charts.Style],
    rows: Mapping[int, charts.Style],
    labels: Sequence[str],
) -> charts.Panel:
    """Return a panel of fronts; the style of a row takes precedence over that of its front."""
    points = [
        charts.Point(
            point.error,
            point.leakage,
            rows.get(point.row, looks[front_name(front)]),
            f"{shorten(labels[point.row], 80)}: leakage {point.leakage:.1%}, "
            f"error {point.error:.1%}",
            point.error_limits,
            point.leakage_limits,
        )
        for front in fronts
        for point in front.points
    ]
    metric, contrast = fronts[0].metric, fronts[0].contrast
    title, leakage = f"Members {wording.nonmember_heading(contrast)}", leakage_name(metric)
    errors = _reach((point.x, point.x_limits) for point in points)
    largest = max(_reach((point.y, point.y_limits) for point in points))
    low, high = min(errors), max(errors)
    margin = max((high - low) / 10, (LEAST_SPANS["error"] - (high - low)) / 2)
    x = _percent_axis("Test error", low - margin, high + margin)
    # Start this axis at guessing: distances then correspond to leakage.
    y = _percent_axis(leakage, -largest / 40, max(1.1 * largest, LEAST_SPANS["leakage"]))
    texts = shorten("; ".join(dict.fromkeys(point.text for point in points)), 1000)
    summary = f"{title}: {leakage} to the strongest attack against test error. {texts}"
    return charts.Panel(title, summary, x, y, points=points)


def _percent_axis(title: str, low: float, high: float) -> charts.Axis:
    return charts.Axis(title, low, high, charts.ticks(low, high, 6, "%"))


def _reach(values: Iterable[tuple[float, Interval | None]]) -> list[float]:
    intervals = [(value, limits or Interval()) for value, limits in values]
    ends = [end for value, limits in intervals for end in (value, limits.low, limits.high)]
    return [end for end in ends if end is not None]


def comparison_picture(comparison: Comparison, records: Sequence[Record]) -> Picture:
    """Return charts on membership, sources and clusters for a comparison without trade-offs."""
    labels = labels_of(comparison)
    by_row = [(label, attacks_of(comparison, row)) for row, label in enumerate(labels)]
    strongest = [
        (label, max(a, key=lambda named: named.success.number)) for label, a in by_row if a
    ]
    risks = []
    for entry in comparison.on("clusters", MODEL_RISK):
        estimate, label = entry.figure, shorten(labels[entry.row], 50)
        algorithm, group = shorten(estimate.algorithm, 24), shorten(estimate.group, 24)
        name = f"{algorithm}, {group}’s model · {label}"
        risks.append(
            ForestRow(name, (track_cell(estimate, [mark_of(estimate, PLAIN, f"{name}:")]),))
        )
    title = "Membership risk by model, row by row"
    return (
        *membership_rows(comparison, records),
        *source_rows("Source inference, row by row", "the strongest attack of each row", strongest),
        *build_forest(title, title.lower(), fixed_text("pictures.risks"), [RISK_AXIS], risks),
    )


def membership_rows(comparison: Comparison, records: Sequence[Record]) -> Picture:
    """Return a chart of each row's strongest AUC, and test accuracy if any; empty without AUCs."""
    strongest = [
        entry
        for entry in comparison.entries
        if (entry.part, entry.metric, entry.attack) == (DEFENDING_CLIENTS, AUC, STRONGEST_ATTACK)
        and entry.value is not None
    ]
    if not strongest:
        return ()
    tradeoff_rows = tradeoffs(comparison)
    largest = max(strongest, key=lambda entry: entry.value or 0.0)
    contrast = tradeoff_rows[0].contrast if tradeoff_rows else largest.contrast
    accuracies = {entry.row: entry.figure for entry in comparison.on("utility", TEST_ACCURACY)}
    # If all defended rows have the same defending clients, the undefended row is about them, too.
    defending = {clients_of(e) for e in strongest if comparison.rows[e.row].family != NO_DEFENSE}
    clients = defending.pop() if len(defending) == 1 else None
    lines = []
    for row, label in enumerate(labels_of(comparison)):
        cells = [TrackCell(), TrackCell()]
        if (best := strongest_entry(comparison, row, contrast, clients)) is not None:
            auc = estimate_of(best, comparison, records)
            marks = [mark_of(auc, PLAIN, f"{label}: AUC")]
            is_above_chance = bool(best.above)
            cells[0] = track_cell(auc, marks, "▲ " * is_above_chance)
        if (accuracy := accuracies.get(row)) is not None:
            cells[1] = track_cell(accuracy, [mark_of(accuracy, PLAIN, f"{label}: accuracy")])
        lines.append(ForestRow(label, tuple(cells if accuracies else cells[:1])))
    tracks, caption = (
        [charts.Axis("Strongest AUC", guess=0.5)],
        fixed_text("pictures.rows_without_accuracy"),
    )
    if accuracies:
        tracks.append(charts.Axis("Test accuracy", high=1.0, form="%"))
        caption = fixed_text("pictures.rows")
    title = f"Compared audits, members {wording.nonmember_heading(contrast)}"
    return build_forest(title, COMPARED, caption, tracks, lines)


def printable_comparison(
    comparison: Comparison, records: Sequence[Record]
) -> tuple[Comparison, list[Record]]:
    """Return a comparison and its records with texts that are safe to print."""
    clean_text = wording.without_digests([comparison, *records])
    watched = bool(records) and all(record.watched for record in records)
    names = [wording.client_names(record) for record in records]
    # A number with different names in two records refers to different clients.
    same = {
        number: client
        for number, client in (names[0] if names else {}).items()
        if all(str(client) == str(others.get(number)) for others in names)
    }
    safe = wording.clean_texts(
        comparison, clean_text, same, watched=watched, name_attack=wording.attack_name
    )
    return safe, [
        wording.clean_texts(record, clean_text, name_attack=wording.attack_name)
        for record in records
    ]
