"""First picture of each kind of report: estimates with limits, compared with the chance level."""

from collections.abc import Mapping, Sequence

from fedaudit.core.metric_names import AUC, rate_of, tpr_at
from fedaudit.formatting import wording
from fedaudit.formatting.fixed import fixed_text
from fedaudit.formatting.grid import shorten, shorten_middle
from fedaudit.report import evidence
from fedaudit.report.clusters import ClusteredRuns, clusterings, group_names, label_of, risk_size
from fedaudit.report.deciding.caveats import are_cluster_risks_doubted, estimates_by_client_group
from fedaudit.report.deciding.epsilons import shown_bounds
from fedaudit.report.deciding.membership import are_several, client_label
from fedaudit.report.figures.charts import OKABE_ITO, Axis, Style
from fedaudit.report.figures.forest import (
    BASELINE,
    DEFENDED,
    PLAIN,
    ForestRow,
    Mark,
    Picture,
    TrackCell,
    build_forest,
    mark_of,
    track_cell,
)
from fedaudit.report.sources import SourceAttack, source_attacks, source_labels, source_marker
from fedaudit.report.unlearning import WITHHELD, deletion_result
from fedaudit.results.estimate import MODEL_ESTIMATE, MODEL_RISK, NO_DEFENSE, VIOLATIONS, Estimate
from fedaudit.results.guessing import NOT_RELIED_ON
from fedaudit.results.record import Record
from fedaudit.results.runs import ALL_CLIENTS, models_of_groups, models_used_by
from fedaudit.results.unlearning import unlearning_rows


def first_picture(record: Record, *, topics: Sequence[str] = ()) -> Picture:
    """Return the picture of a record's topics; empty if its estimates show no leakage."""
    if evidence.is_uninformative(record):
        return ()
    builders = {"membership": _membership, "sources": _sources, "clusters": _clusters}
    parts = [builders[topic](record) for topic in topics or builders]
    # A study that measures deletion or epsilon is about these results, so they come first.
    pictures = (_deletion(record), _epsilons(record), *parts)
    return tuple(chart for picture in pictures for chart in picture)


_RETRAINED, _BEFORE_DELETION = DEFENDED[1], DEFENDED[2]
_CLAIMED = _WITH_DEFENSE = DEFENDED[0]


def _deletion(record: Record) -> Picture:
    margin = wording.study_setting(record, "unlearning", "margin")
    looks = {"after": PLAIN, "retrained": _RETRAINED, "before": _BEFORE_DELETION}
    decision = deletion_result(record)
    doubt = NOT_RELIED_ON if decision and decision.verdict == WITHHELD else ""
    lines = []
    for row in unlearning_rows(record):
        name, middle = shorten(row.after.attack, 60), row.retrained.number
        estimates = [
            estimate.with_doubt(doubt) for estimate in (row.after, row.retrained, row.before)
        ]
        marks = [
            mark_of(estimate, look, f"{name} {when}: AUC")
            for estimate, (when, look) in zip(estimates, looks.items(), strict=True)
        ]
        cell = track_cell(estimates[0], marks)
        if not doubt:
            retrained, before = map(wording.value_text, estimates[1:])
            cell = cell._replace(limits=f"retrained {retrained}, before {before}")
        band = (middle - margin, middle + margin) if isinstance(margin, float) else None
        lines.append(ForestRow(name, (cell,), band=band))
    title = "Deleted samples before and after deletion"
    tracks = [Axis("AUC after deletion", guess=0.5)]
    return build_forest(
        title, "after deletion", fixed_text("pictures.deletion"), tracks, lines, looks
    )


