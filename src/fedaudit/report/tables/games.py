"""Tables of security games: success beside claimed, actual and certified guarantees."""

from collections.abc import Sequence
from dataclasses import replace

from fedaudit.report.grid import Cell, Grid, Heading, columns_of, named
from fedaudit.report.text.games import (
    IN_ROUNDS,
    ShownPoint,
    by_signs,
    epsilon,
    far_above,
    is_by_heart,
    is_poor,
    overtaken,
    shown_points,
    times_named,
    times_text,
)
from fedaudit.report.words import MISSING, count, interval, number, percent
from fedaudit.results.games import (
    CLAIMED_SUCCESS,
    DISTANCE,
    EPOCHS,
    EXPECTED_SUCCESS,
    FIT,
    HELD_OUT,
    PLANTED_SHARE,
    PREDICTED_NEGATIVES,
    SIGN_SUCCESS,
    InRounds,
    PointPlayed,
    Rate,
    TargetCertificate,
)
from fedaudit.results.record import Record

_EMPTY = Cell(MISSING, tone="muted")
_NO_BOUND = Cell("no bound", tone="muted")

_REMARK = (
    "Adv: mean of TPR, the share of games with the target in which “in” was said, and TNR, the "
    "share of games without it in which “out” was said; 50% is guessing. Intervals: "
    "Clopper-Pearson, 95%. ε is of one record, in nats. Proven: the success refutes every "
    "smaller ε. Below a actual ε: how many times the claimed one it is."
)

_ROUNDS = (
    "Each game is a round of FedSGD: the client is sent the planted model and answers with a "
    "gradient, which the server scores by the target’s own. Scores of rounds are averaged, of one "
    "batch with fresh noise. At most: what no server exceeds behind this noise, where one record "
    "in another’s place moves a clipped sum by two clips. Noise leaves: what is to be expected of "
    "neurons that are silent for all other records, with their share of the target’s gradient. "
    "Sign: the success if the server could see the neuron’s sign. Share: how much of the target’s "
    "gradient, by length, lies in the planted rows. Simulated: where a defense ends in normal "
    "noise, the rest of it is simulated once, and the noise of all rounds is drawn for the mean "
    "score, which it reaches as one normal number. Intervals: Clopper-Pearson, 95%."
)

_TRAINING = (
    " Fit: how well neurons tell the rows apart that they were trained on (AUC); any "
    "rows can be learned by heart. Held out: the same of fresh copies of targets and other "
    "records. Epochs: mean over targets until validation records were told apart, with its 95% "
    "interval (Student’s t), and from which to which."
)


