"""The first picture of each kind of report: figures with limits against guessing, at a glance."""

from collections.abc import Mapping, Sequence

from fedaudit.core.metric_names import (
    AUC,
    SECURE_SUM_EPSILON,
    SECURE_SUM_EPSILON_IF_GAUSSIAN,
    rate_of,
)
from fedaudit.report import words
from fedaudit.report.clusters import Clustered, clustered_of, group_names, label_of, risk_size
from fedaudit.report.comparison.tables import attacks_of
from fedaudit.report.comparison.tradeoffs import clients_of, labels_of, strongest_entry, tradeoffs
from fedaudit.report.deciding.clients import are_several, name_of
from fedaudit.report.evidence import (
    by_contrast,
    client_epsilon,
    distinct,
    given_over_all_runs,
    grouped,
    labels_among,
    leading,
    look_of,
    says_nothing,
    setting_of,
    single_samples,
    tone_of,
)
from fedaudit.report.figures.drawing import OKABE_ITO, LegendEntry, Style, WithLimits, legend
from fedaudit.report.figures.forest import (
    BASELINE,
    DEFENDED,
    PLAIN,
    Forest,
    Line,
    Mark,
    Picture,
    Track,
    half_track,
    number_track,
    percent_track,
)
from fedaudit.report.grid import cut_within, shortened
from fedaudit.report.sources import Named, labels_of_named, look_of_source, on_sources
from fedaudit.report.text.points import ShownPoint, contradicted, epsilon, families, shown_points
from fedaudit.report.verdict import canary_bound, figures_by_side
from fedaudit.results.clusters import EVERYBODY
from fedaudit.results.comparison import STRONGEST_ATTACK, Comparison
from fedaudit.results.doubts import NOT_RELIED_ON
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.metrics import MODEL_ESTIMATE, MODEL_RISK, TEST_ACCURACY, VIOLATIONS
from fedaudit.results.record import Record
from fedaudit.results.unlearning import unlearning_rows

ACCEPTS = Style(OKABE_ITO[2], symbol="circle")
ACCEPTS_LESS = Style(OKABE_ITO[1], symbol="triangle-down")

MOST_LINES = 20
"""Rows of a picture at most; the tables have the others."""


def first_picture(record: Record, *, topics: Sequence[str] = ()) -> Picture:
    """The first picture of a record; empty where it has no figures that say anything.

    Args:
        record: The record.
        topics: "membership", "sources" and "clusters" in the order in which they are to stand.
    """
    if says_nothing(record):
        return ()
    made = {"membership": _membership, "sources": _sources, "clusters": _clusters}
    parts = [made[topic](record) for topic in topics or made]
    # What a study of deletion, canaries or a round's sum was made for comes first.
    return tuple(f for part in (_deletion(record), _epsilons(record), *parts) for f in part)


def _deletion(record: Record) -> Picture:
    settings = record.config.get("unlearning")
    margin = settings.get("margin") if isinstance(settings, dict) else None
    looks = {"after": PLAIN, "retrained": DEFENDED[1], "before": BASELINE}
    lines = []
    for row in unlearning_rows(record):
        name, middle = shortened(row.after.attack, 30), row.retrained.number
        points = {"after": row.after, "retrained": row.retrained, "before": row.before}
        marks = tuple(
            _mark(one, looks[point], _with_limits(f"{name} {point}: AUC", one))
            for point, one in points.items()
        )
        others = f"retrained {words.value_of(row.retrained)}, before {words.value_of(row.before)}"
        band = (middle - margin, middle + margin) if isinstance(margin, float) else None
        lines.append(Line(name, (marks,), (words.value_of(row.after),), (others,), band=band))
    if not lines:
        return ()
    return _alone(
        "Deleted samples before and after deletion",
        "after deletion",
        "AUC of each attack on deleted against unseen samples, with 95% intervals. Deleted samples "
        "are forgotten if the AUC after deletion is within the margin (dashed box) of the model "
        "that was retrained without them.",
        (half_track("AUC", _reached(lines), shares=False),),
        lines,
        looks,
    )


