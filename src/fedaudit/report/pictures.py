"""The first picture of each kind of report: figures with limits against guessing, at a glance."""

from collections.abc import Sequence

from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.report.evidence import distinct, headline, label_among, leading, look_of, says_nothing
from fedaudit.report.figures.drawing import LegendEntry, Style
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
    key,
    percent_track,
)
from fedaudit.report.grid import shortened
from fedaudit.report.tables.comparison import attacks_of, labels_of
from fedaudit.report.text.clusters import clustered_of, figure_text, group_names, label_of
from fedaudit.report.text.games import contradicted, epsilon, families, shown_points
from fedaudit.report.text.sources import Named, labels_of_named, look_of_source, on_sources
from fedaudit.report.words import (
    NO_DEFENSE,
    capital,
    contrast_meaning,
    contrast_name,
    contrast_order,
    defense_name,
    interval,
    metric_name,
    percent,
    shown,
    with_interval,
)
from fedaudit.results.clusters import EVERYBODY
from fedaudit.results.comparison import Comparison
from fedaudit.results.estimate import Estimate
from fedaudit.results.metrics import MODEL_ESTIMATE, MODEL_RISK, VIOLATIONS
from fedaudit.results.record import Record

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
    return tuple(forest for part in parts for forest in part)


def _membership(record: Record) -> Picture:
    figures = [f for f in headline(record) if f.value is not None]
    contrasts = sorted({f.contrast for f in figures}, key=contrast_order)
    if not contrasts:
        return ()
    lead = next(iter(leading(figures)), None)
    if lead is not None:
        contrasts.sort(key=lambda contrast: contrast != lead.contrast)
    defenses = sorted(distinct(f.defense for f in figures), key=lambda name: name != NO_DEFENSE)
    looks = dict(zip(defenses, (PLAIN, *DEFENDED), strict=False))
    metric = _rate_shown(figures)
    return tuple(
        _of_contrast([f for f in figures if f.contrast == contrast], contrast, metric, looks)
        for contrast in contrasts
    )


def _rate_shown(figures: Sequence[Estimate]) -> str:
    """The rate at the fewest false alarms that most attacks have; at 1% where none have any."""
    given = [f.metric for f in figures if rate_of(f.metric) is not None]
    known = sorted(distinct(given), key=lambda metric: rate_of(metric) or 0.0)
    most = max((given.count(metric) for metric in known), default=0)
    return next((metric for metric in known if 2 * given.count(metric) >= most), "tpr@0.01")


def _of_contrast(
    figures: Sequence[Estimate], contrast: str, metric: str, looks: dict[str, Style]
) -> Forest:
    aucs = [f for f in figures if f.metric == AUC]
    rates = [f for f in figures if f.metric == metric]
    best: dict[str, float] = {}
    for one in aucs or rates:
        best[one.attack] = max(best.get(one.attack, 0.0), one.value or 0.0)
    names = sorted(best, key=lambda attack: -best[attack])[:MOST_LINES]
    tracks = (
        half_track("AUC", _reaches(aucs), shares=False),
        percent_track(metric_name(metric), _reaches(rates), guess=rate_of(metric)),
    )
    lines = []
    for attack in names:
        cells = [
            [one for one in part if one.attack == attack and one.defense in looks]
            for part in (aucs, rates)
        ]
        marks = tuple(_marks(cell, looks) for cell in cells)
        shown_ = [_largest(cell) for cell in cells]
        lines.append(
            Line(
                shortened(attack, 30),
                marks,
                tuple(_value(one) for one in shown_),
                tuple(_limits(one) for one in shown_),
                "" if shown_[0] is None else look_of(shown_[0]).tone,
            )
        )
    keys = tuple(key(shortened(defense_name(name)), look) for name, look in looks.items())
    return Forest(
        "Attacks against guessing",
        f"members v. {contrast_name(contrast).lower()}",
        f"AUC and {metric_name(metric)} of every attack on {contrast_meaning(contrast)}, with 95% "
        "intervals; the dashed line is guessing. ▲ above it after correction.",
        tracks,
        tuple(lines),
        keys if len(keys) > 1 else (),
    )


def _marks(figures: Sequence[Estimate], looks: dict[str, Style]) -> tuple[Mark, ...]:
    order = list(looks)
    return tuple(
        Mark(
            one.value or 0.0,
            one.low,
            one.high,
            looks[one.defense],
            " · ".join(
                part
                for part in (
                    f"{shortened(one.attack)}, {shortened(defense_name(one.defense))}",
                    label_among(one, list(figures)),
                    f"{metric_name(one.metric)} {with_interval(one)}",
                )
                if part
            ),
        )
        for one in sorted(figures, key=lambda one: order.index(one.defense))
    )