def points_table(record: Record) -> Grid:
    """Every figure of every point that was played by signs."""
    numeric = ("Adv", "Named", "True", "Proven", "if the named holds", "if the true holds")
    rates = ("TPR", "TNR", "Predicted TNR", "Target", "Another record")
    shown = by_signs(shown_points(record.games))
    trained = _training_columns(shown)
    rows = tuple(
        (
            named(one.name, "" if one.name == one.setting else one.setting),
            _share(one.point.adv),
            _claimed(one.point),
            _actual(one.point),
            _proven(one.point),
            _most_named(one.point),
            Cell(percent(one.point.most)),
            _rate(one.point.tpr),
            _rate(one.point.tnr),
            _percent(one.point.figure(PREDICTED_NEGATIVES)),
            _rate(one.point.by_target),
            _rate(one.point.by_others),
            *_training_cells(one.point, trained),
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


def certificates_table(record: Record) -> Grid | None:
    """Certificates of the first targets of each point; None where nothing is."""
    rows = [
        (named(one.name), Cell(count(place)), *_certified(certificate))
        for one in shown_points(record.games)
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


def _caption(record: Record) -> str:
    points = [point for point in record.games if point.rounds is None]
    sizes = {(p.tpr.total + p.tnr.total, p.targets, p.batch) for p in points}
    if len(sizes) != 1:
        return "Games of each point"
    first = points[0]
    return (
        f"{count(first.tpr.total + first.tnr.total)} games a point, {count(first.targets)} "
        f"targets, batches of {count(first.batch)} records"
    )


def _percent(value: float | None) -> Cell:
    return _EMPTY if value is None else Cell(percent(value))


def _share(found: Rate) -> Cell:
    return Cell(percent(found.value), interval(found.low, found.high, "accuracy"))


def _rate(found: Rate) -> Cell:
    limits = interval(found.low, found.high, "accuracy")
    return Cell(percent(found.value), f"{limits}\n{count(found.hits)} of {count(found.total)}")


def _claimed(point: PointPlayed) -> Cell:
    return _EMPTY if point.claimed_epsilon is None else Cell(epsilon(point.claimed_epsilon))


def _actual(point: PointPlayed) -> Cell:
    alarm = "alarm" if far_above(point) else ""
    if point.actual_epsilon is None:
        return Cell("no bound", tone="alarm") if alarm else _NO_BOUND
    times = times_named(point)
    detail = f"× {times_text(times)}" if alarm and times is not None else ""
    return Cell(epsilon(point.actual_epsilon), detail, "alarm" if alarm else "")


def _proven(point: PointPlayed) -> Cell:
    text = epsilon(point.proven_epsilon)
    if overtaken(point):
        return Cell(text, "> true", "alarm")
    return Cell(text, "> named", "alarm") if point.refuted else Cell(text)


def _most_named(point: PointPlayed) -> Cell:
    most = point.figure(CLAIMED_SUCCESS)
    if most is None:
        return _EMPTY
    text = percent(most)
    if point.refuted:
        return Cell(text, "exceeded", "alarm")
    return Cell(text, "exceeded, perhaps by chance" * (point.adv.value > most))


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


def rounds_table(record: Record) -> Grid | None:
    """Every figure of points in rounds; None where there are none."""
    played = [(one, r) for one in shown_points(record.games) if (r := one.point.rounds)]
    if not played:
        return None
    numeric = ("Adv", "At most", "Noise leaves", "Sign", "TPR", "TNR")
    plan = ("Rounds", "Share", "Fires for another")
    rows = tuple(
        (
            named(_round_name(one), _batch(one, record)),
            _success(one.point),
            _most(one.point),
            _percent(one.point.figure(EXPECTED_SUCCESS)),
            _percent(one.point.figure(SIGN_SUCCESS)),
            Cell(percent(one.point.tpr.value)),
            Cell(percent(one.point.tnr.value)),
            Cell(count(rounds.averaged), _simulated(rounds)),
            _percent(one.point.figure(PLANTED_SHARE)),
            Cell(percent(one.point.by_others.value)),
        )
        for one, rounds in played
    )
    every = (*numeric, *plan)
    return Grid(
        "Games in rounds",
        columns_of("Point", *every, numeric=every),
        rows,
        headings=(Heading("", 1), Heading("Right", 4), Heading("Games", 2), Heading("Server", 3)),
        remark=_ROUNDS,
    )


def _success(point: PointPlayed) -> Cell:
    found = _share(point.adv)
    return replace(found, tone="alarm") if overtaken(point) else found


def _most(point: PointPlayed) -> Cell:
    if point.figure(DISTANCE) is None:
        return _NO_BOUND
    return Cell(percent(point.most), "exceeded" * overtaken(point))


def _simulated(rounds: InRounds) -> str:
    if rounds.simulated == rounds.averaged:
        return "all simulated" * (rounds.averaged > 1)
    return f"{count(rounds.simulated)} simulated"


def _round_name(one: ShownPoint) -> str:
    """Its name without what columns and section say."""
    return (one.family if one.name == one.setting else one.name).removeprefix(f"{IN_ROUNDS}, ")


def _batch(one: ShownPoint, record: Record) -> str:
    several = len({point.batch for point in record.games}) > 1
    told = f"batch {count(one.point.batch)}"
    return told if several and told not in _round_name(one) else ""


def _training_columns(shown: Sequence[ShownPoint]) -> tuple[str, ...]:
    """Names of the columns that a table of these points has of training."""
    fit = any(one.point.figure(FIT) is not None for one in shown)
    held_out = any(one.point.figure(HELD_OUT) is not None for one in shown)
    epochs = any(one.point.training is not None for one in shown)
    return ("Fit",) * fit + ("Held out",) * held_out + ("Epochs",) * epochs


def _training_cells(point: PointPlayed, columns: Sequence[str]) -> tuple[Cell, ...]:
    """The cells of these columns."""
    made = {"Fit": _fit(point), "Held out": _held_out(point), "Epochs": _epochs(point)}
    return tuple(made[name] for name in columns)


def _fit(point: PointPlayed) -> Cell:
    value = point.figure(FIT)
    if value is None:
        return _EMPTY
    return Cell(number(value), "poor", "alarm") if is_poor(point) else Cell(number(value))


def _held_out(point: PointPlayed) -> Cell:
    value = point.figure(HELD_OUT)
    if value is None:
        return _EMPTY
    return Cell(number(value), "by heart", "alarm") if is_by_heart(point) else Cell(number(value))


def _epochs(point: PointPlayed) -> Cell:
    found, training = point.estimate(EPOCHS), point.training
    if found is None or found.value is None or training is None:
        return _EMPTY
    detail = f"{count(training.least)} to {count(training.most)}"
    if found.low is not None and found.high is not None:
        detail = f"{found.low:,.0f}–{found.high:,.0f}\n{detail}"
    never = point.targets - training.stopped
    if never:
        detail += f"\n{count(never)} of {count(point.targets)} never"
    return Cell(f"{'≥ ' * (never > 0)}{found.value:,.0f}", detail)