def _epsilons(record: Record) -> Picture:
    canary, client = canary_bound(record), client_epsilon(record)
    sums = [
        given_over_all_runs(record, metric)
        for metric in (SECURE_SUM_EPSILON, SECURE_SUM_EPSILON_IF_GAUSSIAN)
    ]
    measured: list[tuple[str, Estimate | None]] = []
    claimed: list[tuple[str, Estimate | None]] = []
    if canary is not None:
        measured = [
            ("Measured, one canary sample", canary.measured),
            ("If the mechanism is Gaussian", canary.if_gaussian),
            ("If scores are normal", canary.if_normal),
        ]
        claimed = [("Proven", canary.claimed)]
    elif client.best is not None:
        measured = [("Measured, from coins", client.coins), ("If Gaussian", client.gaussian)]
        claimed = [("Claimed, as audited", client.claimed), ("Claimed, as deployed", client.alone)]
    elif sums[0] is not None:
        measured = [("Measured, one round’s sum", sums[0]), ("If noise is normal", sums[1])]
    rows = [(name, one, True) for name, one in measured if one is not None]
    rows += [(name, one, False) for name, one in claimed if one is not None]
    if not rows:
        return ()
    most = 1.3 * max(one.number for _, one, _ in rows)
    lines = [_epsilon_line(name, one, is_bound) for name, one, is_bound in rows]
    return _alone(
        "Epsilon: measured against claimed",
        "epsilon",
        "A measured epsilon is a lower bound: the line to its right is what it leaves possible. A "
        "claimed one is an upper bound. A measured bound above a claim refutes it.",
        (number_track("ε", most),),
        lines,
        {"measured at least": PLAIN, "claimed at most": DEFENDED[0]},
    )


def _epsilon_line(name: str, one: Estimate, is_bound: bool) -> Line:
    text = words.number(one.number)
    low, high = (one.number, None) if is_bound else (None, one.number)
    mark = Mark(one.number, low, high, PLAIN if is_bound else DEFENDED[0], f"{name}: {text}")
    most = "" if one.ceiling is None else f"at most {words.number(one.ceiling)} could be shown"
    return Line(name, ((mark,),), (f"{'≥' if is_bound else '≤'} {text}",), (most,))


def _membership(record: Record) -> Picture:
    """Attacks by contrast; of a partly defended run the defended clients before the others."""
    sides = figures_by_side(record)
    forests = [
        forest._replace(title=f"{forest.title}: {name}") if name else forest
        for name, figures in sides.items()
        for forest in _side(record, [f for f in figures if f.value is not None])
    ]
    return tuple(forests)


def _side(record: Record, figures: list[Estimate]) -> Picture:
    if not figures:
        return ()
    found, lead = by_contrast(figures), leading(figures)
    defenses = sorted(distinct(f.defense for f in figures), key=lambda name: name != NO_DEFENSE)
    looks = dict(zip(defenses, (PLAIN, *DEFENDED), strict=False))
    metric = _rate_shown(figures)
    singles = [f for f in single_samples(record) if f.value is not None]
    # That of the figure which leads the verdict stands in front.
    order = sorted(found, key=lambda contrast: bool(lead) and contrast != lead[0].contrast)
    return tuple(
        _of_contrast(
            found[contrast], contrast, metric, looks, by_contrast(singles).get(contrast, [])
        )
        for contrast in order
    )


def _rate_shown(figures: Sequence[Estimate]) -> str:
    """The rate at the fewest false alarms that most attacks have; at 1% where none have any."""
    rates = [f.metric for f in figures if rate_of(f.metric) is not None]
    known = sorted(distinct(rates), key=lambda metric: rate_of(metric) or 0.0)
    most = max((rates.count(metric) for metric in known), default=0)
    return next((metric for metric in known if 2 * rates.count(metric) >= most), "tpr@0.01")


