"""The first picture of each kind of report: figures with limits against guessing, at a glance."""

from collections.abc import Mapping, Sequence

from fedaudit.core.metric_names import AUC, rate_of, tpr_at
from fedaudit.report import evidence, wording
from fedaudit.report.clusters import Clustered, clustered_of, group_names, label_of, risk_size
from fedaudit.report.comparison.tables import attacks_of
from fedaudit.report.comparison.tradeoffs import (
    clients_of,
    estimate_of,
    labels_of,
    strongest_entry,
    tradeoffs,
)
from fedaudit.report.deciding.clients import are_several, name_of
from fedaudit.report.deciding.deletion import WITHHELD, deletion
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.figures.drawing import OKABE_ITO, Style
from fedaudit.report.figures.forest import (
    BASELINE,
    DEFENDED,
    PLAIN,
    Line,
    Mark,
    Picture,
    Track,
    TrackCell,
    cell_of,
    forest,
    mark_of,
)
from fedaudit.report.fixed import fixed
from fedaudit.report.grid import cut_within, shortened
from fedaudit.report.sources import Named, labels_of_named, look_of_source, on_sources
from fedaudit.report.verdict import clusters_doubted, figures_by_side
from fedaudit.results.clusters import EVERYBODY
from fedaudit.results.comparison import STRONGEST_ATTACK, Comparison
from fedaudit.results.estimate import NO_DEFENSE, Estimate
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.metrics import MODEL_ESTIMATE, MODEL_RISK, TEST_ACCURACY, VIOLATIONS
from fedaudit.results.record import Record
from fedaudit.results.unlearning import unlearning_rows

ACCEPTS = Style(OKABE_ITO[2], "", "circle")
ACCEPTS_LESS = Style(OKABE_ITO[1], "", "triangle-down")


def first_picture(record: Record, *, topics: Sequence[str] = ()) -> Picture:
    """The first picture of a record; empty where it has no figures that say anything.

    Args:
        record: The record.
        topics: "membership", "sources" and "clusters" in the order in which they are to stand.
    """
    if evidence.says_nothing(record):
        return ()
    made = {"membership": _membership, "sources": _sources, "clusters": _clusters}
    parts = [made[topic](record) for topic in topics or made]
    # What a study of deletion, canaries or a round's sum was made for comes first.
    return tuple(f for part in (_deletion(record), _epsilons(record), *parts) for f in part)


def _deletion(record: Record) -> Picture:
    settings = record.config.get("unlearning")
    margin = settings.get("margin") if isinstance(settings, dict) else None
    looks = {"after": PLAIN, "retrained": DEFENDED[1], "before": BASELINE}
    found = deletion(record)
    is_withheld = found is not None and found.verdict == WITHHELD
    lines = []
    for row in unlearning_rows(record):
        if is_withheld:
            before, after, retrained = (
                figure.doubted(NOT_RELIED_ON) for figure in (row.before, row.after, row.retrained)
            )
            row = row._replace(before=before, after=after, retrained=retrained)
        name, middle = shortened(row.after.attack, 60), row.retrained.number
        figures = zip((row.after, row.retrained, row.before), looks.items(), strict=True)
        marks = [mark_of(figure, look, f"{name} {when}: AUC") for figure, (when, look) in figures]
        beside = (
            f"retrained {wording.value_of(row.retrained)}, before {wording.value_of(row.before)}"
        )
        cell = cell_of(row.after, marks)
        cell = cell if is_withheld else cell._replace(limits=beside)
        band = (middle - margin, middle + margin) if isinstance(margin, float) else None
        lines.append(Line(name, (cell,), band=band))
    title = "Deleted samples before and after deletion"
    return forest(
        title, "after deletion", fixed("pictures.deletion"), [Track("AUC", guess=0.5)], lines, looks
    )


