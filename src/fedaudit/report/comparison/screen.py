"""The first screen of a comparison: its best trade-off, and leakage against test error."""

from collections.abc import Sequence

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, words
from fedaudit.report.comparison.tables import front_order, leakage_name
from fedaudit.report.comparison.tradeoffs import (
    SIZES_DIFFER,
    TradeOff,
    best_tradeoff,
    case_name,
    front_name,
    holds_defenses,
    labels_of,
    least_cost,
    nothing_to_lower,
    point_cost,
    settings_text,
    sizes_differ,
    tradeoffs,
)
from fedaudit.report.figures import drawing
from fedaudit.report.figures.forest import Picture
from fedaudit.report.first import First
from fedaudit.report.grid import Tile, shortened
from fedaudit.report.pictures import comparison_picture
from fedaudit.report.text.verdict import PlainVerdict
from fedaudit.report.verdict import controls_line, controls_sign
from fedaudit.results.comparison import STRONGEST_ATTACK, Comparison, Front, FrontPoint
from fedaudit.results.estimate import NO_DEFENSE, Interval
from fedaudit.results.metrics import TEST_ACCURACY
from fedaudit.results.record import Record

LEAST_SPANS = {"leakage": 0.2, "error": 0.1}
"""Least lengths of a front's axes: differences within what few samples give must not fill it."""
MOST_COLOURED = 6
"""Defenses that have their own colour; more could not be distinguished."""

_UNDEFENDED = drawing.Style(drawing.GREY, "dot", drawing.RESERVED)


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
    steps: tuple[str, ...] = (
        "Choose by the picture: low leakage at a low test error, where intervals are apart."
        if comparison.fronts
        else "Choose by the table: low leakage and high test accuracy, with their intervals.",
        "Repeat the chosen row with more seeds, then hold it: fedaudit gate.",
    )
    if nothing and not failed:
        grave = f"“{evidence.gravest(plain)}”" if plain else ""
        reason = f"the verdict is {grave}"
        if compared:
            reason = f"no membership attack is above guessing{f' ({grave})' if grave else ''}"
        status, shown = "nothing to lower", None
        text = f"Undefended {reason}: which defense lowers a leak cannot be said here"
        steps = (
            "Audit more samples and seeds of the undefended federation, or one that memorises its "
            "training data, until an attack is above guessing.",
            "Then compare again.",
        )
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
            text = (
                "No defense is shown to take away more leakage than it costs. "
                f"{shortened(shown.name, 60)}: {_bargain(shown)}"
            )
        steps = (
            "Audit more samples and seeds of the same rows until a change is shown, or try other "
            "defenses and strengths.",
            "Rely on no defense here until then.",
        )
    if failed:
        status, look, shown = "control failed", "control failed", None
        text = "A control failed, so that no trade-off is concluded" if compared else text
        steps = ("Repeat the records whose controls failed before any conclusion.",)
    return First(
        look,
        status,
        text,
        "",
        _picture(comparison),
        _numbers(shown, comparison) if shown else (),
        controls_line(records),
        controls_sign(records),
        steps,
        (SIZES_DIFFER,) if sizes_differ(records) else (),
    )


def _picture(comparison: Comparison) -> Picture:
    """Return the rows side by side; empty if the front is the picture."""
    return () if _drawn_fronts(comparison) else comparison_picture(comparison)


def _bargain(row: TradeOff) -> str:
    limits = ""
    if row.low is not None and row.high is not None:
        limits = f" (95% interval {-100 * row.high:.1f} to {-100 * row.low:.1f})"
    less = f"{-100 * row.leakage:.1f} points less leakage"
    return f"{less}{limits} to the strongest attack, {_price(row)}"


def _price(row: TradeOff) -> str:
    before = words.percent(1 - row.undefended_error)
    after = words.percent(1 - row.undefended_error - row.error)
    if row.error <= 0:
        return f"at no cost in accuracy ({before} to {after})"
    if row.lost is None:
        return f"accuracy {before} to {after}, where guessing does as well"
    lost = words.percent(row.lost)
    return f"{lost} of what was learned above guessing lost (accuracy {before} to {after})"