def _of_contrast(
    figures: Sequence[Estimate],
    contrast: str,
    metric: str,
    looks: dict[str, Style],
    singles: Sequence[Estimate],
) -> Forest:
    """One contrast; below the AUC of people that of their single samples."""
    aucs = [f for f in figures if f.metric == AUC]
    rates = [f for f in figures if f.metric == metric]
    several = are_several(figures)
    # A bar for each client would have no name in a row of all clients.
    rows = grouped(aucs or rates, lambda one: (one.attack, one.target if several else None))
    best = {row: max(one.number for one in same) for row, same in rows.items()}
    # A metric that was refused throughout has no track of its own.
    parts = [part for part in (aucs, rates) if part]
    lines = []
    order = sorted(best, key=lambda row: (several and row[1] is not None, -best[row]))
    for attack, target in order[:MOST_LINES]:
        cells = [
            [
                one
                for one in part
                if one.attack == attack
                and one.defense in looks
                and (not several or one.target == target)
            ]
            for part in parts
        ]
        marks = tuple(_marks(cell, looks) for cell in cells)
        beside = _of_singles(
            [
                one
                for one in singles
                if one.attack == attack and (not several or one.target == target)
            ]
        )
        if aucs:
            marks = ((*marks[0], *beside), *marks[1:])
        said = [_largest(cell) for cell in cells]
        values = tuple(
            words.MISSING if one is None else f"{look_of(one).sign}{words.value_of(one)}"
            for one in said
        )
        limits = tuple(
            "" if one is None else words.interval(one.low, one.high, one.metric) for one in said
        )
        tone = "" if said[0] is None else look_of(said[0]).tone
        row = next(one for cell in cells for one in cell)
        whose = cut_within(name_of(row, figures), 40)
        name = f"{whose} · {shortened(attack, 30)}" if several else ""
        lines.append(Line(name or shortened(attack, 30), marks, values, limits, tone))
    tracks = []
    if aucs:
        tracks.append(half_track("AUC", _reached(lines), shares=False))
    if rates:
        reached = _reached(lines, len(tracks))
        tracks.append(percent_track(words.metric_name(metric), reached, guess=rate_of(metric)))
    named_ = {shortened(words.defense_name(name)): look for name, look in looks.items()}
    if singles:
        named_ = {**(named_ if len(named_) > 1 else {"people": PLAIN}), _SINGLES: DEFENDED[0]}
    left = len(order) - len(lines)
    caveat = "" if any(one.fair for one in figures) else f" {words.capital(words.NO_FAIR_DRAW)}."
    caveat += f" ✗ {NOT_RELIED_ON}." * any(one.doubt for one in figures)
    return Forest(
        "Attacks against guessing",
        f"members {words.against(contrast)}",
        f"Every attack{' and client' * several} on "
        f"{words.contrast_meaning(contrast, figures[0].unit)}, with 95% intervals; dashed: "
        "guessing; "
        f"▲ above it after correction.{caveat}"
        + f" {words.plural(left, 'more row')} {'is' if left == 1 else 'are'} in the tables."
        * bool(left),
        tuple(tracks),
        tuple(lines),
        _keys(named_) if len(named_) > 1 else (),
    )


_SINGLES = "their samples one by one"


def _of_singles(figures: Sequence[Estimate]) -> tuple[Mark, ...]:
    return tuple(
        _mark(one, DEFENDED[0], _with_limits(f"{shortened(one.attack)}, {_SINGLES}: AUC", one))
        for one in figures
    )


def _keys(looks: Mapping[str, Style]) -> tuple[LegendEntry, ...]:
    return legend(looks, lined=False, hides=False)


def _reached(lines: Sequence[Line], track: int = 0) -> list[float]:
    marks = [mark for line in lines for mark in line.marks[track]]
    reached = [limit for mark in marks for limit in (mark.value, mark.low, mark.high)]
    return [limit for limit in reached if limit is not None]


