"""The first screen of a comparison: its best trade-off, and leakage against test error."""

from collections.abc import Mapping, Sequence

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, wording
from fedaudit.report.comparison.tables import front_order, leakage_name
from fedaudit.report.comparison.tradeoffs import (
    SIZES_DIFFER,
    TradeOff,
    best_tradeoff,
    doubted_rows,
    front_name,
    holds_defenses,
    labels_of,
    least_cost,
    nothing_to_lower,
    sizes_differ,
    tradeoffs,
)
from fedaudit.report.figures import drawing
from fedaudit.report.figures.forest import DOUBTED
from fedaudit.report.first import First
from fedaudit.report.fixed import fixed, fixed_texts
from fedaudit.report.grid import Tile, shortened
from fedaudit.report.pictures import comparison_picture
from fedaudit.report.text.verdict import PlainVerdict
from fedaudit.report.verdict import controls_line, controls_sign
from fedaudit.results.comparison import STRONGEST_ATTACK, Comparison, Front
from fedaudit.results.estimate import NO_DEFENSE, TEST_ACCURACY, Interval
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import Record

LEAST_SPANS = {"leakage": 0.2, "error": 0.1}
"""Least lengths of a front's axes: differences within what few samples give must not fill it."""

_UNDEFENDED = drawing.Style(drawing.GREY, "", drawing.RESERVED)
_BEST = drawing.Style("var(--ink)", "", "star")


def first_of_comparison(
    comparison: Comparison, records: Sequence[Record], verdicts: Sequence[PlainVerdict]
) -> First:
    """Return the first screen of a comparison: its best trade-off in front."""
    failed = any(verdict.status == "void" for verdict in verdicts)
    failed = failed or any(evidence.checks_of(record.controls).failed for record in records)
    undefended = [
        verdict
        for record, verdict in zip(records, verdicts, strict=True)
        if {figure.defense for figure in record.findings} == {NO_DEFENSE}
    ]
    compared = holds_defenses(comparison)
    plain: list[evidence.Status] = [verdict.status for verdict in undefended]
    leaks = (*evidence.LEAKS.values(), "above guessing")
    nothing = bool(plain) and not any(status in leaks for status in plain)
    if compared:
        # Of membership alone: that sources are named is no leak that its front could show lower.
        topics = [dict(verdict.topics) for verdict in undefended]
        plain = [by_topic["membership"] for by_topic in topics if "membership" in by_topic]
        nothing = nothing_to_lower(comparison)
    rows, best = tradeoffs(comparison), best_tradeoff(comparison)
    shown = best or least_cost([row for row in rows if row.lowers]) or least_cost(rows)
    look: evidence.Status = "inconclusive"
    if nothing and not failed:
        grave = f"“{evidence.gravest(plain)}”" if plain else ""
        reason = f"the verdict is {grave}"
        if compared:
            reason = f"no membership attack is above guessing{f' ({grave})' if grave else ''}"
        status, shown = "nothing to lower", None
        text = f"Undefended {reason}: which defense lowers a leak cannot be said here"
    elif not compared:
        status = "side by side"
        grave = evidence.gravest([verdict.status for verdict in verdicts])
        text = f"{len(comparison.rows)} rows side by side; the gravest verdict is “{grave}”"
    elif best is not None:
        status, look = "best trade-off", "no leak shown"
        text = f"{shortened(best.name, 80)}: {_bargain(best)}"
    else:
        status = "no trade-off"
        text = "No defense is shown to lower the leakage to the strongest attack"
        if shown is not None and shown.lowers:
            text = f"{fixed('pictures.no_bargain')} {shortened(shown.name, 60)}: {_bargain(shown)}"
    if failed:
        status, look, shown = "control failed", "control failed", None
        text = "A control failed, so that no trade-off is concluded" if compared else text
    steps = fixed_texts("choosing")
    return First(
        look,
        status,
        text,
        "",
        # A front is the picture itself.
        () if _drawn_fronts(comparison) else comparison_picture(comparison, records),
        _numbers(shown, comparison) if shown else (),
        controls_line(records),
        controls_sign(records),
        tuple(steps.get(status, steps["picture" if comparison.fronts else "table"])),
        (SIZES_DIFFER,) if sizes_differ(records) else (),
    )


def _bargain(row: TradeOff) -> str:
    limits = ""
    if row.low is not None and row.high is not None:
        limits = f" (95% interval {-100 * row.high:.1f} to {-100 * row.low:.1f})"
    less = f"{-100 * row.leakage:.1f} points less leakage"
    return f"{less}{limits} to the strongest attack, {_price(row)}"


def _price(row: TradeOff) -> str:
    before = wording.percent(1 - row.undefended_error)
    after = wording.percent(1 - row.undefended_error - row.error)
    if row.error <= 0:
        return f"no cost in accuracy shown ({before} to {after})"
    if row.lost is None:
        return f"accuracy {before} to {after}, where guessing does as well"
    lost = wording.percent(row.lost)
    return f"{lost} of what was learned above guessing lost (accuracy {before} to {after})"


