"""Figures of membership inference: ROC, signals, scores, risk by client and class, accuracy."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from fedaudit.report import words
from fedaudit.report.evidence import Key, by_contrast, distinct, grouped
from fedaudit.report.figures import drawing
from fedaudit.report.grid import shortened
from fedaudit.report.tables.membership import group_name, target_figures
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import AccuracyByRound, AttackRow, Curve, Histogram, Record, Trajectory

MOST_TOLD_APART = 4
"""Curves in colour; eight of them could not be told apart at 1% and below."""

_NEUTRAL = drawing.Style(drawing.GREY, "dot")
_PALE = drawing.Style(drawing.MUTED)
_OTHERS = "other attacks"
_LOWEST_RATE = 1e-5


def membership_figures(record: Record) -> list[drawing.Figures | None]:
    """The figures of membership; None for those that the record has no data for."""
    return [
        roc_figure(record.curves),
        trajectory_figure(record.trajectories),
        histogram_figure(record.histograms, record.attacks),
        target_figure(record),
        group_figure(record.groups, "client"),
        group_figure(record.groups, "class"),
        accuracy_figure(record.accuracies, chosen=bool(record.clusters)),
    ]


def roc_figure(curves: Sequence[Curve]) -> drawing.Figures | None:
    """Receiver operating characteristics of all attacks, a panel a contrast, both axes log.

    The strongest attacks have a colour each; the others are grey, since more than a few curves
    cannot be told apart where it matters.
    """
    if not curves:
        return None
    ranked = _ranked(curves)
    told, others = ranked[:MOST_TOLD_APART], ranked[MOST_TOLD_APART:]
    looks = {attack: drawing.style(position) for position, attack in enumerate(told)}
    floor = _floor(curves)

    def panels(inside: list[Curve]) -> tuple[drawing.Panel, ...]:
        return tuple(_roc_panel(found, looks, floor) for found in by_contrast(inside).values())

    names = "others: " + words.listed([shortened(attack) for attack in others])
    keys = (
        *drawing.legend(looks),
        *(
            drawing.legend({names: _PALE}, marked=False, series=_OTHERS, limit=200)
            if others
            else ()
        ),
        *drawing.legend({"guessing": _NEUTRAL}, marked=False, hides=False),
    )
    return drawing.Figures(
        "roc",
        "True-positive against false-positive rate, both axes logarithmic, so that the left side "
        "shows what matters: members identified at few false alarms. Dotted uprights mark "
        "false-positive rates of 0.1% and 1%; the dotted diagonal is guessing. Curves are steps "
        "through observed points, not interpolated: at the far left each step is a single sample."
        + (
            f" In colour stand the {len(told)} attacks that find most members at 1% false alarms "
            "or fewer."
            if others
            else ""
        ),
        drawing.choices_of(curves, _curve_setting, panels),
        keys,
        "square",
    )


def _ranked(curves: Sequence[Curve]) -> list[str]:
    """The attacks by the members that they find at 1% false alarms and at 0.1%, on average."""
    found = grouped(curves, lambda curve: curve.attack)
    heights = {attack: fmean(map(_heights, of)) for attack, of in found.items()}
    return sorted(heights, key=lambda attack: -heights[attack])


def _heights(curve: Curve) -> float:
    return fmean(_height(curve, rate) for rate in (0.01, 0.001))


def _height(curve: Curve, rate: float) -> float:
    """The true-positive rate at a false-positive rate or just below it."""
    points = zip(curve.fpr, curve.tpr, strict=False)
    return max((tpr for fpr, tpr in points if fpr <= rate), default=0.0)


def _floor(curves: Iterable[Curve]) -> float:
    """The left end of the axes: half of the smallest rate there is, at most 0.05%."""
    smallest = min((rate for curve in curves for rate in curve.fpr if rate > 0), default=1.0)
    return max(_LOWEST_RATE, min(smallest / 2, 5e-4))


def _roc_panel(curves: list[Curve], looks: dict[str, drawing.Style], floor: float) -> drawing.Panel:
    contrast = curves[0].contrast
    ticks = {1e-5: "0.001%", 1e-4: "0.01%", 1e-3: "0.1%", 1e-2: "1%", 1e-1: "10%", 1.0: "100%"}
    x, y = (
        drawing.Scale(
            f"{kind}-positive rate", "%", (math.log10(floor), 0.02), ticks=ticks, log=True
        )
        for kind in ("False", "True")
    )
    meaning = words.contrast_meaning(contrast)
    return drawing.Panel(
        f"Members {words.against(contrast)}",
        f"Curves of {len(curves)} attacks telling members from {meaning}; "
        "the table of attacks gives their numbers.",
        x,
        y,
        # Grey ones first, so that they lie below.
        [
            drawing.Series("guessing", [floor, 1], [floor, 1], _NEUTRAL),
            *(_roc_curve(c, None, floor) for c in curves if c.attack not in looks),
            *(_roc_curve(c, looks[c.attack], floor) for c in curves if c.attack in looks),
        ],
        uprights=(0.001, 0.01),
    )


def _roc_curve(curve: Curve, look: drawing.Style | None, floor: float) -> drawing.Series:
    # A logarithmic axis has no zero: such points go to the edge, below it for the TPR.
    fpr = [max(rate, floor) for rate in curve.fpr]
    tpr = [max(rate, floor / 10) for rate in curve.tpr]
    hover, name = "TPR %{y:.2%} at FPR %{x:.3%}", curve.attack
    if look is None:
        return drawing.Series(_OTHERS, fpr, tpr, _PALE, hover, name, steps=True, opacity=0.55)
    return drawing.Series(name, fpr, tpr, look, hover, steps=True, marks=5)


def _curve_setting(curve: Curve) -> tuple[str, ...]:
    return (*drawing.run_setting(curve), f"view: {shortened(curve.view)}")


def trajectory_figure(trajectories: Sequence[Trajectory]) -> drawing.Figures | None:
    """A signal at the target over rounds, by origin: mean and 10-90% band."""
    if not trajectories:
        return None

    def panels(inside: list[Trajectory]) -> tuple[drawing.Panel, ...]:
        return tuple(map(_trajectory_panel, grouped(inside, lambda part: part.signal).values()))

    return drawing.Figures(
        "trajectories",
        "What the adversary measures on the target's uploads, round by round: the mean over "
        "samples of each origin, with the range that holds 80% of them (10th to 90th "
        "percentile). Where bands part, samples can be told apart. Every signal is turned so that "
        "larger stands for members: a loss is drawn as minus the loss.",
        drawing.choices_of(trajectories, drawing.run_setting, panels),
        drawing.origin_keys(distinct(part.origin for part in trajectories)),
    )


def _trajectory_panel(parts: list[Trajectory]) -> drawing.Panel:
    looks = [
        (part, words.ORIGINS[part.origin], drawing.ORIGIN_STYLES[part.origin]) for part in parts
    ]
    # Means lie above all bands.
    series: list[drawing.Drawn] = [
        drawing.Band(origin, part.rounds, part.low, part.high, look.color, 0.16)
        for part, origin, look in looks
    ]
    series += [
        drawing.Series(origin, part.rounds, part.mean, look, "%{y:.4g} in round %{x}", marks=8)
        for part, origin, look in looks
    ]
    name = words.capital(words.signal_name(parts[0].signal))
    summary = f"{name} over rounds, by origin of the samples."
    return drawing.Panel(
        name, summary, drawing.round_scale(), drawing.Scale("Signal", count=6), series
    )


def histogram_figure(
    histograms: Sequence[Histogram], attacks: Sequence[AttackRow] = ()
) -> drawing.Figures | None:
    """Scores by origin, a panel an attack, as the share of that origin's samples in each bin."""
    if not histograms:
        return None
    units = {attack.name: _unit(attack) for attack in attacks}

    def panels(inside: list[Histogram]) -> tuple[drawing.Panel, ...]:
        return tuple(_histogram_panel(part, units.get(part.attack, "")) for part in inside)

    return drawing.Figures(
        "histograms",
        "How each attack scores samples of each origin, as the share of that origin's samples "
        "in each bin. Larger scores stand for members; what a score is stands below its axis. "
        "Scores beyond an axis are counted in its end bins.",
        drawing.choices_of(histograms, drawing.run_setting, panels),
        drawing.origin_keys(list(words.ORIGINS)),
    )