def _epsilons(record: Record) -> Picture:
    bounds = next(iter(shown_bounds(record)), None)
    if bounds is None:
        return ()
    claims = {wording.capital(bounds.word): bounds.claim, "Claimed, as deployed": bounds.deployed}
    claimed = [(name, claim) for name, claim in claims.items() if claim is not None]
    lines = []
    for one in bounds.measured:
        name, value = wording.capital(one.assumes or "measured"), one.bound.number
        most = one.bound.ceiling
        text = "" if most is None else f"at most {wording.number(most, -1)} could be shown"
        mark = Mark(value, value, None, PLAIN, f"{name}: {wording.number(value, -1)}")
        lines.append(Line(name, (TrackCell((mark,), f"≥ {wording.number(value, -1)}", text),)))
    for name, claim in claimed:
        value = claim.number
        mark = Mark(value, None, value, DEFENDED[0], f"{name}: {wording.number(value)}")
        lines.append(Line(name, (TrackCell((mark,), f"≤ {wording.number(value)}"),)))
    kind = "measured against claimed" if claimed else "lower bounds"
    caption = fixed("pictures.claimed" if claimed else "pictures.measured")
    looks = {"measured at least": PLAIN, "claimed at most": DEFENDED[0]}
    title = f"Epsilon of {bounds.unit}: {kind}"
    return forest(title, "epsilon", caption, [Track("ε")], lines, looks)


def _membership(record: Record) -> Picture:
    """Return attacks by contrast; of a partly defended run the clients that leak most first."""
    forests: list[Picture] = []
    sides = figures_by_side(record).items()
    for side, every in sorted(sides, key=lambda item: -_leak_shown(item[1])):
        figures = [figure for figure in every if figure.value is not None]
        found, lead = evidence.by_contrast(figures), evidence.leading(figures)
        # That of the figure which leads the verdict stands in front.
        for contrast in sorted(found, key=lambda name: bool(lead) and name != lead[0].contrast):
            title = "Attacks against guessing" + f": {side}" * bool(side)
            forests.append(_of_contrast(title, side, found[contrast], figures))
    return sum(forests, ())


def _leak_shown(figures: Sequence[Estimate]) -> float:
    """Return the largest lower limit of an AUC that is relied on."""
    areas = (figure for figure in figures if figure.metric == AUC and not figure.doubt)
    return max((figure.low or 0.0 for figure in areas), default=0.0)


def _rate_shown(figures: Sequence[Estimate]) -> str:
    """The rate at the fewest false alarms that most attacks have; at 1% where none have any."""
    rates = [f.metric for f in figures if rate_of(f.metric) is not None]
    known = sorted(evidence.distinct(rates), key=lambda metric: rate_of(metric) or 0.0)
    most = max((rates.count(metric) for metric in known), default=0)
    return next((metric for metric in known if 2 * rates.count(metric) >= most), tpr_at(0.01))


def _of_contrast(
    title: str, side: str, figures: Sequence[Estimate], every: Sequence[Estimate]
) -> Picture:
    contrast, several = figures[0].contrast, are_several(figures)
    defenses = sorted(
        evidence.distinct(f.defense for f in every), key=lambda name: name != NO_DEFENSE
    )
    looks = dict(zip(defenses, (PLAIN, *DEFENDED), strict=False))
    rate, labels = _rate_shown(every), evidence.labels_among(figures)
    known = {
        AUC: Track("AUC", guess=0.5),
        rate: Track(wording.metric_name(rate), "%", rate_of(rate)),
    }
    drawn = [figure for figure in figures if figure.defense in looks and figure.metric in known]
    # A metric that was refused throughout has no track of its own.
    tracks = {m: track for m, track in known.items() if any(f.metric == m for f in drawn)}
    # A bar for each client would have no name in a row of all clients.
    rows = evidence.grouped(
        drawn, lambda figure: (figure.attack, figure.target if several else None)
    )

    lead = next(iter(tracks), AUC)

    def place(inside: Sequence[Estimate]) -> tuple[bool, float]:
        values = [figure.number for figure in inside if figure.metric == lead]
        return several and inside[0].target is not None, -max(values, default=-1.0)

    lines = []
    for inside in sorted(rows.values(), key=place):
        by_metric = {m: [figure for figure in inside if figure.metric == m] for m in tracks}
        cells = [_membership_cell(same, looks, labels) for same in by_metric.values()]
        name = shortened(inside[0].attack, 60)
        if several:
            name = f"{cut_within(name_of(inside[0], figures), 40)} · {name}"
        tone = evidence.look_of(_largest(by_metric[lead])).tone if by_metric[lead] else ""
        lines.append(Line(name, tuple(cells), tone))
    every_attack = "attack and client" if several else "attack"
    others = wording.contrast_meaning(contrast, figures[0].unit)
    caption = fixed("pictures.membership", attack=every_attack, others=others)
    if not any(figure.fair for figure in figures):
        caption += f" {wording.capital(wording.NO_FAIR_DRAW)}."
    names = {shortened(wording.defense_name(name)): look for name, look in looks.items()}
    label = f"members {wording.against(contrast)}" + f" · {side}" * bool(side)
    return forest(title, label, caption, tuple(tracks.values()), lines, names)