def _numbers(row: TradeOff, comparison: Comparison) -> tuple[Tile, ...]:
    strongest = f"strongest attack {wording.against(row.contrast)}"
    count = len(tradeoffs(comparison))
    picked = f", not corrected for picking one of {count} rows" if count > 1 else ""
    left = wording.percent(max(row.undefended + row.leakage, 0.0))
    accuracies = comparison.on("utility", TEST_ACCURACY)
    change = next((entry.change for entry in accuracies if entry.row == row.row), None)
    cost = ("against no defense, same clients", _interval(change), _price(row))
    return (
        Tile(
            "Membership advantage (2 AUC − 1)",
            f"{wording.points(row.leakage)} points",
            f"{shortened(row.name, 40)}, {strongest}: {_interval(row) or 'no interval'}{picked}; "
            f"{left} left",
            "good" if row.lowers else "",
        ),
        Tile(
            "Test accuracy",
            f"{wording.points(-row.error)} points",
            "; ".join(filter(None, cost)),
        ),
        Tile(
            "Membership advantage undefended",
            wording.percent(row.undefended),
            f"{strongest}, an AUC of {(row.undefended + 1) / 2:.3f}; guessing has 0%",
        ),
    )


def _interval(change: TradeOff | Interval | None) -> str:
    if change is None or change.low is None or change.high is None:
        return ""
    return f"95% interval {wording.points(change.low)} to {wording.points(change.high)}"


def front_figure(
    comparison: Comparison, records: Sequence[Record] = (), *, ranked: bool = True
) -> drawing.Figures | None:
    """Return leakage to the strongest attack against test error; None without a defended row.

    A mark is a strength of a defense, with its intervals on both axes.

    Args:
        comparison: The comparison.
        records: The records that were compared; without them nothing is doubted.
        ranked: False if a control failed: no row is called best.
    """
    fronts = _drawn_fronts(comparison)
    if not fronts:
        return None
    best = best_tradeoff(comparison) if ranked else None

    # The non-members that members are distinguished from best undefended come first.
    lead = next((row.contrast for row in tradeoffs(comparison)), "")
    ordered = sorted(
        fronts,
        key=lambda front: (front_order(front)[1], front.contrast != lead, front_order(front)[0]),
    )
    by_panel = evidence.grouped(ordered, lambda front: (front.metric, front.contrast))
    labels, names = labels_of(comparison), evidence.distinct(map(front_name, fronts))
    looks = {name: drawing.style(at)._replace(dash="") for at, name in enumerate(names)}
    rows = {row: _UNDEFENDED for row, one in enumerate(comparison.rows) if one.family == NO_DEFENSE}
    rows |= {best.row: _BEST} if best else {}
    rows |= dict.fromkeys(doubted_rows(comparison, records), DOUBTED)
    choices = [
        drawing.Choice(
            f"{'Advantage' if metric == AUC else wording.metric_name(metric)}, strongest attack, "
            f"{wording.against(contrast)}",
            (_panel(inside, looks, rows, labels),),
        )
        for (metric, contrast), inside in by_panel.items()
    ]
    caption = fixed("pictures.fronts")
    if best:
        caption += f" {fixed('pictures.best')}"
    elif ranked and nothing_to_lower(comparison):
        caption += f" {fixed('pictures.nothing')}"
    elif ranked and holds_defenses(comparison):
        caption += f" {fixed('pictures.no_bargain')}"
    marked = {
        "no defense, same clients": _UNDEFENDED,
        f"best trade-off: {labels[best.row] if best else ''}": _BEST,
        NOT_RELIED_ON: DOUBTED,
    }
    drawn = {rows.get(point.row) for front in fronts for point in front.points}
    return drawing.Figures(
        "fronts",
        caption,
        tuple(choices),
        drawing.legend(looks | {name: look for name, look in marked.items() if look in drawn}),
        "tall",
    )


def _drawn_fronts(comparison: Comparison) -> list[Front]:
    return [
        front
        for front in comparison.fronts
        if front.family != NO_DEFENSE and front.attack == STRONGEST_ATTACK
    ]


def _panel(
    fronts: Sequence[Front],
    looks: Mapping[str, drawing.Style],
    rows: Mapping[int, drawing.Style],
    labels: Sequence[str],
) -> drawing.Panel:
    """Return a panel of fronts.

    Args:
        fronts: Of one metric and contrast.
        looks: Styles by the names of fronts.
        rows: Styles of single rows that differ from their front's.
        labels: Labels of all rows.
    """
    series = [
        drawing.Series(
            front_name(front),
            [point.error for point in front.points],
            [point.leakage for point in front.points],
            looks[front_name(front)],
            "leakage {y:.1%}, error {x:.1%}",
            size=10,
            looks=[rows.get(point.row, looks[front_name(front)]) for point in front.points],
            texts=[shortened(labels[point.row], 80) for point in front.points],
            limits=[point.leakage_limits for point in front.points],
            limits_across=[point.error_limits for point in front.points],
        )
        for front in fronts
    ]
    title, leakage = (
        f"Members {wording.against(fronts[0].contrast)}",
        leakage_name(fronts[0].metric),
    )
    across = [value for drawn in series for value in drawn.reach(across=True)]
    most = max(value for drawn in series for value in drawn.reach(across=False))
    span = max(across) - min(across)
    margin = max(span / 10, (LEAST_SPANS["error"] - span) / 2)
    return drawing.Panel(
        title,
        f"{title}: {leakage} against test error, strongest attack.",
        drawing.Scale("Test error", "%", (min(across) - margin, max(across) + margin), count=6),
        # From guessing on, so that a large picture is a large leak.
        drawing.Scale(leakage, "%", (-most / 40, max(1.1 * most, LEAST_SPANS["leakage"])), count=6),
        series,
    )