def _marks(figures: Sequence[Estimate], looks: dict[str, Style]) -> tuple[Mark, ...]:
    order, found = list(looks), []
    labels = labels_among(figures)
    for one in sorted(figures, key=lambda one: order.index(one.defense)):
        parts = (
            f"{shortened(one.attack)}, {shortened(words.defense_name(one.defense))}",
            labels[setting_of(one)],
            f"{words.metric_name(one.metric)} {words.with_interval(one)}",
        )
        found.append(_mark(one, looks[one.defense], " · ".join(filter(None, parts))))
    return tuple(found)


def _largest(figures: Sequence[Estimate]) -> Estimate | None:
    plain = [one for one in figures if one.defense == NO_DEFENSE] or list(figures)
    return max(plain, key=lambda one: (one.low or 0.0, one.value or 0.0), default=None)


def _with_limits(name: str, one: Estimate) -> str:
    limits = words.interval_of(one)
    return f"{name} {words.value_of(one)}" + (f" ({limits})" if limits else "")


def _mark(one: WithLimits, look: Style, said: str) -> Mark:
    return Mark(one.value or 0.0, one.low, one.high, look, said)


def _baseline(value: float | None, said: str) -> list[Mark]:
    """The mark of what an attack is held against; none where it is not known."""
    return (
        []
        if value is None
        else [Mark(value, None, None, BASELINE, f"{said} {words.percent(value)}")]
    )


def _source_line(name: str, said: str, one: Named, look: Style) -> Line:
    sign, limits = look_of_source(one), words.interval_of(one.success)
    marks = [_mark(one.success, look, _with_limits(f"{said}: success", one.success))]
    marks += _baseline(one.mixes, "label distributions alone")
    value = f"{sign.sign}{words.value_of(one.success)}"
    other = one.on_fair_draw
    fair = f"on the fair draw {words.percent(other.number)}" if other else ""
    told = " · ".join(filter(None, (limits, f"labels alone {words.percent(one.mixes)}", fair)))
    return Line(name, (tuple(marks),), (value,), (told,), sign.tone)


_LABELS_ALONE = "label distributions alone"


def _sources(record: Record) -> Picture:
    named = on_sources(record)
    if not named:
        return ()
    pairs = zip(named, labels_of_named(named), strict=True)
    lines, looks = [], {"attack": PLAIN}
    for one, label in sorted(pairs, key=lambda pair: -pair[0].success.number):
        look = PLAIN
        if one.success.defense not in ("", NO_DEFENSE):
            look = looks["with a defense"] = DEFENDED[0]
        lines.append(_source_line(shortened(label, 40), label, one, look))
    looks[_LABELS_ALONE] = BASELINE
    chances = {round(one.chance, 6) for one in named}
    guess = max(chances) if len(chances) == 1 else None
    return _alone(
        "Source inference against guessing",
        "source inference",
        "Share of samples whose client each attack names, with 95% intervals, beside what the "
        "clients’ label distributions alone explain; the dashed line is guessing.",
        (percent_track("Attack success rate", _reached(lines), guess=guess),),
        lines,
        looks,
    )


def _clusters(record: Record) -> Picture:
    studies = clustered_of(record)
    lines = [
        line
        for one in studies
        for name in group_names(one)
        if (line := _model_line(one, name, label_of(one, studies)))
    ]
    if not lines:
        return ()
    return _alone(
        "Membership risk by model",
        "membership risk by model",
        "Balanced accuracy of membership inference on each group’s model, with 95% intervals; "
        "dashed: guessing. Small marks: the risk that each of its clients accepts.",
        (
            half_track("Risk of the model", _reached(lines), shares=True),
            percent_track("Clients above what they accept", [1.0], guess=None),
        ),
        lines,
        {
            "measured": PLAIN,
            "estimated by the server": BASELINE,
            "a client accepts": ACCEPTS,
            "accepts less: a violation": ACCEPTS_LESS,
        },
    )