def _membership_cell(
    figures: Sequence[Estimate], looks: Mapping[str, Style], labels: Mapping[evidence.Setting, str]
) -> TrackCell:
    """Return the figures of an attack under each defense, and the largest undefended as text."""
    if not figures:
        return TrackCell()
    marks = []
    for figure in sorted(figures, key=lambda figure: list(looks).index(figure.defense)):
        name = f"{shortened(figure.attack)}, {shortened(wording.defense_name(figure.defense))}"
        parts = (name, labels[evidence.setting_of(figure)], wording.metric_name(figure.metric))
        marks.append(mark_of(figure, looks[figure.defense], " · ".join(filter(None, parts))))
    shown = _largest(figures)
    return cell_of(shown, marks, evidence.look_of(shown).sign)


def _largest(figures: Sequence[Estimate]) -> Estimate:
    plain = [figure for figure in figures if figure.defense == NO_DEFENSE] or figures
    return max(plain, key=lambda figure: (figure.low or 0.0, figure.value or 0.0))


def _sources(record: Record) -> Picture:
    attacks = on_sources(record)
    rows = zip(labels_of_named(attacks), attacks, strict=True)
    ordered = sorted(rows, key=lambda row: -row[1].success.number)
    return _source_rows("Source inference against guessing", "each attack", ordered)


_LABELS_ALONE = "label distributions alone"


def _source_rows(title: str, who: str, rows: Sequence[tuple[str, Named]]) -> Picture:
    """Return source attacks by the labels of their rows."""
    looks = {"attack": PLAIN, "attack, with a defense": DEFENDED[0], _LABELS_ALONE: BASELINE}
    lines = []
    for label, one in rows:
        is_plain = one.success.defense in ("", NO_DEFENSE)
        look, sign = PLAIN if is_plain else DEFENDED[0], look_of_source(one)
        level, fair = wording.percent(one.mixes), one.on_fair_draw
        labels = Mark(one.mixes, None, None, BASELINE, f"{_LABELS_ALONE} {level}")
        marks = [mark_of(one.success, look, f"{label}: success"), labels]
        cell = cell_of(one.success, marks, sign.sign)
        on_fair = f"on the fair draw {wording.percent(fair.number)}" if fair else ""
        beside = filter(None, (cell.limits, f"labels alone {level}", on_fair))
        cell = cell._replace(limits=" · ".join(beside))
        lines.append(Line(shortened(label, 60), (cell,), sign.tone))
    chances = {round(one.chance, 6) for _, one in rows}
    track = Track("Attack success rate", "%", max(chances) if len(chances) == 1 else None)
    caption = fixed("pictures.sources", attack=who)
    return forest(title, "source inference", caption, [track], lines, looks)


_RISK = Track("Risk of the model", "%", 0.5)


def _clusters(record: Record) -> Picture:
    studies, is_doubted = clustered_of(record), clusters_doubted(record)
    lines = [
        line
        for study in studies
        for name in group_names(study)
        if (line := _model_line(study, name, label_of(study, studies), is_doubted=is_doubted))
    ]
    looks = {
        "measured": PLAIN,
        "estimated by the server": BASELINE,
        "a client accepts": ACCEPTS,
        "accepts less: a violation": ACCEPTS_LESS,
    }
    caption = f"{fixed('pictures.risks')} {fixed('pictures.accepted')}"
    title = "Membership risk by model"
    return forest(title, title.lower(), caption, [_RISK], lines, looks)