def _numbers(row: TradeOff, comparison: Comparison) -> tuple[Tile, ...]:
    strongest = f"strongest attack {words.against(row.contrast)}"
    count = len(tradeoffs(comparison))
    picked = f", not corrected for picking one of {count} rows" if count > 1 else ""
    left = words.percent(max(row.undefended + row.leakage, 0.0))
    accuracies = comparison.on("utility", TEST_ACCURACY)
    change = next((entry.change for entry in accuracies if entry.row == row.row), None)
    cost = ("against no defense, same clients", _interval(change), _price(row))
    return (
        Tile(
            "Membership advantage (2 AUC − 1)",
            f"{words.points(row.leakage)} points",
            f"{shortened(row.name, 40)}, {strongest}: {_interval(row) or 'no interval'}{picked}; "
            f"{left} left",
            "good" if row.lowers else "",
        ),
        Tile(
            "Test accuracy",
            f"{words.points(-row.error)} points",
            "; ".join(filter(None, cost)),
        ),
        Tile(
            "Membership advantage undefended",
            words.percent(row.undefended),
            f"{strongest}, an AUC of {(row.undefended + 1) / 2:.3f}; guessing has 0%",
        ),
    )


def _interval(change: drawing.Limits | None) -> str:
    if change is None or change.low is None or change.high is None:
        return ""
    return f"95% interval {words.points(change.low)} to {words.points(change.high)}"


def front_figure(comparison: Comparison, *, ranked: bool = True) -> drawing.Figures | None:
    """Return leakage to the strongest attack against test error; None without a defended row.

    A mark is a strength of a defense, with its intervals on both axes.

    Args:
        comparison: The comparison.
        ranked: False if a control failed: no row is called best.
    """
    defended = _drawn_fronts(comparison)
    if not defended:
        return None
    best = best_tradeoff(comparison) if ranked else None
    undefended: dict[str, float] = {}
    for front in comparison.fronts:
        if front.metric == AUC and front.gain is not None:
            leakage = front.points[0].leakage
            undefended[front.contrast] = max(undefended.get(front.contrast, 0.0), leakage)

    def place(front: Front) -> tuple[int, bool, float]:
        # The non-members that members are distinguished from best undefended come first.
        is_best = best is not None and front.contrast == best.contrast
        return front_order(front)[1], not is_best, -undefended.get(front.contrast, 0.0)

    by_panel = evidence.grouped(
        sorted(defended, key=place), lambda front: (front.metric, front.contrast)
    )
    looks, labels = _looks(defended), labels_of(comparison)
    choices = tuple(
        drawing.Choice(
            f"{'Advantage' if metric == AUC else words.metric_name(metric)}, strongest attack, "
            f"{words.against(contrast)}",
            (
                _panel(
                    fronts,
                    looks,
                    labels,
                    best.row if best and (metric, contrast) == (AUC, best.contrast) else None,
                ),
            ),
        )
        for (metric, contrast), fronts in by_panel.items()
    )
    families = {front.family: looks[front_name(front)] for front in defended}
    cases = {case_name(front): looks[front_name(front)] for front in defended}
    reading = ""
    if best:
        reading = " Low and to the left is good."
    elif nothing_to_lower(comparison):
        reading = " No undefended attack is above guessing, so that no row is shown to leak less."
    elif ranked and holds_defenses(comparison):
        reading = " No defense is shown to take away more leakage than it costs."
    return drawing.Figures(
        "fronts",
        "Leakage against test error, one mark per strength of a defense, each a mean over seeds "
        f"with its 95% intervals.{reading} One colour per defense"
        + ", grey the others" * (len(families) > MOST_COLOURED)
        + ", one shape per group of clients that uses it.",
        choices,
        (
            *drawing.legend(
                {name: look._replace(symbol="circle") for name, look in families.items()},
                lined=False,
            ),
            *drawing.legend(
                {name: look._replace(color=drawing.GREY) for name, look in cases.items()}
                if len(cases) > 1
                else {},
                lined=False,
                hides=False,
            ),
            *drawing.legend({"no defense, same clients": _UNDEFENDED}, lined=False, hides=False),
        ),
    )