def _epsilons(record: Record) -> Picture:
    bounds = next(iter(shown_bounds(record)), None)
    if bounds is None:
        return ()
    claims = {
        wording.capitalise(bounds.claim_kind): bounds.claim,
        # Audited training includes canary clients, and deployed training does not.
        "Claimed, as deployed": bounds.deployed,
    }
    claimed = [(name, claim) for name, claim in claims.items() if claim is not None]
    lines = []
    for measured in bounds.measured:
        # A bound is called by its assumption, such as "if the mechanism is Gaussian".
        name = wording.capitalise(measured.assumption or "measured")
        value, largest_possible = measured.bound.number, measured.bound.ceiling
        text = wording.format_number(value, rounding="down")
        limits = ""
        if largest_possible is not None:
            highest = wording.format_number(largest_possible, rounding="down")
            limits = f"at most {highest} could be shown"
        mark = Mark(value, value, None, PLAIN, f"{name}: {text}")
        lines.append(ForestRow(name, (TrackCell((mark,), f"≥ {text}", limits),)))
    for name, claim in claimed:
        text = wording.format_number(claim.number)
        mark = Mark(claim.number, None, claim.number, _CLAIMED, f"{name}: {text}")
        lines.append(ForestRow(name, (TrackCell((mark,), f"≤ {text}"),)))
    kind = "measured against claimed" if claimed else "lower bounds"
    caption = fixed_text("pictures.claimed" if claimed else "pictures.measured")
    looks = {"measured at least": PLAIN, "claimed at most": _CLAIMED}
    title = f"Epsilon of {bounds.unit}: {kind}"
    return build_forest(title, "epsilon", caption, [Axis("ε")], lines, looks)


def _membership(record: Record) -> Picture:
    """Return charts of attacks by contrast, for each group of clients if some are undefended.

    The group with the larger leak is first.
    """
    picture: Picture = ()
    groups = estimates_by_client_group(record).items()
    for group, every in sorted(groups, key=lambda item: -_largest_lower_limit(item[1])):
        estimates = [estimate for estimate in every if estimate.value is not None]
        contrasts, leading = evidence.by_contrast(estimates), evidence.leading_estimates(estimates)
        # The contrast of the estimate that leads the verdict comes first.
        for contrast in sorted(
            contrasts, key=lambda name: bool(leading) and name != leading[0].contrast
        ):
            picture += _of_contrast(group, contrasts[contrast], estimates)
    return picture


def _largest_lower_limit(estimates: Sequence[Estimate]) -> float:
    aucs = (estimate for estimate in estimates if estimate.metric == AUC and not estimate.doubt)
    return max((estimate.low or 0.0 for estimate in aucs), default=0.0)


def _drawn_rate(estimates: Sequence[Estimate]) -> str:
    """Return the TPR at the lowest FPR for which enough attacks have an estimate, or else at 1 %.

    Enough means at least half as many estimates as the most frequent FPR has.
    """
    rates = [f.metric for f in estimates if rate_of(f.metric) is not None]
    ascending = sorted(evidence.unique_items(rates), key=lambda metric: rate_of(metric) or 0.0)
    highest = max((rates.count(metric) for metric in ascending), default=0)
    frequent = (metric for metric in ascending if 2 * rates.count(metric) >= highest)
    return next(frequent, tpr_at(0.01))


