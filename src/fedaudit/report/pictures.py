"""The first picture of each kind of report: figures with limits against guessing, at a glance."""

from collections.abc import Mapping, Sequence

from fedaudit.core.metric_names import (
    AUC,
    rate_of,
    tpr_at,
)
from fedaudit.report import words
from fedaudit.report.clusters import Clustered, clustered_of, group_names, label_of, risk_size
from fedaudit.report.comparison.tables import attacks_of
from fedaudit.report.comparison.tradeoffs import clients_of, labels_of, strongest_entry, tradeoffs
from fedaudit.report.deciding.clients import are_several, name_of
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.evidence import (
    Setting,
    by_contrast,
    distinct,
    grouped,
    labels_among,
    leading,
    look_of,
    says_nothing,
    setting_of,
    tone_of,
)
from fedaudit.report.figures.drawing import OKABE_ITO, Style
from fedaudit.report.figures.forest import (
    BASELINE,
    DEFENDED,
    PLAIN,
    Forest,
    Line,
    Mark,
    Picture,
    Track,
    forest,
)
from fedaudit.report.grid import cut_within, shortened
from fedaudit.report.sources import Named, labels_of_named, look_of_source, on_sources
from fedaudit.report.verdict import figures_by_side
from fedaudit.results.clusters import EVERYBODY
from fedaudit.results.comparison import STRONGEST_ATTACK, AttackEntry, Comparison
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.metrics import MODEL_ESTIMATE, MODEL_RISK, TEST_ACCURACY, VIOLATIONS
from fedaudit.results.record import Record
from fedaudit.results.unlearning import unlearning_rows

ACCEPTS = Style(OKABE_ITO[2], symbol="circle")
ACCEPTS_LESS = Style(OKABE_ITO[1], symbol="triangle-down")


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


def _mark(one: Estimate, look: Style, name: str) -> Mark:
    limits = words.interval_of(one)
    said = f"{name} {words.value_of(one)}" + f" ({limits})" * bool(limits)
    return Mark(one.value or 0.0, one.low, one.high, look, said)


def _entry_mark(one: AttackEntry, text: str) -> Mark:
    return Mark(one.value or 0.0, one.low, one.high, PLAIN, text)


def _dot(value: float | None, look: Style, name: str, size: float = 9.0) -> tuple[Mark, ...]:
    """Return the mark of a share without limits; none if it is not known."""
    said = "" if value is None else f"{name} {words.percent(value)}"
    return () if value is None else (Mark(value, None, None, look, said, size),)


def _deletion(record: Record) -> Picture:
    settings = record.config.get("unlearning")
    margin = settings.get("margin") if isinstance(settings, dict) else None
    looks = {"after": PLAIN, "retrained": DEFENDED[1], "before": BASELINE}
    lines = []
    for row in unlearning_rows(record):
        name, middle = shortened(row.after.attack, 30), row.retrained.number
        points = zip((row.after, row.retrained, row.before), looks.items(), strict=True)
        marks = tuple(_mark(one, look, f"{name} {when}: AUC") for one, (when, look) in points)
        beside = f"retrained {words.value_of(row.retrained)}, before {words.value_of(row.before)}"
        band = (middle - margin, middle + margin) if isinstance(margin, float) else None
        lines.append(Line(name, (marks,), (words.value_of(row.after),), (beside,), band=band))
    if not lines:
        return ()
    caption = (
        "AUC of each attack on deleted against unseen samples, with 95% intervals. Deleted samples "
        "are forgotten if the AUC after deletion is within the margin (dashed box) of the model "
        "that was retrained without them."
    )
    title = "Deleted samples before and after deletion"
    track = Track("AUC", guess=0.5)
    return (forest(title, "after deletion", caption, (track,), lines, looks),)


