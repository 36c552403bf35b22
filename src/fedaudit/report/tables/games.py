"""Tables of security games: points, certificates, and signs that a client can look for."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fedaudit.report.evidence import distinct, grouped
from fedaudit.report.grid import Cell, Grid, Heading, Tone, named, shortened, tabled
from fedaudit.report.tables.cells import estimate_table
from fedaudit.report.text.points import (
    epsilon,
    far_above,
    fit_problem,
    overtaken,
    ratio,
    shown_points,
    times,
)
from fedaudit.report.words import count, from_to, given, interval, listed, number, percent, plural
from fedaudit.results.estimate import Estimate
from fedaudit.results.games import (
    DETECTED,
    DISTANCE,
    EPOCHS,
    EXPECTED_SUCCESS,
    FALSE_ALARMS,
    FIT,
    HELD_OUT,
    PLANTED_SHARE,
    SIGN_AUC,
    SIGN_SUCCESS,
    Detection,
    PointPlayed,
    Rate,
)
from fedaudit.results.record import Record

_REMARK = (
    "Adv: mean of TPR and TNR, the shares of games with and without the target in which the server "
    "is right; 50% is guessing. At most: success of any server, by the actual ε or behind the "
    "noise. Intervals: Clopper-Pearson, 95%. Fires for others: share of other records for which "
    "the neuron fires. Fit, held out: AUC of neurons on the rows that they were trained on, and on "
    "fresh ones. "
)
_OF_SIGNS = (
    "Lower bound: the success refutes every smaller ε (nats). Epochs: mean over targets until "
    "validation records were separated (95%, Student’s t)."
)
_OF_ROUNDS = (
    "Noise leaves: the success to be expected of this server. Sign: the success if the server saw "
    "the neuron’s sign. Share: of the target’s gradient in the planted rows. Of a defense that "
    "ends in normal noise one round is simulated, and the noise of all is drawn for the score."
)


def points_table(record: Record, *, in_rounds: bool = False) -> Grid | None:
    """Return the figures of every point that was played by signs or in rounds; None for none.

    Args:
        record: A record of games.
        in_rounds: Whether points in rounds are shown instead of those by signs.
    """
    shown = [item for item in shown_points(record.games) if bool(item.point.rounds) == in_rounds]
    if not shown:
        return None
    points = [item.point for item in shown]
    cells = {place: list(map(cell, points)) for place, cell in _COLUMNS.items()}
    used = {place: column for place, column in cells.items() if any(column)}
    over = grouped(used, lambda place: place[0])
    sizes = (
        f"{from_to([point.adv.total for point in points])} games a point, "
        f"{from_to([point.targets for point in points])} targets, "
        f"batches of {from_to([point.batch for point in points])} records"
    )
    return tabled(
        f"Games {'in rounds' if in_rounds else 'by sign'}: {sizes}",
        [
            {"Point": named(item.name, _label(item.point))}
            | {name: column[row] for (_, name), column in used.items()}
            for row, item in enumerate(shown)
        ],
        headings=(Heading("", 1), *(Heading(name, len(inside)) for name, inside in over.items())),
        remark=_REMARK + (_OF_ROUNDS if in_rounds else _OF_SIGNS),
    )


def _label(point: PointPlayed) -> str:
    """Return the name that the study's author gave a point; "" if settings name it."""
    by_settings = point.label == point.mechanism or set("=,") & set(point.label)
    return "" if by_settings else shortened(point.label)


def _adv(point: PointPlayed) -> Cell:
    alarm = point.rounds is not None and overtaken(point)
    return _rate(point.adv, "alarm" if alarm else "")


def _rate(rate: Rate, tone: Tone = "") -> Cell:
    return Cell(percent(rate.value), interval(rate.low, rate.high, "accuracy"), tone)


def _most(point: PointPlayed) -> Cell:
    bound = point.figure(DISTANCE) if point.rounds else point.actual_epsilon
    if bound is None:
        return _NO_BOUND
    return Cell(percent(point.most), "exceeded" * overtaken(point))