def _of_contrast(
    client_group: str, estimates: Sequence[Estimate], every: Sequence[Estimate]
) -> Picture:
    contrast, has_several_clients = estimates[0].contrast, are_several(estimates)
    names = evidence.unique_items(estimate.defense for estimate in every)
    defenses = sorted(names, key=lambda name: name != NO_DEFENSE)
    looks = dict(zip(defenses, (PLAIN, *DEFENDED), strict=False))
    rate, labels = _drawn_rate(every), evidence.labels_by_setting(estimates)
    rate_track = Axis(wording.metric_name(rate), form="%", guess=rate_of(rate))
    tracks = {AUC: Axis("AUC", guess=0.5), rate: rate_track}
    shown_estimates = [
        estimate
        for estimate in estimates
        if estimate.defense in looks and estimate.metric in tracks
    ]
    # A metric without values needs no track.
    tracks = {
        m: track for m, track in tracks.items() if any(f.metric == m for f in shown_estimates)
    }
    # Each client has a separate row, since marks have no names.
    rows = evidence.group_by(
        shown_estimates, lambda f: (f.attack, f.target if has_several_clients else None)
    )
    first_metric = next(iter(tracks), AUC)

    def order(row: Sequence[Estimate]) -> tuple[bool, float]:
        values = [estimate.number for estimate in row if estimate.metric == first_metric]
        return has_several_clients and row[0].target is not None, -max(values, default=-1.0)

    lines = []
    for row in sorted(rows.values(), key=order):
        by_metric = {m: [estimate for estimate in row if estimate.metric == m] for m in tracks}
        cells = [_membership_cell(same, looks, labels) for same in by_metric.values()]
        name = shorten(row[0].attack, 60)
        if has_several_clients:
            name = f"{shorten_middle(client_label(row[0], estimates), 40)} · {name}"
        of_first_metric = by_metric[first_metric]
        tone = evidence.marker_of(_largest(of_first_metric)).tone if of_first_metric else ""
        lines.append(ForestRow(name, tuple(cells), tone))
    every_attack = "attack and client" if has_several_clients else "attack"
    others = wording.contrast_meaning(contrast, estimates[0].unit)
    caption = fixed_text("pictures.membership", attack=every_attack, others=others)
    if not any(estimate.fair for estimate in estimates):
        caption += f" {wording.capitalise(fixed_text('members.unfair'))}."
    title = wording.join_parts("Attacks against guessing", client_group, by=": ")
    label = wording.join_parts(f"members {wording.nonmember_heading(contrast)}", client_group)
    by_name = {shorten(wording.defense_name(name)): look for name, look in looks.items()}
    return build_forest(title, label, caption, tuple(tracks.values()), lines, by_name)


def _membership_cell(
    estimates: Sequence[Estimate],
    looks: Mapping[str, Style],
    labels: Mapping[evidence.Setting, str],
) -> TrackCell:
    if not estimates:
        return TrackCell()
    marks = []
    for estimate in sorted(estimates, key=lambda estimate: list(looks).index(estimate.defense)):
        name = f"{shorten(estimate.attack)}, {shorten(wording.defense_name(estimate.defense))}"
        label, metric = labels[evidence.setting_of(estimate)], wording.metric_name(estimate.metric)
        marks.append(
            mark_of(estimate, looks[estimate.defense], wording.join_parts(name, label, metric))
        )
    main = _largest(estimates)
    return track_cell(main, marks, evidence.marker_of(main).sign)


def _largest(estimates: Sequence[Estimate]) -> Estimate:
    undefended = [estimate for estimate in estimates if estimate.defense == NO_DEFENSE] or estimates
    return max(undefended, key=lambda estimate: (estimate.low or 0.0, estimate.value or 0.0))


def _sources(record: Record) -> Picture:
    attacks = source_attacks(record)
    rows = zip(source_labels(attacks), attacks, strict=True)
    ordered = sorted(rows, key=lambda row: -row[1].success.number)
    return source_rows("Source inference against guessing", "each attack", ordered)


def source_rows(title: str, attack_text: str, rows: Sequence[tuple[str, SourceAttack]]) -> Picture:
    """Return a chart of attacks on sources by their labels, compared with guessing."""
    by_labels = "label distributions alone"
    looks = {"attack": PLAIN, "attack, with a defense": _WITH_DEFENSE, by_labels: BASELINE}
    lines = []
    for label, attack in rows:
        success, marker = attack.success, source_marker(attack)
        look = PLAIN if success.defense in ("", NO_DEFENSE) else _WITH_DEFENSE
        level, fair = wording.format_percent(attack.label_level), attack.on_fair_draw
        baseline_mark = Mark(attack.label_level, None, None, BASELINE, f"{by_labels} {level}")
        marks = [mark_of(success, look, f"{label}: success"), baseline_mark]
        cell = track_cell(success, marks, marker.sign)
        on_fair = f"on the fair draw {wording.format_percent(fair.number)}" if fair else ""
        cell = cell._replace(
            limits=wording.join_parts(cell.limits, f"labels alone {level}", on_fair)
        )
        lines.append(ForestRow(shorten(label, 60), (cell,), marker.tone))
    chances = {round(attack.chance, 6) for _, attack in rows}
    track = Axis("Attack success rate", form="%", guess=max(chances) if len(chances) == 1 else None)
    caption = fixed_text("pictures.sources", attack=attack_text)
    return build_forest(title, "source inference", caption, [track], lines, looks)