def _epsilons(record: Record) -> Picture:
    bounds = next(iter(shown_bounds(record)), None)
    if bounds is None:
        return ()
    rows = [(words.capital(one.assumes or "measured"), one.bound, True) for one in bounds.measured]
    claims = {words.capital(bounds.word): bounds.claim, "Claimed, as deployed": bounds.deployed}
    claimed = [(name, one, False) for name, one in claims.items() if one is not None]
    lines = [_epsilon_line(*row) for row in rows + claimed]
    title, looks = f"Epsilon of {bounds.unit}: lower bounds", {"measured at least": PLAIN}
    caption = (
        "A measured epsilon is a lower bound: the line to its right is what it leaves possible."
    )
    if claimed:
        title = f"Epsilon of {bounds.unit}: measured against claimed"
        looks["claimed at most"] = DEFENDED[0]
        caption += " A claimed one is an upper bound. A measured bound above a claim refutes it."
    return (forest(title, "epsilon", caption, (Track("ε"),), lines, looks),)


def _epsilon_line(name: str, one: Estimate, is_bound: bool) -> Line:
    text = words.number(one.number)
    low, high = (one.number, None) if is_bound else (None, one.number)
    mark = Mark(one.number, low, high, PLAIN if is_bound else DEFENDED[0], f"{name}: {text}")
    most = "" if one.ceiling is None else f"at most {words.number(one.ceiling)} could be shown"
    return Line(name, ((mark,),), (f"{'≥' if is_bound else '≤'} {text}",), (most,))


def _membership(record: Record) -> Picture:
    """Attacks by contrast; of a partly defended run the defended clients before the others."""
    forests = []
    for side, every in figures_by_side(record).items():
        figures = [one for one in every if one.value is not None]
        found, lead = by_contrast(figures), leading(figures)
        # That of the figure which leads the verdict stands in front.
        for contrast in sorted(found, key=lambda name: bool(lead) and name != lead[0].contrast):
            title = "Attacks against guessing" + f": {side}" * bool(side)
            forests.append(_of_contrast(title, found[contrast], contrast, figures))
    return tuple(forests)


def _rate_shown(figures: Sequence[Estimate]) -> str:
    """The rate at the fewest false alarms that most attacks have; at 1% where none have any."""
    rates = [f.metric for f in figures if rate_of(f.metric) is not None]
    known = sorted(distinct(rates), key=lambda metric: rate_of(metric) or 0.0)
    most = max((rates.count(metric) for metric in known), default=0)
    return next((metric for metric in known if 2 * rates.count(metric) >= most), tpr_at(0.01))


def _of_contrast(
    title: str, figures: Sequence[Estimate], contrast: str, every: Sequence[Estimate]
) -> Forest:
    defenses = sorted(distinct(f.defense for f in every), key=lambda name: name != NO_DEFENSE)
    looks = dict(zip(defenses, (PLAIN, *DEFENDED), strict=False))
    several, labels = are_several(figures), labels_among(figures)

    def row_of(one: Estimate) -> tuple[str, int | None]:
        # A bar for each client would have no name in a row of all clients.
        return one.attack, one.target if several else None

    drawn = [one for one in figures if one.defense in looks]
    rate = _rate_shown(every)
    parts = {AUC: Track("AUC", guess=0.5), rate: Track(words.metric_name(rate), "%", rate_of(rate))}
    by_row = {m: grouped((f for f in drawn if f.metric == m), row_of) for m in parts}
    # A metric that was refused throughout has no track of its own.
    tracks = {metric: track for metric, track in parts.items() if by_row[metric]}
    lines = []
    first = next(iter(tracks), AUC)
    best = {row: max(one.number for one in same) for row, same in by_row[first].items()}
    for row in sorted(best, key=lambda row: (several and row[1] is not None, -best[row])):
        cells = [by_row[metric].get(row, []) for metric in tracks]
        shown = [_largest(cell) for cell in cells]
        name = shortened(row[0], 30)
        if several:
            name = f"{cut_within(name_of(cells[0][0], figures), 40)} · {name}"
        lines.append(
            Line(
                name,
                tuple(_marks(cell, looks, labels) for cell in cells),
                tuple(
                    f"{look_of(one).sign}{words.value_of(one)}" if one else words.MISSING
                    for one in shown
                ),
                tuple(words.interval_of(one) if one else "" for one in shown),
                look_of(shown[0]).tone if shown[0] else "",
            )
        )
    caption = (
        f"Every attack{' and client' * several} on "
        f"{words.contrast_meaning(contrast, figures[0].unit)}, with 95% intervals; dashed: "
        "guessing; ▲ above it after correction."
    )
    if not any(one.fair for one in figures):
        caption += f" {words.capital(words.NO_FAIR_DRAW)}."
    caption += f" ✗ {NOT_RELIED_ON}." * any(one.doubt for one in figures)
    named = {shortened(words.defense_name(name)): look for name, look in looks.items()}
    label = f"members {words.against(contrast)}"
    return forest(title, label, caption, tuple(tracks.values()), lines, named)