def _unit(attack: AttackRow) -> str:
    """Meaning of an attack's scores, where that is one signal of the target over rounds."""
    if attack.over_clients != "target only" or len(attack.signals) != 1:
        return ""
    signal = words.signal_name(attack.signals[0])
    ways = {"last": f"{signal}, last round", "mean": f"mean of {signal}"}
    ways["slope"] = f"slope of {signal}"
    return ways.get(attack.over_rounds, "")


def _histogram_panel(part: Histogram, unit: str) -> drawing.Panel:
    counts = {"member": part.member, "other_client": part.other_client, "unseen": part.unseen}
    series = [
        drawing.outline(
            part.edges, amounts, drawing.ORIGIN_STYLES[origin], words.ORIGINS[origin], 0.12
        )
        for origin, amounts in counts.items()
        if sum(amounts)
    ]
    name, score = shortened(part.attack), drawing.series_name(words.capital(unit or "score"))
    summary = f"Scores that {name} gives, by origin of the samples."
    return drawing.Panel(name, summary, drawing.Scale(score, count=6), drawing.SHARES, series)


_CAPTIONS = {
    "client": "How well the target's members are told from the samples of each other client. This "
    "is not how exposed those clients are: only the target's own data count as members here. A "
    "client without a dot had too few audited samples.",
    "class": "AUC for each class with its interval; the dotted line is guessing. An average hides "
    "who carries the risk. The intervals are not corrected for the number of classes, so that one "
    "in twenty may miss by chance. A class without a dot had too few samples for a figure.",
}