def _actual(point: PointPlayed) -> Cell | None:
    actual, above = point.actual_epsilon, ratio(point)
    cell = _NO_BOUND if actual is None else Cell(epsilon(actual))
    if far_above(point):
        cell = replace(cell, detail="" if above is None else f"× {times(above)}", tone="alarm")
    return None if point.rounds else cell


def _proven(point: PointPlayed) -> Cell | None:
    above = "> actual" if overtaken(point) else "> claimed" if point.refuted else ""
    cell = Cell(epsilon(point.proven_epsilon), above, "alarm" if above else "")
    return None if point.rounds else cell


def _fit(point: PointPlayed, metric: str, problem: str) -> Cell | None:
    """Return the cell of an AUC of neurons, marked if the fit has this problem."""
    value = point.figure(metric)
    if value is None or fit_problem(point) != problem:
        return None if value is None else Cell(number(value))
    return Cell(number(value), problem, "alarm")


def _epochs(point: PointPlayed) -> Cell | None:
    epochs, training = point.estimate(EPOCHS), point.training
    if epochs is None or training is None:
        return None
    # Neurons that never stopped count with the longest training, which is too short.
    at_least = "≥ " * (training.stopped < point.targets)
    limits = "" if epochs.low is None else f"{epochs.low:,.0f}–{epochs.high or 0:,.0f}"
    return Cell(f"{at_least}{epochs.number:,.0f}", limits)


_NO_BOUND = Cell("no bound", tone="muted")
_COLUMNS: dict[tuple[str, str], Callable[[PointPlayed], Cell | str | None]] = {
    ("Success rate", "Adv"): _adv,
    ("Success rate", "At most"): _most,
    ("Success rate", "Noise leaves"): lambda point: given(point.figure(EXPECTED_SUCCESS)),
    ("Success rate", "Sign"): lambda point: given(point.figure(SIGN_SUCCESS)),
    ("ε of one record", "Claimed ε"): lambda point: given(point.claimed_epsilon, epsilon),
    ("ε of one record", "Actual ε"): _actual,
    ("ε of one record", "Lower bound"): _proven,
    ("Games", "TPR"): lambda point: _rate(point.tpr),
    ("Games", "TNR"): lambda point: _rate(point.tnr),
    ("Neuron", "Share"): lambda point: given(point.figure(PLANTED_SHARE)),
    ("Neuron", "Fires for others"): lambda point: percent(point.by_others.value),
    ("Neuron", "Fit"): lambda point: _fit(point, FIT, "poor"),
    ("Neuron", "Held out"): lambda point: _fit(point, HELD_OUT, "memorised"),
    ("Neuron", "Epochs"): _epochs,
}
"""Cells by the headings above them; a column that has no cell for any point is left out."""


def certificates_table(record: Record) -> Grid | None:
    """Return the certificates of the first targets of each point; None if there is none."""
    rows = [
        {
            "Point": named(item.name),
            "Target": count(place),
            "Certified": interval(certificate.low, certificate.high, "accuracy"),
            "Played": given(certificate.played),
            "By the range that must hold": _failure(certificate.failure_sound),
            "As printed": _failure(certificate.delta_sample),
        }
        for item in shown_points(record.games)
        for place, certificate in enumerate(item.point.certificates, 1)
    ]
    if not rows:
        return None
    return tabled(
        "Certificates, target by target",
        rows,
        headings=(
            Heading("", 2),
            Heading("Share of games won", 2, "95% confidence"),
            Heading("Signs of both means", 2, "failure probability"),
        ),
        remark="The share won is certified for this target and neuron, not for others. The signs "
        "of means certify no game. As printed: with the range of the sample drawn, as in the AMI "
        "paper, which certifies nothing.",
    )


def _failure(probability: float | None) -> Cell:
    if probability is None:
        return Cell("no range", tone="muted")
    return Cell("nothing", tone="muted") if probability >= 1 else Cell(number(probability))