def _model_line(study: Clustered, name: str, of: str, *, is_doubted: bool) -> Line | None:
    """Risk of a group's model, and its clients that accept less; None without a risk."""
    run, risk, guess = study.runs[0], study.mean(MODEL_RISK, name), study.mean(MODEL_ESTIMATE, name)
    if risk is None:
        return None
    if is_doubted:
        risk, guess = risk.doubted(NOT_RELIED_ON), None
    label = " · ".join(filter(None, (f"{wording.capital(shortened(name, 24))}’s model", of)))
    inside = zip(run.clients, run.thresholds, run.group, strict=True)
    accepted = {c: most for c, most, group in inside if run.group_names[group] == name}
    marks = [mark_of(risk, PLAIN, f"{label}: risk")]
    if guess is not None:
        marks.append(_dot(guess.number, BASELINE, f"{label}: estimated"))
    for client, most in accepted.items():
        look = ACCEPTS_LESS if most < risk.number and not is_doubted else ACCEPTS
        marks.append(_dot(most, look, f"{wording.client_name(client)} accepts", 4.0))
    leak = None if is_doubted else risk_size(risk)
    cell = cell_of(risk, marks, "▲ " * bool(leak))
    above = study.mean(VIOLATIONS, name if len(group_names(study)) > 1 else EVERYBODY)
    if above is not None and accepted and not is_doubted:
        many = f"{wording.value_of(above)} of {wording.plural(len(accepted), 'client')} above"
        cell = cell._replace(limits=" · ".join(filter(None, (cell.limits, many))))
    return Line(label, (cell,), evidence.tone_of(leak) if leak else "")


def _dot(value: float, look: Style, name: str, size: float = 9.0) -> Mark:
    """Return the mark of a share without limits."""
    return Mark(value, None, None, look, f"{name} {wording.percent(value)}", size)


def comparison_picture(comparison: Comparison, records: Sequence[Record]) -> Picture:
    """Return rows side by side for comparisons without a front: membership, sources, clusters."""
    labels = labels_of(comparison)
    best = [
        (label, max(attacks, key=lambda attack: attack.success.number))
        for row, label in enumerate(labels)
        if (attacks := attacks_of(comparison, row))
    ]
    who = "the strongest attack of each row"
    risks = []
    for entry in comparison.on("clusters", MODEL_RISK):
        figure, label = entry.figure, shortened(labels[entry.row], 50)
        model = f"{shortened(figure.algorithm, 24)}, {shortened(figure.group, 24)}’s model"
        name = f"{model} · {label}"
        risks.append(Line(name, (cell_of(figure, [mark_of(figure, PLAIN, f"{name}:")]),)))
    title = "Membership risk by model, row by row"
    return (
        *membership_rows(comparison, records),
        *_source_rows("Source inference, row by row", who, best),
        *forest(title, title.lower(), fixed("pictures.risks"), [_RISK], risks),
    )


COMPARED = "membership, row by row"
"""Label of the rows of a comparison on membership."""


def membership_rows(comparison: Comparison, records: Sequence[Record]) -> Picture:
    """Return strongest AUC and test accuracy of every row; empty without AUCs."""
    strongest = [
        entry
        for entry in comparison.entries
        if (entry.part, entry.metric, entry.attack) == ("inside", AUC, STRONGEST_ATTACK)
        and entry.value is not None
    ]
    if not strongest:
        return ()
    fell = tradeoffs(comparison)
    largest = max(strongest, key=lambda entry: entry.value or 0.0)
    contrast = fell[0].contrast if fell else largest.contrast
    accuracies = {entry.row: entry.figure for entry in comparison.on("utility", TEST_ACCURACY)}
    # The undefended row on the clients that defend, as in the front, if these are the same.
    defending = {clients_of(e) for e in strongest if comparison.rows[e.row].family != NO_DEFENSE}
    clients = defending.pop() if len(defending) == 1 else None
    lines = []
    for row, label in enumerate(labels_of(comparison)):
        cells = [TrackCell(), TrackCell()]
        if (best := strongest_entry(comparison, row, contrast, clients)) is not None:
            auc = estimate_of(best, comparison, records)
            marks = [mark_of(auc, PLAIN, f"{label}: AUC")]
            cells[0] = cell_of(auc, marks, "▲ " * bool(best.above))
        if (right := accuracies.get(row)) is not None:
            cells[1] = cell_of(right, [mark_of(right, PLAIN, f"{label}: accuracy")])
        lines.append(Line(label, tuple(cells)))
    tracks = (Track("Strongest AUC", guess=0.5), Track("Test accuracy", "%", high=1.0))
    title = f"Rows, members {wording.against(contrast)}"
    return forest(title, COMPARED, fixed("pictures.rows"), tracks, lines)