def target_figure(record: Record) -> drawing.Figures | None:
    """AUC of each audited client, the strongest attack first; None where only one was audited."""
    figures = target_figures(record)
    if not figures:
        return None
    figures = sorted(figures, key=lambda figure: figure.target or 0)

    def panels(inside: list[Estimate]) -> tuple[drawing.Panel, ...]:
        names = [words.client_heading(figure.target or 0) for figure in inside]
        return (_panel(inside, names, _title(inside[0]), "audited client"),)

    return drawing.Figures(
        "target",
        "How well the members of each audited client are told from non-members, with the "
        "interval; the dotted line is guessing. Clients that were not audited are missing: "
        "nothing is known of them.",
        _strongest_first(drawing.choices_of(figures, _target_setting, panels), figures),
        shape="tall",
    )


def _strongest_first(
    choices: tuple[drawing.Choice, ...], figures: Sequence[Estimate]
) -> tuple[drawing.Choice, ...]:
    """Choices in the order of the largest AUC behind them."""
    # Both are in the order in which settings first appear.
    pairs = zip(choices, _best(figures, _target_setting).values(), strict=True)
    return tuple(choice for choice, _ in sorted(pairs, key=lambda pair: -pair[1]))


def _best(figures: Sequence[Estimate], key: Callable[[Estimate], Key]) -> dict[Key, float]:
    """The largest figure of each kind; 0 where all were refused."""
    return {of: max(f.value or 0.0 for f in same) for of, same in grouped(figures, key).items()}


def group_figure(groups: Sequence[Estimate], by: str) -> drawing.Figures | None:
    """AUC by whose samples ("client") or by "class", as dots; the strongest attack first."""
    parts = [group for group in groups if group.by == by]
    if not parts:
        return None
    best = _best(parts, lambda part: part.attack)
    parts.sort(key=lambda part: (-best[part.attack], words.contrast_order(part.contrast)))

    def panels(inside: list[Estimate]) -> tuple[drawing.Panel, ...]:
        names = [
            f"v. {group_name(group).replace('Client ', 'client ')}"
            if by == "client"
            else group_name(group)
            for group in inside
        ]
        return (_panel(inside, names, _of(inside[0]), by),)

    return drawing.Figures(
        by, _CAPTIONS[by], drawing.choices_of(parts, _group_setting, panels), shape="tall"
    )