def _marks(
    figures: Sequence[Estimate], looks: Mapping[str, Style], labels: Mapping[Setting, str]
) -> tuple[Mark, ...]:
    order, marks = list(looks), []
    for one in sorted(figures, key=lambda one: order.index(one.defense)):
        name = f"{shortened(one.attack)}, {shortened(words.defense_name(one.defense))}"
        parts = (name, labels[setting_of(one)], words.metric_name(one.metric))
        marks.append(_mark(one, looks[one.defense], " · ".join(filter(None, parts))))
    return tuple(marks)


def _largest(figures: Sequence[Estimate]) -> Estimate | None:
    plain = [one for one in figures if one.defense == NO_DEFENSE] or list(figures)
    return max(plain, key=lambda one: (one.low or 0.0, one.value or 0.0), default=None)


_LABELS_ALONE = "label distributions alone"


def _source_line(name: str, said: str, one: Named, look: Style) -> Line:
    sign, limits = look_of_source(one), words.interval_of(one.success)
    marks = (
        _mark(one.success, look, f"{said}: success"),
        *_dot(one.mixes, BASELINE, _LABELS_ALONE),
    )
    other = one.on_fair_draw
    fair = f"on the fair draw {words.percent(other.number)}" if other else ""
    beside = " · ".join(filter(None, (limits, f"labels alone {words.percent(one.mixes)}", fair)))
    value = f"{sign.sign}{words.value_of(one.success)}"
    return Line(name, (marks,), (value,), (beside,), sign.tone)


def _sources(record: Record) -> Picture:
    named = on_sources(record)
    if not named:
        return ()
    pairs = zip(named, labels_of_named(named), strict=True)
    lines, looks = [], {}
    for one, label in sorted(pairs, key=lambda pair: -pair[0].success.number):
        is_plain = one.success.defense in ("", NO_DEFENSE)
        look = PLAIN if is_plain else DEFENDED[0]
        looks["attack" if is_plain else "attack, with a defense"] = look
        lines.append(_source_line(shortened(label, 40), label, one, look))
    chances = {round(one.chance, 6) for one in named}
    track = Track("Attack success rate", "%", max(chances) if len(chances) == 1 else None)
    caption = (
        "Share of samples whose client each attack names, with 95% intervals, beside what the "
        "clients’ label distributions alone explain; the dashed line is guessing."
    )
    looks[_LABELS_ALONE] = BASELINE
    title = "Source inference against guessing"
    return (forest(title, "source inference", caption, (track,), lines, looks),)


_RISK = Track("Risk of the model", "%", 0.5)