def _model_line(one: Clustered, name: str, study: str) -> Line | None:
    """Risk of a group's model, and its clients that accept less; None without a risk."""
    run, risk, guess = one.runs[0], one.mean(MODEL_RISK, name), one.mean(MODEL_ESTIMATE, name)
    if risk is None:
        return None
    above = one.mean(VIOLATIONS, name if len(group_names(one)) > 1 else EVERYBODY)
    label = " · ".join(filter(None, (f"{words.capital(shortened(name, 24))}’s model", study)))
    marks = [_mark(risk, PLAIN, _with_limits(f"{label}: risk", risk))]
    marks += _baseline(None if guess is None else guess.value, f"{label}: estimated")
    marks += [
        Mark(accepted, None, None, look, f"{words.client_name(client)} accepts {text}", 4.0)
        for client, accepted, group in zip(run.clients, run.thresholds, run.group, strict=True)
        if run.group_names[group] == name
        for look in (ACCEPTS_LESS if accepted < risk.number else ACCEPTS,)
        for text in (words.percent(accepted),)
    ]
    leak = risk_size(risk)
    clients = sum(run.group_names[group] == name for group in run.group)
    share = above.number / clients if above is not None and clients else None
    many = "" if above is None else f"{words.value_of(above)} of {clients}"
    over = (
        [] if share is None else [Mark(share, None, None, DEFENDED[0], f"{label}: {many} clients")]
    )
    return Line(
        label,
        (tuple(marks), tuple(over)),
        (f"{'▲ ' * bool(leak)}{words.value_of(risk)}", many),
        (words.interval_of(risk), words.given(share) or ""),
        tone_of(leak) if leak else "",
    )


def games_picture(record: Record) -> Picture:
    """Success of the server against guessing, one row per mechanism or defense."""
    groups = families(shown_points(record.games))
    lines = [_family_line(name, inside) for name, inside in list(groups.items())[:MOST_LINES]]
    wrong = any(contradicted(one.point) for one in shown_points(record.games))
    left = len(groups) - len(lines)
    return _alone(
        "Success of the server against guessing",
        "success",
        "Share of games in which the server is right about a record, with 95% intervals; one "
        "mark per point, the dashed line is guessing."
        + (f" {left} more rows are in the tables." if left else ""),
        (half_track("Attack success rate", _reached(lines), shares=True),),
        lines,
        {"success": PLAIN, "contradicts its ε or noise bound": DEFENDED[0]} if wrong else {},
    )


def _family_line(name: str, inside: Sequence[ShownPoint]) -> Line:
    marks = []
    for one in inside:
        adv, look = one.point.adv, DEFENDED[0] if contradicted(one.point) else PLAIN
        limits = words.interval(adv.low, adv.high, "accuracy")
        said = f"{shortened(one.name, 80)}: right in {words.percent(adv.value)} ({limits})"
        marks.append(_mark(adv, look, said))
    ordered = sorted((one.point.adv for one in inside), key=lambda adv: adv.value)
    shares = dict.fromkeys(words.percent(adv.value) for adv in (ordered[0], ordered[-1]))
    budgets = [b for one in inside if (b := one.point.claimed_epsilon) is not None]
    told = words.interval(ordered[0].low, ordered[0].high, "accuracy")
    if len(inside) > 1:
        after = sorted(rounds.averaged for one in inside if (rounds := one.point.rounds))
        told = f"{len(inside)} points"
        if budgets:
            told = f"claimed ε {epsilon(min(budgets))} to {epsilon(max(budgets))}"
        elif len(after) == len(inside) and after[0] < after[-1]:
            told = f"after {words.count(after[0])} to {words.count(after[-1])} rounds"
    return Line(shortened(name, 60), (tuple(marks),), (" to ".join(shares),), (told,))


def comparison_picture(comparison: Comparison) -> Picture:
    """Return rows side by side for comparisons without a front: membership, sources, clusters."""
    labels = labels_of(comparison)
    return (
        *membership_rows(comparison),
        *_source_rows(comparison, labels),
        *_cluster_rows(comparison, labels),
    )