def _of(group: Estimate) -> str:
    if group.by != "client":
        return _title(group)
    whose = "the target" if group.target is None else words.client_name(group.target)
    return (
        f"{shortened(group.attack)}: members of {whose} v. samples of each other client, "
        f"{shortened(words.defense_name(group.defense))}"
    )


def _title(one: Estimate) -> str:
    defense = shortened(words.defense_name(one.defense))
    return f"{shortened(one.attack)}: members {words.against(one.contrast)}, {defense}"


def _panel(figures: Sequence[Estimate], names: Sequence[str], title: str, by: str) -> drawing.Panel:
    """AUCs with their limits, a row each."""
    rows = [drawing.series_name(name) for name in names]
    given = [(f, row) for f, row in zip(figures, rows, strict=True) if f.value is not None]
    limits = [limit for f in figures for limit in (f.low, f.high, f.value) if limit is not None]
    dots = drawing.Series(
        "",
        [figure.number for figure, _ in given],
        [row for _, row in given],
        drawing.Style(drawing.OKABE_ITO[0]),
        "%{y}: AUC %{x:.3f}",
        joined=False,
        size=10,
        limits=[figure for figure, _ in given],
        across=True,
    )
    return drawing.Panel(
        title,
        f"AUC of {title} by {by}; the table has the numbers.",
        drawing.Scale(
            "AUC", ends=(min([0.45, *limits]) - 0.02, max([0.75, *limits]) + 0.02), count=8
        ),
        drawing.Scale(names=rows, ends=(len(rows) - 0.5, -0.5)),
        [dots],
        uprights=(0.5,),
        height=110 + 30 * len(rows),
    )


def _target_setting(figure: Estimate) -> tuple[str, ...]:
    return (
        shortened(figure.attack),
        words.against(figure.contrast),
        shortened(words.defense_name(figure.defense)),
        f"view: {shortened(figure.view)}",
        "mean over seeds" if figure.seed is None else f"seed {figure.seed}",
    )


def _group_setting(group: Estimate) -> tuple[str, ...]:
    return (
        shortened(group.attack),
        words.against(group.contrast),
        shortened(words.defense_name(group.defense)),
        "" if group.target is None else f"target {group.target}",
        f"seed {group.seed}",
    )


def accuracy_figure(
    accuracies: Sequence[AccuracyByRound], *, chosen: bool = False
) -> drawing.Figures | None:
    """Test accuracy by round, a curve for each defense and seed.

    Args:
        accuracies: Of every run.
        chosen: Whether clients choose between models, so that there is no global one.
    """
    parts = [result for result in accuracies if result.rounds]
    if not parts:
        return None
    defenses = distinct(result.defense for result in parts)
    looks = {defense: drawing.style(position) for position, defense in enumerate(defenses)}
    series = [
        drawing.Series(
            f"{words.defense_name(result.defense)}, seed {result.seed}",
            result.rounds,
            result.accuracy,
            looks[result.defense],
            "%{y:.1%} after round %{x}",
            marks=8,
        )
        for result in parts
    ]
    y = drawing.Scale("Test accuracy", "%", count=6)
    panel = drawing.Panel("", "Test accuracy by round.", drawing.round_scale(), y, series)
    return drawing.Figures(
        "accuracy",
        f"Accuracy of {'the models that clients chose' if chosen else 'the global model'} on test "
        "samples, round by round; a line for each seed.",
        (drawing.Choice("", (panel,)),),
        drawing.legend(
            {words.defense_name(name): look for name, look in looks.items()}, hides=False
        ),
    )
