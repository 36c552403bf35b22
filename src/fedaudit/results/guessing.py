"""Chance level as the null hypothesis: figures above it, models near it, and failed controls."""

from collections.abc import Collection, Mapping
from itertools import product, zip_longest
from typing import NamedTuple, TypeVar

from fedaudit.core.metric_names import HEADLINE_METRICS, chance_of, rate_of
from fedaudit.results.estimate import TRAIN_ACCURACY, Estimate
from fedaudit.results.record import ControlResult, Record

HIDES_LEAKS = ("planted leak", "reported training metrics")
"""Controls whose failure means that figures may be too low, but never that they are too high."""
NOT_RELIED_ON = "not relied on: a control failed"
_TOPICS = ("membership", "source")
_MOST_CLIENTS = 5
_LONGEST = 60
_ANY = -1


class _Scope(NamedTuple):
    """Figures that a failed control covers: None means all clients or runs, -1 any of them."""

    attack: str
    target: int | None
    seed: int | None


AnyRecord = TypeVar("AnyRecord", bound=Record)


def mark_doubts(record: AnyRecord) -> AnyRecord:
    """Return the record with the failed control noted in each figure that it invalidates.

    A control of one attack, client or run invalidates the figures of that attack, client or run,
    and those over all clients or runs that include it. A control of one client takes precedence
    over the same control over all clients.
    """
    clients = {figure.target for figure in record.estimates} - {None}
    decided = {(c.control, c.attack, c.target) for c in record.controls if c.passed is not None}
    failed: dict[_Scope, str] = {}
    for control in record.controls:
        if control.passed is False and control.control not in HIDES_LEAKS:
            targets: set[int | None] = {control.target}
            if control.target is None:
                name = control.control, control.attack
                undecided = {client for client in clients if (*name, client) not in decided}
                targets = undecided if undecided < clients else {None}
            for scope in product((control.attack,), (*targets, _ANY), (control.seed, _ANY)):
                failed.setdefault(_Scope(*scope), control_name(control))
    doubts = [(figure, _doubt(figure, failed)) for figure in record.estimates]
    if all(figure.doubt == doubt for figure, doubt in doubts):
        return record
    marked = [
        figure if figure.doubt == doubt else figure.doubted(doubt) for figure, doubt in doubts
    ]
    return record.model_copy(update={"estimates": marked})


def _doubt(figure: Estimate, failed: Mapping[_Scope, str]) -> str:
    if not failed or figure.topic not in _TOPICS:
        return ""
    place = (figure.target, figure.seed)
    clients, runs = ((_ANY,) if number is None else (None, number) for number in place)
    scopes = product(dict.fromkeys(("", figure.attack)), clients, runs)
    return next((name for scope in scopes if (name := failed.get(_Scope(*scope)))), "")


def without_doubts(figures: Collection[Estimate]) -> list[Estimate]:
    """Return the figures that no failed control invalidates."""
    return [figure for figure in figures if not figure.doubt]


def control_name(control: ControlResult) -> str:
    """Return a control's name with its attack, its clients and its run."""
    clients = [control.target] if control.target is not None else control.clients
    # Records that are prepared for display hold names instead of numbers.
    names = [
        f"client {client}" if type(client) is int else str(client)
        for client in clients[:_MOST_CLIENTS]
    ]
    n_others = len(clients) - len(names)
    names += [f"{n_others} more"] if n_others else []
    where = [
        f"of {_cut(control.attack)}" if control.attack else "",
        f"on {', '.join(names)}" if names else "",
        f"in seed {control.seed}" if control.seed is not None else "",
    ]
    return " ".join(filter(None, [f"“{_cut(control.control)}”", *where]))


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


LEAST_LEARNED = 0.1
"""Share of the possible gain in accuracy over guessing, below which a model is near guessing."""


class NearGuessing(NamedTuple):
    """Row of a record whose models barely fit their own training data.

    Attributes:
        defense: Name of the defense in force; "none" without one.
        seeds: Runs with such models.
        train_accuracy: The lowest training accuracy of these runs, in [0, 1].
        guess: Accuracy of always predicting the most frequent class of the clients' data.
    """

    defense: str
    seeds: tuple[int, ...]
    train_accuracy: float
    guess: float


def near_guessing(record: Record, least: float = LEAST_LEARNED) -> list[NearGuessing]:
    """Return the rows whose training accuracy is near guessing, so that there is little to leak.

    A row is near guessing if (training accuracy - guess) / (1 - guess) is below ``least`` in any of
    its runs. Attacks and defenses cannot be judged on such models.
    """
    guess = most_frequent_class(record)
    if guess is None:
        return []
    below: dict[str, list[tuple[int, float]]] = {}
    for figure in record.where(topic="utility", metric=TRAIN_ACCURACY):
        if figure.seed is not None and is_near_guessing(figure.number, guess, least):
            below.setdefault(figure.defense, []).append((figure.seed, figure.number))
    return [
        NearGuessing(defense, tuple(seed for seed, _ in rows), min(a for _, a in rows), guess)
        for defense, rows in below.items()
    ]


def is_near_guessing(accuracy: float, guess: float, least: float = LEAST_LEARNED) -> bool:
    """Return True if an accuracy reaches less than a share of the possible gain over guessing."""
    return least > 0 and accuracy - guess < least * (1 - guess)


def most_frequent_class(record: Record) -> float | None:
    """Return the most frequent class's share of all clients' samples.

    Returns:
        None if the record does not state the classes, or has a single one.
    """
    counts = [classes for classes in record.label_distributions if classes]
    if not counts:
        return None
    totals = [sum(column) for column in zip_longest(*counts, fillvalue=0)]
    total = sum(totals)
    return max(totals) / total if 0 < max(totals) < total else None


def alpha_of(record: Record) -> float:
    """Return the study's error level for a family of tests; 5% if the record does not state it."""
    figures = record.config.get("figures")
    alpha = figures.get("alpha") if isinstance(figures, dict) else None
    return alpha if isinstance(alpha, float) and 0 < alpha < 1 else 0.05


def above_chance(figure: Estimate) -> bool | None:
    """Return True if a figure is above guessing; None if it has neither a test nor limits.

    The result is also None for a figure that a failed control invalidates.

    Two conditions must hold: the record's test, corrected over the whole study, is significant, and
    the figure's interval, which is not corrected, excludes guessing. If one of them is missing the
    other decides. For a rate the test alone decides: it is exact, while the interval covers every
    threshold with the same false-positive rate and bounds the size of the leak.
    """
    if figure.value is None or figure.doubt:
        return None
    excludes = _excludes_guessing(figure)
    if figure.significant is None:
        return excludes
    by_test = rate_of(figure.metric) is not None
    return figure.significant and (by_test or excludes is not False)


def by_test_alone(figure: Estimate) -> bool:
    """Return True if the corrected test is significant but the figure's interval contains guessing.

    This happens over several runs: the test asks whether any of them leaks, and the interval is
    that of their mean.
    """
    tested = figure.value is not None and not figure.doubt and figure.significant is True
    return tested and not above_chance(figure)


def by_interval_alone(figure: Estimate) -> bool:
    """Return True if an interval excludes guessing but the corrected test is not significant."""
    return figure.significant is False and _excludes_guessing(figure) is True


def _excludes_guessing(figure: Estimate) -> bool | None:
    level = 0.0 if figure.against else figure.level
    if level is not None:
        least = figure.value if figure.low is None else figure.low
        return None if least is None else least > level
    if figure.metric not in HEADLINE_METRICS:
        return None
    chance = chance_of(figure.metric)
    return None if chance is None or figure.low is None else figure.low > chance