def _clusters(record: Record) -> Picture:
    studies = clustered_of(record)
    found = (
        _model_line(one, name, label_of(one, studies))
        for one in studies
        for name in group_names(one)
    )
    lines = [line for line in found if line]
    if not lines:
        return ()
    caption = (
        "Balanced accuracy of membership inference on each group’s model, with 95% intervals; "
        "dashed: guessing. Small marks: the risk that each of its clients accepts."
    )
    looks = {
        "measured": PLAIN,
        "estimated by the server": BASELINE,
        "a client accepts": ACCEPTS,
        "accepts less: a violation": ACCEPTS_LESS,
    }
    title = "Membership risk by model"
    tracks = (_RISK, Track("Clients above what they accept", "%", high=1.0))
    return (forest(title, title.lower(), caption, tracks, lines, looks),)


def _model_line(one: Clustered, name: str, study: str) -> Line | None:
    """Risk of a group's model, and its clients that accept less; None without a risk."""
    run, risk, guess = one.runs[0], one.mean(MODEL_RISK, name), one.mean(MODEL_ESTIMATE, name)
    if risk is None:
        return None
    label = " · ".join(filter(None, (f"{words.capital(shortened(name, 24))}’s model", study)))
    marks = [_mark(risk, PLAIN, f"{label}: risk")]
    marks += _dot(guess.value if guess else None, BASELINE, f"{label}: estimated")
    inside = zip(run.clients, run.thresholds, run.group, strict=True)
    accepted = {c: most for c, most, group in inside if run.group_names[group] == name}
    for client, most in accepted.items():
        look = ACCEPTS_LESS if most < risk.number else ACCEPTS
        marks += _dot(most, look, f"{words.client_name(client)} accepts", 4.0)
    above = one.mean(VIOLATIONS, name if len(group_names(one)) > 1 else EVERYBODY)
    clients = len(accepted)
    share = above.number / clients if above is not None and clients else None
    many = "" if above is None else f"{words.value_of(above)} of {clients}"
    leak = risk_size(risk)
    return Line(
        label,
        (tuple(marks), _dot(share, DEFENDED[0], f"{label}: {many} clients,")),
        (f"{'▲ ' * bool(leak)}{words.value_of(risk)}", many),
        (words.interval_of(risk), words.given(share) or ""),
        tone_of(leak) if leak else "",
    )


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
    track = Track("Attack success rate", "%", max(one.chance for one in best.values()))
    title, label = "Source inference, row by row", "source inference, row by row"
    caption = (
        "Success of the strongest attack of each row, with 95% intervals; the dashed line is "
        "guessing."
    )
    looks = {"strongest attack": PLAIN, _LABELS_ALONE: BASELINE}
    return (forest(title, label, caption, (track,), lines, looks),)


def _cluster_rows(comparison: Comparison, labels: Sequence[str]) -> Picture:
    lines = []
    for entry in comparison.on("clusters", MODEL_RISK):
        risk = entry.figure
        model = f"{shortened(risk.algorithm, 24)}, {shortened(risk.group, 24)}’s model"
        label = f"{model} · {shortened(labels[entry.row], 50)}"
        mark = _mark(risk, PLAIN, f"{label}:")
        lines.append(Line(label, ((mark,),), (words.value_of(risk),), (words.interval_of(risk),)))
    caption = (
        "Balanced accuracy of membership inference on each group’s model, with 95% intervals; the "
        "dashed line is guessing."
    )
    title = "Membership risk by model, row by row"
    label = "risk by model, row by row"
    return (forest(title, label, caption, (_RISK,), lines),) if lines else ()


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
        marks = (
            () if best is None else (_entry_mark(best, f"{label}: AUC {auc} ({limits})"),),
            () if right is None else (_mark(right, PLAIN, f"{label}: accuracy"),),
        )
        ranges = (limits, words.interval_of(right) if right else "")
        lines.append(Line(label, marks, (auc, accuracy), ranges))
    caption = (
        "Strongest attack of each row and test accuracy, with 95% intervals; dashed: guessing; ▲ "
        "above it."
    )
    tracks = (Track("Strongest AUC", guess=0.5), Track("Test accuracy", "%", high=1.0))
    title = f"Rows, members {words.against(contrast)}"
    return (forest(title, COMPARED, caption, tracks, lines),)