def _largest(figures: Sequence[Estimate]) -> Estimate | None:
    """The figure whose value stands beside a row: without a defense, the largest lower limit."""
    plain = [one for one in figures if one.defense == NO_DEFENSE] or list(figures)
    return max(plain, key=lambda one: (one.low or 0.0, one.value or 0.0), default=None)


def _value(one: Estimate | None) -> str:
    return "" if one is None else f"{look_of(one).sign}{shown(one.value, one.metric)}"


def _limits(one: Estimate | None) -> str:
    return "" if one is None else interval(one.low, one.high, one.metric)


def _reaches(figures: Sequence[Estimate]) -> list[float]:
    return [
        limit for one in figures for limit in (one.value, one.low, one.high) if limit is not None
    ]


def _sources(record: Record) -> Picture:
    named = on_sources(record)
    if not named:
        return ()
    values = [one.success.number if one.success.high is None else one.success.high for one in named]
    chances = {round(one.chance, 6) for one in named}
    track = percent_track(
        "Attack success rate",
        [*values, *(one.baseline or 0.0 for one in named)],
        guess=max(chances) if len(chances) == 1 else None,
    )
    lines = []
    labels = labels_of_named(named)
    for one, label in sorted(zip(named, labels, strict=True), key=lambda p: -p[0].success.number):
        success = one.success
        look = PLAIN if success.defense in ("", NO_DEFENSE) else DEFENDED[0]
        limits = interval(success.low, success.high, "accuracy")
        said = f"{label}: success {percent(success.number)} {f'({limits})' if limits else ''}"
        marks = [Mark(success.number, success.low, success.high, look, said.strip())]
        beside = f"label distributions alone {percent(one.mixes)}"
        if one.baseline is not None:
            beside = f"baseline {percent(one.baseline)}"
            said = f"label-distribution baseline {percent(one.baseline)}"
            marks.append(Mark(one.baseline, None, None, BASELINE, said))
        mark = look_of_source(one)
        lines.append(
            Line(
                shortened(label, 40),
                (tuple(marks),),
                (f"{mark.sign}{percent(success.number)}",),
                (f"{limits} · {beside}" if limits else beside,),
                mark.tone,
            )
        )
    keys = [key("attack", PLAIN)]
    if any(one.success.defense not in ("", NO_DEFENSE) for one in named):
        keys.append(key("with a defense", DEFENDED[0]))
    if any(one.baseline is not None for one in named):
        keys.append(key("label-distribution baseline, without any model", BASELINE))
    return _alone(
        "Source inference against guessing",
        "source inference",
        "Share of samples whose client each attack names, with 95% intervals, beside what the "
        "clients’ label distributions give away alone; the dashed line is guessing.",
        (track,),
        tuple(lines[:MOST_LINES]),
        tuple(keys) if len(keys) > 1 else (),
    )


def _clusters(record: Record) -> Picture:
    studies = clustered_of(record)
    lines, values, shares = [], [], []
    for one in studies:
        sizes = dict.fromkeys(group_names(one), 0)
        run = one.runs[0]
        for group in run.group:
            sizes[run.group_names[group]] += 1
        for name in group_names(one):
            risk, guess = one.mean(MODEL_RISK, name), one.mean(MODEL_ESTIMATE, name)
            if risk is None:
                continue
            above = one.mean(VIOLATIONS, name if len(sizes) > 1 else EVERYBODY)
            label = " · ".join(
                part
                for part in (f"{capital(shortened(name, 24))}’s model", label_of(one, studies))
                if part
            )
            limits = interval(risk.low, risk.high, "accuracy")
            said = f"{label}: risk {percent(risk.number)}" + (f" ({limits})" if limits else "")
            marks = [Mark(risk.number, risk.low, risk.high, PLAIN, said)]
            values += [v for v in (risk.value, risk.low, risk.high) if v is not None]
            if guess is not None:
                told = f"{label}: estimated {percent(guess.number)}"
                marks.append(Mark(guess.number, None, None, BASELINE, told))
                values.append(guess.number)
            share = above.number / sizes[name] if above is not None and sizes[name] else None
            shares += [] if share is None else [share]
            many = "" if above is None else f"{figure_text(above)} of {sizes[name]}"
            lines.append(
                Line(
                    label,
                    (
                        tuple(marks),
                        ()
                        if share is None
                        else (Mark(share, None, None, DEFENDED[0], f"{label}: {many} clients"),),
                    ),
                    (percent(risk.number), many),
                    (limits, "" if share is None else percent(share)),
                )
            )
    if not lines:
        return ()
    return _alone(
        "Membership risk by model",
        "membership risk by model",
        "Balanced accuracy of membership inference on each group’s model, with 95% intervals (the "
        "dashed line is guessing), and the clients that accept less risk than their model has.",
        (
            half_track("Risk of the model", values, shares=True),
            percent_track("Clients above what they accept", [1.0], guess=None),
        ),
        tuple(lines[:MOST_LINES]),
        (key("measured", PLAIN), key("estimated by the server", BASELINE)),
    )