SERVERS = {
    "planted": "As published",
    "disguised": "Lengths and zeros hidden",
    "one-row": "One row changed",
}
SIGNS = {
    "lone-units": ("Lone units", "share that fires for at most one own record"),
    "one-stands-out": ("One record stands out", "its lead at a unit"),
    "dead-units": ("Dead units", "share that fires for no own record"),
    "norm-ratio": ("Length of weights", "against the layer’s median"),
    "bias-ratio": ("Size of biases", "against the layer’s median"),
    "odd-row": ("Odd distribution", "a unit’s weights against its layer’s others"),
    "twins": ("Twins", "largest cosine of two units"),
    "zero-weights": ("Zeros", "share of weights that are exactly 0"),
    "moved-weights": ("Changed distribution", "a layer’s weights against the round before"),
    "moved-row": ("One unit moved most", "against the layer’s median"),
    "rewritten-row": ("Rewritten unit", "its move against its own length"),
}
_DISTINGUISHES = 0.95
_MOST_SERVERS = 6
_MOST_NAMED = 5
_FALSE_ALARMS = ("", "False alarms")


def detector_table(detection: Detection) -> Grid:
    """Return a row for each sign: how well it separates planted models from honest ones."""
    servers = _servers(detection)
    places = {SIGN_AUC: "AUC", DETECTED: "Found"}
    return estimate_table(
        f"Signs of a planted neuron, over {plural(detection.runs, 'federation')}",
        [
            item
            for item in detection.estimates
            if item.group and item.attack in servers and item.metric in (*places, FALSE_ALARMS)
        ],
        rows=lambda item: named(*SIGNS.get(item.group, (shortened(item.group), ""))),
        columns=lambda item: (
            (_server(item.attack), places[item.metric]) if item.metric in places else _FALSE_ALARMS
        ),
        cell=_sign_cell,
        order=(_FALSE_ALARMS,),
        first="Sign",
        under={
            _server(server): f"right in {percent(success)}"
            for server in servers
            if (success := detection.success(server)) is not None
        },
        remark="AUC: how often a planted model looks more suspicious than an honest one, with a "
        "95% interval over federations. Found: at a threshold that 5% of the honest models of "
        f"other federations exceed, in {plural(detection.judged, 'federation')}; Clopper-Pearson, "
        "95%. Below a heading: the server’s success in games. Models: "
        f"{shortened(detection.federation, 200)}; {count(detection.honest)} honest models, "
        f"{count(detection.planted)} of each server, inspected with {count(detection.own)} records "
        "of the client’s own.",
    )


def detector_words(detection: Detection) -> list[str]:
    """Return for each kind of server the signs that identify nearly every model of it."""
    sentences = []
    for server in _servers(detection):
        aucs = {
            sign: of[SIGN_AUC] for (name, sign), of in detection.signs.items() if name == server
        }
        names = [
            SIGNS.get(sign, (shortened(sign), ""))[0].lower()
            for sign, auc in aucs.items()
            if (auc.number if auc.low is None else auc.low) >= _DISTINGUISHES
        ]
        more = [f"{len(names) - _MOST_NAMED} more"] * (len(names) > _MOST_NAMED)
        signs = f": {listed([*names[:_MOST_NAMED], *more])}" if names else ""
        sentences.append(
            f"{_server(server)}: {len(names)} of {plural(len(aucs), 'sign')} identify nearly every "
            f"planted model (AUC of {number(_DISTINGUISHES)} or more){signs}."
        )
    return sentences


def _sign_cell(item: Estimate) -> Cell:
    if item.metric == SIGN_AUC:
        return Cell(number(item.number), interval(item.low, item.high, "figure"))
    total = item.n_members + item.n_nonmembers
    return Cell(
        f"{round(item.number * total)} of {total}", interval(item.low, item.high, "accuracy")
    )


def _servers(detection: Detection) -> Sequence[str]:
    return distinct(server for server, _ in detection.signs)[:_MOST_SERVERS]


def _server(name: str) -> str:
    return SERVERS.get(name, shortened(name))