def _source_rows(comparison: Comparison, labels: Sequence[str]) -> Picture:
    best = {
        row: max(attacks, key=lambda one: one.success.number)
        for row in range(len(labels))
        if (attacks := attacks_of(comparison, row))
    }
    if not best:
        return ()
    lines = [
        _source_line(shortened(labels[row], 60), f"{labels[row]}, {one.success.attack}", one, PLAIN)
        for row, one in best.items()
    ]
    guess = max(one.chance for one in best.values())
    return _alone(
        "Source inference, row by row",
        "source inference, row by row",
        "Success of the strongest attack of each row, with 95% intervals; the dashed line is "
        "guessing.",
        (percent_track("Attack success rate", _reached(lines), guess=guess),),
        lines,
        {"strongest attack": PLAIN, _LABELS_ALONE: BASELINE},
    )


def _cluster_rows(comparison: Comparison, labels: Sequence[str]) -> Picture:
    lines = []
    for entry in comparison.on("clusters", MODEL_RISK):
        risk = entry.figure
        model = f"{shortened(risk.algorithm, 24)}, {shortened(risk.group, 24)}’s model"
        label = f"{model} · {shortened(labels[entry.row], 50)}"
        marks = (_mark(risk, PLAIN, f"{label}: {words.value_of(risk)}"),)
        lines.append(Line(label, (marks,), (words.value_of(risk),), (words.interval_of(risk),)))
    if not lines:
        return ()
    return _alone(
        "Membership risk by model, row by row",
        "risk by model, row by row",
        "Balanced accuracy of membership inference on each group’s model, with 95% intervals; the "
        "dashed line is guessing.",
        (half_track("Risk of the model", _reached(lines), shares=True),),
        lines,
    )


COMPARED = "membership, row by row"
"""Label of the rows of a comparison on membership."""


def membership_rows(comparison: Comparison) -> Picture:
    """Return strongest AUC and test accuracy of every row; empty without AUCs."""
    strongest = [
        one
        for one in comparison.entries
        if (one.part, one.metric, one.attack) == ("inside", AUC, STRONGEST_ATTACK)
        and one.value is not None
    ]
    if not strongest:
        return ()
    fell = tradeoffs(comparison)
    largest = max(strongest, key=lambda one: one.value or 0.0)
    contrast = fell[0].contrast if fell else largest.contrast
    accuracies = {one.row: one.figure for one in comparison.on("utility", TEST_ACCURACY)}
    # The undefended row on the clients that defend, as in the front, if these are the same.
    defending = {clients_of(e) for e in strongest if comparison.rows[e.row].family != NO_DEFENSE}
    clients = defending.pop() if len(defending) == 1 else None
    lines = []
    for row, label in enumerate(labels_of(comparison)):
        best, right = strongest_entry(comparison, row, contrast, clients), accuracies.get(row)
        auc, limits, accuracy = words.MISSING, "", words.MISSING
        if best is not None:
            auc = f"{'▲ ' * bool(best.above)}{words.shown(best.value, AUC)}"
            limits = words.interval(best.low, best.high, AUC)
        if right is not None:
            accuracy = words.value_of(right)
        lines.append(
            Line(
                label,
                (
                    (_mark(best, PLAIN, f"{label}: AUC {auc} ({limits})"),) if best else (),
                    (_mark(right, PLAIN, f"{label}: accuracy {accuracy}"),) if right else (),
                ),
                (auc, accuracy),
                (limits, words.interval_of(right) if right else ""),
            )
        )
    left = len(lines) - MOST_LINES
    return _alone(
        f"Rows, members {words.against(contrast)}",
        COMPARED,
        "Strongest attack of each row and test accuracy, with 95% intervals; dashed: guessing; ▲ "
        "above it." + f" {left} more rows are in the tables." * (left > 0),
        (
            half_track("Strongest AUC", _reached(lines), shares=False),
            percent_track("Test accuracy", [1.0], guess=None),
        ),
        lines,
    )


def _alone(
    title: str,
    label: str,
    caption: str,
    tracks: tuple[Track, ...],
    lines: Sequence[Line],
    looks: Mapping[str, Style] | None = None,
) -> Picture:
    return (Forest(title, label, caption, tracks, tuple(lines[:MOST_LINES]), _keys(looks or {})),)
