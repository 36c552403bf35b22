"""Tables of security games: success beside claimed, actual and certified guarantees."""

from fedaudit.report.grid import Cell, Grid, Heading, columns_of, named
from fedaudit.report.reading import GameRecord, PointPlayed, Rate, Success, TargetCertificate
from fedaudit.report.text.games import (
    by_signs,
    epsilon,
    far_above,
    overtaken,
    shown_points,
    times_named,
    times_text,
    training_cells,
    training_columns,
)
from fedaudit.report.words import MISSING, count, interval, number, percent

_EMPTY = Cell(MISSING, tone="muted")
_NO_BOUND = Cell("no bound", tone="muted")

_REMARK = (
    "Adv: mean of TPR, the share of games with the target in which “in” was said, and TNR, the "
    "share of games without it in which “out” was said; 50% is guessing. Intervals: "
    "Clopper-Pearson, 95%. ε is of one record, in nats. Proven: the success refutes every "
    "smaller ε. Below a actual ε: how many times the claimed one it is."
)

_TRAINING = (
    " Fit: how well neurons tell the rows apart that they were trained on (AUC); any "
    "rows can be learned by heart. Held out: the same of fresh copies of targets and other "
    "records. Epochs: mean over targets until validation records were told apart, with its 95% "
    "interval (Student’s t), and from which to which."
)


def games_table(record: GameRecord) -> Grid:
    """Results of each point that was played by signs, narrow enough for a terminal."""
    numeric = ("Adv", "TPR", "TNR", "Claimed ε", "Actual ε", "Proven ε")
    rows = tuple(
        (
            # The columns have the epsilon.
            named(one.family if one.name == one.setting else one.name),
            _share(one.point.adv),
            Cell(percent(one.point.tpr.value)),
            Cell(percent(one.point.tnr.value)),
            _named_epsilon(one.point),
            _true_epsilon(one.point),
            _proven(one.point),
        )
        for one in by_signs(shown_points(record.points))
    )
    columns = columns_of("Point", *numeric, numeric=numeric)
    return Grid(_caption(record), columns, rows, remark=_REMARK)


def points_table(record: GameRecord) -> Grid:
    """Every figure of every point that was played by signs."""
    numeric = ("Adv", "Named", "True", "Proven", "if the named holds", "if the true holds")
    rates = ("TPR", "TNR", "Predicted TNR", "Target", "Another record")
    shown = by_signs(shown_points(record.points))
    trained = training_columns(shown)
    rows = tuple(
        (
            named(one.name, "" if one.name == one.setting else one.setting),
            _share(one.point.adv),
            _named_epsilon(one.point),
            _true_epsilon(one.point),
            _proven(one.point),
            _most_named(one.point),
            Cell(percent(one.point.most)),
            _rate(one.point.tpr),
            _rate(one.point.tnr),
            _EMPTY if one.point.predicted_tnr is None else Cell(percent(one.point.predicted_tnr)),
            _rate(one.point.by_target),
            _rate(one.point.by_others),
            *training_cells(one.point, trained),
        )
        for one in shown
    )
    last = (Heading("Training", len(trained)),) if trained else ()
    every = (*numeric, *rates, *trained)
    return Grid(
        _caption(record),
        columns_of("Point", *every, numeric=every),
        rows,
        headings=(
            Heading("", 1),
            Heading("Right", 1),
            Heading("ε of one record", 3),
            Heading("Adv at most", 2),
            Heading("Games", 3),
            Heading("Neuron fires for", 2),
            *last,
        ),
        remark=f"{_REMARK} At most: (e^ε + δ) / (1 + e^ε), which no server exceeds against a "
        "mechanism that keeps that ε but for a probability δ; δ is 0 for most. Predicted TNR: the "
        "mean over targets of (1 − how often the neuron fires for another record) to the power "
        "of the batch’s size. The TNR is above it where records of a batch share their noise."
        + _TRAINING
        * bool(trained),
    )