RISK_AXIS = Axis("Risk of the model", form="%", guess=0.5)
_ACCEPTS = Style(OKABE_ITO[2], "", "circle")
_ACCEPTS_LESS = Style(OKABE_ITO[1], "", "triangle-down")
_HAS_ANOTHER_MODEL = Style(OKABE_ITO[2], "", "circle-open")
_CLUSTER_LOOKS = {
    "measured": PLAIN,
    "estimated by the server": BASELINE,
    "a client accepts": _ACCEPTS,
    "accepts less than the risk of its model: a violation": _ACCEPTS_LESS,
    "a client that chose another model accepts": _HAS_ANOTHER_MODEL,
}


def _clusters(record: Record) -> Picture:
    studies, is_doubted = clusterings(record), are_cluster_risks_doubted(record)
    lines = [
        line
        for study in studies
        for name in group_names(study)
        if (line := _model_line(study, name, label_of(study, studies), is_doubted=is_doubted))
    ]
    caption = f"{fixed_text('pictures.risks')} {fixed_text('pictures.accepted')}"
    caption += " They are of the first seed." * any(len(study.runs) > 1 for study in studies)
    title = "Membership risk by model"
    return build_forest(title, title.lower(), caption, [RISK_AXIS], lines, _CLUSTER_LOOKS)


def _model_line(
    study: ClusteredRuns, name: str, setting: str, *, is_doubted: bool
) -> ForestRow | None:
    risk, estimated = study.mean(MODEL_RISK, name), study.mean(MODEL_ESTIMATE, name)
    if risk is None:
        return None
    if is_doubted:
        risk, estimated = risk.with_doubt(NOT_RELIED_ON), None
    label = wording.join_parts(f"{wording.capitalise(shorten(name, 24))}’s model", setting)
    marks = [mark_of(risk, PLAIN, f"{label}: risk")]
    if estimated is not None:
        text = f"{label}: estimated {wording.format_percent(estimated.number)}"
        marks.append(Mark(estimated.number, None, None, BASELINE, text))
    accepted = _accepted(study, name, is_doubted=is_doubted)
    leak_size = None if is_doubted else risk_size(risk)
    cell = track_cell(risk, [*marks, *accepted], "▲ " * bool(leak_size))
    # With a single group, only the number over all clients is stored.
    violation_count = study.mean(VIOLATIONS, name if len(group_names(study)) > 1 else ALL_CLIENTS)
    if violation_count is not None and accepted and not is_doubted:
        clients = wording.format_count(len(accepted), "client")
        count = f"{wording.value_text(violation_count)} of {clients} above"
        cell = cell._replace(limits=wording.join_parts(cell.limits, count))
    return ForestRow(label, (cell,), evidence.tone_of(leak_size) if leak_size else "")


def _accepted(study: ClusteredRuns, name: str, *, is_doubted: bool) -> list[Mark]:
    run = study.runs[0]
    group = run.group_names.index(name)
    model_index = models_of_groups(run)[group]
    group_model = None if model_index is None else run.rounds[-1].models[model_index]
    members = [index for index, other in enumerate(run.group) if other == group]
    marks = []
    for index, used_model in zip(members, models_used_by(run, group), strict=True):
        limit = run.thresholds[index]
        text = f"{wording.client_name(run.clients[index])} accepts {wording.format_percent(limit)}"
        look = _ACCEPTS if used_model is None or used_model is group_model else _HAS_ANOTHER_MODEL
        if used_model is not None and used_model is not group_model and used_model.risk is not None:
            text += f" and chose a model of risk {wording.format_percent(used_model.risk)}"
        used_risk = None if used_model is None else used_model.risk
        if used_risk is not None and used_risk > limit and not is_doubted:
            look = _ACCEPTS_LESS
        marks.append(Mark(limit, None, None, look, text, 6.0))
    return marks