def games_picture(record: Record) -> Picture:
    """Success of the server against guessing, a row a mechanism or defense, a mark a point."""
    lines, values = [], []
    groups = families(shown_points(record.games))
    for name, inside in list(groups.items())[:MOST_LINES]:
        marks = []
        for one in inside:
            adv, wrong = one.point.adv, contradicted(one.point)
            limits = interval(adv.low, adv.high, "accuracy")
            look = DEFENDED[0] if wrong else PLAIN
            said = f"{shortened(one.name, 80)}: right in {percent(adv.value)} ({limits})"
            marks.append(Mark(adv.value, adv.low, adv.high, look, said))
            values += [adv.low, adv.high]
        ordered = sorted(inside, key=lambda one: one.point.adv.value)
        ends = [ordered[0], ordered[-1]][: len(inside)]
        shares = list(dict.fromkeys(percent(one.point.adv.value) for one in ends))
        budgets = [b for one in inside if (b := one.point.claimed_epsilon) is not None]
        many = f"{len(inside)} points" if len(inside) > 1 else ""
        first = ends[0].point.adv
        limits = many or interval(first.low, first.high, "accuracy")
        if budgets and len(inside) > 1:
            limits = f"claimed ε {epsilon(min(budgets))} to {epsilon(max(budgets))}"
        lines.append(
            Line(shortened(name, 60), (tuple(marks),), (" to ".join(shares),), (limits,), "")
        )
    wrong = any(contradicted(one.point) for one in shown_points(record.games))
    keys = (key("success", PLAIN), key("contradicts its ε or noise bound", DEFENDED[0]))
    left = len(groups) - len(lines)
    return _alone(
        "Success of the server against guessing",
        "success",
        "Share of games in which the server is right about a record, with 95% intervals; a mark a "
        "point, the dashed line is guessing."
        + (f" {left} more rows are in the tables." if left else ""),
        (half_track("Attack success rate", values, shares=True),),
        tuple(lines),
        keys if wrong else (),
    )


def comparison_picture(comparison: Comparison) -> Picture:
    """Rows side by side for comparisons without a front: of sources, else of models' risk."""
    labels = labels_of(comparison)
    lines: list[Line] = []
    reaches: list[float] = []
    best: dict[int, Named] = {}
    for row in range(len(comparison.rows)):
        for one in attacks_of(comparison, row):
            if row not in best or one.success.number > best[row].success.number:
                best[row] = one
    for row, one in best.items():
        success, sign = one.success, look_of_source(one)
        limits = interval(success.low, success.high, "accuracy")
        said = f"{labels[row]}, {success.attack}: success {percent(success.number)} ({limits})"
        marks = [Mark(success.number, success.low, success.high, PLAIN, said)]
        reaches.append(success.number if success.high is None else success.high)
        if one.baseline is not None:
            told = f"label-distribution baseline {percent(one.baseline)}"
            marks.append(Mark(one.baseline, None, None, BASELINE, told))
            reaches.append(one.baseline)
        value = f"{sign.sign}{percent(success.number)}"
        name = shortened(labels[row], 60)
        lines.append(Line(name, (tuple(marks),), (value,), (limits,), sign.tone))
    if lines:
        guess = max(one.chance for one in best.values())
        track = percent_track("Attack success rate", reaches, guess=guess)
        return _alone(
            "Source inference, row by row",
            "success",
            "Success of the strongest attack of each row, with 95% intervals; the dashed line is "
            "guessing.",
            (track,),
            tuple(lines[:MOST_LINES]),
            (key("strongest attack", PLAIN), key("label-distribution baseline", BASELINE)),
        )
    for entry in comparison.on("clusters", MODEL_RISK):
        risk = entry.figure
        limits = interval(risk.low, risk.high, "accuracy")
        label = f"{shortened(labels[entry.row], 50)} · {shortened(risk.group, 24)}’s model"
        marks = [Mark(risk.number, risk.low, risk.high, PLAIN, f"{label}: {percent(risk.number)}")]
        reaches += [v for v in (risk.value, risk.low, risk.high) if v is not None]
        lines.append(Line(label, (tuple(marks),), (percent(risk.number),), (limits,)))
    if not lines:
        return ()
    return _alone(
        "Membership risk by model, row by row",
        "risk",
        "Balanced accuracy of membership inference on each group’s model, with 95% intervals; the "
        "dashed line is guessing.",
        (half_track("Risk of the model", reaches, shares=True),),
        tuple(lines),
    )


def _alone(
    title: str,
    label: str,
    caption: str,
    tracks: tuple[Track, ...],
    lines: tuple[Line, ...],
    keys: tuple[LegendEntry, ...] = (),
) -> Picture:
    return (Forest(title, label, caption, tracks, lines, keys),)