def certificates_table(record: GameRecord) -> Grid | None:
    """Certificates of the first targets of each point; None where nothing is."""
    rows = [
        (named(one.name), Cell(count(place)), *_certified(certificate))
        for one in shown_points(record.points)
        for place, certificate in enumerate(one.point.certificates, 1)
    ]
    if not rows:
        return None
    numeric = ("By the range that must hold", "As printed", "Certified", "Played")
    return Grid(
        "Certificates, target by target",
        columns_of("Point", "Target", *numeric, numeric=("Target", *numeric)),
        tuple(rows),
        headings=(
            Heading("", 2),
            Heading("Signs of both means", 2, "failure probability"),
            Heading("Share of games won", 2, "95% confidence"),
        ),
        remark="Failure probability: that of either mean is δ, and that one of the two fails at "
        "most twice as much. “Guessing”: the signs of the means are “certified” as printed, at "
        "0.01 or less, while the certified success in games reaches no more than 60%.",
    )


def _caption(record: GameRecord) -> str:
    points = [point for point in record.points if point.rounds is None]
    sizes = {(p.tpr.total + p.tnr.total, p.targets, p.batch) for p in points}
    if len(sizes) != 1:
        return "Games of each point"
    first = points[0]
    return (
        f"{count(first.tpr.total + first.tnr.total)} games a point, {count(first.targets)} "
        f"targets, batches of {count(first.batch)} records"
    )


def _share(found: Rate | Success) -> Cell:
    return Cell(percent(found.value), interval(found.low, found.high, "accuracy"))


def _rate(found: Rate) -> Cell:
    limits = interval(found.low, found.high, "accuracy")
    return Cell(percent(found.value), f"{limits}\n{count(found.hits)} of {count(found.total)}")


def _named_epsilon(point: PointPlayed) -> Cell:
    return _EMPTY if point.nominal_epsilon is None else Cell(epsilon(point.nominal_epsilon))


def _true_epsilon(point: PointPlayed) -> Cell:
    alarm = "alarm" if far_above(point) else ""
    if point.true_epsilon is None:
        return Cell("no bound", tone="alarm") if alarm else _NO_BOUND
    times = times_named(point)
    detail = f"× {times_text(times)}" if alarm and times is not None else ""
    return Cell(epsilon(point.true_epsilon), detail, "alarm" if alarm else "")


def _proven(point: PointPlayed) -> Cell:
    text = epsilon(point.proven_epsilon)
    if overtaken(point):
        return Cell(text, "> true", "alarm")
    return Cell(text, "> named", "alarm") if point.refuted else Cell(text)


def _most_named(point: PointPlayed) -> Cell:
    if point.most_nominal is None:
        return _EMPTY
    text = percent(point.most_nominal)
    if point.refuted:
        return Cell(text, "exceeded", "alarm")
    return Cell(text, "exceeded, perhaps by chance" * (point.adv.value > point.most_nominal))


_SMALL_DELTA, _HARDLY_BETTER = 0.01, 0.6


def _certified(one: TargetCertificate) -> tuple[Cell, ...]:
    empty = one.delta_sample <= _SMALL_DELTA and one.high <= _HARDLY_BETTER
    return (
        _delta(one.delta_sound, one.failure_sound),
        Cell(_delta(one.delta_sample, None).text, "guessing" * empty, "alarm" if empty else ""),
        Cell(interval(one.low, one.high, "accuracy")),
        _EMPTY if one.played is None else Cell(percent(one.played)),
    )


def _delta(delta: float | None, failure: float | None) -> Cell:
    if delta is None:
        return Cell("no range", tone="muted")
    if delta >= 1:
        return Cell("nothing", tone="muted")
    if failure is not None and failure >= 1:
        return Cell(number(delta), "certifies nothing", "muted")
    return Cell(number(delta), "" if failure is None else f"of either: {number(failure)}")
