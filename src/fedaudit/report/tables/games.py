"""Tables of security games: success beside claimed, actual and certified guarantees."""

from collections.abc import Sequence

from fedaudit.report.grid import Cell, Filled, Grid, Heading, Tone, below, named, tabled
from fedaudit.report.text.points import (
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
from fedaudit.report.words import count, given, interval, number, percent
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

_NO_BOUND = Cell("no bound", tone="muted")

_REMARK = (
    "Adv: mean of TPR and TNR, the shares of games with and without the target in which the "
    "server is right; 50% is guessing. Intervals: Clopper-Pearson, 95%. ε is of one record, in "
    "nats. Lower bound: the success refutes every smaller ε. Adv at most: (e^ε + δ) / (1 + e^ε). "
    "Predicted TNR: if the neuron fired for other records independently."
)
_ROUNDS = (
    "Each game is a round of FedSGD. Scores of rounds are averaged. At most: for any server behind "
    "this noise. Noise leaves: the success to be expected. Sign: the success if the server saw the "
    "neuron’s sign. Share: of the target’s gradient in the planted rows. Simulated: the rest of a "
    "defense that ends in normal noise is simulated once. Intervals: Clopper-Pearson, 95%."
)
_TRAINING = (
    " Fit and held out: AUC of neurons on the rows that they were trained on, and on fresh ones. "
    "Epochs: mean over targets until validation records were told apart (95%, Student’s t)."
)


def points_table(record: Record) -> Grid:
    """Every figure of every point that was played by signs."""
    shown = by_signs(shown_points(record.games))
    trained = [name for name, metric in _TRAINED.items() if _any_has(shown, metric)]
    last = (Heading("Training", len(trained)),) if trained else ()
    return tabled(
        _caption(record),
        [_point_row(one) | {name: _training(one.point, name) for name in trained} for one in shown],
        headings=(
            Heading("", 1),
            Heading("Success rate", 1),
            Heading("ε of one record", 3),
            Heading("Adv at most", 2),
            Heading("Games", 3),
            Heading("Neuron fires for", 2),
            *last,
        ),
        remark=_REMARK + _TRAINING * bool(trained),
    )


def _point_row(one: ShownPoint) -> dict[str, Cell | str | None]:
    point = one.point
    return {
        "Point": named(one.name, "" if one.name == one.setting else one.setting),
        "Adv": _share(point.adv),
        "Claimed ε": given(point.claimed_epsilon, epsilon),
        "Actual ε": _actual(point),
        "Lower bound": _proven(point),
        "at the claimed ε": _most_named(point),
        "at the actual ε": percent(point.most),
        "TPR": _rate(point.tpr),
        "TNR": _rate(point.tnr),
        "Predicted TNR": given(point.figure(PREDICTED_NEGATIVES)),
        "Target": _rate(point.by_target),
        "Another record": _rate(point.by_others),
    }


def certificates_table(record: Record) -> Grid | None:
    """Certificates of the first targets of each point; None where nothing is."""
    rows = [
        {"Point": named(one.name), "Target": count(place), **_certified(certificate)}
        for one in shown_points(record.games)
        for place, certificate in enumerate(one.point.certificates, 1)
    ]
    if not rows:
        return None
    return tabled(
        "Certificates, target by target",
        rows,
        headings=(
            Heading("", 2),
            Heading("Signs of both means", 2, "failure probability"),
            Heading("Share of games won", 2, "95% confidence"),
        ),
        remark="The signs of means certify no game. Printed: with the range of the sample drawn, "
        "as in "
        "the AMI paper, which certifies nothing. “Guessing”: printed as certified at 0.01 or less "
        "while the certified success in games is at most 60%. The share won is certified for this "
        "target and neuron, not for others.",
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


def _share(found: Rate, tone: Tone = "") -> Cell:
    return Cell(percent(found.value), interval(found.low, found.high, "accuracy"), tone)


def _rate(found: Rate) -> Cell:
    limits = interval(found.low, found.high, "accuracy")
    return Cell(percent(found.value), f"{limits}\n{count(found.hits)} of {count(found.total)}")


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
        return Cell(text, "> actual", "alarm")
    return Cell(text, "> claimed", "alarm") if point.refuted else Cell(text)


def _most_named(point: PointPlayed) -> Cell | None:
    most = point.figure(CLAIMED_SUCCESS)
    if most is None:
        return None
    text = percent(most)
    if point.refuted:
        return Cell(text, "exceeded", "alarm")
    return Cell(text, "exceeded, perhaps by chance" * (point.adv.value > most))


_SMALL_DELTA, _HARDLY_BETTER = 0.01, 0.6


def _certified(one: TargetCertificate) -> Filled:
    hardly_better = one.high is not None and one.high <= _HARDLY_BETTER
    empty = hardly_better and one.delta_sample <= _SMALL_DELTA
    printed = _delta(one.delta_sample, None).text
    return {
        "By the range that must hold": _delta(one.delta_sound, one.failure_sound),
        "As printed": Cell(printed, "guessing" * empty, "alarm" if empty else ""),
        "Certified": interval(one.low, one.high, "accuracy"),
        "Played": given(one.played),
    }


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
    return tabled(
        "Games in rounds",
        [_round_row(one, rounds, record) for one, rounds in played],
        headings=(
            Heading("", 1),
            Heading("Success rate", 4),
            Heading("Games", 2),
            Heading("Server", 3),
        ),
        remark=_ROUNDS,
    )


def _round_row(one: ShownPoint, rounds: InRounds, record: Record) -> Filled:
    point = one.point
    return {
        "Point": named(_round_name(one), _batch(one, record)),
        "Adv": _share(point.adv, "alarm" if overtaken(point) else ""),
        "At most": _most(point),
        "Noise leaves": given(point.figure(EXPECTED_SUCCESS)),
        "Sign": given(point.figure(SIGN_SUCCESS)),
        "TPR": percent(point.tpr.value),
        "TNR": percent(point.tnr.value),
        "Rounds": Cell(count(rounds.averaged), _simulated(rounds)),
        "Share": given(point.figure(PLANTED_SHARE)),
        "Fires for another": percent(point.by_others.value),
    }


def _most(point: PointPlayed) -> Cell:
    if point.figure(DISTANCE) is None:
        return _NO_BOUND
    return Cell(percent(point.most), "exceeded" * overtaken(point))


def _simulated(rounds: InRounds) -> str:
    if rounds.simulated == rounds.averaged:
        return "all simulated" * (rounds.averaged > 1)
    return f"{count(rounds.simulated)} simulated"


def _round_name(one: ShownPoint) -> str:
    return (one.family if one.name == one.setting else one.name).removeprefix(f"{IN_ROUNDS}, ")


def _batch(one: ShownPoint, record: Record) -> str:
    several = len({point.batch for point in record.games}) > 1
    told = f"batch {count(one.point.batch)}"
    return told if several and told not in _round_name(one) else ""


_TRAINED = {"Fit": FIT, "Held out": HELD_OUT, "Epochs": EPOCHS}


def _any_has(shown: Sequence[ShownPoint], metric: str) -> bool:
    return any(one.point.estimate(metric) is not None for one in shown)


def _training(point: PointPlayed, name: str) -> Cell | None:
    value = point.figure(_TRAINED[name])
    if value is None:
        return None
    if name == "Epochs":
        return _epochs(point)
    wrong = "poor" * is_poor(point) if name == "Fit" else "by heart" * is_by_heart(point)
    return Cell(number(value), wrong, "alarm" if wrong else "")


def _epochs(point: PointPlayed) -> Cell | None:
    found, training = point.estimate(EPOCHS), point.training
    if found is None or training is None:
        return None
    limits = ""
    if found.low is not None and found.high is not None:
        limits = f"{found.low:,.0f}–{found.high:,.0f}"
    never = point.targets - training.stopped
    some = f"{count(never)} of {count(point.targets)} never" if never else ""
    range_ = f"{count(training.least)} to {count(training.most)}"
    return Cell(f"{'≥ ' * (never > 0)}{found.number:,.0f}", below(limits, range_, some))