def _drawn_fronts(comparison: Comparison) -> list[Front]:
    return [
        front
        for front in comparison.fronts
        if front.family != NO_DEFENSE and front.attack == STRONGEST_ATTACK
    ]


def _looks(fronts: Sequence[Front]) -> dict[str, drawing.Style]:
    """Return styles by name: defenses of the least cost have colours, groups of users shapes."""
    kind = (fronts[0].metric, fronts[0].contrast)
    by_cost = sorted(
        fronts, key=lambda front: ((front.metric, front.contrast) != kind, _least_cost(front))
    )
    ranked = evidence.distinct(front.family for front in by_cost)
    colours = dict(zip(ranked, drawing.OKABE_ITO[:MOST_COLOURED], strict=False))
    cases = evidence.distinct(map(case_name, fronts))
    marks = [mark for mark in drawing.MARKS if mark != drawing.RESERVED]
    return {
        front_name(front): drawing.Style(
            colours.get(front.family, drawing.MUTED),
            symbol=marks[cases.index(case_name(front)) % len(marks)],
        )
        for front in fronts
    }


def _strengths(front: Front) -> list[FrontPoint]:
    return front.points[front.gain is not None :]


def _least_cost(front: Front) -> float:
    return min(point_cost(point) for point in _strengths(front) or front.points)


def _panel(
    fronts: Sequence[Front],
    looks: dict[str, drawing.Style],
    labels: Sequence[str],
    best: int | None,
) -> drawing.Panel:
    # The last series lie above the others, and their names are placed first.
    ordered = sorted(
        zip(fronts, _short_names(fronts), strict=True),
        key=lambda pair: (looks[front_name(pair[0])].color != drawing.MUTED, -_least_cost(pair[0])),
    )
    series = [
        _marks(front, name, looks[front_name(front)], labels, best) for front, name in ordered
    ]
    title, leakage = f"Members {words.against(fronts[0].contrast)}", leakage_name(fronts[0].metric)
    across = [float(value) for drawn in series for value in drawn.reach(across=True)]
    most = max(float(value) for drawn in series for value in drawn.reach(across=False))
    span = max(across) - min(across)
    margin = max(span / 10, (LEAST_SPANS["error"] - span) / 2)
    return drawing.Panel(
        title,
        f"{title}: {leakage} against test error, strongest attack.",
        drawing.Scale("Test error", "%", (min(across) - margin, max(across) + margin), count=6),
        # From guessing on, so that a large picture is a large leak.
        drawing.Scale(leakage, "%", (-most / 40, max(1.1 * most, LEAST_SPANS["leakage"])), count=6),
        series,
        height=430,
    )


def _short_names(fronts: Sequence[Front]) -> list[str]:
    """Return families, followed by users and settings where needed to distinguish them."""
    names = [front.family for front in fronts]
    for detail in (case_name, lambda front: settings_text(front.settings)):
        names = [
            ", ".join(filter(None, (name, detail(front)))) if names.count(name) > 1 else name
            for name, front in zip(names, fronts, strict=True)
        ]
    return [shortened(name, 40) for name in names]


def _marks(
    front: Front, name: str, look: drawing.Style, labels: Sequence[str], best: int | None
) -> drawing.Series:
    """Return the marks of a front with intervals on both axes, and a name beside one of them."""
    strengths = _strengths(front)
    named = next((point for point in strengths if point.row == best), None)
    text = f"best: {name}" if named else name
    named = named or min(strengths, key=point_cost, default=None)
    unknown = Interval()
    return drawing.Series(
        front.family,
        [point.error for point in front.points],
        [point.leakage for point in front.points],
        look,
        "%{text}<br>leakage %{y:.1%}, error %{x:.1%}",
        "",
        joined=False,
        size=12 if text != name else 10,
        looks=[*[_UNDEFENDED] * (len(front.points) - len(strengths)), *[look] * len(strengths)],
        texts=[drawing.series_name(labels[point.row]) for point in front.points],
        names=[text if point is named else "" for point in front.points],
        limits=[point.leakage_limits or unknown for point in front.points],
        limits_across=[point.error_limits or unknown for point in front.points],
    )
